"""What is kept of a run whose thresholds are not: totals over its rounds."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

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
    """
    Return totals before any round.

    Parameters
    ----------
    count : int
        Levels.
    dtype : dtype
        Of the thresholds.

    Returns
    -------
    Totals
        All zero.
    """
    zero = jnp.zeros(count, dtype)
    return Totals(jnp.zeros(count, jnp.int32), Sum(zero, zero), Sum(zero, zero))


def add_rounds(
    totals: Totals,
    thresholds: Float[Array, "T A"],
    scores: Float[Array, " T"],
    levels: Float[Array, "#T A"],
    real: Bool[Array, " T"],
) -> Totals:
    """
    Add a stretch of rounds to totals.

    Parameters
    ----------
    totals : Totals
        So far.
    thresholds : Array, shape (T, A)
        Of the rounds.
    scores : Array, shape (T,)
        Of the rounds.
    levels : Array, shape (T, A) or (1, A)
        Of the rounds.
    real : Array, shape (T,)
        False for padding.

    Returns
    -------
    Totals
        With the rounds in them.
    """
    score, counts = scores[:, None], real[:, None]
    loss = pinball(jnp, thresholds, score, levels)
    return Totals(
        totals.covered + jnp.sum((score <= thresholds) & counts, axis=0, dtype=jnp.int32),
        totals.loss.add(jnp.sum(jnp.where(counts, loss, 0), axis=0)),
        totals.threshold.add(jnp.sum(jnp.where(counts, thresholds, 0), axis=0)),
    )


def joined(parts: Sequence[Totals]) -> Totals:
    """
    Add up totals on the host, in double precision.

    Parameters
    ----------
    parts : sequence of Totals
        Of stretches of rounds.

    Returns
    -------
    Totals
        Of all of them, as NumPy arrays.
    """

    def add(*leaves: Any) -> np.ndarray:
        wide = np.int64 if np.issubdtype(leaves[0].dtype, np.integer) else np.float64
        return np.sum([np.asarray(leaf, wide) for leaf in leaves], axis=0)

    return jax.tree.map(add, *parts)
