"""Coverage: how often the score was within its threshold, over all rounds and over windows."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from dpconformal.metrics.arrays import Arrays, arrays_of, by_sequence, mean_levels, totals_over_rounds
from dpconformal.replay import Replay
from dpconformal.validation import whole


def covered(run: Replay) -> Any:
    """
    Whether each score was within its threshold.

    Parameters
    ----------
    run : Replay
        The run.

    Returns
    -------
    array of bool, shape (..., T, A)
        score ≤ threshold.

    Examples
    --------
    >>> import dpconformal as dpc
    >>> covered(dpc.replay(dpc.Exact(), [0.2, 0.9], levels=[0.5])).ravel()
    array([ True, False])
    """
    arrays = arrays_of(run)
    return arrays.scores <= arrays.thresholds


@by_sequence
def coverage(run: Replay) -> Any:
    """
    Share of rounds in which the score was within its threshold.

    Parameters
    ----------
    run : Replay
        The run.

    Returns
    -------
    array, shape (..., A)
        Coverage of each level; NaN if there are no rounds.

    Examples
    --------
    >>> import dpconformal as dpc
    >>> coverage(dpc.replay(dpc.Exact(), [0.2, 0.9], levels=[0.5]))
    array([0.5])
    """
    return _coverage(arrays_of(run))


@by_sequence
def coverage_error(run: Replay) -> Any:
    """
    Distance between coverage and level: the coverage frequency error.

    Parameters
    ----------
    run : Replay
        The run. For levels that change, their mean is the target.

    Returns
    -------
    array, shape (..., A)
        Absolute error of each level.

    Examples
    --------
    >>> import dpconformal as dpc
    >>> coverage_error(dpc.replay(dpc.Exact(), [0.2, 0.9], levels=[0.75]))
    array([0.25])
    """
    arrays = arrays_of(run)
    return arrays.xp.abs(_coverage(arrays) - mean_levels(arrays))


def _coverage(arrays: Arrays) -> Any:
    xp, thresholds = arrays.xp, arrays.thresholds
    with np.errstate(invalid="ignore"):
        share = totals_over_rounds(arrays).covered.astype(thresholds.dtype) / thresholds.shape[-2]
    return share if xp is np else xp.where(xp.isnan(thresholds).any(axis=-2), xp.nan, share)


def rolling_coverage(run: Replay, window: int) -> Any:
    """
    Coverage over each stretch of ``window`` rounds.

    Parameters
    ----------
    run : Replay
        The run.
    window : int
        Length of a stretch, between 1 and T.

    Returns
    -------
    array, shape (..., T - window + 1, A)
        Entry i is the coverage of rounds i, …, i + window - 1.

    Examples
    --------
    >>> import dpconformal as dpc
    >>> rolling_coverage(dpc.replay(dpc.Exact(), [0.2, 0.9, 0.1], levels=[0.5]), window=2).ravel()
    array([0.5, 0.5])
    """
    window = whole("window", window, 1)
    xp, thresholds, scores, _ = arrays_of(run)
    rounds = thresholds.shape[-2]
    if window > rounds:
        raise ValueError(f"window = {window}: the run has only {rounds} rounds")
    total = xp.cumsum((scores <= thresholds).astype(np.int32), axis=-2)
    total = xp.concatenate([xp.zeros_like(total[..., :1, :]), total], axis=-2)
    return (total[..., window:, :] - total[..., : rounds - window + 1, :]).astype(thresholds.dtype) / window


@by_sequence
def longest_miss_run(run: Replay) -> Any:
    """
    Length of the longest unbroken stretch of uncovered rounds.

    Parameters
    ----------
    run : Replay
        The run.

    Returns
    -------
    array of int, shape (..., A)
        For each level. Long stretches betray drift that the average coverage hides.

    Examples
    --------
    >>> import dpconformal as dpc
    >>> longest_miss_run(dpc.replay(dpc.Exact(), [0.2, 0.9, 0.9], levels=[0.5]))
    array([2]...)
    """
    xp, thresholds, scores, _ = arrays_of(run)
    hits = scores <= thresholds
    return xp.max(rounds_since_hit(xp, hits, xp.zeros_like(hits[..., :1, :], np.int32)), axis=-2, initial=0)


def rounds_since_hit(xp: Any, hits: Any, before: Any) -> Any:
    """Count the rounds since the last hit, at every round, (..., T, A); ``before``: those since it at the start."""
    now = xp.arange(1, hits.shape[-2] + 1, dtype=np.int32).reshape((1,) * (hits.ndim - 2) + (-1, 1))
    last_hit = xp.where(hits, now, -before)
    return now - (jax.lax.cummax(last_hit, hits.ndim - 2) if xp is jnp else np.maximum.accumulate(last_hit, axis=-2))
