"""How far the share of uniform numbers below a point may be from the point, at many points at once."""

import functools
from typing import Any, NamedTuple

import jax
import numpy as np
from scipy import special

from dpconformal import metrics
from dpconformal.replay import Replay
from dpconformal.validation import Numbers, Scalar, as_numbers, check_float, check_int, raise_at

_LARGEST = 100_000  # beyond this many numbers the level is that of so many


def check_probability(name: str, value: Scalar) -> float:
    """Return a probability strictly between 0 and 1 as a plain number."""
    return float(check_float(name, value, 0.0, 1.0, open_low=True, open_high=True))


def ecdf_band(count: int, prob: Scalar = 0.95, points: int = 99) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """
    Compute a band that holds the whole ECDF of iid uniform numbers with a given probability.

    At each grid point the band is the binomial interval of one common level, as in Säilynoja, Bürkner and Vehtari
    (2022); :func:`band_level` finds the level.

    Parameters
    ----------
    count : int
        N, how many numbers.
    prob : float
        Probability in (0, 1) that the ECDF is inside at all grid points.
    points : int
        K grid points k/(K + 1), between 0 and 1.

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
    count, points = check_int("count", count, 1), check_int("points", points, 1)
    grid = np.arange(1, points + 1) / (points + 1)
    low, high = _binomial_interval(count, grid, band_level(count, prob, points)[0])
    return grid, low / count, high / count


def band_level(count: int, prob: Scalar = 0.95, points: int = 99) -> tuple[float, float]:
    """Find the level of the binomial intervals that hold the ECDF together, and with which probability they do."""
    # Exact up to 100,000 numbers, whose level is used for more: by then the counts are so nearly continuous that it is
    # all but that of the Brownian bridge. From 50,000 numbers on the probability changes by less than 0.001.
    count, prob = min(check_int("count", count, 1), _LARGEST), check_probability("prob", prob)
    return _find_level(count, prob, check_int("points", points, 1))


@functools.lru_cache(maxsize=256)
def _find_level(count: int, prob: float, points: int) -> tuple[float, float]:
    grid = np.arange(1, points + 1) / (points + 1)
    small, large = (1 - prob) / points, 1.0  # Bonferroni's level is small enough
    for _ in range(30):
        middle = np.sqrt(small * large)
        inside = simultaneous_coverage(count, *_binomial_interval(count, grid, middle))
        small, large = (middle, large) if inside >= prob else (small, middle)
    return float(small), simultaneous_coverage(count, *_binomial_interval(count, grid, small))


def simultaneous_coverage(count: int, low: np.ndarray, high: np.ndarray) -> float:
    """Compute the probability that the counts of iid uniform numbers stay within limits at equally spaced points."""
    # The counts in the cells between the points are independent Poisson counts, given that these add up to N. So the
    # count moves from point to point by a convolution, and what leaves the limits is dropped on the way.
    mean = count / (low.size + 1)
    cells = np.arange(count + 1)
    step = _poisson_masses(cells, mean)
    used = np.flatnonzero(step > 1e-18)
    begin, step = int(used[0]), step[used[0] : used[-1] + 1]
    alive, floor = np.ones(1), 0
    for k in range(low.size + 1):
        alive, floor = np.convolve(alive, step), floor + begin
        least, most = (int(low[k]), int(high[k])) if k < low.size else (count, count)
        kept = np.zeros(max(most - least + 1, 0))
        start, stop = max(least, floor), min(most, floor + alive.size - 1)
        if stop >= start:
            kept[start - least : stop - least + 1] = alive[start - floor : stop - floor + 1]
        alive, floor = kept, least
    return float(min(alive.sum() / _poisson_masses(np.array(count), float(count)), 1.0))


def _poisson_masses(k: np.ndarray, mean: float) -> Any:
    """Probabilities of a Poisson distribution."""
    return np.exp(special.xlogy(k, mean) - mean - special.gammaln(k + 1.0))


def _binomial_interval(count: int, grid: np.ndarray, level: float) -> tuple[np.ndarray, np.ndarray]:
    """Return the ends of the binomial interval at each point."""
    from scipy import stats

    low, high = (stats.binom.ppf(tail, count, grid).astype(int) for tail in (level / 2, 1 - level / 2))
    return low, high


class Uniformity(NamedTuple):
    """
    What :func:`uniformity` found.

    Attributes
    ----------
    grid : ndarray, shape (K,)
        Points between 0 and 1.
    difference : ndarray, shape (K,)
        Share of the numbers up to each point, minus the point.
    low, high : ndarray, shape (K,)
        Where the difference lies with probability ``prob``, at all points at once, if the numbers are iid uniform.
    inside : bool
        Whether it does.
    p_value : float
        Of Kolmogorov's and Smirnov's test, exact.
    first_outside : float
        The first grid point outside; NaN if there is none.
    size : int
        How many numbers.
    prob : float
        Probability of the band.
    coverage : bool
        Whether these are abs(2u - 1): the shares are then the coverage of central intervals of every mass.
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

    Raises
    ------
    ValueError
        For NaN and numbers outside [0, 1].

    Examples
    --------
    >>> u = (np.arange(1000) + 0.5) / 1000
    >>> uniformity(u).inside, uniformity(u**1.2).inside
    (True, False)
    """
    from scipy import stats

    numbers = np.asarray(as_numbers("pits", pits), float)
    raise_at("pits", numbers, ~((numbers >= 0) & (numbers <= 1)), "must lie in [0, 1]")
    if not numbers.size:
        raise ValueError("pits is empty: pass at least one number")
    numbers = np.sort(np.abs(2 * numbers - 1) if coverage else numbers, axis=None)
    grid, low, high = ecdf_band(numbers.size, prob, points)
    # As whole numbers: a count on the edge of the band is inside, whatever the rounding of shares.
    below = np.searchsorted(numbers, grid, side="right")
    outside = (below < np.rint(low * numbers.size)) | (below > np.rint(high * numbers.size))
    return Uniformity(
        grid,
        below / numbers.size - grid,
        low - grid,
        high - grid,
        not bool(outside.any()),
        float(stats.kstest(numbers, "uniform", method="exact").pvalue),
        float(grid[outside.argmax()]) if outside.any() else np.nan,
        numbers.size,
        float(prob),
        bool(coverage),
    )


def randomised_pit(run: Replay, seed: int = 0) -> np.ndarray:
    """
    Compute the PIT of every round of a run, a score on an atom of the belief drawing its place within the atom.

    Uniform if the belief of each round is the truth. That is a claim about the prior as well as the scores: a belief
    that is still learning has PITs that are near uniform only. What iid scores must have, whatever the prior, is
    uniform :func:`dpconformal.diagnostics.smoothed_ranks`.

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
