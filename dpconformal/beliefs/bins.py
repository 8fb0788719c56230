"""Bins of equal width: the evidence of the quantized belief, and where a score belongs."""

from typing import Any, NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Num

from dpconformal.binning import bin_of, part_way
from dpconformal.checks import Scalar

__all__ = ["BinnedScores", "bin_of", "centres_of", "part_way"]


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
