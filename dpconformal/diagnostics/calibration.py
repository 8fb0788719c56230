"""Are posteriors calibrated? Simulation-based calibration, and how often credible intervals hold the truth."""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array
from scipy import special

from dpconformal.diagnostics.uniformity import Uniformity, check_probability, uniformity
from dpconformal.dirichlet.samplers import dirichlet
from dpconformal.priors import Prior
from dpconformal.theory import concentration as concentration_of
from dpconformal.theory import moments
from dpconformal.validation import Numbers, Scalar, as_numbers, check_float, check_int, raise_at

_LEAST = 0.03  # of the parameters of F at a point; less makes masses below 1e-308 too often


class Sbc(NamedTuple):
    """
    What :func:`sbc` found.

    Attributes
    ----------
    pits : dict of ndarray, shape (simulations,)
        Where in its posterior each truth fell, uniform if the model is right: ``cdf``, the distribution function at a
        point; ``quantile``, the threshold of a level; ``mean``; ``next``, the next score.
    concentration, fitted : float
        That of the simulation, and that of the posterior.
    scores : int
        How many the posterior has seen.
    """

    pits: dict[str, np.ndarray]  # (simulations,) each
    concentration: float
    fitted: float
    scores: int

    def uniformity(self, prob: Scalar = 0.95) -> dict[str, Uniformity]:
        """Compare each quantity with uniform numbers, all of them inside with probability ``prob`` at least."""
        each = 1 - (1 - check_probability("prob", prob)) / len(self.pits)
        return {name: uniformity(pits, each) for name, pits in self.pits.items()}

    @property
    def passed(self) -> bool:
        """Whether all quantities look uniform; a right model has a chance of 1 in 100 at most to fail."""
        return all(found.inside for found in self.uniformity(0.99).values())


def sbc(
    prior: Prior,
    concentration: Scalar,
    count: int,
    simulations: int = 2000,
    bins: int = 64,
    level: Scalar = 0.9,
    point: Scalar | None = None,
    fit_concentration: Scalar | None = None,
    schedule: Any = None,
    draws: int = 19,
    seed: int = 0,
) -> Sbc:
    """
    Check that a Dirichlet-process posterior is calibrated, by simulation from its own prior.

    Each simulation draws probabilities of the bins from Dirichlet(a P0) and n + 1 scores from these; the posterior sees
    the first n of them. Quantities that take steps are smoothed at random within the step; otherwise they would not be
    uniform.

    Parameters
    ----------
    prior : Prior
        P0, on a bounded support that it fills.
    concentration : float
        a, of the simulation.
    count : int
        n, scores that the posterior sees.
    simulations : int
        How many.
    bins : int
        Bins of equal width over the support, at least two.
    level : float
        Level of the threshold, in (0, 1).
    point : float, optional
        Where to look at the distribution function: the nearest edge between two bins, by default nearest to P0's mean.
    fit_concentration : float, optional
        The concentration of the posterior; the right one by default.
    schedule : Schedule or callable, optional
        Instead: the concentration that a schedule has in round n + 1.
    draws : int
        Posterior draws among which the true mean is ranked.
    seed : int
        Of the simulation.

    Returns
    -------
    Sbc
        PITs of four quantities; ``passed`` and ``uniformity(prob)``.

    Examples
    --------
    >>> import dpconformal as dpc
    >>> right = sbc(dpc.priors.Uniform(), 5.0, count=50, simulations=200, bins=16, draws=9)
    >>> wrong = sbc(dpc.priors.Uniform(), 5.0, count=50, simulations=200, bins=16, draws=9, fit_concentration=40.0)
    >>> right.passed  # doctest: +SKIP
    True
    >>> wrong.passed
    False
    """
    count, bins, draws = check_int("count", count, 0), check_int("bins", bins, 2), check_int("draws", draws, 1)
    true = check_float("concentration", concentration, 0.0, open_low=True)
    if fit_concentration is not None and schedule is not None:
        raise ValueError("fit_concentration and schedule both say how to fit: pass one of them")
    fitted = true if fit_concentration is None else fit_concentration
    fitted = check_float("fit_concentration", fitted, 0.0, open_low=True)
    if schedule is not None:
        why = "it must leave the scores some weight"
        fitted = concentration_of(count + 1, schedule)
        fitted = check_float("schedule's concentration", fitted, 0.0, open_low=True, hint=why)
    level = check_probability("level", level)
    low, high = moments.support(prior)
    if not np.isfinite(high - low):
        raise ValueError(f"prior has support [{low:g}, {high:g}]: bins need a bounded one, such as a truncated prior's")
    edges = np.linspace(low, high, bins + 1)
    masses = np.diff(moments.cdf(prior, edges))
    raise_at("prior's mass of bin", masses, ~(masses > 0), "a Dirichlet needs some in each bin; use fewer bins")
    masses, centres = masses / masses.sum(), (edges[:-1] + edges[1:]) / 2
    where = masses @ centres if point is None else check_float("point", point, edges[0], edges[-1])
    at = int(np.argmin(np.abs(edges[1:-1] - where)))

    ends = masses[: at + 1].sum(), masses[at + 1 :].sum()
    if true * min(ends) < _LEAST:
        raise ValueError(
            f"concentration = {float(true):g}: F at the point would be 0 or 1 to the last bit in some simulations, for "
            f"P0 has a mass of {min(ends):.2g} on one side of it; take a larger one, or another point"
        )
    with jax.enable_x64(True):  # a small concentration makes masses that single precision does not know
        keys = jax.random.split(jax.random.key(check_int("seed", seed, 0)), check_int("simulations", simulations, 1))
        shapes = (jnp.asarray(a * masses, float) for a in (true, fitted))
        found = _simulation(count, draws)(keys, *shapes, jnp.asarray(centres, float))
    p, seen, following, smaller, equal = (np.asarray(part) for part in found)

    u, v, w = np.random.default_rng(check_int("seed", seed, 0)).random((3, len(p)))
    posterior = np.cumsum(fitted * masses + seen, axis=1)
    total, rows = fitted + count, np.arange(len(p))
    truth, above = np.cumsum(p, axis=1), p[:, at + 1 :].sum(axis=1)
    reached = np.minimum((truth < level).sum(axis=1), bins - 1)  # the bin of the true threshold
    chance = np.ones((len(p), bins + 1))  # that the threshold's bin is before the k-th
    chance[:, 0] = 0
    chance[:, 1:-1] = 1 - special.betainc(posterior[:, :-1], total - posterior[:, :-1], level)
    belief = np.concatenate([np.zeros((len(p), 1)), posterior / total], axis=1)
    pits = {
        "cdf": _beta_cdf(posterior[:, at], total - posterior[:, at], truth[:, at], above),
        "quantile": _uniform_between(chance[rows, reached], chance[rows, reached + 1], u),
        "mean": (smaller + v * (equal + 1)) / (draws + 1),
        "next": _uniform_between(belief[rows, following], belief[rows, following + 1], w),
    }
    return Sbc(pits, float(true), float(fitted), count)


def _beta_cdf(below: np.ndarray, above: np.ndarray, x: np.ndarray, rest: np.ndarray) -> np.ndarray:
    """Evaluate the cdf of a Beta distribution at x = 1 - rest, from the smaller of the two."""
    low = special.betainc(below, above, np.minimum(x, 0.5))
    return np.where(x <= 0.5, low, special.betaincc(above, below, np.minimum(rest, 0.5)))


def _uniform_between(low: np.ndarray, high: np.ndarray, share: np.ndarray) -> np.ndarray:
    return np.clip(low + share * (high - low), 0, 1)


@functools.cache
def _simulation(count: int, draws: int) -> Any:
    """Compile all simulations as one program."""

    def one(key: Array, shape: Array, fit: Array, centres: Array) -> tuple[Array, ...]:
        first, second, third = jax.random.split(key, 3)
        p = dirichlet(first, shape, 1)[0]
        places = jax.random.uniform(second, (count + 1,), p.dtype)
        steps = jnp.cumsum(p)
        bins = jnp.clip(jnp.searchsorted(steps, places * steps[-1], side="right"), 0, p.size - 1)
        seen = jnp.zeros(p.shape, p.dtype).at[bins[:-1]].add(jnp.ones((), p.dtype))
        means = jnp.matmul(dirichlet(third, fit + seen, draws), centres)
        mean = jnp.dot(p, centres)
        return p, seen, bins[-1], jnp.sum(means < mean), jnp.sum(means == mean)

    return jax.jit(jax.vmap(one, in_axes=(0, None, None, None)))


def credible_pits(
    truth: Prior, prior: Prior, schedule: Any, count: int, level: Scalar = 0.9, datasets: int = 2000, seed: int = 0
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
    count, datasets = check_int("count", count, 0), check_int("datasets", datasets, 1)
    level = check_probability("level", level)
    weight = float(concentration_of(count + 1, schedule))
    if not np.isfinite(weight):
        raise ValueError(
            f"schedule gives the prior all the weight in round {count + 1}: there is no posterior to check"
        )
    with jax.enable_x64(True):
        quantile = float(truth.quantile(np.float64(level)))
    seen = np.random.default_rng(check_int("seed", seed, 0)).binomial(count, level, datasets)
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
        raise_at(name, values, ~((values >= 0) & (values <= 1)), "must lie in [0, 1]")
    if pits.ndim != 1 or not pits.size:
        raise ValueError(f"pits has shape {pits.shape}: pass one number a data set, at least one")
    ordered = np.sort(np.abs(2 * pits - 1))
    return (np.searchsorted(ordered, masses, side="right") / pits.size)[()]
