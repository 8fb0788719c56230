"""The line of a certificate on coverage: what it would be, had the scores been iid."""

from typing import Any

import numpy as np
from scipy import special

from dpconformal import metrics
from dpconformal.beliefs import Quantized
from dpconformal.heads import Head
from dpconformal.replay import Replay
from dpconformal.theory.concentration import concentration
from dpconformal.theory.iid import rank_bracket
from dpconformal.theory.lines import Line, no_claim, precision
from dpconformal.theory.path import Path, bins_of, rounds_to_nearest, tied_rounds

_EXACT = 2**14  # events up to which the distribution of their count is computed; Chernoff bounds it beyond


def coverage(run: Replay, path: Path | None, delta: float) -> Line:
    """
    Check the coverage of one sequence; a head is held to what it asks its belief for.

    Without a path the run is held to what Exact guarantees. No claim with a discount, nor for bins that round to the
    nearest: scores that count at the centre of their bin may lie above it, unless a head raises the thresholds.
    """
    promised = path is None or (path.discount == 1 and (path.head is not None or not rounds_to_nearest(run.learner)))
    if not np.size(run.scores) or not promised:
        return no_claim(metrics.coverage(run))
    if path is None:
        rounds, schedule, asked = np.arange(1.0, run.scores.shape[0] + 1), None, np.asarray(run.levels, float)
    else:
        rounds, schedule, asked = path.rounds, path.learner.schedule, path.asked
    belief = run.learner.learner if isinstance(run.learner, Head) else run.learner
    bins = bins_of(run) if isinstance(belief, Quantized) else None
    return coverage_if_iid(run, asked, rounds - 1, np.asarray(concentration(rounds, schedule)), bins, delta)


def coverage_if_iid(run: Replay, asked: Any, count: Any, weight: Any, bins: int | None, delta: float) -> Line:
    """
    Hold a coverage to the band that iid scores leave with probability ``delta`` at most, level by level.

    Under exchangeability the ranks of the scores at their arrival are independent. A threshold lies between two order
    statistics of known ranks (:func:`dpconformal.theory.coverage_bracket`), so the number of covered rounds lies
    between two sums of independent coins, whose quantiles are the band. ``asked``: Levels, (A,) or (T, A). ``count``,
    ``weight``: How many scores the belief knew in each round, and its concentration.
    """
    thresholds, scores = np.asarray(run.thresholds), np.asarray(run.scores)
    rounding, seen = 4 * precision(run), metrics.coverage(run)
    # Ties raise the upper end, by the covered rounds whose score counts at the threshold or above it.
    ties = tied_rounds(run.learner, bins, scores, thresholds).mean(axis=0)
    low, high = np.empty((2, seen.size))
    for i, level in enumerate(np.broadcast_to(asked, thresholds.shape).T):
        least = rank_bracket(np.maximum(level - rounding, 0), count, weight)[0] / (count + 1)
        most = rank_bracket(np.minimum(level + rounding, 1), count, weight)[1] / (count + 1)
        low[i] = lower_count(least, delta / 2) / scores.size
        high[i] = min(upper_count(most, delta / 2) / scores.size + ties[i], 1)
    return Line(seen, low, high, np.where((seen >= low) & (seen <= high), 0, scores.size))


def upper_count(chances: np.ndarray, tail: float) -> int:
    """Return the least number that a count of events exceeds with probability ``tail`` at most, or one above it."""
    rounds = chances.size
    if rounds <= _EXACT:
        at_least = np.cumsum(_distribution(chances)[::-1])[::-1]  # P(count ≥ k)
        return int(np.searchsorted(-at_least, -tail - 1e-12)) - 1
    # P(count ≥ K'(θ)) ≤ exp(K(θ) - θ K'(θ)), K being the logarithm of the moment generating function.
    inner = chances[(chances > 0) & (chances < 1)]
    certain = int((chances >= 1).sum())
    small, large = 0.0, 50.0
    for _ in range(60):
        theta = (small + large) / 2
        tilted = special.expit(theta + special.logit(inner))
        rate = theta * tilted.sum() - np.log1p(inner * np.expm1(theta)).sum()
        small, large = (theta, large) if rate < -np.log(tail) else (small, theta)
    return min(certain + int(np.ceil(tilted.sum())), rounds)


def lower_count(chances: np.ndarray, tail: float) -> int:
    """Return a number that the count of events falls below with at most a given probability."""
    return chances.size - upper_count(1 - chances, tail)


def _distribution(chances: np.ndarray) -> np.ndarray:
    """P(count = k): distributions of halves, convolved pairwise by FFT."""
    rows = np.stack([1 - chances, chances], axis=1)
    while rows.shape[0] > 1:
        if rows.shape[0] % 2:
            rows = np.concatenate([rows, np.eye(1, rows.shape[1])])  # a coin that never shows heads
        size = 2 * rows.shape[1] - 1
        points = 1 << (size - 1).bit_length()
        spectrum = np.fft.rfft(rows, points, axis=1)
        rows = np.maximum(np.fft.irfft(spectrum[::2] * spectrum[1::2], points, axis=1)[:, :size], 0)
    return rows[0] if rows.size else np.ones(1)
