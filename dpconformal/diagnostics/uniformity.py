"""Are these numbers uniform? Ranks, PITs and posterior probabilities are, where the model is right."""

from typing import NamedTuple

import jax
import numpy as np

from dpconformal import metrics
from dpconformal.diagnostics.bands import ecdf_band
from dpconformal.replay import Replay
from dpconformal.validation import Numbers, Scalar, as_numbers, complain_at, whole


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
    complain_at("pits", numbers, ~((numbers >= 0) & (numbers <= 1)), "must lie in [0, 1]")
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
    return np.asarray(metrics.pit(run, jax.random.key(whole("seed", seed, 0))), float)
