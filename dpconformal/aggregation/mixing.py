"""The aggregating algorithm for the CRPS, played for every point of the support by itself."""

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

# A forecast F of whether a score is at most u costs (F - outcome)². This game is mixable at a rate of 2.
RATE = 2


def mixed(values: Float[Array, "N P"], log_weights: Float[Array, "N P"]) -> Float[Array, " P"]:
    """
    Mix the cdfs of N beliefs at P points, each point with weights of its own.

    F = ½ - ¼ ln[Σ w e^(-2F²) / Σ w e^(-2(1-F)²)], the substitution of the aggregating algorithm: whatever the score,
    what F costs is at most -½ ln Σ w e^(-2 · what each belief costs). Between the smallest of the values and the
    largest. As functions of the point the results need not ascend; sorted, they cost no more at any score.
    """
    weights = jax.nn.softmax(log_weights, axis=0)
    if_above = jnp.sum(weights * jnp.exp(-RATE * values**2), axis=0)
    if_below = jnp.sum(weights * jnp.exp(-RATE * (1 - values) ** 2), axis=0)
    mixture = 0.5 - 0.25 * jnp.log(if_above / if_below)
    # Most are in order, and to see that takes a tenth of the time of sorting.
    return lax.cond(jnp.any(mixture[1:] < mixture[:-1]), jnp.sort, lambda ascending: ascending, mixture)


def learnt(
    log_weights: Float[Array, "N P"], values: Float[Array, "N P"], above: Float[Array, " P"], share: Any
) -> Float[Array, "N P"]:
    """
    Charge each belief at each point for what it said there.

    ``above``: What part of a point's cell lies below the score: there the right answer was 0, elsewhere 1. Returns:
    After; the largest of a point is 0, or was before the sharing.
    """
    cost = above[None] * values**2 + (1 - above)[None] * (1 - values) ** 2
    log_weights = log_weights - RATE * cost
    log_weights = log_weights - jnp.max(log_weights, axis=0, keepdims=True)
    share = jnp.asarray(share, values.dtype)
    log_weights = jnp.where((share >= 0) & (share < 1), log_weights, jnp.nan)  # a bad hyperparameter inside jit
    return lax.cond(share > 0, _shared, lambda kept, _: kept, log_weights, share)


def _shared(log_weights: Float[Array, "N P"], share: Float[Array, ""]) -> Float[Array, "N P"]:
    some = jnp.where(share > 0, share, 0.5)  # in a batch both ways are gone: a number whose logarithm is finite
    sown = jnp.log(some / log_weights.shape[0])
    return jnp.logaddexp(jax.nn.log_softmax(log_weights, axis=0) + jnp.log1p(-some), sown)
