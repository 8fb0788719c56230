"""
A run seen as the path of a regularised leader: its optimality and its regret, bounded by what happened on the way.

Everything is in float64 on the host. First the bounds of the regret, then the gap that tells whether each threshold
minimises the loss of its round, and last how a path is read off a run.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from dpconformal.beliefs import Exact, Quantized
from dpconformal.beliefs.belief import schedule_of
from dpconformal.compositions import Corrected, Head, Hierarchical
from dpconformal.engine.states import Delayed, feedback_stream
from dpconformal.engine.totals import pinball
from dpconformal.learner import State, support_of
from dpconformal.metrics.arrays import arrays_of, checked_run
from dpconformal.metrics.loss import best_threshold, regret_curve
from dpconformal.priors import Uniform
from dpconformal.replay import Replay
from dpconformal.rounds import Rounds
from dpconformal.runs import not_at_once
from dpconformal.theory import moments
from dpconformal.theory.bounds import bin_cost, bound_by_round, regret_bound
from dpconformal.theory.ftrl import excess_regularizer, odds, path_weights, prior_weight
from dpconformal.validation import is_traced


class Path(NamedTuple):
    """
    One sequence of a run of :class:`dpconformal.Exact`, :class:`dpconformal.Quantized`, or a head on one of them.

    Where every score is known at the end of its round there are as many thresholds as scores, N = T.
    """

    learner: Exact | Quantized  # the belief
    head: Head | None  # what asked it for levels other than the run's, or None
    thresholds: np.ndarray  # (N, A)
    # The least that the belief's own threshold may have been: a head raises those of a binned belief to the upper edge.
    lowest: np.ndarray  # (N, A)
    scores: np.ndarray  # (T,), in the order in which they became known
    levels: np.ndarray  # (A,) or (N, A), of the run
    asked: np.ndarray  # (N, A), what the belief was asked for
    noted: np.ndarray  # (T,), the scores as the belief holds them: itself, or where the scores of its bin count
    before: np.ndarray  # (N,), how many of the scores were known when a threshold was made
    rounds: np.ndarray  # (N,), counted from 1 at the very first score of the belief
    weights: np.ndarray  # (N,), of the regulariser beside the newest loss
    discount: float  # 1 without a discount
    past: np.ndarray  # (M,), scores from before the run, ascending
    past_weights: np.ndarray  # (M,), what is left of their weight before its first round


class Regret(NamedTuple):
    """Regret and its bound at some horizons."""

    horizons: np.ndarray  # (H,), rounds into the run
    regret: np.ndarray  # (H, A), at each of them
    bound: np.ndarray  # (H, A)


def path_bound(run: Any) -> Any:
    """
    Bound the regret of a run, from its prior, its schedule and the path it took (Theorems 2, 5 and 6).

    With ψ̃ = ψ - min ψ, the comparator u, the thresholds rₜ, their slopes gₜ and the least density μₜ between threshold
    and score: h_T ψ̃(u) + Σ min(lossₜ, gₜ²/(2 hₜ μₜ)), plus Σ (hₜ - hₜ₊₁)⁺ ψ̃(rₜ₊₁) for a schedule whose concentration
    falls, plus what binning costs. With a discount all terms are discounted, and so is the regret meant. For
    :class:`dpconformal.Corrected` ψ̃ is that of level 1, and α(high - u) is added.

    Parameters
    ----------
    run : Replay
        Of :class:`dpconformal.Exact` or :class:`dpconformal.Quantized`, any prior, schedule and discount, or of
        :class:`dpconformal.Corrected`; also one that carries on from an earlier state. With the same levels every
        round.

    Returns
    -------
    ndarray, shape (..., A)
        No regret exceeds it, discounted with a discount: :func:`dpconformal.metrics.regret`,
        :func:`dpconformal.metrics.discounted_regret`.

    Examples
    --------
    >>> import dpconformal as dpc
    >>> run = dpc.replay(dpc.Exact(), [1.0, 0.0] * 50, levels=[0.5])
    >>> regret, bound = dpc.metrics.regret(run)[0], path_bound(run)[0]
    >>> round(float(regret), 2), round(float(bound), 2)
    (1.83, 3.24)
    """
    found = []
    for _, sequence in sequences(run):
        if isinstance(run.learner, (Exact, Quantized, Head)) and not_at_once(run):
            raise ValueError(
                f"run.delay = {run.delay!r}: the bound on a path is for runs in which every score is known at the end "
                "of its round; use delayed_regret_bound, or certify"
            )
        path = path_of(sequence)
        if path is None or not has_regret_bound(path):
            raise ValueError(
                f"run.learner = {run.learner!r}: only Exact and Quantized, and Corrected on a bounded support, have a "
                "path of this kind"
            )
        if not path.scores.size:
            found.append(np.zeros(path.levels.size))
            continue
        outcome = running_regret(path) if path.discount == 1 else discounted_regret(path, np.array([path.scores.size]))
        found.append(outcome.bound[-1])
    return np.array(found).reshape((*np.shape(run.thresholds)[:-2], np.shape(run.thresholds)[-1]))


def has_regret_bound(path: Path) -> bool:
    """Whether the regret is bounded; of the heads that of Corrected is, unless its first threshold is infinite."""
    return path.head is None or (
        isinstance(path.head, Corrected) and bool(np.isfinite(moments.support(path.learner.prior)[1]))
    )


def regret_and_bound(whole: Replay, path: Path | None) -> Regret | None:
    """
    Compute the regret of one sequence and its bound at every horizon (Theorems 2 and 5, and that for ``Corrected``).

    Learners without a path are held to what Exact with a uniform prior guarantees, and so are beliefs with a delay.
    None where nothing is proved: with a discount, for levels that change by round, for heads other than ``Corrected``;
    with a delay also for ``Corrected``, for other priors, and for beliefs that carry on from an earlier state.
    """
    run, learner, late = whole.observed(), whole.learner, not_at_once(whole)
    levels, rounds = np.asarray(run.levels, float), np.arange(1, np.size(run.scores) + 1)
    if not rounds.size or levels.ndim == 2:
        return None
    if path is not None and not late:
        return running_regret(path) if path.discount == 1 and has_regret_bound(path) else None
    low, high = (float(end) for end in support_of(learner))
    width = high - low  # or the range of the scores, where there is no support
    width = width if np.isfinite(width) else float(np.ptp(np.asarray(run.scores, float))) or 1.0
    if not late:
        bound = regret_bound(rounds[:, None], levels, width)
    else:
        belief = isinstance(learner, (Exact, Quantized))
        if isinstance(learner, Head) or (
            belief
            and (learner.discount is not None or not isinstance(learner.prior, Uniform) or whole.start is not None)
        ):
            return None
        bound = width * bound_by_round(known_of(whole).before, levels, learner.schedule if belief else None)
        if isinstance(learner, Quantized):
            bound += bin_cost(width, bins_of(whole), learner.rounding) * rounds[:, None]
    return Regret(rounds, regret_curve(run.thresholds, run.scores, run.levels)[0], bound)


def running_regret(path: Path) -> Regret:
    """Compute regret and bound of an undiscounted path at every horizon."""
    rounds = np.arange(1, path.scores.size + 1)
    regret, comparator = regret_curve(path.thresholds, path.scores, path.levels)
    return Regret(rounds, regret, _bound_at(path, comparator, rounds))


def discounted_regret(path: Path, horizons: np.ndarray) -> Regret:
    """Compute discounted regret and bound of a path at some horizons, against the best thresholds for those weights."""
    paid = pinball(np, path.thresholds, path.scores[:, None], path.levels)
    # Older rounds weigh less than 1e-18 of the newest.
    memory = int(np.ceil(41.5 / -np.log(path.discount)))
    comparator, least = np.empty((2, horizons.size, path.levels.size))
    for i, horizon in enumerate(horizons):
        window = path.scores[max(0, horizon - memory) : horizon]
        weights = path.discount ** np.arange(window.size - 1, -1, -1.0)
        comparator[i], least[i] = best_threshold(np, window, path.levels[None], weights)
    total = _discounted_sum(path.discount, paid)[horizons - 1]
    return Regret(horizons, total - least, _bound_at(path, comparator, horizons))


def _bound_at(path: Path, comparator: np.ndarray, horizons: np.ndarray) -> np.ndarray:
    """Add up the terms of :func:`path_bound`, against a comparator for each horizon."""
    prior, beta, levels = path.learner.prior, path.discount, path.levels
    # In single precision an end of the support may lie beside where the prior has it.
    low, high = moments.support(prior)
    noted = np.clip(path.noted, low, high)[:, None]
    played = [np.clip(r, low, high) for r in (path.lowest, path.thresholds)]
    # Each round adds min(loss, g²/(2 w μ)) at most, g being 1 - α above the score and α below it. No score is noted
    # between a threshold and what it may have been before a head raised it.
    density = moments.least_density(prior, np.minimum(played[0], noted), np.maximum(played[1], noted))
    paid = [pinball(np, r, path.noted[:, None], levels) for r in (path.lowest, path.thresholds)]
    slope = np.where(path.thresholds > path.noted[:, None], 1 - levels, levels)
    with np.errstate(divide="ignore", invalid="ignore"):
        smooth = slope**2 / (2 * path.weights[:, None] * density)
    most = np.maximum(*paid)
    terms = np.where(most == 0, 0, np.fmin(most, smooth))

    # The regulariser of round t is w_t·away(r) + pull(r). Corrected pulls upwards, but at level 0.
    level = levels if path.head is None else np.where(levels > 0, 1.0, 0.0)

    def away(r: np.ndarray) -> Any:
        return excess_regularizer(r, level, prior)

    def pull(r: np.ndarray) -> Any:
        return np.zeros(levels.size) if path.head is None else levels * (high - r)

    with np.errstate(invalid="ignore"):
        fall = np.maximum(path.weights[:-1] - path.weights[1:] / beta, 0)[:, None]
        later = np.maximum(away(path.lowest[1:]), away(path.thresholds[1:]))
        # Entry t: what the falling weight before round t + 1 costs, discounted once since then.
        terms[1:] += beta * np.where((fall > 0) & (later > 0), fall * later, 0)
    if path.noted is not path.scores:
        scores, error = path.scores[:, None], (path.noted - path.scores)[:, None]
        terms += pinball(np, path.thresholds, scores, levels) - np.minimum(*paid)
        terms += np.where(error > 0, levels, levels - 1) * error  # by what noting may have raised the comparator's loss
    since_start = beta ** (horizons - 1.0)[:, None]
    past = total_loss(path.past, path.past_weights, comparator, levels)
    leash = _multiply(path.weights[horizons - 1, None], away(comparator)) + pull(comparator)
    at_start = np.zeros(levels.size)  # the first threshold is the prior's quantile, up to rounding
    if path.past.size:
        first = path.lowest[0], path.thresholds[0]
        losses = [beta * total_loss(path.past, path.past_weights, r, levels) for r in first]
        leashes, pulls = [_multiply(path.weights[0], away(r)) for r in first], [pull(r) for r in first]
        at_start = np.minimum(*losses) + np.minimum(*leashes) + np.minimum(*pulls)
    return leash + since_start * (beta * past - at_start) + _discounted_sum(beta, terms)[horizons - 1]


def total_loss(values: np.ndarray, weights: np.ndarray, r: np.ndarray, level: np.ndarray) -> np.ndarray:
    """Sum the weighted losses of many thresholds on one sorted sample."""
    if not values.size:
        return np.zeros(r.shape)
    before = np.searchsorted(values, r, side="right")
    mass, moment = (np.concatenate([[0], np.cumsum(w)]) for w in (weights, weights * values))
    below = mass[before] * r - moment[before]  # Σ w (r - value)⁺
    return below - level * (mass[-1] * r - moment[-1])


def _multiply(weight: Any, excess: Any) -> Any:
    """Multiply, where an infinite weight on nothing is nothing."""
    with np.errstate(invalid="ignore"):
        return np.where(excess == 0, 0, weight * excess)


def _discounted_sum(beta: float, terms: np.ndarray) -> np.ndarray:
    """Sum up with a discount; once infinite, for ever."""
    from scipy.signal import lfilter  # slow to import

    endless = np.maximum.accumulate(~np.isfinite(terms), axis=0)
    return np.where(endless, np.inf, lfilter([1.0], [1.0, -beta], np.where(endless, 0, terms), axis=0))


class Known(NamedTuple):
    """Scores of a run with a delay in the order in which they became known."""

    scores: np.ndarray  # (K,)
    before: np.ndarray  # (N,), how many of them before each round that has a score
    start: State  # the learner's own state, before them


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


def optimality_gap(path: Path, precision: float = 0.0) -> np.ndarray:
    """
    Measure by how much of probability each threshold misses the level, given the scores before it.

    A threshold r minimises the regularised loss of its round if P(X < r) ≤ α ≤ P(X ≤ r) under the belief: its two
    one-sided slopes then have opposite signs. The gap is 0 there; otherwise it is the distance of the level from the
    nearer of the two, positive if the threshold is too small. A threshold stands for any within four times
    ``precision``, relative to the largest number in play.
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


_BLOCK = 128  # rounds that are weighed at a time


def mass_before(path: Path, left: np.ndarray, right: np.ndarray) -> np.ndarray:
    """Weigh the earlier scores below ``left`` and up to ``right``, (2, N, A): each counts β^age."""
    found, beta = np.empty((2, *left.shape)), path.discount
    # Scores known before a block of rounds are kept in order; those that become known within it are few.
    values, weights, count = path.past, path.past_weights, 0
    for start in range(0, len(left), _BLOCK):
        rows = slice(start, start + _BLOCK)
        before = path.before[rows]
        known, last = before[0], before[-1]
        fresh = np.argsort(path.noted[count:known]) + count
        place = np.searchsorted(values, path.noted[fresh])
        values = np.insert(values, place, path.noted[fresh])
        weights = np.insert(weights * beta ** float(known - count), place, beta ** (known - 1.0 - fresh))
        count, recent, age = known, path.noted[known:last], before[:, None] - 1 - np.arange(known, last)
        of_recent = np.where(age >= 0, beta ** np.maximum(age, 0.0), 0.0)
        passed, faded = np.concatenate([[0], np.cumsum(weights)]), beta ** (before - known)[:, None].astype(float)
        inside = recent < left[rows, :, None], recent <= right[rows, :, None]
        places = np.searchsorted(values, left[rows]), np.searchsorted(values, right[rows], side="right")
        for mass, here, place in zip(found, inside, places, strict=True):
            mass[rows] = faded * passed[place] + np.einsum("nak,nk->na", here, of_recent)
    return found


def sequences(run: Any, observed: bool = True, changing: bool = False) -> Iterator[tuple[tuple[int, ...], Replay]]:
    """Yield the sequences of a batch: the index, and the run of that sequence on the host."""
    arrays = arrays_of(checked_run(run)._replace(mask=None))
    if arrays.xp is jnp or is_traced(run.mask, run.delay):
        raise ValueError("run is being traced: the theorems are checked outside jit")
    if not changing and np.ndim(run.levels) == arrays.thresholds.ndim:
        raise ValueError(
            f"run.levels has shape {np.shape(run.levels)}: they change by round, and the bounds are for a fixed level"
        )
    start = None if run.start is None else jax.tree.map(np.asarray, run.start)
    thresholds, scores, levels = (np.asarray(a) for a in (run.thresholds, run.scores, run.levels))
    host = run._replace(thresholds=thresholds, state=None, scores=scores, levels=levels, start=start)
    for index in np.ndindex(arrays.thresholds.shape[:-2]):
        one = host.sequence(*index)
        yield index, one.observed() if observed else one  # masks leave another number of rounds in each


def path_of(whole: Replay) -> Path | None:
    """Follow the path of a belief through one sequence; None for learners without one."""
    if not isinstance(whole.learner, (Exact, Quantized, Head)):
        return None
    run, start = whole.observed(), whole.start
    given, before = np.asarray(run.scores), np.arange(np.size(run.scores))
    if not_at_once(whole):
        given, before, start = known_of(whole)
    head = run.learner if isinstance(run.learner, Head) else None
    learner = run.learner if head is None else head.learner
    discount = 1.0 if learner.discount is None else float(learner.discount)
    thresholds, scores, levels = (np.asarray(a, float) for a in (run.thresholds, given, run.levels))
    noted, lowest = scores, thresholds
    past, past_weights, seen = np.zeros(0), np.zeros(0), 0 if start is None else int(start.seen)
    if isinstance(learner, Quantized):
        atoms, here = _assign_bins(learner, given, bins_of(whole))
        noted = atoms[here]
        if start is not None:
            past, past_weights = atoms, np.asarray(start.weights, float)
        if head is not None and learner.rounding == "nearest":
            lowest = _thresholds_before_lifting(np.asarray(run.thresholds), *moments.support(learner.prior), atoms)
    elif start is not None:
        past = np.asarray(start.values[:seen], float)
        past_weights = discount ** (seen - np.asarray(start.arrivals[:seen], float))
    asked = np.broadcast_to(levels, thresholds.shape) if head is None else _asked_levels(head, seen + before, levels)
    rounds = seen + before + 1.0
    weights = path_weights(rounds, schedule_of(learner), learner.discount)
    played = learner, head, thresholds, lowest, scores, levels, asked
    return Path(*played, noted, before, rounds, weights, discount, past, past_weights)


def _asked_levels(head: Head, seen: np.ndarray, levels: np.ndarray) -> np.ndarray:
    """Compute the levels that a head asks its belief for, (N, A), given the number of scores in each round."""
    with jax.enable_x64(True):
        if levels.ndim == 2:
            return np.asarray(head.levels_by_round(seen, levels), float)
        counts, place = np.unique(seen, return_inverse=True)
        return np.asarray(head.levels_by_round(counts, levels), float)[place]


def _assign_bins(learner: Quantized | Hierarchical, scores: np.ndarray, bins: int) -> tuple[np.ndarray, np.ndarray]:
    """Return where the scores of each bin count, (bins,), and the bin of each score, in the precision of the run."""
    (low, high), up = (float(end) for end in learner.support), learner.rounding == "up"
    atoms = low + (np.arange(bins) + (1.0 if up else 0.5)) * (high - low) / bins
    atoms[-1] = high if up else atoms[-1]
    start = scores.dtype.type(low)
    edges = start + np.arange(bins + 1, dtype=scores.dtype) * (scores.dtype.type(high) - start) / bins
    here = np.searchsorted(edges, scores, side="left" if up else "right") - 1
    return atoms, np.clip(here, 0, bins - 1)


def _thresholds_before_lifting(thresholds: np.ndarray, low: float, high: float, atoms: np.ndarray) -> np.ndarray:
    """Return the atom of each bin whose upper edge is a threshold: from there on a head raises it to the edge."""
    width = (high - low) / atoms.size
    bin_here = np.clip(np.rint((np.asarray(thresholds, float) - low) / width) - 1, 0, atoms.size - 1).astype(int)
    rounding = 4 * np.finfo(thresholds.dtype).eps * max(abs(low), abs(high))
    on_edge = np.abs(thresholds - (low + (bin_here + 1) * width)) <= rounding
    return np.where(on_edge, np.minimum(atoms[bin_here], thresholds), np.asarray(thresholds, float))


def bins_of(run: Replay) -> int:
    """Return how many bins a run of :class:`dpconformal.Quantized`, or of a head on one, had."""
    start = run.start.state if isinstance(run.start, Delayed) else run.start
    state = start if start is not None else jax.eval_shape(lambda: run.learner.init(run.scores.shape[-1]))
    return int(state.weights.shape[-1])


def rounds_to_nearest(learner: Any) -> bool:
    """Whether a belief counts scores at the centres of bins: then it promises nothing of coverage."""
    binned = isinstance(learner, Quantized) or getattr(learner, "bins", None) is not None
    return binned and learner.rounding == "nearest"


def tied_rounds(learner: Any, bins: int | None, scores: np.ndarray, thresholds: np.ndarray) -> np.ndarray:
    """Find the rounds that are covered for a tie alone, whose number no theorem bounds from above."""
    covered = scores[:, None] <= thresholds
    if bins is None:
        return covered & (scores[:, None] >= thresholds)
    belief = learner.learner if isinstance(learner, Head) else learner
    low, high = moments.support(belief.prior)
    atoms, here = _assign_bins(belief, scores, bins)
    # A quarter of a bin is more than rounding. A head has raised what counted at a centre by half a bin.
    raised = isinstance(learner, Head) and belief.rounding == "nearest"
    return covered & (atoms[here][:, None] >= thresholds - (0.75 if raised else 0.25) * (high - low) / bins)
