"""What each round brings to a belief: a score's place and mass, and how much the past is worth."""

import math
from typing import Any, NamedTuple

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int, Num

from dpconformal.engine.pointer_loop import even_block, put, take
from dpconformal.rounds import BLOCK

NO_PLACE = 2**31 - 2  # of a round without a score: beyond every other


class Arrivals(NamedTuple):
    """
    What the scores of the rounds before bring to a belief, round by round.

    Attributes
    ----------
    place : Array, shape (T,)
        Place of the score that came in since the round before; a place beyond all others for none.
    mass : Array, shape (T,)
        Its mass in the units of its time.
    decay : Array, shape (T,), or None
        Factor that brings older masses to those units, 1 but for a few rounds; None for none.
    prior_weight : Array, shape (T,)
        Share of the prior.
    atom : Array, shape (T,)
        Worth of a unit of mass.
    """

    place: Int[Array, "*T"]  # (T,)
    mass: Num[Array, "*T"]  # (T,)
    decay: Num[Array, "*T"] | None  # (T,)
    prior_weight: Float[Array, "*T"]  # (T,)
    atom: Float[Array, "*T"]  # (T,)


def arrivals_by_round(
    place: Int[Array, " T"], counts: Int[Array, " T"], weights: Any, no_place: int, epoch: int | None
) -> Arrivals:
    """
    Spread a belief's evidence over its rounds.

    With a discount β every mass fades by β a score. Rather than touch them all, new ones are given more: β^-k after
    k scores, and what a unit is worth fades instead. Before that overflows, every mass is multiplied once.

    ``epoch``: Rounds after which masses are multiplied between blocks, see :func:`epoch_for`. None: decided here, where
    β may be traced, and carried out within the loop.
    """
    rounds, dtype = place.shape[0], weights.prior.dtype
    before = jnp.concatenate([jnp.full(1, no_place, place.dtype), place[:-1]])
    if weights.discount is None:
        return Arrivals(before, jnp.ones(rounds, jnp.int32), None, weights.prior, weights.atom)
    discount = weights.discount
    if epoch is None:
        length = jnp.maximum(jnp.floor(_largest_power(dtype) / -jnp.log2(discount)), 1)
        length = jnp.where(length < rounds, length, rounds + 1).astype(jnp.int32)  # also where β is NaN
        age = (counts - counts[0]) % length
        due = (age == 0) & (jnp.diff(counts, prepend=counts[:1]) > 0)  # not again in a round without a score
        decay = jnp.where(due, discount ** length.astype(dtype), 1)
    else:
        block = even_block(rounds, epoch)
        age, decay = counts - jnp.repeat(counts[::block], block)[:rounds], None
    worth = discount ** age.astype(dtype)
    return Arrivals(before, 1 / worth, decay, weights.prior, weights.atom * worth)


def _largest_power(dtype: Any) -> float:
    """Powers of two that a mass may grow by; the rest is for sums of many."""
    return 0.7 * float(jnp.finfo(dtype).maxexp)


def epoch_for(discount: float | None, dtype: Any) -> int:
    """Count the rounds in which masses may grow: a power of two, for few programs; at most a block."""
    if discount is None:
        return BLOCK
    rounds = max(_largest_power(dtype) / -math.log2(discount), 1.0)
    return min(BLOCK, 1 << int(math.log2(rounds)))


def rounds_remembered(discount: float, dtype: Any) -> int:
    """Count the rounds after which all older scores weigh less than a hundredth of the last bit of the total."""
    return math.ceil((jnp.finfo(dtype).nmant + 8) / -math.log2(discount))


def block_and_decays(
    counts: Int[Array, " T"], epoch: int | None, discount: Float[Array, ""] | None
) -> tuple[int, Float[Array, " N"] | None]:
    """Return how many rounds make a block, and what masses are multiplied by before each."""
    if epoch is None or discount is None:
        return BLOCK, None
    block = even_block(counts.shape[0], epoch)
    starts = counts[::block]
    return block, discount ** jnp.diff(starts, prepend=starts[:1]).astype(discount.dtype)


def decay_in_place(masses: Num[Array, " N"], by: Num[Array, ""], now: Bool[Array, ""]) -> Num[Array, " N"]:
    """Multiply masses from within a loop, in the few rounds where that is due."""
    stop = jnp.where(now & (by < 1), masses.shape[0], 0).astype(jnp.int32)
    return lax.fori_loop(jnp.zeros_like(stop), stop, lambda i, masses: put(masses, i, take(masses, i) * by), masses)
