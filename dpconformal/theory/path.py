"""A run seen as the path of a regularised leader: what the theorems ask of it, in float64 on the host."""

from collections.abc import Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from dpconformal.beliefs import Exact, Quantized
from dpconformal.beliefs.weights import schedule_of
from dpconformal.checks import is_traced
from dpconformal.heads import Head
from dpconformal.metrics.arrays import arrays_of, checked_run
from dpconformal.replay import Replay
from dpconformal.runs import not_at_once
from dpconformal.theory import moments
from dpconformal.theory.concentration import path_weights


class Path(NamedTuple):
    """
    One sequence of a run of :class:`dpconformal.Exact` or :class:`dpconformal.Quantized`.

    Attributes
    ----------
    learner : Exact or Quantized
        Whose path it is.
    thresholds, scores, levels : ndarray
        Of the run.
    noted : ndarray, shape (T,)
        The scores as the belief holds them: itself, or where the scores of its bin count.
    rounds : ndarray, shape (T,)
        When, counted from 1 at the very first score of the belief.
    weights : ndarray, shape (T,)
        Of the regulariser beside the newest loss.
    discount : float
        β, 1 without a discount.
    past, past_weights : ndarray, shape (N,)
        Scores from before the run, ascending, and what is left of their weight before its first round.
    """

    learner: Any
    thresholds: np.ndarray  # (T, A)
    scores: np.ndarray  # (T,)
    levels: np.ndarray  # (A,)
    noted: np.ndarray  # (T,)
    rounds: np.ndarray  # (T,)
    weights: np.ndarray  # (T,)
    discount: float
    past: np.ndarray  # (N,)
    past_weights: np.ndarray  # (N,)


def sequences(run: Any, observed: bool = True) -> Iterator[tuple[tuple[int, ...], Replay]]:
    """
    Take a batch apart.

    Parameters
    ----------
    run : Replay
        With levels that do not change by round.
    observed : bool
        Whether to leave out rounds whose score is missing.

    Yields
    ------
    tuple
        The index in the batch, and the run of that sequence on the host.

    Raises
    ------
    ValueError
        If levels change by round, or the run is being traced.
    """
    arrays = arrays_of(checked_run(run)._replace(mask=None))
    if arrays.xp is jnp or is_traced(run.mask, run.delay):
        raise ValueError("run is being traced: the theorems are checked outside jit")
    if np.ndim(run.levels) == arrays.thresholds.ndim and np.ndim(run.levels) > 1:
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
    """
    Follow the path of a belief.

    Parameters
    ----------
    run : Replay
        One sequence, from :func:`sequences`.

    Returns
    -------
    Path or None
        None if the learner is not a belief with a prior and a schedule.

    Raises
    ------
    ValueError
        If scores became known late: then thresholds are not those of a leader that knows all earlier rounds.
    """
    learner = run.learner
    if not isinstance(learner, (Exact, Quantized)):
        return None
    if not_at_once(run):
        raise ValueError(
            f"run.delay = {run.delay!r}: the bound on a path is for runs in which every score is known at the end of "
            "its round; use delayed_regret_bound, or certify"
        )
    discount = 1.0 if learner.discount is None else float(learner.discount)
    noted = np.asarray(run.scores)
    past, past_weights, seen = np.zeros(0), np.zeros(0), 0
    if run.start is not None:
        seen = int(run.start.seen)
    if isinstance(learner, Quantized):
        bins = bins_of(run)
        atoms, here = _bins(learner, noted, bins)
        noted = atoms[here]
        if run.start is not None:
            past, past_weights = atoms, np.asarray(run.start.weights, float)
    elif run.start is not None:
        past = np.asarray(run.start.values[:seen], float)
        past_weights = discount ** (seen - np.asarray(run.start.arrivals[:seen], float))
    rounds = seen + np.arange(1.0, run.scores.shape[0] + 1)
    weights = path_weights(rounds, schedule_of(learner), learner.discount)
    thresholds, scores, levels = (np.asarray(a, float) for a in (run.thresholds, run.scores, run.levels))
    noted = np.asarray(noted, float)
    return Path(learner, thresholds, scores, levels, noted, rounds, weights, discount, past, past_weights)


def _bins(learner: Any, scores: np.ndarray, bins: int) -> tuple[np.ndarray, np.ndarray]:
    """Return where the scores of each bin count, (bins,), and the bin of each score, in the precision of the run."""
    (low, high), up = (float(end) for end in learner.support), learner.rounding == "up"
    atoms = low + (np.arange(bins) + (1.0 if up else 0.5)) * (high - low) / bins
    atoms[-1] = high if up else atoms[-1]
    start = scores.dtype.type(low)
    edges = start + np.arange(bins + 1, dtype=scores.dtype) * (scores.dtype.type(high) - start) / bins
    here = np.searchsorted(edges, scores, side="left" if up else "right") - 1
    return atoms, np.clip(here, 0, bins - 1)


def tied_rounds(learner: Any, bins: int | None, scores: np.ndarray, thresholds: np.ndarray) -> np.ndarray:
    """
    Tell the rounds that are covered for a tie alone: the score counts at the threshold or above it.

    Parameters
    ----------
    learner : Exact, Quantized, Hierarchical or a head
        Whose thresholds they are.
    bins : int or None
        How many bins it keeps.
    scores : ndarray, shape (T,)
        The scores.
    thresholds : ndarray, shape (T, A)
        The thresholds.

    Returns
    -------
    ndarray of bool, shape (T, A)
        These rounds are not among those whose number the theorems bound from above.
    """
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
    """
    Tell how many bins a run of :class:`dpconformal.Quantized` had.

    Parameters
    ----------
    run : Replay
        The run.

    Returns
    -------
    int
        As given, or as it was chosen for the length of the run.
    """
    if run.start is not None:
        return int(run.start.weights.shape[-1])
    return int(jax.eval_shape(lambda: run.learner.init(run.scores.shape[-1])).weights.shape[-1])


def loss(r: Any, score: Any, level: Any) -> Any:
    """
    Compute the quantile loss, of infinite thresholds too.

    Parameters
    ----------
    r, score, level : array_like
        That broadcast against each other.

    Returns
    -------
    ndarray
        The loss: nothing for +inf at level 1, nor for -inf at level 0.
    """
    above, below = np.maximum(r - score, 0), np.maximum(score - r, 0)
    with np.errstate(invalid="ignore"):
        return np.where(above > 0, np.where(level < 1, (1 - level) * above, 0), np.where(level > 0, level * below, 0))


def total_loss(values: np.ndarray, weights: np.ndarray, r: np.ndarray, level: np.ndarray) -> np.ndarray:
    """
    Sum the weighted losses of many thresholds on one sorted sample.

    Parameters
    ----------
    values, weights : ndarray, shape (N,)
        The sample, ascending.
    r : ndarray, shape (..., A)
        Thresholds.
    level : ndarray, shape (A,)
        Their levels.

    Returns
    -------
    ndarray, shape (..., A)
        Σ w l_α(r, value).
    """
    if not values.size:
        return np.zeros(r.shape)
    before = np.searchsorted(values, r, side="right")
    mass, moment = (np.concatenate([[0], np.cumsum(w)]) for w in (weights, weights * values))
    below = mass[before] * r - moment[before]  # Σ w (r - value)⁺
    return below - level * (mass[-1] * r - moment[-1])


def stability(path: Path, least_density: np.ndarray) -> np.ndarray:
    """
    Bound what each round adds to the regret: min(loss, g²/(2 w μ)).

    Parameters
    ----------
    path : Path
        The path.
    least_density : ndarray, shape (T, A)
        μ: of the prior, between the threshold and the score of the round.

    Returns
    -------
    ndarray, shape (T, A)
        One term a round and level; g is 1 - α above the score, α below it.
    """
    scores = path.noted[:, None]
    paid = loss(path.thresholds, scores, path.levels)
    slope = np.where(path.thresholds > scores, 1 - path.levels, path.levels)
    with np.errstate(divide="ignore", invalid="ignore"):
        smooth = slope**2 / (2 * path.weights[:, None] * least_density)
    return np.where(paid == 0, 0, np.fmin(paid, smooth))
