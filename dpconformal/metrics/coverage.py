"""Coverage and misses of thresholds, their crossings, and the intervals between two of them."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from dpconformal.metrics.arrays import Arrays, arrays_of, by_sequence, mean_levels
from dpconformal.replay import Replay
from dpconformal.validation import Scalar, check_float, check_int, is_traced


def covered(run: Replay) -> Any:
    """
    Whether each score was within its threshold.

    Parameters
    ----------
    run : Replay

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
    xp, thresholds, scores, _ = arrays
    with np.errstate(invalid="ignore"):  # 0/0 without rounds
        share = xp.sum(scores <= thresholds, axis=-2).astype(thresholds.dtype) / thresholds.shape[-2]
    return xp.where(xp.isnan(thresholds).any(axis=-2), xp.nan, share)  # NaN is what jit makes of bad input


def rolling_coverage(run: Replay, window: int) -> Any:
    """
    Coverage over each stretch of ``window`` rounds.

    Parameters
    ----------
    run : Replay
    window : int
        Rounds in a stretch, between 1 and T.

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
    window = check_int("window", window, 1)
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
    """Count the rounds since the last hit, (..., T, A), given those ``before`` the first round, (..., 1, A)."""
    now = xp.arange(1, hits.shape[-2] + 1, dtype=np.int32).reshape((1,) * (hits.ndim - 2) + (-1, 1))
    last_hit = xp.where(hits, now, -before)
    return now - (jax.lax.cummax(last_hit, hits.ndim - 2) if xp is jnp else np.maximum.accumulate(last_hit, axis=-2))


class Crossings(NamedTuple):
    """
    How often a higher level got a smaller threshold.

    Attributes
    ----------
    rounds : ndarray of int, shape (...,)
        Rounds with at least one crossing.
    pairs : ndarray of int, shape (...,)
        Crossing pairs of levels, summed over rounds.
    by_level : ndarray of int, shape (..., A)
        Rounds in which this level crosses another.
    """

    rounds: np.ndarray
    pairs: np.ndarray
    by_level: np.ndarray


@by_sequence
def crossings(run: Replay) -> Crossings:
    """
    Count the crossings: pairs of levels a < b with threshold(a) > threshold(b).

    Parameters
    ----------
    run : Replay
        Not traced.

    Returns
    -------
    Crossings
        All zero for a belief, whose thresholds are quantiles of one distribution.

    Examples
    --------
    >>> import dpconformal as dpc
    >>> int(crossings(dpc.replay(dpc.Exact(), [0.2, 0.9], levels=[0.5, 0.9])).rounds)
    0
    """
    arrays = arrays_of(run)
    if is_traced(arrays.thresholds):
        raise ValueError("run is being traced: count crossings outside jit")
    count, by_level = find_crossings(arrays.thresholds, arrays.levels)
    return Crossings((count > 0).sum(axis=-1), count.sum(axis=-1), by_level.sum(axis=-2))


def find_crossings(thresholds: np.ndarray, levels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """
    Count crossing pairs, (..., T), and mark levels that cross another, (..., T, A).

    The thresholds are (..., T, A), the levels (..., T or 1, A).
    """
    order = np.argsort(levels, axis=-1, kind="stable")
    ranked = np.take_along_axis(thresholds, order, axis=-1)
    count, by_level = np.zeros(thresholds.shape[:-1], int), np.zeros(thresholds.shape, bool)
    # Few rounds have any crossing, and only they need all pairs. A loop over levels makes no copy of all thresholds.
    suspect = np.zeros(thresholds.shape[:-1], bool)
    for i in range(thresholds.shape[-1] - 1):
        suspect |= ranked[..., i + 1] < ranked[..., i]
    index = np.nonzero(suspect)
    if not index[0].size:
        return count, by_level
    order, levels = (np.broadcast_to(part, thresholds.shape)[index] for part in (order, levels))
    ranked, asked = ranked[index], np.take_along_axis(levels, order, axis=-1)
    pairs, involved = np.zeros(len(ranked), int), np.zeros(ranked.shape, bool)
    for i in range(thresholds.shape[-1] - 1):  # a level at a time: all pairs at once would not fit for many levels
        above = (ranked[:, i, None] > ranked[:, i + 1 :]) & (asked[:, i, None] < asked[:, i + 1 :])
        pairs += above.sum(axis=1)
        involved[:, i] |= above.any(axis=1)
        involved[:, i + 1 :] |= above
    count[index] = pairs
    by_level[index] = np.take_along_axis(involved, np.argsort(order, axis=-1), axis=-1)  # as the levels were given
    return count, by_level


def interval_width(run: Replay, lower: Scalar, upper: Scalar) -> Any:
    """
    Distance between the thresholds of two levels, round by round.

    Parameters
    ----------
    run : Replay
        With the same levels every round.
    lower, upper : float
        Two of the run's levels: the interval is to hold a share ``upper - lower`` of the scores.

    Returns
    -------
    array, shape (..., T)
        Widths; negative where the thresholds cross.

    Examples
    --------
    >>> import dpconformal as dpc
    >>> interval_width(dpc.replay(dpc.Exact(), [0.2], levels=[0.25, 0.75]), 0.25, 0.75)
    array([0.5])
    """
    lower, upper = check_float("lower", lower, 0.0, 1.0), check_float("upper", upper, 0.0, 1.0)
    if not lower < upper:
        raise ValueError(f"upper = {upper}: must exceed lower = {lower}")
    low, high = _thresholds_of(run, arrays_of(run), lower, upper)
    return high - low


def interval_score(run: Replay, lower: Scalar, upper: Scalar) -> Any:
    """
    Winkler's score of the interval between two thresholds: its width plus a fine for missing.

    Parameters
    ----------
    run : Replay
        With the same levels every round.
    lower, upper : float
        Two of the run's levels.

    Returns
    -------
    array, shape (..., T)
        Width plus distance to the interval times 1/lower below it, 1/(1 - upper) above it: the usual interval score,
        with fines of 2/a, for lower = a/2 and upper = 1 - a/2.

    Examples
    --------
    >>> import dpconformal as dpc
    >>> interval_score(dpc.replay(dpc.Exact(), [0.05], levels=[0.25, 0.75]), 0.25, 0.75).round(6)
    array([1.3])
    """
    if not (0 < check_float("lower", lower) < check_float("upper", upper) < 1):
        raise ValueError(f"lower = {lower}, upper = {upper}: need 0 < lower < upper < 1")
    arrays = arrays_of(run)
    low, high = _thresholds_of(run, arrays, lower, upper)
    score, maximum = arrays.scores[..., 0], arrays.xp.maximum
    return (high - low) + maximum(low - score, 0) / lower + maximum(score - high, 0) / (1 - upper)


def _thresholds_of(run: Replay, arrays: Arrays, lower: Scalar, upper: Scalar) -> tuple[Any, Any]:
    if is_traced(run.levels) or np.ndim(run.levels) != 1:
        raise ValueError("run.levels change by round or are traced: an interval needs two fixed levels")
    levels, found = np.asarray(run.levels), []
    for name, level in (("lower", lower), ("upper", upper)):
        nearest = int(np.argmin(np.abs(levels - level)))
        if abs(levels[nearest] - level) > 1e-6:  # a level that float32 has rounded is meant too
            raise ValueError(f"{name} = {level}: not one of the run's levels {levels.tolist()}")
        found.append(arrays.thresholds[..., nearest])
    return found[0], found[1]
