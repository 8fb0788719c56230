"""A run seen as the path of a regularised leader: what the theorems ask of it, in float64 on the host."""

from collections.abc import Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from dpconformal.beliefs import Exact, Quantized
from dpconformal.beliefs.weights import schedule_of
from dpconformal.heads import Head
from dpconformal.metrics.arrays import arrays_of, checked_run
from dpconformal.replay import Replay
from dpconformal.runs import not_at_once
from dpconformal.theory import moments
from dpconformal.theory.concentration import path_weights
from dpconformal.totals import pinball
from dpconformal.validation import is_traced


class Path(NamedTuple):
    """
    One sequence of a run of :class:`dpconformal.Exact`, :class:`dpconformal.Quantized`, or a head on one of them.

    Where every score is known at the end of its round there are as many thresholds as scores, N = T.
    """

    learner: Any  # Exact or Quantized, the belief
    head: Any  # what asked it for levels other than the run's, or None
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
            return np.asarray(head.asked_by_round(seen, levels), float)
        counts, place = np.unique(seen, return_inverse=True)
        return np.asarray(head.asked_by_round(counts, levels), float)[place]


def _before_lifting(thresholds: np.ndarray, low: float, high: float, atoms: np.ndarray) -> np.ndarray:
    """Return the atom of each bin whose upper edge is a threshold: from there on a head raises it to the edge."""
    width = (high - low) / atoms.size
    bin_here = np.clip(np.rint((np.asarray(thresholds, float) - low) / width) - 1, 0, atoms.size - 1).astype(int)
    rounding = 4 * np.finfo(thresholds.dtype).eps * max(abs(low), abs(high))
    on_edge = np.abs(thresholds - (low + (bin_here + 1) * width)) <= rounding
    return np.where(on_edge, np.minimum(atoms[bin_here], thresholds), np.asarray(thresholds, float))


def _bins(learner: Any, scores: np.ndarray, bins: int) -> tuple[np.ndarray, np.ndarray]:
    """Return where the scores of each bin count, (bins,), and the bin of each score, in the precision of the run."""
    (low, high), up = (float(end) for end in learner.support), learner.rounding == "up"
    atoms = low + (np.arange(bins) + (1.0 if up else 0.5)) * (high - low) / bins
    atoms[-1] = high if up else atoms[-1]
    start = scores.dtype.type(low)
    edges = start + np.arange(bins + 1, dtype=scores.dtype) * (scores.dtype.type(high) - start) / bins
    here = np.searchsorted(edges, scores, side="left" if up else "right") - 1
    return atoms, np.clip(here, 0, bins - 1)


def rounds_to_nearest(learner: Any) -> bool:
    """Tell whether a belief counts scores at the centres of bins: then it promises nothing of coverage."""
    binned = isinstance(learner, Quantized) or getattr(learner, "bins", None) is not None
    return binned and learner.rounding == "nearest"


def tied_rounds(learner: Any, bins: int | None, scores: np.ndarray, thresholds: np.ndarray) -> np.ndarray:
    """Tell the rounds that are covered for a tie alone, whose number no theorem bounds from above."""
    covered = scores[:, None] <= thresholds
    if bins is None:
        return covered & (scores[:, None] >= thresholds)
    belief = learner.learner if isinstance(learner, Head) else learner
    low, high = moments.support(belief.prior)
    atoms, here = _bins(belief, scores, bins)
    # A quarter of a bin is more than rounding. A head has raised what counted at a centre by half a bin.
    raised = isinstance(learner, Head) and belief.rounding == "nearest"
    return covered & (atoms[here][:, None] >= thresholds - (0.75 if raised else 0.25) * (high - low) / bins)


def bins_of(run: Replay) -> int:
    """Tell how many bins a run of :class:`dpconformal.Quantized`, or of a head on one, had."""
    if run.start is not None:
        return int(run.start.weights.shape[-1])
    return int(jax.eval_shape(lambda: run.learner.init(run.scores.shape[-1])).weights.shape[-1])


def total_loss(values: np.ndarray, weights: np.ndarray, r: np.ndarray, level: np.ndarray) -> np.ndarray:
    """Sum the weighted losses of many thresholds on one sorted sample."""
    if not values.size:
        return np.zeros(r.shape)
    before = np.searchsorted(values, r, side="right")
    mass, moment = (np.concatenate([[0], np.cumsum(w)]) for w in (weights, weights * values))
    below = mass[before] * r - moment[before]  # Σ w (r - value)⁺
    return below - level * (mass[-1] * r - moment[-1])


def stability(path: Path, least_density: np.ndarray) -> np.ndarray:
    """Bound what each round adds to the regret: min(loss, g²/(2 w μ)), g being 1 - α above the score, α below it."""
    scores = path.noted[:, None]
    # No score is noted between a threshold and what it may have been before a head raised it.
    paid = np.maximum(*(pinball(np, r, scores, path.levels) for r in (path.lowest, path.thresholds)))
    slope = np.where(path.thresholds > scores, 1 - path.levels, path.levels)
    with np.errstate(divide="ignore", invalid="ignore"):
        smooth = slope**2 / (2 * path.weights[:, None] * least_density)
    return np.where(paid == 0, 0, np.fmin(paid, smooth))
