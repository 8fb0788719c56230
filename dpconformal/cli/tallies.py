"""Coverage, loss and regret of runs on a disk, a block of rounds at a time."""

from typing import Any

import numpy as np

from dpconformal.metrics.loss import best_threshold
from dpconformal.metrics.summary import measure
from dpconformal.totals import totals_of

BLOCK = 2**18
_DIGIT = 16  # bits of a number that are decided in a pass over the scores


def tally(scores: np.ndarray, thresholds: np.ndarray, levels: Any) -> dict[str, np.ndarray]:
    """Measure a run on a disk, as :func:`dpconformal.metrics.summary.measure` does; nor need its scores fit."""
    levels = np.asarray(levels, float)
    if scores.size <= 4 * BLOCK:
        least = best_threshold(np, np.asarray(scores, float), levels[None])[1]
    else:
        ranks = np.clip(np.ceil(levels * scores.size), 1, scores.size).astype(np.int64)
        best = np.broadcast_to(order_statistics(scores, ranks), (scores.size, levels.size))
        least = totals_of(best, scores, levels).loss.high
    return measure(thresholds, scores, levels, least)


def order_statistics(values: np.ndarray, ranks: np.ndarray) -> np.ndarray:
    """Find the k-th smallest of numbers that need not fit into memory, digit by digit."""
    known, left = np.zeros(ranks.size, np.uint64), ranks.astype(np.int64).copy()
    for shift in range(64 - _DIGIT, -1, -_DIGIT):
        counts = np.zeros((ranks.size, 2**_DIGIT), np.int64)
        for start in range(0, values.size, BLOCK):
            bits = _ascending(values[start : start + BLOCK])
            digits = ((bits >> np.uint64(shift)) & np.uint64(2**_DIGIT - 1)).astype(np.int64)
            above = bits >> np.uint64(shift + _DIGIT) if shift + _DIGIT < 64 else np.zeros_like(bits)
            for k in range(ranks.size):
                counts[k] += np.bincount(digits[above == known[k]], minlength=2**_DIGIT)
        total = np.cumsum(counts, axis=1)
        for k in range(ranks.size):
            digit = int(np.searchsorted(total[k], left[k]))
            left[k] -= total[k, digit] - counts[k, digit]
            known[k] = (known[k] << np.uint64(_DIGIT)) | np.uint64(digit)
    return _number(known)


def _ascending(values: np.ndarray) -> np.ndarray:
    """Turn floats into unsigned integers of the same order."""
    bits = (np.asarray(values, float) + 0.0).view(np.uint64)  # -0.0 becomes 0.0, which it equals
    negative = bits >> np.uint64(63) == 1
    return np.where(negative, ~bits, bits | np.uint64(2**63))


def _number(bits: np.ndarray) -> np.ndarray:
    positive = bits >> np.uint64(63) == 1
    return np.where(positive, bits & np.uint64(2**63 - 1), ~bits).view(np.float64)
