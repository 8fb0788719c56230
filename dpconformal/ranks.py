"""Ranks at arrival: where each score falls among those before it, which needs no model to be uniform."""

from typing import Any

import numpy as np

from dpconformal.time_axis import check_not_column, check_time_index
from dpconformal.validation import Numbers, as_numbers, complain_at, whole


def smoothed_ranks(scores: Numbers, seed: Any = 0) -> np.ndarray:
    """
    Rank each score among those before it, smoothed to a number in [0, 1).

    With n scores before, k of them smaller and e of them equal, this is (k + U(e + 1))/(n + 1), U being uniform. If the
    scores are exchangeable, of whatever distribution, these numbers are independent and exactly uniform. So their
    :func:`dpconformal.diagnostics.uniformity.uniformity` tests the one assumption that conformal prediction makes.

    Parameters
    ----------
    scores : array_like, shape (..., T)
        Scores in time order. Infinite ones have a rank too.
    seed : int or numpy.random.Generator
        Of the smoothing.

    Returns
    -------
    ndarray, shape (..., T)
        Smoothed ranks. The first of a sequence is pure chance.

    Examples
    --------
    >>> smoothed_ranks([0.5, 0.1, 0.9]).round(2)
    array([0.64, 0.13, 0.68])
    """
    less, equal = arrival_ranks(scores)
    rng = seed if isinstance(seed, np.random.Generator) else np.random.default_rng(whole("seed", seed, 0))
    seen = np.arange(1, less.shape[-1] + 1)
    return (less + rng.random(less.shape) * (equal + 1)) / seen


def arrival_ranks(scores: Numbers) -> tuple[np.ndarray, np.ndarray]:
    """
    Count how many of the scores before are smaller, and how many are equal.

    Returns: Smaller scores and equal ones. The work grows with T log T.
    """
    values = np.asarray(as_numbers("scores", scores))
    if values.ndim == 0:
        raise ValueError("scores has shape (): pass a sequence, shape (T,) or (..., T)")
    check_not_column("scores", values.shape)
    check_time_index("scores", scores)
    complain_at("scores", values, np.isnan(values), "has no rank; drop the round or replace the value on purpose")
    if not values.size:
        return np.zeros(values.shape, int), np.zeros(values.shape, int)
    order = np.argsort(values, axis=-1, kind="stable")
    ordered = np.take_along_axis(values, order, axis=-1)
    place = np.arange(values.shape[-1])
    first = np.ones(values.shape, bool)  # where, in sorted order, a new value begins
    first[..., 1:] = ordered[..., 1:] != ordered[..., :-1]
    # Equal scores are sorted by arrival, so a place among equals is the number of equals before.
    equal = place - np.maximum.accumulate(np.where(first, place, 0), axis=-1)
    before = _earlier_and_smaller(order) - equal
    less, same = np.empty_like(before), np.empty_like(equal)
    np.put_along_axis(less, order, before, axis=-1)
    np.put_along_axis(same, order, equal, axis=-1)
    return less, same


def _earlier_and_smaller(order: np.ndarray) -> np.ndarray:
    """
    Count, for each place in sorted order, the smaller places that arrived earlier.

    Bit by bit from the highest: places that share their higher bits stand together in order of arrival, and those with
    a 0 are smaller than those with a 1. Each bit costs a cumulative sum.
    """
    size = order.shape[-1]
    now = np.empty_like(order)
    np.put_along_axis(now, order, np.broadcast_to(np.arange(size), order.shape), axis=-1)
    found, here = np.zeros_like(order), np.arange(size)
    for bit in range((size - 1).bit_length() - 1, -1, -1):
        one = (now >> bit) & 1
        zeros = np.cumsum(1 - one, axis=-1) - (1 - one)
        start = (now >> (bit + 1)) << (bit + 1)  # all places are taken once: a group begins at its lowest
        zeros -= np.take_along_axis(zeros, start, axis=-1)
        np.put_along_axis(found, now, np.take_along_axis(found, now, axis=-1) + one * zeros, axis=-1)
        target = start + np.where(one == 1, (1 << bit) + here - start - zeros, zeros)
        moved = np.empty_like(now)
        np.put_along_axis(moved, target, now, axis=-1)
        now = moved
    return found
