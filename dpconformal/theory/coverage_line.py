"""The line of a certificate on coverage: what it would be, had the scores been iid."""

from typing import Any

import jax
import numpy as np

from dpconformal.beliefs import Quantized
from dpconformal.heads import Head
from dpconformal.replay import Replay
from dpconformal.theory.concentration import concentration
from dpconformal.theory.counts import lower_count, upper_count
from dpconformal.theory.iid import rank_bracket
from dpconformal.theory.lines import Line, no_claim, precision
from dpconformal.theory.path import Path, bins_of, tied_rounds


def coverage(run: Replay, path: Path | None, delta: float) -> Line:
    """
    Check the coverage against what it would be, had the scores been iid.

    Under exchangeability the ranks of the scores at their arrival are independent. A threshold lies between two order
    statistics of known ranks (:func:`dpconformal.theory.coverage_bracket`), so the number of covered rounds lies
    between two sums of independent coins, whose quantiles are the band.

    Parameters
    ----------
    run : Replay
        One sequence.
    path : Path or None
        Its path; without one the run is held to what Exact guarantees, and a head to what it asks its belief for. No
        claim with a discount.
    delta : float
        Probability that iid scores leave the band of a level.

    Returns
    -------
    Line
        Shares of rounds. Ties raise the upper end, by the covered rounds whose score counts at the threshold or above
        it. The lower end needs no such allowance.
    """
    thresholds, scores = np.asarray(run.thresholds), np.asarray(run.scores)
    covered = scores[:, None] <= thresholds
    if not scores.size or (path is not None and path.discount != 1):
        return no_claim(covered.mean(axis=0) if scores.size else np.full(len(run.levels), np.nan))
    rounds, schedule, asked = _asked(run, path)
    weight = np.asarray(concentration(rounds, schedule))
    rounding = 4 * precision(run)
    belief = run.learner.learner if isinstance(run.learner, Head) else run.learner
    bins = bins_of(run) if isinstance(belief, Quantized) else None
    ties = tied_rounds(run.learner, bins, scores, thresholds).mean(axis=0)
    low, high = np.empty((2, len(run.levels)))
    for i, level in enumerate(asked.T):
        least = rank_bracket(np.maximum(level - rounding, 0), rounds - 1, weight)[0] / rounds
        most = rank_bracket(np.minimum(level + rounding, 1), rounds - 1, weight)[1] / rounds
        low[i] = lower_count(least, delta / 2) / scores.size
        high[i] = upper_count(most, delta / 2) / scores.size + ties[i]
    high = np.minimum(high, 1)
    seen = covered.mean(axis=0)
    return Line(seen, low, high, np.where((seen >= low) & (seen <= high), 0, scores.size))


def _asked(run: Replay, path: Path | None) -> tuple[np.ndarray, Any, np.ndarray]:
    """Tell the rounds, the schedule, and the levels that a belief was asked for, (T, A)."""
    learner, count = run.learner, run.scores.shape[0]
    levels = np.broadcast_to(np.asarray(run.levels, float), (count, len(run.levels)))
    if path is not None:
        return path.rounds, path.learner.schedule, levels
    if not isinstance(learner, Head):
        return np.arange(1.0, count + 1), None, levels
    seen = (0 if run.start is None else int(run.start.seen)) + np.arange(count)
    with jax.enable_x64(True):
        asked = np.asarray(learner.asked_by_round(seen, np.asarray(run.levels, float)), float)
    return seen + 1.0, learner.learner.schedule, asked
