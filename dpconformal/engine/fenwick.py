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

from dpconformal.engine.gaps import cdf_of_many, quantiles_between_atoms
from dpconformal.engine.pointer_loop import NO_PLACE, Arrivals, Walk, decay_in_place, put, take

STRIDE = 2  # halvings in one pass of the loop: fewer passes, and a body that is still small enough to be native


def fenwick(masses: Num[Array, " N"]) -> Num[Array, " M"]:
    """
    Sum masses into a Fenwick tree.

    Returns: Entry i, from 1 on, holds the mass of the 2^k places up to i, 2^k being the lowest bit of i; M is the power
    of two above N.
    """
    size = 1 << masses.shape[0].bit_length()
    total = jnp.concatenate([jnp.zeros(1, masses.dtype), jnp.cumsum(masses)])
    total = jnp.pad(total, (0, size + 1 - total.shape[0]), mode="edge")
    index = jnp.arange(size + 1, dtype=jnp.int32)
    return total - total[index - (index & -index)]


def insert(tree: Num[Array, " M"], row: Any, first: Array) -> Num[Array, " M"]:
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
    Find how many places, from the first on, together fall short of something.

    Returns: The largest number of places that falls short, see :func:`as_index`, and their mass.
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


def _multiplied(tree: Array, pointers: Array, factor: Array) -> tuple[Array, Array]:
    return tree * factor, pointers


def tree_walk(
    prior: Any,
    masses: Num[Array, " N"],
    values: Float[Array, " N"],
    levels: Float[Array, "..."],
) -> Walk:
    """
    Find each level's place anew in every round, by halving; over rows of :class:`Arrivals`.

    ``masses``: Of the scores seen before the first round, by their place; 0 for those to come. Counts, or discounted
    sums.
    """
    dtype, count = values.dtype, levels.shape[-1]
    low, high = (jnp.asarray(end, dtype) for end in prior.support)
    tree = fenwick(masses)
    size = tree.shape[0] - 1
    padding = size - values.shape[0]
    # Place i of the tree is entry i - 1 here; what is no score always reaches a level.
    share = jnp.where(jnp.isfinite(values), cdf_of_many(prior, values), jnp.inf)
    share = jnp.concatenate([share, jnp.full(padding + 1, jnp.inf, dtype)])
    values = jnp.where(jnp.isfinite(values), values, high)
    values = jnp.concatenate([low[None], values, jnp.full(padding + 1, high, dtype)])

    def find(tree: Array, row: Any, level: Array, pointer: Any) -> Num[Array, "2"]:
        del pointer  # the last round's answer is of no use
        return descend(
            tree,
            lambda places, mass: row.prior_weight * take(share, places - 1) + row.atom * mass.astype(dtype) < level,
        )

    def read(found: Any, rows: Any, levels: Array) -> Array:
        passed, mass = as_index(found[..., 0]), found[..., 1]
        prior_weight, atom = rows.prior_weight[:, None], rows.atom[:, None]
        mass = atom * mass.astype(dtype)
        reached = prior_weight * share[passed] + mass
        return quantiles_between_atoms(prior, prior_weight, mass, values[passed], values[passed + 1], reached, levels)

    return Walk(insert, find, _multiplied, tree, jnp.zeros((count, 2), tree.dtype), False, read)


def _as_mass(index: Int[Array, ""], dtype: Any) -> Num[Array, ""]:
    """Let an index travel beside a mass; its bits, where a float32 could not tell large ones apart."""
    return lax.bitcast_convert_type(index, dtype) if dtype == jnp.float32 else index.astype(dtype)


def as_index(number: Num[Array, "..."]) -> Int[Array, "..."]:
    """Read an index that travelled beside a mass."""
    return lax.bitcast_convert_type(number, jnp.int32) if number.dtype == jnp.float32 else number.astype(jnp.int32)


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
    sums. Returns: A walk over rows (:class:`Arrivals` with the total mass in the place of the prior's weight, place of
    the largest score seen so far). Where the scores together do not reach a level, its threshold is +∞.
    """
    dtype, count = values.dtype, levels.shape[-1]
    tree = fenwick(masses)
    edge = learner.edge(dtype)

    def insert_here(tree: Array, row: tuple[Arrivals, Array], first: Array) -> Array:
        return insert(tree, row[0], first)

    def find(tree: Array, row: Any, level: Array, pointer: Any) -> Num[Array, "2"]:
        del pointer  # the last round's answer is of no use

        def is_short(places: Array, mass: Array) -> Array:
            del places
            share = row[0].atom * mass.astype(dtype) / row[0].prior_weight
            return (mass <= 0) | (share < level - edge)  # places of scores to come hold nothing

        return descend(tree, is_short)

    def read(found: Any, rows: Any, levels: Array) -> Array:
        arrivals, last = rows
        total = arrivals.prior_weight[:, None]
        # Sums of many masses are off by rounding, so that the last score may seem not to reach what it does reach.
        place = jnp.minimum(as_index(found[..., 0]), last[:, None])
        return empirical_thresholds(learner, values[place], total, levels)

    return Walk(insert_here, find, _multiplied, tree, jnp.zeros((count, 2), tree.dtype), False, read)


def empirical_thresholds(
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
