"""
The bounds of the theorems: regret on any sequence, then coverage and risk if scores are iid or exchangeable.

They know no more of a run than its number of rounds; :mod:`dpconformal.theory.path` has those that know its path.
"""

from typing import Any

import numpy as np

from dpconformal import schedules
from dpconformal.beliefs.quantized import check_rounding
from dpconformal.priors import Uniform
from dpconformal.theory import moments
from dpconformal.theory.ftrl import concentration, excess_regularizer, odds, prior_weight, read_levels
from dpconformal.validation import Numbers, Scalar, as_numbers, check_float, check_scalar, raise_at


def regret_bound(rounds: Numbers, level: Numbers, width: Scalar = 1.0) -> Any:
    """
    Bound the regret of :class:`dpconformal.Exact` with a uniform prior and λ_t = 1/√t, on any sequence (Theorem 2).

    With m = max(α, 1 - α): m² R/2 · (√T + 1 + Σ 1/(√t + 1)), at most 3/2 m² R √T + m² R/2. For other priors and
    schedules, and closer to what a run met, see :func:`path_bound`.

    Parameters
    ----------
    rounds, level : array_like
        T and α, which broadcast against each other.
    width : float
        R, the width of the support.

    Returns
    -------
    ndarray or float

    Examples
    --------
    >>> float(regret_bound(10_000, 0.5).round(2))
    36.43
    """
    rounds, level, width = _read_arguments(rounds, level, width)
    return (steepest(level) ** 2 * width / 2 * (np.sqrt(rounds) + 1 + _sum_of_inverse_weights(rounds)))[()]


def quantized_regret_bound(
    rounds: Numbers, level: Numbers, bins: Numbers = None, width: Scalar = 1.0, rounding: str = "up"
) -> Any:
    """
    Bound the regret of :class:`dpconformal.Quantized` with a uniform prior and λ_t = 1/√t (Theorem 5).

    A score is at most R/bins from its bin's upper edge, or R/(2 bins) from its centre, and l(r, s) - l(u, s) changes
    with s by as much at most: so much a round more than :func:`regret_bound`.

    Parameters
    ----------
    rounds, level : array_like
        T and α, which broadcast against each other.
    bins : array_like, optional
        How many, which broadcasts against the rounds; ⌈√T⌉ by default, for which the addition is at most R√T, or R√T/2.
    width : float
        R, the width of the support.
    rounding : {"up", "nearest"}
        Where a score counts: at its bin's upper edge, or at its centre.

    Returns
    -------
    ndarray or float

    Examples
    --------
    >>> float((quantized_regret_bound(10_000, 0.9, bins=100) - regret_bound(10_000, 0.9)).round(6))
    100.0
    """
    rounds, level, width = _read_arguments(rounds, level, width)
    size = np.ceil(np.sqrt(np.maximum(rounds, 1))) if bins is None else np.asarray(as_numbers("bins", bins), float)
    raise_at("bins", size, ~((size >= 1) & (size == np.floor(size)) | np.isinf(rounds)), "a whole number, from 1")
    with np.errstate(invalid="ignore"):
        coarse = np.where(np.isinf(rounds), np.inf, rounds * bin_cost(width, size, rounding))
    return (regret_bound(rounds, level, width) + coarse)[()]


def bin_cost(width: float, bins: Any, rounding: str) -> Any:
    """Bound what binning adds to the regret of a round, at any level."""
    check_rounding("rounding", rounding)
    # A score s is noted as s̃, the upper edge of its bin or its centre. The difference l(r, s) - l(u, s) of two losses
    # has slopes -1, 0 and 1 in s, so that it changes by |s - s̃| at most.
    return width / bins if rounding == "up" else width / (2 * bins)


def corrected_regret_bound(rounds: Numbers, level: Numbers, width: Scalar = 1.0) -> Any:
    """
    Bound the regret of ``Corrected(Exact())``, with a uniform prior and λ_t = 1/√t, on any sequence.

    With m = max(α, 1 - α): R/2 · (√T + 1) + αR + m² R/2 · Σ 1/(√t + 1). The correction, which makes coverage valid in
    finite samples, moves the point that the regulariser pulls to from the prior's α-quantile to the upper end. For
    other priors and schedules, and closer to what a run met, see :func:`path_bound`.

    Parameters
    ----------
    rounds, level : array_like
        T and α, which broadcast against each other.
    width : float
        R, the width of the support.

    Returns
    -------
    ndarray or float

    Examples
    --------
    >>> float(corrected_regret_bound(10_000, 0.5).round(2))
    74.8
    """
    rounds, level, width = _read_arguments(rounds, level, width)
    leash = (np.sqrt(rounds) + 1) / 2 + level
    return (width * (leash + steepest(level) ** 2 / 2 * _sum_of_inverse_weights(rounds)))[()]


def discounted_regret_bound(
    rounds: Numbers, level: Numbers, discount: Numbers, width: Scalar = 1.0, weight: Scalar | None = None
) -> Any:
    """
    Bound the discounted regret of a discounted belief with a uniform prior, on any sequence (Theorem 6).

    With o = λ/(1 - λ) and m = max(α, 1 - α):
    m² R/2 · (β^T/(1 - β) + o β/(1 - β) + (1 - β^T)/(o β)). The theorem's λ has o = √(1 - β)/β, the best as T → ∞, which
    leaves m² R · (1/√(1 - β) + β^T/(2 (1 - β))) at most.

    Parameters
    ----------
    rounds, level, discount : array_like
        T, ``numpy.inf`` for the limit, α, and β in (0, 1), which broadcast against each other.
    width : float
        R, the width of the support.
    weight : float, optional
        λ in (0, 1); the theorem's by default.

    Returns
    -------
    ndarray or float

    Examples
    --------
    >>> float(discounted_regret_bound(10_000, 0.5, 0.99).round(3))
    2.5
    """
    rounds, level, width = _read_arguments(rounds, level, width)
    beta = np.asarray(as_numbers("discount", discount), float)
    raise_at("discount", beta, ~((beta > 0) & (beta < 1)), "must lie in (0, 1)")
    if weight is None:
        with np.errstate(over="ignore"):  # a discount next to 0 leaves no bound
            odds = np.sqrt(1 - beta) / beta
    else:
        weight = check_float("weight", weight, 0.0, 1.0, open_low=True, open_high=True)
        odds = weight / (1 - weight)
    faded = beta**rounds
    terms = (faded + odds * beta) / (1 - beta) + (1 - faded) / (odds * beta)
    return (steepest(level) ** 2 * width / 2 * terms)[()]


def discounted_lower_bound(rounds: Numbers, level: Numbers, discount: Numbers, width: Scalar = 1.0) -> Any:
    """
    Bound from below what discounted regret an adversary can force on any method whatever.

    If scores are drawn from the two ends of the support, the upper one with probability 1 - α, all thresholds cost the
    same on average, and the best in hindsight gains R/2 · E|D|, D being a discounted sum of independent steps of
    variance α(1 - α). The bound is R/2 · (E D²)^(3/2)/(E D⁴)^(1/2), near R/2 · √(α(1 - α)/(3(1 - β²))) for β near 1.

    Parameters
    ----------
    rounds, level, discount : array_like
        T, ``numpy.inf`` for the limit, α, and β in (0, 1], which broadcast; with β = 1 the ordinary regret is meant.
    width : float
        R, the width of the support.

    Returns
    -------
    ndarray or float
        For every method there is a sequence with at least this discounted regret.

    Examples
    --------
    >>> float(discounted_lower_bound(10_000, 0.5, 0.99).round(3))
    1.027
    """
    rounds, level, width = _read_arguments(rounds, level, width)
    beta = np.asarray(as_numbers("discount", discount), float)
    raise_at("discount", beta, ~((beta > 0) & (beta <= 1)), "must lie in (0, 1]")
    # Σ β^(2i) and Σ β^(4i) over the rounds.
    with np.errstate(invalid="ignore"):
        second, fourth = (np.where(beta == 1, rounds, (1 - x**rounds) / (1 - x)) for x in (beta**2, beta**4))
    variance = level * (1 - level)
    with np.errstate(invalid="ignore", over="ignore"):
        excess = variance * (1 - 6 * variance) * fourth  # of the fourth moment over three squared variances
        gain = (variance * second) ** 1.5 / np.sqrt(3 * (variance * second) ** 2 + excess)
    gain = np.where(np.isinf(second), np.inf, gain)
    return (width / 2 * np.where((variance > 0) & (rounds > 0), gain, 0.0))[()]


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
    rounds, level, delay : array_like
        T, finite, α, and h: a score is observed after the round that is h rounds later. They broadcast.
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
    rounds, level, width = _read_arguments(rounds, level, width)
    delay = np.asarray(as_numbers("delay", delay), float)
    for name, values in (("rounds", rounds), ("delay", delay)):
        raise_at(name, values, ~((values >= 0) & (values == np.floor(values)) & (values < 2**31)), "whole, from 0")
    rounds, level, delay = np.broadcast_arrays(rounds.astype(int), level, delay.astype(int))
    found, longest = np.zeros(rounds.shape), int(np.max(rounds, initial=0))
    before = np.arange(longest)
    for late in np.unique(delay):
        here = delay == late
        asked, column = np.unique(level[here], return_inverse=True)
        running = bound_by_round(np.maximum(before - late, 0), asked, schedule, discount)
        found[here] = np.concatenate([np.zeros((1, asked.size)), running])[rounds[here], column.ravel()]
    nothing = steepest(level) ** 2 / 2  # of no rounds, as regret_bound has it
    if discount is not None:
        nothing = discounted_regret_bound(0, level, discount, 1.0, _constant_weight(schedule))
    return (width * np.where(rounds == 0, nothing, found))[()]


def bound_by_round(known: np.ndarray, levels: np.ndarray, schedule: Any, discount: Scalar | None = None) -> np.ndarray:
    """Bound the regret at every horizon, given how many scores are known before each round."""
    rounds, steep = np.arange(1, known.size + 1), steepest(levels)
    if discount is not None:
        from scipy.signal import lfilter  # slow to import

        at_once = discounted_regret_bound(rounds[:, None], levels, discount, 1.0, _constant_weight(schedule))
        more = late_losses(known, levels, schedule, discount)
        return at_once + lfilter([1.0], [1.0, -float(discount)], more, axis=0)
    weight = np.asarray(concentration(rounds, schedule))[:, None]
    with np.errstate(invalid="ignore"):  # ∞ - ∞ is no fall
        fall = np.fmax(weight[:-1] - weight[1:], 0)
    fallen = np.concatenate([np.zeros((min(known.size, 1), 1)), np.cumsum(fall, axis=0)])
    swings = np.minimum(steep, steep**2 / (2 * weight))
    return steep**2 / 2 * (weight + fallen) + np.cumsum(swings + late_losses(known, levels, schedule), axis=0)


def late_losses(known: np.ndarray, levels: np.ndarray, schedule: Any, discount: Scalar | None = None) -> np.ndarray:
    """Bound by how much the threshold of an earlier round may be worse than that of the round itself, (T, A)."""
    # From round τ to round t the belief gains a mass of Δ at most, and keeps the share c of everything at least. The
    # prior has λ_τ and λ_t of it, so that the cdf rises with a slope of at least λ/R. A threshold that is too small is
    # so by R times the least of α(1 - c)/λ_t, Δ/max(λ_τ, λ_t) and min(1, α/λ_t) - max(0, 1 - (1 - α)/λ_τ), and each
    # unit costs α. For one that is too large 1 - α stands in the place of α.
    if not known.size:
        return np.zeros((0, levels.size))
    count = np.arange(known.size)  # of scores that would be known without a delay
    late = count - known
    if discount is None:
        schedule = schedules.InverseSqrt() if schedule is None else schedules.as_schedule(schedule)
        share = np.where(count == 0, 1.0, prior_weight(odds(schedule, count + 1)))
        earlier, atom = share[known], (1 - share) / np.maximum(count, 1)
        held = np.where(atom[known] > 0, atom / np.where(atom[known] > 0, atom[known], 1), 1.0)
        gained = np.maximum(share - earlier, 0) + known * np.maximum(atom - atom[known], 0) + late * atom
    else:
        beta = float(discount)
        weight = float((schedules.discounted(beta) if schedule is None else schedule).value)
        share = weight + (1 - weight) * beta ** count.astype(float)
        earlier, held, gained = share[known], np.where(known > 0, beta**late, 1.0), (1 - weight) * (1 - beta**late)
    kept = np.minimum(np.minimum(held, share / earlier), 1)
    share, earlier, kept, gained = (part[:, None] for part in (share, earlier, kept, gained))
    worst = np.zeros((known.size, levels.size))
    for p in (levels, 1 - levels):
        apart = np.minimum(1, p / share) - np.maximum(0, (p - 1 + earlier) / earlier)
        steps = np.minimum(p * (1 - kept) / share, gained / np.maximum(earlier, share))
        worst = np.maximum(worst, p * np.minimum(apart, steps))
    return np.where(late[:, None] > 0, worst, 0.0)


def _constant_weight(schedule: Any) -> Scalar | None:
    """Return the weight of a constant schedule; None if there is no schedule."""
    if schedule is not None and not isinstance(schedule, schedules.Constant):
        raise ValueError(f"schedule = {schedule!r}: with a discount pass schedules.Constant(weight), or leave it out")
    return None if schedule is None else schedule.value


def _sum_of_inverse_weights(rounds: np.ndarray) -> np.ndarray:
    """Compute Σ 1/(√t + 1) over t = 1, …, T; for very many rounds the integral above it."""
    short = rounds <= 10**7
    longest = int(np.max(rounds, where=short, initial=0))
    total = np.concatenate([[0], np.cumsum(1 / (np.sqrt(np.arange(1, longest + 1)) + 1))])
    with np.errstate(invalid="ignore"):
        integral = 2 * np.sqrt(rounds) - 2 * np.log1p(np.sqrt(rounds))
    integral = np.where(np.isinf(rounds), np.inf, integral)
    return np.where(short, total[np.where(short, rounds, 0).astype(int)], integral)


def steepest(level: np.ndarray) -> Any:
    """Return the largest slope of the quantile loss, max(α, 1 - α)."""
    return np.maximum(level, 1 - level)


def _read_arguments(rounds: Numbers, level: Numbers, width: Scalar) -> tuple[np.ndarray, np.ndarray, float]:
    rounds, level = np.asarray(as_numbers("rounds", rounds), float), read_levels(level)
    raise_at("rounds", rounds, ~((rounds >= 0) & ((rounds == np.floor(rounds)) | np.isinf(rounds))), "whole, from 0")
    return rounds, level, check_float("width", width, 0.0, open_low=True)


def coverage_bound(t: Numbers, level: Numbers, delta: Scalar = 0.05, schedule: Any = None) -> tuple[Any, Any]:
    """
    Bound the coverage probability of the threshold of round t, given the scores before it (Theorem 3).

    For iid scores with a continuous distribution, any prior and a fixed t, with probability 1 - δ over the n = t - 1
    scores before, for all levels at once: α - (1 - α) h_t/n - ε and α + (α h_t + 1)/n + ε, ε = √(ln(2/δ)/(2n)), within
    [0, 1]. For λ_t = 1/√t, h_t/n is 1/(√t - 1).

    Parameters
    ----------
    t, level : array_like
        Rounds, counted from 1, and α, which broadcasts against them.
    delta : float
        δ in (0, 1).
    schedule : Schedule or callable, optional
        λ_t, not discounted; 1/√t by default.

    Returns
    -------
    tuple of ndarray or float
        Lower and upper bound.

    Examples
    --------
    >>> low, high = coverage_bound(1001, 0.9)
    >>> round(float(low), 3), round(float(high), 3)
    (0.854, 0.973)
    """
    level, count = read_levels(level), _read_numbers("t", t, 1) - 1
    shift, doubt = _shift_and_doubt(count, schedule, delta)
    with np.errstate(divide="ignore", invalid="ignore"):
        low = np.where(level < 1, level - (1 - level) * shift, 1.0) - doubt
        high = np.where(level > 0, level + level * shift, 0.0) + 1 / count + doubt
    return np.clip(low, 0, 1)[()], np.clip(high, 0, 1)[()]


def excess_risk_bound(
    t: Numbers, level: Numbers, delta: Scalar = 0.05, prior: Any = Uniform(), schedule: Any = None
) -> Any:
    """
    Bound the expected loss of the threshold of round t beyond that of the best threshold (Theorem 4).

    For iid scores of any distribution on the prior's support and a fixed t, with probability 1 - δ over the n = t - 1
    scores before, for all levels at once: R √(ln(2/δ)/(2n)) + h_t/n · (max ψ - min ψ).

    Parameters
    ----------
    t, level : array_like
        Rounds, counted from 1, and α, which broadcasts against them.
    delta : float
        δ in (0, 1).
    prior : Prior
        P0, on a bounded support.
    schedule : Schedule or callable, optional
        λ_t, not discounted; 1/√t by default.

    Returns
    -------
    ndarray or float
        The bound; infinite in round 1.

    Examples
    --------
    >>> round(float(excess_risk_bound(10_001, 0.9)), 4)
    0.0177
    """
    level, count = read_levels(level), _read_numbers("t", t, 1) - 1
    low, high = moments.support(prior)
    if not np.isfinite(high - low):
        raise ValueError(f"prior has support [{low:g}, {high:g}]: the excess risk is bounded on a bounded one only")
    shift, doubt = _shift_and_doubt(count, schedule, delta)
    largest = np.maximum(excess_regularizer(low, level, prior), excess_regularizer(high, level, prior))
    with np.errstate(invalid="ignore"):  # an endless number of scores leaves no doubt
        return ((high - low) * doubt + shift * largest)[()]


def _shift_and_doubt(count: Any, schedule: Any, delta: Scalar) -> tuple[Any, Any]:
    """Return h_t/n and √(ln(2/δ)/(2n)), by which the prior and chance may move a threshold's level."""
    delta = check_scalar("delta", delta, 0.0, 1.0, open_low=True, open_high=True)
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.asarray(concentration(count + 1, schedule)) / count, np.sqrt(np.log(2 / delta) / (2 * count))


def coverage_bracket(level: Numbers, count: Numbers, concentration: Numbers) -> tuple[Any, Any]:
    """
    Bracket the coverage probability of the next round in a finite sample, whatever the prior.

    For any prior, even one chosen from anything but the coming score, and a concentration a that was fixed beforehand,
    the threshold of level ℓ lies between the order statistics of ranks ⌈ℓ(n + a) - a⌉ and ⌈ℓ(n + a)⌉ of the n scores.
    If the scores are exchangeable, these ranks divided by n + 1 are the bracket. The upper end needs scores without
    ties, none of them at the lower end of the support; the lower end needs neither.

    Parameters
    ----------
    level, count, concentration : array_like
        ℓ, the number n of scores seen, and a; with λ_t = 1/√t, that of round n + 1: :func:`concentration`.

    Returns
    -------
    tuple of ndarray or float
        Lower and upper end, both 1 at level 1. Below it some prior attains each.

    Examples
    --------
    >>> low, high = coverage_bracket(0.9, count=100, concentration=5)
    >>> round(float(low), 4), round(float(high), 4)
    (0.8911, 0.9406)
    """
    level, count, weight = (
        read_levels(level),
        _read_numbers("count", count, 0),
        _read_numbers("concentration", concentration, 0),
    )
    raise_at("count", count, ~np.isfinite(count), "must be finite")
    raise_at("concentration", weight, ~np.isfinite(weight), "must be finite")
    least, most = rank_bracket(level, count, weight)
    return (least / (count + 1))[()], (most / (count + 1))[()]


def rank_bracket(level: np.ndarray, count: np.ndarray, weight: np.ndarray) -> tuple[Any, Any]:
    """Bracket the rank of a threshold among the scores seen: X_(least) ≤ threshold ≤ X_(most)."""
    with np.errstate(invalid="ignore"):
        wanted = level * (count + weight)
        # 0.9 · 100 is meant to be 90, also where floating point says 90.00000000000001.
        slack = 1e-9 * np.maximum(1, count)
        least, most = np.ceil(wanted - weight - slack), np.ceil(wanted - slack)
    informed = (count > 0) & np.isfinite(weight)
    least = np.where(informed, np.clip(least, 0, count), 0)
    most = np.where(informed & (most <= count), np.maximum(most, 0), count + 1)
    # Level 1 is the upper end of the support. Rounded up, a little less than 0 is -0.0.
    return np.where(level >= 1, count + 1, least) + 0.0, most + 0.0


def corrected_level(level: Numbers, count: Numbers, concentration: Numbers) -> Any:
    """
    Return the level to ask a belief for, so that coverage is at least ``level`` in finite samples.

    (ℓ(n + 1) + a)/(n + a): then the lower end of :func:`coverage_bracket` is at least ℓ, for exchangeable scores, any
    prior and a fixed concentration. Where that exceeds 1 no quantile within the data would do, and level 1, the
    upper end of the support, covers with certainty.

    Parameters
    ----------
    level, count, concentration : array_like
        ℓ, the coverage wanted, the number n of scores seen, and a.

    Returns
    -------
    ndarray or float
        The level to ask for, at most 1.

    Examples
    --------
    >>> asked = corrected_level(0.9, count=100, concentration=5)
    >>> round(float(asked), 4), bool(coverage_bracket(asked, 100, 5)[0] >= 0.9)
    (0.9133, True)
    """
    level, count, weight = (
        read_levels(level),
        _read_numbers("count", count, 0),
        _read_numbers("concentration", concentration, 0),
    )
    with np.errstate(all="ignore"):  # without evidence every level asks for everything
        asked = (level * (count + 1) + weight) / (count + weight)
    return np.where(count + weight > 0, np.minimum(asked, 1), 1.0)[()]


def _read_numbers(name: str, value: Numbers, least: int) -> np.ndarray:
    value = np.asarray(as_numbers(name, value), float)
    raise_at(name, value, ~(value >= least), f"must be at least {least}")
    return value
