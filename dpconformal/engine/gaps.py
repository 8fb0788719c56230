"""The quantile of a prior mixed with atoms, once it is known between which two atoms it lies."""

from typing import Any

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int

PIECE = 1024  # values whose cdf is evaluated at a time
CHUNK = 32  # quantiles without a closed form that are solved for at a time


def quantile_between_atoms(
    prior: Any,
    prior_weight: Float[Array, "..."],
    mass: Float[Array, "..."],
    left: Float[Array, "..."],
    right: Float[Array, "..."],
    levels: Float[Array, "..."],
    rest: Float[Array, "..."] | int = 0,
) -> Float[Array, "..."]:
    """
    Find the point between two neighbouring atoms where the cdf reaches each level.

    Between them only the prior's share grows, so the point is a quantile of the prior; where that lies beyond
    the right neighbour, the level is reached by that atom's jump.
    """
    wanted = ((levels - mass) - rest) / prior_weight  # of the prior's own mass
    between = prior.quantile(jnp.clip(wanted, 0, 1))
    # Clipping to the neighbours undoes rounding only, and makes crossings impossible.
    threshold = jnp.minimum(jnp.maximum(between, left), right)
    high = jnp.asarray(prior.support[1], levels.dtype)
    # NaN in `between` tells of an invalid state, a bad level or a bad prior.
    return jnp.where((levels >= 1) & ~jnp.isnan(between), high, threshold)


def cdf_of_many(prior: Any, values: Float[Array, " N"]) -> Float[Array, " N"]:
    """
    Evaluate a prior's cdf at many values.

    A cdf that is iterated until every element has converged goes over all of them again and again: in pieces that
    stay in the cache that is many times as fast.
    """
    size = values.shape[0]
    if getattr(prior, "closed_form", False) or size <= PIECE:
        return prior.cdf(values)
    pieces = jnp.pad(values, (0, -size % PIECE), mode="edge").reshape(-1, PIECE)
    return lax.map(prior.cdf, pieces).ravel()[:size]


def quantiles_between_atoms(
    prior: Any,
    prior_weight: Float[Array, "T 1"],
    mass: Float[Array, "T A"],
    left: Float[Array, "T A"],
    right: Float[Array, "T A"],
    reached: Float[Array, "T A"],
    levels: Float[Array, "#T A"],
) -> Float[Array, "T A"]:
    """
    Find :func:`quantile_between_atoms` for many, without inverting the prior's cdf where an atom is the answer.

    After t rounds all but a share λ_t of the answers are atoms. A prior whose quantile has no closed form is
    inverted for the others only, a chunk at a time.

    Returns: Thresholds; for levels a ≤ b of a round they are ordered, to the last bit.
    """
    if getattr(prior, "closed_form", False):
        return quantile_between_atoms(prior, prior_weight, mass, left, right, levels)
    shape = mass.shape
    asked, levels, weight = levels, jnp.broadcast_to(levels, shape), jnp.broadcast_to(prior_weight, shape)
    high = jnp.asarray(prior.support[1], levels.dtype)
    columns = [column.ravel() for column in (weight, mass, left, right, levels)]
    inside = ~(reached < levels).ravel()  # also where something is NaN
    here, found = _indices(inside)
    answers = jnp.where(levels >= 1, high, right).ravel()

    def solve(chunk: Array, answers: Array) -> Array:
        some = lax.dynamic_slice(here, (chunk * CHUNK,), (CHUNK,))
        # What fills the last chunk lies past the end: read as the last one, and dropped on purpose.
        given = (column.at[some].get(mode="clip") for column in columns)
        return answers.at[some].set(quantile_between_atoms(prior, *given), mode="drop")

    chunks = (found + CHUNK - 1) // CHUNK
    answers = lax.fori_loop(jnp.zeros_like(chunks), chunks, solve, answers).reshape(shape)
    return in_order(answers, asked)


def _indices(wanted: Bool[Array, " N"]) -> tuple[Int[Array, " M"], Int[Array, ""]]:
    """Where something is true, padded with N, and how often; a native loop, much faster than ``jnp.nonzero``."""
    size = wanted.shape[0]

    def note(i: Array, carry: Any) -> Any:
        noted, count = carry
        noted = lax.dynamic_update_slice(noted, i[None], (count,))  # overwritten unless it is counted
        return noted, count + lax.dynamic_slice(wanted, (i,), (1,))[0].astype(count.dtype)

    start = jnp.full(size + CHUNK + 1, size, jnp.int32), jnp.zeros((), jnp.int32)
    noted, count = lax.fori_loop(jnp.zeros((), jnp.int32), jnp.asarray(size, jnp.int32), note, start)
    return lax.dynamic_update_slice(noted, jnp.full(1, size, jnp.int32), (count,)), count


def in_order(thresholds: Float[Array, "T A"], levels: Float[Array, "#T A"]) -> Float[Array, "T A"]:
    """Undo the rounding that makes thresholds of nearly equal levels cross in their last bits."""
    order = jnp.argsort(levels, axis=-1)
    back = jnp.argsort(order, axis=-1)
    order, back = (jnp.broadcast_to(index, thresholds.shape) for index in (order, back))
    rising = lax.cummax(jnp.take_along_axis(thresholds, order, axis=-1), axis=1)
    return jnp.take_along_axis(rising, back, axis=-1)
