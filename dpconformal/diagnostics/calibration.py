"""Are posteriors calibrated? Bands for uniform numbers, simulation-based calibration, credible intervals."""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array
from scipy import special

from dpconformal import metrics
from dpconformal.dirichlet.samplers import dirichlet
from dpconformal.priors import Prior
from dpconformal.replay import Replay
from dpconformal.schedules import Schedule
from dpconformal.theory import concentration as concentration_of
from dpconformal.theory import moments
from dpconformal.validation import Numbers, Scalar, as_numbers, check_float, check_int, raise_at

_LARGEST = 100_000  # beyond this many numbers the level is that of so many
_LEAST = 0.03  # of the parameters of F at a point; less makes masses below 1e-308 too often


def check_probability(name: str, value: Scalar) -> float:
    """Return a probability strictly between 0 and 1 as a plain number."""
    return float(check_float(name, value, 0.0, 1.0, open_low=True, open_high=True))


def as_unit_numbers(name: str, values: Numbers) -> np.ndarray:
    """Return numbers in [0, 1] as an array."""
    array = np.asarray(as_numbers(name, values), float)
    raise_at(name, array, ~((array >= 0) & (array <= 1)), "must lie in [0, 1]")
    return array


def ecdf_band(count: int, prob: Scalar = 0.95, points: int = 99) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """
    Compute a band that holds the whole ECDF of iid uniform numbers with a given probability.

    At each grid point the band is the binomial interval of one common level, as in Säilynoja, Bürkner and Vehtari
    (2022), but the level is exact, not simulated.

    Parameters
    ----------
    count, points : int
        N numbers, and K grid points k/(K + 1) between 0 and 1.
    prob : float
        Probability in (0, 1) that the ECDF is inside at all grid points.

    Returns
    -------
    tuple of ndarray, shape (K,)
        Grid, lower and upper end, as shares of N; both ends belong to the band.

    Examples
    --------
    >>> grid, low, high = ecdf_band(100, prob=0.9, points=3)
    >>> grid, low, high
    (array([0.25, 0.5 , 0.75]), array([0.17, 0.4 , 0.66]), array([0.34, 0.6 , 0.83]))
    """
    grid, low, high = _count_band(count, prob, points)
    return grid, low / count, high / count


def _count_band(count: int, prob: Scalar, points: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the grid of a band, and its ends as whole numbers of the N."""
    count, prob, points = check_int("count", count, 1), check_probability("prob", prob), check_int("points", points, 1)
    grid = np.arange(1, points + 1) / (points + 1)
    # The level is exact up to 100,000 numbers, and that of 100,000 is used for more: by then the counts are so nearly
    # continuous that it is all but that of the Brownian bridge. From 50,000 on the probability changes by less than
    # 0.001.
    return grid, *_binomial_interval(count, grid, band_level(min(count, _LARGEST), prob, points)[0])


@functools.lru_cache(maxsize=256)
def band_level(count: int, prob: float, points: int) -> tuple[float, float]:
    """Find the level of the binomial intervals that hold the ECDF together, and with which probability they do."""
    grid = np.arange(1, points + 1) / (points + 1)
    small, large = (1 - prob) / points, 1.0  # Bonferroni's level is small enough
    for _ in range(30):
        middle = np.sqrt(small * large)
        inside = simultaneous_coverage(count, *_binomial_interval(count, grid, middle))
        small, large = (middle, large) if inside >= prob else (small, middle)
    return float(small), simultaneous_coverage(count, *_binomial_interval(count, grid, small))


def _binomial_interval(count: int, grid: np.ndarray, level: float) -> tuple[np.ndarray, np.ndarray]:
    """Return the ends of the binomial interval at each point."""
    from scipy import stats  # slow to import

    low, high = (stats.binom.ppf(tail, count, grid).astype(int) for tail in (level / 2, 1 - level / 2))
    return low, high


def simultaneous_coverage(count: int, low: np.ndarray, high: np.ndarray) -> float:
    """Compute the probability that the counts of iid uniform numbers stay within limits at equally spaced points."""
    from scipy.stats import poisson

    # The counts in the cells between the points are independent Poisson counts, given that these add up to N. So the
    # count moves from point to point by a convolution, and what leaves the limits is dropped on the way.
    step = poisson.pmf(np.arange(count + 1), count / (low.size + 1))
    used = np.flatnonzero(step > 1e-18)
    begin, step = int(used[0]), step[used[0] : used[-1] + 1]
    alive, floor = np.ones(1), 0
    for least, most in zip((*low, count), (*high, count), strict=True):
        alive, floor = np.convolve(alive, step), floor + begin
        kept = np.zeros(max(most - least + 1, 0))
        start, stop = max(least, floor), min(most, floor + alive.size - 1)
        if stop >= start:
            kept[start - least : stop - least + 1] = alive[start - floor : stop - floor + 1]
        alive, floor = kept, least
    return float(min(alive.sum() / poisson.pmf(count, count), 1.0))


class Uniformity(NamedTuple):
    """
    How far numbers are from uniform ones; made by :func:`uniformity`.

    ``difference`` is the share of the ``size`` numbers up to each point of ``grid``, minus the point. If they are iid
    uniform it lies between ``low`` and ``high`` with probability ``prob``, at all points at once: ``inside`` says
    whether it does, and ``first_outside`` is the first grid point where it does not, or NaN. ``p_value`` is that of
    the exact test of Kolmogorov and Smirnov. With ``coverage`` the numbers are abs(2u - 1), and the shares up to m are
    the coverage of central intervals of mass m.
    """

    grid: np.ndarray  # (K,)
    difference: np.ndarray  # (K,)
    low: np.ndarray  # (K,)
    high: np.ndarray  # (K,)
    inside: bool
    p_value: float
    first_outside: float
    size: int
    prob: float
    coverage: bool


def uniformity(pits: Numbers, prob: Scalar = 0.95, points: int = 99, coverage: bool = False) -> Uniformity:
    """
    Compare numbers with iid uniform ones: the ECDF beside a band that holds all of it, and an exact test.

    Parameters
    ----------
    pits : array_like
        Numbers in [0, 1], of any shape: ranks, PITs, posterior probabilities of what turned out true.
    prob : float
        Probability that iid uniform numbers stay inside the band everywhere.
    points : int
        K grid points k/(K + 1).
    coverage : bool
        Whether to look at abs(2u - 1), which is uniform if u is: a share up to m is then the coverage of the central
        interval of mass m, so one picture shows every mass. It does not see a shift to one side as well.

    Returns
    -------
    Uniformity
        Its ``inside`` is the verdict; ``difference`` says where and how it fails.

    Examples
    --------
    >>> u = (np.arange(1000) + 0.5) / 1000
    >>> uniformity(u).inside, uniformity(u**1.2).inside
    (True, False)
    """
    from scipy import stats

    numbers = as_unit_numbers("pits", pits)
    if not numbers.size:
        raise ValueError("pits is empty: pass at least one number")
    numbers = np.sort(np.abs(2 * numbers - 1) if coverage else numbers, axis=None)
    grid, low, high = _count_band(numbers.size, prob, points)
    below = np.searchsorted(numbers, grid, side="right")
    outside = (below < low) | (below > high)
    return Uniformity(
        grid=grid,
        difference=below / numbers.size - grid,
        low=low / numbers.size - grid,
        high=high / numbers.size - grid,
        inside=not bool(outside.any()),
        p_value=float(stats.kstest(numbers, "uniform", method="exact").pvalue),
        first_outside=float(grid[outside.argmax()]) if outside.any() else np.nan,
        size=numbers.size,
        prob=float(prob),
        coverage=bool(coverage),
    )


def randomised_pit(run: Replay, seed: int = 0) -> np.ndarray:
    """
    Compute the PIT of every round of a run, a score on an atom of the belief drawing its place within the atom.

    Uniform if the belief of each round is the truth, and near uniform only for a belief that is still learning. What
    iid scores must have, whatever the prior, is uniform :func:`dpconformal.diagnostics.smoothed_ranks`.

    Parameters
    ----------
    run : Replay
        Of a belief; its beliefs are gone through again, as by :func:`dpconformal.metrics.pit`.
    seed : int
        Of the draws.

    Returns
    -------
    ndarray, shape (..., T)
        PITs, on the host.

    Examples
    --------
    >>> import dpconformal as dpc
    >>> run = dpc.replay(dpc.Exact(), dpc.streams.iid(20), levels=[0.5])
    >>> randomised_pit(run).shape
    (20,)
    """
    return np.asarray(metrics.pit(run, jax.random.key(check_int("seed", seed, 0))), float)


class Sbc(NamedTuple):
    """
    Where truths fell in their posteriors; made by :func:`sbc`.

    ``pits`` has an array for each quantity, uniform if the model is right: ``cdf``, the distribution function at a
    point; ``quantile``, the threshold of a level; ``mean``; ``next``, the next score. ``concentration`` is that of the
    simulation, ``fitted`` that of the posterior, and ``scores`` is how many the posterior has seen.
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
    schedule: Schedule | Callable[..., Any] | None = None,
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
    count, simulations : int
        n scores that the posterior sees, in so many simulations.
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
    draws, seed : int
        Posterior draws among which the true mean is ranked, and the seed of the simulation.

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
    seed, simulations = check_int("seed", seed, 0), check_int("simulations", simulations, 1)
    true = fitted = check_float("concentration", concentration, 0.0, open_low=True)
    if fit_concentration is not None and schedule is not None:
        raise ValueError("fit_concentration and schedule both say how to fit: pass one of them")
    if fit_concentration is not None:
        fitted = check_float("fit_concentration", fit_concentration, 0.0, open_low=True)
    if schedule is not None:
        why, fitted = "it must leave the scores some weight", concentration_of(count + 1, schedule)
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
        keys = jax.random.split(jax.random.key(seed), simulations)
        shapes = (jnp.asarray(a * masses, float) for a in (true, fitted))
        found = _simulate(keys, *shapes, jnp.asarray(centres, float), count, draws)
    p, seen, following, smaller, equal = (np.asarray(part) for part in found)
    u, v, w = np.random.default_rng(seed).random((3, simulations))
    posterior = np.cumsum(fitted * masses + seen, axis=1)
    total, rows = fitted + count, np.arange(simulations)
    truth, above = np.cumsum(p, axis=1), p[:, at + 1 :].sum(axis=1)
    reached = np.minimum((truth < level).sum(axis=1), bins - 1)  # the bin of the true threshold
    chance = np.ones((simulations, bins + 1))  # that the threshold's bin is before the k-th
    chance[:, 0] = 0
    chance[:, 1:-1] = 1 - special.betainc(posterior[:, :-1], total - posterior[:, :-1], level)
    belief = np.concatenate([np.zeros((simulations, 1)), posterior / total], axis=1)
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


@jax.jit(static_argnames=("count", "draws"))
def _simulate(keys: Array, shape: Array, fit: Array, centres: Array, count: int, draws: int) -> tuple[Array, ...]:
    """Run all simulations as one program."""

    def one(key: Array) -> tuple[Array, ...]:
        first, second, third = jax.random.split(key, 3)
        p = dirichlet(first, shape, 1)[0]
        places = jax.random.uniform(second, (count + 1,), p.dtype)
        steps = jnp.cumsum(p)
        bins = jnp.clip(jnp.searchsorted(steps, places * steps[-1], side="right"), 0, p.size - 1)
        seen = jnp.zeros(p.shape, p.dtype).at[bins[:-1]].add(jnp.ones((), p.dtype))
        means = jnp.matmul(dirichlet(third, fit + seen, draws), centres)
        mean = jnp.dot(p, centres)
        return p, seen, bins[-1], jnp.sum(means < mean), jnp.sum(means == mean)

    return jax.vmap(one)(keys)


def credible_pits(
    truth: Prior,
    prior: Prior,
    schedule: Schedule | Callable[..., Any] | None,
    count: int,
    level: Scalar = 0.9,
    datasets: int = 2000,
    seed: int = 0,
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
    datasets, seed : int
        Simulated data sets, and the seed of the simulation.

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
    pits, masses = as_unit_numbers("pits", pits), as_unit_numbers("masses", masses)
    if pits.ndim != 1 or not pits.size:
        raise ValueError(f"pits has shape {pits.shape}: pass one number a data set, at least one")
    ordered = np.sort(np.abs(2 * pits - 1))
    return (np.searchsorted(ordered, masses, side="right") / pits.size)[()]
