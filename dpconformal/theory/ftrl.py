"""
Theorem 1 and the first half of Theorem 6, from the other side: the threshold as the minimiser of a regularised loss.

No part of the beliefs is used here, and the objective itself is what is minimised, so that agreement means something.
"""

from typing import Any

import numpy as np

from dpconformal.beliefs.weights import check_prior
from dpconformal.engine.totals import pinball
from dpconformal.priors import Prior, Uniform
from dpconformal.theory import moments
from dpconformal.theory.iid import regularizer_weights
from dpconformal.validation import Numbers, Scalar, as_numbers, check_float, raise_at


def ftrl_objective(
    r: Numbers,
    scores: Numbers,
    level: Scalar,
    prior: Any = Uniform(),
    schedule: Any = None,
    discount: Scalar | None = None,
) -> Any:
    """
    Evaluate the objective of Follow-the-Regularised-Leader: h·ψ(r) + Σ wᵢ l_α(r, sᵢ).

    Undiscounted, h is the concentration of the coming round and every weight is 1. Discounted by β,
    h = (λ/(1 - λ) + βⁿ)/(1 - β) and a score that is k rounds old has weight βᵏ.

    Parameters
    ----------
    r : array_like
        Thresholds to try.
    scores : array_like, shape (n,)
        The past.
    level : float
        Confidence level.
    prior, schedule, discount
        As for :class:`dpconformal.Exact`.

    Returns
    -------
    ndarray or float
        The objective.

    Examples
    --------
    >>> round(float(ftrl_objective(0.4, [0.2, 0.6], level=0.5)), 4)
    0.5552
    """
    scores, level, weight, weights = _inputs(scores, level, schedule, discount)
    r = np.asarray(as_numbers("r", r), float)
    raise_at("r", r, ~np.isfinite(r), "a threshold must be finite")
    regularized = moments.cdf_integral(prior, r) + level * (moments.mean(prior) - r)
    return (weight * regularized + pinball(np, r[..., None], scores, level) @ weights)[()]


def ftrl_threshold(
    scores: Numbers,
    level: Numbers,
    prior: Any = Uniform(),
    schedule: Any = None,
    discount: Scalar | None = None,
) -> Any:
    """
    Minimise the objective of Follow-the-Regularised-Leader: the threshold after these scores, by Theorem 1.

    A ternary search compares the objective at two points until rounding hides their difference; its one-sided slope
    decides from there.

    Parameters
    ----------
    scores : array_like, shape (n,)
        The past; the threshold is that of round n + 1.
    level : float or array_like
        Confidence levels.
    prior : Prior
        P0.
    schedule : Schedule or callable, optional
        λ_t; by default 1/√t, or with a discount the theorem's constant.
    discount : float, optional
        β in (0, 1).

    Returns
    -------
    float or ndarray
        The minimiser, one a level. Of the many minimisers at levels 0 and 1 the end of the support.

    Examples
    --------
    >>> import dpconformal as dpc
    >>> belief = dpc.Exact()
    >>> round(float(belief.quantile(belief.observe(belief.init(), 0.2), 0.9)), 4)
    0.8586
    >>> round(ftrl_threshold([0.2], 0.9), 4)
    0.8586
    """
    check_prior("ftrl_threshold", prior)
    levels = np.asarray(as_numbers("level", level), float)
    found = [_minimise(prior, *_inputs(scores, each, schedule, discount)) for each in levels.ravel()]
    return np.array(found).reshape(levels.shape)[()] if levels.ndim else found[0]


def _inputs(scores: Numbers, level: Scalar, schedule: Any, discount: Scalar | None) -> tuple[Any, ...]:
    scores = np.asarray(as_numbers("scores", scores), float)
    if scores.ndim != 1:
        raise ValueError(f"scores has shape {scores.shape}: pass one sequence of past scores, shape (n,)")
    raise_at("scores", scores, ~np.isfinite(scores), "a score must be finite")
    level = check_float("level", level, 0.0, 1.0)
    return scores, level, *regularizer_weights(scores.size, schedule, discount)


def _minimise(prior: Prior, scores: np.ndarray, level: float, weight: float, weights: np.ndarray) -> float:
    low, high = moments.support(prior)
    if level in (0.0, 1.0):
        return low if level == 0 else high

    def rise(a: float, b: float) -> float:
        """Objective at b minus objective at a < b, without cancellation: the loss falls by α before a score."""
        losses = weights @ ((b - np.clip(scores, a, b)) - level * (b - a))
        prior_part = float(np.diff(moments.cdf_integral(prior, np.array([a, b])))[0]) - level * (b - a)
        return float(losses + weight * prior_part)

    def slope(r: float) -> float:
        """One-sided derivative, from the right."""
        return float(weights @ ((scores <= r) - level) + weight * (moments.cdf(prior, np.array(r)) - level))

    low, high = _finite_bracket(scores, slope, low, high)
    noise = 1e-10 * (weight + weights.sum()) * (high - low)  # far above the rounding of any closed form
    while True:
        a, b = low + (high - low) / 3, high - (high - low) / 3
        change = rise(a, b)
        if not abs(change) > noise:
            break
        low, high = (low, b) if change > 0 else (a, high)
    while low < (middle := (low + high) / 2) < high:
        low, high = (low, middle) if slope(middle) >= 0 else (middle, high)
    return high if slope(low) < 0 else low


def _finite_bracket(scores: np.ndarray, slope: Any, low: float, high: float) -> tuple[float, float]:
    """Cut an infinite support to where the objective already rises away from its minimum."""
    centre = float(np.median(scores)) if scores.size else (low if np.isfinite(low) else min(high, 0.0))
    reach = 1.0
    while not np.isfinite(low) and slope(centre - reach) >= 0:
        reach *= 2
    low = low if np.isfinite(low) else centre - reach
    while not np.isfinite(high) and slope(centre + reach) < 0:
        reach *= 2
    return low, (high if np.isfinite(high) else centre + reach)
