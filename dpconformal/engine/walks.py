"""
Walks from neighbour to neighbour: through a linked list of the scores in order of size, or through bins.

One pointer per level moves by about one place a round: O(1) a round, however many scores or bins there are.

Offline, where each score will stand among all of them is known. Deleting the scores in reverse order of arrival tells
each one's neighbours at the moment it came; inserted again, forwards, they are followed without a tree.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Int, Num

from dpconformal.engine.pointer_loop import (
    Arrivals,
    Walk,
    cdf_of_many,
    decay_in_place,
    make_monotone,
    put,
    quantiles_between_atoms,
    take,
)


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
