"""
Where pointers walk: a linked list of the scores in order of size, bins, or a Fenwick tree of either.

In a list or in bins one pointer per level moves from neighbour to neighbour, by about one place a round: O(1) a round,
however many there are. Offline, where each score will stand among all of them is known. Deleting the scores in reverse
order of arrival tells each one's neighbours at the moment it came; inserted again, forwards, they are followed without
a tree.

A tree, O(log T) a round, is needed where a pointer would have far to walk: with a discount, scores of the distant past
weigh nothing and there are very many of them between any two that count; and a level of its own each round has no
pointer.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Int, Num

from dpconformal.engine.pointer_loop import (
    NO_PLACE,
    Arrivals,
    Walk,
    cdf_of_many,
    decay_in_place,
    make_monotone,
    put,
    quantiles_between_atoms,
    take,
)

STRIDE = 2  # halvings in one pass of the loop: fewer passes, and a body that is still small enough to be native


class LinkedList(NamedTuple):
    """
    Neighbours of the places 0, …, N - 1 in the final order of size.

    Three more places stand for no score: N is below every score, N + 1 above every score, and N + 2,
    :func:`null_node`, is never linked: writes that mean nothing go there.
    """

    before: Int[Array, " N+3"]  # (N + 3,)
    after: Int[Array, " N+3"]  # (N + 3,)


class Insertion(NamedTuple):
    """Where a score goes, or many: its place, and its neighbours at the moment it arrives."""

    here: Int[Array, "..."]  # (...)
    below: Int[Array, "..."]  # (...)
    above: Int[Array, "..."]  # (...)


def null_node(size: int) -> int:
    """Return the place that is never linked."""
    return size + 2


def linked(size: int, count: Int[Array, ""]) -> LinkedList:
    """Link the first places in order: low end ↔ 0 ↔ 1 ↔ … ↔ count - 1 ↔ high end."""
    place = jnp.arange(size + 3, dtype=jnp.int32)
    low, high = size, size + 1
    count = count.astype(jnp.int32)
    first, last = jnp.where(count > 0, 0, high), jnp.where(count > 0, count - 1, low)
    before, after = place - 1, jnp.where(place == count - 1, high, place + 1).astype(jnp.int32)
    # The ends point to themselves, and so does what is never linked: to take it out changes nothing.
    ends = jnp.array([low, high, null_node(size)], jnp.int32)
    before = before.at[0].set(low).at[ends].set(ends).at[high].set(last.astype(jnp.int32))
    after = after.at[ends].set(ends).at[low].set(first.astype(jnp.int32))
    return LinkedList(before, after)


@jax.jit
def unlink(nodes: LinkedList, places: Int[Array, " T"]) -> tuple[LinkedList, Insertion]:
    """Take scores out, the latest first: the list before the first of them arrived, and how to put each back."""

    def out(carry: tuple[LinkedList, Array, Array], here: Array) -> tuple[tuple[LinkedList, Array, Array], Insertion]:
        nodes, below, above = carry
        # Carry out the last step's deletion, then read: a buffer that is read first would be copied whole.
        nodes = LinkedList(put(nodes.before, above, below), put(nodes.after, below, above))
        below, above = take(nodes.before, here), take(nodes.after, here)
        return (nodes, below, above), Insertion(here, below, above)

    idle = jnp.asarray(nodes.before.shape[0] - 1, jnp.int32)
    (nodes, below, above), insertions = lax.scan(out, (nodes, idle, idle), places, reverse=True)
    return LinkedList(put(nodes.before, above, below), put(nodes.after, below, above)), insertions


def link(nodes: LinkedList, insertion: Insertion) -> LinkedList:
    """Put a score back between its neighbours."""
    here, below, above = insertion
    return LinkedList(put(put(nodes.before, above, here), here, below), put(put(nodes.after, below, here), here, above))


def walk_list(prior: Any, nodes: LinkedList, values: Float[Array, " N"], levels: Float[Array, " A"]) -> Walk:
    """
    Walk the scores in order of size, for an undiscounted belief at fixed levels.

    A pointer is a row (place, place before it, scores below it) at the first score at which the cdf
    λ P0 + (1 - λ)/n · count reaches the level. When a score arrives the count, and with it the place, moves by
    about one; the pointer moves until it is right, however far that is. A row of the walk is (insertion of the score
    that came in since the round before, prior's share, mass of an atom).
    """
    size, dtype = values.shape[0], values.dtype
    low, high = (jnp.asarray(end, dtype) for end in prior.support)
    # The low end never reaches a level and the high end always does, so no pointer can leave the list.
    share = jnp.concatenate([cdf_of_many(prior, values), jnp.array([-jnp.inf, jnp.inf, jnp.nan], dtype)])
    values = jnp.concatenate([values, jnp.stack([low, high, high])])

    def insert(nodes: LinkedList, row: Any, first: Array) -> LinkedList:
        del first  # to link a score that is linked already changes nothing
        return link(nodes, row[0])

    def find(nodes: LinkedList, row: Any, level: Array, pointer: Int[Array, "3"]) -> Int[Array, "3"]:
        insertion, prior_weight, atom = row
        place, _, below = pointer
        below = jnp.where(insertion.here < place, below + 1, below)

        def cdf(place: Array, count: Array) -> Array:
            return prior_weight * take(share, place) + atom * count.astype(dtype)

        def back(walking: Any) -> Any:
            _, before, below = walking
            return before, take(nodes.before, before), below - 1

        def ahead(walking: Any) -> Any:
            place, _, below = walking
            return take(nodes.after, place), place, below + 1

        walking = (place, take(nodes.before, place), below)
        walking = lax.while_loop(lambda w: cdf(w[1], w[2]) >= level, back, walking)
        walking = lax.while_loop(lambda w: cdf(w[0], w[2] + 1) < level, ahead, walking)  # NaN ends a walk, too
        return jnp.stack(walking)

    def read(found: Int[Array, "T A 3"], rows: Any, levels: Array) -> Array:
        _, prior_weight, atom = rows
        place, before, below = found[..., 0], found[..., 1], found[..., 2]
        left, right = values[before], values[place]
        return quantiles_between_atoms(prior, prior_weight, atom, below, left, right, share[place], levels)

    nothing = jnp.asarray(size, jnp.int32)  # the low end
    first = jnp.stack([take(nodes.after, nothing), nothing, jnp.zeros((), jnp.int32)])
    return Walk(insert, find, None, nodes, jnp.broadcast_to(first, (levels.shape[0], 3)), True, read)


def bin_walk(prior: Any, masses: Num[Array, " K"], atoms: Float[Array, " K"], levels: Float[Array, "..."]) -> Walk:
    """
    Walk the bins of a quantized belief; a row of the walk is :class:`Arrivals`, whose places are bins, K for no score.

    A pointer is (bin, mass of the bins below it) at the first bin at whose atom the cdf reaches the level. With a
    discount β a round moves a share 1 - β of the mass, and the pointer by about that share of the bins.
    """
    dtype, count = atoms.dtype, levels.shape[-1]
    low, high = (jnp.asarray(end, dtype) for end in prior.support)
    # Entry k + 1 is bin k: below the first a level is never reached, above the last always.
    share = jnp.concatenate([jnp.full(1, -jnp.inf, dtype), cdf_of_many(prior, atoms), jnp.full(1, jnp.inf, dtype)])
    values = jnp.concatenate([low[None], atoms, high[None]])
    forgets = jnp.issubdtype(masses.dtype, jnp.floating)

    def insert(masses: Array, row: Arrivals, first: Array) -> Array:
        if row.decay is not None:
            masses = decay_in_place(masses, row.decay, first)
        new = jnp.where(first, row.mass, jnp.zeros_like(row.mass))
        return put(masses, row.place + 1, take(masses, row.place + 1) + new)

    def find(masses: Array, row: Arrivals, level: Array, pointer: Num[Array, "2"]) -> Num[Array, "2"]:
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

    def read(found: Any, rows: Arrivals, levels: Array) -> Array:
        place, below = found[..., 0].astype(jnp.int32), found[..., 1]
        left, right = values[place - 1], values[place]
        answers = quantiles_between_atoms(prior, rows.prior_weight, rows.atom, below, left, right, share[place], levels)
        # Discounted sums of two pointers at one bin may differ in their last bits, by the ways they came.
        return make_monotone(answers, levels) if forgets else answers

    store = jnp.pad(masses, 1)
    pointers = jnp.broadcast_to(jnp.array([1, 0], masses.dtype), (count, 2))

    def decay(masses: Array, pointers: Array, factor: Array) -> Any:
        return masses * factor, pointers.at[:, 1].multiply(factor)

    return Walk(insert, find, decay, store, pointers, not forgets, read)


@jax.jit
def running_order_statistic(scores: Float[Array, " T"], ranks: Int[Array, "T A"]) -> Float[Array, "T A"]:
    """
    Follow order statistics through a growing sample: entry (n - 1, a) is the ``ranks[n - 1, a]``-th of ``scores[:n]``.

    Down each column a rank may stay or grow by one, so that a pointer moves by at most one place a round.
    """
    size = scores.shape[0]
    order = jnp.argsort(scores, stable=True).astype(jnp.int32)
    place = jnp.zeros(size, jnp.int32).at[order].set(jnp.arange(size, dtype=jnp.int32))
    _, insertions = unlink(linked(size, jnp.asarray(size, jnp.int32)), place)

    def follow(column: Int[Array, " T"]) -> Int[Array, " T"]:
        def step(carry: Any, arrival: Any) -> Any:
            nodes, pointer, rank = carry
            insertion, wanted = arrival
            nodes, here = link(nodes, insertion), insertion.here
            rank = jnp.where(here < pointer, rank + 1, rank)  # the new score slipped in below the pointer
            before, after = take(nodes.before, pointer), take(nodes.after, pointer)
            moved = jnp.where(rank > wanted, before, jnp.where(rank < wanted, after, pointer))
            pointer = jnp.where(pointer >= size, here, moved)  # the first score of all
            return (nodes, pointer, wanted), pointer

        nothing, high_end = linked(size, jnp.zeros((), jnp.int32)), jnp.asarray(size + 1, jnp.int32)
        return lax.scan(step, (nothing, high_end, jnp.zeros((), ranks.dtype)), (insertions, column))[1]

    in_order = scores[order]
    return lax.map(lambda column: in_order[follow(column)], ranks.T).T


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


def pit_walk(masses: Num[Array, " N"], levels: Float[Array, "1"]) -> Walk:
    """
    Weigh what lies below each round's own score, the PIT; a row of the walk is (:class:`Arrivals`, places, share).

    ``masses`` are those of :func:`tree_walk`. ``places`` is how many of the values lie below the round's score, and
    ``share`` the prior's cdf there.
    """
    tree = fenwick(masses)

    def find(tree: Array, row: Any, level: Array, pointer: Any) -> Num[Array, "2"]:
        def add(state: Any) -> Any:
            index, total = state
            return index & (index - 1), total + take(tree, index)

        _, total = lax.while_loop(lambda state: state[0] > 0, add, (row[1], jnp.zeros((), tree.dtype)))
        return jnp.stack([total, total])

    def read(found: Any, rows: Any, levels: Array) -> Array:
        arrivals, _, share = rows
        mass = arrivals.atom[:, None] * found[..., 0].astype(share.dtype)
        return jnp.minimum(arrivals.prior_weight[:, None] * share[:, None] + mass, 1)  # rounding only

    return _tree_walk(tree, levels, lambda tree, row, first: insert(tree, row[0], first), find, read)


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
