"""Errors over records of what was computed from one of them: its blocks are left out, one after the other."""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array
from scipy import special

from dpconformal.diagnostics.uniformity import Uniformity, uniformity
from dpconformal.dirichlet.samplers import dirichlet
from dpconformal.theory import moments
from dpconformal.theory.iid import concentration
from dpconformal.theory.iid import concentration as concentration_of
from dpconformal.validation import Numbers, Scalar, as_numbers, check_float, check_int, raise_at

BLOCKS = 20  # at least, where the record has so many scores


def leave_out_blocks(count: int) -> np.ndarray:
    """
    List what is left of a record without each of its blocks.

    Returns: Positions that are kept, ascending. Blocks are consecutive and equally long; there are 20 to 39 of them, or
    as many as there are numbers. What remains at the end, shorter than a block, is never left out.
    """
    length = max(1, count // BLOCKS)
    starts = np.arange(0, count - length + 1, length)
    kept = np.arange(count - length)
    return kept + length * (kept >= starts[:, None])


def jackknife_error(values: Any, count: int, kept: int) -> Any:
    """
    Estimate the standard error of a statistic over records from its values on one record without each block.

    Returns: Standard errors of the delete-a-group jackknife, times what Student's distribution asks for: few blocks
    tell a standard error roughly, and two of these have the probability of two exact ones. With 20 blocks that is 1.07.
    """
    values = np.where(np.isfinite(values), values, np.nan)
    variance = values.var(axis=-1, ddof=1) * kept**2 / ((count - kept) * count)
    return np.sqrt(variance) * special.stdtrit(values.shape[-1] - 1, special.ndtr(2)) / 2


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
        each = 1 - (1 - float(check_float("prob", prob, 0.0, 1.0, open_low=True, open_high=True))) / len(self.pits)
        return {name: uniformity(pits, each) for name, pits in self.pits.items()}

    @property
    def passed(self) -> bool:
        """Whether all quantities look uniform; a right model has a chance of 1 in 100 at most to fail."""
        return all(found.inside for found in self.uniformity(0.99).values())


def sbc(
    prior: Any,
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
    fitted = _fitted(true, count, fit_concentration, schedule)
    level = float(check_float("level", level, 0.0, 1.0, open_low=True, open_high=True))
    edges, masses = _grid(prior, bins)
    inner = edges[1:-1]
    centres = (edges[:-1] + edges[1:]) / 2
    where = masses @ centres if point is None else check_float("point", point, edges[0], edges[-1])
    at = int(np.argmin(np.abs(inner - where)))

    ends = masses[: at + 1].sum(), masses[at + 1 :].sum()
    if true * min(ends) < _LEAST:
        raise ValueError(
            f"concentration = {float(true):g}: F at the point would be 0 or 1 to the last bit in some simulations, for "
            f"P0 has a mass of {min(ends):.2g} on one side of it; take a larger one, or another point"
        )
    with jax.enable_x64(True):  # a small concentration makes masses that single precision does not know
        keys = jax.random.split(jax.random.key(check_int("seed", seed, 0)), check_int("simulations", simulations, 1))
        shapes = (jnp.asarray(a * masses, float) for a in (true, fitted))
        found = _simulate(count, draws)(keys, *shapes, jnp.asarray(centres, float))
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
        "quantile": _between(chance[rows, reached], chance[rows, reached + 1], u),
        "mean": (smaller + v * (equal + 1)) / (draws + 1),
        "next": _between(belief[rows, following], belief[rows, following + 1], w),
    }
    return Sbc(pits, float(true), float(fitted), count)


def _beta_cdf(below: np.ndarray, above: np.ndarray, x: np.ndarray, rest: np.ndarray) -> np.ndarray:
    """Evaluate the cdf of a Beta distribution at x = 1 - rest, from the smaller of the two."""
    low = special.betainc(below, above, np.minimum(x, 0.5))
    return np.where(x <= 0.5, low, special.betaincc(above, below, np.minimum(rest, 0.5)))


def _between(low: np.ndarray, high: np.ndarray, share: np.ndarray) -> np.ndarray:
    return np.clip(low + share * (high - low), 0, 1)


def _fitted(true: Any, count: int, fit_concentration: Any, schedule: Any) -> Any:
    """Return the concentration to fit with: the one given, a schedule's, or the true one."""
    if fit_concentration is not None and schedule is not None:
        raise ValueError("fit_concentration and schedule both say how to fit: pass one of them")
    if schedule is not None:
        why = "it must leave the scores some weight"
        return check_float(
            "schedule's concentration", concentration_of(count + 1, schedule), 0.0, open_low=True, hint=why
        )
    return (
        true if fit_concentration is None else check_float("fit_concentration", fit_concentration, 0.0, open_low=True)
    )


def _grid(prior: Any, bins: int) -> tuple[np.ndarray, np.ndarray]:
    low, high = moments.support(prior)
    if not np.isfinite(high - low):
        raise ValueError(f"prior has support [{low:g}, {high:g}]: bins need a bounded one, such as a truncated prior's")
    edges = np.linspace(low, high, bins + 1)
    masses = np.diff(moments.cdf(prior, edges))
    raise_at("prior's mass of bin", masses, ~(masses > 0), "a Dirichlet needs some in each bin; use fewer bins")
    return edges, masses / masses.sum()


@functools.cache
def _simulate(count: int, draws: int) -> Any:
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
    count, datasets = check_int("count", count, 0), check_int("datasets", datasets, 1)
    level = float(check_float("level", level, 0.0, 1.0, open_low=True, open_high=True))
    weight = float(concentration(count + 1, schedule))
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
