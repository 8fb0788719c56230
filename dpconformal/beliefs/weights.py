"""How much of a belief is the prior's and how much each score's: schedule and discount at work."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from dpconformal import schedules
from dpconformal.engine.states import rounds_after
from dpconformal.priors import Prior
from dpconformal.validation import check_float, check_int, check_not_batched, is_interval, is_traced, raise_at


class Weights(NamedTuple):
    """
    Shares of the belief of the coming round.

    Attributes
    ----------
    prior : Array, shape ()
        Share of P0; NaN if the state is invalid.
    atom : Array, shape ()
        Mass of a score that has just been seen.
    discount : Array, shape (), or None
        What that mass is multiplied with each round; None for nothing.
    """

    prior: Float[Array, "*T"]  # ()
    atom: Float[Array, "*T"]  # ()
    discount: Float[Array, ""] | None  # ()


def weights_of(learner: Any, count: Array, dtype: Any) -> Weights:
    """
    Share of the prior, and the mass of a score that has just been seen.

    Undiscounted, P = λ P0 + (1-λ)/n Σ δ(score_i). Discounted by β, a score that is k rounds old has
    lost a factor β^k, and what scores have not yet claimed stays with the prior:
    P = λ P0 + (1-λ)[β^n P0 + (1-β) Σ β^(n-i) δ(score_i)].

    ``count``: Scores seen, n; the coming round is t = n + 1. Negative if the state is invalid.
    """
    weight = schedule_of(learner).weight(count.astype(dtype) + 1)
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


def weights_by_round(learner: Any, counts: Int[Array, " T"], dtype: Any) -> Weights:
    """Compute the weights of many rounds."""
    # Mapped, not broadcast: a user's own schedule may be written for one number.
    by_round = jax.vmap(lambda count: weights_of(learner, count, dtype)._replace(discount=None))(counts)
    return by_round._replace(discount=weights_of(learner, jnp.asarray(1, jnp.int32), dtype).discount)


def schedule_of(learner: Any) -> schedules.Schedule:
    """
    Return the schedule in force: the one given, or the one that suits the discount.

    Returns: Where none was given, 1/√t without and the theorem's constant with a discount.
    """
    if learner.schedule is not None:
        return learner.schedule
    return schedules.InverseSqrt() if learner.discount is None else schedules.discounted(learner.discount)


def closes_over_traced(schedule: Any) -> bool:
    """Whether a user's function hides a value that is being traced, which no other thread could evaluate."""
    return isinstance(schedule, schedules.Custom) and is_traced(schedule.function(jnp.ones(())))


def check_belief(owner: str, learner: Any) -> None:
    """Check and normalise the prior, schedule and discount of a belief that is being constructed."""
    check_prior(owner, learner.prior)
    if learner.schedule is not None:
        object.__setattr__(learner, "schedule", schedules.as_schedule(learner.schedule))
    if learner.discount is not None:
        hint = "leave it out for no discount"
        discount = check_float(
            f"{owner}.discount", learner.discount, 0.0, 1.0, open_low=True, open_high=True, hint=hint
        )
        object.__setattr__(learner, "discount", discount)


def check_prior(owner: str, prior: Any) -> None:
    """Check that a learner's prior is one, and that JAX can see into it."""
    if not isinstance(prior, Prior) or isinstance(prior, type):
        raise ValueError(f"{owner}.prior = {prior!r}: pass a prior such as priors.Uniform(0, 1)")
    if any(leaf is prior for leaf in jax.tree.leaves(prior)):
        raise ValueError(
            f"{owner}.prior = {prior!r}: not a pytree; register its class, see dpconformal.pytree.register"
        )


def check_valid_count(seen: Any) -> None:
    """Refuse to carry on from a state that met something bad inside ``jit``."""
    if not is_traced(seen):
        why = "a bad score or a full buffer was met inside jit; carry on from an earlier state"
        raise_at("state.seen", seen, np.asarray(seen) < 0, why)


def check_fresh(learner: Any, rounds: int | None, dtype: Any) -> None:
    """Check a belief on its first rounds, before a state is made."""
    check_not_batched(learner)
    check_rounds(learner, 0, 0 if rounds is None else check_int("rounds", rounds, 0), dtype)


def check_rounds(learner: Any, seen: Any, rounds: int, dtype: Any) -> None:
    """
    Check the hyperparameters on the rounds to come, in the precision to come.

    ``dtype``: To compute in. What is in range as written may not be in float32: β = 1 - 1e-9 is 1 there.
    """
    check_valid_count(seen)
    if is_traced(learner):
        return
    counts = np.zeros(1, int) if is_traced(seen) else np.atleast_1d(seen)
    for first, last in rounds_after(counts, rounds):
        schedules.check_weights(schedule_of(learner), first, last)
    check_precision(learner, dtype)
    probed = np.asarray([1, max(int(counts.max(initial=0)) + rounds - 1, 1)], float)
    weights = _probe(learner, probed, np.dtype(dtype))
    if is_traced(weights):  # the caller is being traced: NaN thresholds will tell
        return
    limits, prior = jnp.finfo(dtype), np.asarray(weights.prior)
    valid = (prior >= limits.tiny) & (prior <= 1) & np.isfinite(weights.atom)
    if not valid.all() or (learner.discount is not None and learner.discount < limits.tiny):
        what = f"schedule = {learner.schedule!r}, discount = {learner.discount!r}"
        raise ValueError(
            f"{type(learner).__name__} with {what}: its weights collapse in {np.dtype(dtype)}; rescale it, or enable "
            "64-bit JAX (jax_enable_x64)"
        )


def check_precision(learner: Any, dtype: Any) -> None:
    """Check that a learner's support, and its prior if it has one, are still such in the precision to come."""
    if is_traced(learner, jnp.zeros((), dtype)):  # the caller is being traced: NaN thresholds will tell
        return
    prior, hint = getattr(learner, "prior", None), f"in {np.dtype(dtype)}; rescale it, or enable 64-bit JAX"
    middle = 0.0
    if prior is not None:
        with np.errstate(over="ignore"):  # an overflow is what is looked for
            middle = _median(prior, np.dtype(dtype))
    if not is_interval(learner.support, dtype) or not np.isfinite(middle):
        own = f"prior = {prior!r}" if prior is not None else f"low, high = {learner.support}"
        raise ValueError(f"{type(learner).__name__}.{own} collapses {hint} (jax_enable_x64)")


@jax.jit(static_argnames="dtype")
def _median(prior: Any, dtype: Any) -> Array:
    """Return the prior's median: NaN or infinite where something collapses."""
    return prior.quantile(jnp.asarray(0.5, dtype))


@jax.jit(static_argnames="dtype")
def _probe(learner: Any, counts: Array, dtype: Any) -> Weights:
    """Return the weights after some scores: NaN where something collapses."""
    return jax.vmap(lambda count: weights_of(learner, count, dtype)._replace(discount=None))(counts)
