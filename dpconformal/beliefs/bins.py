"""Bins of equal width: the evidence of the quantized belief, where a score belongs, and where it counts."""

from typing import Any, NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Num

from dpconformal.binning import bin_of, edge_of, part_way
from dpconformal.checks import Scalar

# Where a score counts: at the upper edge of its right-closed bin, or at the centre of its left-closed one.
ROUNDINGS = ("up", "nearest")


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


def check_rounding(name: str, rounding: Any) -> None:
    """Refuse a rounding that is neither "up" nor "nearest"."""
    if rounding not in ROUNDINGS:
        raise ValueError(f"{name} = {rounding!r}: pass 'up', to the bin's upper edge, or 'nearest', to its centre")


def bin_index(scores: Float[Array, "*n"], support: tuple[Scalar, Scalar], bins: int, rounding: str) -> Int[Array, "*n"]:
    """Return the bin of each score, counted from 0; ``rounding`` says to which bin an edge belongs."""
    low, high = (jnp.asarray(end, scores.dtype) for end in support)
    return bin_of(scores, low, high, bins, "right" if rounding == "up" else "left")


def bin_edges(support: tuple[Scalar, Scalar], bins: int, dtype: Any) -> Float[Array, " E"]:
    """Return the edges of the bins, shape (bins + 1,); the ends are those of the support, to the bit."""
    low, high = (jnp.asarray(end, dtype) for end in support)
    return edge_of(low, high, jnp.arange(bins + 1, dtype=dtype), bins)


def bin_atoms(support: tuple[Scalar, Scalar], bins: int, dtype: Any, rounding: str) -> Float[Array, " K"]:
    """Return where the scores of each bin count, shape (bins,): at its upper edge, or at its centre."""
    if rounding == "up":
        return bin_edges(support, bins, dtype)[1:]
    low, high = (jnp.asarray(end, dtype) for end in support)
    return part_way(low, high, jnp.arange(bins, dtype=dtype) + 0.5, jnp.asarray(bins, dtype))
