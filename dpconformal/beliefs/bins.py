"""Bins of equal width: the evidence of the quantized belief, where a score belongs, and where it counts."""

from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, Num

from dpconformal.binning import bin_of, edge_of, part_way
from dpconformal.validation import Scalar, beside, check_within, complain_at

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

    def check(self, learner: Any) -> None:
        """Refuse what no replay leaves: counts add up to the scores, discounted ones to what is left of their mass."""
        weights, discount = np.asarray(self.weights), getattr(learner, "discount", None)
        seen = np.asarray(self.seen, float)
        if not weights.shape[-1]:
            raise ValueError("state.weights must have a bin")
        check_within("state.weights", weights, 0, beside(seen, weights) * 2, "so many scores leave no more")
        total = weights.sum(axis=-1)
        if discount is None:
            complain_at("state.seen", self.seen, total != seen, "counts must add up to state.seen")
        else:
            mass = -np.expm1(seen * np.log(discount)) / (1 - discount)
            # Rounding piles up where a discount is next to 1, but never to half of it all.
            why = "state.weights do not add up to the mass of so many scores"
            complain_at("state.seen", self.seen, (total < mass / 2) | (total > 2 * mass), why)


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
