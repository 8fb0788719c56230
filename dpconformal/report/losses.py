"""Regret along a run beside its bound, at the ends of the blocks."""

from typing import NamedTuple

import numpy as np

from dpconformal.beliefs import Exact, Quantized
from dpconformal.groups import Hierarchical
from dpconformal.heads import Head
from dpconformal.metrics.loss import regret, regret_curve
from dpconformal.replay import Replay
from dpconformal.runs import not_at_once
from dpconformal.theory import regret_bound
from dpconformal.theory.late_lines import delayed_regret, known_of
from dpconformal.theory.lines import width_of
from dpconformal.theory.path import path_of, sequences
from dpconformal.theory.path_bound import discounted_regret, has_regret_bound, running_regret

LONGEST = 200_000  # rounds, beyond which bounds and certificates take longer than a reader waits


class Losses(NamedTuple):
    """
    Regret and bound over time.

    The kind says whose the bound is: of this learner on this path ("own"); the same with a discount, in regret and
    bound ("discounted"); of :class:`dpconformal.Exact`, for a learner without a bound ("borrowed"); of nobody ("none");
    of each group, and none of all rounds together ("groups"); left out, for a run that is too long ("long"). Where
    scores became known late: of this learner on any path ("late"); of nobody ("unproved").
    """

    kind: str
    regret: np.ndarray  # (N, A), against the best fixed threshold for the rounds so far
    bound: np.ndarray  # (N, A), NaN where there is none


def losses_of(run: Replay, ends: np.ndarray) -> Losses:
    """Follow the regret of a run and what the theory allows."""
    _, whole = next(sequences(run, observed=False))
    if not_at_once(whole):
        return _late_losses(whole, ends)
    sequence = whole.observed()
    path = path_of(sequence) if ends[-1] <= LONGEST or getattr(run.learner, "discount", None) is not None else None
    with np.errstate(invalid="ignore"):  # ∞ - ∞, where a threshold is infinite
        if path is not None and path.discount != 1:
            faded = discounted_regret(path, ends)
            return Losses("discounted", faded.regret, faded.bound)
        if path is not None and has_regret_bound(path):
            along = running_regret(path)
            return Losses("own", along.regret[ends - 1], along.bound[ends - 1])
        seen = np.asarray(regret(sequence, running=True))[ends - 1]
    nothing = np.full(seen.shape, np.nan)
    if ends[-1] > LONGEST:
        return Losses("long", seen, nothing)
    if isinstance(run.learner, (Head, Hierarchical)):
        return Losses("none" if isinstance(run.learner, Head) else "groups", seen, nothing)
    bound = regret_bound(ends[:, None], np.asarray(sequence.levels, float), width_of(sequence))
    return Losses("borrowed", seen, np.asarray(bound))


def _late_losses(whole: Replay, ends: np.ndarray) -> Losses:
    """Follow the regret where scores became known late; with a discount it is plain, and without a bound."""
    own = isinstance(whole.learner, (Exact, Quantized))
    proved = ends[-1] <= LONGEST and not isinstance(whole.learner, Hierarchical)
    found = delayed_regret(whole, known_of(whole)) if proved else None
    if found is not None:
        return Losses("late" if own else "borrowed", found.regret[ends - 1], found.bound[ends - 1])
    run = whole.observed()
    seen = regret_curve(run.thresholds, run.scores, run.levels)[0][ends - 1]
    return Losses("long" if ends[-1] > LONGEST else "unproved", seen, np.full(seen.shape, np.nan))
