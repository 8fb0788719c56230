"""
Frequentist beliefs: the empirical distribution of past scores, plain or discounted, with or without a score at +∞.

Without a discount a quantile is one of the sorted scores, by its rank. With one it is found in the cumulative masses.
"""

from dataclasses import dataclass
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float, Int

from dpconformal.beliefs.belief import (
    SupportOfPrior,
    Weights,
    check_precision,
    check_prior,
    set_discount,
    traced_discount,
)
from dpconformal.beliefs.sorted_scores import (
    Ranked,
    SortedLearner,
    SortedScores,
    check_sorted,
    masses_before,
    ranking_kernel,
)
from dpconformal.engine.kernel import run_kernel
from dpconformal.engine.pointer_loop import NO_PLACE, arrivals_by_round, block_and_decays, run_blocks
from dpconformal.engine.walks import empirical_thresholds, order_walk
from dpconformal.priors import Prior, Uniform
from dpconformal.pytree import register
from dpconformal.rounds import Rounds
from dpconformal.validation import Numbers, Scalar, as_floats, as_levels, as_numbers, is_traced, raise_at


class PriorUntilScores(SupportOfPrior):
    """A learner whose prior answers while there is no score, and has no further influence."""

    at_infinity: ClassVar[int] = 0  # scores that are counted at +∞

    def without_scores(self, levels: Float[Array, "*n"]) -> Float[Array, "*n"]:
        """Predict before any score: with the prior."""
        return self.prior.quantile(levels)

    def cdf_without_scores(self, x: Float[Array, "*n"]) -> Float[Array, "*n"]:
        """Cdf before any score: the prior's."""
        return self.prior.cdf(x)


class ScoreAtInfinity:
    """A learner that counts the coming score at +∞, where it answers while there is no score."""

    low: Scalar
    high: Scalar
    at_infinity: ClassVar[int] = 1

    @property
    def support(self) -> tuple[Scalar, Scalar]:
        """Ends of the interval that holds every score."""
        return self.low, self.high

    def __post_init__(self) -> None:
        owner = type(self).__name__
        for name in ("low", "high"):
            end = as_numbers(f"{owner}.{name}", getattr(self, name))
            # A plain float, so that it takes on the dtype of the scores; infinite ends are welcome.
            object.__setattr__(self, name, end if is_traced(end) or end.ndim else float(end))
        if not is_traced(self.low, self.high):
            bad = ~(np.asarray(self.low) < np.asarray(self.high))
            why = f"must exceed low = {self.low}"
            raise_at(f"{owner}.high", np.broadcast_to(self.high, bad.shape), bad, why)

    def without_scores(self, levels: Float[Array, "*n"]) -> Float[Array, "*n"]:
        """Predict before any score: everything."""
        return jnp.full_like(levels, jnp.inf)

    def cdf_without_scores(self, x: Float[Array, "*n"]) -> Float[Array, "*n"]:
        """Cdf before any score: all mass is at +∞."""
        return jnp.isposinf(x).astype(x.dtype)


class Empirical(SortedLearner):
    """A learner that answers with one of its scores: the smallest that holds a share ``level`` of the mass below it."""

    discount: Scalar | None = None
    at_infinity: ClassVar[int]

    def _check_hyperparameters(self, seen: Any, rounds: int, dtype: Any) -> None:
        """Check the support and the discount in the precision to come."""
        check_precision(self, dtype)
        if self.discount is None or is_traced(self.discount) or 0 < np.asarray(self.discount, dtype) < 1:
            return
        raise ValueError(
            f"{type(self).__name__}.discount = {self.discount} collapses in {np.dtype(dtype)}; enable 64-bit JAX "
            "(jax_enable_x64)"
        )

    def kernel(self, begin: SortedScores, fresh: bool, rounds: Rounds, keep: str) -> tuple[Any, SortedScores] | None:
        """Replay in native loops; None where they cannot."""
        return run_kernel(EMPIRICAL, self, begin, fresh, rounds, keep)

    def quantile(self, state: SortedScores, levels: Numbers) -> Float[Array, "..."]:
        """Predict the smallest score such that the scores up to it hold a share ``level`` of the mass."""
        check_sorted(self, state)
        levels = as_levels(levels, state.values.dtype)
        return (_quantile_by_rank if self.discount is None else _quantile_by_mass)(self, state, levels)

    def cdf(self, state: SortedScores, x: Numbers, side: str = "right") -> Float[Array, "..."]:
        """Share of the mass that lies at or below x; with ``side="left"`` below x."""
        check_sorted(self, state)
        x = as_floats(x).astype(state.values.dtype)
        if self.discount is not None:
            return _cdf_by_mass(self, state, x, side)
        return cdf_by_rank(self, state.values, state.seen, state.seen, x, side)

    def weights(self, counts: Int[Array, "*T"], dtype: Any) -> Weights:
        """Return the total mass after so many scores, in the place of the prior's share, and that of the last score."""
        total, mass = (counts + self.at_infinity).astype(dtype), jnp.ones(counts.shape, dtype)
        discount = traced_discount(self.discount, dtype)
        if discount is not None:
            total = jnp.expm1(total * jnp.log(discount)) / (discount - 1)  # discount^0 + discount^1 + …
            # The coming score, where one is counted, weighs 1 and the last one a round's discount less.
            mass = jnp.broadcast_to(discount**self.at_infinity, total.shape)
        return Weights(jnp.where(counts < 0, jnp.nan, total), mass, discount)

    def edge(self, dtype: Any) -> Float[Array, ""] | float:
        """Tell by how much a share of the mass may fall short of a level for rounding alone: counts do not."""
        if self.discount is None:
            return 0.0
        discount = jnp.asarray(self.discount, dtype)
        return float(jnp.finfo(dtype).eps) * (64 + 16 / jnp.sqrt(jnp.where(discount < 1, 1 - discount, jnp.nan)))


@register()
@dataclass(frozen=True)
class ERM(PriorUntilScores, Empirical):
    """
    Empirical quantile of all past scores: empirical risk minimisation, Follow-the-Leader.

    Optimal for iid scores, and brittle without that assumption: on an alternating sequence its regret
    grows linearly. Thresholds never cross.

    Parameters
    ----------
    prior : Prior
        Answers while there is no score at all, and gives the support. It has no further influence.

    Examples
    --------
    >>> learner = ERM()
    >>> state = learner.observe(learner.init(), 0.3)
    >>> learner.quantile(state, [0.1, 0.9])
    Array([0.3, 0.3], dtype=float...)
    """

    prior: Prior = Uniform()

    def __post_init__(self) -> None:
        check_prior("ERM", self.prior)


@register()
@dataclass(frozen=True)
class SplitConformal(ScoreAtInfinity, Empirical):
    """
    The ⌈level·(n + 1)⌉-th smallest of n past scores: valid in finite samples.

    If the scores are exchangeable, the next one is covered with probability at least ``level``,
    averaged over past and future. Where the rank exceeds n, no score is large enough to promise
    that and the threshold is +∞: the set is everything, and its quantile loss is infinite.
    Thresholds never cross.

    Parameters
    ----------
    low, high : float
        The support, possibly infinite. Scores outside are refused; the threshold of level 0 is ``low``.

    Examples
    --------
    >>> learner = SplitConformal()
    >>> state = learner.observe(learner.init(), 0.3)
    >>> learner.quantile(state, [0.5, 0.9])
    Array([0.3, inf], dtype=float...)
    """

    low: Scalar = 0.0
    high: Scalar = 1.0


@register()
@dataclass(frozen=True)
class DiscountedERM(PriorUntilScores, Empirical):
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
        set_discount(self, "for no discount use ERM or SplitConformal")


@register()
@dataclass(frozen=True)
class NExCP(ScoreAtInfinity, Empirical):
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

    def __post_init__(self) -> None:
        super().__post_init__()
        set_discount(self, "for no discount use ERM or SplitConformal")


def rank_of_level(levels: Float[Array, "*n"], total: Int[Array, ""]) -> Int[Array, "*n"]:
    """
    Find the smallest whole k with k/total ≥ level, as floating-point numbers compare.

    ⌈level·total⌉ would be one too many where the product rounds up, as in 0.55 · 100.
    """
    # XLA turns a division by one number for all levels into a product with its reciprocal, which rounds otherwise.
    size = lax.optimization_barrier(jnp.broadcast_to(total.astype(levels.dtype), levels.shape))
    k = jnp.ceil(levels * size)
    k = jnp.where((k - 1) / size >= levels, k - 1, k)
    k = jnp.where(k / size < levels, k + 1, k)
    return k.astype(jnp.int32)


def quantile_by_rank(
    learner: Any, ordered: Float[Array, " C"], seen: Int[Array, ""], count: Int[Array, ""], levels: Float[Array, "*n"]
) -> Float[Array, "*n"]:
    """Take quantiles of the first ``count`` of some ordered scores, ``seen`` being negative in an invalid state."""
    rank = rank_of_level(levels, jnp.maximum(count + learner.at_infinity, 1))
    found = ordered[jnp.clip(rank - 1, 0, ordered.shape[-1] - 1)]
    found = jnp.where(rank > count, learner.without_scores(levels), found)  # no score reaches the level
    found = jnp.where(rank > 0, found, jnp.asarray(learner.support[0], levels.dtype))
    return jnp.where((seen < 0) | jnp.isnan(levels), jnp.nan, found)


def cdf_by_rank(
    learner: Any, ordered: Float[Array, " C"], seen: Int[Array, ""], count: Int[Array, ""], x: Array, side: str
) -> Array:
    """Return the share of the first ``count`` of some ordered scores that are at most x, or below it."""
    passed = jnp.minimum(jnp.searchsorted(ordered, x, side=side), jnp.maximum(count, 0)).astype(x.dtype)
    share = passed / jnp.maximum(count + learner.at_infinity, 1).astype(x.dtype)
    share = jnp.where(jnp.isposinf(x), 1, share)
    share = jnp.where(seen == 0, learner.cdf_without_scores(x), share)
    return jnp.where((seen < 0) | jnp.isnan(x), jnp.nan, share)


@jax.jit
def _quantile_by_rank(learner: Empirical, state: SortedScores, levels: Array) -> Array:
    return quantile_by_rank(learner, state.values, state.seen, state.seen, levels)


def _cumulative(learner: Any, state: SortedScores) -> tuple[Array, Array]:
    """Return the share of the mass up to each score, and the total."""
    dtype = state.values.dtype
    weights = learner.weights(state.seen, dtype)
    age = jnp.maximum(state.seen - state.arrivals, 0).astype(dtype)
    mass = jnp.where(state.arrivals > 0, weights.atom * weights.discount**age, 0)
    total = weights.prior
    return jnp.cumsum(mass) / jnp.where(total == 0, 1, total), total


@jax.jit
def _quantile_by_mass(learner: Any, state: SortedScores, levels: Array) -> Array:
    share, total = _cumulative(learner, state)
    wanted = jnp.maximum(levels - learner.edge(levels.dtype), jnp.finfo(levels.dtype).tiny)
    # Sums of many masses are off by rounding, so that the last score may seem not to reach what it does reach.
    place = jnp.minimum(jnp.searchsorted(share, wanted), jnp.maximum(state.seen - 1, 0))
    return empirical_thresholds(learner, state.values[place], total, levels)


@jax.jit(static_argnames="side")
def _cdf_by_mass(learner: Any, state: SortedScores, x: Array, side: str) -> Array:
    share, total = _cumulative(learner, state)
    below = jnp.concatenate([jnp.zeros(1, x.dtype), share])
    passed = jnp.minimum(jnp.searchsorted(state.values, x, side=side), jnp.maximum(state.seen, 0))
    answers = jnp.where(jnp.isposinf(x), 1, jnp.minimum(below[passed], 1))
    answers = jnp.where(state.seen == 0, learner.cdf_without_scores(x), answers)
    return jnp.where(jnp.isnan(total) | jnp.isnan(x), jnp.nan, answers)


@jax.jit(static_argnames=("keep", "epoch"))
def _run(
    learner: Empirical, ranked: Ranked, counts: Int[Array, " T"], rounds: Rounds, keep: str, epoch: int | None
) -> Any:
    weights = learner.weights(counts, ranked.values.dtype)
    masses = masses_before(ranked, counts[0], weights.discount)
    walk = order_walk(learner, masses, ranked.values, rounds.levels)
    index = jnp.arange(masses.shape[0], dtype=jnp.int32)
    before = jnp.max(jnp.where(masses > 0, index, 0), initial=0)
    known = jnp.where(rounds.observed, ranked.places, 0)
    largest = lax.cummax(jnp.concatenate([before[None], known[:-1]]))
    rows = arrivals_by_round(ranked.places, counts, weights, NO_PLACE, epoch), largest
    return run_blocks(walk, rows, rounds, keep, *block_and_decays(counts, epoch, weights.discount))


EMPIRICAL = ranking_kernel(_run)
