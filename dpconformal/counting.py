"""How many scores a state has seen: 32 bits, and 64 where those are too few."""

from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Int

from dpconformal.validation import is_traced

MOST = 2**31 - 1  # what a count of 32 bits holds

S = TypeVar("S")


def advance(count: Int[Array, ""], fine: Bool[Array, ""]) -> Int[Array, ""]:
    """
    Count one more score, or mark the state as spoilt.

    Inside ``jit`` nothing can raise. A bad score, a full buffer or a count that holds no more sets the count to -1 for
    good, and a belief with a negative count answers NaN to everything.
    """
    fine = fine & (count >= 0) & (count < jnp.iinfo(count.dtype).max)
    return jnp.where(fine, count + 1, -1).astype(count.dtype)


def joint_count(first: Int[Array, ""], second: Int[Array, ""]) -> Int[Array, ""]:
    """
    Count the scores of two states together, or mark the outcome as spoilt.

    Returns: The sum; -1 if a state was spoilt or the sum is more than the dtype holds.
    """
    total = first + second  # wraps to a negative number, if at all
    return jnp.where((first >= 0) & (second >= 0) & (total >= 0), total, -1).astype(first.dtype)


def rounds_after(seen: Any, rounds: int) -> list[tuple[int, int]]:
    """
    List the rounds to come after states that may have seen unequal numbers of scores.

    Returns: First and last round of each stretch, both included; one stretch where it is hardly longer than the parts.
    """
    counts = np.unique(np.asarray(seen)).astype(np.int64)
    if not counts.size:
        return []
    if counts[-1] + rounds - counts[0] <= counts.size * rounds:
        return [(int(counts[0]) + 1, int(counts[-1]) + rounds)]
    return [(int(count) + 1, int(count) + rounds) for count in counts]


def room_to_count(state: S, rounds: int) -> S:
    """
    Make sure, on the host, that a state can count the scores to come.

    Ordinary states count in 32 bits. One that is about to pass 2^31 - 1 scores gets 64, in all its whole numbers.

    ``state``: With a field ``seen``, also in a batch. A traced one is left as it is: inside ``jit`` a count that would
    wrap marks the state as spoilt.
    """
    seen: Any = state.seen  # type: ignore[attr-defined]
    if is_traced(seen):
        return state
    latest = int(np.max(np.asarray(seen), initial=0))
    if latest + rounds <= MOST:
        return state
    if not jax.config.read("jax_enable_x64"):
        raise ValueError(
            f"state.seen = {latest}: with {rounds} more a count of 32 bits overflows; enable 64-bit JAX "
            "(jax_enable_x64)"
        )
    return _wide(state)


def check_countable(state: Any) -> None:
    """Refuse a state whose counts JAX would cut down to 32 bits without a word."""
    if np.dtype(state.seen.dtype) == np.int64:
        room_to_count(state, 0)


def ready_to_merge(first: S, second: S) -> tuple[S, S]:
    """Make sure, on the host, that the scores of two states can be counted together."""
    counts: Any = first.seen, second.seen  # type: ignore[attr-defined]
    if not is_traced(counts):
        first = room_to_count(first, max(int(counts[1]), 0))
        second = room_to_count(second, max(int(counts[0]), 0))
    widths = {np.dtype(state.seen.dtype).itemsize for state in (first, second)}  # type: ignore[attr-defined]
    return (first, second) if len(widths) == 1 else (_wide(first), _wide(second))


def _wide(state: S) -> S:
    def widen(leaf: Any) -> Any:
        return leaf.astype(np.int64) if jnp.issubdtype(leaf.dtype, jnp.signedinteger) else leaf

    return jax.tree.map(widen, state)
