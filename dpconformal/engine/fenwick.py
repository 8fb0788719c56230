"""
Masses of the scores in order of size as a Fenwick tree: to insert a score and to find a level are O(log T) each.

Needed where a pointer would have far to walk: with a discount, scores of the distant past weigh nothing and there are
very many of them between any two that count; and a level of its own each round has no pointer.
"""

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Int, Num

from dpconformal.engine.pointer_loop import (
    NO_PLACE,
    Arrivals,
    Walk,
    cdf_of_many,
    decay_in_place,
    put,
    quantiles_between_atoms,
    take,
)

STRIDE = 2  # halvings in one pass of the loop: fewer passes, and a body that is still small enough to be native


def fenwick(masses: Num[Array, " N"]) -> Num[Array, " M"]:
    """
    Sum masses into a Fenwick tree.

    Entry i, from 1 on, holds the mass of the 2^k places up to i, 2^k being the lowest bit of i. M - 1 is the power of
    two above N.
    """
    size = 1 << masses.shape[0].bit_length()
    total = jnp.concatenate([jnp.zeros(1, masses.dtype), jnp.cumsum(masses)])
    total = jnp.pad(total, (0, size + 1 - total.shape[0]), mode="edge")
    index = jnp.arange(size + 1, dtype=jnp.int32)
    return total - total[index - (index & -index)]


def insert(tree: Num[Array, " M"], row: Arrivals, first: Array) -> Num[Array, " M"]:
    """Add the mass of a score that has arrived to a Fenwick tree."""
    size = tree.shape[0] - 1

    def add(state: Any) -> Any:
        index, tree = state
        return index + (index & -index), put(tree, index, take(tree, index) + row.mass)

    if row.decay is not None:
        tree = decay_in_place(tree, row.decay, first)
    index = jnp.where(first, row.place, NO_PLACE) + 1
    return lax.while_loop(lambda state: state[0] <= size, add, (index, tree))[1]


def descend(tree: Num[Array, " M"], is_short: Callable[[Array, Array], Array]) -> Num[Array, "2"]:
    """
    Find the largest number of places, from the first on, that together fall short of something, and their mass.

    The number is a place for :func:`_as_index` to read.
    """
    size = tree.shape[0] - 1
    passes = -(-(size.bit_length() - 1) // STRIDE)

    def halve(_: Array, searching: Any) -> Any:
        passed, mass, step = searching
        for _halving in range(STRIDE):
            further = jnp.minimum(passed + step, size)
            more = mass + take(tree, further)
            short = (step > 0) & is_short(further, more)
            passed, mass = jnp.where(short, further, passed), jnp.where(short, more, mass)
            step = lax.shift_right_logical(step, jnp.ones_like(step))
        return passed, mass, step

    start = jnp.zeros((), jnp.int32), jnp.zeros((), tree.dtype), jnp.asarray(size // 2, jnp.int32)
    first, stop = jnp.zeros((), jnp.int32), jnp.asarray(passes, jnp.int32)
    passed, mass, _ = lax.fori_loop(first, stop, halve, start)
    return jnp.stack([_as_mass(passed, mass.dtype), mass])


def _as_mass(index: Int[Array, ""], dtype: Any) -> Num[Array, ""]:
    """Let an index travel beside a mass; its bits, where a float32 could not tell large ones apart."""
    return lax.bitcast_convert_type(index, dtype) if dtype == jnp.float32 else index.astype(dtype)


def _as_index(number: Num[Array, "..."]) -> Int[Array, "..."]:
    """Read an index that travelled beside a mass."""
    return lax.bitcast_convert_type(number, jnp.int32) if number.dtype == jnp.float32 else number.astype(jnp.int32)


def tree_walk(prior: Any, masses: Num[Array, " N"], values: Float[Array, " N"], levels: Float[Array, "..."]) -> Walk:
    """
    Find each level's place anew in every round, by halving; a row of the walk is :class:`Arrivals`.

    ``masses`` are counts or discounted sums of the scores seen before the first round, by place; 0 for those to come.
    """
    dtype, tree = values.dtype, fenwick(masses)
    low, high = (jnp.asarray(end, dtype) for end in prior.support)
    padding = tree.shape[0] - 1 - values.shape[0]
    # Place i of the tree is entry i - 1 here; what is no score always reaches a level.
    share = jnp.where(jnp.isfinite(values), cdf_of_many(prior, values), jnp.inf)
    share = jnp.concatenate([share, jnp.full(padding + 1, jnp.inf, dtype)])
    values = jnp.where(jnp.isfinite(values), values, high)
    values = jnp.concatenate([low[None], values, jnp.full(padding + 1, high, dtype)])

    def find(tree: Array, row: Any, level: Array, pointer: Any) -> Num[Array, "2"]:
        def is_short(places: Array, mass: Array) -> Array:
            return row.prior_weight * take(share, places - 1) + row.atom * mass.astype(dtype) < level

        return descend(tree, is_short)

    def read(found: Any, rows: Any, levels: Array) -> Array:
        passed, below = _as_index(found[..., 0]), found[..., 1]
        left, right = values[passed], values[passed + 1]
        return quantiles_between_atoms(prior, rows.prior_weight, rows.atom, below, left, right, share[passed], levels)

    return _tree_walk(tree, levels, insert, find, read)


def order_walk(learner: Any, masses: Num[Array, " N"], values: Float[Array, " N"], levels: Float[Array, "..."]) -> Walk:
    """
    Find the smallest score such that the scores up to it hold a share ``level`` of the total mass.

    ``masses`` are those of :func:`tree_walk`. A row of the walk is (:class:`Arrivals` with the total mass in the place
    of the prior's weight, place of the largest score seen so far). The learner tells its support, its answer to no
    score at all, what it counts at +∞, and how far sums may be off.
    """
    dtype, tree = values.dtype, fenwick(masses)
    edge = learner.edge(dtype)

    def find(tree: Array, row: Any, level: Array, pointer: Any) -> Num[Array, "2"]:
        def is_short(places: Array, mass: Array) -> Array:
            share = row[0].atom * mass.astype(dtype) / row[0].prior_weight
            return (mass <= 0) | (share < level - edge)  # places of scores to come hold nothing

        return descend(tree, is_short)

    def read(found: Any, rows: Any, levels: Array) -> Array:
        arrivals, last = rows
        total = arrivals.prior_weight[:, None]
        # Sums of many masses are off by rounding, so that the last score may seem not to reach what it does reach.
        place = jnp.minimum(_as_index(found[..., 0]), last[:, None])
        return empirical_thresholds(learner, values[place], total, levels)

    return _tree_walk(tree, levels, lambda tree, row, first: insert(tree, row[0], first), find, read)


def _tree_walk(tree: Array, levels: Array, insert: Any, find: Any, read: Any) -> Walk:
    """Make a walk over a tree, whose pointers are found anew: where they start is of no use."""
    pointers = jnp.zeros((levels.shape[-1], 2), tree.dtype)
    return Walk(insert, find, lambda tree, pointers, factor: (tree * factor, pointers), tree, pointers, False, read)


def empirical_thresholds(
    learner: Any, found: Float[Array, "*n"], total: Float[Array, "..."], levels: Float[Array, "..."]
) -> Float[Array, "*n"]:
    """Turn the score that a level fell on into its threshold: +∞ where the scores cannot reach the level."""
    positive = jnp.where(total > 0, total, 1)
    reachable = levels <= (positive - learner.at_infinity) / positive
    answers = jnp.where(reachable | (learner.at_infinity == 0), found, jnp.inf)
    answers = jnp.where(total > learner.at_infinity, answers, learner.without_scores(levels))
    answers = jnp.where(levels > 0, answers, jnp.asarray(learner.support[0], found.dtype))
    return jnp.where(jnp.isnan(total) | jnp.isnan(levels), jnp.nan, answers)
