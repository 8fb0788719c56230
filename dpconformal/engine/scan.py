"""The generic driver: one scan for any learner, the oracle of every faster way."""

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import Mesh
from jaxtyping import Array

from dpconformal.engine.sharding import (
    apart,
    collected,
    everywhere,
    lay_out,
    layout_of,
    on_one_device,
    several_devices,
    spread_out,
)
from dpconformal.engine.states import broadcast_state
from dpconformal.engine.totals import add_rounds, no_rounds
from dpconformal.learner import State
from dpconformal.rounds import Rounds, first_rounds
from dpconformal.validation import is_traced

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
    read: Reader, learner: Any, state: State, rounds: Rounds, keep: str = "all", fresh: bool = False
) -> tuple[Any, State]:
    """
    Read off a learner before each score, over one sequence or a batch of them, each device its part of the batch.

    ``read`` is asked in every round about the state before the score; ``keep="summary"`` keeps the
    :class:`dpconformal.engine.totals.Totals` of answers that are thresholds. The state has the leading axes of the
    scores, or is that of one sequence, if it is ``fresh``. Rounds without a score are answered, and leave the state and
    the totals as they are; answers, totals and context are those of the round, also where its score becomes known
    later. Returns answers, with axes (..., T) in front, or totals, with axes (...); and the final state. A NumPy array
    must not change before the answers are there.
    """
    if is_traced(learner, state, rounds):
        state = broadcast_state(state, rounds.batch) if fresh else state
        return _scan_any(read, keep, learner, state, jax.tree.map(jnp.asarray, rounds), None)
    batch, count = rounds.batch, rounds.length
    layout = layout_of(rounds.scores) if several_devices() else None  # asks where they are: padding may move them
    # Without any round there is nothing to pad, and nothing to look at.
    used, rounds = jnp.asarray(count, jnp.int32) if count else None, rounds.padded()
    if layout is not None:
        begin = spread_out(layout, state) if fresh else lay_out(layout, state)
        whole = everywhere(layout, (learner, rounds.levels, used))
        found = _scan_apart(read, keep, layout.mesh, whole, begin, lay_out(layout, rounds._replace(levels=None)))
        found = collected(layout, found)
    else:
        if several_devices():  # of a sequence out of a batch: one device is enough
            state = jax.tree.map(on_one_device, state)
        state = broadcast_state(state, batch) if fresh else state
        found = _scan_any(read, keep, learner, state, jax.tree.map(jnp.asarray, rounds), used)
    answers, end = found
    return (answers if keep == "summary" else first_rounds(answers, len(batch), count)), end


def _scan_any(
    read: Reader, keep: str, learner: Any, state: State, rounds: Rounds, used: Array | None
) -> tuple[Any, State]:
    """Scan a sequence, or a batch whatever its axes."""
    batch = rounds.batch
    if not batch:
        return _scan(read, keep, learner, state, rounds, used)
    count = math.prod(batch)
    state, own = jax.tree.map(
        lambda leaf: leaf.reshape((count, *leaf.shape[len(batch) :])), (state, rounds._replace(levels=None))
    )
    answers, end = _scan_batch(read, keep, learner, state, own._replace(levels=rounds.levels), used)
    return jax.tree.map(lambda leaf: leaf.reshape(batch + leaf.shape[1:]), (answers, end))


@jax.jit(static_argnames=("read", "keep", "mesh"))
def _scan_apart(read: Reader, keep: str, mesh: Mesh, whole: Any, state: State, own: Rounds) -> tuple[Any, State]:
    """Scan a batch that is laid out over devices."""

    def program(learner: Any, levels: Array, used: Array, state: State, own: Rounds) -> tuple[Any, State]:
        return _scan_any(read, keep, learner, state, own._replace(levels=levels), used)

    return apart(program, mesh, whole, (state, own))


@jax.jit(static_argnames=("read", "keep"))
def _scan(read: Reader, keep: str, learner: Any, state: State, rounds: Rounds, used: Array | None) -> tuple[Any, State]:
    """Scan one sequence: predict, then observe. The first ``used`` rounds alone: others are padding."""
    levels, per_round = rounds.levels, rounds.levels.ndim == 2

    def one_round(carry: Any, here: Rounds) -> tuple[Any, Any]:
        state, totals = carry
        score, observed, asked = here.scores, here.observed, here.levels if per_round else levels
        given = {} if here.context is None else {"context": here.context}
        answer = read(learner, state, score, asked, **given)  # predict: only the past is read
        if keep == "summary":
            known = jnp.ones(1, bool) if observed is None else observed[None]
            totals, answer = add_rounds(totals, answer[None], score[None], asked[None], known), None
        feedback = here if here.feedback is None else here.feedback
        score, observed = feedback.scores, feedback.observed
        given = {} if feedback.context is None else {"context": feedback.context}
        if feedback.weights is None:
            after = learner.observe(state, score, **given)  # then observe
        else:
            after = learner.observe_weighted(state, score, feedback.weights)
        if observed is not None:
            after = jax.tree.map(lambda new, old: jnp.where(observed, new, old), after, state)
        return (after, totals), answer

    totals = no_rounds(levels.shape[-1], rounds.scores.dtype) if keep == "summary" else None
    rows = rounds if per_round else rounds._replace(levels=None)
    if used is None:
        (end, totals), answers = lax.scan(one_round, (state, totals), rows)
    else:
        (end, totals), answers = _scan_first(one_round, (state, totals), rows, used)
    return (totals if keep == "summary" else answers), end


def _scan_first(one_round: Callable[[Any, Any], Any], carry: Any, rows: Any, used: Array) -> tuple[Any, Any]:
    """Do what ``lax.scan`` does for the first rounds, whose number the program does not depend on."""
    one_round = jax.jit(one_round, inline=True)  # traced once, though it is called for its shapes first

    def row(t: Any) -> Any:
        return jax.tree.map(
            lambda column: lax.dynamic_index_in_dim(column, t, keepdims=False, allow_negative_indices=False), rows
        )

    def step(t: Array, both: Any) -> Any:
        carry, kept = both
        carry, answer = one_round(carry, row(t))
        return carry, jax.tree.map(
            lambda all, one: lax.dynamic_update_index_in_dim(all, one, t, 0, allow_negative_indices=False), kept, answer
        )

    length, shapes = jax.tree.leaves(rows)[0].shape[0], jax.eval_shape(one_round, carry, row(0))[1]
    kept = jax.tree.map(lambda leaf: jnp.zeros((length, *leaf.shape), leaf.dtype), shapes)
    return lax.fori_loop(jnp.zeros_like(used), used, step, (carry, kept))


@jax.jit(static_argnames=("read", "keep"))
def _scan_batch(
    read: Reader, keep: str, learner: Any, state: State, rounds: Rounds, used: Array | None
) -> tuple[Any, State]:
    def one(state: State, own: Rounds) -> tuple[Any, State]:
        return _scan(read, keep, learner, state, own._replace(levels=rounds.levels), used)

    return jax.vmap(one)(state, rounds._replace(levels=None))
