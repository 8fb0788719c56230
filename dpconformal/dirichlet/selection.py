"""Choose the concentration, and if need be the prior, by how well beliefs predict each score from the past."""

import warnings
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from dpconformal.beliefs import Exact
from dpconformal.martingales.exchangeability import arrival_ranks
from dpconformal.priors import Histogram, Mixture, Prior, Uniform
from dpconformal.schedules import Dirichlet
from dpconformal.theory import moments
from dpconformal.theory.moments import integral, landmarks
from dpconformal.validation import (
    Numbers,
    Scalar,
    as_numbers,
    check_float,
    check_int,
    check_interval,
    check_time_index,
    checked_scores,
    raise_at,
)

if TYPE_CHECKING:
    import xarray as xr

CONCENTRATIONS = tuple(float(f"{a:.3g}") for a in np.geomspace(0.1, 10_000, 26))
_BINS, _LEARN, _CELLS = (4, 8, 16, 32, 64), 0.5, 20  # by default
_SMALL = 256  # scores whose distances are computed pair by pair


class Choice(NamedTuple):
    """
    A prior P0 and a concentration a, how many scores it is worth; made by :func:`choose`.

    ``table`` has the ``score`` of each candidate over (prior, concentration), the mean over the rounds that were
    scored; smaller is better. Its attributes say how many scores taught the priors and how many scored them.
    """

    concentration: float
    prior: Prior
    table: "xr.Dataset"

    @property
    def learner(self) -> Exact:
        """A fresh belief; feed it only scores that did not teach its prior, or they count twice."""
        return Exact(self.prior, Dirichlet(self.concentration))


def choose(
    scores: Numbers,
    prior: Prior | None = None,
    concentrations: Numbers = CONCENTRATIONS,
    by: str = "crps",
    bins: Sequence[int] | None = None,
    learn: Scalar | None = None,
    low: Scalar | None = None,
    high: Scalar | None = None,
    cells: int | None = None,
) -> Choice:
    """
    Choose the concentration, and if none is given the prior, by how well they would have predicted.

    Beliefs (a P0 + counts)/(a + n) predict each score from those before it. A prior that is learned comes from the
    first part of the stretch and is scored on the rest: on the scores that taught it a histogram would look perfect,
    and with it an infinite concentration. The belief of a learned prior starts the scored part without scores, which
    are in the prior already. A given prior is scored on the whole stretch.

    Parameters
    ----------
    scores : array_like, shape (T,)
        A calibration stretch, in time order.
    prior : Prior, optional
        P0. By default histograms learned from the stretch compete with the uniform distribution.
    concentrations : array_like
        Candidates, increasing.
    by : {"crps", "log_score"}
        The continuous ranked probability score, computed exactly; or minus the log-probability of the cell in which the
        score falls. By density the atoms of a belief would not count, and the best concentration would be infinite.
    bins : sequence of int, optional
        Bins of the histograms to learn; 4, 8, 16, 32 and 64 by default. Not with ``prior``.
    learn : float, optional
        Share of the stretch that teaches the priors, in (0, 1); half by default. Not with ``prior``.
    low, high : float, optional
        The support of a learned prior, which must hold all scores to come; [0, 1] by default. Not with ``prior``.
    cells : int, optional
        Cells of equal width for the log score, 20 by default. Not with ``by="crps"``.

    Returns
    -------
    Choice
        Concentration, prior, the table they were chosen from, and the ``learner`` they make.

    Examples
    --------
    >>> import numpy as np
    >>> from dpconformal.priors import Beta
    >>> scores = np.random.default_rng(0).beta(2, 5, 200)
    >>> choose(scores, prior=Beta(5.0, 2.0)).concentration  # a wrong prior
    0.251
    >>> learned = choose(scores)
    >>> learned.concentration, type(learned.prior).__name__
    (63.1, 'Histogram')
    """
    import xarray as xr

    grid = np.atleast_1d(np.asarray(as_numbers("concentrations", concentrations), float))
    raise_at("concentrations", grid, ~(np.isfinite(grid) & (grid > 0)), "must be finite and above 0")
    raise_at("concentrations", grid, np.diff(grid, prepend=-np.inf) <= 0, "must increase strictly")
    if by not in ("crps", "log_score"):
        raise ValueError(f"by = {by!r}: pass 'crps' or 'log_score'")
    if by == "crps" and cells is not None:
        raise ValueError(f"cells = {cells!r}: only the log score has cells; pass by='log_score' or leave it out")
    if prior is not None:
        for name, value in (("bins", bins), ("learn", learn), ("low", low), ("high", high)):
            if value is not None:
                raise ValueError(f"{name} = {value!r}: only a prior that is learned has it; leave out prior or {name}")
        support, share = moments.support(prior), 0.0
    else:
        support = check_float("low", 0.0 if low is None else low), check_float("high", 1.0 if high is None else high)
        check_interval("choose", *support)
        share = check_float("learn", _LEARN if learn is None else learn, 0.0, 1.0, open_low=True, open_high=True)
    check_time_index("scores", scores)
    values = np.asarray(checked_scores(scores, support), float)
    if values.ndim != 1:
        raise ValueError(f"scores has shape {values.shape}: pass one sequence, shape (T,)")
    taught = int(share * values.size)
    candidates: dict[str, Prior] = {"uniform": Uniform(*support)} if prior is None else {type(prior).__name__: prior}
    if prior is None:
        sizes = [check_int(f"bins[{i}]", size, 1) for i, size in enumerate(_BINS if bins is None else bins)]
        learned = (Histogram.from_scores(values[:taught], k, low=support[0], high=support[1]) for k in sizes)
        candidates |= {f"histogram_{k}": histogram for k, histogram in zip(sizes, learned, strict=True)}
    scored = values[taught:]
    if not scored.size or (prior is None and not taught):
        raise ValueError(f"scores has {values.size} entries: too few to choose from")
    width = check_int("cells", _CELLS if cells is None else cells, 2)
    terms = crps_terms if by == "crps" else partial(log_terms, cells=width)
    score = np.stack([terms(candidate, scored, grid) for candidate in candidates.values()])
    if grid.size > 1 and np.ptp(score, axis=1).max() <= 1e-12 * np.abs(score).max():
        raise ValueError(f"scores has {values.size} entries: too few to choose from, all concentrations do the same")
    best, column = np.unravel_index(int(np.argmin(score)), score.shape)
    if grid.size > 1 and column in (0, grid.size - 1):
        where, lesson = (
            ("last", "the prior predicts so well that these scores cannot say how many of them it is worth")
            if column
            else ("first", "the prior is of no help; try smaller concentrations or another prior")
        )
        warnings.warn(f"concentration = {grid[column]:g} is the {where} of the candidates: {lesson}", stacklevel=2)
    table = xr.Dataset(
        {"score": (("prior", "concentration"), score)},
        {"prior": list(candidates), "concentration": grid},
        {"by": by, "taught": taught, "scored": scored.size},
    )
    return Choice(float(grid[column]), list(candidates.values())[best], table)


def crps_terms(prior: Prior, scores: np.ndarray, concentrations: np.ndarray) -> np.ndarray:
    """Return the mean CRPS of Dirichlet-process beliefs, exactly."""
    # With λ = a/(a + n) the belief is λ P0 + (1 - λ) · empirical, so the CRPS is a quadratic in λ. Its coefficients are
    # mean distances between the score, draws of P0 and scores seen, and do not depend on a.
    mean, spread = moments.mean(prior), _half_mean_difference(prior)
    if not np.isfinite(mean + spread):
        raise ValueError(
            f"prior = {prior!r} has tails too heavy for a CRPS; choose by='log_score' on a bounded support"
        )
    n = np.arange(scores.size)
    seen = np.maximum(n, 1)
    to_prior = 2 * moments.cdf_integral(prior, scores) + mean - scores
    distances = distances_to_past(scores)
    to_past = distances / seen
    between = (np.cumsum(to_prior) - to_prior) / seen  # of P0 and the past
    within = (np.cumsum(distances) - distances) / seen**2  # half the mean distance of two of the past, with repetition
    own, cross, past = to_prior - spread, to_prior + to_past - between, to_past - within
    weight = concentrations[:, None] / (concentrations[:, None] + n)
    rest = n / (concentrations[:, None] + n)
    return np.mean(weight**2 * own + weight * rest * cross + rest**2 * past, axis=1)


def log_terms(prior: Prior, scores: np.ndarray, concentrations: np.ndarray, cells: int) -> np.ndarray:
    """Return the mean of minus the log-probability that beliefs give to the cell of the next score."""
    low, high = moments.support(prior)
    if not np.isfinite(high - low):
        raise ValueError(f"prior has support [{low:g}, {high:g}]: cells of equal width need a bounded one; use 'crps'")
    edges = np.linspace(low, high, cells + 1)
    masses = np.diff(moments.cdf(prior, edges))
    cell = np.clip(np.searchsorted(edges, scores, side="right") - 1, 0, cells - 1)
    before = arrival_ranks(cell)[1]  # how many of the past are in the same cell
    a, n = concentrations[:, None], np.arange(scores.size)
    with np.errstate(divide="ignore"):  # a cell that the prior rules out
        return np.mean(np.log(a + n) - np.log(a * masses[cell] + before), axis=1)


def distances_to_past(scores: np.ndarray) -> np.ndarray:
    """Return the sum of abs(score_t - score_i) over i < t, by splitting in halves: T log² T steps."""
    total = np.zeros(scores.size)

    def split(start: int, end: int) -> None:
        if end - start <= _SMALL:
            part = scores[start:end]
            total[start:end] += np.tril(np.abs(part[:, None] - part)).sum(axis=1)
            return
        middle = (start + end) // 2
        split(start, middle)
        split(middle, end)
        left, right = np.sort(scores[start:middle]), scores[middle:end]
        sums = np.concatenate([[0.0], np.cumsum(left)])
        below = np.searchsorted(left, right)
        total[middle:end] += right * (2 * below - left.size) + sums[-1] - 2 * sums[below]

    split(0, scores.size)
    return total


def _half_mean_difference(prior: Prior) -> float:
    """∫ P0(1 - P0), between the points where the density jumps."""

    def jumps(prior: Prior) -> list[np.ndarray]:
        if isinstance(prior, Mixture):
            return [points for part in prior.components for points in (*jumps(part), np.array(moments.support(part)))]
        return [np.asarray(prior.edges, float)] if isinstance(prior, Histogram) else []

    points = np.unique(np.concatenate([moments.support(prior), landmarks(prior), *jumps(prior)]))
    product = integral(lambda x: (value := moments.cdf(prior, x)) * (1 - value), points[:-1], points[1:])
    return float(np.sum(product))
