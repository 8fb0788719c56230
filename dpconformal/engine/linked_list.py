"""
Scores in order of size as a doubly linked list: who stands next to whom, when each of them arrived.

Offline, where each score will stand among all of them is known. Deleting the scores in reverse order of arrival tells
each one's neighbours at the moment it came; inserted again, forwards, they are followed by one pointer per level, which
moves by about one place a round: O(1) a round, without a tree.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Int

from dpconformal.engine.gaps import cdf_of_many, quantiles_between_atoms
from dpconformal.engine.pointer_loop import Walk, put, take


class LinkedList(NamedTuple):
    """
    A doubly linked list over places 0, …, N - 1 of the final order of size.

    Attributes
    ----------
    before, after : Array, shape (N + 3,)
        Neighbours of each place. Three more places stand for no score: N is below every score, N + 1 above every
        score, and N + 2, :func:`null_node`, is never linked: writes that mean nothing go there.
    """

    before: Int[Array, " N+3"]  # (N + 3,)
    after: Int[Array, " N+3"]  # (N + 3,)


class Insertion(NamedTuple):
    """
    Where a score goes, or many.

    Attributes
    ----------
    here : Array, shape (...)
        Its place.
    below, above : Array, shape (...)
        Its neighbours at the moment it arrives.
    """

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
    about one; the pointer moves until it is right, however far that is.

    Returns: A walk over rows (insertion of the score that came in since the round before, prior's share, mass of an
    atom).
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
        prior_weight, atom = rows[1][:, None], rows[2][:, None]
        place, before, below = found[..., 0], found[..., 1], found[..., 2]
        mass = atom * below.astype(dtype)
        reached = prior_weight * share[place] + mass
        return quantiles_between_atoms(prior, prior_weight, mass, values[before], values[place], reached, levels)

    nothing = jnp.asarray(size, jnp.int32)  # the low end
    first = jnp.stack([take(nodes.after, nothing), nothing, jnp.zeros((), jnp.int32)])
    return Walk(insert, find, None, nodes, jnp.broadcast_to(first, (levels.shape[0], 3)), True, read)


@jax.jit
def running_order_statistic(scores: Float[Array, " T"], ranks: Int[Array, "T A"]) -> Float[Array, "T A"]:
    """
    Follow order statistics through a growing sample: entry (n - 1, a) is the ``ranks[n - 1, a]``-th of ``scores[:n]``.

    ``ranks``: Row n - 1 holds ranks between 1 and n. Down each column a rank may stay or grow by one, so that a pointer
    moves by at most one place a round.
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
