"""The one driver: predict, then observe, round by round."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float

from dpconformal.checks import Numbers
from dpconformal.inputs import as_levels, as_scores
from dpconformal.learner import Learner, State, fresh_state, support_of


class Replay(NamedTuple):
    """
    What a replay leaves behind. ``Replay(thresholds, None, scores, levels)`` wraps any method's output.

    Attributes
    ----------
    thresholds : Array, shape (..., T, A)
        Row t was computed from ``scores[..., :t]`` alone.
    state : State
        After the last score; pass it to the next :func:`replay` or to ``learner.observe``.
    scores : Array, shape (..., T)
        The scores as they were used.
    levels : Array, shape (A,) or (..., T, A)
        The levels as they were used; with as many axes as the thresholds if they change by round.
    learner : Learner, optional
        Who made the thresholds.
    start : State, optional
        The state before the first score; None for a fresh one.
    """

    thresholds: Float[Array, "*B T A"]
    state: State
    scores: Float[Array, "*B T"]
    levels: Float[Array, "..."]
    learner: Any = None
    start: State = None


def replay(learner: Learner, scores: Numbers, levels: Numbers, state: State = None) -> Replay:
    """
    Run a learner over recorded scores: in each round predict thresholds, then observe the score.

    Parameters
    ----------
    learner : Learner
        Any method: a belief, a baseline, or your own.
    scores : array_like, shape (T,) or (..., T)
        Nonconformity scores in time order; leading axes are independent sequences.
    levels : array_like, shape (A,) or (T, A)
        Confidence levels in [0, 1], the same every round or one row a round.
    state : State, optional
        Where to carry on, from an earlier run or from ``learner.observe``, with the same leading axes
        as the scores. The result is as if the run had never been interrupted.

    Returns
    -------
    Replay
        Thresholds of shape (..., T, A), and the state to carry on with.

    Raises
    ------
    ValueError
        Naming the argument, the index and the value, before anything runs.

    Notes
    -----
    Works inside ``jit``, ``vmap`` and ``grad``, over scores and over any hyperparameter. Traced input
    cannot be checked: there, a bad score or hyperparameter gives NaN thresholds from its round on.

    Examples
    --------
    >>> import dpconformal as dpc
    >>> run = dpc.replay(dpc.Exact(), [0.2, 0.4, 0.6], levels=[0.5, 0.9])
    >>> run.thresholds.round(3)
    Array([[0.5  , 0.9  ],
           [0.293, 0.859],
           [0.4  , 0.827]], dtype=float...)
    """
    if not isinstance(learner, Learner) or isinstance(learner, type):
        hint = "an instance, with brackets" if isinstance(learner, type) else "a learner such as dpconformal.Exact()"
        raise ValueError(f"learner = {learner!r}: pass {hint}")
    if any(leaf is learner for leaf in jax.tree.leaves(learner)):
        raise ValueError(f"learner = {learner!r}: not a pytree; register its class, see dpconformal.pytree.register")
    scores = as_scores(scores, support_of(learner))
    if scores.ndim == 0:
        raise ValueError("scores has shape (): pass a sequence, shape (T,) or (..., T)")
    scores, begin = starting_state(learner, scores, state)
    levels = _shaped_levels(levels, scores)
    thresholds, end = drive(_thresholds, learner, begin, scores, levels)
    if levels.ndim == 2:  # as many axes as the thresholds: what vmap over a replay returns reads the same
        levels = jnp.broadcast_to(levels, thresholds.shape)
    return Replay(thresholds, end, scores, levels, learner, state)


def _shaped_levels(levels: Numbers, scores: Array) -> Array:
    levels = as_levels(levels, scores.dtype)
    rounds = scores.shape[-1]
    if levels.ndim not in (1, 2) or (levels.ndim == 2 and levels.shape[0] != rounds) or levels.shape[-1] == 0:
        raise ValueError(
            f"levels has shape {levels.shape}: pass (A,), such as [0.9], or (T, A) with T = {rounds} rows; A ≥ 1"
        )
    return levels


def starting_state(learner: Learner, scores: Array, state: State) -> tuple[Array, State]:
    """
    Make the state from which a run over the scores begins.

    Parameters
    ----------
    learner : Learner
        The learner.
    scores : Array, shape (..., T)
        Checked scores.
    state : State or None
        The user's state, to carry on from.

    Returns
    -------
    tuple
        The scores and a state with their leading axes, in a common dtype that loses nothing.

    Raises
    ------
    ValueError
        If the state is not one of this learner's, or has other leading axes.
    """
    batch, rounds = scores.shape[:-1], scores.shape[-1]
    if state is None:
        fresh = fresh_state(learner, rounds, scores.dtype)
        return scores, jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, batch + leaf.shape), fresh)
    pattern = jax.eval_shape(lambda: fresh_state(learner, 1, scores.dtype))
    if jax.tree.structure(state) != jax.tree.structure(pattern):  # type: ignore[operator]
        raise ValueError(
            f"state is a {type(state).__name__}: {type(learner).__name__} carries on from a "
            f"{type(pattern).__name__}, such as run.state"
        )
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
    prepare = getattr(learner, "prepare", None)
    return scores.astype(dtype), prepare(state, rounds) if prepare else state


# What is read off a learner in a round: (learner, state, score, query) -> answer.
Reader = Callable[[Any, State, Array, Array], Any]


def _thresholds(learner: Any, state: State, score: Array, levels: Array) -> Array:
    return learner.quantile(state, levels)


def drive(read: Reader, learner: Learner, state: State, scores: Array, query: Array) -> tuple[Any, State]:
    """
    Read off a learner before each score, over one sequence or a batch of them.

    Parameters
    ----------
    read : callable
        What to read in a round, from the state before the score.
    learner : Learner
        The learner.
    state : State
        With the leading axes of the scores.
    scores : Array, shape (..., T)
        Checked scores.
    query : Array, shape (Q,) or (T, Q)
        Handed to ``read``: the same every round, or a row a round.

    Returns
    -------
    tuple
        Answers, with axes (..., T) in front, and the final state.
    """
    batch = scores.shape[:-1]
    if not batch:
        return _scan(read, learner, state, scores, query)
    count = int(np.prod(batch))
    flat = jax.tree.map(lambda leaf: leaf.reshape((count, *leaf.shape[len(batch) :])), (state, scores))
    answers, end = _scan_batch(read, learner, *flat, query)
    return jax.tree.map(lambda leaf: leaf.reshape(batch + leaf.shape[1:]), (answers, end))


@jax.jit(static_argnames="read")
def _scan(read: Reader, learner: Any, state: State, scores: Array, query: Array) -> tuple[Any, State]:
    per_round = query.ndim == 2

    def one_round(state: State, given: Any) -> tuple[State, Any]:
        score, row = given
        answer = read(learner, state, score, row if per_round else query)  # predict: only the past is read
        return learner.observe(state, score), answer  # then observe

    end, answers = lax.scan(one_round, state, (scores, query if per_round else None))
    return answers, end


@jax.jit(static_argnames="read")
def _scan_batch(read: Reader, learner: Any, state: State, scores: Array, query: Array) -> tuple[Any, State]:
    return jax.vmap(lambda state, scores: _scan(read, learner, state, scores, query))(state, scores)
