"""The k-th smallest of the first n scores, for every n at once, in O(T log T) and native loops."""

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Int


@jax.jit
def running_order_statistic(scores: Float[Array, " T"], ranks: Int[Array, "T A"]) -> Float[Array, "T A"]:
    """
    Follow order statistics through a growing sample.

    Offline, where each score will stand in the end is known. Deleting the scores from a linked list of
    those places in reverse order tells each one's neighbours at the moment it arrived; replaying the
    insertions forwards, a pointer per column then moves by at most one place a round.

    Parameters
    ----------
    scores : Array, shape (T,)
        The sample, in order of arrival.
    ranks : Array, shape (T, A)
        Row n - 1 holds ranks between 1 and n. Down each column a rank may stay or grow by one.

    Returns
    -------
    Array, shape (T, A)
        Entry (n - 1, a) is the ``ranks[n - 1, a]``-th smallest of ``scores[:n]``.

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> running_order_statistic(jnp.array([0.3, 0.1, 0.2]), jnp.array([[1], [1], [2]])).ravel()
    Array([0.3, 0.1, 0.2], dtype=float...)
    """
    size = scores.shape[0]
    order = jnp.argsort(scores, stable=True).astype(jnp.int32)
    place = jnp.zeros(size, jnp.int32).at[order].set(jnp.arange(size, dtype=jnp.int32))
    left, right = _neighbours_on_arrival(place)
    in_order = scores[order]
    columns = lax.map(lambda column: in_order[_walk(place, left, right, column)], ranks.T)
    return columns.T


def _neighbours_on_arrival(place: Int[Array, " T"]) -> tuple[Int[Array, " T"], Int[Array, " T"]]:
    """Places of the next smaller and next larger earlier score; place `size` stands for none."""
    size = place.shape[0]
    # Slot `size` is the sentinel at both ends of the ring.
    before = jnp.roll(jnp.arange(size + 1, dtype=jnp.int32), 1)
    after = jnp.roll(jnp.arange(size + 1, dtype=jnp.int32), -1)

    def delete(carry: Any, here: Array) -> Any:
        before, after, left, right = carry
        # Carry out the last round's deletion, then read: a buffer that is read first is copied whole.
        before, after = before.at[right].set(left), after.at[left].set(right)
        left, right = before[here], after[here]
        return (before, after, left, right), (left, right)

    nothing = jnp.asarray(size, jnp.int32), jnp.asarray(0, jnp.int32)  # already linked: nothing to do
    _, (left, right) = lax.scan(delete, (before, after, *nothing), place, reverse=True)
    return left, right


def _walk(place: Array, left: Array, right: Array, ranks: Array) -> Int[Array, " T"]:
    """Place of the wanted order statistic after each insertion."""
    size = place.shape[0]
    before = jnp.full(size + 1, size, jnp.int32)
    after = jnp.full(size + 1, size, jnp.int32)

    def step(carry: Any, arrival: Any) -> Any:
        before, after, pointer, rank = carry
        here, left, right, wanted = arrival
        before = before.at[right].set(here).at[here].set(left)
        after = after.at[left].set(here).at[here].set(right)
        first = pointer == size
        rank = jnp.where(here < pointer, rank + 1, rank)  # the new score slipped in below the pointer
        moved = jnp.where(rank > wanted, before[pointer], jnp.where(rank < wanted, after[pointer], pointer))
        pointer = jnp.where(first, here, moved)
        return (before, after, pointer, wanted), pointer

    start = (before, after, jnp.asarray(size, jnp.int32), jnp.asarray(0, ranks.dtype))
    return lax.scan(step, start, (place, left, right, ranks))[1]
