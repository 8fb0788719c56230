"""Do credible intervals of a threshold hold the true quantile as often as they say? Not with every schedule."""

from typing import Any

import jax
import numpy as np
from scipy import special

from dpconformal.theory import moments
from dpconformal.theory.concentration import concentration
from dpconformal.validation import Numbers, Scalar, as_numbers, complain_at, number, whole


def credible_pits(
    truth: Any, prior: Any, schedule: Any, count: int, level: Scalar = 0.9, datasets: int = 2000, seed: int = 0
) -> np.ndarray:
    """
    Compute where in its posterior the true quantile lies, for many simulated data sets.

    After n iid scores the belief is that of a Dirichlet process with the concentration h that the schedule has in round
    n + 1. Its posterior of the threshold is known in closed form: q_level is at most x with probability
    P(Beta(M G(x), M (1 - G(x))) ≥ level), M = n + h, G being the belief. At x, the true quantile, it needs no more of
    the scores than how many are at most x, and that number is binomial. So no score is drawn.

    With a fixed concentration these numbers tend to uniform: credible intervals are confidence intervals in the end.
    With λ_t = 1/√t they do not, unless the prior is the truth. The prior pulls the belief by λ (P0(q) - level), which
    shrinks no faster than the posterior's own spread, 1/√n: intervals are off their place by a fixed share of their
    length, whatever n.

    Parameters
    ----------
    truth : Prior
        Distribution of the scores, continuous.
    prior : Prior
        P0.
    schedule : Schedule, callable or None
        λ_t, not discounted; 1/√t if None.
    count : int
        n, scores seen.
    level : float
        Level of the threshold, in (0, 1).
    datasets : int
        Simulated data sets.
    seed : int
        Of the simulation.

    Returns
    -------
    ndarray, shape (datasets,)
        Posterior probability that the threshold is at most the true quantile; uniform if credible intervals of all
        masses cover as often as they say.

    Examples
    --------
    >>> import dpconformal as dpc
    >>> truth, prior = dpc.priors.Beta(2, 5), dpc.priors.Uniform()
    >>> for schedule in (dpc.schedules.Dirichlet(5.0), dpc.schedules.InverseSqrt()):
    ...     held = interval_coverage(credible_pits(truth, prior, schedule, count=5000, datasets=20_000), 0.9)
    ...     print(bool(0.88 < held < 0.92), bool(held < 0.7))
    True False
    False True
    """
    count, datasets = whole("count", count, 0), whole("datasets", datasets, 1)
    level = float(number("level", level, 0.0, 1.0, open_low=True, open_high=True))
    weight = float(concentration(count + 1, schedule))
    if not np.isfinite(weight):
        raise ValueError(
            f"schedule gives the prior all the weight in round {count + 1}: there is no posterior to check"
        )
    with jax.enable_x64(True):
        quantile = float(truth.quantile(np.float64(level)))
    seen = np.random.default_rng(whole("seed", seed, 0)).binomial(count, level, datasets)
    above = weight * (1 - float(moments.cdf(prior, quantile))) + count - seen
    below = weight + count - above
    inside = (below > 0) & (above > 0)  # else the belief is certain
    chance = 1 - special.betainc(np.where(inside, below, 1.0), np.where(inside, above, 1.0), level)
    return np.where(inside, chance, np.where(below > 0, 1.0, 0.0))


def interval_coverage(pits: Numbers, masses: Numbers) -> Any:
    """
    Compute how often central intervals hold the truth.

    Parameters
    ----------
    pits : array_like, shape (N,)
        Where in its posterior each truth lies, such as :func:`credible_pits`.
    masses : array_like
        Probabilities that the intervals claim.

    Returns
    -------
    ndarray or float
        Share of the truths in the central interval of each mass.

    Examples
    --------
    >>> interval_coverage([0.01, 0.3, 0.5, 0.9], masses=[0.5, 0.9])
    array([0.5 , 0.75])
    """
    pits, masses = np.asarray(as_numbers("pits", pits), float), np.asarray(as_numbers("masses", masses), float)
    for name, values in (("pits", pits), ("masses", masses)):
        complain_at(name, values, ~((values >= 0) & (values <= 1)), "must lie in [0, 1]")
    if pits.ndim != 1 or not pits.size:
        raise ValueError(f"pits has shape {pits.shape}: pass one number a data set, at least one")
    ordered = np.sort(np.abs(2 * pits - 1))
    return (np.searchsorted(ordered, masses, side="right") / pits.size)[()]
