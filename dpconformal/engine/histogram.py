"""Quantized beliefs: one pointer per level walks the bins; undiscounted, O(1) a round however many there are."""

from typing import Any

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Num

from dpconformal.engine.gaps import cdf_of_many, in_order, quantiles_between_atoms
from dpconformal.engine.pointer_loop import Walk, decay_in_place, put, take


def bin_walk(
    prior: Any,
    masses: Num[Array, " K"],
    atoms: Float[Array, " K"],
    levels: Float[Array, "..."],
) -> Walk:
    """
    Let pointers walk the bins as scores arrive.

    A pointer is (bin, mass of the bins below it) at the first bin at whose atom the cdf reaches the level. With a
    discount β a round moves a share 1 - β of the mass, and the pointer by about that share of the bins.

    Returns: Over rows :class:`dpconformal.engine.pointer_loop.Arrivals`: bins are places, and K stands for no score.
    """
    dtype, count = atoms.dtype, levels.shape[-1]
    low, high = (jnp.asarray(end, dtype) for end in prior.support)
    # Entry k + 1 is bin k: below the first a level is never reached, above the last always.
    share = jnp.concatenate([jnp.full(1, -jnp.inf, dtype), cdf_of_many(prior, atoms), jnp.full(1, jnp.inf, dtype)])
    values = jnp.concatenate([low[None], atoms, high[None]])
    forgets = jnp.issubdtype(masses.dtype, jnp.floating)

    def insert(masses: Array, row: Any, first: Array) -> Array:
        if row.decay is not None:
            masses = decay_in_place(masses, row.decay, first)
        new = jnp.where(first, row.mass, jnp.zeros_like(row.mass))
        return put(masses, row.place + 1, take(masses, row.place + 1) + new)

    def find(masses: Array, row: Any, level: Array, pointer: Num[Array, "2"]) -> Num[Array, "2"]:
        place, below = pointer[0].astype(jnp.int32), pointer[1]
        below = below if row.decay is None else below * row.decay
        below = jnp.where(row.place + 1 < place, below + row.mass, below)

        def cdf(place: Array, mass: Array) -> Array:
            return row.prior_weight * take(share, place) + row.atom * mass.astype(dtype)

        def back(walking: Any) -> Any:
            place, below = walking
            return place - 1, below - take(masses, place - 1)

        def ahead(walking: Any) -> Any:
            place, below = walking
            return place + 1, below + take(masses, place)

        walking = lax.while_loop(lambda w: cdf(w[0] - 1, w[1]) >= level, back, (place, below))
        # NaN ends a walk, too.
        place, below = lax.while_loop(lambda w: cdf(w[0], w[1] + take(masses, w[0])) < level, ahead, walking)
        return jnp.stack([place.astype(below.dtype), below])

    def read(found: Any, rows: Any, levels: Array) -> Array:
        place, below = found[..., 0].astype(jnp.int32), found[..., 1]
        prior_weight, atom = rows.prior_weight[:, None], rows.atom[:, None]
        mass = atom * below.astype(dtype)
        reached = prior_weight * share[place] + mass
        answers = quantiles_between_atoms(prior, prior_weight, mass, values[place - 1], values[place], reached, levels)
        # Discounted sums of two pointers at one bin may differ in their last bits, by the ways they came.
        return in_order(answers, levels) if forgets else answers

    store = jnp.pad(masses, 1)
    pointers = jnp.broadcast_to(jnp.array([1, 0], masses.dtype), (count, 2))

    def decay(masses: Array, pointers: Array, factor: Array) -> Any:
        return masses * factor, pointers.at[:, 1].multiply(factor)

    return Walk(insert, find, decay, store, pointers, not forgets, read)
