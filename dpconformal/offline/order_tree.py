"""Empirical distributions: the score at which a share of the mass is reached, by a binary descent, O(log T) a query."""

from typing import Any, NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float, Int, Num

from dpconformal.offline.arrivals import Arrivals
from dpconformal.offline.exact_tree import as_index, climb, descend, fenwick, shrink
from dpconformal.offline.rounds import Walk


class OrderRows(NamedTuple):
    """
    What each round brings to an empirical distribution.

    Attributes
    ----------
    arrivals : Arrivals
        Places and masses, with the total mass in the place of the prior's weight.
    last : Array, shape (T,)
        Place of the largest score seen so far.
    """

    arrivals: Arrivals
    last: Int[Array, "*T"]  # (T,)


def order_walk(
    learner: Any,
    masses: Num[Array, " N"],
    values: Float[Array, " N"],
    levels: Float[Array, "..."],
) -> Walk:
    """
    Find the smallest score such that the scores up to it hold a share ``level`` of the total mass.

    ``learner``: For its support, its answer to no score at all, what it counts at +∞, and how far sums may be off.
    ``masses``: Of the scores seen before the first round, by their place; 0 for those to come. Counts, or discounted
    sums. Returns: Over :class:`OrderRows`. Where the scores together do not reach a level, its threshold is +inf.
    """
    dtype, count = values.dtype, levels.shape[-1]
    tree = fenwick(masses)
    edge = learner.edge(dtype)

    def arrive(tree: Array, row: OrderRows, first: Array) -> Array:
        return climb(tree, row.arrivals, first)

    def locate(tree: Array, row: Any, level: Array, pointer: Any) -> Num[Array, "2"]:
        del pointer  # the last round's answer is of no use

        def is_short(places: Array, mass: Array) -> Array:
            del places
            share = row.arrivals.atom * mass.astype(dtype) / row.arrivals.prior_weight
            return (mass <= 0) | (share < level - edge)  # places of scores to come hold nothing

        return descend(tree, is_short)

    def read(found: Any, rows: Any, levels: Array) -> Array:
        total = rows.arrivals.prior_weight[:, None]
        # Sums of many masses are off by rounding, so that the last score may seem not to reach what it does reach.
        place = jnp.minimum(as_index(found[..., 0]), rows.last[:, None])
        return judged(learner, values[place], total, levels)

    return Walk(arrive, locate, shrink, tree, jnp.zeros((count, 2), tree.dtype), False, read)


def judged(
    learner: Any, found: Float[Array, "*n"], total: Float[Array, "..."], levels: Float[Array, "..."]
) -> Float[Array, "*n"]:
    """
    Turn the score that a level fell on into its threshold.

    Returns: Thresholds: +∞ where the scores cannot reach the level, the support's lower end for level 0.
    """
    positive = jnp.where(total > 0, total, 1)
    reachable = levels <= (positive - learner.at_infinity) / positive
    answers = jnp.where(reachable | (learner.at_infinity == 0), found, jnp.inf)
    answers = jnp.where(total > learner.at_infinity, answers, learner.without_scores(levels))
    answers = jnp.where(levels > 0, answers, jnp.asarray(learner.support[0], found.dtype))
    return jnp.where(jnp.isnan(total) | jnp.isnan(levels), jnp.nan, answers)
