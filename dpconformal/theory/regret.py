"""Regret before the game: bounds that know the number of rounds only, for the uniform prior (Theorems 2, 5, 6)."""

from typing import Any

import numpy as np

from dpconformal.beliefs.bins import check_rounding
from dpconformal.validation import Numbers, Scalar, as_numbers, check_float, raise_at


def regret_bound(rounds: Numbers, level: Numbers, width: Scalar = 1.0) -> Any:
    """
    Bound the regret of :class:`dpconformal.Exact` with a uniform prior and λ_t = 1/√t, on any sequence (Theorem 2).

    With m = max(α, 1 - α): m² R/2 · (√T + 1 + Σ 1/(√t + 1)), at most 3/2 m² R √T + m² R/2. For other priors and
    schedules, and closer to what a run met, see :func:`path_bound`.

    Parameters
    ----------
    rounds : array_like
        T.
    level : array_like
        α, which broadcasts against the rounds.
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
    return (_steepest(level) ** 2 * width / 2 * (np.sqrt(rounds) + 1 + _sum_of_inverse_weights(rounds)))[()]


def quantized_regret_bound(
    rounds: Numbers, level: Numbers, bins: Numbers = None, width: Scalar = 1.0, rounding: str = "up"
) -> Any:
    """
    Bound the regret of :class:`dpconformal.Quantized` with a uniform prior and λ_t = 1/√t (Theorem 5).

    A score is at most R/bins from its bin's upper edge, or R/(2 bins) from its centre, and l(r, s) - l(u, s) changes
    with s by as much at most: so much a round more than :func:`regret_bound`.

    Parameters
    ----------
    rounds : array_like
        T.
    level : array_like
        α, which broadcasts against the rounds.
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
    rounds : array_like
        T.
    level : array_like
        α, which broadcasts against the rounds.
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
    return (width * (leash + _steepest(level) ** 2 / 2 * _sum_of_inverse_weights(rounds)))[()]


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
    rounds : array_like
        T; ``numpy.inf`` for the limit.
    level, discount : array_like
        α and β in (0, 1), which broadcast against the rounds.
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
    return (_steepest(level) ** 2 * width / 2 * terms)[()]


def discounted_lower_bound(rounds: Numbers, level: Numbers, discount: Numbers, width: Scalar = 1.0) -> Any:
    """
    Bound from below what discounted regret an adversary can force on any method whatever.

    If scores are drawn from the two ends of the support, the upper one with probability 1 - α, all thresholds cost the
    same on average, and the best in hindsight gains R/2 · E|D|, D being a discounted sum of independent steps of
    variance α(1 - α). The bound is R/2 · (E D²)^(3/2)/(E D⁴)^(1/2), near R/2 · √(α(1 - α)/(3(1 - β²))) for β near 1.

    Parameters
    ----------
    rounds : array_like
        T; ``numpy.inf`` for the limit.
    level, discount : array_like
        α, and β in (0, 1], which broadcast against the rounds; with β = 1 the ordinary regret is meant.
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


def _steepest(level: Any) -> Any:
    return np.maximum(level, 1 - level)


def _arguments(rounds: Numbers, level: Numbers, width: Scalar) -> tuple[Any, Any, float]:
    rounds, level = np.asarray(as_numbers("rounds", rounds), float), np.asarray(as_numbers("level", level), float)
    raise_at("rounds", rounds, ~((rounds >= 0) & ((rounds == np.floor(rounds)) | np.isinf(rounds))), "whole, from 0")
    raise_at("level", level, ~((level >= 0) & (level <= 1)), "a confidence level lies in [0, 1]")
    return rounds, level, check_float("width", width, 0.0, open_low=True)


def _discounts(discount: Numbers, open_high: bool = True) -> Any:
    beta = np.asarray(as_numbers("discount", discount), float)
    fine = (beta > 0) & ((beta < 1) if open_high else (beta <= 1))
    raise_at("discount", beta, ~fine, f"must lie in (0, 1{')' if open_high else ']'}")
    return beta
