"""The lines of a certificate: each check of one sequence, for all its levels."""

from typing import Any, NamedTuple

import numpy as np
from scipy import special

from dpconformal import metrics
from dpconformal.beliefs import Quantized
from dpconformal.beliefs.weights import schedule_of
from dpconformal.compositions import Head
from dpconformal.learner import support_of
from dpconformal.metrics.arrays import arrays_of
from dpconformal.metrics.coverage import crossed
from dpconformal.metrics.loss import regret_curve
from dpconformal.replay import Replay
from dpconformal.theory import moments
from dpconformal.theory.iid import concentration, odds, rank_bracket
from dpconformal.theory.path import (
    Path,
    Regret,
    bins_of,
    discounted_regret,
    has_regret_bound,
    rounds_to_nearest,
    running_regret,
    tied_rounds,
)
from dpconformal.theory.regret import regret_bound


class Line(NamedTuple):
    """A check, level by level."""

    seen: np.ndarray  # (A,), what the run did
    low: np.ndarray  # (A,), what is allowed, rounding included; NaN where nothing is claimed
    high: np.ndarray  # (A,)
    round: np.ndarray  # (A,), the first, from 1 at the start of the run, by which the check has failed; 0 if it passes
    claimed: bool = True  # whether anything is claimed for this learner


def order(run: Replay) -> Line:
    """Check that no higher level has a smaller threshold: rounds in which a level crosses another."""
    arrays = arrays_of(run)
    involved = crossed(arrays.thresholds, arrays.levels)[1]
    nothing = np.zeros(involved.shape[-1])
    return Line(involved.sum(axis=0).astype(float), nothing, nothing, _first(involved))


def optimality(run: Replay, path: Path | None) -> Line:
    """Check that each threshold minimises the regularised loss of its round (Theorems 1 and 6), up to rounding."""
    if path is None:
        return no_claim(np.full(run.thresholds.shape[-1], np.nan))
    return near_enough(run, optimality_gap(path, precision(run)), path.learner.prior)


def near_enough(run: Replay, gap: np.ndarray, prior: Any) -> Line:
    """Hold what thresholds miss of their level, (N, A), to what rounding may do."""
    allowed = np.full(gap.shape[1], max(1e-9, 256 * precision(run)) + 4 * _cdf_error(run, prior))
    gap = np.abs(gap)
    return Line(gap.max(axis=0, initial=0), np.zeros(gap.shape[1]), allowed, _first(~(gap <= allowed)))


def precision(run: Replay) -> float:
    """Return the rounding unit of the thresholds."""
    dtype = np.asarray(run.thresholds).dtype
    return float(np.finfo(dtype if np.issubdtype(dtype, np.floating) else float).eps)


def _cdf_error(run: Replay, prior: Any) -> float:
    """Measure how well the prior's cdf is known in the precision of the run: a beta with large shapes is a hard one."""
    dtype = np.asarray(run.thresholds).dtype
    if dtype != np.float32 or getattr(prior, "closed_form", False):
        return 0.0
    x = np.asarray(prior.quantile(np.linspace(0.01, 0.99, 99, dtype=np.float32)), np.float32)
    return float(np.max(np.abs(np.asarray(prior.cdf(x), float) - moments.cdf(prior, x))))


def regret(run: Replay, path: Path | None) -> Line:
    """Check the regret of one sequence against its bound, at every horizon."""
    found = regret_and_bound(run, path)
    if found is not None:
        return within(run, found, float(np.size(run.scores)))
    curve = regret_curve(run.thresholds, run.scores, run.levels)[0]
    return no_claim(curve[-1] if len(curve) else np.zeros(curve.shape[1]))


def regret_and_bound(run: Replay, path: Path | None) -> Regret | None:
    """
    Compute the regret of one sequence and its bound at every horizon (Theorems 2 and 5, and that for ``Corrected``).

    Without a path the bound is what Exact with a uniform prior guarantees. None with a discount, for heads without a
    bound, and for levels that change by round.
    """
    levels, rounds = np.asarray(run.levels, float), np.arange(1, np.size(run.scores) + 1)
    unproved = path is not None and (path.discount != 1 or not has_regret_bound(path))
    if not rounds.size or unproved or levels.ndim == 2:
        return None
    if path is not None:
        return running_regret(path)
    curve = regret_curve(run.thresholds, run.scores, run.levels)[0]
    return Regret(rounds, curve, regret_bound(rounds[:, None], levels, width_of(run)))


def width_of(run: Replay) -> float:
    """Measure the support of a learner, or the scores where it has none."""
    low, high = support_of(run.learner)
    width = float(high) - float(low)
    return width if np.isfinite(width) else float(np.ptp(np.asarray(run.scores, float))) or 1.0


def fading_regret(run: Replay, path: Path | None) -> Line:
    """Check the discounted regret against its bound, at horizons that together see every round (Theorem 6)."""
    rounds = run.scores.shape[0]
    if path is None or path.discount == 1 or not rounds or path.levels.ndim == 2:
        return no_claim(np.full(run.thresholds.shape[-1], np.nan))
    memory = max(int(1 / (1 - path.discount)), 1)
    horizons = np.unique(np.append(np.arange(memory, rounds, memory), rounds))
    return within(run, discounted_regret(path, horizons), 1 / (1 - path.discount))


def within(run: Replay, found: Regret, memory: float) -> Line:
    """Compare regret and bound; each round within memory may be off by the rounding of its threshold."""
    sizes = np.abs(np.concatenate([np.ravel(run.scores), np.ravel(run.thresholds)]).astype(float))
    scale = float(np.max(sizes, initial=0, where=np.isfinite(sizes)))
    slack = 2 * precision(run) * scale * np.minimum(found.horizons, memory)[:, None]
    bound = found.bound + slack
    late = ~(found.regret <= bound)
    where = np.where(late.any(axis=0), found.horizons[late.argmax(axis=0)], 0)
    # What is shown is the end of the run, or where the bound is exceeded most.
    excess = np.where(late, np.nan_to_num(found.regret - bound, nan=-1e300), -np.inf)
    shown = np.where(where > 0, excess.argmax(axis=0), found.horizons.size - 1)
    columns = np.arange(shown.size)
    return Line(found.regret[shown, columns], np.full(shown.size, -np.inf), bound[shown, columns], where)


def _first(wrong: Any) -> np.ndarray:
    if not wrong.shape[0]:
        return np.zeros(wrong.shape[1], int)
    return np.where(wrong.any(axis=0), wrong.argmax(axis=0) + 1, 0)


def no_claim(seen: np.ndarray) -> Line:
    """Return a line that shows what was seen and claims nothing."""
    nothing = np.full(seen.shape, np.nan)
    return Line(seen, nothing, nothing, np.zeros(seen.shape, int), False)


_EXACT = 2**14  # events up to which the distribution of their count is computed; Chernoff bounds it beyond


def coverage(run: Replay, path: Path | None, delta: float) -> Line:
    """
    Check the coverage of one sequence; a head is held to what it asks its belief for.

    Without a path the run is held to what Exact guarantees. No claim with a discount, nor for bins that round to the
    nearest: scores that count at the centre of their bin may lie above it, unless a head raises the thresholds.
    """
    promised = path is None or (path.discount == 1 and (path.head is not None or not rounds_to_nearest(run.learner)))
    if not np.size(run.scores) or not promised:
        return no_claim(metrics.coverage(run))
    if path is None:
        rounds, schedule, asked = np.arange(1.0, run.scores.shape[0] + 1), None, np.asarray(run.levels, float)
    else:
        rounds, schedule, asked = path.rounds, path.learner.schedule, path.asked
    belief = run.learner.learner if isinstance(run.learner, Head) else run.learner
    bins = bins_of(run) if isinstance(belief, Quantized) else None
    return coverage_if_iid(run, asked, rounds - 1, np.asarray(concentration(rounds, schedule)), bins, delta)


def coverage_if_iid(run: Replay, asked: Any, count: Any, weight: Any, bins: int | None, delta: float) -> Line:
    """
    Hold a coverage to the band that iid scores leave with probability ``delta`` at most, level by level.

    Under exchangeability the ranks of the scores at their arrival are independent. A threshold lies between two order
    statistics of known ranks (:func:`dpconformal.theory.coverage_bracket`), so the number of covered rounds lies
    between two sums of independent coins, whose quantiles are the band. ``asked``: Levels, (A,) or (T, A). ``count``,
    ``weight``: How many scores the belief knew in each round, and its concentration.
    """
    thresholds, scores = np.asarray(run.thresholds), np.asarray(run.scores)
    rounding, seen = 4 * precision(run), metrics.coverage(run)
    # Ties raise the upper end, by the covered rounds whose score counts at the threshold or above it.
    ties = tied_rounds(run.learner, bins, scores, thresholds).mean(axis=0)
    low, high = np.empty((2, seen.size))
    for i, level in enumerate(np.broadcast_to(asked, thresholds.shape).T):
        least = rank_bracket(np.maximum(level - rounding, 0), count, weight)[0] / (count + 1)
        most = rank_bracket(np.minimum(level + rounding, 1), count, weight)[1] / (count + 1)
        low[i] = lower_count(least, delta / 2) / scores.size
        high[i] = min(upper_count(most, delta / 2) / scores.size + ties[i], 1)
    return Line(seen, low, high, np.where((seen >= low) & (seen <= high), 0, scores.size))


def upper_count(chances: np.ndarray, tail: float) -> int:
    """Return the least number that a count of events exceeds with probability ``tail`` at most, or one above it."""
    rounds = chances.size
    if rounds <= _EXACT:
        at_least = np.cumsum(_distribution(chances)[::-1])[::-1]  # P(count ≥ k)
        return int(np.searchsorted(-at_least, -tail - 1e-12)) - 1
    # P(count ≥ K'(θ)) ≤ exp(K(θ) - θ K'(θ)), K being the logarithm of the moment generating function.
    inner = chances[(chances > 0) & (chances < 1)]
    certain = int((chances >= 1).sum())
    small, large = 0.0, 50.0
    for _ in range(60):
        theta = (small + large) / 2
        tilted = special.expit(theta + special.logit(inner))
        rate = theta * tilted.sum() - np.log1p(inner * np.expm1(theta)).sum()
        small, large = (theta, large) if rate < -np.log(tail) else (small, theta)
    return min(certain + int(np.ceil(tilted.sum())), rounds)


def lower_count(chances: np.ndarray, tail: float) -> int:
    """Return a number that the count of events falls below with at most a given probability."""
    return chances.size - upper_count(1 - chances, tail)


def _distribution(chances: np.ndarray) -> np.ndarray:
    """P(count = k): distributions of halves, convolved pairwise by FFT."""
    rows = np.stack([1 - chances, chances], axis=1)
    while rows.shape[0] > 1:
        if rows.shape[0] % 2:
            rows = np.concatenate([rows, np.eye(1, rows.shape[1])])  # a coin that never shows heads
        size = 2 * rows.shape[1] - 1
        points = 1 << (size - 1).bit_length()
        spectrum = np.fft.rfft(rows, points, axis=1)
        rows = np.maximum(np.fft.irfft(spectrum[::2] * spectrum[1::2], points, axis=1)[:, :size], 0)
    return rows[0] if rows.size else np.ones(1)


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
