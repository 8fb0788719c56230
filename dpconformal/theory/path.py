"""A run seen as the path of a regularised leader: what the theorems ask of it, in float64 on the host."""

from collections.abc import Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from dpconformal.beliefs import Exact, Quantized
from dpconformal.beliefs.belief import schedule_of
from dpconformal.compositions import Corrected, Head
from dpconformal.engine.totals import pinball
from dpconformal.metrics.arrays import arrays_of, checked_run
from dpconformal.metrics.loss import best_threshold, regret_curve
from dpconformal.replay import Replay
from dpconformal.runs import not_at_once
from dpconformal.theory import moments
from dpconformal.theory.ftrl import excess_regularizer, path_weights
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
    finite = bool(np.isfinite(moments.support(path.learner.prior)[1]))
    return path.head is None or (isinstance(path.head, Corrected) and finite)


def running_regret(path: Path) -> Regret:
    """Compute regret and bound of an undiscounted path at every horizon."""
    rounds = np.arange(1, path.scores.size + 1)
    regret, comparator = regret_curve(path.thresholds, path.scores, path.levels)
    return Regret(rounds, regret, _bound(path, comparator, rounds))


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
    total = _fading_sum(path.discount, paid)[horizons - 1]
    return Regret(horizons, total - least, _bound(path, comparator, horizons))


def _bound(path: Path, comparator: np.ndarray, horizons: np.ndarray) -> np.ndarray:
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
    leash = _times(path.weights[horizons - 1, None], away(comparator)) + pull(comparator)
    at_start = np.zeros(levels.size)  # the first threshold is the prior's quantile, up to rounding
    if path.past.size:
        first = path.lowest[0], path.thresholds[0]
        losses = [beta * total_loss(path.past, path.past_weights, r, levels) for r in first]
        leashes, pulls = [_times(path.weights[0], away(r)) for r in first], [pull(r) for r in first]
        at_start = np.minimum(*losses) + np.minimum(*leashes) + np.minimum(*pulls)
    return leash + since_start * (beta * past - at_start) + _fading_sum(beta, terms)[horizons - 1]


def total_loss(values: np.ndarray, weights: np.ndarray, r: np.ndarray, level: np.ndarray) -> np.ndarray:
    """Sum the weighted losses of many thresholds on one sorted sample."""
    if not values.size:
        return np.zeros(r.shape)
    before = np.searchsorted(values, r, side="right")
    mass, moment = (np.concatenate([[0], np.cumsum(w)]) for w in (weights, weights * values))
    below = mass[before] * r - moment[before]  # Σ w (r - value)⁺
    return below - level * (mass[-1] * r - moment[-1])


def _times(weight: Any, excess: Any) -> Any:
    """Multiply, where an infinite weight on nothing is nothing."""
    with np.errstate(invalid="ignore"):
        return np.where(excess == 0, 0, weight * excess)


def _fading_sum(beta: float, terms: np.ndarray) -> np.ndarray:
    """Sum up with a discount; once infinite, for ever."""
    from scipy.signal import lfilter  # slow to import

    endless = np.maximum.accumulate(~np.isfinite(terms), axis=0)
    return np.where(endless, np.inf, lfilter([1.0], [1.0, -beta], np.where(endless, 0, terms), axis=0))


def sequences(run: Any, observed: bool = True, changing: bool = False) -> Iterator[tuple[tuple[int, ...], Replay]]:
    """Take a batch apart: the index in the batch, and the run of that sequence on the host."""
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


def path_of(run: Replay) -> Path | None:
    """Follow the path of a belief; None if the learner is neither Exact or Quantized, nor a head on one."""
    if not isinstance(run.learner, (Exact, Quantized, Head)):
        return None
    if not_at_once(run):
        raise ValueError(
            f"run.delay = {run.delay!r}: the bound on a path is for runs in which every score is known at the end of "
            "its round; use delayed_regret_bound, or certify"
        )
    return path_after(run, np.arange(run.scores.shape[0]))


def path_after(run: Replay, before: np.ndarray) -> Path:
    """
    Follow the path of a belief that knew some of the scores in each round.

    ``run``: Of a belief, or a head on one. Its scores are those that became known, T in that order; its thresholds may
    be of another number of rounds, N.
    """
    head = run.learner if isinstance(run.learner, Head) else None
    learner = run.learner if head is None else head.learner
    discount = 1.0 if learner.discount is None else float(learner.discount)
    thresholds, scores, levels = (np.asarray(a, float) for a in (run.thresholds, run.scores, run.levels))
    noted, lowest = scores, thresholds
    past, past_weights, seen = np.zeros(0), np.zeros(0), 0
    if run.start is not None:
        seen = int(run.start.seen)
    if isinstance(learner, Quantized):
        bins = bins_of(run)
        atoms, here = _bins(learner, np.asarray(run.scores), bins)
        noted = atoms[here]
        if run.start is not None:
            past, past_weights = atoms, np.asarray(run.start.weights, float)
        if head is not None and learner.rounding == "nearest":
            low, high = moments.support(learner.prior)
            lowest = _before_lifting(np.asarray(run.thresholds), low, high, atoms)
    elif run.start is not None:
        past = np.asarray(run.start.values[:seen], float)
        past_weights = discount ** (seen - np.asarray(run.start.arrivals[:seen], float))
    asked = np.broadcast_to(levels, thresholds.shape) if head is None else _asked(head, seen + before, levels)
    rounds = seen + before + 1.0
    weights = path_weights(rounds, schedule_of(learner), learner.discount)
    played = learner, head, thresholds, lowest, scores, levels, asked
    return Path(*played, noted, before, rounds, weights, discount, past, past_weights)


def _asked(head: Head, seen: np.ndarray, levels: np.ndarray) -> np.ndarray:
    """Compute the levels that a head asks its belief for, (N, A), given the number of scores in each round."""
    with jax.enable_x64(True):
        if levels.ndim == 2:
            return np.asarray(head.levels_by_round(seen, levels), float)
        counts, place = np.unique(seen, return_inverse=True)
        return np.asarray(head.levels_by_round(counts, levels), float)[place]


def _bins(learner: Any, scores: np.ndarray, bins: int) -> tuple[np.ndarray, np.ndarray]:
    """Return where the scores of each bin count, (bins,), and the bin of each score, in the precision of the run."""
    (low, high), up = (float(end) for end in learner.support), learner.rounding == "up"
    atoms = low + (np.arange(bins) + (1.0 if up else 0.5)) * (high - low) / bins
    atoms[-1] = high if up else atoms[-1]
    start = scores.dtype.type(low)
    edges = start + np.arange(bins + 1, dtype=scores.dtype) * (scores.dtype.type(high) - start) / bins
    here = np.searchsorted(edges, scores, side="left" if up else "right") - 1
    return atoms, np.clip(here, 0, bins - 1)


def _before_lifting(thresholds: np.ndarray, low: float, high: float, atoms: np.ndarray) -> np.ndarray:
    """Return the atom of each bin whose upper edge is a threshold: from there on a head raises it to the edge."""
    width = (high - low) / atoms.size
    bin_here = np.clip(np.rint((np.asarray(thresholds, float) - low) / width) - 1, 0, atoms.size - 1).astype(int)
    rounding = 4 * np.finfo(thresholds.dtype).eps * max(abs(low), abs(high))
    on_edge = np.abs(thresholds - (low + (bin_here + 1) * width)) <= rounding
    return np.where(on_edge, np.minimum(atoms[bin_here], thresholds), np.asarray(thresholds, float))


def bins_of(run: Replay) -> int:
    """Return how many bins a run of :class:`dpconformal.Quantized`, or of a head on one, had."""
    if run.start is not None:
        return int(run.start.weights.shape[-1])
    return int(jax.eval_shape(lambda: run.learner.init(run.scores.shape[-1])).weights.shape[-1])


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
    atoms, here = _bins(belief, scores, bins)
    # A quarter of a bin is more than rounding. A head has raised what counted at a centre by half a bin.
    raised = isinstance(learner, Head) and belief.rounding == "nearest"
    return covered & (atoms[here][:, None] >= thresholds - (0.75 if raised else 0.25) * (high - low) / bins)
