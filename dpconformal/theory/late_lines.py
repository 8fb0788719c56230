"""The lines of a certificate for a run whose scores became known late."""

from typing import Any, NamedTuple

import jax
import numpy as np

from dpconformal.beliefs import Exact, Quantized
from dpconformal.delays import Delayed, Told
from dpconformal.heads import Head
from dpconformal.learner import fresh_state
from dpconformal.priors import Uniform
from dpconformal.replay import Replay
from dpconformal.shifting import arriving
from dpconformal.theory.delay import bound_by_round
from dpconformal.theory.lines import Line, near_enough, no_claim, precision, regret_curve, width_of, within
from dpconformal.theory.optimality import optimality_gap
from dpconformal.theory.path import bins_of, path_of
from dpconformal.theory.path_bound import Regret


class Known(NamedTuple):
    """
    What a run with a delay knew.

    Attributes
    ----------
    scores : ndarray, shape (K,)
        Scores that became known, in that order.
    before : ndarray of int, shape (N,)
        How many of them before each round that is judged.
    start : State or None
        The learner's own, before them.
    """

    scores: np.ndarray  # (K,)
    before: np.ndarray  # (N,)
    start: Any


def checks(whole: Replay) -> tuple[Line, Line, Line, Line]:
    """
    Check optimality, regret, discounted regret and coverage.

    Parameters
    ----------
    whole : Replay
        One sequence on the host, with the rounds whose score is missing and a delay.

    Returns
    -------
    tuple of Line
        Of the rounds that have a score. Nothing is claimed of discounted regret and of coverage.
    """
    run, known = whole.observed(), known_of(whole)
    seen = np.asarray(run.scores)[:, None] <= np.asarray(run.thresholds)
    share = seen.mean(axis=0) if len(seen) else np.full(len(run.levels), np.nan)
    return optimality(whole, known), regret(whole, known), no_claim(np.full(len(run.levels), np.nan)), no_claim(share)


def known_of(whole: Replay) -> Known:
    """
    Tell what was known when.

    Parameters
    ----------
    whole : Replay
        As for :func:`checks`.

    Returns
    -------
    Known
        Counted anew from scores, mask and delay.
    """
    if whole.delay is None:
        raise ValueError(
            "run.delay is None: rounds were taken out of a run with a delay; pass the run itself, mask and all"
        )
    scores, start, waiting = np.asarray(whole.scores), whole.start, None
    real = np.ones(scores.shape, bool) if whole.mask is None else ~np.asarray(whole.mask)
    if isinstance(start, Delayed):
        start, waiting = start.state, start.waiting
    told = arriving(whole.learner, whole.delay, Told(scores, real), waiting)
    new = np.asarray(told.observed)
    return Known(np.asarray(told.scores)[new], (np.cumsum(new) - new)[real], start)


def optimality(whole: Replay, known: Known) -> Line:
    """
    Check that each threshold minimises the regularised loss of the scores that were known.

    Parameters
    ----------
    whole : Replay
        As for :func:`checks`.
    known : Known
        What was known.

    Returns
    -------
    Line
        As for :func:`dpconformal.theory.lines.optimality`.
    """
    run, learner = whole.observed(), whole.learner
    if not isinstance(learner, (Exact, Quantized)):
        return no_claim(np.full(len(run.levels), np.nan))
    thresholds, count = np.asarray(run.thresholds), known.scores.size
    gap, start = np.zeros(thresholds.shape), known.start
    if start is None and isinstance(learner, Quantized):  # its bins are those of the whole run
        fresh = fresh_state(learner, np.shape(whole.scores)[0], np.asarray(whole.scores).dtype)
        start = jax.tree.map(np.asarray, fresh)
    scores = np.append(known.scores, np.asarray(run.scores)[-1:])  # the belief after the last is asked too
    left = np.arange(len(thresholds))
    while left.size:
        # One row for each belief: rounds with the same belief have the same thresholds, unless some are wrong.
        first = left[np.unique(known.before[left], return_index=True)[1]]
        rows = np.empty((count + 1, thresholds.shape[1]), thresholds.dtype)
        rows[:] = thresholds[first[0]]
        rows[known.before[first]] = thresholds[first]
        told = Replay(rows, None, scores, np.asarray(run.levels), learner, start)  # type: ignore[arg-type]
        found = optimality_gap(path_of(told), precision(run))  # type: ignore[arg-type]
        alike = np.all(thresholds[left] == rows[known.before[left]], axis=1)
        gap[left[alike]] = found[known.before[left[alike]]]
        left = left[~alike]
    return near_enough(run, gap)


def regret(whole: Replay, known: Known) -> Line:
    """
    Check the regret against its bound with a delay, at every horizon.

    Parameters
    ----------
    whole : Replay
        As for :func:`checks`.
    known : Known
        What was known.

    Returns
    -------
    Line
        No claim with a discount, for heads, for beliefs whose prior is not uniform, and for those that carry on. Other
        learners are held to what Exact with a uniform prior guarantees.
    """
    run, found = whole.observed(), delayed_regret(whole, known)
    if found is None:
        curve = regret_curve(run)
        return no_claim(curve[-1] if len(curve) else np.zeros(len(run.levels)))
    return within(run, found, float(len(found.horizons)))


def delayed_regret(whole: Replay, known: Known) -> Regret | None:
    """
    Compute regret and bound at every horizon.

    Parameters
    ----------
    whole : Replay
        As for :func:`checks`.
    known : Known
        What was known.

    Returns
    -------
    Regret or None
        None where there is no bound.
    """
    run, learner = whole.observed(), whole.learner
    belief = isinstance(learner, (Exact, Quantized))
    unproved = belief and (learner.discount is not None or not isinstance(learner.prior, Uniform))
    if unproved or (belief and whole.start is not None) or isinstance(learner, Head) or not np.size(run.scores):
        return None
    levels, rounds = np.asarray(run.levels, float), np.arange(1, np.size(run.scores) + 1)
    bound = width_of(run) * bound_by_round(known.before, levels, learner.schedule if belief else None)
    if isinstance(learner, Quantized):
        bound += np.maximum(levels, 1 - levels) * width_of(run) * rounds[:, None] / bins_of(whole)
    return Regret(rounds, regret_curve(run), bound)
