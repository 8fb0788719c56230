"""How many of many independent events happen: quantiles of a sum of unequal coins, exact or certified."""

import numpy as np
from scipy import special

_EXACT = 2**14  # events up to which the distribution itself is computed


def upper_count(chances: np.ndarray, tail: float) -> int:
    """
    Return a number that the count of events exceeds with at most a given probability.

    Returns: The smallest such number; for many events a slightly larger one, by Chernoff's bound.
    """
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
