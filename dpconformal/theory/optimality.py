"""Theorem 1 on a run: is every threshold the minimiser it claims to be? Counted anew, without the beliefs' code."""

import numpy as np

from dpconformal.beliefs.weights import schedule_of
from dpconformal.theory import moments
from dpconformal.theory.concentration import odds
from dpconformal.theory.path import Path


def optimality_gap(path: Path, precision: float = 0.0) -> np.ndarray:
    """
    Measure by how much of probability each threshold misses the level, given the scores before it.

    A threshold r minimises the regularised loss of its round if P(X < r) ≤ α ≤ P(X ≤ r) under the belief: its two
    one-sided slopes then have opposite signs.

    ``precision``: Of a threshold, relative to the largest number in play: it may stand for any within four times as
    much. Returns: 0 where a threshold is the minimiser, up to rounding; otherwise how far the level is from what the
    threshold would suit: positive if the threshold is too small, negative if too large.
    """
    count = path.rounds - 1
    share = odds(schedule_of(path.learner), path.rounds)
    weight = np.where(np.isinf(share), 1.0, share / (1 + np.where(np.isinf(share), 0.0, share)))
    if path.discount == 1:
        of_prior, of_score = weight, (1 - weight) / np.maximum(count, 1)
    else:
        of_prior = weight + (1 - weight) * path.discount**count
        of_score = (1 - weight) * (1 - path.discount)
    of_prior, of_score = np.where(count == 0, 1, of_prior)[:, None], np.where(count == 0, 0, of_score)[:, None]
    sizes = np.abs([*moments.support(path.learner.prior), 0.0])
    blur = 4 * precision * np.maximum(np.abs(path.thresholds), np.max(sizes, where=np.isfinite(sizes), initial=0.0))
    blur = np.where(np.isfinite(path.thresholds), blur, 0)
    left, right = path.lowest - blur, path.thresholds + blur
    below, upto = mass_before(path, left, right)
    cdf_left, cdf_right = (moments.cdf(path.learner.prior, x) for x in (left, right))
    too_small = path.asked - (of_prior * cdf_right + of_score * upto)
    too_large = (of_prior * cdf_left + of_score * below) - path.asked
    return np.where(too_small > 0, too_small, np.where(too_large > 0, -too_large, 0))


def mass_before(path: Path, left: np.ndarray, right: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """
    Weigh the earlier scores below a point of each round and level, and up to another.

    Rounds are halved again and again: what the first half of a stretch contributes to the second needs one sort, so
    that all of it takes O(T log² T).

    Returns: Σ β^age over the scores known before < left, and over those ≤ right.
    """
    count = path.noted.size
    places, key = np.unique(path.noted, return_inverse=True)
    asked = [np.searchsorted(places, left, side="left"), np.searchsorted(places, right, side="right")]  # key < place
    answer = [_past_mass(path, left, "left"), _past_mass(path, right, "right")]
    half = 1
    while half <= np.max(path.before, initial=0):
        # What is known before a round is one stretch for each binary digit of its number: this half of a pair, or not.
        here = np.flatnonzero(path.before // half % 2)
        stretch, place = path.before[here] // (2 * half), path.before[here] % half
        pairs = -(-count // (2 * half))
        earlier = np.arange(pairs)[:, None] * 2 * half + np.arange(half)
        known = np.where(earlier < count, key[np.minimum(earlier, count - 1)], places.size)
        age = np.broadcast_to(path.discount ** np.arange(half - 1, -1, -1.0), known.shape)
        order = np.argsort(known, axis=1, kind="stable")
        known, age = np.take_along_axis(known, order, axis=1), np.take_along_axis(age, order, axis=1)
        passed = np.concatenate([np.zeros((pairs, 1)), np.cumsum(age, axis=1)], axis=1)
        # One search serves all stretches: each has keys of its own.
        stride = places.size + 1
        flat = (known + stride * np.arange(pairs)[:, None]).ravel()
        fade = path.discount ** place[:, None].astype(float)
        for mass, query in zip(answer, asked, strict=True):
            found = (
                np.searchsorted(flat, query[here] + stride * stretch[:, None], side="left") - half * stretch[:, None]
            )
            mass[here] += fade * passed[stretch[:, None], found]
        half *= 2
    return answer[0], answer[1]


def _past_mass(path: Path, points: np.ndarray, side: str) -> np.ndarray:
    passed = np.concatenate([[0], np.cumsum(path.past_weights)])
    found = passed[np.searchsorted(path.past, points, side=side)]  # type: ignore[call-overload]
    return path.discount ** path.before[:, None].astype(float) * found
