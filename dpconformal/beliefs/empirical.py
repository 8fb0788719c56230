"""Frequentist beliefs: the empirical distribution, plain (ERM) and corrected (split conformal)."""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from dpconformal.beliefs.sorted_scores import SortedScores, empty, grow, merge, take_in
from dpconformal.checks import Numbers, Scalar, as_numbers, complain_at, is_traced
from dpconformal.inputs import as_levels
from dpconformal.priors import Prior, Uniform
from dpconformal.priors.inverse import as_float
from dpconformal.pytree import register

_FIRST_CAPACITY = 256


class _Empirical:
    """What the two have in common: they keep every score and answer with one of them."""

    support: tuple[Scalar, Scalar]

    def init(self, rounds: int | None = None, dtype: Any = None) -> SortedScores:
        """Return the state before any score, with room for ``rounds`` of them."""
        return empty(max(_FIRST_CAPACITY if rounds is None else rounds, 1), dtype or jnp.result_type(float))

    def prepare(self, state: SortedScores, rounds: int) -> SortedScores:
        """Make room for more rounds."""
        return grow(state, rounds)

    def observe(self, state: SortedScores, score: Numbers) -> SortedScores:
        """Return the state after one more score."""
        return take_in(state, score, self.support)

    def merge(self, first: SortedScores, second: SortedScores) -> SortedScores:
        """Return the state that saw the scores of both."""
        return merge(first, second)


@register()
@dataclass(frozen=True)
class ERM(_Empirical):
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
        if not isinstance(self.prior, Prior) or isinstance(self.prior, type):
            raise ValueError(f"ERM.prior = {self.prior!r}: pass a prior such as priors.Uniform(0, 1)")

    @property
    def support(self) -> tuple[Scalar, Scalar]:  # type: ignore[override]
        """Ends of the interval that holds every score."""
        return self.prior.support

    def quantile(self, state: SortedScores, levels: Numbers) -> Float[Array, "..."]:
        """Predict the smallest score that a share ``level`` of the past does not exceed."""
        return _erm_quantile(self, state, as_levels(levels, state.values.dtype))

    def cdf(self, state: SortedScores, x: Numbers) -> Float[Array, "..."]:
        """Share of past scores that are at most x."""
        x = as_float(x).astype(state.values.dtype)
        share = _at_most(state, x) / jnp.maximum(state.seen, 1).astype(x.dtype)
        share = jnp.where(state.seen == 0, self.prior.cdf(x), share)
        return jnp.where(state.seen < 0, jnp.nan, share)


@register()
@dataclass(frozen=True)
class SplitConformal(_Empirical):
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

    def __post_init__(self) -> None:
        low, high = as_numbers("SplitConformal.low", self.low), as_numbers("SplitConformal.high", self.high)
        if not is_traced(low, high):
            why = f"must exceed low = {low}"
            complain_at("SplitConformal.high", high, ~(low < high), why)

    @property
    def support(self) -> tuple[Scalar, Scalar]:  # type: ignore[override]
        """Ends of the interval that holds every score."""
        return self.low, self.high

    def quantile(self, state: SortedScores, levels: Numbers) -> Float[Array, "..."]:
        """Predict the corrected empirical quantile; +∞ where the sample is too small."""
        return _split_quantile(self, state, as_levels(levels, state.values.dtype))

    def cdf(self, state: SortedScores, x: Numbers) -> Float[Array, "..."]:
        """Share of past scores that are at most x, with one more counted at +∞."""
        x = as_float(x).astype(state.values.dtype)
        share = _at_most(state, x) / (state.seen + 1).astype(x.dtype)
        return jnp.where(state.seen < 0, jnp.nan, jnp.where(jnp.isposinf(x), 1, share))


def rank_of_level(levels: Float[Array, "*n"], total: Int[Array, ""]) -> Int[Array, "*n"]:
    """
    Find the smallest whole k with k/total ≥ level, as floating-point numbers compare.

    ⌈level·total⌉ would be one too many where the product rounds up, as in 0.55 · 100.

    Parameters
    ----------
    levels : Array
        Levels in [0, 1].
    total : Array
        A whole number above 0.

    Returns
    -------
    Array
        Ranks in 0, …, total.
    """
    size = total.astype(levels.dtype)
    k = jnp.ceil(levels * size)
    k = jnp.where((k - 1) / size >= levels, k - 1, k)
    k = jnp.where(k / size < levels, k + 1, k)
    return k.astype(jnp.int32)


def _at_most(state: SortedScores, x: Array) -> Array:
    passed = jnp.searchsorted(state.values, x, side="right")
    return jnp.minimum(passed, jnp.maximum(state.seen, 0)).astype(x.dtype)


@jax.jit
def _erm_quantile(learner: ERM, state: SortedScores, levels: Array) -> Array:
    rank = rank_of_level(levels, jnp.maximum(state.seen, 1))
    chosen = _ranked(state, rank, jnp.asarray(learner.support[0], levels.dtype))
    chosen = jnp.where(state.seen == 0, learner.prior.quantile(levels), chosen)
    return jnp.where(state.seen < 0, jnp.nan, chosen)


@jax.jit
def _split_quantile(learner: SplitConformal, state: SortedScores, levels: Array) -> Array:
    rank = rank_of_level(levels, jnp.maximum(state.seen, 0) + 1)
    chosen = _ranked(state, rank, jnp.asarray(learner.low, levels.dtype))
    chosen = jnp.where(rank > state.seen, jnp.inf, chosen)
    return jnp.where(state.seen < 0, jnp.nan, chosen)


def _ranked(state: SortedScores, rank: Array, lowest: Array) -> Array:
    last = state.values.shape[-1] - 1
    return jnp.where(rank > 0, state.values[jnp.clip(rank - 1, 0, last)], lowest)
