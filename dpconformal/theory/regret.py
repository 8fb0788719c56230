"""Regret before the game: bounds that know the number of rounds only, for the uniform prior (Theorems 2, 5, 6)."""

from typing import Any

import numpy as np

from dpconformal import schedules
from dpconformal.beliefs.quantized import check_rounding
from dpconformal.theory.ftrl import concentration, odds, prior_weight, read_levels
from dpconformal.validation import Numbers, Scalar, as_numbers, check_float, raise_at


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
        The bound.

    Examples
    --------
    >>> float(regret_bound(10_000, 0.5).round(2))
    36.43
    """
    rounds, level, width = _arguments(rounds, level, width)
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
        The bound.

    Examples
    --------
    >>> float((quantized_regret_bound(10_000, 0.9, bins=100) - regret_bound(10_000, 0.9)).round(6))
    100.0
    """
    rounds, level, width = _arguments(rounds, level, width)
    size = np.ceil(np.sqrt(np.maximum(rounds, 1))) if bins is None else np.asarray(as_numbers("bins", bins), float)
    raise_at("bins", size, ~((size >= 1) & (size == np.floor(size)) | np.isinf(rounds)), "a whole number, from 1")
    with np.errstate(invalid="ignore"):
        coarse = np.where(np.isinf(rounds), np.inf, rounds * bin_cost(width, size, rounding))
    return (regret_bound(rounds, level, width) + coarse)[()]


def bin_cost(width: float, bins: Any, rounding: str) -> Any:
    """
    Bound what binning adds to the regret of a round, at any level.

    A score s is noted as s̃, the upper edge of its bin or its centre. The difference l(r, s) - l(u, s) of two losses has
    slopes -1, 0 and 1 in s, so that it changes by |s - s̃| at most.
    """
    check_rounding("rounding", rounding)
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
        The bound.

    Examples
    --------
    >>> float(corrected_regret_bound(10_000, 0.5).round(2))
    74.8
    """
    rounds, level, width = _arguments(rounds, level, width)
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
        The bound.

    Examples
    --------
    >>> float(discounted_regret_bound(10_000, 0.5, 0.99).round(3))
    2.5
    """
    rounds, level, width = _arguments(rounds, level, width)
    beta = _discounts(discount)
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
    rounds, level, width = _arguments(rounds, level, width)
    beta = _discounts(discount, open_high=False)
    second, fourth = (_geometric(beta**power, rounds) for power in (2, 4))
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
    rounds, delay = (np.asarray(as_numbers(n, v), float) for n, v in (("rounds", rounds), ("delay", delay)))
    for name, values in (("rounds", rounds), ("delay", delay)):
        raise_at(name, values, ~((values >= 0) & (values == np.floor(values)) & (values < 2**31)), "whole, from 0")
    level, width = read_levels(level), check_float("width", width, 0.0, open_low=True)
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
    with np.errstate(invalid="ignore"):
        fall = np.maximum(weight[:-1] - weight[1:], 0)
        fall = np.concatenate([np.zeros((min(known.size, 1), 1)), np.where(np.isnan(fall), 0, fall)])
    swings = np.minimum(steep, steep**2 / (2 * weight))
    more = late_losses(known, levels, schedule)
    return steep**2 / 2 * (weight + np.cumsum(fall, axis=0)) + np.cumsum(swings + more, axis=0)


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
    """Return the prior's share of each belief, and the mass of one score; of all scores for ever with a discount."""
    if discount is not None:
        weight = float((schedules.discounted(discount) if schedule is None else schedule).value)
        return weight + (1 - weight) * float(discount) ** (rounds - 1.0), np.full(rounds.shape, 1 - weight)
    own = schedules.InverseSqrt() if schedule is None else schedules.as_schedule(schedule)
    share = np.where(rounds == 1, 1.0, prior_weight(odds(own, rounds)))
    return share, (1 - share) / np.maximum(rounds - 1, 1)


def _constant_weight(schedule: Any) -> Any:
    """Return the weight of a constant schedule; None for none."""
    if schedule is None:
        return None
    if not isinstance(schedule, schedules.Constant):
        raise ValueError(f"schedule = {schedule!r}: with a discount pass schedules.Constant(weight), or leave it out")
    return schedule.value


def _geometric(ratio: Any, terms: Any) -> Any:
    one = ratio == 1
    return np.where(one, terms, (1 - ratio**terms) / np.where(one, 1, 1 - ratio))


def _sum_of_inverse_weights(rounds: Any) -> Any:
    """Σ 1/(√t + 1) over t = 1, …, T."""
    short = rounds <= 10**7
    longest = int(np.max(rounds, where=short, initial=0))
    total = np.concatenate([[0], np.cumsum(1 / (np.sqrt(np.arange(1, longest + 1)) + 1))])
    with np.errstate(invalid="ignore"):
        integral = 2 * np.sqrt(rounds) - 2 * np.log1p(np.sqrt(rounds))  # from 0, an upper bound
    integral = np.where(np.isinf(rounds), np.inf, integral)
    return np.where(short, total[np.where(short, rounds, 0).astype(int)], integral)


def steepest(level: Any) -> Any:
    """Return the largest slope of the quantile loss, max(α, 1 - α)."""
    return np.maximum(level, 1 - level)


def _arguments(rounds: Numbers, level: Numbers, width: Scalar) -> tuple[Any, Any, float]:
    rounds, level = np.asarray(as_numbers("rounds", rounds), float), read_levels(level)
    raise_at("rounds", rounds, ~((rounds >= 0) & ((rounds == np.floor(rounds)) | np.isinf(rounds))), "whole, from 0")
    return rounds, level, check_float("width", width, 0.0, open_low=True)


def _discounts(discount: Numbers, open_high: bool = True) -> Any:
    beta = np.asarray(as_numbers("discount", discount), float)
    valid = (beta > 0) & ((beta < 1) if open_high else (beta <= 1))
    raise_at("discount", beta, ~valid, f"must lie in (0, 1{')' if open_high else ']'}")
    return beta
