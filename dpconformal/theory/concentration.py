"""The weight of the regulariser, round by round: the concentration of the Dirichlet process that is in force."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from dpconformal import schedules
from dpconformal.schedules import Schedule
from dpconformal.validation import Numbers, Scalar, as_numbers, complain_at, number


def concentration(t: Numbers, schedule: Any = None) -> Any:
    """
    Compute h_t = λ_t (t - 1)/(1 - λ_t): regulariser weight and Dirichlet concentration in one number.

    Parameters
    ----------
    t : array_like
        Rounds, counted from 1.
    schedule : Schedule or callable, optional
        λ_t; 1/√t by default.

    Returns
    -------
    ndarray or float
        √t + 1 for 1/√t, and a for ``Dirichlet(a)``. In round 1 any weight gives the prior: there the schedules of
        which no limit is known have h_2. Infinite where λ_t is 1 later on.

    Examples
    --------
    >>> concentration([4, 9])
    array([3., 4.])
    >>> concentration(7, schedules.Dirichlet(5.0))
    np.float64(5.0)
    """
    t = np.asarray(as_numbers("t", t), float)
    complain_at("t", t, ~(t >= 1), "rounds are counted from 1")
    schedule = schedules.InverseSqrt() if schedule is None else schedules.as_schedule(schedule)
    if isinstance(schedule, schedules.InverseSqrt):
        return (np.sqrt(t) + 1)[()]
    if isinstance(schedule, schedules.ForDelay):
        return (np.sqrt(1 + 2 * float(schedule.delay)) * (np.sqrt(t) + 1))[()]
    if isinstance(schedule, schedules.Dirichlet):
        return np.full(t.shape, float(schedule.concentration))[()]
    rounds = np.maximum(t, 2)
    return (odds(schedule, rounds) * (rounds - 1))[()]


def odds(schedule: Schedule, t: Any) -> Any:
    """
    Compute λ_t/(1 - λ_t) in float64.

    ``t``: Rounds; round 1, in which the prior has all the weight, has the odds of round 2.
    """
    t = np.maximum(np.asarray(t, float), 2)
    with jax.enable_x64(True):
        # Mapped, not broadcast: a user's own schedule may be written for one number.
        weight = np.asarray(jax.vmap(schedule.weight)(jnp.asarray(t.ravel())), float).reshape(t.shape)
    complain_at("schedule", weight, ~((weight > 0) & (weight <= 1)), "a weight must lie in (0, 1]")
    with np.errstate(divide="ignore"):
        return weight / (1 - weight)


def path_weights(t: Any, schedule: Any, discount: Scalar | None) -> Any:
    """
    Compute the weight of the regulariser beside a newest loss of weight 1, after the round: h_t, or β^t z_t.

    Returns: h_t without a discount; with one, (β λ_t/(1 - λ_t) + β^t)/(1 - β), z_t being the weight in the proof of
    Theorem 6 and β^t what scales its losses to the present.
    """
    if discount is None:
        return np.asarray(concentration(t, schedule))
    beta = float(discount)
    schedule = schedules.discounted(beta) if schedule is None else schedules.as_schedule(schedule)
    return (beta * odds(schedule, t) + beta**t) / (1 - beta)


def regularizer_weights(count: int, schedule: Any, discount: Scalar | None) -> tuple[float, Any]:
    """Compute the weights in the objective of the coming round: of the regulariser, and of each past loss."""
    if discount is not None:
        discount = number("discount", discount, 0.0, 1.0, open_low=True, open_high=True)
    if count == 0:
        return 1.0, np.zeros(0)
    if discount is None:
        weight, weights = float(concentration(count + 1, schedule)), np.ones(count)
    else:
        # The losses of the objective end with the last round: β^(t - 1) z_t.
        weight = float(path_weights(np.array(count + 1.0), schedule, discount)) / discount
        weights = discount ** np.arange(count - 1, -1, -1.0)
    return (1.0, np.zeros(count)) if np.isinf(weight) else (weight, weights)
