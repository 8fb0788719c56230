"""Bins of equal width: where a score belongs, correct to the last bit."""

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Int


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
