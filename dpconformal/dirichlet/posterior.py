"""The posterior of a Dirichlet process: its mean is the belief, its marginals are Beta, its quantiles known exactly."""

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from dpconformal.beliefs import Belief, Exact, Quantized
from dpconformal.beliefs.belief import check_prior, check_valid_count
from dpconformal.beliefs.quantized import bin_atoms, bin_edges, bin_index, check_rounding
from dpconformal.compositions.heads import credible_level, exceedance, raise_to_edges
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

if TYPE_CHECKING:
    import numpyro.distributions as dist

    from dpconformal.dirichlet.samplers import Draws

_LEAST = 1e-30  # of a concentration; in single precision less is nothing


@register(static=("bins", "rounding"))
@dataclass(frozen=True)
class Posterior:
    """
    Posterior of the distribution F of scores, given some of them: a Dirichlet process with concentration a + n.

    Its mean is the belief of :class:`dpconformal.Exact` with ``schedules.Dirichlet(a)``. Beyond the mean it says how
    sure one may be: F(x) has a Beta distribution, and so the posterior of any threshold q_α, the α-quantile of F, has
    a closed form. That is computed on the host in float64 whatever JAX's setting is. The methods take arrays of levels
    α in [0, 1], thresholds and probabilities, which broadcast, and return arrays or numbers.

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
        Where the scores of a bin stand: at its upper edge, and all statements are exact at the edges of the bins; or at
        its centre, and F is exact just below the edges, for a score on an edge has moved up.

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
        if is_traced(a, scores, counts, self.prior.support):  # NaN stands for what could not be checked on the host
            low, high = self.prior.support
            valid = jnp.all((jnp.asarray(scores) >= low) & (jnp.asarray(scores) <= high) & jnp.isfinite(scores))
            if counts is not None:
                valid &= jnp.all((jnp.asarray(counts) >= 0) & jnp.isfinite(counts))
            a = jnp.asarray(a, float_dtype(scores))
            a = jnp.where(valid & (a > 0) & jnp.isfinite(a), a, jnp.nan)
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

    def cdf_marginal(self, x: Numbers) -> "dist.Beta":
        """
        Return the posterior of F(x), a Beta distribution of NumPyro; an x at which F(x) is certain is an error.

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
        Return the posterior probability that the quantile q_level is at most x: P(q_α ≤ x) = P(F(x) ≥ α).

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
        Return the smallest x with P(q_level ≤ x) at least the probability: the inverse of :meth:`quantile_cdf` in x.

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
        Return the posterior median of the quantile q_level: a threshold as likely too high as too low.

        Examples
        --------
        >>> import dpconformal as dpc
        >>> float(Posterior(dpc.priors.Uniform(), 5.0, []).quantile_median(0.5).round(6))
        0.5
        """
        return self.quantile_icdf(level, 0.5)

    def quantile_interval(self, level: Numbers, mass: Scalar = 0.9) -> tuple[Any, Any]:
        """
        Return the ends of the central credible interval of q_level, whose posterior probability is ``mass``.

        With bins the ends are moved out to edges, since the scores of a bin may lie anywhere in it.

        Examples
        --------
        >>> import dpconformal as dpc
        >>> low, high = Posterior(dpc.priors.Uniform(), 5.0, dpc.streams.iid(1000)).quantile_interval(0.9)
        >>> round(float(low), 2), round(float(high), 2)
        (0.47, 0.51)
        """
        mass = check_float("mass", mass, 0.0, 1.0, open_low=True, open_high=True)
        low, high = (self.quantile_icdf(level, (1 + sign * mass) / 2) for sign in (-1, 1))
        if self.bins is not None:  # down to the lower edge of the bin, whose scores may lie anywhere in it
            with jax.enable_x64(True):
                index = bin_index(jnp.asarray(low), self.prior.support, self.bins, self.rounding)
                low = np.asarray(bin_edges(self.prior.support, self.bins, np.float64)[index])[()]
        return low, self._to_upper_edge(high)

    def credible_threshold(self, level: Numbers, confidence: Scalar = 0.95) -> Any:
        """
        Return the smallest threshold that covers at least ``level`` with posterior probability ``confidence``.

        This is a Bayesian tolerance bound; :class:`dpconformal.Credible` gives those of every round of a replay.

        Examples
        --------
        >>> import dpconformal as dpc
        >>> float(Posterior(dpc.priors.Uniform(), 5.0, dpc.streams.iid(60)).credible_threshold(0.9).round(3))
        0.562
        """
        confidence = check_float("confidence", confidence, 0.0, 1.0, open_low=True, open_high=True)
        return self._to_upper_edge(self.quantile_icdf(level, confidence))

    def sample(self, key: Array, draws: int, method: str = "split", size: int | None = None) -> "Draws":
        """
        Draw distributions F from the posterior.

        Parameters
        ----------
        key, draws : PRNG key, int
            ``jax.random.key(seed)``, and how many to draw.
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
        from dpconformal.dirichlet.samplers import SAMPLERS, check_sampler_size

        if method not in SAMPLERS:
            raise ValueError(f"method = {method!r}: pass one of {', '.join(map(repr, SAMPLERS))}")
        check_not_batched(self.prior)
        draws = check_int("draws", draws, 1)
        return SAMPLERS[method](self, key, draws, check_sampler_size(self, method, draws, size))

    def _host_levels(self, level: Numbers) -> np.ndarray:
        if is_traced(self, level):
            raise ValueError(
                "inside jit there is no closed form, for it needs float64 on the host; use sample, or Credible"
            )
        level = np.asarray(as_numbers("level", level), float)
        as_levels(level, name="level")
        return level

    def _to_upper_edge(self, thresholds: np.ndarray | np.floating) -> Any:
        """Raise to the upper edge of a bin, where its scores stand at the centre."""
        if self.bins is None or self.rounding == "up":
            return thresholds
        with jax.enable_x64(True):
            return np.asarray(raise_to_edges(self.prior.support, jnp.asarray(thresholds), self.bins))[()]


def evidence(posterior: Posterior, dtype: Any = None) -> tuple[Array, Array, Array]:
    """Return the concentration, the scores and their counts, in a given precision or that of the scores."""
    dtype = float_dtype(posterior.scores) if dtype is None else dtype
    scores = jnp.asarray(posterior.scores, dtype)
    counts = jnp.ones(scores.shape, dtype) if posterior.counts is None else jnp.asarray(posterior.counts, dtype)
    return jnp.asarray(posterior.concentration, dtype), scores, counts


@jax.jit
def _beta_shapes(posterior: Posterior, x: Array) -> tuple[Array, Array]:
    """Return the masses above and below x, prior's and scores'; not by 1 - cdf, which would lose small ones."""
    a, scores, counts = evidence(posterior, x.dtype)
    cumulative = jnp.concatenate([jnp.zeros(1, x.dtype), jnp.cumsum(counts)])
    below = cumulative[jnp.searchsorted(scores, x, side="right")]
    share = posterior.prior.cdf(x)
    return a * (1 - share) + (cumulative[-1] - below), a * share + below


# The mean of F at x, and its quantiles, in the precision of what is asked.
_mean_cdf = jax.jit(lambda posterior, x: _mean_belief(posterior, x.dtype).cdf(x))
_mean_quantile = jax.jit(lambda posterior, p: _mean_belief(posterior, p.dtype).quantile(p))


def _mean_belief(posterior: Posterior, dtype: Any = None) -> Belief:
    """Return the mean as a belief, in a given precision."""
    a, scores, counts = evidence(posterior, dtype)
    dtype = scores.dtype
    used = jnp.asarray(scores.shape[0], jnp.int32)
    if scores.shape[0] == 0:  # an atom that is not used, for there must be one
        scores, counts = jnp.full(1, jnp.inf, dtype), jnp.zeros(1, dtype)
    below = jnp.concatenate([jnp.zeros(1, dtype), jnp.cumsum(counts)])
    total = a + below[-1]
    lost = (below[-1] - (total - a)) + (a - (total - (total - a)))  # what rounding has taken from the sum
    cumulative = below / total
    # What rounding has taken from the quotient: below - cumulative · total. The factors are split into halves of half
    # as many digits, whose products are exact (Dekker 1971).
    splitter = 2.0 ** ((jnp.finfo(dtype).nmant + 2) // 2) + 1

    def halves(x: Array) -> tuple[Array, Array]:
        scaled = splitter * x
        upper = scaled - (scaled - x)
        return upper, x - upper

    (c1, c2), (t1, t2) = halves(cumulative), halves(total)
    product = cumulative * total
    cut = ((c1 * t1 - product) + c1 * t2 + c2 * t1) + c2 * t2
    rest = (((below - product) - cut) - cumulative * lost) / total
    return Belief(posterior.prior, a / total, scores, cumulative, used, rest)
