"""Priors of unknown make, evaluated and integrated in float64."""

from typing import Any

import jax
import numpy as np

from dpconformal.beliefs.weights import check_prior
from dpconformal.priors import Uniform
from dpconformal.theory import moments
from dpconformal.theory.moments import least_density
from dpconformal.validation import Numbers, as_numbers, raise_at


def regularizer(r: Numbers, level: Numbers, prior: Any = Uniform()) -> Any:
    """
    Compute ψ(r) = E[l_α(r, X)] for X drawn from the prior, the regulariser of Theorem 1.

    Its derivative is P0(X ≤ r) - α, so it is least at the prior's quantile and as strongly convex as the prior's
    density is high: see :func:`strong_convexity`. For ``Uniform(0, R)`` it is the quadratic r²/(2R) - αr + αR/2.

    Parameters
    ----------
    r : array_like
        Thresholds.
    level : array_like
        Confidence levels α, which broadcast against the thresholds.
    prior : Prior
        P0. In closed form for the priors of this package, by adaptive quadrature for others.

    Returns
    -------
    ndarray or float
        In float64. It is also the risk of the threshold r on scores that are drawn from the prior.

    Examples
    --------
    >>> float(regularizer(1.0, 0.9, Uniform(0, 4)))
    1.025
    """
    r, level = _numbers(r, level, prior)
    # E(r - X)⁺ - α E(r - X), as the loss is (r - s)⁺ - α (r - s).
    with np.errstate(invalid="ignore"):  # ∞ - ∞
        value = moments.cdf_integral(prior, r) + level * (moments.mean(prior) - r)
    return np.where(np.isposinf(r), np.where(level < 1, np.inf, 0.0), value)[()]


def excess_regularizer(r: Numbers, level: Numbers, prior: Any = Uniform()) -> Any:
    """
    Compute ψ(r) - min ψ: what the regulariser charges for leaving the prior's quantile.

    Parameters
    ----------
    r : array_like
        Thresholds.
    level : array_like
        Confidence levels, which broadcast against the thresholds.
    prior : Prior
        P0. It need not have a mean.

    Returns
    -------
    ndarray or float
        At least 0, in float64.

    Examples
    --------
    >>> float(excess_regularizer(0.25, 0.5))
    0.03125
    """
    r, level = _numbers(r, level, prior)
    with jax.enable_x64(True):
        best = np.asarray(prior.quantile(level), float)
    # At an infinite quantile, of level 0 or 1, ψ runs down to 0.
    start = np.where(np.isfinite(best), best, r)
    with np.errstate(invalid="ignore"):
        climb = moments.integral_from(prior, start, r) - level * (r - start)
        climb = np.where(start == best, climb, _down_to_nothing(prior, r, level)) if np.any(start != best) else climb
    return np.where(r == best, 0, np.maximum(climb, 0))[()]


def _down_to_nothing(prior: Any, r: Any, level: Any) -> Any:
    """Compute ψ itself, at levels 0 and 1; infinite where a tail is too heavy."""
    below = moments.cdf_integral(prior, r)
    whole = np.where(level > 0, below + (moments.mean(prior) - r), below)
    return np.where(np.isnan(whole), np.inf, whole)


def strong_convexity(prior: Any = Uniform(), low: Numbers = None, high: Numbers = None) -> Any:
    """
    Return the strong-convexity coefficient of the regulariser: the least density of the prior on a segment.

    Parameters
    ----------
    prior : Prior
        P0.
    low, high : array_like, optional
        Ends of the segment; those of the support by default.

    Returns
    -------
    ndarray or float
        The coefficient, the same for every level; 0 means that ψ is convex but not strongly so.

    Examples
    --------
    >>> from dpconformal.priors import Beta
    >>> float(strong_convexity(Uniform(0, 4)))
    0.25
    >>> float(strong_convexity(Beta(2, 2), 0.25, 0.5))
    1.125
    """
    check_prior("strong_convexity", prior)
    ends = dict(zip(("low", "high"), prior.support, strict=True))
    low, high = (
        np.asarray(as_numbers(name, ends[name] if given is None else given), float)
        for name, given in (("low", low), ("high", high))
    )
    raise_at("low", low, ~(low <= high), "must not exceed high")
    if not (np.all(np.isfinite(low)) and np.all(np.isfinite(high))):
        return np.zeros(np.broadcast_shapes(low.shape, high.shape))[()]  # a density must vanish far out
    return least_density(prior, low, high)[()]


def _numbers(r: Numbers, level: Numbers, prior: Any) -> tuple[Any, Any]:
    check_prior("regularizer", prior)
    r, level = np.asarray(as_numbers("r", r), float), np.asarray(as_numbers("level", level), float)
    raise_at("level", level, ~((level >= 0) & (level <= 1)), "a confidence level lies in [0, 1]")
    return r, level
