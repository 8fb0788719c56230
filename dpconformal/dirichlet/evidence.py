"""Scores in bins of equal prior mass, and how likely their counts are under a Dirichlet process."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float
from scipy.special import betaln, gammaln

from dpconformal.beliefs import Belief
from dpconformal.theory import moments
from dpconformal.validation import Numbers, check_int, checked_scores, float_dtype


def bin_counts(scores: Numbers, prior: Any, bins: int) -> tuple[np.ndarray, np.ndarray]:
    """Count scores in bins of equal prior mass, which exist on any support."""
    bins, values = check_int("bins", bins, 1), np.asarray(checked_scores(scores, moments.support(prior)), float)
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


def spoilt_if_bad(a: Any, scores: Any, counts: Any, support: tuple[Any, Any]) -> Array:
    """Return the concentration, or NaN if anything that could not be checked on the host is out of range."""
    low, high = support
    fine = jnp.all((jnp.asarray(scores) >= low) & (jnp.asarray(scores) <= high) & jnp.isfinite(scores))
    if counts is not None:
        fine &= jnp.all((jnp.asarray(counts) >= 0) & jnp.isfinite(counts))
    a = jnp.asarray(a, float_dtype(scores))
    return jnp.where(fine & (a > 0) & jnp.isfinite(a), a, jnp.nan)


def mean_belief(posterior: Any, dtype: Any) -> Belief:
    """Return the mean as a belief, in a given precision."""
    scores = jnp.asarray(posterior.scores, dtype)
    counts = jnp.ones(scores.shape, dtype) if posterior.counts is None else jnp.asarray(posterior.counts, dtype)
    a = jnp.asarray(posterior.concentration, dtype)
    used = jnp.asarray(scores.shape[0], jnp.int32)
    if scores.shape[0] == 0:  # an atom that is not used, for there must be one
        scores, counts = jnp.full(1, jnp.inf, dtype), jnp.zeros(1, dtype)
    below = jnp.concatenate([jnp.zeros(1, dtype), jnp.cumsum(counts)])
    total = a + below[-1]
    taken = (below[-1] - (total - a)) + (a - (total - (total - a)))  # by rounding, from the sum
    cumulative = below / total
    product, cut = _product(cumulative, total)
    rest = (((below - product) - cut) - cumulative * taken) / total
    return Belief(posterior.prior, a / total, scores, cumulative, used, rest)


def _product(x: Array, y: Array) -> tuple[Array, Array]:
    """Multiply, and tell what rounding has taken from the product (Dekker 1971)."""
    bits = jnp.finfo(x.dtype).nmant + 1
    (x1, x2), (y1, y2) = (_halves(factor, 2.0 ** ((bits + 1) // 2) + 1) for factor in (x, y))
    product = x * y
    return product, ((x1 * y1 - product) + x1 * y2 + x2 * y1) + x2 * y2


def _halves(x: Array, splitter: float) -> tuple[Array, Array]:
    """Split a number into two of half as many digits."""
    scaled = splitter * x
    upper = scaled - (scaled - x)
    return upper, x - upper


@jax.jit
def mean_cdf(posterior: Any, x: Array) -> Array:
    """Evaluate the mean of F(x), in the precision of x."""
    return mean_belief(posterior, x.dtype).cdf(x)


@jax.jit
def mean_quantile(posterior: Any, p: Array) -> Array:
    """Evaluate quantiles of the mean, in the precision of p."""
    return mean_belief(posterior, p.dtype).quantile(p)


@jax.jit
def beta_shapes(posterior: Any, x: Float[Array, "*n"]) -> tuple[Array, Array]:
    """Masses above and below x, prior's and scores'; not by 1 - cdf, which would lose small ones."""
    a = jnp.asarray(posterior.concentration, x.dtype)
    scores = jnp.asarray(posterior.scores, x.dtype)
    counts = jnp.ones(scores.shape, x.dtype) if posterior.counts is None else jnp.asarray(posterior.counts, x.dtype)
    cumulative = jnp.concatenate([jnp.zeros(1, x.dtype), jnp.cumsum(counts)])
    below = cumulative[jnp.searchsorted(scores, x, side="right")]
    share = posterior.prior.cdf(x)
    return a * (1 - share) + (cumulative[-1] - below), a * share + below
