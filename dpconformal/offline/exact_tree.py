"""Exact beliefs with a discount, or with levels that change by round: a binary descent, O(log T) a query."""

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Int, Num

from dpconformal.gaps import cdf_of_many, quantiles_in_gaps
from dpconformal.offline.arrivals import shrunk_in_place
from dpconformal.offline.loops import put, take
from dpconformal.offline.rounds import Walk

NO_PLACE = 2**31 - 2
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


def climb(tree: Num[Array, " M"], row: Any, first: Array) -> Num[Array, " M"]:
    """Add the mass of a score that has arrived to a Fenwick tree."""
    size = tree.shape[0] - 1

    def add(climbing: Any) -> Any:
        index, tree = climbing
        return index + (index & -index), put(tree, index, take(tree, index) + row.mass)

    if row.shrink is not None:
        tree = shrunk_in_place(tree, row.shrink, first)
    index = jnp.where(first, row.place, NO_PLACE) + 1
    return lax.while_loop(lambda climbing: climbing[0] <= size, add, (index, tree))[1]


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


def tree_walk(
    prior: Any,
    masses: Num[Array, " N"],
    values: Float[Array, " N"],
    levels: Float[Array, "..."],
) -> Walk:
    """
    Find each level's place anew in every round, by halving.

    Needed where a pointer would have far to walk: with a discount, scores of the distant past weigh nothing and
    there are very many of them between any two that count; and a level of its own each round has no pointer.

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

    def locate(tree: Array, row: Any, level: Array, pointer: Any) -> Num[Array, "2"]:
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
        return quantiles_in_gaps(prior, prior_weight, mass, values[passed], values[passed + 1], reached, levels)

    return Walk(climb, locate, shrink, tree, jnp.zeros((count, 2), tree.dtype), False, read)


def shrink(tree: Array, pointers: Array, by: Array) -> Any:
    """Multiply every mass of a tree."""
    return tree * by, pointers


def _as_mass(index: Int[Array, ""], dtype: Any) -> Num[Array, ""]:
    """Let an index travel beside a mass; its bits, where a float32 could not tell large ones apart."""
    return lax.bitcast_convert_type(index, dtype) if dtype == jnp.float32 else index.astype(dtype)


def as_index(number: Num[Array, "..."]) -> Int[Array, "..."]:
    """Read an index that travelled beside a mass."""
    return lax.bitcast_convert_type(number, jnp.int32) if number.dtype == jnp.float32 else number.astype(jnp.int32)
