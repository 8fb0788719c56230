"""Draw from the posterior on bins, where it is a finite Dirichlet distribution."""

import math
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array

from dpconformal.beliefs.bins import bin_edges, bin_index
from dpconformal.dirichlet.draws import Draws
from dpconformal.dirichlet.gamma import dirichlet
from dpconformal.dirichlet.posterior import Posterior
from dpconformal.dirichlet.sizes import checked_draws
from dpconformal.validation import float_dtype, is_traced, whole

_BINS = 256


def grid(posterior: Posterior, key: Array, draws: int, bins: int | None = None) -> Draws:
    """
    Draw masses of equal bins, Dirichlet(a·P0(bin) + scores in it), and put them at the upper edges.

    An edge belongs to the bin below it. So F(x) = P(X ≤ x) is exact at the edges of the bins, for any number of them,
    also where scores lie on edges. Quantiles are those of F, moved up to the next edge;
    means are up to a bin larger than those of F.
    """
    draws, bins = checked_draws(posterior, draws), bins if bins is not None else posterior.bins or _BINS
    bins = whole("bins", bins, 1)
    if posterior.bins is not None and posterior.bins % bins:
        raise ValueError(f"bins = {bins}: the posterior's {posterior.bins} bins must be a multiple of it")
    low, high = posterior.prior.support
    if not is_traced(low, high) and not math.isfinite(float(high) - float(low)):
        raise ValueError(f"posterior.prior has support {posterior.prior.support}: a grid needs a bounded one")
    return _grid(posterior, key, draws, bins, float_dtype(posterior.scores))


@jax.jit(static_argnames=("draws", "bins", "dtype"))
def _grid(posterior: Posterior, key: Array, draws: int, bins: int, dtype: Any) -> Draws:
    support = posterior.prior.support
    a, scores = jnp.asarray(posterior.concentration, dtype), jnp.asarray(posterior.scores, dtype)
    counts = jnp.ones(scores.shape, dtype) if posterior.counts is None else jnp.asarray(posterior.counts, dtype)
    edges = bin_edges(support, bins, dtype)
    shapes = a * jnp.diff(posterior.prior.cdf(edges))
    if posterior.bins is not None and posterior.rounding == "up":
        # These are edges of the posterior's own bins. In another precision they may lie a bit off; the centres do not.
        scores = scores - (edges[-1] - edges[0]) / (2 * posterior.bins)
    shapes = shapes.at[bin_index(scores, support, bins, "up")].add(counts)
    masses = dirichlet(key, jnp.maximum(shapes, jnp.finfo(dtype).tiny), draws)  # NaN stays
    nothing = jnp.zeros((draws, 0), dtype)
    return Draws(edges[0], edges[-1], edges[1:], jnp.cumsum(masses, axis=-1), nothing, nothing)
