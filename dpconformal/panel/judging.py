"""Coverage, loss and regret of a block of series, from one pass over its thresholds."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from dpconformal.offline.workers import blocks_of_sequences, in_threads
from dpconformal.pinball import pinball

METRICS = ("coverage", "loss", "regret", "mean_threshold")


def means_of_totals(
    covered: np.ndarray, loss: np.ndarray, threshold: np.ndarray, least: np.ndarray, rounds: np.ndarray
) -> dict[str, np.ndarray]:
    """
    Turn totals into metrics.

    Parameters
    ----------
    covered, loss, threshold : ndarray, shape (B, A)
        Totals over the observed rounds of each series.
    least : ndarray, shape (B, A)
        The total loss of the best fixed threshold in hindsight.
    rounds : ndarray, shape (B,)
        How many were observed.

    Returns
    -------
    dict
        The :data:`METRICS`; NaN for a series without a score.
    """
    count = rounds[:, None]
    with np.errstate(invalid="ignore", divide="ignore"):
        return {
            "coverage": covered / count,
            "loss": loss / count,
            "regret": np.where(count > 0, loss - least, np.nan),
            "mean_threshold": threshold / count,
        }


def totals_of(
    thresholds: np.ndarray, scores: np.ndarray, observed: np.ndarray | None, levels: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """
    Add up what thresholds cover, lose and are.

    Parameters
    ----------
    thresholds : ndarray, shape (B, T, A)
        Of each series and round.
    scores : ndarray, shape (B, T)
        What came.
    observed : ndarray of bool, shape (B, T), optional
        False for rounds that do not count.
    levels : ndarray, shape (A,)
        Levels.

    Returns
    -------
    tuple of ndarray, shape (B, A)
        Covered rounds, total loss, and the sum of thresholds; in float64.
    """

    def task(block: slice) -> Any:
        own = thresholds[block], scores[block], None if observed is None else observed[block]
        with jax.enable_x64(True):
            return jax.tree.map(np.asarray, _totals(*own, levels))

    blocks = blocks_of_sequences(len(scores), thresholds[0].nbytes if len(scores) else 0)
    parts = in_threads([lambda block=block: task(block) for block in blocks])
    covered, loss, threshold = (np.concatenate(some) for some in zip(*parts, strict=True))
    return covered, loss, threshold


@jax.jit
def _totals(thresholds: Any, scores: Any, observed: Any, levels: Any) -> Any:
    counts = jnp.ones((), bool) if observed is None else observed[..., None]
    score = scores[..., None]
    covered = jnp.sum((score <= thresholds) & counts, axis=-2, dtype=jnp.float64)
    wide = thresholds.astype(jnp.float64)
    loss = pinball(jnp, wide, score.astype(jnp.float64), levels.astype(jnp.float64)[None, None])
    return (
        covered,
        jnp.sum(jnp.where(counts, loss, 0), axis=-2),
        jnp.sum(jnp.where(counts, wide, 0), axis=-2),
    )


def least_loss(scores: np.ndarray, observed: np.ndarray | None, levels: np.ndarray) -> np.ndarray:
    """
    Compute the loss of the best fixed threshold of each series.

    Parameters
    ----------
    scores : ndarray, shape (B, T)
        What came.
    observed : ndarray of bool, shape (B, T), optional
        False for rounds that do not count.
    levels : ndarray, shape (A,)
        Levels.

    Returns
    -------
    ndarray, shape (B, A)
        In float64: of the quantile of the series' own scores.
    """

    def task(block: slice) -> np.ndarray:
        own = np.asarray(scores[block], float)
        count = np.full(len(own), own.shape[-1]) if observed is None else observed[block].sum(axis=-1)
        if observed is not None:
            own = np.where(observed[block], own, np.inf)  # last in order
        ordered = np.sort(own, axis=-1)
        sums = np.cumsum(np.where(np.isfinite(ordered), ordered, 0), axis=-1)
        n, last = count[:, None], np.maximum(count[:, None] - 1, 0)
        rank = np.clip(np.ceil(levels * n), 1, np.maximum(n, 1)).astype(int)
        best, below = (np.take_along_axis(a, rank - 1, axis=-1) for a in (ordered, sums))
        above = np.take_along_axis(sums, last, axis=-1) - below
        with np.errstate(invalid="ignore"):  # a series without a score has no best
            return (1 - levels) * (rank * best - below) + levels * (above - (n - rank) * best)

    blocks = blocks_of_sequences(len(scores), scores[0].nbytes * 4 if len(scores) else 0)
    return np.concatenate(in_threads([lambda block=block: task(block) for block in blocks]))
