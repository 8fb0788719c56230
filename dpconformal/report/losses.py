"""Regret along a run beside its bound, at the ends of the blocks."""

from typing import NamedTuple

import numpy as np

from dpconformal.beliefs import Exact, Quantized
from dpconformal.groups import Hierarchical
from dpconformal.metrics.loss import regret_curve
from dpconformal.replay import Replay
from dpconformal.runs import not_at_once
from dpconformal.theory.late_lines import delayed_regret, known_of
from dpconformal.theory.lines import regret_and_bound
from dpconformal.theory.path import path_of, sequences
from dpconformal.theory.path_bound import discounted_regret

LONGEST = 200_000  # rounds, beyond which bounds and certificates take longer than a reader waits


class Losses(NamedTuple):
    """Regret and bound over time."""

    # Whose the bound is. "own": of this learner on this path. "discounted": the same with a discount, in regret and
    # bound. "borrowed": of :class:`dpconformal.Exact`, for a learner without a bound. "none": of nobody. "groups": of
    # each group, and none of all rounds together. "long": left out, for a run that is too long. Where scores became
    # known late, "late": of this learner on any path; "unproved": of nobody.
    kind: str
    regret: np.ndarray  # (N, A), against the best fixed threshold for the rounds so far
    bound: np.ndarray  # (N, A), NaN where there is none


def losses_of(run: Replay, ends: np.ndarray) -> Losses:
    """Follow the regret of a run and what the theory allows; late scores and a discount together have no bound."""
    _, whole = next(sequences(run, observed=False))
    sequence, late, long = whole.observed(), not_at_once(whole), ends[-1] > LONGEST
    groups, discounted = isinstance(run.learner, Hierarchical), getattr(run.learner, "discount", None) is not None
    path = path_of(sequence) if not late and (discounted or not long) else None
    found = None
    with np.errstate(invalid="ignore"):  # ∞ - ∞, where a threshold is infinite
        if path is not None and path.discount != 1:
            faded = discounted_regret(path, ends)
            return Losses("discounted", faded.regret, faded.bound)
        if not long and not groups:
            found = delayed_regret(whole, known_of(whole)) if late else regret_and_bound(sequence, path)
        if found is not None:
            ours = isinstance(run.learner, (Exact, Quantized)) if late else path is not None
            kind = ("late" if late else "own") if ours else "borrowed"
            return Losses(kind, found.regret[ends - 1], found.bound[ends - 1])
        seen = regret_curve(sequence.thresholds, sequence.scores, sequence.levels)[0][ends - 1]
    kind = "long" if long else "unproved" if late else "groups" if groups else "none"
    return Losses(kind, seen, np.full(seen.shape, np.nan))
