"""Scores in order of size: the evidence of the exact beliefs, and where each score of a replay stands in it."""

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float, Int

from dpconformal.engine.pointer_loop import NO_PLACE
from dpconformal.engine.states import MOST, advance, joint_count
from dpconformal.learner import is_valid_score
from dpconformal.rounds import padded_length
from dpconformal.validation import Numbers, Scalar, as_score, check_not_batched, is_traced, raise_at

FIRST_CAPACITY = 256  # room of a state that is filled online, before it first grows


class SortedScores(NamedTuple):
    """
    Scores seen so far. Pure evidence: prior, schedule and discount come in when it is questioned.

    Attributes
    ----------
    seen : Array, shape ()
        How many scores; -1 once a bad one, or a full buffer, was met inside ``jit``.
    values : Array, shape (capacity,)
        Ascending, ties in order of arrival; +inf beyond ``seen``.
    arrivals : Array, shape (capacity,)
        The round each value came in, counted from 1; 0 beyond ``seen``.
    """

    seen: Int[Array, "*B"]  # ()
    values: Float[Array, "*B C"]  # (capacity,)
    arrivals: Int[Array, "*B C"]  # (capacity,)

    def check(self, learner: Any) -> None:
        """Refuse what no replay leaves; ends of the support are :func:`check_sorted`'s."""
        del learner
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
    check_not_batched(learner)
    name = type(learner).__name__
    for state in states:
        if not isinstance(state, SortedScores):
            raise ValueError(
                f"state is a {type(state).__name__}: {name} carries on from a SortedScores, such as run.state"
            )
        if np.ndim(state.seen) and not batched:
            raise ValueError(
                f"state is a batch of shape {np.shape(state.seen)}: use jax.vmap, after learner.prepare(state, rounds) "
                "where scores are to be observed"
            )
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
    """
    Put one score in its place.

    Returns: The store with the score in it; inside ``jit`` marked as invalid if the score is unusable or the store is
    full.
    """
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
    """
    Make room for more scores: at least double, where there is not room enough.

    Returns: The same scores. Where the count is traced, and so unknown, the room grows by ``rounds``.
    """
    capacity = state.values.shape[-1]
    if is_traced(state.seen):
        wanted = capacity + rounds
    else:
        needed = int(np.max(state.seen, initial=0)) + rounds
        _check_size(needed)
        wanted = capacity if needed <= capacity else padded_length(max(needed, 2 * capacity))
    padding = [(0, 0)] * (state.values.ndim - 1) + [(0, wanted - capacity)]
    if wanted == capacity:
        return state
    return SortedScores(
        state.seen,
        jnp.pad(state.values, padding, constant_values=math.inf),
        jnp.pad(state.arrivals, padding),
    )


def merge(first: SortedScores, second: SortedScores) -> SortedScores:
    """
    Join two stores, the second having been filled after the first.

    Returns: The store that would have seen all scores; its room is the sum of both.
    """
    _check_size(first.values.shape[-1] + second.values.shape[-1])
    later = jnp.where(second.arrivals > 0, second.arrivals + first.seen, 0)
    dtype = np.result_type(first.values.dtype, second.values.dtype)
    values = jnp.concatenate([first.values.astype(dtype), second.values.astype(dtype)])
    values, arrivals = lax.sort((values, jnp.concatenate([first.arrivals, later])), num_keys=1, is_stable=True)
    return SortedScores(joint_count(first.seen, second.seen), values, arrivals)


def _check_size(capacity: int) -> None:
    """Refuse more scores than places of 32 bits can number, with a few to spare for what is no score."""
    if capacity > MOST - 8:
        raise ValueError(
            f"state would need room for {capacity} scores: a learner that keeps every score holds at most {MOST - 8}; "
            "use Quantized, whose memory does not grow"
        )


class Ranked(NamedTuple):
    """
    Scores of the past and of a run, in their final order of size.

    Attributes
    ----------
    values : array, shape (C,)
        Ascending, ties in order of arrival; +inf beyond the last.
    arrivals : array, shape (C,)
        Round in which each came in, counted from 1; 0 beyond the last.
    places : array, shape (T,)
        Where each score of the run stands in ``values``; :data:`NO_PLACE` for a round without one.
    """

    values: Any  # (C,)
    arrivals: Any  # (C,)
    places: Any  # (T,)


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
