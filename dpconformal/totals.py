"""What is kept of a run whose thresholds are not: totals over its rounds."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from dpconformal.checks import is_traced
from dpconformal.pinball import pinball


class Sum(NamedTuple):
    """
    A running sum that loses nothing to rounding (Neumaier's): ``high + low``.

    Attributes
    ----------
    high, low : Array
        The sum as rounded, and what rounding has cost so far.
    """

    high: Float[Array | np.ndarray, " *A"]  # (A,)
    low: Float[Array | np.ndarray, " *A"]  # (A,)

    def add(self, value: Float[Array, " *A"]) -> "Sum":
        """Return the sum with one more value in it."""
        total = self.high + value
        lost = jnp.where(jnp.abs(self.high) >= jnp.abs(value), (self.high - total) + value, (value - total) + self.high)
        lost = jnp.where(jnp.isfinite(total), lost, 0)  # ∞ - ∞
        return Sum(total, self.low + lost)


class Totals(NamedTuple):
    """
    Totals over rounds, one of each per level.

    Attributes
    ----------
    covered : Array, shape (A,)
        Rounds in which the score did not exceed the threshold.
    loss : Sum of shape (A,)
        Quantile loss.
    threshold : Sum of shape (A,)
        Thresholds.
    """

    covered: Int[Array | np.ndarray, " *A"]  # (A,)
    loss: Sum
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
    real: Bool[Array, " T"],
) -> Totals:
    """Add a stretch of rounds to totals."""
    score, counts = scores[:, None], real[:, None]
    loss = pinball(jnp, thresholds, score, levels)
    return Totals(
        totals.covered + jnp.sum((score <= thresholds) & counts, axis=0, dtype=jnp.int32),
        totals.loss.add(jnp.sum(jnp.where(counts, loss, 0), axis=0)),
        totals.threshold.add(jnp.sum(jnp.where(counts, thresholds, 0), axis=0)),
    )


def totals_of(thresholds: Any, scores: Any, levels: Any, observed: Any = None) -> Totals:
    """
    Add up a stretch of rounds, of one sequence or a batch.

    Returns: With axes (..., A): on the host in double precision, inside ``jit`` in that of the thresholds.
    """
    real = np.ones(scores.shape, bool) if observed is None else observed
    if is_traced(thresholds, scores, levels, real):
        return _traced_totals(thresholds, scores, levels, jnp.broadcast_to(jnp.asarray(real), scores.shape))
    counts = np.broadcast_to(np.asarray(real), scores.shape)[..., None]
    wide, score, asked = (np.asarray(part, float) for part in (thresholds, scores[..., None], levels))
    loss = pinball(np, wide, score, asked)
    sums = (np.sum(np.where(counts, part, 0), axis=-2) for part in (loss, wide))
    paid, total = (Sum(part, np.zeros_like(part)) for part in sums)
    return Totals(np.sum((score <= wide) & counts, axis=-2), paid, total)


def _traced_totals(thresholds: Any, scores: Any, levels: Any, real: Any) -> Totals:
    """Add up round by round, so that rounding costs nothing in single precision either."""
    batch, per_round = scores.shape[:-1], levels.ndim == 2

    def one(thresholds: Any, scores: Any, real: Any) -> Totals:
        def add(totals: Totals, row: Any) -> tuple[Totals, None]:
            threshold, score, counts, asked = row
            asked = asked if per_round else levels
            return add_rounds(totals, threshold[None], score[None], asked[None], counts[None]), None

        begin = no_rounds(thresholds.shape[-1], thresholds.dtype)
        return jax.lax.scan(add, begin, (thresholds, scores, real, levels if per_round else None))[0]

    program = one
    for _ in batch:
        program = jax.vmap(program)
    return program(thresholds, jnp.asarray(scores), real)


def joined(parts: Sequence[Totals]) -> Totals:
    """Add up totals on the host, in double precision."""

    def add(*leaves: Any) -> np.ndarray:
        wide = np.int64 if np.issubdtype(leaves[0].dtype, np.integer) else np.float64
        return np.sum([np.asarray(leaf, wide) for leaf in leaves], axis=0)

    return jax.tree.map(add, *parts)
