"""The concentration, which says how many scores the prior is worth: its posterior from binned scores."""

import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float
from scipy.special import betaln, gammaln

from dpconformal.dirichlet.posterior import Posterior
from dpconformal.priors import Prior, Uniform
from dpconformal.pytree import register
from dpconformal.theory import moments
from dpconformal.validation import Numbers, Scalar, as_numbers, check_int, checked_scores, raise_at

if TYPE_CHECKING:
    from numpyro.distributions import Distribution

_MEDIAN, _SPREAD = 10.0, 1.5  # of the default hyperprior, in scores and in log scores
_POINTS, _DEPTH, _FAR = 4001, 45.0, 300.0  # e^-45 of the peak is left out; log a is looked for in [-300, 300]


class ConcentrationPosterior(NamedTuple):
    """
    Posterior of the concentration a, given binned scores; made by :func:`concentration_posterior`.

    The posterior probabilities ``weights`` stand on the concentrations of a ``grid`` that is even in log a. ``prior``
    is P0, and ``scores`` are the scores, sorted.
    """

    grid: np.ndarray  # (G,)
    weights: np.ndarray  # (G,), they sum to 1
    prior: Prior
    scores: np.ndarray  # (n,)

    @property
    def mean(self) -> float:
        """Posterior mean of a; infinite where the tail of the hyperprior is too heavy for one."""
        return self._moment(1)

    @property
    def sd(self) -> float:
        """Posterior standard deviation of a; infinite where there is none."""
        if not math.isfinite(self._moment(2)):
            return math.inf
        return float(np.sqrt(self.weights @ (self.grid - self.mean) ** 2))

    @property
    def prior_weight(self) -> float:
        """E[a/(a + n)]: the share of the prior in the predictive distribution."""
        return float(self.weights @ (self.grid / (self.grid + self.scores.size)))

    def cdf(self, a: Numbers) -> Any:
        """Probability that the concentration is at most a."""
        a = np.asarray(as_numbers("a", a), float)
        raise_at("a", a, ~(a >= 0), "a concentration is at least 0")
        with np.errstate(divide="ignore"):
            return np.interp(np.log(a), np.log(self.grid), self._below(), left=0.0, right=1.0)[()]

    def quantile(self, p: Numbers) -> Any:
        """Concentration below which lies the probability p, in (0, 1)."""
        p = np.asarray(as_numbers("p", p), float)
        raise_at("p", p, ~((p > 0) & (p < 1)), "must lie strictly between 0 and 1")
        return np.exp(np.interp(p, self._below(), np.log(self.grid)))[()]

    def threshold(self, levels: Numbers) -> Any:
        """Quantiles of the predictive distribution: prior_weight of P0, the rest empirical; shape (A,)."""
        n = self.scores.size
        rest = float(self.weights @ (n / (self.grid + n)))  # 1 - prior_weight, to its last digit
        alike = self.prior_weight * n / rest if n else 1.0  # the one concentration whose belief is the same
        with jax.enable_x64(True):
            return np.asarray(Posterior(self.prior, alike, self.scores).mean.quantile(levels))[()]

    def _moment(self, power: int) -> float:
        """Sum up a moment; infinite where its terms go on beyond the grid."""
        terms = self.weights * self.grid**power
        # Where the hyperprior's support ends there is nothing beyond the grid.
        ended = self.weights[-1] > 1e-12 * self.weights.max()
        return float(terms.sum()) if ended or terms[-1] < 1e-9 * terms.max() else math.inf

    def _below(self) -> np.ndarray:
        """Probability below each point of the grid, half of its own included."""
        return np.cumsum(self.weights) - self.weights / 2


def concentration_posterior(
    scores: Numbers, prior: Prior = Uniform(), bins: int = 32, hyperprior: Any = None
) -> ConcentrationPosterior:
    """
    Learn the concentration of a Dirichlet process from scores, by quadrature.

    Under the process the counts of scores in bins are Dirichlet-multinomial, and how far they scatter about the prior
    tells a. The scores themselves do not: a draw of the process is discrete, so scores that are all distinct are ever
    more likely the larger a is, whatever the prior. Given a, the predictive distribution uses the scores as they are.

    **The answer depends on the bins**: smooth scores scatter less the finer the bins are, so more bins make a larger.
    200 scores of Beta(2, 5) and a uniform prior give a mean of about 3 with 4 bins, 25 with 32, and 330 with 256, where
    most bins hold one score or none. Read a as what the prior is worth *at that resolution*; choose bins that hold
    several scores each, and try half and twice as many before you rely on it.

    Parameters
    ----------
    scores : array_like, shape (n,)
        The scores.
    prior : Prior
        P0.
    bins : int
        Bins of equal prior mass, at least two. Finer bins give a larger concentration.
    hyperprior : numpyro.distributions.Distribution or callable, optional
        Of a; a callable maps an array of concentrations to log densities, up to a constant. By default a is log-normal
        with median 10 and spread 1.5: the prior is worth ten scores, give or take a factor of twenty (95 %). Its tails
        keep the posterior proper where the prior fits so well that the likelihood never falls; one that does not is an
        error.

    Returns
    -------
    ConcentrationPosterior
        With ``mean``, ``sd``, ``cdf``, ``quantile``, ``prior_weight`` and ``threshold``.

    Examples
    --------
    >>> import numpy as np
    >>> scores = np.random.default_rng(0).beta(2, 5, 200)
    >>> found = concentration_posterior(scores)
    >>> bool(5 < found.mean < 50), bool(found.quantile(0.025) < found.mean < found.quantile(0.975))
    (True, True)
    >>> [float(f"{concentration_posterior(scores, bins=bins).mean:.1g}") for bins in (4, 32, 256)]
    [2.0, 20.0, 200.0]
    """
    counts, masses = bin_counts(scores, prior, check_int("bins", bins, 2))
    log_density = _log_hyperprior(hyperprior)

    def height(z: np.ndarray) -> np.ndarray:
        a = np.exp(z)
        return log_likelihood(a, counts, masses) + log_density(a) + z  # z: for the step is one in log a

    # In log a the integrand is analytic and falls off at both ends at least exponentially (a likelihood with k occupied
    # bins like a^(k-1) at 0, and bounded at infinity, times the hyperprior). For such a function sums over an even grid
    # converge faster than any power of its step, unless the hyperprior has kinks or ends. The grid reaches out until
    # the integrand is e⁻⁴⁵ of its peak.
    grid = np.linspace(*_range(height, hyperprior), _POINTS)
    heights = height(grid)
    weights = np.exp(heights - heights.max())
    weights[[0, -1]] /= 2
    values = np.sort(np.asarray(checked_scores(scores, moments.support(prior)), float))
    return ConcentrationPosterior(np.exp(grid), weights / weights.sum(), prior, values)


def bin_counts(scores: Numbers, prior: Prior, bins: int) -> tuple[np.ndarray, np.ndarray]:
    """Count scores in bins of equal prior mass, which exist on any support."""
    bins, values = check_int("bins", bins, 1), np.asarray(checked_scores(scores, moments.support(prior)), float)
    if values.ndim != 1:
        raise ValueError(f"scores has shape {values.shape}: pass one sequence, shape (n,)")
    index = np.minimum((moments.cdf(prior, values) * bins).astype(int), bins - 1)
    return np.bincount(index, minlength=bins), np.full(bins, 1 / bins)


def log_likelihood(a: Numbers, counts: Numbers, masses: Numbers) -> np.ndarray:
    """Return the log-likelihood of concentrations, Dirichlet-multinomial without the term that has no a."""
    a, counts, masses = (np.asarray(v, float) for v in (a, counts, masses))
    held = counts > 0
    return _log_rising(a[:, None] * masses[held], counts[held]).sum(axis=1) - _log_rising(a, counts.sum())


def _log_rising(x: np.ndarray, count: np.ndarray | float) -> np.ndarray:
    """Return the log of x(x + 1)...(x + count - 1)."""
    some = np.where(count > 0, count, 1)
    # betaln keeps its digits where two gammaln would cancel.
    return np.where(count > 0, gammaln(some) - betaln(x, some), 0.0)


def _log_hyperprior(hyperprior: Any) -> Callable[[np.ndarray], np.ndarray]:
    """Return the log density of a hyperprior as a function of concentrations, in float64."""
    if hyperprior is None:
        return lambda a: -(((np.log(a) - math.log(_MEDIAN)) / _SPREAD) ** 2) / 2 - np.log(a)
    if not hasattr(hyperprior, "log_prob"):
        if not callable(hyperprior):
            raise ValueError(
                f"hyperprior = {hyperprior!r}: pass a NumPyro distribution or a function that gives log densities"
            )
        return lambda a: np.broadcast_to(np.asarray(hyperprior(a), float), a.shape)
    least, most = _ends(hyperprior)

    def log_density(a: np.ndarray) -> np.ndarray:
        # exp(log(100)) is above 100: the end of a bounded support would be lost.
        a = np.where(np.isclose(a, least, rtol=1e-12, atol=0), least, a)
        a = np.where(np.isclose(a, most, rtol=1e-12), most, a)
        with jax.enable_x64(True), jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
            inside = np.asarray(hyperprior.support(jnp.asarray(a)))
            with warnings.catch_warnings():  # where NumPyro warns of numbers outside the support, the density is 0
                warnings.filterwarnings("ignore", message="Out-of-support values")
                value = hyperprior.log_prob(jnp.asarray(a))
            return np.where(inside, np.asarray(value, float), -np.inf)

    return log_density


def _ends(hyperprior: Any) -> tuple[float, float]:
    """Return the ends of a hyperprior's support, where it says them."""
    support = getattr(hyperprior, "support", None)
    return getattr(support, "lower_bound", 0.0), getattr(support, "upper_bound", math.inf)


def _range(height: Callable[[np.ndarray], np.ndarray], hyperprior: Any) -> tuple[float, float]:
    """Return the ends, in log a, between which the integrand is not negligible, by zooming in on them."""
    least, most = _ends(hyperprior)
    left = first = max(math.log(least), -_FAR) if least > 0 else -_FAR
    right = last = min(math.log(most), _FAR) if most > 0 else _FAR
    for _ in range(12):
        z = np.linspace(left, right, 401)
        heights = height(z)
        raise_at("hyperprior", np.exp(z), np.isnan(heights) | (heights == np.inf), "has no log density there")
        kept = np.flatnonzero(heights > heights.max() - _DEPTH)
        if not kept.size:
            raise ValueError("hyperprior gives no concentration in [1e-130, 1e130] a positive density")
        start, end = max(kept[0] - 1, 0), min(kept[-1] + 1, 400)
        if (kept[0] == 0 and z[0] == -_FAR) or (kept[-1] == 400 and z[-1] == _FAR):
            raise ValueError("hyperprior leaves the concentration's posterior improper: its tails must fall faster")
        left, right = float(z[start]), float(z[end])
        if kept.size > 200 or (left, right) == (first, last):
            break
    return left, right


@register(static=("total",))
@dataclass(frozen=True)
class ConcentrationModel:
    """
    Counts of binned scores are Dirichlet-multinomial: their spread around the prior tells the concentration.

    Quadrature does the same in a millisecond (:func:`~dpconformal.dirichlet.concentration.concentration_posterior`,
    which also says how the answer depends on the bins). The model is to check it, and to build upon.

    Its F is the belief *given* the concentration a, (a P0 + counts)/(a + n) at the edges of the bins and in between as
    the prior is. So draws of F(x) and of q differ by what is not known about a only, and say less than a posterior of
    F would: given a, F at an edge is still Beta distributed. The mean of F over draws is the predictive distribution.

    Parameters
    ----------
    counts : array_like, shape (K,)
        Whole numbers of scores in each bin.
    masses : array_like, shape (K,)
        What the prior gives each bin, above 0; they sum to 1. The bins are those of the prior's quantiles at their
        cumulative sums: see :func:`from_scores` for the usual way.
    hyperprior : numpyro.distributions.Distribution, optional
        Of the concentration, on positive numbers. By default a log-normal with median 10 and 1.5 for its spread.
    prior : Prior
        P0, to tell where the bins are.

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> model = ConcentrationModel(counts=[3, 1], masses=[0.5, 0.5])
    >>> model.cdf({"concentration": jnp.array(4.0)}, jnp.array([0.25, 0.5]))
    Array([0.3125, 0.625 ], dtype=float...)
    """

    counts: Numbers
    masses: Numbers
    hyperprior: "Distribution | None" = None
    prior: Prior = Uniform()
    total: int = field(init=False)

    def __post_init__(self) -> None:
        counts, masses = (np.asarray(as_numbers(name, getattr(self, name)), float) for name in ("counts", "masses"))
        if counts.ndim != 1 or counts.shape != masses.shape or not counts.size:
            raise ValueError(f"counts has shape {counts.shape} and masses {masses.shape}: pass one of each a bin")
        whole = np.isfinite(counts) & (counts >= 0) & (counts == np.floor(counts))
        raise_at("counts", counts, ~whole, "a count is a whole number, at least 0")
        raise_at("masses", masses, ~(np.isfinite(masses) & (masses > 0)), "must be above 0; merge empty bins")
        if abs(masses.sum() - 1) > 1e-6:
            raise ValueError(f"masses sum to {masses.sum():g}: they must sum to 1")
        if self.hyperprior is not None and not hasattr(self.hyperprior, "log_prob"):
            raise ValueError(f"hyperprior = {self.hyperprior!r}: pass a NumPyro distribution, such as Gamma(2.0, 0.1)")
        object.__setattr__(self, "counts", counts)
        object.__setattr__(self, "masses", masses / masses.sum())
        object.__setattr__(self, "total", int(counts.sum()))

    @classmethod
    def from_scores(
        cls, scores: Numbers, prior: Prior = Uniform(), bins: int = 32, hyperprior: "Distribution | None" = None
    ) -> "ConcentrationModel":
        """
        Bin scores as :func:`~dpconformal.dirichlet.concentration.concentration_posterior` does.

        Parameters
        ----------
        scores, prior, bins, hyperprior
            As that function takes them; a hyperprior must be a NumPyro distribution.

        Returns
        -------
        ConcentrationModel
            The model.

        Examples
        --------
        >>> ConcentrationModel.from_scores([0.1, 0.2, 0.9], bins=2).counts
        array([2., 1.])
        """
        return cls(*bin_counts(scores, prior, bins), hyperprior, prior)

    @property
    def support(self) -> tuple[Scalar, Scalar]:
        """Ends of the prior's support."""
        return self.prior.support

    def __call__(self) -> None:
        """State the model to NumPyro."""
        import numpyro

        dtype = jnp.result_type(float)
        hyperprior = self.hyperprior or numpyro.distributions.LogNormal(math.log(_MEDIAN), _SPREAD)
        a = numpyro.sample("concentration", hyperprior)
        # Γ(x + c)/Γ(x) as the product that it is. As a difference of log Γ, which DirichletMultinomial takes, it is
        # lost to rounding for a large a, and its noise there can trap a chain at 10¹⁸.
        bins = np.repeat(np.arange(self.counts.size), self.counts.astype(int))
        place = np.arange(self.total) - np.searchsorted(bins, bins)  # of each score among those of its bin
        above = a * jnp.asarray(self.masses[bins], dtype) + jnp.asarray(place, dtype)
        below = a + jnp.arange(self.total, dtype=dtype)
        numpyro.factor("counts", jnp.sum(jnp.log(above / below)))

    def cdf(self, sample: dict[str, Any], x: Float[Array, " X"]) -> Float[Array, " X"]:
        """F(x) given the concentration of one draw."""
        edges, belief = self._cdf_at_edges(sample["concentration"])
        return jnp.interp(self.prior.cdf(x).astype(edges.dtype), edges, belief)

    def quantile(self, sample: dict[str, Any], levels: Float[Array, " A"]) -> Float[Array, " A"]:
        """Smallest x with F(x) ≥ level, given the concentration of one draw."""
        edges, belief = self._cdf_at_edges(sample["concentration"])
        return self.prior.quantile(jnp.clip(jnp.interp(levels, belief, edges), 0, 1))

    def _cdf_at_edges(self, a: Array) -> tuple[Array, Array]:
        """Return the prior's cdf at the edges of the bins, and the belief's."""
        zero = jnp.zeros(1, a.dtype)
        edges = jnp.concatenate([zero, jnp.cumsum(jnp.asarray(self.masses, a.dtype))])
        seen = jnp.concatenate([zero, jnp.cumsum(jnp.asarray(self.counts, a.dtype))])
        edges = (edges / edges[-1]).at[-1].set(1)
        return edges, ((a * edges + seen) / (a + self.total)).at[-1].set(1)
