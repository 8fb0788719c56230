"""The quantile loss, and totals over rounds: what is covered, what is lost, and the thresholds themselves."""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from dpconformal.validation import is_traced

TILE = 2**19  # bytes of thresholds that are added up at a time: they stay in the cache


def pinball(xp: Any, threshold: Any, score: Any, level: Any) -> Any:
    """Compute the quantile loss; an infinite threshold costs nothing where its side has no weight: +∞ at level 1."""
    above, below = xp.maximum(threshold - score, 0), xp.maximum(score - threshold, 0)
    free, open_below = (level >= 1) | (above == 0), (level <= 0) | (below == 0)  # 0 · ∞ is 0 here
    paid = xp.where(free, 0, (1 - level) * xp.where(free, 0, above))
    return paid + xp.where(open_below, 0, level * xp.where(open_below, 0, below))


class Sum(NamedTuple):
    """A running sum that loses nothing to rounding (Neumaier's): ``high + low``, as rounded, and what that has cost."""

    high: Float[Array | np.ndarray, " *A"]  # (A,)
    low: Float[Array | np.ndarray, " *A"]  # (A,)

    def add(self, value: Float[Array, " *A"]) -> "Sum":
        """Return the sum with one more value in it."""
        total = self.high + value
        lost = jnp.where(jnp.abs(self.high) >= jnp.abs(value), (self.high - total) + value, (value - total) + self.high)
        lost = jnp.where(jnp.isfinite(total), lost, 0)  # ∞ - ∞
        return Sum(total, self.low + lost)


class Totals(NamedTuple):
    """Totals over rounds, one of each per level."""

    covered: Int[Array | np.ndarray, " *A"]  # rounds in which the score did not exceed the threshold
    loss: Sum  # quantile loss
    threshold: Sum


def no_rounds(count: int, dtype: jnp.dtype) -> Totals:
    """Return totals before any round."""
    zero = jnp.zeros(count, dtype)
    return Totals(jnp.zeros(count, jnp.int32), Sum(zero, zero), Sum(zero, zero))


def add_rounds(
    totals: Totals,
    thresholds: Float[Array, "T A"],
    scores: Float[Array, " T"],
    levels: Float[Array, "#T A"],
    observed: Bool[Array, " T"],
) -> Totals:
    """Add a stretch of rounds to totals."""
    score, counts = scores[:, None], observed[:, None]
    loss = pinball(jnp, thresholds, score, levels)
    return Totals(
        totals.covered + jnp.sum((score <= thresholds) & counts, axis=0, dtype=jnp.int32),
        totals.loss.add(jnp.sum(jnp.where(counts, loss, 0), axis=0)),
        totals.threshold.add(jnp.sum(jnp.where(counts, thresholds, 0), axis=0)),
    )


def totals_of(thresholds: Any, scores: Any, levels: Any, observed: Any = None) -> Totals:
    """
    Add up rounds, (..., T, A), at levels that broadcast against the thresholds, to totals (..., A).

    On the host that is done in double precision and in memory for a tile, also of arrays on a disk; inside ``jit`` in
    the precision of the thresholds.
    """
    if is_traced(thresholds, scores, levels, observed):
        return _traced_totals(thresholds, scores, levels, observed)
    *batch, rounds, size = thresholds.shape
    count, levels = math.prod(batch), np.asarray(levels, float)
    changes = levels.shape[-2] if levels.ndim > 1 else 1
    levels = np.broadcast_to(levels, (*batch, changes, size)).reshape(count, changes, size)
    thresholds = np.asarray(thresholds).reshape(count, rounds, size)
    scores = np.asarray(scores).reshape(count, rounds)
    observed = None if observed is None else np.broadcast_to(observed, (*batch, rounds)).reshape(count, rounds)
    length = max(min(rounds, TILE // (8 * max(size, 1))), 1)
    rows = max(min(count, TILE // (8 * length * max(size, 1))), 1)
    room = np.empty((2, rows, length, size))  # new memory for each tile is slow
    found = np.zeros((3, count, size))
    for row in range(0, count, rows):
        for start in range(0, rounds, length):
            own, here = slice(row, row + rows), slice(start, start + length)
            part = thresholds[own, here]
            asked = levels[own] if changes == 1 else levels[own, here]
            counts = None if observed is None else observed[own, here]
            gap, side = room[:, : part.shape[0], : part.shape[1]]
            found[:, own] += _tile_totals(part, scores[own, here], asked, counts, gap, side)
    covered, loss, threshold = found.reshape(3, *batch, size)
    nothing = np.zeros_like(loss)
    return Totals(covered.astype(np.int64), Sum(loss, nothing), Sum(threshold, nothing))


def _tile_totals(
    thresholds: np.ndarray, scores: np.ndarray, levels: np.ndarray, observed: Any, gap: np.ndarray, side: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return how many rounds a tile covers, its losses and thresholds; ``gap`` and ``side`` are working memory."""
    fixed = levels.shape[1] == 1

    def sums(values: np.ndarray) -> np.ndarray:
        # Over rounds, (B, T, A): a product with ones is several times as fast as a sum along that axis.
        return (np.ones((1, values.shape[1])) @ values)[:, 0]

    def cost(distance: np.ndarray, weight: np.ndarray) -> np.ndarray:
        distance, weight = (sums(distance), weight[:, 0]) if fixed else (distance, weight)
        paid = np.where(weight > 0, weight * distance, 0)  # a threshold without an end, at level 1, costs nothing
        return paid if fixed else sums(paid)

    with np.errstate(invalid="ignore", over="ignore"):  # 0 · ∞, ∞ - ∞
        np.subtract(thresholds, scores[..., None], out=gap, dtype=float)
        np.greater_equal(gap, 0, out=side)
        if observed is not None:
            side *= observed[..., None]
            gap[~observed] = 0
            thresholds = np.where(observed[..., None], thresholds, 0)
        covered = sums(side)
        loss = cost(np.maximum(gap, 0, out=side), 1 - levels) - cost(np.minimum(gap, 0, out=side), levels)
        return covered, loss, sums(thresholds.astype(float, copy=False))


def _traced_totals(thresholds: Any, scores: Any, levels: Any, observed: Any) -> Totals:
    """Add up round by round, so that rounding costs nothing in single precision either."""
    observed = jnp.ones(scores.shape, bool) if observed is None else jnp.broadcast_to(observed, scores.shape)
    per_round = levels.ndim == 2

    def one(thresholds: Any, scores: Any, observed: Any) -> Totals:
        def add(totals: Totals, row: Any) -> tuple[Totals, None]:
            threshold, score, counts, asked = row
            asked = asked if per_round else levels
            return add_rounds(totals, threshold[None], score[None], asked[None], counts[None]), None

        begin = no_rounds(thresholds.shape[-1], thresholds.dtype)
        return jax.lax.scan(add, begin, (thresholds, scores, observed, levels if per_round else None))[0]

    for _ in scores.shape[:-1]:
        one = jax.vmap(one)
    return one(thresholds, jnp.asarray(scores), observed)


def sum_totals(parts: Sequence[Totals]) -> Totals:
    """Add up totals on the host, in double precision."""

    def add(*leaves: Any) -> np.ndarray:
        wide = np.int64 if np.issubdtype(leaves[0].dtype, np.integer) else np.float64
        return np.sum([np.asarray(leaf, wide) for leaf in leaves], axis=0)

    return jax.tree.map(add, *parts)
