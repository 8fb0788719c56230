"""Coverage, loss and regret of runs on a disk, a block of rounds at a time."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from dpconformal.pinball import pinball

BLOCK = 2**18
_DIGIT = 16  # bits of a number that are decided in a pass over the scores


def tally(scores: np.ndarray, thresholds: np.ndarray, levels: Any) -> dict[str, np.ndarray]:
    """
    Measure a run: what :func:`dpconformal.metrics.summary` measures, in memory for a block.

    Returns: ``coverage``, ``mean_threshold``, ``loss``, ``regret``, ``longest_miss_run`` and, one number,
    ``crossings``: rounds in which a higher level got a smaller threshold.
    """
    levels = np.asarray(levels, float)
    rounds, order = scores.size, np.argsort(levels, kind="stable")
    best = order_statistics(scores, np.clip(np.ceil(levels * rounds), 1, rounds).astype(np.int64))
    sums: dict[str, list[Any]] = {name: [] for name in ("covered", "threshold", "loss", "least")}
    longest, running, crossings = np.zeros(levels.size, int), np.zeros(levels.size, int), 0
    with np.errstate(invalid="ignore"):  # ∞ - ∞, where a threshold is infinite
        for here in _blocks(rounds):
            score, threshold = np.asarray(scores[here], float)[:, None], np.asarray(thresholds[here], float)
            hits = score <= threshold
            sums["covered"].append(hits.sum(axis=0))
            sums["threshold"].append(threshold.sum(axis=0))
            sums["loss"].append(pinball(np, threshold, score, levels).sum(axis=0))
            sums["least"].append(pinball(np, best, score, levels).sum(axis=0))
            crossings += int((np.diff(threshold[:, order], axis=1) < 0).any(axis=1).sum())
            # Rounds since the last hit, with those that the last block ended with.
            now = np.arange(1, len(hits) + 1)[:, None]
            since = now - np.maximum.accumulate(np.where(hits, now, -running), axis=0)
            longest, running = np.maximum(longest, since.max(axis=0)), since[-1]
        covered, threshold, loss, least = (np.sum(parts, axis=0) for parts in sums.values())
        return {
            "coverage": covered / rounds,
            "mean_threshold": threshold / rounds,
            "loss": loss / rounds,
            "regret": loss - least,
            "longest_miss_run": longest,
            "crossings": np.asarray(crossings),
        }


def order_statistics(values: np.ndarray, ranks: np.ndarray) -> np.ndarray:
    """Find the k-th smallest of numbers that need not fit into memory, digit by digit."""
    if values.size <= 16 * BLOCK:
        return np.sort(np.asarray(values, float))[ranks - 1]
    known, left = np.zeros(ranks.size, np.uint64), ranks.astype(np.int64).copy()
    for shift in range(64 - _DIGIT, -1, -_DIGIT):
        counts = np.zeros((ranks.size, 2**_DIGIT), np.int64)
        for here in _blocks(values.size):
            bits = _ascending(values[here])
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


def _blocks(rounds: int) -> Iterator[slice]:
    for start in range(0, rounds, BLOCK):
        yield slice(start, min(start + BLOCK, rounds))
