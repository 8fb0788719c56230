"""The Bayesian bootstrap: the posterior in the limit of a prior that is worth nothing."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from dpconformal.dirichlet.draws import Draws
from dpconformal.dirichlet.pieces import ends, score_masses
from dpconformal.dirichlet.posterior import Posterior
from dpconformal.dirichlet.sizes import checked_draws
from dpconformal.validation import float_dtype, is_traced


def bootstrap(posterior: Posterior, key: Array, draws: int, size: int | None = None) -> Draws:
    """Draw Σ w_i δ(score_i), w uniform on the simplex: the Bayesian bootstrap, which has no prior."""
    if size is not None:
        raise ValueError(f"size = {size!r}: the Bayesian bootstrap has none; leave it out")
    draws = checked_draws(posterior, draws)
    counts = posterior.counts
    if posterior.scores.shape[0] == 0 or not (counts is None or is_traced(counts) or np.any(counts)):
        raise ValueError("posterior.scores is empty: the Bayesian bootstrap needs a score, or the prior; use 'split'")
    return _bootstrap(posterior, key, draws, float_dtype(posterior.scores))


@jax.jit(static_argnames=("draws", "dtype"))
def _bootstrap(posterior: Posterior, key: Array, draws: int, dtype: Any) -> Draws:
    shared = jnp.cumsum(score_masses(posterior, key, draws, dtype), axis=-1)
    nothing = jnp.zeros((draws, 0), dtype)
    scores, (low, _) = jnp.asarray(posterior.scores, dtype), ends(posterior, dtype)
    held = scores if posterior.counts is None else jnp.where(jnp.asarray(posterior.counts) > 0, scores, low)
    shared = jnp.where(jnp.isnan(posterior.concentration), jnp.nan, shared / shared[:, -1:])
    return Draws(low, jnp.max(held), scores, shared, nothing, nothing)
