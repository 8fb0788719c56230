"""Bins of equal width: the evidence of the quantized belief, where a score belongs and where it counts, to the bit."""

from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Bool, Float, Int, Num

from dpconformal.validation import Scalar, add_trailing_axes, check_within, raise_at


def bin_of(
    score: Float[Array, "*n"], low: Float[Array, ""], high: Float[Array, ""], bins: int, closed: str = "left"
) -> Int[Array, "*n"]:
    """
    Find the bin that holds a score; correct to the last bit, also where division rounds.

    ``closed``: Whether an edge belongs to the bin above it, or to the one below it. The ends of the support belong to
    the first and the last bin either way.
    """
    score, low, high = lax.stop_gradient((score, low, high))
    place = (score - low) / (high - low) * bins
    if closed == "left":
        k = jnp.floor(place)
        below, beyond = score < edge_of(low, high, k, bins), score >= edge_of(low, high, k + 1, bins)
    else:
        k = jnp.ceil(place) - 1
        below, beyond = score <= edge_of(low, high, k, bins), score > edge_of(low, high, k + 1, bins)
    k = jnp.where(below, k - 1, jnp.where(beyond, k + 1, k))
    return jnp.clip(k, 0, bins - 1).astype(jnp.int32)


def edge_of(low: Float[Array, ""], high: Float[Array, ""], k: Float[Array, "*n"], bins: int) -> Float[Array, "*n"]:
    """Compute edges of equal bins: the same bits in every program, and the last one is the end of the support."""
    # XLA turns a division by one number into a product with its rounded inverse. It cannot, behind a barrier, if every
    # axis that `vmap` may add is there.
    size = lax.optimization_barrier(jnp.broadcast_to(low - low + high - high + bins, k.shape).astype(low.dtype))
    # On [-5, 5] the sum low + part rounds twice, and may be the neighbour of the decimal that is meant. Where products
    # are exact there is a better way, and a fused multiplication and addition changes no bit of it.
    over = (low * bins + k * (high - low)) / size
    edges = jnp.where(_has_few_digits(low, high, bins), over, part_way(low, high, k, size))
    return jnp.where(k == bins, high, edges)


def _has_few_digits(low: Float[Array, ""], high: Float[Array, ""], bins: int) -> Bool[Array, ""]:
    """Whether multiples of the ends and of the width, up to ``bins`` times, and their sums need no rounding."""
    most = bins * (jnp.abs(low) + jnp.abs(high))
    digit = most / jnp.frexp(most)[0] * jnp.finfo(low.dtype).eps / 2  # a power of two, so nothing here is rounded
    return (digit > 0) & (jnp.round(low / digit) * digit == low) & (jnp.round(high / digit) * digit == high)


def part_way(
    low: Float[Array, ""], high: Float[Array, ""], part: Float[Array, "*n"], whole: Float[Array, "..."]
) -> Float[Array, "*n"]:
    """
    Go ``part`` of ``whole`` equal steps from one end of the support to the other.

    Returns: low + part · (high - low)/whole, multiplied first; on a support so wide that the product would overflow, at
    a scale at which it does not. A power of two changes no digit.
    """
    width, widest = high - low, jnp.finfo(low.dtype).maxexp
    wide = width > 2.0 ** (widest - 40)
    down, up = (jnp.where(wide, factor, 1).astype(low.dtype) for factor in (2.0**-40, 2.0**40))
    # Multiplied back: of two divisions XLA would make one, which rounds otherwise.
    return low + ((part * (width * down)) / whole) * up


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
        Whole counts; with a discount Σ β^age of a bin's scores, with weights their sum.
    """

    seen: Int[Array, "*B"]  # ()
    weights: Num[Array, "*B K"]  # (bins,)

    def check(self, learner: Any) -> None:
        """Refuse what no replay leaves: counts add up to the scores, discounted ones to what is left of their mass."""
        weights, discount = np.asarray(self.weights), getattr(learner, "discount", None)
        seen = np.asarray(self.seen, float)
        if not weights.shape[-1]:
            raise ValueError("state.weights must have a bin")
        check_within("state.weights", weights, 0, add_trailing_axes(seen, weights) * 2, "so many scores leave no more")
        total = weights.sum(axis=-1)
        if discount is None:
            raise_at("state.seen", self.seen, total != seen, "counts must add up to state.seen")
        else:
            mass = -np.expm1(seen * np.log(discount)) / (1 - discount)
            # Rounding piles up where a discount is next to 1, but never to half of it all.
            why = "state.weights do not add up to the mass of so many scores"
            raise_at("state.seen", self.seen, (total < mass / 2) | (total > 2 * mass), why)


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
