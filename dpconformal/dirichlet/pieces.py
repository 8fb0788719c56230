"""What samplers of a Dirichlet process are made of: broken sticks, masses of scores, draws of the mean."""

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

from dpconformal.dirichlet.gamma import log_gamma
from dpconformal.dirichlet.posterior import Posterior


def ends(posterior: Posterior, dtype: Any) -> tuple[Array, Array]:
    """Return the ends of the support."""
    low, high = posterior.prior.support
    return jnp.asarray(low, dtype), jnp.asarray(high, dtype)


def broken_sticks(key: Array, concentration: Array, draws: int, count: int) -> Float[Array, "D K"]:
    """Break sticks: what is left after k of them is exp of a sum of exponentials; the last takes the rest."""
    pieces = jax.random.exponential(key, (draws, count), concentration.dtype) / concentration
    left = jnp.cumsum(pieces, axis=-1) - pieces
    return jnp.exp(-left) * -jnp.expm1(-pieces.at[:, -1].set(jnp.inf))


def score_masses(posterior: Posterior, key: Array, draws: int, dtype: Any) -> Array:
    """Draw Gamma(count) for each score, to be normalised."""
    shape = (draws, posterior.scores.shape[0])
    if posterior.counts is None:
        return jax.random.exponential(key, shape, dtype)
    counts = jnp.asarray(posterior.counts, dtype)
    drawn = jnp.exp(log_gamma(key, jnp.where(counts > 0, counts, 1), shape))
    return jnp.where((counts > 0)[None], drawn, 0)


def prior_draws(posterior: Posterior, key: Array, shape: tuple[int, ...], dtype: Any) -> Array:
    """Draw from the prior; never its quantile of level 0, which an unbounded support has at infinity."""
    return posterior.prior.quantile(jax.random.uniform(key, shape, dtype, minval=jnp.finfo(dtype).tiny))


def in_order(atoms: Array, masses: Array) -> tuple[Array, Array]:
    """Sort the atoms of each draw, and add up their masses."""
    atoms, masses = lax.sort((atoms, masses), dimension=-1, num_keys=1)
    return atoms, jnp.cumsum(masses, axis=-1)


def from_mean(posterior: Posterior, key: Array, shape: tuple[int, ...], dtype: Any) -> Array:
    """Draw from the posterior mean: from the prior, or one of the scores."""
    a = jnp.asarray(posterior.concentration, dtype)
    keys = jax.random.split(key)
    fresh = prior_draws(posterior, keys[0], shape, dtype)
    if posterior.scores.shape[0] == 0:
        return jnp.where(jnp.isnan(a), jnp.nan, fresh)
    scores = jnp.asarray(posterior.scores, dtype)
    counts = jnp.ones(scores.shape, dtype) if posterior.counts is None else jnp.asarray(posterior.counts, dtype)
    below = jnp.cumsum(counts)
    place = jax.random.uniform(keys[1], shape, dtype) * (a + below[-1]) - a  # negative: from the prior
    chosen = jnp.minimum(jnp.searchsorted(below, place, side="right"), scores.shape[0] - 1)
    drawn = jnp.where(place < 0, fresh, scores[chosen])
    return jnp.where(jnp.isnan(a), jnp.nan, drawn)
