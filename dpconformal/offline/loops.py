"""
One loop over rounds and levels that XLA compiles into a single native kernel.

Two facts about XLA on a CPU shape this file. A buffer that is read and then written in a loop body is copied whole, so
every write here comes first: what a step decides is carried as *pending* and written by the next step. And a loop
becomes native code only if its body touches few bytes (about a kilobyte, by XLA's own reckoning), so a step handles one
level of one round, and the numbers that make up a pointer travel as one short row.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Int, Num

Arrive = Callable[[Any, Any, Array], Any]
Locate = Callable[[Any, Any, Array, Array], Array]


def take(buffer: Array, index: Int[Array, ""]) -> Array:
    """Read one entry of a buffer."""
    start = (index, *(jnp.zeros_like(index),) * (buffer.ndim - 1))
    return lax.dynamic_slice(buffer, start, (1, *buffer.shape[1:]), allow_negative_indices=False)[0]


def put(buffer: Array, index: Int[Array, ""], entry: Array) -> Array:
    """
    Write one entry of a buffer.

    Returns: The buffer with the entry in it; in place where the old buffer is not read again.
    """
    start = (index, *(jnp.zeros_like(index),) * (buffer.ndim - 1))
    return lax.dynamic_update_slice(buffer, entry[None], start, allow_negative_indices=False)


def walk(
    arrive: Arrive,
    locate: Locate,
    store: Any,
    pointers: Num[Array, "A P"],
    rows: Any,
    levels: Float[Array, "..."],
    nested: bool,
) -> tuple[Any, Num[Array, "A P"], Num[Array, "T A P"]]:
    """
    Let one pointer per level follow a store of scores through the rounds.

    ``arrive``: ``(store, row, first) -> store``: take in the score that arrived since the last round. Unless loops are
    nested it is called for every level; ``first`` tells the first of them. ``nested``: A loop over levels within one
    over rounds: less work, and more bytes. One flat loop over both otherwise. Returns: The store and the pointers after
    the last round, and the pointers of every round.
    """
    rounds, count = jax.tree.leaves(rows)[0].shape[0], levels.shape[-1]
    per_round = levels.ndim == 2
    levels = levels.reshape(-1)
    none, all_levels, all_rounds = (jnp.asarray(n, jnp.int32) for n in (0, count, rounds))
    # The record tells where each pointer stood a round ago: entry (t + 1) · A + a is round t, level a.
    record = jnp.concatenate([pointers, jnp.zeros((rounds * count, pointers.shape[1]), pointers.dtype)])
    stop = (all_rounds + 1) * all_levels

    def row_of(t: Array) -> Any:
        return jax.tree.map(lambda column: take(column, t), rows)

    def ask(store: Any, row: Any, entry: Array, a: Array, record: Array, pending: Array) -> tuple[Array, Array]:
        record = put(record, entry - 1, pending)
        level = take(levels, entry - all_levels if per_round else a)
        return record, locate(store, row, level, take(record, entry - all_levels))

    def one_round(t: Array, carry: Any) -> Any:
        store, record, pending = carry
        row, entry = row_of(t), (t + 1) * all_levels
        store = arrive(store, row, jnp.asarray(True))
        return store, *lax.fori_loop(
            none, all_levels, lambda a, c: ask(store, row, entry + a, a, *c), (record, pending)
        )

    def one_step(entry: Array, carry: Any) -> Any:
        store, record, pending = carry
        row, a = row_of(lax.div(entry, all_levels) - 1), lax.rem(entry, all_levels)
        store = arrive(store, row, a == 0)
        return store, *ask(store, row, entry, a, record, pending)

    start = (store, record, pointers[-1])
    if nested:
        store, record, pending = lax.fori_loop(none, all_rounds, one_round, start)
    else:
        store, record, pending = lax.fori_loop(all_levels, stop, one_step, start)
    record = put(record, stop - 1, pending)
    return store, record[-count:], record[count:].reshape(rounds, count, pointers.shape[1])
