"""Where each score will stand among all of them in the end."""

import math
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

NO_PLACE = 2**31 - 2  # of a round without a score: beyond every other


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


def rank_scores(past: Any, scores: Array, observed: Array, capacity: int) -> Ranked:
    """Rank the observed scores of a run among those of a state, None for none, inside ``jit``."""
    arrivals, values = jnp.cumsum(observed, dtype=jnp.int32), jnp.where(observed, scores, jnp.inf)
    if past is not None:
        arrivals = jnp.concatenate([past.arrivals, past.seen + arrivals])
        values = jnp.concatenate([past.values, values])
    arrivals = jnp.where(jnp.isfinite(values), arrivals, 0)
    order = jnp.argsort(values, stable=True)
    places = jnp.zeros(values.shape[0], jnp.int32).at[order].set(jnp.arange(values.shape[0], dtype=jnp.int32))
    places = places[values.shape[0] - scores.shape[0] :]
    beyond = (0, max(capacity - values.shape[0], 0))
    values = jnp.pad(values[order], beyond, constant_values=jnp.inf)[:capacity]
    arrivals = jnp.pad(arrivals[order], beyond)[:capacity]
    return Ranked(values, arrivals, jnp.where(observed, places, NO_PLACE))


def rank_on_host(past: Any, scores: np.ndarray, observed: np.ndarray, capacity: int) -> Ranked:
    """Do what :func:`rank_scores` does for any leading axes, with NumPy: its sort is several times as fast on a CPU."""
    complete, used = bool(observed.all()), 0
    values = scores if complete else np.where(observed, scores, scores.dtype.type(np.inf))
    if past is not None:
        used = int(np.max(past.seen, initial=0))
        values = np.concatenate([past.values[..., :used], values], axis=-1)
    order = _flat_order(values, None)
    ordered = values.reshape(-1)[order]
    ties = ordered[..., 1:] == ordered[..., :-1]
    if np.any(ties if complete else ties & (ordered[..., 1:] < np.inf)):  # left in any order
        order = _flat_order(values, "stable")
        ordered = values.reshape(-1)[order]
    if past is None and complete:
        arrivals = (order % values.shape[-1] + 1).astype(np.int32)
    else:
        arrivals = np.cumsum(observed, axis=-1, dtype=np.int32)
        if past is not None:
            arrivals = np.concatenate([past.arrivals[..., :used], past.seen[..., None] + arrivals], axis=-1)
        arrivals = np.where(ordered < np.inf, arrivals.reshape(-1)[order], np.int32(0))
    places = np.empty(values.shape, np.int32)
    places.reshape(-1)[order] = np.arange(values.shape[-1], dtype=np.int32)
    places = places[..., used:]
    places = places if complete else np.where(observed, places, np.int32(NO_PLACE))
    return Ranked(_resized(ordered, capacity, np.inf), _resized(arrivals, capacity, 0), places)


def _flat_order(values: np.ndarray, kind: Any) -> np.ndarray:
    """Sort each row; indices into the flattened array, which are faster to follow than those along an axis."""
    order = np.argsort(values, axis=-1, kind=kind)
    if values.ndim > 1:
        order += (np.arange(math.prod(values.shape[:-1])) * values.shape[-1]).reshape(*values.shape[:-1], 1)
    return order


def _resized(column: np.ndarray, capacity: int, filler: Any) -> np.ndarray:
    missing = max(capacity - column.shape[-1], 0)
    if missing:
        column = np.pad(column, [(0, 0)] * (column.ndim - 1) + [(0, missing)], constant_values=filler)
    return column[..., :capacity]
