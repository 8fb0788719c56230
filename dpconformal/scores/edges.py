"""
The outermost number that still belongs to a set, to the last bit.

A label is covered if its score, computed in floating point, is at most its threshold. On rounded data scores tie with
thresholds all the time, and an end of an interval that is off by one unit in the last place loses every one of them. So
ends are moved until the score itself agrees.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

_LAST = np.float64(np.inf).view(np.int64)
# Maps numbers and their places in the flattened arrays to scores.
Scorer = Callable[[np.ndarray, np.ndarray], np.ndarray]


def widest(thresholds: Any) -> np.ndarray:
    """
    Find the largest float64 that is at most the threshold once it is rounded to the threshold's own precision.

    Scores are compared with thresholds in the precision of a run. In float32 a score a little above the threshold is
    rounded to it, and is covered.
    """
    given = np.asarray(thresholds)
    wide = given.astype(np.float64)
    if given.dtype == np.float64:
        return wide
    with np.errstate(over="ignore"):
        middle = wide + (np.nextafter(given, given.dtype.type(np.inf)).astype(np.float64) - wide) / 2
        middle = np.where(np.isfinite(middle), middle, wide)
        back = middle.astype(given.dtype) > given  # a tie that is rounded up
    return np.where(back, np.nextafter(middle, -np.inf), middle)


def outermost(score: Scorer, limits: np.ndarray, guess: np.ndarray, sign: int) -> np.ndarray:
    """
    Find the outermost number whose score is at most its limit.

    ``score``: Score of numbers, given with their places; it does not fall in the direction of ``sign``. ``guess``:
    Close to the answer, of the shape of the limits. What is not finite is left alone. Returns: The numbers; a guess
    that is far from any answer comes back as it is.
    """
    found = np.array(guess, np.float64).ravel()
    limits = np.broadcast_to(limits, np.shape(guess)).ravel()
    open_ = np.flatnonzero(np.isfinite(found) & np.isfinite(limits))
    at = _ordinal(found[open_])

    def holds(numbers: np.ndarray, places: np.ndarray) -> np.ndarray:
        with np.errstate(all="ignore"):  # a step too far may overflow, and is outside then
            return score(numbers, places) <= limits[places]

    inside = holds(found[open_], open_)
    # In steps that double, until one number is inside and one is outside; then halve the distance.
    near, far = at.copy(), at.copy()  # inside, outside
    step, todo = 1, np.arange(open_.size)
    for _ in range(63):
        if not todo.size:
            break
        way = np.where(inside[todo], sign, -sign)
        ahead = np.where(way * at[todo] > 0, _LAST - way * at[todo], _LAST)  # so many numbers are left
        moved = at[todo] + way * np.minimum(step, ahead)
        now = holds(_number(moved), open_[todo])
        crossed = now != inside[todo]
        near[todo] = np.where(now, moved, near[todo])
        far[todo] = np.where(now, far[todo], moved)
        step, todo = 2 * step, todo[~crossed]
    settled = np.ones(open_.size, bool)
    settled[todo] = False  # nothing near the guess has the score: leave it
    todo = np.flatnonzero(settled & (np.abs(near - far) > 1))
    while todo.size:
        middle = near[todo] + (far[todo] - near[todo]) // 2
        now = holds(_number(middle), open_[todo])
        near[todo], far[todo] = np.where(now, middle, near[todo]), np.where(now, far[todo], middle)
        todo = todo[np.abs(near[todo] - far[todo]) > 1]
    found[open_[settled]] = _number(near[settled])
    return found.reshape(np.shape(guess))


def _ordinal(x: np.ndarray) -> np.ndarray:
    """Give floats numbers in ascending order, so that neighbours differ by 1."""
    bits = np.ascontiguousarray(x, np.float64).view(np.int64)
    return np.where(bits < 0, np.int64(-(2**63)) - bits, bits)


def _number(ordinal: np.ndarray) -> np.ndarray:
    bits = np.where(ordinal < 0, np.int64(-(2**63)) - ordinal, ordinal)
    return np.ascontiguousarray(bits, np.int64).view(np.float64)
