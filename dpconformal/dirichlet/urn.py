"""Draw the scores to come, one after the other, by Pólya's urn; many of them stand for the posterior."""

import math
import warnings
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

from dpconformal.checks import is_traced, whole
from dpconformal.dirichlet.draws import Draws
from dpconformal.dirichlet.pieces import from_mean, low_end
from dpconformal.dirichlet.posterior import Posterior
from dpconformal.dirichlet.sizes import checked_draws, checked_size
from dpconformal.inputs import float_dtype


def urn(posterior: Posterior, key: Array, draws: int, steps: int | None = None) -> Draws:
    """
    Draw the scores to come by Pólya's urn, and take their empirical distribution.

    That of infinitely many would be F. Of m steps, the share at most x is beta-binomial: its variance is
    1 + (a + n)/m times that of F(x).

    Parameters
    ----------
    posterior : Posterior
        The posterior.
    key : PRNG key
        Of JAX.
    draws : int
        How many.
    steps : int, optional
        Scores to come, by default 20·(a + n). There is a warning where they are fewer than a + n.

    Returns
    -------
    Draws
        Of them.

    Examples
    --------
    >>> import dpconformal as dpc
    >>> urn(Posterior(dpc.priors.Uniform(), 5.0, [0.3]), jax.random.key(0), 100, steps=500).own_atoms.shape
    (100, 500)
    """
    total = posterior.total
    steps = checked_size("steps", steps, None if is_traced(total) else max(math.ceil(20 * float(total)), 1), 0.0)
    if not is_traced(total) and steps < total:
        warnings.warn(
            f"steps = {steps}: fewer than a + n = {float(total):g} draws from the urn more than double the variance",
            stacklevel=3,
        )
    future = jnp.sort(future_scores(posterior, key, draws, steps), axis=-1)
    masses = (jnp.arange(steps, dtype=future.dtype) + 1) / steps
    nothing = jnp.zeros((draws, 0), future.dtype)
    return Draws(low_end(posterior, future.dtype), nothing[0], nothing, future, jnp.broadcast_to(masses, future.shape))


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
