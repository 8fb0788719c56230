"""States: how many scores they have seen, and carrying on from them."""

from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Int

from dpconformal.learner import Learner, SizedLearner, State, fresh_state
from dpconformal.validation import is_traced

MOST = 2**31 - 1  # what a count of 32 bits holds

S = TypeVar("S")


def advance(count: Int[Array, ""], valid: Bool[Array, ""]) -> Int[Array, ""]:
    """
    Count one more score, or mark the state as invalid.

    Inside ``jit`` nothing can raise. A bad score, a full buffer or a count that holds no more sets the count to -1 for
    good, and a belief with a negative count answers NaN to everything.
    """
    valid = valid & (count >= 0) & (count < jnp.iinfo(count.dtype).max)
    return jnp.where(valid, count + 1, -1).astype(count.dtype)


def joint_count(first: Int[Array, ""], second: Int[Array, ""]) -> Int[Array, ""]:
    """
    Count the scores of two states together, or mark the sum as invalid.

    Returns: The sum; -1 if a state was invalid or the sum is more than the dtype holds.
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
    wrap marks the state as invalid.
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


def state_to_carry_on(learner: Learner, scores: Any, state: State) -> tuple[Any, State]:
    """
    Check the user's state, and make room in it for the scores.

    Returns: The scores and the state, in a common dtype that loses nothing.
    """
    batch, rounds = scores.shape[:-1], scores.shape[-1]
    pattern = jax.eval_shape(lambda: fresh_state(learner, 1, scores.dtype))
    if jax.tree.structure(state) != jax.tree.structure(pattern):  # type: ignore[operator]
        raise ValueError(
            f"state is a {type(state).__name__}: {type(learner).__name__} carries on from a "
            f"{type(pattern).__name__}, such as run.state"
        )
    if hasattr(getattr(state, "seen", None), "dtype"):
        check_countable(state)
    state = jax.tree.map(jnp.asarray, state)
    for path, leaf in jax.tree_util.tree_leaves_with_path(state):
        extra = leaf.ndim - dict(jax.tree_util.tree_leaves_with_path(pattern))[path].ndim
        if leaf.shape[: max(extra, 0)] != batch:
            raise ValueError(
                f"state{jax.tree_util.keystr(path)} has shape {leaf.shape}: its leading axes must be those of "
                f"the scores, {batch}"
            )
    kinds = [leaf.dtype for leaf in jax.tree.leaves(state) if jnp.issubdtype(leaf.dtype, jnp.floating)]
    dtype = np.result_type(scores.dtype, *kinds)

    def widen(leaf: Array) -> Array:
        return leaf.astype(dtype) if jnp.issubdtype(leaf.dtype, jnp.floating) else leaf

    state = jax.tree.map(widen, state)
    return scores.astype(dtype), learner.prepare(state, rounds) if isinstance(learner, SizedLearner) else state


def broadcast_state(state: State, batch: tuple[int, ...]) -> State:
    """Give every sequence of a batch its own copy of a state."""
    if not batch:
        return state
    return jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, batch + leaf.shape), state)
