"""Ranks of a stream: each score placed among those before it, in bins, so that memory does not grow with time."""

from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int, UInt32

from dpconformal.binning import bin_of
from dpconformal.counting import advance, room_to_count
from dpconformal.learner import usable
from dpconformal.pytree import register
from dpconformal.validation import Numbers, Scalar, as_score, check_not_batched, check_seed, number, ordered, places


class RankedBins(NamedTuple):
    """
    Scores seen so far, in bins, and the coin of the coming round.

    Attributes
    ----------
    seen : Array, shape ()
        Scores seen, also before a restart; -1 once a bad one was met inside ``jit``.
    key : Array, shape (2,)
        Data of a threefry key, which does not change: the coin of round t comes from ``fold_in(key, t)``.
    coin : Array, shape ()
        A number in [0, 1), drawn for the coming round.
    counts : Array, shape (bins,)
        Scores in each bin since the last restart.
    """

    seen: Int[Array, "*B"]  # ()
    key: UInt32[Array, "*B 2"]  # (2,)
    coin: Float[Array, "*B"]  # ()
    counts: Int[Array, "*B K"]  # (bins,)


@register(static=("bins",))
@dataclass(frozen=True)
class BinnedRanks:
    """
    Smoothed ranks of a stream whose scores have ends: (k + U(e + 1))/(n + 1) of the n scores before.

    Here k is how many of them lie in lower bins, e how many in the same, and U is uniform. Scores are compared by their
    bins, which are exchangeable if the scores are, and the coin U settles ties: the ranks are independent and uniform
    then, exactly, with whatever number of bins. More bins tell finer changes apart. A round costs O(bins).

    Parameters
    ----------
    bins : int
        Bins of equal width.
    low, high : float
        The ends. Scores outside are refused.
    seed : int
        For the key of a fresh state. Sequences that start from the same state share its coins; for others give each its
        own, from ``init(seed=...)``.

    Examples
    --------
    >>> ranks = BinnedRanks(bins=10)
    >>> state = ranks.init()
    >>> for score in (0.2, 0.4, 0.3):
    ...     state = ranks.observe(state, score)
    >>> bool(0.25 <= ranks.rank(state, 0.35) < 0.75 <= ranks.rank(state, 0.95))
    True
    """

    bins: int = 256
    low: Scalar = 0.0
    high: Scalar = 1.0
    seed: Scalar = 0

    def __post_init__(self) -> None:
        object.__setattr__(self, "bins", places("BinnedRanks.bins", self.bins, 1))
        for name in ("low", "high"):
            object.__setattr__(self, name, number(f"BinnedRanks.{name}", getattr(self, name)))
        ordered("BinnedRanks", self.low, self.high)
        check_seed("BinnedRanks.seed", self.seed)

    @property
    def support(self) -> tuple[Scalar, Scalar]:
        """Ends of the interval that holds every score."""
        return self.low, self.high

    def init(self, dtype: Any = None, seed: Any = None) -> RankedBins:
        """Return the state before any score; with a seed of its own where one is given."""
        check_not_batched(self)
        seed = self.seed if seed is None else seed
        check_seed("seed", seed)
        key = jax.random.key_data(jax.random.key(seed, impl="threefry2x32"))
        zero, coin = jnp.zeros((), jnp.int32), jnp.zeros((), dtype or jnp.result_type(float))
        return _tossed(RankedBins(zero, key, coin, jnp.zeros(self.bins, jnp.int32)))

    def rank(self, state: RankedBins, score: Numbers) -> Float[Array, ""]:
        """Place a score among those before it, in [0, 1]; the state stays as it is."""
        return _rank(self, state, self._score(state, score))

    def observe(self, state: RankedBins, score: Numbers) -> RankedBins:
        """Return the state after one more score, with another coin."""
        return _counted(self, room_to_count(state, 1), self._score(state, score))

    def restarted(self, state: RankedBins) -> RankedBins:
        """Forget the scores, and go on with new coins."""
        return state._replace(counts=jnp.zeros_like(state.counts))

    def _score(self, state: RankedBins, score: Numbers) -> Float[Array, ""]:
        if jnp.shape(state.counts) != (self.bins,):
            raise ValueError(f"state.counts has shape {jnp.shape(state.counts)}: this BinnedRanks has {(self.bins,)}")
        return as_score(score, self.support).astype(state.coin.dtype)


@jax.jit
def _rank(ranks: BinnedRanks, state: RankedBins, score: Float[Array, ""]) -> Float[Array, ""]:
    dtype = state.coin.dtype
    here = _place(ranks, score)
    place = jnp.arange(ranks.bins, dtype=jnp.int32)
    less = jnp.sum(jnp.where(place < here, state.counts, 0))
    seen, equal = jnp.sum(state.counts), state.counts[here]
    rank = (less.astype(dtype) + state.coin * (equal + 1).astype(dtype)) / (seen + 1).astype(dtype)
    return jnp.where((state.seen >= 0) & usable(score, ranks.support), rank, jnp.nan)


@jax.jit
def _counted(ranks: BinnedRanks, state: RankedBins, score: Float[Array, ""]) -> RankedBins:
    fine = usable(score, ranks.support)
    counts = state.counts.at[_place(ranks, score)].add(fine.astype(state.counts.dtype))
    return _tossed(state._replace(seen=advance(state.seen, fine), counts=counts))


def _place(ranks: BinnedRanks, score: Float[Array, ""]) -> Int[Array, ""]:
    low, high = (jnp.asarray(end, score.dtype) for end in ranks.support)
    return bin_of(score, low, high, ranks.bins)


@jax.jit
def _tossed(state: RankedBins) -> RankedBins:
    key = jax.random.wrap_key_data(state.key, impl="threefry2x32")
    coin = jax.random.uniform(jax.random.fold_in(key, jnp.maximum(state.seen, 0) + 1), (), state.coin.dtype)
    return state._replace(coin=coin)
