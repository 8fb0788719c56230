"""How much of a belief is the prior's and how much each score's: schedule and discount at work."""

from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from dpconformal import schedules
from dpconformal.checks import is_traced, number
from dpconformal.priors import Prior


class Weights(NamedTuple):
    """
    Shares of the belief of the coming round.

    Attributes
    ----------
    prior, atom, discount : Array
        See the comments in the source.
    """

    prior: Float[Array, ""]  # () share of P0; NaN if the state was spoilt
    atom: Float[Array, ""]  # () mass of a score that has just been seen
    discount: Float[Array, ""] | None  # () what that mass is multiplied with each round; None: never


def weights_of(learner: Any, count: Array, dtype: Any) -> Weights:
    """
    Share of the prior, and the mass of a score that has just been seen.

    Undiscounted, P = λ P0 + (1-λ)/n Σ δ(score_i). Discounted by β, a score that is k rounds old has
    lost a factor β^k, and what scores have not yet claimed stays with the prior:
    P = λ P0 + (1-λ)[β^n P0 + (1-β) Σ β^(n-i) δ(score_i)].

    Parameters
    ----------
    learner : Exact or Quantized
        The belief, for its schedule and discount.
    count : Array
        Scores seen, n; the coming round is t = n + 1. Negative if the state was spoilt.
    dtype : dtype
        To compute in.

    Returns
    -------
    Weights
        With no score the prior has everything.
    """
    weight = schedule_of(learner).weight((count + 1).astype(dtype))
    seen = jnp.maximum(count, 1).astype(dtype)
    if learner.discount is None:
        discount = None
        prior, atom = weight, (1 - weight) / seen
    else:
        discount = jnp.asarray(learner.discount, dtype)
        discount = jnp.where((discount > 0) & (discount < 1), discount, jnp.nan)
        prior, atom = weight + (1 - weight) * discount**seen, (1 - weight) * (1 - discount)
    empty = count == 0
    prior, atom = jnp.where(empty, 1, prior), jnp.where(empty, 0, atom)
    return Weights(jnp.where(count < 0, jnp.nan, prior), atom, discount)


def schedule_of(learner: Any) -> schedules.Schedule:
    """
    Return the schedule in force: the one given, or the one that suits the discount.

    Parameters
    ----------
    learner : Exact or Quantized
        The belief.

    Returns
    -------
    Schedule
        Where none was given, 1/√t without and the theorem's constant with a discount.
    """
    if learner.schedule is not None:
        return learner.schedule
    return schedules.InverseSqrt() if learner.discount is None else schedules.discounted(learner.discount)


def check_belief(owner: str, learner: Any) -> None:
    """
    Check and normalise the prior, schedule and discount of a belief that is being constructed.

    Parameters
    ----------
    owner : str
        The class's name.
    learner : Exact or Quantized
        The belief; a plain function as its schedule is wrapped in place.

    Raises
    ------
    ValueError
        Naming what is wrong.
    """
    if not isinstance(learner.prior, Prior) or isinstance(learner.prior, type):
        raise ValueError(f"{owner}.prior = {learner.prior!r}: pass a prior such as priors.Uniform(0, 1)")
    if learner.schedule is not None:
        object.__setattr__(learner, "schedule", schedules.as_schedule(learner.schedule))
    if learner.discount is not None:
        hint = "leave it out for no discount"
        discount = number(f"{owner}.discount", learner.discount, 0.0, 1.0, open_low=True, open_high=True, hint=hint)
        object.__setattr__(learner, "discount", discount)


def check_rounds(learner: Any, count: Any, rounds: int) -> None:
    """
    Check the schedule on the rounds to come.

    Parameters
    ----------
    learner : Exact or Quantized
        The belief.
    count : Array
        Scores seen, of one state or of a batch.
    rounds : int
        Rounds to come.

    Raises
    ------
    ValueError
        With the round and its weight.
    """
    seen = np.zeros(1, int) if is_traced(count) else np.atleast_1d(count)
    if seen.size:
        schedules.check_weights(schedule_of(learner), int(seen.min()) + 1, int(seen.max()) + rounds)
