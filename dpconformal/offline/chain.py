"""Scores in order of size as a linked chain: who stands next to whom, when each of them arrived."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Int

from dpconformal.offline.loops import put, take


class Chain(NamedTuple):
    """
    A doubly linked list over places 0, …, N - 1 of the final order of size.

    Attributes
    ----------
    before, after : Array, shape (N + 3,)
        Neighbours of each place. Three more places stand for no score: :func:`low_end`, :func:`high_end` and a
        place that is never linked, where writes that mean nothing go.
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


def low_end(size: int) -> int:
    """Return the place below every score."""
    return size


def high_end(size: int) -> int:
    """Return the place above every score."""
    return size + 1


def nowhere(size: int) -> int:
    """Return the place that is never linked."""
    return size + 2


def linked(size: int, count: Int[Array, ""]) -> Chain:
    """
    Link the first places in order.

    Returns: low end ↔ 0 ↔ 1 ↔ … ↔ count - 1 ↔ high end.
    """
    place = jnp.arange(size + 3, dtype=jnp.int32)
    low, high = low_end(size), high_end(size)
    count = count.astype(jnp.int32)
    first, last = jnp.where(count > 0, 0, high), jnp.where(count > 0, count - 1, low)
    before, after = place - 1, jnp.where(place == count - 1, high, place + 1).astype(jnp.int32)
    # The ends point to themselves, and so does what is never linked: to take it out changes nothing.
    ends = jnp.array([low, high, nowhere(size)], jnp.int32)
    before = before.at[0].set(low).at[ends].set(ends).at[high].set(last.astype(jnp.int32))
    after = after.at[ends].set(ends).at[low].set(first.astype(jnp.int32))
    return Chain(before, after)


@jax.jit
def unlink(chain: Chain, places: Int[Array, " T"]) -> tuple[Chain, Insertion]:
    """
    Take scores out again, the latest first.

    Returns: The chain as it was before the first of them arrived; and for each what :func:`link` needs to put it back.
    """

    def out(carry: tuple[Chain, Array, Array], here: Array) -> tuple[tuple[Chain, Array, Array], Insertion]:
        chain, below, above = carry
        # Carry out the last step's deletion, then read: a buffer that is read first would be copied whole.
        chain = Chain(put(chain.before, above, below), put(chain.after, below, above))
        below, above = take(chain.before, here), take(chain.after, here)
        return (chain, below, above), Insertion(here, below, above)

    idle = jnp.asarray(chain.before.shape[0] - 1, jnp.int32)
    (chain, below, above), insertions = lax.scan(out, (chain, idle, idle), places, reverse=True)
    return Chain(put(chain.before, above, below), put(chain.after, below, above)), insertions


def link(chain: Chain, insertion: Insertion) -> Chain:
    """Put a score back between its neighbours."""
    here, below, above = insertion
    return Chain(put(put(chain.before, above, here), here, below), put(put(chain.after, below, here), here, above))
