"""Run a learner over recorded scores: predict, then observe, round by round."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from dpconformal.engine.machine import check_memory
from dpconformal.engine.scan import drive, pit, placement, thresholds
from dpconformal.engine.states import (
    Delayed,
    broadcast_state,
    checked_delay,
    feedback_stream,
    leading_axes,
    pending_feedback,
    split_delayed_state,
    spread_rounds,
    state_to_carry_on,
)
from dpconformal.engine.totals import sum_totals, totals_of
from dpconformal.learner import (
    ContextLearner,
    GridOfLevels,
    KernelLearner,
    Learner,
    PitLearner,
    PlayedLearner,
    State,
    WeightedLearner,
    fresh_state,
    support_of,
)
from dpconformal.rounds import Rounds, masked_scores, round_counts
from dpconformal.runs import Replay, Summary
from dpconformal.validation import (
    Numbers,
    as_levels,
    as_numbers,
    check_not_column,
    check_time_index,
    checked_scores,
    float_dtype,
    is_traced,
    raise_at,
)

__all__ = ["Replay", "Summary", "replay"]

FEW = 2**20  # thresholds that fit into any memory
ROOM = 2**24  # thresholds that are held at a time where only totals are wanted


def replay(
    learner: Learner,
    scores: Numbers,
    levels: Numbers,
    state: State = None,
    keep: str = "all",
    method: str = "auto",
    context: Any = None,
    mask: Any = None,
    delay: Any = 0,
    weights: Any = None,
) -> Replay | Summary:
    """
    Run a learner over recorded scores: in each round predict thresholds, then observe the score.

    Parameters
    ----------
    learner : Learner
        Any method: a belief, a baseline, or your own.
    scores : array_like, shape (T,) or (..., T)
        Nonconformity scores in time order; leading axes are independent sequences. Refused are a pandas or xarray
        object whose times go back or repeat, and a column vector: shape (n, 1) without a ``state``, or a ``delay`` for
        each series.
    levels : array_like, shape (A,) or (T, A)
        Confidence levels in [0, 1], the same every round or one row a round. A learner with a grid of its own, such
        as :class:`dpconformal.OGD`, refuses levels that are not in it.
    state : State, optional
        Where to carry on, from an earlier run or from ``learner.observe``, with the same leading axes as the run. The
        result is as if the run had never been interrupted.
    keep : {"all", "summary"}
        Every threshold; or totals only, in memory that does not grow with T × A.
    method : {"auto", "scan"}
        The fastest way that the learner offers; or the generic scan over its state, with which every other way agrees
        up to rounding.
    context : array_like, shape (T, ...) or (..., T, ...), optional
        What else is known before each round, for a learner that takes it: the groups of :class:`dpconformal.MVP`, the
        scorecasts of :class:`dpconformal.PID`.
    mask : array_like of bool, shape (T,) or (..., T), optional
        True for rounds whose score is missing. Such a round has thresholds like any other, and then nothing is
        observed: the state does not change, which means no count, no step of a discount, and no randomness used. The
        entry of ``scores``, NaN for instance, is not looked at; the round's context serves its threshold alone.
    delay : int or array_like of int
        How many rounds late each score becomes known: row t of the thresholds is computed from ``scores[..., :max(t -
        delay, 0)]``, and the score of round t is observed after round t + delay, with the context of its own round. An
        array broadcasts against the leading axes of the scores: a horizon for each sequence, or one sequence at many
        delays. The final state is a :class:`dpconformal.Delayed`, which holds the scores that are on their way; a state
        without them starts with nothing on its way. Inside ``jit`` the delay must not be traced.
    weights : array_like, shape (T,) or (..., T), optional
        How much each score counts, for :class:`dpconformal.Quantized` without a discount: importance weights of
        covariate shift, say. The belief is then λ_t P0 + (1 - λ_t) Σ w_i δ(score_i) / Σ w_i, whatever the scale of the
        weights; a weight of 0 leaves the scores' share as it is, and advances t.

    Returns
    -------
    Replay or Summary
        Thresholds of shape (..., T, A), or their totals; and the state to carry on with.

    Raises
    ------
    ValueError
        Naming the argument, the index and the value, before anything runs.
    TooLarge
        If thresholds or state cannot fit into memory: with both sizes, and a way out. It is a MemoryError, too.

    Notes
    -----
    Works inside ``jit``, ``vmap`` and ``grad``, over scores and over any hyperparameter. Traced input
    cannot be checked: there, a bad score or hyperparameter gives NaN thresholds from its round on.

    On a CPU beliefs that keep every score, and :class:`dpconformal.Quantized`, replay in native loops, a long sequence
    or a batch on every core that the process may use. On an accelerator, and for any other learner, a batch is one
    vectorised scan.

    Where this process has several devices, such a scan divides the batch among them all, and each works on its own
    sequences. Thresholds and final state stay there if the number of devices divides that of sequences; otherwise they
    come together on one. Scores that are committed to devices, by ``jax.device_put`` for instance, are worked on there
    and nowhere else. Inside ``jax.default_device`` or ``jax.set_mesh``, the batch is not divided.

    Examples
    --------
    >>> import dpconformal as dpc
    >>> run = dpc.replay(dpc.Exact(), [0.2, 0.4, 0.6], levels=[0.5, 0.9])
    >>> run.thresholds.round(3)
    Array([[0.5  , 0.9  ],
           [0.293, 0.859],
           [0.4  , 0.827]], dtype=float...)
    >>> dpc.replay(dpc.Exact(), [0.2, 0.4, 0.6], levels=[0.5, 0.9], keep="summary").covered
    array([1, 3])

    A score that is missing, on purpose:

    >>> run = dpc.replay(dpc.Exact(), [0.2, float("nan"), 0.6], levels=[0.5], mask=[False, True, False])
    >>> run.thresholds.round(3).ravel()
    Array([0.5  , 0.293, 0.293], dtype=float...)

    Scores that become known one round late, and two:

    >>> dpc.replay(dpc.Exact(), [0.2, 0.4, 0.6, 0.8], levels=[0.5], delay=[1, 2]).thresholds[..., 0].round(3)
    Array([[0.5  , 0.5  , 0.293, 0.4  ],
           [0.5  , 0.5  , 0.5  , 0.293]], dtype=float...)
    """
    scores = scores if hasattr(scores, "shape") else as_numbers("scores", scores)
    if state is None and scores.shape[-1:] == (1,):  # otherwise the state's leading axes say what is meant
        check_not_column("scores", scores.shape, "replay", delay)
    if not isinstance(scores, (np.ndarray, jax.Array)):
        check_time_index("scores", scores)
    return replay_batch(learner, scores, levels, state, keep, method, context, mask, delay, weights)


def replay_batch(
    learner: Learner,
    scores: Numbers,
    levels: Numbers,
    state: State = None,
    keep: str = "all",
    method: str = "auto",
    context: Any = None,
    mask: Any = None,
    delay: Any = 0,
    weights: Any = None,
) -> Replay | Summary:
    """Replay scores whose last axis is known to be that of the rounds, however many there are."""
    if not isinstance(learner, Learner) or isinstance(learner, type):
        hint = "an instance, with brackets" if isinstance(learner, type) else "a learner such as dpconformal.Exact()"
        raise ValueError(f"learner = {learner!r}: pass {hint}")
    if jax.tree_util.all_leaves([learner]):
        raise ValueError(f"learner = {learner!r}: not a pytree; register its class, see dpconformal.pytree.register")
    if keep not in ("all", "summary"):
        raise ValueError(f"keep = {keep!r}: pass one of 'all', 'summary'")
    if method not in ("auto", "scan"):
        raise ValueError(f"method = {method!r}: pass one of 'auto', 'scan'")

    # The scores, as an array on the host unless they are traced, and what comes with them.
    place, scores = placement(scores) if isinstance(scores, jax.Array) else None, as_numbers("scores", scores)
    if scores.ndim == 0:
        raise ValueError("scores has shape (): pass a sequence, shape (T,) or (..., T)")
    shape = scores.shape
    batch, now = shape[:-1], type(delay) is int and delay == 0  # as most runs are: every score is known at once
    if not now:
        delay = checked_delay(delay)
        batch = leading_axes(delay, batch)
    if not (mask is context is weights is None and isinstance(levels, (np.ndarray, list))):
        # What comes with the scores is read by position: times that are out of order are refused.
        if np.ndim(levels) == 2:
            check_time_index("levels", levels, 0)
        check_time_index("mask", mask)
        check_time_index("weights", weights)
        has_batch = hasattr(context, "shape") and tuple(context.shape[: len(shape)]) == shape
        check_time_index("context", context, len(shape) - 1 if has_batch else 0)
    if not isinstance(scores, jax.core.Tracer) and (not now or scores.size * np.size(levels) > FEW):
        held = shape[-1] + int(np.max(delay, initial=0))  # the state keeps what is on its way, too
        check_memory(learner, (*batch, held), levels, float_dtype(scores), keep)
    if mask is None:
        scores = checked_scores(scores, support_of(learner))
    else:
        scores, mask = masked_scores(scores, mask, support_of(learner))
    if place is not None:
        scores = jax.device_put(scores, place)
    elif keep == "all" and isinstance(scores, np.ndarray):
        scores = np.array(scores)  # the run holds on to them, so they need memory of their own
    if context is not None or isinstance(learner, ContextLearner):
        context = _checked_context(learner, context, shape)
    if weights is not None:
        weights = _checked_weights(learner, weights, mask, shape, scores.dtype)
    if batch != shape[:-1]:
        scores, mask, context, weights = spread_rounds((scores, mask, context, weights), len(shape) - 1, batch)

    # The state to begin with, which has room for every score; and scores that are on their way since the run before.
    begin, waiting = (None, None) if state is None else split_delayed_state(learner, state, delay, batch, context)
    fresh = begin is None
    if waiting is not None:
        scores = scores.astype(np.result_type(scores.dtype, waiting.scores.dtype))
    if fresh:
        begin = fresh_state(learner, shape[-1], scores.dtype)
    else:
        scores, begin = state_to_carry_on(learner, scores, begin, weights is not None)
    if weights is not None and isinstance(learner, WeightedLearner):
        begin = learner.weighted_state(begin, scores.dtype)
    if waiting is not None and (waiting.weights is None) != (weights is None):
        there = "has weights" if weights is None else "has none"
        raise ValueError(f"weights: what is on its way in state.waiting {there}; carry on as the run before was made")

    levels = _checked_levels(learner, levels, scores)
    observed = None if mask is None or (not is_traced(mask) and not mask.any()) else ~mask
    rounds, rest = Rounds(scores, levels, observed, context, weights), None
    if not now and np.any(delay):
        own = rounds._replace(levels=None)
        waiting = waiting and waiting._replace(scores=waiting.scores.astype(scores.dtype))
        if isinstance(learner, PlayedLearner):
            context = learner.played(begin, fresh, own, lambda own: feedback_stream(learner, delay, own, waiting))
            own, rounds = own._replace(context=context), rounds._replace(context=context)
        rest = pending_feedback(learner, delay, own, waiting)
        rounds = rounds._replace(feedback=feedback_stream(learner, delay, own, waiting))
    kept, end = run_replay(learner, begin, fresh, rounds, keep, method)

    if rest is not None:
        end = Delayed(end, jnp.broadcast_to(jnp.asarray(delay, jnp.int32), batch), jax.tree.map(jnp.asarray, rest))
    if keep == "summary":
        if not is_traced(kept):  # in double precision, whatever that of the scores
            kept = jax.tree.map(lambda leaf: np.asarray(leaf, np.int64 if leaf.dtype.kind == "i" else float), kept)
        loss, threshold = (total.high + total.low for total in (kept.loss, kept.threshold))
        return Summary(round_counts(mask, shape[-1]), kept.covered, loss, threshold, end, levels, learner, state)
    if levels.ndim == 2:  # as many axes as the thresholds: what vmap over a replay returns reads the same
        levels = (jnp if is_traced(levels) else np).broadcast_to(levels, kept.shape)
    if observed is not None:
        xp = jnp if is_traced(scores, observed) or isinstance(scores, jax.Array) else np
        scores = xp.where(observed, scores, xp.asarray(np.nan, scores.dtype))
    if not is_traced(scores, levels, mask):  # nobody else has these arrays: JAX may use their memory as it is
        scores, levels, mask = jax.device_put((scores, levels, mask), may_alias=True)
    delay = np.broadcast_to(delay, batch) if np.ndim(delay) else delay
    return Replay(kept, end, scores, levels, learner, state, mask, context, delay, weights)


def run_replay(
    learner: Any, begin: State, fresh: bool, rounds: Rounds, keep: str, method: str = "auto"
) -> tuple[Any, State]:
    """
    Run a learner over checked rounds, by its kernel where it has one that can; with ``method="scan"`` by the scan.

    ``begin`` has room for every score, and the leading axes of the scores unless it is ``fresh``. Returns thresholds or
    totals, and the final state.
    """
    if method == "auto" and isinstance(learner, KernelLearner) and rounds.scores.size:
        own = rounds
        if rounds.feedback is not None:
            if keep == "summary":
                return _totals_of_delayed(learner, begin, fresh, rounds)
            # What is kept of every round are thresholds. They depend on what was observed alone, but for a context.
            own = rounds.feedback._replace(levels=rounds.levels)
        late_context = (
            own is not rounds and isinstance(learner, ContextLearner) and not isinstance(learner, PlayedLearner)
        )
        found = None if late_context else learner.kernel(begin, fresh, own, keep)
        if found is not None:
            return found
    return drive(thresholds, learner, begin, rounds, keep, fresh)


def run_pits(learner: Any, begin: State, fresh: bool, rounds: Rounds) -> tuple[Any, State]:
    """Return the PIT of each score, (..., T), under the belief before it; and the final state."""
    found = None
    if isinstance(learner, PitLearner) and rounds.feedback is None and rounds.scores.size:
        found = learner.pits(begin, fresh, rounds)
    level = np.zeros(1, rounds.scores.dtype)  # for form's sake
    return drive(pit, learner, begin, rounds._replace(levels=level), fresh=fresh) if found is None else found


def _totals_of_delayed(learner: Any, begin: State, fresh: bool, rounds: Rounds) -> tuple[Any, State]:
    """Add up some rounds at a time: with a delay, thresholds are judged by other scores than were observed."""
    state = broadcast_state(begin, rounds.batch) if fresh else begin
    parts = []
    for own in map(rounds.part, slices_with_room(rounds)):
        kept, state = run_replay(learner, state, False, own, "all")
        parts.append(totals_of(kept, own.scores, own.levels, own.observed))
    if is_traced(parts):
        return jax.tree.map(lambda *leaves: sum(leaves[1:], leaves[0]), *parts), state
    return sum_totals(parts), state


def slices_with_room(rounds: Rounds) -> list[slice]:
    """Cut the rounds where only totals are wanted, so that the thresholds of each part have room."""
    block = max(ROOM * rounds.length // (rounds.scores.size * rounds.levels.shape[-1]), 1)
    return [slice(start, min(start + block, rounds.length)) for start in range(0, rounds.length, block)]


def _checked_weights(learner: Learner, weights: Any, mask: Any, shape: tuple[int, ...], dtype: np.dtype) -> Any:
    """Check how much each score counts: a number a round, the same for every sequence or not."""
    if not isinstance(learner, WeightedLearner):
        raise ValueError(f"weights are given, and {type(learner).__name__} takes none: pass Quantized(...)")
    array = as_numbers("weights", weights)
    if array.shape not in (shape, shape[-1:]):
        each = "" if len(shape) == 1 else f", the same for every sequence, or {shape}"
        raise ValueError(f"weights has shape {array.shape}: pass one number a round, shape {shape[-1:]}{each}")
    if is_traced(array, mask):  # a bad weight makes the state invalid
        return jnp.broadcast_to(array, shape).astype(dtype)
    array = np.broadcast_to(array, shape)
    bad = ~(np.isfinite(array) & (array >= 0)) & (True if mask is None else ~mask)
    raise_at("weights", array, bad, "must be finite and not negative")
    return array.astype(dtype)


def _checked_context(learner: Learner, context: Any, shape: tuple[int, ...]) -> Any:
    """Let a learner check the context that it is given; refuse one that it does not take."""
    if isinstance(context, np.ma.MaskedArray):
        raise ValueError("context is a masked array, whose mask would be lost: fill it, or drop the masked rounds")
    if isinstance(learner, ContextLearner):
        return learner.as_context(context, shape)
    if context is not None:
        raise ValueError(f"context is given, and {type(learner).__name__} takes none")
    return None


def _checked_levels(learner: Learner, given: Numbers, scores: Any) -> Array:
    """Check the levels, one row for all rounds or a row a round."""
    levels = as_levels(given, scores.dtype)
    rounds = scores.shape[-1]
    if levels.ndim not in (1, 2) or (levels.ndim == 2 and levels.shape[0] != rounds) or levels.shape[-1] == 0:
        raise ValueError(
            f"levels has shape {levels.shape}: pass (A,), such as [0.9], or (T, A) with T = {rounds} rows; A ≥ 1"
        )
    if isinstance(learner, GridOfLevels):
        learner.check_levels(given)  # as the user wrote them
    return levels
