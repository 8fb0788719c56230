"""Scores of whole beliefs, each round from the scores before it, for many concentrations at once."""

from typing import Any

import numpy as np

from dpconformal.priors import Histogram, Mixture
from dpconformal.theory import moments
from dpconformal.theory.quadrature import integral, landmarks

_SMALL = 256  # scores whose distances are computed pair by pair


def crps_terms(prior: Any, scores: Any, concentrations: Any) -> Any:
    """
    Mean CRPS of Dirichlet-process beliefs, exactly.

    With λ = a/(a + n) the belief is λ P0 + (1 - λ) · empirical, so the CRPS is a quadratic in λ. Its three coefficients
    are mean distances between the score, draws of P0 and scores seen, and do not depend on a.
    """
    mean, spread = moments.mean(prior), _half_mean_difference(prior)
    if not np.isfinite(mean + spread):
        raise ValueError(
            f"prior = {prior!r} has tails too heavy for a CRPS; choose by='log_score' on a bounded support"
        )
    n = np.arange(scores.size)
    seen = np.maximum(n, 1)
    to_prior = 2 * moments.cdf_integral(prior, scores) + mean - scores
    distances = distances_to_past(scores)
    to_past = distances / seen
    between = (np.cumsum(to_prior) - to_prior) / seen  # of P0 and the past
    within = (np.cumsum(distances) - distances) / seen**2  # half the mean distance of two of the past, with repetition
    own, cross, past = to_prior - spread, to_prior + to_past - between, to_past - within
    weight = concentrations[:, None] / (concentrations[:, None] + n)
    rest = n / (concentrations[:, None] + n)
    return np.mean(weight**2 * own + weight * rest * cross + rest**2 * past, axis=1)


def log_terms(prior: Any, scores: Any, concentrations: Any, cells: int) -> Any:
    """Mean of minus the log-probability that beliefs give to the cell of the next score."""
    low, high = moments.support(prior)
    if not np.isfinite(high - low):
        raise ValueError(f"prior has support [{low:g}, {high:g}]: cells of equal width need a bounded one; use 'crps'")
    edges = np.linspace(low, high, cells + 1)
    masses = np.diff(moments.cdf(prior, edges))
    cell = np.clip(np.searchsorted(edges, scores, side="right") - 1, 0, cells - 1)
    order = np.argsort(cell, kind="stable")
    starts = np.searchsorted(cell[order], np.arange(cells))
    before = np.empty(scores.size)
    before[order] = np.arange(scores.size) - starts[cell[order]]
    a, n = concentrations[:, None], np.arange(scores.size)
    with np.errstate(divide="ignore"):  # a cell that the prior rules out
        return np.mean(np.log(a + n) - np.log(a * masses[cell] + before), axis=1)


def distances_to_past(scores: Any) -> Any:
    """Sum of abs(score_t - score_i) over i < t, by splitting in halves: T log² T steps."""
    total = np.zeros(scores.size)

    def split(start: int, end: int) -> None:
        if end - start <= _SMALL:
            part = scores[start:end]
            total[start:end] += np.tril(np.abs(part[:, None] - part)).sum(axis=1)
            return
        middle = (start + end) // 2
        split(start, middle)
        split(middle, end)
        left, right = np.sort(scores[start:middle]), scores[middle:end]
        sums = np.concatenate([[0.0], np.cumsum(left)])
        below = np.searchsorted(left, right)
        total[middle:end] += right * (2 * below - left.size) + sums[-1] - 2 * sums[below]

    split(0, scores.size)
    return total


def _half_mean_difference(prior: Any) -> float:
    """∫ P0(1 - P0), between the points where the density jumps."""
    low, high = moments.support(prior)
    points = np.unique(np.concatenate([[low, high], landmarks(prior), *_jumps(prior)]))

    def spread(x: Any) -> Any:
        value = moments.cdf(prior, x)
        return value * (1 - value)

    return float(np.sum(integral(spread, points[:-1], points[1:])))


def _jumps(prior: Any) -> list[Any]:
    if isinstance(prior, Mixture):
        return [points for component in prior.components for points in [*_jumps(component), moments.support(component)]]
    return [np.asarray(prior.edges, float)] if isinstance(prior, Histogram) else []
