"""The weight of the regulariser, round by round: the concentration of the Dirichlet process that is in force."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from dpconformal import schedules
from dpconformal.priors import Uniform
from dpconformal.schedules import Schedule
from dpconformal.theory import moments
from dpconformal.theory.regularizer import excess_regularizer
from dpconformal.validation import Numbers, Scalar, as_numbers, check_float, check_scalar, raise_at


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
    raise_at("t", t, ~(t >= 1), "rounds are counted from 1")
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
    raise_at("schedule", weight, ~((weight > 0) & (weight <= 1)), "a weight must lie in (0, 1]")
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
        discount = check_float("discount", discount, 0.0, 1.0, open_low=True, open_high=True)
    if count == 0:
        return 1.0, np.zeros(0)
    if discount is None:
        weight, weights = float(concentration(count + 1, schedule)), np.ones(count)
    else:
        # The losses of the objective end with the last round: β^(t - 1) z_t.
        weight = float(path_weights(np.array(count + 1.0), schedule, discount)) / discount
        weights = discount ** np.arange(count - 1, -1, -1.0)
    return (1.0, np.zeros(count)) if np.isinf(weight) else (weight, weights)


def coverage_bound(t: Numbers, level: Numbers, delta: Scalar = 0.05, schedule: Any = None) -> tuple[Any, Any]:
    """
    Bound the coverage probability of the threshold of round t, given the scores before it (Theorem 3).

    For iid scores with a continuous distribution, any prior and a fixed t, with probability 1 - δ over the n = t - 1
    scores before, for all levels at once: α - (1 - α) h_t/n - ε and α + (α h_t + 1)/n + ε, ε = √(ln(2/δ)/(2n)), within
    [0, 1]. For λ_t = 1/√t, h_t/n is 1/(√t - 1).

    Parameters
    ----------
    t : array_like
        Rounds, counted from 1.
    level : array_like
        α, which broadcasts against the rounds.
    delta : float
        δ in (0, 1).
    schedule : Schedule or callable, optional
        λ_t, not discounted; 1/√t by default.

    Returns
    -------
    tuple of ndarray or float
        Lower and upper bound.

    Examples
    --------
    >>> low, high = coverage_bound(1001, 0.9)
    >>> round(float(low), 3), round(float(high), 3)
    (0.854, 0.973)
    """
    t, level = _numbers("t", t, 1), _levels(level)
    count, weight = t - 1, np.asarray(concentration(t, schedule))
    with np.errstate(divide="ignore", invalid="ignore"):
        shift, doubt = weight / count, np.sqrt(np.log(2 / _probability("delta", delta)) / (2 * count))
        low = np.where(level < 1, level - (1 - level) * shift, 1.0) - doubt
        high = np.where(level > 0, level + level * shift, 0.0) + 1 / count + doubt
    return np.clip(low, 0, 1)[()], np.clip(high, 0, 1)[()]


def excess_risk_bound(
    t: Numbers, level: Numbers, delta: Scalar = 0.05, prior: Any = Uniform(), schedule: Any = None
) -> Any:
    """
    Bound the expected loss of the threshold of round t beyond that of the best threshold (Theorem 4).

    For iid scores of any distribution on the prior's support and a fixed t, with probability 1 - δ over the n = t - 1
    scores before, for all levels at once: R √(ln(2/δ)/(2n)) + h_t/n · (max ψ - min ψ).

    Parameters
    ----------
    t : array_like
        Rounds, counted from 1.
    level : array_like
        α, which broadcasts against the rounds.
    delta : float
        δ in (0, 1).
    prior : Prior
        P0, on a bounded support.
    schedule : Schedule or callable, optional
        λ_t, not discounted; 1/√t by default.

    Returns
    -------
    ndarray or float
        The bound; infinite in round 1.

    Examples
    --------
    >>> round(float(excess_risk_bound(10_001, 0.9)), 4)
    0.0177
    """
    t, level = _numbers("t", t, 1), _levels(level)
    low, high = moments.support(prior)
    if not np.isfinite(high - low):
        raise ValueError(f"prior has support [{low:g}, {high:g}]: the excess risk is bounded on a bounded one only")
    count, weight = t - 1, np.asarray(concentration(t, schedule))
    largest = np.maximum(excess_regularizer(low, level, prior), excess_regularizer(high, level, prior))
    with np.errstate(divide="ignore", invalid="ignore"):  # an endless number of scores leaves no doubt
        doubt = np.sqrt(np.log(2 / _probability("delta", delta)) / (2 * count))
        return ((high - low) * doubt + weight / count * largest)[()]


def coverage_bracket(level: Numbers, count: Numbers, concentration: Numbers) -> tuple[Any, Any]:
    """
    Bracket the coverage probability of the next round in a finite sample, whatever the prior.

    For any prior, even one chosen from anything but the coming score, and a concentration a that was fixed beforehand,
    the threshold of level ℓ lies between the order statistics of ranks ⌈ℓ(n + a) - a⌉ and ⌈ℓ(n + a)⌉ of the n scores.
    If the scores are exchangeable, these ranks divided by n + 1 are the bracket. The upper end needs scores without
    ties, none of them at the lower end of the support; the lower end needs neither.

    Parameters
    ----------
    level : array_like
        ℓ.
    count : array_like
        n, the number of scores seen.
    concentration : array_like
        a; with λ_t = 1/√t, that of round n + 1: :func:`concentration`.

    Returns
    -------
    tuple of ndarray or float
        Lower and upper end, both 1 at level 1. Below it some prior attains each.

    Examples
    --------
    >>> low, high = coverage_bracket(0.9, count=100, concentration=5)
    >>> round(float(low), 4), round(float(high), 4)
    (0.8911, 0.9406)
    """
    level, count, weight = _levels(level), _numbers("count", count, 0), _numbers("concentration", concentration, 0)
    raise_at("count", count, ~np.isfinite(count), "must be finite")
    raise_at("concentration", weight, ~np.isfinite(weight), "must be finite")
    least, most = rank_bracket(level, count, weight)
    return (least / (count + 1))[()], (most / (count + 1))[()]


def rank_bracket(level: Any, count: Any, weight: Any) -> tuple[Any, Any]:
    """Bracket the rank of a threshold among the scores seen: X_(least) ≤ threshold ≤ X_(most)."""
    with np.errstate(invalid="ignore"):
        wanted = level * (count + weight)
        # 0.9 · 100 is meant to be 90, also where floating point says 90.00000000000001.
        slack = 1e-9 * np.maximum(1, count)
        least, most = np.ceil(wanted - weight - slack), np.ceil(wanted - slack)
    informed = (count > 0) & np.isfinite(weight)
    least = np.where(informed, np.clip(least, 0, count), 0)
    most = np.where(informed & (most <= count), np.maximum(most, 0), count + 1)
    # Level 1 is the upper end of the support. Rounded up, a little less than 0 is -0.0.
    return np.where(level >= 1, count + 1, least) + 0.0, most + 0.0


def corrected_level(level: Numbers, count: Numbers, concentration: Numbers) -> Any:
    """
    Return the level to ask a belief for, so that coverage is at least ``level`` in finite samples.

    (ℓ(n + 1) + a)/(n + a): then the lower end of :func:`coverage_bracket` is at least ℓ, for exchangeable scores, any
    prior and a fixed concentration. Where that exceeds 1 no quantile within the data would do, and level 1, the
    upper end of the support, covers with certainty.

    Parameters
    ----------
    level : array_like
        ℓ, the coverage wanted.
    count : array_like
        n, the number of scores seen.
    concentration : array_like
        a.

    Returns
    -------
    ndarray or float
        The level to ask for, at most 1.

    Examples
    --------
    >>> asked = corrected_level(0.9, count=100, concentration=5)
    >>> round(float(asked), 4), bool(coverage_bracket(asked, 100, 5)[0] >= 0.9)
    (0.9133, True)
    """
    level, count, weight = _levels(level), _numbers("count", count, 0), _numbers("concentration", concentration, 0)
    with np.errstate(all="ignore"):  # without evidence every level asks for everything
        asked = (level * (count + 1) + weight) / (count + weight)
    return np.where(count + weight > 0, np.minimum(asked, 1), 1.0)[()]


def _levels(level: Numbers) -> Any:
    level = np.asarray(as_numbers("level", level), float)
    raise_at("level", level, ~((level >= 0) & (level <= 1)), "a confidence level lies in [0, 1]")
    return level


def _numbers(name: str, value: Numbers, least: int) -> Any:
    value = np.asarray(as_numbers(name, value), float)
    raise_at(name, value, ~(value >= least), f"must be at least {least}")
    return value


def _probability(name: str, value: Scalar) -> float:
    return float(check_scalar(name, value, 0.0, 1.0, open_low=True, open_high=True))
