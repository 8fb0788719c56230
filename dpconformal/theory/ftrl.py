"""
Theorem 1 and the first half of Theorem 6: the regulariser ψ, its weight h_t, and the threshold that minimises the loss.

The objective itself is minimised, and no part of the beliefs is used: that both agree is evidence for the theorems.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from dpconformal import schedules
from dpconformal.beliefs.belief import check_prior
from dpconformal.engine.totals import pinball
from dpconformal.priors import Prior, Uniform
from dpconformal.schedules import Schedule
from dpconformal.theory import moments
from dpconformal.validation import Numbers, Scalar, as_numbers, check_float, raise_at


def regularizer(r: Numbers, level: Numbers, prior: Any = Uniform()) -> Any:
    """
    Compute ψ(r) = E[l_α(r, X)] for X drawn from the prior, the regulariser of Theorem 1.

    Its derivative is P0(X ≤ r) - α, so it is least at the prior's quantile and as strongly convex as the prior's
    density is high: see :func:`strong_convexity`. For ``Uniform(0, R)`` it is the quadratic r²/(2R) - αr + αR/2.

    Parameters
    ----------
    r, level : array_like
        Thresholds, and confidence levels α, which broadcast against them.
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
    check_prior("regularizer", prior)
    r, level = np.asarray(as_numbers("r", r), float), read_levels(level)
    # E(r - X)⁺ - α E(r - X), as the loss is (r - s)⁺ - α (r - s).
    with np.errstate(invalid="ignore"):  # ∞ - ∞
        value = moments.cdf_integral(prior, r) + level * (moments.mean(prior) - r)
    return np.where(np.isposinf(r), np.where(level < 1, np.inf, 0.0), value)[()]


def excess_regularizer(r: Numbers, level: Numbers, prior: Any = Uniform()) -> Any:
    """
    Compute ψ(r) - min ψ: what the regulariser charges for leaving the prior's quantile.

    Parameters
    ----------
    r, level : array_like
        Thresholds, and confidence levels, which broadcast against them.
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
    check_prior("regularizer", prior)
    r, level = np.asarray(as_numbers("r", r), float), read_levels(level)
    with jax.enable_x64(True):
        best = np.asarray(prior.quantile(level), float)
    start = np.where(np.isfinite(best), best, r)
    with np.errstate(invalid="ignore"):
        climb = moments.integral_from(prior, start, r) - level * (r - start)
        if np.any(start != best):  # at an infinite quantile, of level 0 or 1, ψ runs down to 0: the excess is ψ itself
            below = moments.cdf_integral(prior, r)
            whole = np.where(level > 0, below + (moments.mean(prior) - r), below)
            climb = np.where(start == best, climb, np.where(np.isnan(whole), np.inf, whole))  # ∞ for too heavy a tail
    return np.where(r == best, 0, np.maximum(climb, 0))[()]


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
    ends = [given if end is None else end for end, given in zip((low, high), prior.support, strict=True)]
    low, high = (np.asarray(as_numbers(name, end), float) for name, end in zip(("low", "high"), ends, strict=True))
    raise_at("low", low, ~(low <= high), "must not exceed high")
    if not (np.all(np.isfinite(low)) and np.all(np.isfinite(high))):
        return np.zeros(np.broadcast_shapes(low.shape, high.shape))[()]  # a density must vanish far out
    return moments.least_density(prior, low, high)[()]


def concentration(t: Numbers, schedule: Any = None) -> Any:
    """
    Compute h_t = λ_t (t - 1)/(1 - λ_t): regulariser weight and Dirichlet concentration in one number.

    Parameters
    ----------
    t : array_like
        Rounds, counted from 1.
    schedule : Schedule or callable, optional
        λ_t; 1/√t by default.

    Returns
    -------
    ndarray or float
        √t + 1 for 1/√t, and a for ``Dirichlet(a)``. In round 1 any weight gives the prior: there the schedules of
        which no limit is known have h_2. Infinite where λ_t is 1 later on.

    Examples
    --------
    >>> concentration([4, 9])
    array([3., 4.])
    >>> concentration(7, schedules.Dirichlet(5.0))
    np.float64(5.0)
    """
    t = np.asarray(as_numbers("t", t), float)
    raise_at("t", t, ~(t >= 1), "rounds are counted from 1")
    schedule = schedules.InverseSqrt() if schedule is None else schedules.as_schedule(schedule)
    if isinstance(schedule, schedules.InverseSqrt):
        return (np.sqrt(t) + 1)[()]
    if isinstance(schedule, schedules.ForDelay):
        return (np.sqrt(1 + 2 * float(schedule.delay)) * (np.sqrt(t) + 1))[()]
    if isinstance(schedule, schedules.Dirichlet):
        return np.full(t.shape, float(schedule.concentration))[()]
    rounds = np.maximum(t, 2)
    return (odds(schedule, rounds) * (rounds - 1))[()]


def odds(schedule: Schedule, t: Numbers) -> Any:
    """Compute λ_t/(1 - λ_t) in float64. In round 1 the prior has all the weight; it is given the odds of round 2."""
    t = np.maximum(np.asarray(t, float), 2)
    with jax.enable_x64(True):
        # By vmap, for a user's own schedule may be written for one number.
        weight = np.asarray(jax.vmap(schedule.weight)(jnp.asarray(t.ravel())), float).reshape(t.shape)
    raise_at("schedule", weight, ~((weight > 0) & (weight <= 1)), "a weight must lie in (0, 1]")
    with np.errstate(divide="ignore"):
        return weight / (1 - weight)


def prior_weight(odds: np.ndarray) -> np.ndarray:
    """Return λ_t given λ_t/(1 - λ_t), which may be infinite."""
    whole = np.isinf(odds)
    return np.where(whole, 1.0, odds / (1 + np.where(whole, 0.0, odds)))


def path_weights(t: np.ndarray, schedule: Any, discount: Scalar | None) -> Any:
    """Compute the weight of the regulariser beside a newest loss of weight 1, after the round."""
    if discount is None:
        return np.asarray(concentration(t, schedule))
    # β^t z_t, where z_t is the weight in the proof of Theorem 6, and β^t scales its losses to the present.
    beta = float(discount)
    schedule = schedules.discounted(beta) if schedule is None else schedules.as_schedule(schedule)
    return (beta * odds(schedule, t) + beta**t) / (1 - beta)


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
    scores, level, weight, weights = _read_inputs(scores, level, schedule, discount)
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
    found = [_minimise(prior, *_read_inputs(scores, each, schedule, discount)) for each in levels.ravel()]
    return np.array(found).reshape(levels.shape)[()] if levels.ndim else found[0]


def _read_inputs(
    scores: Numbers, level: Scalar, schedule: Any, discount: Scalar | None
) -> tuple[np.ndarray, float, float, np.ndarray]:
    """Read scores and level, and weigh the objective of the coming round: the regulariser, and each past loss."""
    scores = np.asarray(as_numbers("scores", scores), float)
    if scores.ndim != 1:
        raise ValueError(f"scores has shape {scores.shape}: pass one sequence of past scores, shape (n,)")
    raise_at("scores", scores, ~np.isfinite(scores), "a score must be finite")
    level, count, beta, weight = check_float("level", level, 0.0, 1.0), scores.size, 1.0, 1.0
    if discount is not None:
        beta = check_float("discount", discount, 0.0, 1.0, open_low=True, open_high=True)
    if count:  # with a discount the losses of the objective end with the last round: β^(t - 1) z_t
        weight = float(path_weights(np.array(count + 1.0), schedule, discount)) / beta
    if not np.isfinite(weight):  # the prior alone
        return scores, level, 1.0, np.zeros(count)
    return scores, level, weight, beta ** np.arange(count - 1, -1, -1.0)


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

    # Cut an infinite support to where the objective already rises away from its minimum.
    centre = float(np.median(scores)) if scores.size else (low if np.isfinite(low) else min(high, 0.0))
    reach = 1.0
    while not np.isfinite(low) and slope(centre - reach) >= 0:
        reach *= 2
    low = low if np.isfinite(low) else centre - reach
    while not np.isfinite(high) and slope(centre + reach) < 0:
        reach *= 2
    high = high if np.isfinite(high) else centre + reach

    # A ternary search compares the objective at two points until rounding hides their difference; from there its
    # one-sided slope decides.
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


def read_levels(level: Numbers) -> np.ndarray:
    """Read confidence levels in float64."""
    level = np.asarray(as_numbers("level", level), float)
    raise_at("level", level, ~((level >= 0) & (level <= 1)), "a confidence level lies in [0, 1]")
    return level
