"""The generic driver: one scan for any learner, the oracle of every faster way."""

import functools
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import Mesh
from jaxtyping import Array

from dpconformal.checks import is_traced
from dpconformal.delays import Told
from dpconformal.devices import (
    apart,
    collected,
    everywhere,
    lay_out,
    layout_of,
    on_one_device,
    several_devices,
    spread_out,
)
from dpconformal.learner import Learner, State
from dpconformal.starting import spread
from dpconformal.totals import add_rounds, no_rounds

# What is read off a learner in a round: (learner, state, score, query, **given) -> answer.
Reader = Callable[..., Any]


def thresholds(learner: Any, state: State, score: Array, levels: Array, **given: Any) -> Array:
    """
    Read off the thresholds of a round.

    Parameters
    ----------
    learner : Learner
        The learner.
    state : State
        Before the round's score.
    score : Array, shape ()
        Not looked at.
    levels : Array, shape (A,)
        The levels.
    **given
        The round's ``context``, for a learner that takes one.

    Returns
    -------
    Array, shape (A,)
        Thresholds.
    """
    del score
    return learner.quantile(state, levels, **given)


def drive(
    read: Reader,
    learner: Learner,
    state: State,
    scores: Array | np.ndarray,
    query: Array,
    keep: str = "all",
    context: Any = None,
    observed: Array | np.ndarray | None = None,
    fresh: bool = False,
    late: Told | None = None,
) -> tuple[Any, State]:
    """
    Read off a learner before each score, over one sequence or a batch of them, each device its part of the batch.

    Parameters
    ----------
    read : callable
        What to read in a round, from the state before the score.
    learner : Learner
        The learner.
    state : State
        With the leading axes of the scores; that of one sequence, if it is fresh.
    scores : Array, shape (..., T)
        Checked scores. If they are committed to devices, these do the work. A NumPy array must not change before
        the answers are there.
    query : Array, shape (Q,) or (T, Q)
        Handed to ``read``: the same every round, or a row a round.
    keep : {"all", "summary"}
        Every answer, or the :class:`dpconformal.totals.Totals` of answers that are thresholds.
    context : Array, shape (..., T, ...), optional
        What else the learner is told, a row a round.
    observed : Array of bool, shape (..., T), optional
        False for rounds whose score is missing: they are answered, and leave the state and the totals as they are.
    fresh : bool
        Whether every sequence starts from the same state.
    late : Told, optional
        What is observed in each round, if that is not the round's own score: scores that become known later. Answers,
        totals and ``context`` remain those of the round, and so does ``observed``.

    Returns
    -------
    tuple
        Answers, with axes (..., T) in front, or totals, with axes (...); and the final state.
    """
    if several_devices() and not is_traced(learner, state, scores, query, context, observed, late):
        layout = layout_of(scores)
        if layout is not None:
            begin = spread_out(layout, state) if fresh else lay_out(layout, state)
            given = (*everywhere(layout, (learner, query)), begin, *lay_out(layout, (scores, context, observed, late)))
            return collected(layout, _scan_apart(read, keep, layout.mesh, *given))
        state = jax.tree.map(on_one_device, state)  # of a sequence out of a batch: one device is enough
    scores = scores if isinstance(scores, jax.Array) else jnp.asarray(scores)
    observed = jnp.asarray(observed) if isinstance(observed, np.ndarray) else observed
    late = jax.tree.map(jnp.asarray, late)
    state = spread(state, scores.shape[:-1]) if fresh else state
    return _scan_any(read, keep, learner, query, state, scores, context, observed, late)


def _scan_any(
    read: Reader,
    keep: str,
    learner: Any,
    query: Array,
    state: State,
    scores: Any,
    context: Any,
    observed: Any,
    late: Told | None,
) -> tuple[Any, State]:
    """Scan a sequence, or a batch whatever its axes."""
    batch = scores.shape[:-1]
    if not batch:
        return _scan(read, keep, learner, state, scores, query, context, observed, late)
    count = math.prod(batch)
    flat = jax.tree.map(
        lambda leaf: leaf.reshape((count, *leaf.shape[len(batch) :])), (state, scores, context, observed, late)
    )
    answers, end = _scan_batch(read, keep, learner, *flat, query)
    return jax.tree.map(lambda leaf: leaf.reshape(batch + leaf.shape[1:]), (answers, end))


@jax.jit(static_argnames=("read", "keep", "mesh"))
def _scan_apart(
    read: Reader,
    keep: str,
    mesh: Mesh,
    learner: Any,
    query: Array,
    state: State,
    scores: Array,
    context: Any,
    observed: Array | None,
    late: Told | None,
) -> tuple[Any, State]:
    """Scan a batch that is laid out over devices."""
    program = functools.partial(_scan_any, read, keep)
    return apart(program, mesh, (learner, query), (state, scores, context, observed, late))


@jax.jit(static_argnames=("read", "keep"))
def _scan(
    read: Reader,
    keep: str,
    learner: Any,
    state: State,
    scores: Array,
    query: Array,
    context: Any,
    observed: Array | None,
    late: Told | None,
) -> tuple[Any, State]:
    per_round = query.ndim == 2

    def one_round(carry: Any, brought: Any) -> tuple[Any, Any]:
        state, totals = carry
        score, row, context, told, late = brought
        asked, given = row if per_round else query, {} if context is None else {"context": context}
        answer = read(learner, state, score, asked, **given)  # predict: only the past is read
        if keep == "summary":
            real = jnp.ones(1, bool) if told is None else told[None]
            totals, answer = add_rounds(totals, answer[None], score[None], asked[None], real), None
        if late is not None:
            score, told, context = late
            given = {} if context is None else {"context": context}
        after = learner.observe(state, score, **given)  # then observe
        if told is not None:
            after = jax.tree.map(lambda new, old: jnp.where(told, new, old), after, state)
        return (after, totals), answer

    totals = no_rounds(query.shape[-1], scores.dtype) if keep == "summary" else None
    brought = scores, query if per_round else None, context, observed, late
    (end, totals), answers = lax.scan(one_round, (state, totals), brought)
    return (totals if keep == "summary" else answers), end


@jax.jit(static_argnames=("read", "keep"))
def _scan_batch(
    read: Reader,
    keep: str,
    learner: Any,
    state: State,
    scores: Array,
    context: Any,
    observed: Array | None,
    late: Told | None,
    query: Array,
) -> tuple[Any, State]:
    def one(state: State, scores: Array, context: Any, observed: Array | None, late: Told | None) -> tuple[Any, State]:
        return _scan(read, keep, learner, state, scores, query, context, observed, late)

    return jax.vmap(one)(state, scores, context, observed, late)
