"""Draw from the posterior by breaking sticks: of the prior's part alone, or of everything."""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array

from dpconformal.dirichlet.draws import Draws
from dpconformal.dirichlet.pieces import broken_sticks, ends, from_mean, in_order, prior_draws, score_masses
from dpconformal.dirichlet.posterior import Posterior
from dpconformal.dirichlet.sizes import check_room, checked_draws, checked_size, enough_sticks, truncation
from dpconformal.validation import float_dtype


def split(posterior: Posterior, key: Array, draws: int, sticks: int | None = None) -> Draws:
    """
    Draw W·DP(a, P0) + (1-W)·Σ w_i δ(score_i), with W ~ Beta(a, n) and w uniform on the simplex.

    That is the posterior itself, and only its prior part is infinite: the sticks that leave no more than a given mass
    over do not grow with the number of scores.

    ``sticks``: Of the prior's part. By default as many as leave a mass of 1e-6 over; inside ``jit``, where the
    concentration may not be known, to be given.
    """
    draws, a = checked_draws(posterior, draws), posterior.concentration
    sticks = checked_size(
        "sticks", sticks, enough_sticks(a, a / posterior.total), truncation(posterior, "split", sticks)
    )
    check_room(draws, sticks, "sticks")
    return _split(posterior, key, draws, sticks, float_dtype(posterior.scores))


def sticks(posterior: Posterior, key: Array, draws: int, sticks: int | None = None) -> Draws:
    """
    Draw by sticks alone: Σ π_k δ(θ_k), π broken with Beta(1, a + n), θ from the posterior mean.

    ``sticks``: The last of them takes what is left. By default as many as leave 1e-6 over, about 14·(a + n). Returns:
    Of them. With too few sticks the mean is right and the spread too large; there is a warning.
    """
    draws, a = checked_draws(posterior, draws), posterior.total
    sticks = checked_size("sticks", sticks, enough_sticks(a, 1.0), truncation(posterior, "sticks", sticks))
    check_room(draws, sticks, "sticks")
    return _sticks(posterior, key, draws, sticks, float_dtype(posterior.scores))


@jax.jit(static_argnames=("draws", "sticks", "dtype"))
def _split(posterior: Posterior, key: Array, draws: int, sticks: int, dtype: Any) -> Draws:
    keys = jax.random.split(key, 4)
    a = jnp.asarray(posterior.concentration, dtype)
    atoms = prior_draws(posterior, keys[0], (draws, sticks), dtype)
    atoms, own = in_order(atoms, broken_sticks(keys[1], a, draws, sticks))
    shared = jnp.cumsum(score_masses(posterior, keys[2], draws, dtype), axis=-1)
    if shared.shape[-1]:
        prior_mass, score_mass = jax.random.gamma(keys[3], a, (draws, 1), dtype), shared[:, -1:]
        empty = score_mass + prior_mass <= 0  # nothing was counted, and the gamma draw underflowed
        share = jnp.where(empty, 1, prior_mass / jnp.where(empty, 1, score_mass + prior_mass))
        own, shared = own * share, shared * ((1 - share) / jnp.where(score_mass > 0, score_mass, 1))
    return Draws(*ends(posterior, dtype), jnp.asarray(posterior.scores, dtype), shared, atoms, own)


@jax.jit(static_argnames=("draws", "sticks", "dtype"))
def _sticks(posterior: Posterior, key: Array, draws: int, sticks: int, dtype: Any) -> Draws:
    keys = jax.random.split(key)
    total = jnp.asarray(posterior.total, dtype)
    atoms = from_mean(posterior, keys[0], (draws, sticks), dtype)
    nothing = jnp.zeros((draws, 0), dtype)
    ordered = in_order(atoms, broken_sticks(keys[1], total, draws, sticks))
    return Draws(*ends(posterior, dtype), nothing[0], nothing, *ordered)
