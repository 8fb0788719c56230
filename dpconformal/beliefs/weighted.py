"""Empirical distributions that fade: exponentially weighted ERM, and conformal prediction beyond exchangeability."""

from dataclasses import dataclass
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from dpconformal.beliefs.empirical import Empirical, check_ends
from dpconformal.beliefs.sorted_scores import SortedScores, check_sorted
from dpconformal.beliefs.weights import Weights, check_prior
from dpconformal.engine.fenwick import empirical_thresholds
from dpconformal.priors import Prior, Uniform
from dpconformal.pytree import register
from dpconformal.validation import Numbers, Scalar, as_floats, as_levels, check_float, is_traced


class Fading(Empirical):
    """What fading distributions have in common: a score that is k rounds old counts discount^k."""

    def edge(self, dtype: Any) -> Any:
        """Tell by how much a share of the mass may fall short of a level for rounding alone, in a sum of many."""
        discount = jnp.asarray(self.discount, dtype)
        return float(jnp.finfo(dtype).eps) * (64 + 16 / jnp.sqrt(jnp.where(discount < 1, 1 - discount, jnp.nan)))

    def init(self, rounds: int | None = None, dtype: Any = None) -> SortedScores:
        """Return the state before any score, with room for ``rounds`` of them."""
        state = super().init(rounds, dtype)
        _check_precision(self, state.values.dtype)
        return state

    def prepare(self, state: SortedScores, rounds: int) -> SortedScores:
        """Make room for more rounds, also in a batch of states."""
        _check_precision(self, state.values.dtype)
        return super().prepare(state, rounds)

    def quantile(self, state: SortedScores, levels: Numbers) -> Float[Array, "..."]:
        """Predict the smallest score such that the scores up to it hold a share ``level`` of the mass."""
        check_sorted(self, state)
        return _quantile(self, state, as_levels(levels, state.values.dtype))

    def cdf(self, state: SortedScores, x: Numbers, side: str = "right") -> Float[Array, "..."]:
        """Share of the mass that lies at or below x; with ``side="left"`` below x."""
        check_sorted(self, state)
        x = as_floats(x).astype(state.values.dtype)
        return _cdf(self, state, x, side)

    def weights(self, counts: Int[Array, "*T"], dtype: Any) -> Weights:
        """Return the total mass after so many scores, and that of a score that has just been seen."""
        raise NotImplementedError

    def without_scores(self, levels: Float[Array, "*n"]) -> Float[Array, "*n"]:
        """Predict before any score."""
        raise NotImplementedError

    def beyond(self, x: Float[Array, "*n"]) -> Float[Array, "*n"]:
        """Cdf before any score."""
        raise NotImplementedError


@register()
@dataclass(frozen=True)
class DiscountedERM(Fading):
    """
    Exponentially weighted empirical quantile: a score that is k rounds old counts discount^k.

    The frequentist twin of :class:`Exact` with a discount, without its prior: quick to follow drift, and like
    :class:`ERM` brittle, for nothing keeps the threshold off the scores that an adversary plays. No guarantee on a
    fixed sequence; for slowly drifting iid scores the usual trade of bias against 1/(1 - discount) effective scores.
    Thresholds never cross.

    Parameters
    ----------
    discount : float
        In (0, 1). Scores that together weigh less than about 1e-13 of the total (1e-4 in float32) no longer count.
    prior : Prior
        Answers while there is no score at all, and gives the support. It has no further influence.

    Examples
    --------
    >>> learner = DiscountedERM(0.5)
    >>> state = learner.init()
    >>> for score in (0.1, 0.2, 0.9):
    ...     state = learner.observe(state, score)
    >>> learner.quantile(state, [0.1, 0.4, 0.5])
    Array([0.1, 0.2, 0.9], dtype=float...)
    """

    discount: Scalar = 0.99
    prior: Prior = Uniform()

    def __post_init__(self) -> None:
        check_prior("DiscountedERM", self.prior)
        _check_discount(self)

    @property
    def support(self) -> tuple[Scalar, Scalar]:  # type: ignore[override]
        """Ends of the interval that holds every score."""
        return self.prior.support

    def weights(self, counts: Int[Array, "*T"], dtype: Any) -> Weights:
        """Return the total mass after so many scores, and that of a score that has just been seen."""
        total, discount = _powers(self, counts, dtype)
        return Weights(total, jnp.ones_like(total), discount)

    def without_scores(self, levels: Float[Array, "*n"]) -> Float[Array, "*n"]:
        """Predict before any score: with the prior."""
        return self.prior.quantile(levels)

    def beyond(self, x: Float[Array, "*n"]) -> Float[Array, "*n"]:
        """Cdf before any score: the prior's."""
        return self.prior.cdf(x)


@register()
@dataclass(frozen=True)
class NExCP(Fading):
    """
    Conformal prediction beyond exchangeability: split conformal with scores that fade.

    The weighted quantile of the past, the score of k rounds ago weighing discount^k, with the weight 1 of the
    coming round at +∞. Where the past does not hold a share ``level`` of all that, the threshold is +∞: the set is
    everything, and its quantile loss is infinite. Never less than 1 - discount of the mass stays there, so levels
    above ``discount`` are always answered with +∞.

    Guarantee: the coming score is covered with probability at least ``level``, less what the data lack in
    exchangeability, Σ weight_k · TV(scores, scores with the k-th and the coming one swapped). So with drifting data
    the loss in coverage is small if the discount is; with exchangeable data there is none. Nothing on a fixed
    sequence. Thresholds never cross.

    Parameters
    ----------
    discount : float
        In (0, 1).
    low, high : float
        The support, possibly infinite. Scores outside are refused; the threshold of level 0 is ``low``.

    References
    ----------
    Barber, Candès, Ramdas and Tibshirani (2023), Conformal prediction beyond exchangeability.

    Examples
    --------
    >>> learner = NExCP(0.5)
    >>> state = learner.init()
    >>> for score in (0.1, 0.2, 0.9):
    ...     state = learner.observe(state, score)
    >>> learner.quantile(state, [0.05, 0.3, 0.4])  # weights 1/8, 1/4, 1/2, and 1 at infinity
    Array([0.1, 0.9, 0.9], dtype=float...)
    """

    discount: Scalar = 0.99
    low: Scalar = 0.0
    high: Scalar = 1.0
    at_infinity: ClassVar[float] = 1.0

    def __post_init__(self) -> None:
        check_ends(self)
        _check_discount(self)

    @property
    def support(self) -> tuple[Scalar, Scalar]:  # type: ignore[override]
        """Ends of the interval that holds every score."""
        return self.low, self.high

    def weights(self, counts: Int[Array, "*T"], dtype: Any) -> Weights:
        """Return the total mass after so many scores, that of the coming one included, and that of the last one."""
        total, discount = _powers(self, jnp.where(counts < 0, counts, counts + 1), dtype)
        return Weights(total, jnp.broadcast_to(discount, total.shape), discount)

    def without_scores(self, levels: Float[Array, "*n"]) -> Float[Array, "*n"]:
        """Predict before any score: everything."""
        return jnp.full_like(levels, jnp.inf)

    def beyond(self, x: Float[Array, "*n"]) -> Float[Array, "*n"]:
        """Cdf before any score: all mass is at +∞."""
        return jnp.isposinf(x).astype(x.dtype)


def _check_discount(learner: Any) -> None:
    owner = type(learner).__name__
    hint = "for no discount use ERM or SplitConformal"
    value = check_float(f"{owner}.discount", learner.discount, 0.0, 1.0, open_low=True, open_high=True, hint=hint)
    object.__setattr__(learner, "discount", value)


def _check_precision(learner: Any, dtype: Any) -> None:
    if not is_traced(learner.discount) and not 0 < np.asarray(learner.discount, dtype) < 1:
        raise ValueError(
            f"{type(learner).__name__}.discount = {learner.discount} collapses in {np.dtype(dtype)}; enable 64-bit JAX "
            "(jax_enable_x64)"
        )


def _powers(learner: Any, counts: Int[Array, "*T"], dtype: Any) -> tuple[Array, Array]:
    """Sum discount^0, …, discount^(count - 1); NaN for an invalid state or a bad traced discount."""
    discount = jnp.asarray(learner.discount, dtype)
    discount = jnp.where((discount > 0) & (discount < 1), discount, jnp.nan)
    total = jnp.expm1(counts.astype(dtype) * jnp.log(discount)) / (discount - 1)
    return jnp.where(counts < 0, jnp.nan, total), discount


def _cumulative(learner: Any, state: SortedScores) -> tuple[Array, Array]:
    """Share of the mass up to each score, and the total."""
    dtype = state.values.dtype
    weights = learner.weights(state.seen, dtype)
    age = jnp.maximum(state.seen - state.arrivals, 0).astype(dtype)
    mass = jnp.where(state.arrivals > 0, weights.atom * weights.discount**age, 0)
    total = weights.prior
    return jnp.cumsum(mass) / jnp.where(total == 0, 1, total), total


@jax.jit
def _quantile(learner: Any, state: SortedScores, levels: Array) -> Array:
    share, total = _cumulative(learner, state)
    wanted = jnp.maximum(levels - learner.edge(levels.dtype), jnp.finfo(levels.dtype).tiny)
    # Sums of many masses are off by rounding, so that the last score may seem not to reach what it does reach.
    place = jnp.minimum(jnp.searchsorted(share, wanted), jnp.maximum(state.seen - 1, 0))
    return empirical_thresholds(learner, state.values[place], total, levels)


@jax.jit(static_argnames="side")
def _cdf(learner: Any, state: SortedScores, x: Array, side: str) -> Array:
    share, total = _cumulative(learner, state)
    below = jnp.concatenate([jnp.zeros(1, x.dtype), share])
    passed = jnp.minimum(jnp.searchsorted(state.values, x, side=side), jnp.maximum(state.seen, 0))
    answers = jnp.where(jnp.isposinf(x), 1, jnp.minimum(below[passed], 1))
    answers = jnp.where((state.seen == 0), learner.beyond(x), answers)
    return jnp.where(jnp.isnan(total) | jnp.isnan(x), jnp.nan, answers)
