"""Draw the scores to come, one after the other, by Pólya's urn; and the posterior with their help."""

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

from dpconformal.dirichlet.draws import Draws
from dpconformal.dirichlet.pieces import broken_sticks, ends, from_mean, in_order, prior_draws, score_masses
from dpconformal.dirichlet.posterior import Posterior
from dpconformal.dirichlet.sizes import check_room, checked_draws, enough_sticks
from dpconformal.validation import float_dtype, whole

_STEPS, _STICKS = 100, 128  # by default; and sticks of the rest at least, and where the concentration is traced


def urn(posterior: Posterior, key: Array, draws: int, steps: int | None = None) -> Draws:
    """
    Draw scores to come by Pólya's urn, and weigh them and those seen uniformly on the simplex.

    The posterior given scores to come, averaged over these, is the posterior: so this is right for any number of steps.
    What is left of the prior, a/(a + n + steps) of the mass on average, is broken into sticks. (Equal weights, the
    empirical distribution of the urn alone, would be right for infinitely many steps only.)
    """
    draws, a = checked_draws(posterior, draws), posterior.concentration
    steps = whole("steps", _STEPS if steps is None else steps, 1)
    sticks = max(enough_sticks(a, a / (posterior.total + steps)) or 0, _STICKS)
    check_room(draws, steps + sticks, "steps and sticks")
    return _urn(posterior, key, draws, steps, sticks, float_dtype(posterior.scores))


def future_scores(posterior: Posterior, key: Array, draws: int, steps: int) -> Float[Array, "D M"]:
    """
    Draw the scores to come, in order: each from the belief that the ones before it have led to.

    Parameters
    ----------
    posterior : Posterior
        The posterior.
    key : PRNG key
        Of JAX.
    draws : int
        Independent futures.
    steps : int
        Scores of each.

    Returns
    -------
    Array, shape (D, M)
        Scores. A step copies a future score before it, or draws from the belief of now.

    Examples
    --------
    >>> import dpconformal as dpc
    >>> future_scores(Posterior(dpc.priors.Uniform(), 5.0, [0.3]), jax.random.key(0), draws=2, steps=3).shape
    (2, 3)
    """
    draws, steps = checked_draws(posterior, draws), whole("steps", steps, 1)
    return _future(posterior, key, draws, steps, float_dtype(posterior.scores))


@jax.jit(static_argnames=("draws", "steps", "sticks", "dtype"))
def _urn(posterior: Posterior, key: Array, draws: int, steps: int, sticks: int, dtype: Any) -> Draws:
    keys = jax.random.split(key, 6)
    a = jnp.asarray(posterior.concentration, dtype)
    rest = jax.random.gamma(keys[0], a, (draws, 1), dtype) * broken_sticks(keys[1], a, draws, sticks)
    masses = jax.random.exponential(keys[2], (draws, steps), dtype), rest
    places = _future(posterior, keys[3], draws, steps, dtype), prior_draws(posterior, keys[4], rest.shape, dtype)
    atoms, own = in_order(*(jnp.concatenate(parts, axis=-1) for parts in (places, masses)))
    shared = jnp.cumsum(score_masses(posterior, keys[5], draws, dtype), axis=-1)
    total = own[:, -1:] + (shared[:, -1:] if shared.shape[-1] else 0)
    scores = jnp.asarray(posterior.scores, dtype)
    return Draws(*ends(posterior, dtype), scores, shared / total, atoms, own / total)


@jax.jit(static_argnames=("draws", "steps", "dtype"))
def _future(posterior: Posterior, key: Array, draws: int, steps: int, dtype: Any) -> Array:
    keys = jax.random.split(key)
    fresh = from_mean(posterior, keys[0], (draws, steps), dtype)
    own, total = jnp.arange(steps, dtype=jnp.int32)[None], jnp.asarray(posterior.total, dtype)
    place = jax.random.uniform(keys[1], (draws, steps), dtype) * (total + own.astype(dtype)) - total
    source = jnp.where(place < 0, own, jnp.minimum(jnp.floor(place).astype(jnp.int32), own - 1))

    def follow(_: Any, source: Array) -> Array:  # every copy of a copy, in a logarithm of steps
        return jnp.take_along_axis(source, source, axis=-1)

    source = lax.fori_loop(0, max(steps - 1, 1).bit_length(), follow, source)
    return jnp.take_along_axis(fresh, source, axis=-1)
