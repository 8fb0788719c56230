"""The checks of a certificate: what one sequence did at each level, beside what the theorems allow."""

from typing import Any, NamedTuple

import jax
import numpy as np

from dpconformal import metrics
from dpconformal.beliefs import Exact, Quantized
from dpconformal.beliefs.belief import schedule_of
from dpconformal.compositions import Head, Hierarchical
from dpconformal.engine.feedback import Delayed, feedback_stream
from dpconformal.learner import fresh_state, support_of
from dpconformal.metrics.arrays import arrays_of
from dpconformal.metrics.coverage import find_crossings
from dpconformal.metrics.loss import regret_curve
from dpconformal.priors import Uniform
from dpconformal.replay import Replay
from dpconformal.rounds import Rounds
from dpconformal.runs import not_at_once
from dpconformal.theory import moments
from dpconformal.theory.ftrl import concentration, odds, prior_weight
from dpconformal.theory.iid import lower_count, rank_bracket, upper_count
from dpconformal.theory.path import (
    Path,
    Regret,
    bins_of,
    discounted_regret,
    has_regret_bound,
    path_after,
    path_of,
    rounds_to_nearest,
    running_regret,
    tied_rounds,
)
from dpconformal.theory.regret import bin_cost, bound_by_round, regret_bound


class Check(NamedTuple):
    """A check, level by level."""

    seen: np.ndarray  # (A,), what the run did
    low: np.ndarray  # (A,), what is allowed, rounding included; NaN where nothing is claimed
    high: np.ndarray  # (A,)
    round: np.ndarray  # (A,), the first, from 1 at the start of the run, by which the check has failed; 0 if it passes
    claimed: bool = True  # whether anything is claimed for this learner


def checks_of(whole: Replay, delta: float) -> tuple[Check, ...]:
    """Check order, optimality, regret, discounted regret and coverage of one sequence, masked rounds and all."""
    run = whole.observed()
    order = order_check(run)
    if not_at_once(whole):
        known = known_of(whole)
        coverage = no_claim(metrics.coverage(run))
        regret = regret_check(run, delayed_regret(whole, known))
        found = order, optimality_check(run, delayed_path(whole, known)), regret, no_claim(run), coverage
    else:
        path = path_of(run)
        regret, coverage = regret_check(run, regret_and_bound(run, path)), coverage_check(run, path, delta)
        found = order, optimality_check(run, path), regret, discounted_check(run, path), coverage
    if isinstance(whole.learner, Hierarchical):  # what is proved of groups is not proved of all rounds together
        return (order, *(no_claim(check.seen) for check in found[1:]))
    return found


def no_claim(seen: np.ndarray | Replay) -> Check:
    """Return a check that shows what was seen, nothing of a run, and claims nothing."""
    seen = seen if isinstance(seen, np.ndarray) else np.full(seen.thresholds.shape[-1], np.nan)
    nothing = np.full(seen.shape, np.nan)
    return Check(seen, nothing, nothing, np.zeros(seen.shape, int), False)


def order_check(run: Replay) -> Check:
    """Check that no higher level has a smaller threshold: rounds in which a level crosses another."""
    arrays = arrays_of(run)
    involved = find_crossings(arrays.thresholds, arrays.levels)[1]
    nothing = np.zeros(involved.shape[-1])
    return Check(involved.sum(axis=0).astype(float), nothing, nothing, _first_round(involved))


def _first_round(failed: np.ndarray) -> np.ndarray:
    if not failed.shape[0]:
        return np.zeros(failed.shape[1], int)
    return np.where(failed.any(axis=0), failed.argmax(axis=0) + 1, 0)


def optimality_check(run: Replay, path: Path | None) -> Check:
    """Check that each threshold minimises the regularised loss of its round (Theorems 1 and 6), up to rounding."""
    if path is None:
        return no_claim(run)
    return gap_check(run, optimality_gap(path, precision(run)), path.learner.prior)


def gap_check(run: Replay, gap: np.ndarray, prior: Any) -> Check:
    """Hold what thresholds miss of their level, (N, A), to what rounding may do."""
    allowed = max(1e-9, 256 * precision(run))
    if np.asarray(run.thresholds).dtype == np.float32 and not getattr(prior, "closed_form", False):
        # How well the prior's cdf is known in single precision: a beta with large shapes is a hard one.
        x = np.asarray(prior.quantile(np.linspace(0.01, 0.99, 99, dtype=np.float32)), np.float32)
        allowed += 4 * float(np.max(np.abs(np.asarray(prior.cdf(x), float) - moments.cdf(prior, x))))
    gap = np.abs(gap)
    high = np.full(gap.shape[1], allowed)
    return Check(gap.max(axis=0, initial=0), np.zeros(gap.shape[1]), high, _first_round(~(gap <= high)))


def precision(run: Replay) -> float:
    """Return the rounding unit of the thresholds."""
    dtype = np.asarray(run.thresholds).dtype
    return float(np.finfo(dtype if np.issubdtype(dtype, np.floating) else float).eps)


def optimality_gap(path: Path, precision: float = 0.0) -> np.ndarray:
    """
    Measure by how much of probability each threshold misses the level, given the scores before it.

    A threshold r minimises the regularised loss of its round if P(X < r) ≤ α ≤ P(X ≤ r) under the belief: its two
    one-sided slopes then have opposite signs. ``precision``: Of a threshold, relative to the largest number in play: it
    may stand for any within four times as much. Returns: 0 where a threshold is the minimiser, up to rounding;
    otherwise how far the level is from what the threshold would suit: positive if the threshold is too small.
    """
    count, weight = path.rounds - 1, prior_weight(odds(schedule_of(path.learner), path.rounds))
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


def mass_before(path: Path, left: np.ndarray, right: np.ndarray) -> list[np.ndarray]:
    """
    Weigh the earlier scores below a point of each round and level, and up to another: Σ β^age.

    Rounds are halved again and again: what the first half of a stretch contributes to the second needs one sort, so
    that all of it takes O(T log² T).
    """
    count, beta = path.noted.size, path.discount
    places, key = np.unique(path.noted, return_inverse=True)
    asked = [np.searchsorted(places, left, side="left"), np.searchsorted(places, right, side="right")]  # key < place
    passed, faded = np.concatenate([[0], np.cumsum(path.past_weights)]), beta ** path.before[:, None].astype(float)
    answer = [faded * passed[np.searchsorted(path.past, left)]]  # from before the run
    answer += [faded * passed[np.searchsorted(path.past, right, side="right")]]
    half = 1
    while half <= np.max(path.before, initial=0):
        # What is known before a round is one stretch for each binary digit of its number: this half of a pair, or not.
        here = np.flatnonzero(path.before // half % 2)
        stretch, place = path.before[here, None] // (2 * half), path.before[here, None] % half
        pairs = -(-count // (2 * half))
        earlier = np.arange(pairs)[:, None] * 2 * half + np.arange(half)
        known = np.where(earlier < count, key[np.minimum(earlier, count - 1)], places.size)
        age = np.broadcast_to(beta ** np.arange(half - 1, -1, -1.0), known.shape)
        order = np.argsort(known, axis=1, kind="stable")
        known, age = np.take_along_axis(known, order, axis=1), np.take_along_axis(age, order, axis=1)
        passed = np.concatenate([np.zeros((pairs, 1)), np.cumsum(age, axis=1)], axis=1)
        # One search serves all stretches: each has keys of its own.
        stride = places.size + 1
        flat = (known + stride * np.arange(pairs)[:, None]).ravel()
        for mass, query in zip(answer, asked, strict=True):
            found = np.searchsorted(flat, query[here] + stride * stretch, side="left") - half * stretch
            mass[here] += beta ** place.astype(float) * passed[stretch, found]
        half *= 2
    return answer


def regret_check(run: Replay, found: Regret | None, memory: float = np.inf) -> Check:
    """Hold the regret to its bound, each round within memory being off by the rounding of its threshold; or show it."""
    if found is None:
        curve = regret_curve(run.thresholds, run.scores, run.levels)[0]
        return no_claim(curve[-1] if len(curve) else np.zeros(curve.shape[1]))
    sizes = np.abs(np.concatenate([np.ravel(run.scores), np.ravel(run.thresholds)]).astype(float))
    scale = float(np.max(sizes, initial=0, where=np.isfinite(sizes)))
    bound = found.bound + 2 * precision(run) * scale * np.minimum(found.horizons, memory)[:, None]
    late = ~(found.regret <= bound)
    where = np.where(late.any(axis=0), found.horizons[late.argmax(axis=0)], 0)
    # What is shown is the end of the run, or where the bound is exceeded most.
    excess = np.where(late, np.nan_to_num(found.regret - bound, nan=-1e300), -np.inf)
    shown = np.where(where > 0, excess.argmax(axis=0), found.horizons.size - 1)
    columns = np.arange(shown.size)
    return Check(found.regret[shown, columns], np.full(shown.size, -np.inf), bound[shown, columns], where)


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
    return Regret(rounds, curve, regret_bound(rounds[:, None], levels, _width_of(run)))


def _width_of(run: Replay) -> float:
    """Measure the support of a learner, or the scores where it has none."""
    low, high = support_of(run.learner)
    width = float(high) - float(low)
    return width if np.isfinite(width) else float(np.ptp(np.asarray(run.scores, float))) or 1.0


def discounted_check(run: Replay, path: Path | None) -> Check:
    """Check the discounted regret against its bound, at horizons that together see every round (Theorem 6)."""
    rounds = run.scores.shape[0]
    if path is None or path.discount == 1 or not rounds or path.levels.ndim == 2:
        return no_claim(run)
    memory = max(int(1 / (1 - path.discount)), 1)
    horizons = np.unique(np.append(np.arange(memory, rounds, memory), rounds))
    return regret_check(run, discounted_regret(path, horizons), 1 / (1 - path.discount))


def coverage_check(run: Replay, path: Path | None, delta: float) -> Check:
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


def coverage_if_iid(run: Replay, asked: Any, count: Any, weight: Any, bins: int | None, delta: float) -> Check:
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
    return Check(seen, low, high, np.where((seen >= low) & (seen <= high), 0, scores.size))


class Known(NamedTuple):
    """What a run with a delay knew."""

    scores: np.ndarray  # (K,), that became known, in that order
    before: np.ndarray  # (N,), how many of them before each round that has a score
    start: Any  # the learner's own state, before them


def known_of(whole: Replay) -> Known:
    """Find what was known in each round of a run with a delay."""
    if whole.delay is None:
        raise ValueError(
            "run.delay is None: rounds were taken out of a run with a delay; pass the run itself, mask and all"
        )
    scores, start, waiting = np.asarray(whole.scores), whole.start, None
    observed = np.ones(scores.shape, bool) if whole.mask is None else ~np.asarray(whole.mask)
    if isinstance(start, Delayed):
        start, waiting = start.state, start.waiting
    feedback = feedback_stream(whole.learner, whole.delay, Rounds(scores, None, observed), waiting)
    new = np.asarray(feedback.observed)
    return Known(np.asarray(feedback.scores)[new], (np.cumsum(new) - new)[observed], start)


def delayed_path(whole: Replay, known: Known) -> Path | None:
    """Follow the path of a belief that learned its scores late; None for a learner without one."""
    learner, start = whole.learner, known.start
    if not isinstance(learner, (Exact, Quantized, Head)):
        return None
    if start is None:  # the bins are those of the whole run
        fresh = fresh_state(learner, np.shape(whole.scores)[0], np.asarray(whole.scores).dtype)
        start = jax.tree.map(np.asarray, fresh)
    return path_after(whole.observed()._replace(scores=known.scores, start=start), known.before)  # type: ignore[arg-type]


def delayed_regret(whole: Replay, known: Known) -> Regret | None:
    """
    Compute regret and bound at every horizon of a run with a delay.

    None with a discount, for heads, for beliefs whose prior is not uniform, for those that carry on, and for levels
    that change by round. Other learners are held to what Exact with a uniform prior guarantees.
    """
    run, learner = whole.observed(), whole.learner
    belief = isinstance(learner, (Exact, Quantized))
    unproved = belief and (learner.discount is not None or not isinstance(learner.prior, Uniform))
    unproved |= isinstance(learner, Head) or (belief and whole.start is not None) or np.ndim(run.levels) == 2
    if unproved or not np.size(run.scores):
        return None
    levels, rounds = np.asarray(run.levels, float), np.arange(1, np.size(run.scores) + 1)
    bound = _width_of(run) * bound_by_round(known.before, levels, learner.schedule if belief else None)
    if isinstance(learner, Quantized):
        bound += bin_cost(_width_of(run), bins_of(whole), learner.rounding) * rounds[:, None]
    return Regret(rounds, regret_curve(run.thresholds, run.scores, run.levels)[0], bound)
