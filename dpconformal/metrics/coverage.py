"""Coverage: how often the score was within its threshold, over all rounds and over windows."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from dpconformal.checks import whole
from dpconformal.metrics.arrays import arrays_of, by_sequence, per_round_levels
from dpconformal.replay import Replay


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
    arrays = arrays_of(run)
    hits = (arrays.scores <= arrays.thresholds).astype(arrays.thresholds.dtype)
    return mean_over_rounds(arrays.xp.where(arrays.xp.isnan(arrays.thresholds), np.nan, hits))


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
    return arrays.xp.abs(coverage(run) - mean_over_rounds(per_round_levels(arrays)))


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
    rounds = hits.shape[-2]
    now = xp.arange(1, rounds + 1, dtype=np.int32).reshape((rounds, 1))
    now = xp.broadcast_to(now, hits.shape[-2:]).reshape((1,) * (hits.ndim - 2) + hits.shape[-2:])
    last_hit = xp.where(hits, now, 0)
    last_hit = jax.lax.cummax(last_hit, hits.ndim - 2) if xp is jnp else np.maximum.accumulate(last_hit, axis=-2)
    return xp.max(now - last_hit, axis=-2, initial=0)


def mean_over_rounds(values: Any) -> Any:
    """Mean over the round axis; NaN, without a warning, where there are no rounds."""
    if values.shape[-2] == 0:
        return np.full(values.shape[:-2] + values.shape[-1:], np.nan)
    if isinstance(values, np.ndarray):
        with np.errstate(over="ignore", invalid="ignore"):
            mean = values.mean(axis=-2)
            scaled = np.sum(values / values.shape[-2], axis=-2)  # a mean does not overflow, where its sum does
        return np.where(np.isfinite(mean), mean, scaled)
    return values.mean(axis=-2)
