"""Empirical distributions: the score at which a share of the mass is reached, by a binary descent, O(log T) a query."""

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Float, Num

from dpconformal.learner import rounding
from dpconformal.offline.exact_tree import as_index, climb, descend, fenwick, shrink
from dpconformal.offline.rounds import Walk


def order_walk(
    empty: Callable[[Array], Array],
    low: Float[Array, ""],
    masses: Num[Array, " N"],
    values: Float[Array, " N"],
    levels: Float[Array, "..."],
) -> Walk:
    """
    Find the smallest score such that the scores up to it hold a share ``level`` of the total mass.

    Parameters
    ----------
    empty : callable
        ``levels -> thresholds`` where the total is 0.
    low : Array, shape ()
        The threshold of level 0.
    masses : Array, shape (N,)
        Of the scores seen before the first round, by their place; 0 for those to come. Counts, or discounted sums.
    values : Array, shape (N,)
        Every score by its place in the final order of size; +inf beyond the last.
    levels : Array, shape (A,) or (T, A)
        The levels.

    Returns
    -------
    Walk
        Over rows :class:`dpconformal.offline.arrivals.Arrivals`, with the total mass in the place of the prior's
        weight. Where the scores together do not reach a level, its threshold is +inf.
    """
    dtype, count = values.dtype, levels.shape[-1]
    tree = fenwick(masses)
    ranked = jnp.concatenate([values, jnp.full(tree.shape[0] - values.shape[0], jnp.inf, dtype)])
    edge = 0.0 if jnp.issubdtype(tree.dtype, jnp.integer) else rounding(dtype)

    def locate(tree: Array, row: Any, level: Array, pointer: Any) -> Num[Array, "2"]:
        del pointer  # the last round's answer is of no use

        def is_short(places: Array, mass: Array) -> Array:
            del places
            share = row.atom * mass.astype(dtype) / row.prior_weight
            return (mass <= 0) | (share < level - edge)  # places of scores to come hold nothing

        return descend(tree, is_short)

    def read(found: Any, rows: Any, levels: Array) -> Array:
        total = rows.prior_weight[:, None]
        answers = jnp.where(levels > 0, ranked[as_index(found[..., 0])], low)
        answers = jnp.where(total == 0, empty(levels), answers)
        return jnp.where(jnp.isnan(total) | jnp.isnan(levels), jnp.nan, answers)

    return Walk(climb, locate, shrink, tree, jnp.zeros((count, 2), tree.dtype), False, read)
