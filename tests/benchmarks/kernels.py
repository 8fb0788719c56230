"""The same work by kernels compiled with Numba, on one core: the mark to be measured against."""

import numba
import numpy as np


@numba.njit(cache=False)
def _exact_walk(place, values, levels, prior_weight):
    """Uniform prior on [0, 1]: linked list by reverse deletion, then all levels' pointers in one pass."""
    rounds, count = place.size, levels.size
    none = rounds
    before, after = np.empty(rounds + 1, np.int32), np.empty(rounds + 1, np.int32)
    for i in range(rounds + 1):
        before[i], after[i] = i - 1, i + 1
    before[0], after[none] = none, 0
    below_it, above_it = np.empty(rounds, np.int32), np.empty(rounds, np.int32)
    for t in range(rounds - 1, -1, -1):
        here = place[t]
        left, right = before[here], after[here]
        below_it[t], above_it[t] = left, right
        after[left], before[right] = right, left
    thresholds = np.empty((rounds, count))
    pointer, below = np.full(count, none, np.int32), np.zeros(count, np.int32)
    thresholds[0] = levels
    for n in range(1, rounds):
        here, left, right = place[n - 1], below_it[n - 1], above_it[n - 1]
        after[left], before[right], before[here], after[here] = here, here, left, right
        weight = prior_weight[n]
        atom = (1 - weight) / n
        for a in range(count):
            level, p, c = levels[a], pointer[a], below[a]
            if here < p:
                c += 1
            q = before[p]
            while q != none and weight * values[q] + atom * c >= level:
                p = q
                c -= 1
                q = before[p]
            while p != none and weight * values[p] + atom * (c + 1) < level:
                q = p
                p = after[p]
                c += 1
            pointer[a], below[a] = p, c
            low = values[q] if q != none else 0.0
            high = values[p] if p != none else 1.0
            thresholds[n, a] = min(max((level - atom * c) / weight, low), high)
    return thresholds


def exact(scores, levels):
    """Exact belief, λ = 1/√t; NumPy's fast sort included."""
    order = np.argsort(scores)
    place = np.empty(scores.size, np.int32)
    place[order] = np.arange(scores.size, dtype=np.int32)
    return _exact_walk(place, scores[order], levels, 1 / np.sqrt(np.arange(1, scores.size + 1)))


@numba.njit(cache=False)
def quantized(scores, levels, bins):
    """Quantized belief, λ = 1/√t, uniform prior on [0, 1]: pointers over the bins."""
    rounds, count = scores.size, levels.size
    mass = np.zeros(bins, np.int64)
    pointer, below = np.zeros(count, np.int64), np.zeros(count, np.int64)
    thresholds = np.empty((rounds, count))
    for n in range(rounds):
        weight = 1 / np.sqrt(n + 1.0)
        atom = (1 - weight) / n if n else 0.0
        for a in range(count):
            level, p, c = levels[a], pointer[a], below[a]
            while p > 0 and weight * p / bins + atom * c >= level:
                p -= 1
                c -= mass[p]
            while p < bins and weight * (p + 1) / bins + atom * (c + mass[p]) < level:
                c += mass[p]
                p += 1
            pointer[a], below[a] = p, c
            low, high = p / bins, min((p + 1) / bins, 1.0)
            thresholds[n, a] = min(max((level - atom * c) / weight, low), high)
        here = max(int(np.ceil(scores[n] * bins)) - 1, 0)
        mass[here] += 1
        for a in range(count):
            if here < pointer[a]:
                below[a] += 1
    return thresholds


def exact_batch(scores, levels):
    """One sequence after the other."""
    thresholds = np.empty((*scores.shape, levels.size))
    for row, out in zip(scores, thresholds, strict=True):
        out[:] = exact(row, levels)
    return thresholds
