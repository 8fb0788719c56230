"""Frequentist beliefs: the empirical distribution, plain (ERM) and corrected (split conformal)."""

from dataclasses import dataclass
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float, Int

from dpconformal.beliefs.kernels import EMPIRICAL
from dpconformal.beliefs.sorted_scores import (
    FIRST_CAPACITY,
    SortedScores,
    check_sorted,
    empty,
    grow,
    merge,
    take_in,
)
from dpconformal.beliefs.weights import Weights, check_precision, check_prior, check_valid_count
from dpconformal.engine.kernel import run_kernel
from dpconformal.priors import Prior, Uniform
from dpconformal.pytree import register
from dpconformal.rounds import Rounds
from dpconformal.validation import (
    Numbers,
    Scalar,
    as_floats,
    as_levels,
    as_numbers,
    check_int,
    check_not_batched,
    is_traced,
    raise_at,
)


class Empirical:
    """What empirical distributions have in common: they keep every score and answer with one of them."""

    support: tuple[Scalar, Scalar]
    discount: Any = None
    at_infinity: ClassVar[float] = 0.0  # mass that is counted at +∞

    def edge(self, dtype: Any) -> Any:
        """Tell by how much a share of the mass may fall short of a level for rounding alone: counts do not."""
        del dtype
        return 0.0

    def kernel(self, begin: SortedScores, fresh: bool, rounds: Rounds, keep: str) -> tuple[Any, SortedScores] | None:
        """Replay in native loops; None where they cannot."""
        return run_kernel(EMPIRICAL, self, begin, fresh, rounds, keep)

    def init(self, rounds: int | None = None, dtype: Any = None) -> SortedScores:
        """Return the state before any score, with room for ``rounds`` of them."""
        check_not_batched(self)
        dtype = dtype or jnp.result_type(float)
        check_precision(self, dtype)
        return empty(FIRST_CAPACITY if rounds is None else check_int("rounds", rounds, 0), dtype)

    def prepare(self, state: SortedScores, rounds: int) -> SortedScores:
        """Make room for more rounds, also in a batch of states."""
        check_sorted(self, state, batched=True)
        check_valid_count(state.seen)
        if rounds:  # without any, nothing need be compiled
            check_precision(self, state.values.dtype)
        return grow(state, rounds)

    def observe(self, state: SortedScores, score: Numbers) -> SortedScores:
        """Return the state after one more score."""
        check_sorted(self, state)
        return take_in(state, score, self.support)

    def merge(self, first: SortedScores, second: SortedScores) -> SortedScores:
        """Return the state that saw the scores of both."""
        check_sorted(self, first, second)
        return merge(first, second)


@register()
@dataclass(frozen=True)
class ERM(Empirical):
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

    @property
    def support(self) -> tuple[Scalar, Scalar]:  # type: ignore[override]
        """Ends of the interval that holds every score."""
        return self.prior.support

    def quantile(self, state: SortedScores, levels: Numbers) -> Float[Array, "..."]:
        """Predict the smallest score that a share ``level`` of the past does not exceed."""
        check_sorted(self, state)
        return _erm_quantile(self, state, as_levels(levels, state.values.dtype))

    def weights(self, counts: Int[Array, "*T"], dtype: Any) -> Weights:
        """Return the total mass after so many scores, in the place of the prior's share, and that of one score."""
        return masses_of(counts, counts, dtype)

    def without_scores(self, levels: Float[Array, "*n"]) -> Float[Array, "*n"]:
        """Predict before any score: with the prior."""
        return self.prior.quantile(levels)

    def cdf(self, state: SortedScores, x: Numbers, side: str = "right") -> Float[Array, "..."]:
        """Share of past scores that are at most x; with ``side="left"`` below x."""
        check_sorted(self, state)
        x = as_floats(x).astype(state.values.dtype)
        share = _up_to(state, x, side) / jnp.maximum(state.seen, 1).astype(x.dtype)
        share = jnp.where(state.seen == 0, self.prior.cdf(x), share)
        return jnp.where((state.seen < 0) | jnp.isnan(x), jnp.nan, share)


@register()
@dataclass(frozen=True)
class SplitConformal(Empirical):
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
    at_infinity: ClassVar[float] = 1.0

    def __post_init__(self) -> None:
        check_ends(self)

    @property
    def support(self) -> tuple[Scalar, Scalar]:  # type: ignore[override]
        """Ends of the interval that holds every score."""
        return self.low, self.high

    def quantile(self, state: SortedScores, levels: Numbers) -> Float[Array, "..."]:
        """Predict the corrected empirical quantile; +∞ where the sample is too small."""
        check_sorted(self, state)
        return _split_quantile(self, state, as_levels(levels, state.values.dtype))

    def weights(self, counts: Int[Array, "*T"], dtype: Any) -> Weights:
        """Return the total mass after so many scores, one more at +∞ included, and that of one score."""
        return masses_of(counts, counts + 1, dtype)

    def without_scores(self, levels: Float[Array, "*n"]) -> Float[Array, "*n"]:
        """Predict before any score: everything."""
        return jnp.full_like(levels, jnp.inf)

    def cdf(self, state: SortedScores, x: Numbers, side: str = "right") -> Float[Array, "..."]:
        """Share of past scores that are at most x (``side="left"``: below x), with one more counted at +∞."""
        check_sorted(self, state)
        x = as_floats(x).astype(state.values.dtype)
        share = _up_to(state, x, side) / (state.seen + 1).astype(x.dtype)
        share = jnp.where(jnp.isposinf(x), 1, share)
        return jnp.where((state.seen < 0) | jnp.isnan(x), jnp.nan, share)


def check_ends(learner: Any) -> None:
    """Check and normalise the support of a learner without a prior, while it is being constructed."""
    owner = type(learner).__name__
    for name in ("low", "high"):
        end = as_numbers(f"{owner}.{name}", getattr(learner, name))
        # A plain float, so that it takes on the dtype of the scores; infinite ends are welcome.
        object.__setattr__(learner, name, end if is_traced(end) or end.ndim else float(end))
    if not is_traced(learner.low, learner.high):
        bad = ~(np.asarray(learner.low) < np.asarray(learner.high))
        why = f"must exceed low = {learner.low}"
        raise_at(f"{owner}.high", np.broadcast_to(learner.high, bad.shape), bad, why)


def masses_of(counts: Int[Array, "*T"], total: Int[Array, "*T"], dtype: Any) -> Weights:
    """Weigh scores that all count 1."""
    return Weights(jnp.where(counts < 0, jnp.nan, total.astype(dtype)), jnp.ones(counts.shape, dtype), None)


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


def _up_to(state: SortedScores, x: Array, side: str) -> Array:
    passed = jnp.searchsorted(state.values, x, side=side)
    return jnp.minimum(passed, jnp.maximum(state.seen, 0)).astype(x.dtype)


@jax.jit
def _erm_quantile(learner: ERM, state: SortedScores, levels: Array) -> Array:
    rank = rank_of_level(levels, jnp.maximum(state.seen, 1))
    chosen = _ranked(state, rank, jnp.asarray(learner.support[0], levels.dtype))
    chosen = jnp.where(state.seen == 0, learner.prior.quantile(levels), chosen)
    return jnp.where((state.seen < 0) | jnp.isnan(levels), jnp.nan, chosen)


@jax.jit
def _split_quantile(learner: SplitConformal, state: SortedScores, levels: Array) -> Array:
    rank = rank_of_level(levels, jnp.maximum(state.seen, 0) + 1)
    chosen = _ranked(state, rank, jnp.asarray(learner.low, levels.dtype))
    chosen = jnp.where(rank > state.seen, jnp.inf, chosen)
    return jnp.where((state.seen < 0) | jnp.isnan(levels), jnp.nan, chosen)


def _ranked(state: SortedScores, rank: Array, lowest: Array) -> Array:
    last = state.values.shape[-1] - 1
    return jnp.where(rank > 0, state.values[jnp.clip(rank - 1, 0, last)], lowest)
