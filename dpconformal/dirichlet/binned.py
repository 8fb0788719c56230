"""Scores in bins of equal prior mass, and how likely their counts are under a Dirichlet process."""

from typing import Any

import numpy as np
from scipy.special import betaln, gammaln

from dpconformal.theory import moments
from dpconformal.validation import Numbers, checked_scores, whole


def bin_counts(scores: Numbers, prior: Any, bins: int) -> tuple[np.ndarray, np.ndarray]:
    """Count scores in bins of equal prior mass, which exist on any support."""
    bins, values = whole("bins", bins, 1), np.asarray(checked_scores(scores, moments.support(prior)), float)
    if values.ndim != 1:
        raise ValueError(f"scores has shape {values.shape}: pass one sequence, shape (n,)")
    index = np.minimum((moments.cdf(prior, values) * bins).astype(int), bins - 1)
    return np.bincount(index, minlength=bins), np.full(bins, 1 / bins)


def log_likelihood(a: Numbers, counts: Numbers, masses: Numbers) -> Any:
    """Log-likelihood of concentrations, Dirichlet-multinomial without the term that has no a."""
    a, counts, masses = (np.asarray(v, float) for v in (a, counts, masses))
    held = counts > 0
    return _log_rising(a[:, None] * masses[held], counts[held]).sum(axis=1) - _log_rising(a, counts.sum())


def _log_rising(x: Any, count: Any) -> Any:
    """Log of x(x + 1)...(x + count - 1): betaln keeps its digits where two gammaln would cancel."""
    some = np.where(count > 0, count, 1)
    return np.where(count > 0, gammaln(some) - betaln(x, some), 0.0)
