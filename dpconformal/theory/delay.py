"""Regret where scores become known late: what that costs at most, for the uniform prior."""

from typing import Any, NamedTuple

import jax
import numpy as np

from dpconformal import schedules
from dpconformal.beliefs import Exact, Quantized
from dpconformal.compositions import Head
from dpconformal.engine.feedback import Delayed, feedback_stream
from dpconformal.learner import fresh_state
from dpconformal.metrics import coverage
from dpconformal.metrics.loss import regret_curve
from dpconformal.priors import Uniform
from dpconformal.replay import Replay
from dpconformal.rounds import Rounds
from dpconformal.theory.checks import Line, near_enough, no_claim, optimality_gap, precision, width_of, within
from dpconformal.theory.iid import concentration, odds
from dpconformal.theory.path import Regret, bins_of, path_after
from dpconformal.theory.regret import bin_cost, discounted_regret_bound
from dpconformal.validation import Numbers, Scalar, as_numbers, check_float, raise_at


def delayed_regret_bound(
    rounds: Numbers,
    level: Numbers,
    delay: Numbers,
    width: Scalar = 1.0,
    schedule: Any = None,
    discount: Scalar | None = None,
) -> Any:
    """
    Bound the regret of :class:`dpconformal.Exact` with a uniform prior where scores become known late, on any sequence.

    The bound without a delay, and what a threshold of h rounds ago may cost more than that of the round:
    :func:`late_losses`. With λ_t = 1/√t about m² R (3/2 + 2h) √T for large T, and with
    :class:`dpconformal.schedules.ForDelay` about 3/2 m² R √((1 + 2h) T), where m = max(α, 1 - α).

    Parameters
    ----------
    rounds : array_like
        T, finite.
    level, delay : array_like
        α, and h: a score is observed after the round that is h rounds later. Both broadcast against the rounds.
    width : float
        R, the width of the support.
    schedule : Schedule or callable, optional
        λ_t; by default 1/√t, with a discount the theorem's constant.
    discount : float, optional
        β in (0, 1), for the discounted regret of a discounted belief; then the schedule is a constant one.

    Returns
    -------
    ndarray or float
        The bound; without a delay that of :func:`dpconformal.theory.regret_bound` or
        :func:`dpconformal.theory.discounted_regret_bound`. Infinite for a schedule that gives the prior everything
        after round 1.

    Examples
    --------
    >>> float(delayed_regret_bound(10_000, 0.5, 0).round(2))
    36.43
    >>> [float(delayed_regret_bound(10_000, 0.5, 10, schedule=s).round(1)) for s in (None, schedules.ForDelay(10))]
    [513.3, 173.8]
    """
    given = {"rounds": rounds, "level": level, "delay": delay}
    rounds, level, delay = (np.asarray(as_numbers(name, value), float) for name, value in given.items())
    for name, values in (("rounds", rounds), ("delay", delay)):
        raise_at(name, values, ~((values >= 0) & (values == np.floor(values)) & (values < 2**31)), "whole, from 0")
    raise_at("level", level, ~((level >= 0) & (level <= 1)), "a confidence level lies in [0, 1]")
    width = check_float("width", width, 0.0, open_low=True)
    rounds, level, delay = np.broadcast_arrays(rounds.astype(int), level, delay.astype(int))
    found, longest = np.zeros(rounds.shape), int(np.max(rounds, initial=0))
    before = np.arange(longest)
    for late in np.unique(delay):
        here = delay == late
        asked, column = np.unique(level[here], return_inverse=True)
        running = bound_by_round(np.maximum(before - late, 0), asked, schedule, discount)
        found[here] = np.concatenate([np.zeros((1, asked.size)), running])[rounds[here], column.ravel()]
    if discount is not None:
        found = np.where(rounds == 0, discounted_regret_bound(0, level, discount, 1.0, _constant(schedule)), found)
    elif longest == 0 or (rounds == 0).any():  # as regret_bound has it
        found = np.where(rounds == 0, np.maximum(level, 1 - level) ** 2 / 2, found)
    return (width * found)[()]


def bound_by_round(known: np.ndarray, levels: np.ndarray, schedule: Any, discount: Scalar | None = None) -> np.ndarray:
    """Bound the regret at every horizon, given how many scores are known before each round."""
    rounds, steepest = np.arange(1, known.size + 1), np.maximum(levels, 1 - levels)
    weight = _constant(schedule) if discount is not None else None
    more = late_losses(known, levels, schedule, discount)
    if discount is not None:
        from scipy.signal import lfilter  # slow to import

        at_once = discounted_regret_bound(rounds[:, None], levels, discount, 1.0, weight)
        return at_once + lfilter([1.0], [1.0, -float(discount)], more, axis=0)
    weight = np.asarray(concentration(rounds, schedule))[:, None]
    with np.errstate(invalid="ignore"):
        fall = np.maximum(weight[:-1] - weight[1:], 0)
        fall = np.concatenate([np.zeros((min(known.size, 1), 1)), np.where(np.isnan(fall), 0, fall)])
    swings = np.minimum(steepest, steepest**2 / (2 * weight))
    return steepest**2 / 2 * (weight + np.cumsum(fall, axis=0)) + np.cumsum(swings + more, axis=0)


def late_losses(known: np.ndarray, levels: np.ndarray, schedule: Any, discount: Scalar | None = None) -> np.ndarray:
    """
    Bound by how much the threshold of an earlier round may be worse than that of the round itself.

    From round τ to round t the belief gains a mass of Δ at most, and keeps the share c of everything at least. The
    prior has λ_τ and λ_t of it, so that the cdf rises with a slope of at least λ/R. A threshold that is too small is so
    by R times the least of α(1 - c)/λ_t, Δ/max(λ_τ, λ_t) and min(1, α/λ_t) - max(0, 1 - (1 - α)/λ_τ), and each unit
    costs α. For one that is too large 1 - α stands in the place of α.
    """
    rounds = np.arange(1, known.size + 1)
    share, atom = _shares(rounds, schedule, discount)
    if not rounds.size:
        return np.zeros((0, levels.size))
    earlier, late = share[known], rounds - 1 - known  # the belief that knows n scores is that of round n + 1
    if discount is None:
        held = np.where(atom[known] > 0, atom / np.where(atom[known] > 0, atom[known], 1), 1.0)
        gained = np.maximum(share - earlier, 0) + known * np.maximum(atom - atom[known], 0) + late * atom
    else:
        faded = float(discount) ** late
        held, gained = np.where(known > 0, faded, 1.0), atom * (1 - faded)
    kept = np.minimum(np.minimum(held, share / earlier), 1)
    share, earlier, kept, gained = (part[:, None] for part in (share, earlier, kept, gained))
    worst = np.zeros((known.size, levels.size))
    for p in (levels, 1 - levels):
        apart = np.minimum(1, p / share) - np.maximum(0, (p - 1 + earlier) / earlier)
        steps = np.minimum(p * (1 - kept) / share, gained / np.maximum(earlier, share))
        worst = np.maximum(worst, p * np.minimum(apart, steps))
    return np.where(late[:, None] > 0, worst, 0.0)


def _shares(rounds: np.ndarray, schedule: Any, discount: Scalar | None) -> tuple[np.ndarray, np.ndarray]:
    """Tell the prior's share of each belief, and the mass of one score; with a discount that of all scores for ever."""
    if discount is not None:
        own = schedules.discounted(discount) if schedule is None else schedule
        weight = float(own.value)
        return weight + (1 - weight) * float(discount) ** (rounds - 1.0), np.full(rounds.shape, 1 - weight)
    own = schedules.InverseSqrt() if schedule is None else schedules.as_schedule(schedule)
    odd = odds(own, rounds)
    whole = np.isinf(odd)
    share = np.where(whole | (rounds == 1), 1.0, odd / (1 + np.where(whole, 0.0, odd)))
    return share, (1 - share) / np.maximum(rounds - 1, 1)


def _constant(schedule: Any) -> Any:
    if schedule is None:
        return None
    if not isinstance(schedule, schedules.Constant):
        raise ValueError(f"schedule = {schedule!r}: with a discount pass schedules.Constant(weight), or leave it out")
    return schedule.value


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
