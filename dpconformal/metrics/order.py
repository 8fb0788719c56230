"""Order and distance of thresholds: crossings between levels, intervals between two of them."""

from typing import Any, NamedTuple

import numpy as np

from dpconformal.metrics.arrays import Arrays, arrays_of, by_sequence
from dpconformal.replay import Replay
from dpconformal.validation import Scalar, is_traced, number


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

    rounds: Any  # (...,)
    pairs: Any  # (...,)
    by_level: Any  # (..., A)


@by_sequence
def crossings(run: Replay) -> Crossings:
    """
    Count the crossings: pairs of levels a < b with threshold(a) > threshold(b).

    Parameters
    ----------
    run : Replay
        The run; not traced.

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
    count, by_level = crossed(arrays.thresholds, arrays.levels)
    return Crossings((count > 0).sum(axis=-1), count.sum(axis=-1), by_level.sum(axis=-2))


def crossed(thresholds: np.ndarray, levels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """
    Find the crossings of each round, given thresholds (..., T, A) and levels (..., T or 1, A).

    Returns: Crossing pairs a round, shape (..., T); whether a level crosses another, shape (..., T, A).
    """
    order = np.argsort(levels, axis=-1, kind="stable")
    ranked = np.take_along_axis(thresholds, order, axis=-1)
    count, by_level = np.zeros(thresholds.shape[:-1], int), np.zeros(thresholds.shape, bool)
    suspect = np.zeros(thresholds.shape[:-1], bool)
    for i in range(thresholds.shape[-1] - 1):
        suspect |= ranked[..., i + 1] < ranked[..., i]
    if not suspect.any():
        return count, by_level
    index = np.nonzero(suspect)  # few rounds have any crossing; only they need all pairs
    order, levels = (np.broadcast_to(part, thresholds.shape)[index] for part in (order, levels))
    ranked, asked = ranked[index], np.take_along_axis(levels, order, axis=-1)
    pairs, involved = np.zeros(len(ranked), int), np.zeros(ranked.shape, bool)
    for i in range(thresholds.shape[-1] - 1):  # a level at a time: all pairs at once would not fit for many levels
        above = (ranked[:, i, None] > ranked[:, i + 1 :]) & (asked[:, i, None] < asked[:, i + 1 :])
        pairs += above.sum(axis=1)
        involved[:, i] |= above.any(axis=1)
        involved[:, i + 1 :] |= above
    count[index] = pairs
    np.put_along_axis(in_place := np.zeros_like(involved), order, involved, axis=-1)
    by_level[index] = in_place
    return count, by_level


def interval_width(run: Replay, lower: Scalar, upper: Scalar) -> Any:
    """
    Distance between the thresholds of two levels, round by round.

    Parameters
    ----------
    run : Replay
        With the same levels every round.
    lower, upper : float
        Two of the run's levels; the interval between their thresholds is to hold a share
        ``upper - lower`` of the scores.

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
    lower, upper = number("lower", lower, 0.0, 1.0), number("upper", upper, 0.0, 1.0)
    if not lower < upper:
        raise ValueError(f"upper = {upper}: must exceed lower = {lower}")
    low, high = _pair(run, arrays_of(run), lower, upper)
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
        Width plus distance to the interval times 1/lower below it, 1/(1 - upper) above it. For
        lower = a/2 and upper = 1 - a/2 this is the usual interval score, with fines of 2/a.

    Examples
    --------
    >>> import dpconformal as dpc
    >>> interval_score(dpc.replay(dpc.Exact(), [0.05], levels=[0.25, 0.75]), 0.25, 0.75).round(6)
    array([1.3])
    """
    if not (0 < number("lower", lower) < number("upper", upper) < 1):
        raise ValueError(f"lower = {lower}, upper = {upper}: need 0 < lower < upper < 1")
    arrays = arrays_of(run)
    low, high = _pair(run, arrays, lower, upper)
    score, maximum = arrays.scores[..., 0], arrays.xp.maximum
    return (high - low) + maximum(low - score, 0) / lower + maximum(score - high, 0) / (1 - upper)


def _pair(run: Replay, arrays: Arrays, lower: Scalar, upper: Scalar) -> tuple[Any, Any]:
    if is_traced(run.levels) or np.ndim(run.levels) != 1:
        raise ValueError("run.levels change by round or are traced: an interval needs two fixed levels")
    levels = np.asarray(run.levels)
    found = []
    for name, level in (("lower", lower), ("upper", upper)):
        nearest = int(np.argmin(np.abs(levels - level)))
        if abs(levels[nearest] - level) > 1e-6:
            raise ValueError(f"{name} = {level}: not one of the run's levels {levels.tolist()}")
        found.append(arrays.thresholds[..., nearest])
    return found[0], found[1]
