"""The evidence of the exact beliefs: every score seen, in order of size."""

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float, Int

from dpconformal.checks import Numbers, Scalar, is_traced
from dpconformal.inputs import as_scores
from dpconformal.learner import advance, usable


class SortedScores(NamedTuple):
    """
    Scores seen so far. Pure evidence: prior, schedule and discount come in when it is questioned.

    Attributes
    ----------
    seen, values, arrivals : Array
        See the comments in the source for their shapes.
    """

    seen: Int[Array, "*B"]  # () scores seen; -1 once a bad score or a full buffer was met inside jit
    values: Float[Array, "*B C"]  # (capacity,) ascending, ties in order of arrival; +inf beyond `seen`
    arrivals: Int[Array, "*B C"]  # (capacity,) the round each value came in, 1, 2, …; 0 beyond `seen`


def empty(capacity: int, dtype: Any) -> SortedScores:
    """
    Return a store with room for ``capacity`` scores.

    Parameters
    ----------
    capacity : int
        Room.
    dtype : dtype
        Of the scores.

    Returns
    -------
    SortedScores
        With nothing in it.
    """
    values = jnp.full(capacity, jnp.inf, dtype)
    return SortedScores(jnp.zeros((), jnp.int32), values, jnp.zeros(capacity, jnp.int32))


def take_in(state: SortedScores, score: Numbers, support: tuple[Scalar, Scalar]) -> SortedScores:
    """
    Put one score in its place.

    Parameters
    ----------
    state : SortedScores
        The store. Outside ``jit`` it grows when it is full.
    score : number
        The score.
    support : tuple
        Where it must lie.

    Returns
    -------
    SortedScores
        The store with the score in it; inside ``jit`` marked as spoilt if the score is unusable or the
        store is full.
    """
    score = as_scores(score, support, "score").astype(state.values.dtype)
    return _insert(state if is_traced(state.seen) else grow(state, 1), score, support)


@jax.jit
def _insert(state: SortedScores, score: Float[Array, ""], support: tuple[Scalar, Scalar]) -> SortedScores:
    capacity = state.values.shape[-1]
    position = jnp.sum(state.values <= score)
    slot = jnp.arange(capacity)

    def put(column: Array, new: Array) -> Array:
        shifted = jnp.concatenate([column[:1], column[:-1]])
        return jnp.where(slot < position, column, jnp.where(slot == position, new, shifted))

    seen = advance(state.seen, usable(score, support) & (state.seen < capacity))
    return SortedScores(seen, put(state.values, score), put(state.arrivals, state.seen + 1))


def grow(state: SortedScores, rounds: int) -> SortedScores:
    """
    Make room for more scores: at least double, where there is not room enough.

    Parameters
    ----------
    state : SortedScores
        The store, or a batch of them.
    rounds : int
        Scores to come.

    Returns
    -------
    SortedScores
        The same scores. Where the count is traced, and so unknown, the room grows by ``rounds``.
    """
    capacity = state.values.shape[-1]
    if is_traced(state.seen):
        wanted = capacity + rounds
    else:
        needed = int(np.max(state.seen, initial=0)) + rounds
        wanted = capacity if needed <= capacity else max(needed, 2 * capacity)
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

    Parameters
    ----------
    first, second : SortedScores
        In time order, which matters only to a discounted belief.

    Returns
    -------
    SortedScores
        The store that would have seen all scores; its room is the sum of both.
    """
    later = jnp.where(second.arrivals > 0, second.arrivals + first.seen, 0)
    values = jnp.concatenate([first.values, second.values])
    values, arrivals = lax.sort((values, jnp.concatenate([first.arrivals, later])), num_keys=1, is_stable=True)
    fine = (first.seen >= 0) & (second.seen >= 0)
    return SortedScores(jnp.where(fine, first.seen + second.seen, -1), values, arrivals)
