"""The k-th smallest of the first n scores, for every n at once, in O(T log T) and native loops."""

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Int

from dpconformal.offline.chain import Insertion, high_end, link, linked, unlink
from dpconformal.offline.loops import take


@jax.jit
def running_order_statistic(scores: Float[Array, " T"], ranks: Int[Array, "T A"]) -> Float[Array, "T A"]:
    """
    Follow order statistics through a growing sample.

    Offline, where each score will stand in the end is known. Deleting the scores from a linked list of
    those places in reverse order tells each one's insertions at the moment it arrived; replaying the
    insertions forwards, a pointer per column then moves by at most one place a round.

    ``ranks``: Row n - 1 holds ranks between 1 and n. Down each column a rank may stay or grow by one. Returns: Entry (n
    - 1, a) is the ``ranks[n - 1, a]``-th smallest of ``scores[:n]``.
    """
    size = scores.shape[0]
    order = jnp.argsort(scores, stable=True).astype(jnp.int32)
    place = jnp.zeros(size, jnp.int32).at[order].set(jnp.arange(size, dtype=jnp.int32))
    _, insertions = unlink(linked(size, jnp.asarray(size, jnp.int32)), place)
    in_order = scores[order]
    columns = lax.map(lambda column: in_order[_walk(insertions, column)], ranks.T)
    return columns.T


def _walk(insertions: Insertion, ranks: Int[Array, " T"]) -> Int[Array, " T"]:
    """Place of the wanted order statistic after each insertion."""
    size = ranks.shape[0]

    def step(carry: Any, arrival: Any) -> Any:
        chain, pointer, rank = carry
        insertion, wanted = arrival
        chain, here = link(chain, insertion), insertion.here
        rank = jnp.where(here < pointer, rank + 1, rank)  # the new score slipped in below the pointer
        before, after = take(chain.before, pointer), take(chain.after, pointer)
        moved = jnp.where(rank > wanted, before, jnp.where(rank < wanted, after, pointer))
        pointer = jnp.where(pointer >= size, here, moved)  # the first score of all
        return (chain, pointer, wanted), pointer

    nothing = linked(size, jnp.zeros((), jnp.int32))
    start = (nothing, jnp.asarray(high_end(size), jnp.int32), jnp.zeros((), ranks.dtype))
    return lax.scan(step, start, (insertions, ranks))[1]
