"""The line of a certificate on coverage: what it would be, had the scores been iid."""

from typing import Any

import numpy as np

from dpconformal.beliefs import Quantized
from dpconformal.heads import Head
from dpconformal.replay import Replay
from dpconformal.theory.concentration import concentration
from dpconformal.theory.counts import lower_count, upper_count
from dpconformal.theory.iid import rank_bracket
from dpconformal.theory.lines import Line, no_claim, precision
from dpconformal.theory.path import Path, bins_of, rounds_to_nearest, tied_rounds


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
        Its path; a head is held to what it asks its belief for. Without one the run is held to what Exact guarantees.
        No claim with a discount, nor for bins that round to the nearest.
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
    # Scores that count at the centre of their bin may lie above it, unless a head raises the thresholds.
    promised = path is None or (path.discount == 1 and (path.head is not None or not rounds_to_nearest(run.learner)))
    if not scores.size or not promised:
        return no_claim(covered.mean(axis=0) if scores.size else np.full(covered.shape[1], np.nan))
    rounds, schedule, asked = _asked(run, path)
    weight = np.asarray(concentration(rounds, schedule))
    rounding = 4 * precision(run)
    belief = run.learner.learner if isinstance(run.learner, Head) else run.learner
    bins = bins_of(run) if isinstance(belief, Quantized) else None
    ties = tied_rounds(run.learner, bins, scores, thresholds).mean(axis=0)
    low, high = np.empty((2, covered.shape[1]))
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
    if path is not None:
        return path.rounds, path.learner.schedule, path.asked
    rounds = np.arange(1.0, run.scores.shape[0] + 1)
    return rounds, None, np.broadcast_to(np.asarray(run.levels, float), run.thresholds.shape)
