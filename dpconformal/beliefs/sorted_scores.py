"""
Scores in order of size: the evidence of the exact and the empirical beliefs, and their replay by ranks.

:class:`SortedScores` is the state. :class:`SortedLearner` is what its learners share. A replay ranks all of its scores
first, O(T log T); what comes then is each learner's own walk over the ranks, and :func:`ranking_kernel` cuts the rounds
into segments for it.
"""

import math
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float, Int, Num

from dpconformal.beliefs.belief import check_state, check_valid_count
from dpconformal.engine.kernel import NativeKernel, PaddedSegment, Segment, padded_segments, take_segment
from dpconformal.engine.pointer_loop import NO_PLACE, epoch_for, rounds_remembered
from dpconformal.engine.states import MOST, advance, joint_count
from dpconformal.learner import is_valid_score
from dpconformal.rounds import BLOCK, Rounds, padded_length
from dpconformal.validation import Numbers, Scalar, as_score, check_int, check_not_batched, is_traced, raise_at

FIRST_CAPACITY = 256  # room of a state that is filled online, before it first grows


class SortedScores(NamedTuple):
    """Scores seen so far. Pure evidence: prior, schedule and discount come in when it is questioned."""

    seen: Int[Array, "*B"]  # (): how many; -1 once a bad score, or a full buffer, was met inside ``jit``
    values: Float[Array, "*B C"]  # (capacity,): ascending, ties in order of arrival; +inf beyond ``seen``
    arrivals: Int[Array, "*B C"]  # (capacity,): the round each value came in, from 1; 0 beyond ``seen``

    def check(self, learner: Any) -> None:
        """Refuse a state that no replay leaves; :func:`check_sorted` checks the ends of the support."""
        seen, values, arrivals = (np.asarray(leaf) for leaf in self)
        if arrivals.shape != values.shape:
            raise ValueError("state.arrivals must have the shape of state.values")
        slot = np.arange(values.shape[-1])
        used = slot < seen[..., None]
        if np.isnan(values).any() or (values[..., 1:] < values[..., :-1]).any() or (np.isfinite(values) != used).any():
            raise ValueError("state.values must be ascending, finite up to state.seen and infinite beyond")
        raise_at("state.values", values, ~used & (values < 0), "beyond state.seen stands +inf")
        if (np.sort(np.where(used, arrivals, slot + 1), axis=-1) != slot + 1).any() or (arrivals[~used] != 0).any():
            raise ValueError("state.arrivals must be the rounds from 1 to state.seen, each once, and 0 beyond")


def empty(rounds: int, dtype: Any, least: int = 1) -> SortedScores:
    """Return a store with room for the scores of some rounds, and for at least as many as asked."""
    _check_size(max(rounds, least))
    capacity = max(min(padded_length(rounds), MOST - 8), least)
    values = jnp.full(capacity, jnp.inf, dtype)
    return SortedScores(jnp.zeros((), jnp.int32), values, jnp.zeros(capacity, jnp.int32))


def check_sorted(learner: Any, *states: Any, batched: bool = False) -> None:
    """Check that a learner can work with these states."""
    name = type(learner).__name__
    remedy = ", after learner.prepare(state, rounds) where scores are to be observed"
    for state in states:
        check_state(learner, state, SortedScores, batched, remedy)
        if is_traced(state, learner.support) or np.size(state.seen) == 0:
            continue
        seen, values = np.atleast_1d(state.seen), np.atleast_2d(state.values)
        if seen.max() > values.shape[-1]:
            raise ValueError(f"state.seen = {seen.max()}: more than the {values.shape[-1]} values that state holds")
        low, high = (np.asarray(end, values.dtype) for end in learner.support)
        smallest = values[..., 0]
        largest = np.take_along_axis(values, (np.maximum(seen, 1) - 1)[..., None], axis=-1)[..., 0]
        foreign = (seen > 0) & ((smallest < low) | (largest > high))
        if foreign.any():
            raise ValueError(
                f"state holds scores from {smallest[foreign][0]:g} to {largest[foreign][0]:g}, outside the support "
                f"[{low:g}, {high:g}] of this {name}: carry on with the learner that made it"
            )


def take_in(state: SortedScores, score: Numbers, support: tuple[Scalar, Scalar]) -> SortedScores:
    """Put one score in its place; inside ``jit`` a bad score or a full store marks the store as invalid."""
    score = as_score(score, support).astype(state.values.dtype)
    return _insert(state if is_traced(state.seen) else grow(state, 1), score, support)


@jax.jit
def _insert(state: SortedScores, score: Float[Array, ""], support: tuple[Scalar, Scalar]) -> SortedScores:
    capacity = state.values.shape[-1]
    position = jnp.sum(state.values <= score)
    slot = jnp.arange(capacity)

    def put(column: Array, new: Array) -> Array:
        shifted = jnp.concatenate([column[:1], column[:-1]])
        return jnp.where(slot < position, column, jnp.where(slot == position, new, shifted))

    seen = advance(state.seen, is_valid_score(score, support) & (state.seen < capacity))
    return SortedScores(seen, put(state.values, score), put(state.arrivals, state.seen + 1))


def grow(state: SortedScores, rounds: int) -> SortedScores:
    """Make room for more scores: at least double where there is not enough, or ``rounds`` more for a traced count."""
    capacity = state.values.shape[-1]
    if is_traced(state.seen):
        wanted = capacity + rounds
    else:
        needed = int(np.max(state.seen, initial=0)) + rounds
        _check_size(needed)
        wanted = capacity if needed <= capacity else padded_length(max(needed, 2 * capacity))
    if wanted == capacity:
        return state
    padding = [(0, 0)] * (state.values.ndim - 1) + [(0, wanted - capacity)]
    values = jnp.pad(state.values, padding, constant_values=math.inf)
    return SortedScores(state.seen, values, jnp.pad(state.arrivals, padding))


def _check_size(capacity: int) -> None:
    """Refuse more scores than places of 32 bits can number, with a few to spare for what is no score."""
    if capacity > MOST - 8:
        raise ValueError(
            f"state would need room for {capacity} scores: a learner that keeps every score holds at most {MOST - 8}; "
            "use Quantized, whose memory does not grow"
        )


class SortedLearner:
    """A learner that keeps every score, in order of size."""

    support: Any  # ends of the interval that holds every score
    capacity: int | None = None  # of a fresh state, where the user sets it

    def _check(self, *states: Any, batched: bool = False) -> None:
        check_sorted(self, *states, batched=batched)

    def _check_hyperparameters(self, seen: Any, rounds: int, dtype: Any) -> None:
        """Check the hyperparameters on the rounds to come, in the precision to come."""
        raise NotImplementedError

    def init(self, rounds: int | None = None, dtype: Any = None) -> SortedScores:
        """Return the state before any score, with room for ``rounds`` of them."""
        check_not_batched(self)
        dtype = dtype or jnp.result_type(float)
        wanted = 0 if rounds is None else check_int("rounds", rounds, 0)
        self._check_hyperparameters(0, wanted, dtype)
        return empty(wanted, dtype, self.capacity or (FIRST_CAPACITY if rounds is None else 1))

    def prepare(self, state: SortedScores, rounds: int) -> SortedScores:
        """Make room for more rounds, also in a batch of states, and check the hyperparameters on them."""
        self._check(state, batched=True)
        check_valid_count(state.seen)
        if rounds:  # without any, nothing need be compiled
            self._check_hyperparameters(state.seen, rounds, state.values.dtype)
        return grow(state, rounds)

    def observe(self, state: SortedScores, score: Numbers) -> SortedScores:
        """Return the state after one more score."""
        self._check(state)
        return take_in(state, score, self.support)

    def merge(self, first: SortedScores, second: SortedScores) -> SortedScores:
        """Return the state that saw the scores of ``first``, then those of ``second``."""
        self._check(first, second)
        _check_size(first.values.shape[-1] + second.values.shape[-1])
        later = jnp.where(second.arrivals > 0, second.arrivals + first.seen, 0)
        dtype = np.result_type(first.values.dtype, second.values.dtype)
        values = jnp.concatenate([first.values.astype(dtype), second.values.astype(dtype)])
        values, arrivals = lax.sort((values, jnp.concatenate([first.arrivals, later])), num_keys=1, is_stable=True)
        return SortedScores(joint_count(first.seen, second.seen), values, arrivals)


class Ranked(NamedTuple):
    """Scores of the past and of a run, in their final order of size."""

    values: Any  # (C,): ascending, ties in order of arrival; +inf beyond the last
    arrivals: Any  # (C,): round in which each came in, counted from 1; 0 beyond the last
    places: Any  # (T,): where each score of the run stands in ``values``; NO_PLACE for a round without one


def rank_scores(begin: SortedScores, fresh: bool, scores: Any, observed: Any) -> Ranked:
    """
    Rank the observed scores of a run among those of the state: on the host with any leading axes, else inside ``jit``.

    Of a ``fresh`` state its room alone is looked at.
    """
    if not isinstance(scores, np.ndarray):
        return _rank_traced(begin, fresh, scores, observed)
    # NumPy's sort is several times as fast on a CPU as XLA's.
    capacity, used = begin.values.shape[-1], 0
    complete = bool(observed.all())
    values = scores if complete else np.where(observed, scores, scores.dtype.type(np.inf))
    if not fresh:
        used = int(np.max(begin.seen, initial=0))
        values = np.concatenate([begin.values[..., :used], values], axis=-1)
    size = values.shape[-1]
    rows = np.arange(values.size // size).reshape(*values.shape[:-1], 1) * size  # where each row begins, flattened
    order = np.argsort(values, axis=-1) + rows
    ordered = values.reshape(-1)[order]
    ties = ordered[..., 1:] == ordered[..., :-1]
    if np.any(ties if complete else ties & (ordered[..., 1:] < np.inf)):  # left in any order
        order = np.argsort(values, axis=-1, kind="stable") + rows
        ordered = values.reshape(-1)[order]
    if fresh and complete:
        arrivals = (order - rows + 1).astype(np.int32)
    else:
        arrivals = np.cumsum(observed, axis=-1, dtype=np.int32)
        if not fresh:
            arrivals = np.concatenate([begin.arrivals[..., :used], begin.seen[..., None] + arrivals], axis=-1)
        arrivals = np.where(ordered < np.inf, arrivals.reshape(-1)[order], np.int32(0))
    places = np.empty(values.shape, np.int32)
    places.reshape(-1)[order] = np.arange(size, dtype=np.int32)
    places = places[..., used:]
    places = places if complete else np.where(observed, places, np.int32(NO_PLACE))
    if size < capacity:
        beyond = [(0, 0)] * (values.ndim - 1) + [(0, capacity - size)]
        ordered = np.pad(ordered, beyond, constant_values=np.inf)
        arrivals = np.pad(arrivals, beyond)
    return Ranked(ordered[..., :capacity], arrivals[..., :capacity], places)


def _rank_traced(begin: SortedScores, fresh: bool, scores: Array, observed: Array) -> Ranked:
    """Rank the scores of one sequence inside ``jit``."""
    capacity = begin.values.shape[-1]
    arrivals, values = jnp.cumsum(observed, dtype=jnp.int32), jnp.where(observed, scores, jnp.inf)
    if not fresh:
        arrivals = jnp.concatenate([begin.arrivals, begin.seen + arrivals])
        values = jnp.concatenate([begin.values, values])
    arrivals = jnp.where(jnp.isfinite(values), arrivals, 0)
    order = jnp.argsort(values, stable=True)
    places = jnp.zeros(values.shape[0], jnp.int32).at[order].set(jnp.arange(values.shape[0], dtype=jnp.int32))
    places = places[values.shape[0] - scores.shape[0] :]
    beyond = (0, max(capacity - values.shape[0], 0))
    values = jnp.pad(values[order], beyond, constant_values=jnp.inf)[:capacity]
    arrivals = jnp.pad(arrivals[order], beyond)[:capacity]
    return Ranked(values, arrivals, jnp.where(observed, places, NO_PLACE))


def masses_before(ranked: Ranked, count: Int[Array, ""], discount: Float[Array, ""] | None) -> Num[Array, " C"]:
    """Weigh the first ``count`` scores; those to come weigh nothing."""
    age = count - ranked.arrivals  # negative for scores to come
    known = (ranked.arrivals > 0) & (age >= 0)
    if discount is None:
        return known.astype(jnp.int32)
    return jnp.where(known, discount ** jnp.maximum(age, 0).astype(ranked.values.dtype), 0)


def ranking_kernel(run_ranked: Callable[..., Any]) -> NativeKernel:
    """
    Build the kernel of a learner that replays ranked scores.

    ``run_ranked``: ``(learner, ranked, counts (T,), rounds, keep, epoch) -> thresholds or totals``.
    """

    def run(
        learner: Any, begin: SortedScores, ranked: Ranked, counts: Array, rounds: Rounds, keep: str, epoch: int | None
    ) -> tuple[Any, SortedScores]:
        end = SortedScores(counts[-1], ranked.values, ranked.arrivals)
        return run_ranked(learner, ranked, counts[:-1], rounds, keep, epoch), end

    return NativeKernel(rank_scores, run, partial(_segments, run_ranked))


def _segments(
    run_ranked: Callable[..., Any], learner: Any, begin: SortedScores, ranked: Ranked, rounds: Rounds, keep: str
) -> Iterator[Segment]:
    """Cut the rounds into short segments where the distant past is forgotten: each ranks only what still weighs."""
    scores, observed, seen = rounds.scores, rounds.observed, int(begin.seen)
    epoch, longest = epoch_for(learner.discount, scores.dtype), None
    window = most = padded_length(seen + rounds.length)
    if learner.discount is not None:
        window = min(rounds_remembered(learner.discount, scores.dtype), most)
        longest = max(-(-4 * window // BLOCK), 8) * BLOCK
    in_time = scores[observed]
    if seen:
        old = np.argsort(begin.arrivals[:seen])
        in_time = np.concatenate([begin.values[:seen][old], in_time])

    def run(piece: PaddedSegment) -> Any:
        counts, own = take_segment(rounds, piece, begin.seen)
        start, new = int(counts[0]), np.count_nonzero(own.observed)
        first = max(start - window, 0)
        recent = in_time[first : start + new]
        room = begin._replace(values=np.empty(min(window + own.length, most), recent.dtype))  # type: ignore[arg-type]
        recent = rank_scores(room, True, recent, np.ones(recent.shape, bool))
        arrived = np.where(recent.arrivals > 0, recent.arrivals + np.int32(first), 0)
        places = np.full(own.length, NO_PLACE, np.int32)
        places[own.observed] = recent.places[start - first :]
        return run_ranked(learner, Ranked(recent.values, arrived, places), counts, own, keep, epoch)

    end = state_at_end(begin, ranked, rounds)
    for piece in padded_segments(rounds.length, rounds.levels.shape[-1], longest):
        yield Segment(piece.rounds, partial(run, piece), end if piece.rounds.stop == rounds.length else None)


def state_at_end(begin: SortedScores, ranked: Ranked, rounds: Rounds) -> SortedScores:
    """Return the state after all rounds, on the host."""
    return SortedScores(begin.seen + np.int32(np.count_nonzero(rounds.observed)), ranked.values, ranked.arrivals)
