"""
States that carry on: how many scores they have seen, room for more, and scores that are still on their way.

With a delay a score becomes known some rounds after its own. What is observed in each round is then a second
:class:`dpconformal.rounds.Rounds`, and the state that is left is a :class:`Delayed`.
"""

from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Int

from dpconformal.learner import Learner, SizedLearner, State, fresh_state, support_of
from dpconformal.rounds import Rounds
from dpconformal.validation import checked_scores, is_traced, raise_at

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


def joint_count(first: Int[Array | np.ndarray, ""], second: Int[Array | np.ndarray, ""]) -> Int[Array, ""]:
    """Count the scores of two states together; -1 if a state was invalid, or the sum is more than the dtype holds."""
    total = first + second  # wraps to a negative number, if at all
    return jnp.where((first >= 0) & (second >= 0) & (total >= 0), total, -1).astype(first.dtype)


def rounds_after(seen: Any, rounds: int) -> list[tuple[int, int]]:
    """
    List the rounds to come after states that may have seen unequal numbers of scores, as (first, last) of each stretch.

    Both ends are included. There is one stretch where it is hardly longer than the parts.
    """
    counts = np.unique(np.asarray(seen)).astype(np.int64)
    if not counts.size:
        return []
    if counts[-1] + rounds - counts[0] <= counts.size * rounds:
        return [(int(counts[0]) + 1, int(counts[-1]) + rounds)]
    return [(int(count) + 1, int(count) + rounds) for count in counts]


def room_to_count(state: S, rounds: int) -> S:
    """
    Make sure, on the host, that a state with a field ``seen``, or a batch of them, can count the scores to come.

    Ordinary states count in 32 bits. One that is about to pass 2^31 - 1 scores gets 64, in all its whole numbers. A
    traced state is left as it is: inside ``jit`` a count that would wrap marks the state as invalid.
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
    """Give all whole numbers of a state 64 bits."""

    def widen(leaf: Any) -> Any:
        return leaf.astype(np.int64) if jnp.issubdtype(leaf.dtype, jnp.signedinteger) else leaf

    return jax.tree.map(widen, state)


def state_to_carry_on(learner: Learner, scores: Any, state: State, weighted: bool) -> tuple[Any, State]:
    """
    Check the user's state and make room in it for the scores; both come back in a common dtype.

    ``weighted``: Whether the scores to come have weights, so that masses need not be whole numbers.
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
    fields = jax.tree_util.tree_leaves_with_path(state)
    for (path, leaf), single in zip(fields, jax.tree.leaves(pattern), strict=True):
        if leaf.shape[: max(leaf.ndim - single.ndim, 0)] != batch:
            raise ValueError(
                f"state{jax.tree_util.keystr(path)} has shape {leaf.shape}: its leading axes must be those of "
                f"the scores, {batch}"
            )
        whole = jnp.issubdtype(single.dtype, jnp.integer) and not jnp.issubdtype(leaf.dtype, jnp.integer)
        if whole and not weighted:
            raise ValueError(
                f"state{jax.tree_util.keystr(path)} has dtype {leaf.dtype}, and {type(learner).__name__} counts whole "
                "scores: it was made with a discount or with weights; carry on as the run before was made"
            )
    kinds = [leaf.dtype for _, leaf in fields if jnp.issubdtype(leaf.dtype, jnp.floating)]
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


class Delayed(NamedTuple):
    """
    Where a run with a delay carries on: what is known, and what is on its way.

    Attributes
    ----------
    state : State
        The learner's own, after the scores that are known.
    delay : Array of int, shape (...)
        How many rounds late a score becomes known.
    waiting : Rounds
        The newest scores, W of them, with no levels, where W is the longest delay of the batch: the first becomes known
        at the end of the next round if the delay is W. Of a shorter delay the first places are empty.

    Examples
    --------
    >>> import dpconformal as dpc
    >>> run = dpc.replay(dpc.Exact(), [0.2, 0.4, 0.6], levels=[0.5], delay=2)
    >>> int(run.state.state.seen), run.state.waiting.scores
    (1, Array([0.4, 0.6], dtype=float...))
    """

    state: State
    delay: Int[Array | np.ndarray, "..."]
    waiting: Rounds


def checked_delay(delay: Any) -> int | np.ndarray:
    """Check how many rounds late scores become known."""
    if is_traced(delay):
        raise ValueError(
            "delay is being traced: how many scores are on their way is the shape of a state, which jit must know; "
            "pass a plain number, or mark it as static (jax.jit(..., static_argnames='delay'))"
        )
    if isinstance(delay, np.ma.MaskedArray):
        raise ValueError("delay is a masked array, whose mask would be lost: fill it")
    array = np.asarray(delay)
    if array.dtype.kind not in "iu":
        raise ValueError(f"delay = {delay!r}: pass how many rounds late a score becomes known, a whole number from 0")
    raise_at("delay", array, (array < 0) | (array >= 2**31), "a whole number of rounds, from 0")
    return array.astype(np.int32) if array.ndim else int(array)


def leading_axes(delay: int | np.ndarray | Array, batch: tuple[int, ...]) -> tuple[int, ...]:
    """Find the leading axes of a run, which are those of the scores and of the delay together."""
    try:
        return np.broadcast_shapes(np.shape(delay), batch)
    except ValueError:
        raise ValueError(
            f"delay has shape {np.shape(delay)}: it must broadcast against the leading axes of the scores, {batch}"
        ) from None


def split_delayed_state(
    learner: Learner, state: State, delay: Any, batch: tuple[int, ...], context: Any = None
) -> tuple[State, Rounds | None]:
    """Take apart the state that a run carries on from: the learner's own, and what is on its way, None for nothing."""
    if not isinstance(state, Delayed):
        return state, None
    waiting: Any = state.waiting
    width, longest = np.shape(waiting.scores)[-1], int(np.max(delay, initial=0))
    own = np.full(np.shape(state.delay), width) if is_traced(state.delay) else np.asarray(state.delay)
    if not is_traced(state.delay) and (own.shape != batch or (own != delay).any()):
        shown = own.ravel()[0] if np.unique(own).size == 1 else own.tolist()
        asked = np.asarray(delay).tolist()
        raise ValueError(
            f"delay = {asked}: the state is that of a run with delay {shown}, with leading axes {own.shape}, and the "
            f"scores have {batch}; pass the delay that it was made with, or state.state to forget what is on its way"
        )
    if np.shape(waiting.scores) != (*batch, width) or np.shape(waiting.observed) != (*batch, width) or width < longest:
        raise ValueError(
            f"state.waiting.scores has shape {np.shape(waiting.scores)}: a run with leading axes {batch} and delay "
            f"{longest} waits for {longest} scores in each sequence"
        )
    if (waiting.context is None) != (context is None):
        raise ValueError(
            "state.waiting.context does not suit the learner: pass the state of a run of this learner, context and all"
        )
    scores = checked_scores(waiting.scores, support_of(learner), "state.waiting.scores")
    if is_traced(state.delay):  # nothing can raise: what follows is NaN
        fits = jnp.broadcast_to(jnp.asarray(delay, state.delay.dtype), batch) == state.delay
        scores = jnp.where(fits[..., None], scores, jnp.nan)
    return state.state, waiting._replace(scores=scores)


def spread_rounds(tree: Any, axes: int, batch: tuple[int, ...]) -> Any:
    """Repeat what belongs to the scores for every delay."""

    def repeat(leaf: Any) -> Any:
        xp = np if isinstance(leaf, np.ndarray) else jnp
        new = (1,) * (len(batch) - axes) + leaf.shape
        return xp.broadcast_to(xp.reshape(leaf, new), batch + leaf.shape[axes:])

    return jax.tree.map(repeat, tree)


def feedback_stream(learner: Learner, delay: int | np.ndarray | Array, own: Rounds, waiting: Rounds | None) -> Rounds:
    """Return what becomes known in each round: the score of that many rounds before."""
    return _take_last(learner, _join_waiting(own, waiting), own.length, delay)


def pending_feedback(learner: Learner, delay: int | np.ndarray | Array, own: Rounds, waiting: Rounds | None) -> Rounds:
    """Return what is not known yet after the last round."""
    longest = int(np.max(delay, initial=0))
    found = _take_last(learner, _join_waiting(own, waiting), longest, 0)
    late = np.broadcast_to(delay, own.batch)[..., None]
    return _fill_missing(learner, found, np.arange(longest) >= longest - late)


def _join_waiting(own: Rounds, waiting: Rounds | None) -> Rounds:
    """Put what was on its way before the first round; what is not traced stays on the host."""
    observed = np.ones(own.scores.shape, bool) if own.observed is None else own.observed
    own, axis = own._replace(observed=observed), own.scores.ndim - 1

    def joined(*leaves: Any) -> Any:
        xp = _namespace(leaves)
        return xp.concatenate([xp.asarray(leaf) for leaf in leaves], axis=axis)

    return jax.tree.map(joined, *((own,) if waiting is None else (waiting, own)))


def _take_last(learner: Learner, both: Rounds, count: int, delay: Any) -> Rounds:
    """Take for each of the last places what stands ``delay`` places before it; there is nothing before the first."""
    batch, places, xp = both.batch, both.length, _namespace(delay)
    place = np.arange(places - count, places, dtype=np.int32)
    late = xp.asarray(delay, np.int32)
    if late.ndim:  # a list of places for each sequence
        late = xp.broadcast_to(late, batch)[..., None]
    index = xp.broadcast_to(xp.asarray(place), (*late.shape[:-1], count)) - late

    def take(leaf: Any) -> Any:
        xp, extra = _namespace(leaf, index), leaf.shape[len(batch) + 1 :]
        if not places:
            return xp.zeros((*batch, count, *extra), leaf.dtype)
        inside = xp.maximum(xp.asarray(index), 0)
        if late.ndim == 0:
            return xp.take(leaf, inside, axis=len(batch))
        return xp.take_along_axis(leaf, inside.reshape(inside.shape + (1,) * len(extra)), axis=len(batch))

    return _fill_missing(learner, jax.tree.map(take, both), xp.broadcast_to(index >= 0, (*batch, count)))


def _fill_missing(learner: Learner, feedback: Rounds, there: Any) -> Rounds:
    """Mark what is not there: for its score stands a number in the support, at which a learner may look."""
    observed, ends = feedback.observed & there, support_of(learner)
    xp = _namespace(feedback.scores, observed, ends)
    nothing = xp.clip(xp.zeros((), feedback.scores.dtype), *(xp.asarray(end, feedback.scores.dtype) for end in ends))
    return feedback._replace(scores=xp.where(observed, feedback.scores, nothing), observed=observed)


def _namespace(*values: Any) -> Any:
    """Return ``jax.numpy`` if something is traced, else ``numpy``: what is not traced stays on the host."""
    return jnp if is_traced(*values) else np
