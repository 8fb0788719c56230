"""Bins of equal width: the evidence of the quantized belief, and where a score belongs."""

from typing import Any, NamedTuple

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Int, Num

from dpconformal.checks import Scalar


class BinnedScores(NamedTuple):
    """
    Scores seen so far, in bins of equal width.

    Attributes
    ----------
    seen : Array, shape ()
        How many scores; -1 once a bad one was met inside ``jit``.
    weights : Array, shape (bins,)
        Whole counts, or with a discount Σ β^age of a bin's scores.
    """

    seen: Int[Array, "*B"]  # ()
    weights: Num[Array, "*B K"]  # (bins,)


def bin_of(score: Float[Array, "*n"], low: Float[Array, ""], high: Float[Array, ""], bins: int) -> Int[Array, "*n"]:
    """
    Find the bin that holds a score; correct to the last bit, also where division rounds.

    Parameters
    ----------
    score : Array
        Scores.
    low, high : Array, shape ()
        Ends of the support.
    bins : int
        How many bins there are.

    Returns
    -------
    Array
        Bins, counted from 0.
    """
    score, low, high = lax.stop_gradient((score, low, high))
    width = high - low
    # Behind the barrier XLA cannot replace the division by a product with the rounded 1/bins.
    size = lax.optimization_barrier(jnp.asarray(bins, score.dtype))

    def edge(k: Array) -> Array:
        return part_way(low, high, k, size)

    k = jnp.floor((score - low) / width * size)
    k = jnp.where(score < edge(k), k - 1, jnp.where(score >= edge(k + 1), k + 1, k))
    return jnp.clip(k, 0, bins - 1).astype(jnp.int32)


def centres_of(support: tuple[Scalar, Scalar], bins: int, dtype: Any) -> Float[Array, " K"]:
    """
    Return the centres of the bins, where their scores are taken to be.

    Parameters
    ----------
    support : tuple
        Its ends.
    bins : int
        How many bins there are.
    dtype : dtype
        To compute in.

    Returns
    -------
    Array, shape (bins,)
        Centres.
    """
    low, high = (jnp.asarray(end, dtype) for end in support)
    return part_way(low, high, jnp.arange(bins, dtype=dtype) + 0.5, jnp.asarray(bins, dtype))


def part_way(
    low: Float[Array, ""], high: Float[Array, ""], part: Float[Array, "*n"], whole: Float[Array, ""]
) -> Float[Array, "*n"]:
    """
    Go ``part`` of ``whole`` equal steps from one end of the support to the other.

    Parameters
    ----------
    low, high : Array, shape ()
        Ends of the support.
    part : Array
        Steps to go.
    whole : Array, shape ()
        Steps in all.

    Returns
    -------
    Array
        low + part · (high - low)/whole, multiplied first; on a support so wide that the product would overflow, at a
        scale at which it does not. A power of two changes no digit.
    """
    width, widest = high - low, jnp.finfo(low.dtype).maxexp
    wide = width > 2.0 ** (widest - 40)
    down, up = (jnp.where(wide, factor, 1).astype(low.dtype) for factor in (2.0**-40, 2.0**40))
    # Multiplied back: of two divisions XLA would make one, which rounds otherwise.
    return low + ((part * (width * down)) / whole) * up
