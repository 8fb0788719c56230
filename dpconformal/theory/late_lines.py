"""The lines of a certificate for a run whose scores became known late."""

from typing import Any, NamedTuple

import jax
import numpy as np

from dpconformal.beliefs import Exact, Quantized
from dpconformal.delays import Delayed, feedback_stream
from dpconformal.heads import Head
from dpconformal.learner import fresh_state
from dpconformal.metrics import coverage
from dpconformal.metrics.loss import regret_curve
from dpconformal.priors import Uniform
from dpconformal.replay import Replay
from dpconformal.rounds import Rounds
from dpconformal.theory.delay import bound_by_round
from dpconformal.theory.lines import Line, near_enough, no_claim, precision, width_of, within
from dpconformal.theory.optimality import optimality_gap
from dpconformal.theory.path import bins_of, path_after
from dpconformal.theory.path_bound import Regret
from dpconformal.theory.regret import bin_cost


class Known(NamedTuple):
    """What a run with a delay knew."""

    scores: np.ndarray  # (K,), that became known, in that order
    before: np.ndarray  # (N,), how many of them before each round that is judged
    start: Any  # the learner's own state, before them


def checks(whole: Replay) -> tuple[Line, Line, Line, Line]:
    """Check optimality and regret; nothing is claimed of discounted regret and of coverage."""
    seen, known = coverage(whole.observed()), known_of(whole)
    return optimality(whole, known), regret(whole, known), no_claim(np.full(seen.shape, np.nan)), no_claim(seen)


def known_of(whole: Replay) -> Known:
    """Tell what was known when."""
    if whole.delay is None:
        raise ValueError(
            "run.delay is None: rounds were taken out of a run with a delay; pass the run itself, mask and all"
        )
    scores, start, waiting = np.asarray(whole.scores), whole.start, None
    real = np.ones(scores.shape, bool) if whole.mask is None else ~np.asarray(whole.mask)
    if isinstance(start, Delayed):
        start, waiting = start.state, start.waiting
    told = feedback_stream(whole.learner, whole.delay, Rounds(scores, None, real), waiting)
    new = np.asarray(told.observed)
    return Known(np.asarray(told.scores)[new], (np.cumsum(new) - new)[real], start)


def optimality(whole: Replay, known: Known) -> Line:
    """Check that each threshold minimises the regularised loss of the scores that were known."""
    run, learner = whole.observed(), whole.learner
    if not isinstance(learner, (Exact, Quantized, Head)):
        return no_claim(np.full(run.thresholds.shape[-1], np.nan))
    start = known.start
    if start is None:  # the bins are those of the whole run
        fresh = fresh_state(learner, np.shape(whole.scores)[0], np.asarray(whole.scores).dtype)
        start = jax.tree.map(np.asarray, fresh)
    path = path_after(run._replace(scores=known.scores, start=start), known.before)  # type: ignore[arg-type]
    return near_enough(run, optimality_gap(path, precision(run)), path.learner.prior)


def regret(whole: Replay, known: Known) -> Line:
    """Check the regret against its bound with a delay, at every horizon."""
    run, found = whole.observed(), delayed_regret(whole, known)
    if found is None:
        curve = regret_curve(run.thresholds, run.scores, run.levels)[0]
        return no_claim(curve[-1] if len(curve) else np.zeros(curve.shape[1]))
    return within(run, found, float(len(found.horizons)))


def delayed_regret(whole: Replay, known: Known) -> Regret | None:
    """
    Compute regret and bound at every horizon.

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
    bound = width_of(run) * bound_by_round(known.before, levels, learner.schedule if belief else None)
    if isinstance(learner, Quantized):
        bound += bin_cost(width_of(run), bins_of(whole), learner.rounding) * rounds[:, None]
    return Regret(rounds, regret_curve(run.thresholds, run.scores, run.levels)[0], bound)
