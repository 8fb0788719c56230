"""Scores that become known some rounds later: the delay, checked, and the state that a run with one carries on from."""

from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from dpconformal.checks import complain_at, is_traced
from dpconformal.inputs import checked_scores
from dpconformal.learner import State, support_of


class Told(NamedTuple):
    """
    Scores as a learner is told of them.

    Attributes
    ----------
    scores : array, shape (..., T)
        A number in the support where there is none.
    observed : array of bool, shape (..., T), or None
        False where there is none; None: all are there.
    context : pytree of array, shape (..., T, ...), or None
        Of the rounds that the scores belong to.
    """

    scores: Float[Array | np.ndarray, "*B T"]  # (..., T)
    observed: Bool[Array | np.ndarray, "*B T"] | None = None  # (..., T)
    context: Any = None  # (..., T, ...)


class Delayed(NamedTuple):
    """
    Where a run with a delay carries on: what is known, and what is on its way.

    Attributes
    ----------
    state : State
        The learner's own, after the scores that are known.
    delay : Array of int, shape (...)
        How many rounds late a score becomes known.
    waiting : Told
        The newest scores, W of them, where W is the longest delay of the batch: the first becomes known at the end of
        the next round if the delay is W. Of a shorter delay the first places are empty.

    Examples
    --------
    >>> import dpconformal as dpc
    >>> run = dpc.replay(dpc.Exact(), [0.2, 0.4, 0.6], levels=[0.5], delay=2)
    >>> int(run.state.state.seen), run.state.waiting.scores
    (1, Array([0.4, 0.6], dtype=float...))
    """

    state: State
    delay: Int[Array | np.ndarray, "..."]  # (...)
    waiting: Told  # (..., W)


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
    complain_at("delay", array, (array < 0) | (array >= 2**31), "a whole number of rounds, from 0")
    return array.astype(np.int32) if array.ndim else int(array)


def leading_axes(delay: Any, batch: tuple[int, ...]) -> tuple[int, ...]:
    """Find the leading axes of a run."""
    try:
        return np.broadcast_shapes(np.shape(delay), batch)
    except ValueError:
        raise ValueError(
            f"delay has shape {np.shape(delay)}: it must broadcast against the leading axes of the scores, {batch}"
        ) from None


def taken_up(
    learner: Any, state: State, delay: Any, batch: tuple[int, ...], context: Any = None
) -> tuple[State, Told | None]:
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
