"""The posterior of a Dirichlet process: its mean is the belief, its marginals are Beta, its quantiles known exactly."""

from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from dpconformal.beliefs import Belief, Exact, Quantized
from dpconformal.beliefs.belief import check_prior, check_valid_count
from dpconformal.beliefs.quantized import bin_atoms, bin_edges, bin_index, check_rounding
from dpconformal.compositions.heads import credible_level, exceedance, raise_to_edges
from dpconformal.dirichlet.draws import Draws
from dpconformal.priors import Prior
from dpconformal.pytree import register
from dpconformal.schedules import Dirichlet
from dpconformal.validation import (
    Numbers,
    Scalar,
    as_floats,
    as_levels,
    as_numbers,
    check_float,
    check_int,
    check_not_batched,
    checked_scores,
    float_dtype,
    is_traced,
    raise_at,
)

_LEAST = 1e-30  # of a concentration; in single precision less is nothing


@register(static=("bins", "rounding"))
@dataclass(frozen=True)
class Posterior:
    """
    What is known of the distribution F of scores, after some of them: a Dirichlet process with concentration a + n.

    Its mean is the belief of :class:`dpconformal.Exact` with ``schedules.Dirichlet(a)``. Beyond the mean it says how
    sure one may be: F(x) has a Beta distribution, and so the posterior of any threshold q_α, the α-quantile of F, has
    a closed form. That is computed on the host in float64 whatever JAX's setting is.

    Parameters
    ----------
    prior : Prior
        P0.
    concentration : float
        a, how many scores the prior is worth, above 0.
    scores : array_like, shape (n,)
        Scores seen, in any order; kept ascending. There may be none.
    counts : array_like, shape (n,), optional
        How often each of them was seen, once by default; weights that are not whole are welcome.
    bins : int, optional
        Where scores are in that many equal bins, as those of :class:`dpconformal.Quantized` are.
    rounding : {"up", "nearest"}
        Where the scores of a bin stand. At its upper edge: then all statements are exact at the edges of the bins. At
        its centre: then F is exact just below the edges, for a score on an edge has moved up. Without bins it
        means nothing.

    Examples
    --------
    >>> import dpconformal as dpc
    >>> posterior = Posterior(dpc.priors.Uniform(), 5.0, dpc.streams.iid(60))
    >>> low, high = posterior.quantile_interval(0.9, mass=0.9)
    >>> round(float(low), 3), round(float(posterior.mean.quantile(0.9)), 3), round(float(high), 3)
    (0.45, 0.496, 0.562)
    """

    prior: Prior
    concentration: Scalar
    scores: Any  # (n,)
    counts: Any = None  # (n,)
    bins: int | None = None
    rounding: str = "up"

    def __post_init__(self) -> None:
        check_prior("Posterior", self.prior)
        check_rounding("Posterior.rounding", self.rounding)
        check_not_batched(self.prior)
        hint = "for no prior at all draw with method='bootstrap'"
        a = check_float("Posterior.concentration", self.concentration, _LEAST, hint=hint)
        if np.ndim(a):
            raise ValueError(f"Posterior.concentration has shape {np.shape(a)}: pass one number; use jax.vmap for more")
        checked_scores(self.scores, self.prior.support)
        scores = as_numbers("scores", self.scores)
        if scores.ndim != 1:
            raise ValueError(f"scores has shape {scores.shape}: pass one sample, shape (n,); use jax.vmap for more")
        if not jnp.issubdtype(scores.dtype, jnp.floating):
            scores = scores.astype(float)
        counts = self.counts
        if counts is not None:
            counts = as_numbers("counts", counts)
            if counts.shape != scores.shape:
                raise ValueError(f"counts has shape {counts.shape} and scores {scores.shape}: pass one count a score")
            if not is_traced(counts):
                raise_at("counts", counts, ~(np.isfinite(counts) & (counts >= 0)), "must be finite, 0 or more")
            counts = counts.astype(float)
        if is_traced(scores, counts):
            scores, counts = jnp.asarray(scores), None if counts is None else jnp.asarray(counts)
        order = scores.argsort()
        if is_traced(a, scores, counts, self.prior.support):
            a = _nan_if_invalid(a, scores, counts, self.prior.support)
        object.__setattr__(self, "concentration", a)
        object.__setattr__(self, "scores", scores[order])
        object.__setattr__(self, "counts", None if counts is None else counts[order])
        if self.bins is not None:
            object.__setattr__(self, "bins", check_int("Posterior.bins", self.bins, 1))

    @classmethod
    def from_state(cls, learner: Any, state: Any) -> "Posterior":
        """
        Take the posterior that a belief has arrived at.

        Parameters
        ----------
        learner : Exact or Quantized
            With ``schedules.Dirichlet(a)`` and no discount: for any other schedule the belief is the mean of a
            different process every round, and there is no posterior.
        state : State
            Of the learner, such as ``run.state``; not a batch.

        Returns
        -------
        Posterior
            Of the scores seen.

        Examples
        --------
        >>> import dpconformal as dpc
        >>> learner = dpc.Exact(schedule=dpc.schedules.Dirichlet(5.0))
        >>> run = dpc.replay(learner, dpc.streams.iid(60), levels=[0.9])
        >>> Posterior.from_state(learner, run.state).scores.size
        60
        """
        if not isinstance(learner, (Exact, Quantized)) or not isinstance(learner.schedule, Dirichlet):
            raise ValueError(
                f"learner = {learner!r}: a posterior belongs to Exact or Quantized with schedule=schedules.Dirichlet(a)"
            )
        if learner.discount is not None:
            raise ValueError(
                f"learner.discount = {learner.discount!r}: a discounted belief is no posterior; leave it out"
            )
        if is_traced(state):
            raise ValueError(
                "state is being traced: how many scores it holds is not known; call from_state outside jit"
            )
        learner.belief(state)  # checks that the state is the learner's
        check_valid_count(state.seen)
        a = learner.schedule.concentration
        if isinstance(learner, Exact):
            return cls(learner.prior, a, np.asarray(state.values)[: int(state.seen)])
        bins = state.weights.shape[-1]
        with jax.enable_x64(True):
            atoms = np.asarray(bin_atoms(learner.support, bins, np.float64, learner.rounding))
        return cls(learner.prior, a, atoms, np.asarray(state.weights), bins, learner.rounding)

    @property
    def total(self) -> Any:
        """Concentration of the posterior: a plus the number of scores."""
        seen = len(self.scores) if self.counts is None else self.counts.sum()
        return self.concentration + seen

    @property
    def mean(self) -> Belief:
        """The mean of F, which is the belief about the next score."""
        return _mean_belief(self)

    def cdf_marginal(self, x: Numbers) -> Any:
        """
        Return the posterior of F(x), a Beta distribution.

        Parameters
        ----------
        x : array_like
            Inside the support, where F(x) is neither 0 nor 1 for certain.

        Returns
        -------
        numpyro.distributions.Beta
            With the shape of x, in JAX's precision.

        Raises
        ------
        ValueError
            Naming an x at which F(x) is certain.

        Examples
        --------
        >>> import dpconformal as dpc
        >>> Posterior(dpc.priors.Uniform(), 5.0, [0.2, 0.4, 0.6]).cdf_marginal(0.5).mean
        Array(0.5625, dtype=float...)
        """
        import numpyro

        above, below = _beta_shapes(self, as_floats(x))
        if not is_traced(above, below):
            why = "F(x) is 0 or 1 for certain there, which is no Beta distribution; leave the ends of the support out"
            raise_at("x", x, (np.asarray(above) <= 0) | (np.asarray(below) <= 0), why)
        return numpyro.distributions.Beta(below, above)

    def quantile_cdf(self, level: Numbers, x: Numbers) -> Any:
        """
        Return the posterior probability that the quantile q_level of F is at most x.

        Parameters
        ----------
        level : array_like
            α in [0, 1].
        x : array_like
            Thresholds; broadcasts against the levels.

        Returns
        -------
        ndarray or float
            P(q_α ≤ x) = P(F(x) ≥ α), exact, in float64.

        Examples
        --------
        >>> import dpconformal as dpc
        >>> Posterior(dpc.priors.Uniform(), 5.0, dpc.streams.iid(60)).quantile_cdf(0.9, [0.4, 0.5, 0.6]).round(3)
        array([0.   , 0.707, 0.99 ])
        """
        level, x, same = self._host_levels(level), np.asarray(as_numbers("x", x)), self
        if np.float32 in (x.dtype, self.scores.dtype):  # a score and its rounded twin are one number
            x, same = x.astype(np.float32), replace(self, scores=np.asarray(self.scores, np.float32))
        with jax.enable_x64(True):
            mean = np.asarray(_mean_cdf(same, jnp.asarray(x.astype(float))))
        return exceedance(level, mean, float(self.total))

    def quantile_icdf(self, level: Numbers, probability: Numbers) -> Any:
        """
        Return the quantiles of the posterior of q_level: the inverse of :meth:`quantile_cdf` in x.

        Parameters
        ----------
        level : array_like
            α in [0, 1].
        probability : array_like
            In (0, 1); broadcasts against the levels.

        Returns
        -------
        ndarray or float
            Thresholds: the smallest x with P(q_α ≤ x) at least the probability.

        Examples
        --------
        >>> import dpconformal as dpc
        >>> posterior = Posterior(dpc.priors.Uniform(), 5.0, [])
        >>> round(float(posterior.quantile_cdf(0.9, posterior.quantile_icdf(0.9, 0.3))), 6)
        0.3
        """
        level, probability = self._host_levels(level), np.asarray(as_numbers("probability", probability), float)
        inside = (probability > 0) & (probability < 1)
        raise_at("probability", probability, ~inside, "must lie in (0, 1)")
        asked = np.asarray(credible_level(level, probability, float(self.total)))
        with jax.enable_x64(True):
            return np.asarray(_mean_quantile(self, jnp.asarray(asked)))[()]

    def quantile_median(self, level: Numbers) -> Any:
        """
        Return the posterior median of the quantile q_level of F.

        Parameters
        ----------
        level : array_like
            α in [0, 1].

        Returns
        -------
        ndarray or float
            Thresholds, each as likely too high as too low.

        Examples
        --------
        >>> import dpconformal as dpc
        >>> float(Posterior(dpc.priors.Uniform(), 5.0, []).quantile_median(0.5).round(6))
        0.5
        """
        return self.quantile_icdf(level, 0.5)

    def quantile_interval(self, level: Numbers, mass: Scalar = 0.9) -> tuple[Any, Any]:
        """
        Return the central credible interval of the quantile q_level of F.

        Parameters
        ----------
        level : array_like
            α in [0, 1].
        mass : float
            Posterior probability of the interval, in (0, 1).

        Returns
        -------
        tuple of ndarray or float
            Its ends. With bins they are moved out to edges, since the scores of a bin may lie anywhere in it.

        Examples
        --------
        >>> import dpconformal as dpc
        >>> low, high = Posterior(dpc.priors.Uniform(), 5.0, dpc.streams.iid(1000)).quantile_interval(0.9)
        >>> round(float(low), 2), round(float(high), 2)
        (0.47, 0.51)
        """
        mass = check_float("mass", mass, 0.0, 1.0, open_low=True, open_high=True)
        low, high = (self.quantile_icdf(level, (1 + sign * mass) / 2) for sign in (-1, 1))
        return self._to_lower_edge(low), self._to_upper_edge(high)

    def credible_threshold(self, level: Numbers, confidence: Scalar = 0.95) -> Any:
        """
        Return the smallest threshold that covers at least ``level`` with posterior probability ``confidence``.

        Parameters
        ----------
        level : array_like
            α in [0, 1].
        confidence : float
            In (0, 1).

        Returns
        -------
        ndarray or float
            Bayesian tolerance bounds; :class:`dpconformal.Credible` gives those of every round of a replay.

        Examples
        --------
        >>> import dpconformal as dpc
        >>> float(Posterior(dpc.priors.Uniform(), 5.0, dpc.streams.iid(60)).credible_threshold(0.9).round(3))
        0.562
        """
        confidence = check_float("confidence", confidence, 0.0, 1.0, open_low=True, open_high=True)
        return self._to_upper_edge(self.quantile_icdf(level, confidence))

    def _to_upper_edge(self, thresholds: Any) -> Any:
        """Raise to the upper edge of a bin, where its scores stand at the centre."""
        if self.bins is None or self.rounding == "up":
            return thresholds
        with jax.enable_x64(True):
            return np.asarray(raise_to_edges(self.prior.support, jnp.asarray(thresholds), self.bins))[()]

    def _to_lower_edge(self, thresholds: Any) -> Any:
        """Lower to the lower edge of a bin, whose scores may lie anywhere in it."""
        if self.bins is None:
            return thresholds
        with jax.enable_x64(True):
            index = bin_index(jnp.asarray(thresholds), self.prior.support, self.bins, self.rounding)
            return np.asarray(bin_edges(self.prior.support, self.bins, np.float64)[index])[()]

    def sample(self, key: Array, draws: int, method: str = "split", size: int | None = None) -> Draws:
        """
        Draw distributions F from the posterior.

        Parameters
        ----------
        key : PRNG key
            ``jax.random.key(seed)``.
        draws : int
            How many.
        method : {"split", "grid", "sticks", "urn", "bootstrap"}
            See :mod:`dpconformal.dirichlet.samplers`. The default is exact up to a tail of the prior's part.
        size : int, optional
            Sticks, bins or steps of the method.

        Returns
        -------
        Draws
            With ``cdf(x)``, ``quantile(levels)`` and ``mean()`` of each. Works inside ``jit`` and ``vmap``.

        Examples
        --------
        >>> import jax, dpconformal as dpc
        >>> posterior = Posterior(dpc.priors.Uniform(), 5.0, dpc.streams.iid(60))
        >>> sampled = posterior.sample(jax.random.key(0), 4000).quantile(0.9)
        >>> bool(abs(np.mean(np.asarray(sampled) <= 0.5) - posterior.quantile_cdf(0.9, 0.5)) < 0.05)
        True
        """
        from dpconformal.dirichlet.samplers import SAMPLERS

        if method not in SAMPLERS:
            raise ValueError(f"method = {method!r}: pass one of {', '.join(map(repr, SAMPLERS))}")
        check_not_batched(self.prior)
        return SAMPLERS[method](self, key, check_int("draws", draws, 1), size)

    def _host_levels(self, level: Numbers) -> np.ndarray:
        if is_traced(self, level):
            raise ValueError(
                "inside jit there is no closed form, for it needs float64 on the host; use sample, or Credible"
            )
        level = np.asarray(as_numbers("level", level), float)
        as_levels(level, name="level")
        return level


def evidence(posterior: Posterior, dtype: Any = None) -> tuple[Array, Array, Array]:
    """Return the concentration, the scores and their counts, in a given precision or that of the scores."""
    dtype = float_dtype(posterior.scores) if dtype is None else dtype
    scores = jnp.asarray(posterior.scores, dtype)
    counts = jnp.ones(scores.shape, dtype) if posterior.counts is None else jnp.asarray(posterior.counts, dtype)
    return jnp.asarray(posterior.concentration, dtype), scores, counts


def _nan_if_invalid(a: Any, scores: Any, counts: Any, support: tuple[Any, Any]) -> Array:
    """Return the concentration, or NaN if anything that could not be checked on the host is out of range."""
    low, high = support
    valid = jnp.all((jnp.asarray(scores) >= low) & (jnp.asarray(scores) <= high) & jnp.isfinite(scores))
    if counts is not None:
        valid &= jnp.all((jnp.asarray(counts) >= 0) & jnp.isfinite(counts))
    a = jnp.asarray(a, float_dtype(scores))
    return jnp.where(valid & (a > 0) & jnp.isfinite(a), a, jnp.nan)


@jax.jit
def _beta_shapes(posterior: Posterior, x: Array) -> tuple[Array, Array]:
    """Return the masses above and below x, prior's and scores'; not by 1 - cdf, which would lose small ones."""
    a, scores, counts = evidence(posterior, x.dtype)
    cumulative = jnp.concatenate([jnp.zeros(1, x.dtype), jnp.cumsum(counts)])
    below = cumulative[jnp.searchsorted(scores, x, side="right")]
    share = posterior.prior.cdf(x)
    return a * (1 - share) + (cumulative[-1] - below), a * share + below


@jax.jit
def _mean_cdf(posterior: Posterior, x: Array) -> Array:
    """Evaluate the mean of F(x), in the precision of x."""
    return _mean_belief(posterior, x.dtype).cdf(x)


@jax.jit
def _mean_quantile(posterior: Posterior, p: Array) -> Array:
    """Evaluate quantiles of the mean, in the precision of p."""
    return _mean_belief(posterior, p.dtype).quantile(p)


def _mean_belief(posterior: Posterior, dtype: Any = None) -> Belief:
    """Return the mean as a belief, in a given precision."""
    a, scores, counts = evidence(posterior, dtype)
    dtype = scores.dtype
    used = jnp.asarray(scores.shape[0], jnp.int32)
    if scores.shape[0] == 0:  # an atom that is not used, for there must be one
        scores, counts = jnp.full(1, jnp.inf, dtype), jnp.zeros(1, dtype)
    below = jnp.concatenate([jnp.zeros(1, dtype), jnp.cumsum(counts)])
    total = a + below[-1]
    taken = (below[-1] - (total - a)) + (a - (total - (total - a)))  # by rounding, from the sum
    cumulative = below / total
    product, cut = _product(cumulative, total)
    rest = (((below - product) - cut) - cumulative * taken) / total
    return Belief(posterior.prior, a / total, scores, cumulative, used, rest)


def _product(x: Array, y: Array) -> tuple[Array, Array]:
    """Multiply, and tell what rounding has taken from the product (Dekker 1971)."""
    bits = jnp.finfo(x.dtype).nmant + 1
    (x1, x2), (y1, y2) = (_halves(factor, 2.0 ** ((bits + 1) // 2) + 1) for factor in (x, y))
    product = x * y
    return product, ((x1 * y1 - product) + x1 * y2 + x2 * y1) + x2 * y2


def _halves(x: Array, splitter: float) -> tuple[Array, Array]:
    """Split a number into two of half as many digits."""
    scaled = splitter * x
    upper = scaled - (scaled - x)
    return upper, x - upper
