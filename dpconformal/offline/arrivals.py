"""What each round brings: a score's place and mass, and how much the past is worth."""

import math
from typing import Any, NamedTuple

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int, Num

from dpconformal.offline.loops import put, take
from dpconformal.offline.rounds import even_block
from dpconformal.rounds import BLOCK


class Arrivals(NamedTuple):
    """
    What the scores of the rounds before bring to a belief, round by round.

    Attributes
    ----------
    place : Array, shape (T,)
        Place of the score that came in since the round before; ``nowhere`` for none.
    mass : Array, shape (T,)
        Its mass in the units of its time.
    shrink : Array, shape (T,), or None
        Factor that brings older masses to those units, 1 but for a few rounds; None for none.
    prior_weight : Array, shape (T,)
        Share of the prior.
    atom : Array, shape (T,)
        Worth of a unit of mass.
    """

    place: Int[Array, "*T"]  # (T,)
    mass: Num[Array, "*T"]  # (T,)
    shrink: Num[Array, "*T"] | None  # (T,)
    prior_weight: Float[Array, "*T"]  # (T,)
    atom: Float[Array, "*T"]  # (T,)


def arrivals(
    place: Int[Array, " T"], counts: Int[Array, " T"], weights: Any, nowhere: int, epoch: int | None
) -> Arrivals:
    """
    Spread a belief's evidence over its rounds.

    With a discount β every mass fades by β a score. Rather than touch them all, new ones are given more: β^-k after
    k scores, and what a unit is worth fades instead. Before that overflows, every mass is shrunk once.

    ``epoch``: Rounds after which masses are shrunk between blocks, see :func:`epoch_for`. None: decided here, where β
    may be traced, and carried out by the walk.
    """
    rounds, dtype = place.shape[0], weights.prior.dtype
    before = jnp.concatenate([jnp.full(1, nowhere, place.dtype), place[:-1]])
    if weights.discount is None:
        return Arrivals(before, jnp.ones(rounds, jnp.int32), None, weights.prior, weights.atom)
    discount = weights.discount
    if epoch is None:
        length = jnp.maximum(jnp.floor(_limit(dtype) / -jnp.log2(discount)), 1)
        length = jnp.where(length < rounds, length, rounds + 1).astype(jnp.int32)  # also where β is NaN
        age = (counts - counts[0]) % length
        due = (age == 0) & (jnp.diff(counts, prepend=counts[:1]) > 0)  # not again in a round without a score
        shrink = jnp.where(due, discount ** length.astype(dtype), 1)
    else:
        block = even_block(rounds, epoch)
        age, shrink = counts - jnp.repeat(counts[::block], block)[:rounds], None
    worth = discount ** age.astype(dtype)
    return Arrivals(before, 1 / worth, shrink, weights.prior, weights.atom * worth)


def _limit(dtype: Any) -> float:
    """Powers of two that a mass may grow by; the rest is for sums of many."""
    return 0.7 * float(jnp.finfo(dtype).maxexp)


def epoch_for(learner: Any, dtype: Any) -> int:
    """
    Count the rounds in which a belief's masses may grow before they must be shrunk.

    Returns: A power of two, so that few programs are compiled for many discounts; at most a block.
    """
    if learner.discount is None:
        return BLOCK
    rounds = max(_limit(dtype) / -math.log2(learner.discount), 1.0)
    return min(BLOCK, 1 << int(math.log2(rounds)))


def rounds_remembered(discount: float, dtype: Any) -> int:
    """
    Count the rounds after which a score weighs nothing, in floating-point numbers.

    Returns: All scores older than that together weigh less than a hundredth of the last bit of the belief's mass.
    """
    return math.ceil((jnp.finfo(dtype).nmant + 8) / -math.log2(discount))


def block_and_fade(
    counts: Int[Array, " T"], epoch: int | None, discount: Float[Array, ""] | None
) -> tuple[int, Float[Array, " N"] | None]:
    """Tell how many rounds to walk at a time, and by how much masses fade from one block to the next."""
    if epoch is None or discount is None:
        return BLOCK, None
    block = even_block(counts.shape[0], epoch)
    starts = counts[::block]
    return block, discount ** jnp.diff(starts, prepend=starts[:1]).astype(discount.dtype)


def shrunk_in_place(masses: Float[Array, " N"], by: Float[Array, ""], now: Bool[Array, ""]) -> Float[Array, " N"]:
    """Multiply masses from within a walk, in the few rounds where that is due."""
    stop = jnp.where(now & (by < 1), masses.shape[0], 0).astype(jnp.int32)
    return lax.fori_loop(jnp.zeros_like(stop), stop, lambda i, masses: put(masses, i, take(masses, i) * by), masses)
