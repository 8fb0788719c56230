"""Scores that become known some rounds later: the delay, what is observed in each round, what is pending at the end."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int

from dpconformal.learner import State, support_of
from dpconformal.rounds import Rounds
from dpconformal.validation import checked_scores, is_traced, raise_at


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
    delay: Int[Array | np.ndarray, "..."]  # (...)
    waiting: Rounds  # (..., W)


def checked_delay(delay: Any) -> Any:
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


def leading_axes(delay: Any, batch: tuple[int, ...]) -> tuple[int, ...]:
    """Find the leading axes of a run."""
    try:
        return np.broadcast_shapes(np.shape(delay), batch)
    except ValueError:
        raise ValueError(
            f"delay has shape {np.shape(delay)}: it must broadcast against the leading axes of the scores, {batch}"
        ) from None


def split_delayed_state(
    learner: Any, state: State, delay: Any, batch: tuple[int, ...], context: Any = None
) -> tuple[State, Rounds | None]:
    """
    Take apart the state that a run carries on from.

    Returns: The learner's own state, and what is on its way: None for nothing.
    """
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


def feedback_stream(learner: Any, delay: Any, own: Rounds, waiting: Rounds | None) -> Rounds:
    """Tell what becomes known in each round: the score of that many rounds before."""
    both = _one_after_the_other(own, waiting)
    rounds, places = own.scores.shape[-1], both.scores.shape[-1]
    return _taken(learner, both, np.arange(places - rounds, places, dtype=np.int32), delay)


def pending_feedback(learner: Any, delay: Any, own: Rounds, waiting: Rounds | None) -> Rounds:
    """Tell what is not known yet after the last round."""
    both, longest = _one_after_the_other(own, waiting), int(np.max(delay, initial=0))
    places = both.scores.shape[-1]
    found = _taken(learner, both, np.arange(places - longest, places, dtype=np.int32), 0)
    late = np.broadcast_to(delay, own.scores.shape[:-1])[..., None]
    return _blank(learner, found, np.arange(longest) >= longest - late)


def _one_after_the_other(own: Rounds, waiting: Rounds | None) -> Rounds:
    """Put what was on its way before the first round; what is not traced stays on the host."""
    observed = np.ones(own.scores.shape, bool) if own.observed is None else own.observed
    own, axis = own._replace(observed=observed), own.scores.ndim - 1

    def joined(*leaves: Any) -> Any:
        xp = _namespace(leaves)
        return xp.concatenate([xp.asarray(leaf) for leaf in leaves], axis=axis)

    return jax.tree.map(joined, *((own,) if waiting is None else (waiting, own)))


def _taken(learner: Any, both: Rounds, place: np.ndarray, delay: Any) -> Rounds:
    """Take for each place what stands that many places before it; there is nothing before the first."""
    batch, places, xp = both.scores.shape[:-1], both.scores.shape[-1], _namespace(delay)
    late = xp.asarray(delay, np.int32)
    if late.ndim:  # a list of places for each sequence
        late = xp.broadcast_to(late, batch)[..., None]
    index = xp.broadcast_to(xp.asarray(place), (*late.shape[:-1], place.size)) - late

    def take(leaf: Any) -> Any:
        xp, extra = _namespace(leaf, index), leaf.shape[len(batch) + 1 :]
        if not places:
            return xp.zeros((*batch, place.size, *extra), leaf.dtype)
        inside = xp.maximum(xp.asarray(index), 0)
        if late.ndim == 0:
            return xp.take(leaf, inside, axis=len(batch))
        return xp.take_along_axis(leaf, inside.reshape(inside.shape + (1,) * len(extra)), axis=len(batch))

    return _blank(learner, jax.tree.map(take, both), xp.broadcast_to(index >= 0, (*batch, place.size)))


def _blank(learner: Any, feedback: Rounds, there: Any) -> Rounds:
    """Leave out what is not there: for its score stands a number in the support, at which a learner may look."""
    observed, ends = feedback.observed & there, support_of(learner)
    xp = _namespace(feedback.scores, observed, ends)
    nothing = xp.clip(xp.zeros((), feedback.scores.dtype), *(xp.asarray(end, feedback.scores.dtype) for end in ends))
    return feedback._replace(scores=xp.where(observed, feedback.scores, nothing), observed=observed)


def _namespace(*values: Any) -> Any:
    return jnp if is_traced(*values) else np
