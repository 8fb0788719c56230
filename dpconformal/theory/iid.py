"""Coverage and risk of a threshold if scores are iid or exchangeable, and how many of many rounds are covered."""

from typing import Any

import numpy as np
from scipy import special

from dpconformal.priors import Uniform
from dpconformal.theory import moments
from dpconformal.theory.ftrl import concentration, excess_regularizer, read_levels
from dpconformal.validation import Numbers, Scalar, as_numbers, check_scalar, raise_at


def coverage_bound(t: Numbers, level: Numbers, delta: Scalar = 0.05, schedule: Any = None) -> tuple[Any, Any]:
    """
    Bound the coverage probability of the threshold of round t, given the scores before it (Theorem 3).

    For iid scores with a continuous distribution, any prior and a fixed t, with probability 1 - δ over the n = t - 1
    scores before, for all levels at once: α - (1 - α) h_t/n - ε and α + (α h_t + 1)/n + ε, ε = √(ln(2/δ)/(2n)), within
    [0, 1]. For λ_t = 1/√t, h_t/n is 1/(√t - 1).

    Parameters
    ----------
    t, level : array_like
        Rounds, counted from 1, and α, which broadcasts against them.
    delta : float
        δ in (0, 1).
    schedule : Schedule or callable, optional
        λ_t, not discounted; 1/√t by default.

    Returns
    -------
    tuple of ndarray or float
        Lower and upper bound.

    Examples
    --------
    >>> low, high = coverage_bound(1001, 0.9)
    >>> round(float(low), 3), round(float(high), 3)
    (0.854, 0.973)
    """
    level, count = read_levels(level), _numbers("t", t, 1) - 1
    shift, doubt = _shift_and_doubt(count, schedule, delta)
    with np.errstate(divide="ignore", invalid="ignore"):
        low = np.where(level < 1, level - (1 - level) * shift, 1.0) - doubt
        high = np.where(level > 0, level + level * shift, 0.0) + 1 / count + doubt
    return np.clip(low, 0, 1)[()], np.clip(high, 0, 1)[()]


def excess_risk_bound(
    t: Numbers, level: Numbers, delta: Scalar = 0.05, prior: Any = Uniform(), schedule: Any = None
) -> Any:
    """
    Bound the expected loss of the threshold of round t beyond that of the best threshold (Theorem 4).

    For iid scores of any distribution on the prior's support and a fixed t, with probability 1 - δ over the n = t - 1
    scores before, for all levels at once: R √(ln(2/δ)/(2n)) + h_t/n · (max ψ - min ψ).

    Parameters
    ----------
    t, level : array_like
        Rounds, counted from 1, and α, which broadcasts against them.
    delta : float
        δ in (0, 1).
    prior : Prior
        P0, on a bounded support.
    schedule : Schedule or callable, optional
        λ_t, not discounted; 1/√t by default.

    Returns
    -------
    ndarray or float
        The bound; infinite in round 1.

    Examples
    --------
    >>> round(float(excess_risk_bound(10_001, 0.9)), 4)
    0.0177
    """
    level, count = read_levels(level), _numbers("t", t, 1) - 1
    low, high = moments.support(prior)
    if not np.isfinite(high - low):
        raise ValueError(f"prior has support [{low:g}, {high:g}]: the excess risk is bounded on a bounded one only")
    shift, doubt = _shift_and_doubt(count, schedule, delta)
    largest = np.maximum(excess_regularizer(low, level, prior), excess_regularizer(high, level, prior))
    with np.errstate(invalid="ignore"):  # an endless number of scores leaves no doubt
        return ((high - low) * doubt + shift * largest)[()]


def _shift_and_doubt(count: Any, schedule: Any, delta: Scalar) -> tuple[Any, Any]:
    """Return h_t/n and √(ln(2/δ)/(2n)), by which the prior and chance may move a threshold's level."""
    delta = check_scalar("delta", delta, 0.0, 1.0, open_low=True, open_high=True)
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.asarray(concentration(count + 1, schedule)) / count, np.sqrt(np.log(2 / delta) / (2 * count))


def coverage_bracket(level: Numbers, count: Numbers, concentration: Numbers) -> tuple[Any, Any]:
    """
    Bracket the coverage probability of the next round in a finite sample, whatever the prior.

    For any prior, even one chosen from anything but the coming score, and a concentration a that was fixed beforehand,
    the threshold of level ℓ lies between the order statistics of ranks ⌈ℓ(n + a) - a⌉ and ⌈ℓ(n + a)⌉ of the n scores.
    If the scores are exchangeable, these ranks divided by n + 1 are the bracket. The upper end needs scores without
    ties, none of them at the lower end of the support; the lower end needs neither.

    Parameters
    ----------
    level, count, concentration : array_like
        ℓ, the number n of scores seen, and a; with λ_t = 1/√t, that of round n + 1: :func:`concentration`.

    Returns
    -------
    tuple of ndarray or float
        Lower and upper end, both 1 at level 1. Below it some prior attains each.

    Examples
    --------
    >>> low, high = coverage_bracket(0.9, count=100, concentration=5)
    >>> round(float(low), 4), round(float(high), 4)
    (0.8911, 0.9406)
    """
    level, count, weight = read_levels(level), _numbers("count", count, 0), _numbers("concentration", concentration, 0)
    raise_at("count", count, ~np.isfinite(count), "must be finite")
    raise_at("concentration", weight, ~np.isfinite(weight), "must be finite")
    least, most = rank_bracket(level, count, weight)
    return (least / (count + 1))[()], (most / (count + 1))[()]


def rank_bracket(level: Any, count: Any, weight: Any) -> tuple[Any, Any]:
    """Bracket the rank of a threshold among the scores seen: X_(least) ≤ threshold ≤ X_(most)."""
    with np.errstate(invalid="ignore"):
        wanted = level * (count + weight)
        # 0.9 · 100 is meant to be 90, also where floating point says 90.00000000000001.
        slack = 1e-9 * np.maximum(1, count)
        least, most = np.ceil(wanted - weight - slack), np.ceil(wanted - slack)
    informed = (count > 0) & np.isfinite(weight)
    least = np.where(informed, np.clip(least, 0, count), 0)
    most = np.where(informed & (most <= count), np.maximum(most, 0), count + 1)
    # Level 1 is the upper end of the support. Rounded up, a little less than 0 is -0.0.
    return np.where(level >= 1, count + 1, least) + 0.0, most + 0.0


def corrected_level(level: Numbers, count: Numbers, concentration: Numbers) -> Any:
    """
    Return the level to ask a belief for, so that coverage is at least ``level`` in finite samples.

    (ℓ(n + 1) + a)/(n + a): then the lower end of :func:`coverage_bracket` is at least ℓ, for exchangeable scores, any
    prior and a fixed concentration. Where that exceeds 1 no quantile within the data would do, and level 1, the
    upper end of the support, covers with certainty.

    Parameters
    ----------
    level, count, concentration : array_like
        ℓ, the coverage wanted, the number n of scores seen, and a.

    Returns
    -------
    ndarray or float
        The level to ask for, at most 1.

    Examples
    --------
    >>> asked = corrected_level(0.9, count=100, concentration=5)
    >>> round(float(asked), 4), bool(coverage_bracket(asked, 100, 5)[0] >= 0.9)
    (0.9133, True)
    """
    level, count, weight = read_levels(level), _numbers("count", count, 0), _numbers("concentration", concentration, 0)
    with np.errstate(all="ignore"):  # without evidence every level asks for everything
        asked = (level * (count + 1) + weight) / (count + weight)
    return np.where(count + weight > 0, np.minimum(asked, 1), 1.0)[()]


def _numbers(name: str, value: Numbers, least: int) -> Any:
    value = np.asarray(as_numbers(name, value), float)
    raise_at(name, value, ~(value >= least), f"must be at least {least}")
    return value


EXACT_COUNTS = 2**14  # events up to which the distribution of their count is computed; Chernoff bounds it beyond


def upper_count(chances: np.ndarray, tail: float) -> int:
    """Return the least number that a count of events exceeds with probability ``tail`` at most, or one above it."""
    rounds = chances.size
    if rounds <= EXACT_COUNTS:
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
