"""
Are the scores exchangeable, and since when not? Ranks at arrival, a test that bets on them, and an alarm.

The test ranks each score among all before it. The alarm watches a stream for ever, so it ranks scores in bins: memory
does not grow with time.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, UInt32

from dpconformal.baselines.mvp import draw_coin, key_data
from dpconformal.beliefs.quantized import bin_index
from dpconformal.engine.states import advance, room_to_count
from dpconformal.learner import State, is_valid_score
from dpconformal.martingales.capital import Capital, Composite, Martingale, check_capital, drive_rounds, run
from dpconformal.pytree import register
from dpconformal.validation import (
    Numbers,
    Scalar,
    as_numbers,
    as_score,
    as_scores,
    check_float,
    check_int,
    check_interval,
    check_not_batched,
    check_not_column,
    check_scalar,
    check_seed,
    check_size,
    check_time_index,
    raise_at,
)


def smoothed_ranks(scores: Numbers, seed: Any = 0) -> np.ndarray:
    """
    Rank each score among those before it, smoothed to a number in [0, 1).

    With n scores before, k of them smaller and e of them equal, this is (k + U(e + 1))/(n + 1), U being uniform. If the
    scores are exchangeable, of whatever distribution, these numbers are independent and exactly uniform, and
    :func:`dpconformal.diagnostics.uniformity` tests the one assumption that conformal prediction makes.

    Parameters
    ----------
    scores : array_like, shape (..., T)
        Scores in time order. Infinite ones have a rank too.
    seed : int or numpy.random.Generator
        Of the smoothing.

    Returns
    -------
    ndarray, shape (..., T)
        Smoothed ranks. The first of a sequence is pure chance.

    Examples
    --------
    >>> smoothed_ranks([0.5, 0.1, 0.9]).round(2)
    array([0.64, 0.13, 0.68])
    """
    less, equal = arrival_ranks(scores)
    rng = seed if isinstance(seed, np.random.Generator) else np.random.default_rng(check_int("seed", seed, 0))
    seen = np.arange(1, less.shape[-1] + 1)
    return (less + rng.random(less.shape) * (equal + 1)) / seen


def arrival_ranks(scores: Numbers) -> tuple[np.ndarray, np.ndarray]:
    """Count, for each score, how many of those before are smaller and how many are equal, in T log T steps."""
    values = np.asarray(as_numbers("scores", scores))
    if values.ndim == 0:
        raise ValueError("scores has shape (): pass a sequence, shape (T,) or (..., T)")
    check_not_column("scores", values.shape)
    check_time_index("scores", scores)
    raise_at("scores", values, np.isnan(values), "has no rank; drop the round or replace the value on purpose")
    if not values.size:
        return np.zeros(values.shape, int), np.zeros(values.shape, int)
    order = np.argsort(values, axis=-1, kind="stable")
    ordered = np.take_along_axis(values, order, axis=-1)
    place = np.arange(values.shape[-1])
    first = np.ones(values.shape, bool)  # where, in sorted order, a new value begins
    first[..., 1:] = ordered[..., 1:] != ordered[..., :-1]
    # Equal scores are sorted by arrival, so a place among equals is the number of equals before.
    equal = place - np.maximum.accumulate(np.where(first, place, 0), axis=-1)
    before = _earlier_and_smaller(order) - equal
    less, same = np.empty_like(before), np.empty_like(equal)
    np.put_along_axis(less, order, before, axis=-1)
    np.put_along_axis(same, order, equal, axis=-1)
    return less, same


def _earlier_and_smaller(order: np.ndarray) -> np.ndarray:
    """Count, for each place in sorted order, the smaller places that arrived earlier."""
    # Bit by bit from the highest: places that share their higher bits stand together in order of arrival, and those
    # with a 0 are smaller than those with a 1. Each bit costs a cumulative sum.
    size = order.shape[-1]
    now = np.empty_like(order)
    np.put_along_axis(now, order, np.broadcast_to(np.arange(size), order.shape), axis=-1)
    found, here = np.zeros_like(order), np.arange(size)
    for bit in range((size - 1).bit_length() - 1, -1, -1):
        one = (now >> bit) & 1
        zeros = np.cumsum(1 - one, axis=-1) - (1 - one)
        start = (now >> (bit + 1)) << (bit + 1)  # all places are taken once: a group begins at its lowest
        zeros -= np.take_along_axis(zeros, start, axis=-1)
        np.put_along_axis(found, now, np.take_along_axis(found, now, axis=-1) + one * zeros, axis=-1)
        target = start + np.where(one == 1, (1 << bit) + here - start - zeros, zeros)
        moved = np.empty_like(now)
        np.put_along_axis(moved, target, now, axis=-1)
        now = moved
    return found


class Exchangeability(NamedTuple):
    """Result of :func:`exchangeability`."""

    ranks: np.ndarray  # (..., T), smoothed; independent and uniform if the scores are exchangeable
    log_capital: np.ndarray  # (..., T), logarithm of the martingale's capital after each round
    log_maximum: np.ndarray  # (..., T), logarithm of the largest capital so far
    alarm: Any  # (...), the round, from 1, in which the capital first reached the threshold; 0 if it never did
    threshold: float  # the capital that makes an alarm

    @property
    def p_value(self) -> Any:
        """One over the largest capital: a p-value that holds whenever one stops looking, shape (...)."""
        most = self.log_maximum[..., -1] if self.log_maximum.shape[-1] else np.zeros(self.log_maximum.shape[:-1])
        return np.exp(-np.maximum(most, 0))

    @property
    def guarantee(self) -> str:
        """What an alarm means, in words."""
        return (
            "If the scores are exchangeable, whatever their distribution, the chance that the capital ever reaches "
            f"{self.threshold:g} is at most {1 / self.threshold:.3g} (Ville's inequality), however long one looks."
        )


def exchangeability(
    scores: Numbers, martingale: Martingale | None = None, threshold: Scalar = 100.0, seed: Any = 0
) -> Exchangeability:
    """
    Bet against exchangeability, on the rank of each score among those before it.

    A gambler who begins with 1 and plays a fair game is not likely to grow rich: the chance that the capital ever
    reaches c is at most 1/c. Under exchangeability this game is fair.

    Parameters
    ----------
    scores : array_like, shape (..., T)
        Scores in time order. NaN is refused.
    martingale : Martingale, optional
        The gambler; ``Composite()`` by default.
    threshold : float
        The capital that makes an alarm, above 1. Its inverse bounds the chance of a false one.
    seed : int or numpy.random.Generator
        Of the ranks' smoothing.

    Returns
    -------
    Exchangeability
        Its ``alarm`` is the verdict.

    Examples
    --------
    >>> import dpconformal as dpc
    >>> exchangeability(dpc.streams.iid(2000)).alarm
    0
    >>> found = exchangeability(dpc.streams.drifting(2000))
    >>> found.alarm, bool(found.p_value < 1e-9)
    (126, True)
    """
    threshold = check_scalar("threshold", threshold, 1.0, open_low=True)
    ranks = smoothed_ranks(scores, seed)
    log_capital = np.asarray(run(Composite() if martingale is None else martingale, ranks).log_capital)
    reached = log_capital >= np.log(threshold)
    alarm = np.where(reached.any(-1), reached.argmax(-1) + 1, 0) if ranks.shape[-1] else np.zeros(ranks.shape[:-1], int)
    most = np.maximum.accumulate(log_capital, axis=-1)
    return Exchangeability(ranks, log_capital, most, alarm if alarm.ndim else int(alarm), threshold)


class RankedBins(NamedTuple):
    """Scores seen so far, in bins, and the coin of the coming round."""

    seen: Int[Array, "*B"]  # scores, also those before a restart; -1 once a bad one was met inside jit
    key: UInt32[Array, "*B 2"]  # a threefry key that does not change: the coin of round t comes from fold_in(key, t)
    coin: Float[Array, "*B"]  # a number in [0, 1), drawn for the coming round
    counts: Int[Array, "*B K"]  # scores in each bin since the last restart


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
        object.__setattr__(self, "bins", check_size("BinnedRanks.bins", self.bins, 1))
        for name in ("low", "high"):
            object.__setattr__(self, name, check_float(f"BinnedRanks.{name}", getattr(self, name)))
        check_interval("BinnedRanks", self.low, self.high)
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
        zero, coin = jnp.zeros((), jnp.int32), jnp.zeros((), dtype or jnp.result_type(float))
        return _with_new_coin(RankedBins(zero, key_data(seed), coin, jnp.zeros(self.bins, jnp.int32)))

    def rank(self, state: RankedBins, score: Numbers) -> Float[Array, ""]:
        """Place a score among those before it, in [0, 1]; the state stays as it is."""
        return _rank(self, state, self._score(state, score))

    def observe(self, state: RankedBins, score: Numbers) -> RankedBins:
        """Return the state after one more score, with another coin."""
        return _count_score(self, room_to_count(state, 1), self._score(state, score))

    def restarted(self, state: RankedBins) -> RankedBins:
        """Forget the scores, and go on with new coins."""
        return state._replace(counts=jnp.zeros_like(state.counts))

    def _score(self, state: RankedBins, score: Numbers) -> Float[Array, ""]:
        if jnp.shape(state.counts) != (self.bins,):
            raise ValueError(f"state.counts has shape {jnp.shape(state.counts)}: this BinnedRanks has {(self.bins,)}")
        return as_score(score, self.support).astype(state.coin.dtype)


_with_new_coin = jax.jit(draw_coin)


@jax.jit
def _rank(ranks: BinnedRanks, state: RankedBins, score: Float[Array, ""]) -> Float[Array, ""]:
    dtype = state.coin.dtype
    here = bin_index(score, ranks.support, ranks.bins, "nearest")
    place = jnp.arange(ranks.bins, dtype=jnp.int32)
    less = jnp.sum(jnp.where(place < here, state.counts, 0))
    seen, equal = jnp.sum(state.counts), state.counts[here]
    rank = (less.astype(dtype) + state.coin * (equal + 1).astype(dtype)) / (seen + 1).astype(dtype)
    return jnp.where((state.seen >= 0) & is_valid_score(score, ranks.support), rank, jnp.nan)


@jax.jit
def _count_score(ranks: BinnedRanks, state: RankedBins, score: Float[Array, ""]) -> RankedBins:
    valid = is_valid_score(score, ranks.support)
    counts = state.counts.at[bin_index(score, ranks.support, ranks.bins, "nearest")].add(
        valid.astype(state.counts.dtype)
    )
    return draw_coin(state._replace(seen=advance(state.seen, valid), counts=counts))


class Watch(NamedTuple):
    """State of a :class:`ChangeAlarm`."""

    ranks: RankedBins  # scores since the last alarm, in bins
    capital: Capital  # of a gambler who is given one unit in each round
    alarm: Bool[Array, "*B"]  # whether the alarm went off at the last score
    alarms: Int[Array, "*B"]  # how often it has

    @property
    def log_statistic(self) -> Float[Array, "*B"]:
        """Logarithm of the statistic of Shiryaev and Roberts, which sets off the alarm."""
        return self.capital.log_capital


@register()
@dataclass(frozen=True)
class ChangeAlarm:
    """
    Tell when scores change, again and again.

    Its statistic is that of Shiryaev and Roberts: the sum, over all rounds so far, of the capital of a gambler who
    began in that round. So it is what a gambler owns who is given one unit before each round. The alarm goes off when
    that reaches ``threshold``; before the next score everything starts anew, the ranks too.

    Guarantee: while the scores are exchangeable, N rounds have N/threshold false alarms at most in expectation, and
    from one to the next ``threshold`` rounds pass at least in expectation.

    Parameters
    ----------
    martingale : Martingale
        The gambler.
    threshold : float
        Above 1.
    ranks : BinnedRanks
        How scores are ranked; it knows their ends.

    References
    ----------
    Vovk, Petej, Nouretdinov, Ahlberg, Carlsson and Gammerman (2021), Retrain or not retrain: conformal test martingales
    for change-point detection. There one gambler's growth is accumulated; here each round has a gambler of its own,
    whose bets owe nothing to the time before it.

    Examples
    --------
    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> alarm = ChangeAlarm(threshold=1e6)
    >>> state = alarm.init()
    >>> for score in np.concatenate([rng.beta(2, 5, 200), rng.beta(5, 2, 100)]):
    ...     state = alarm.observe(state, score)
    ...     if state.alarm:
    ...         break
    >>> state.alarms, bool(200 < state.ranks.seen)
    (Array(1, dtype=int32), True)
    """

    martingale: Any = Composite()
    threshold: Scalar = 1000.0
    ranks: Any = BinnedRanks()

    def __post_init__(self) -> None:
        threshold = check_float("ChangeAlarm.threshold", self.threshold, 1.0, open_low=True)
        object.__setattr__(self, "threshold", threshold)
        for name, kind in (("martingale", Martingale), ("ranks", BinnedRanks)):
            if not isinstance(getattr(self, name), kind):
                raise ValueError(f"ChangeAlarm.{name} = {getattr(self, name)!r}: pass a {kind.__name__}")

    @property
    def support(self) -> tuple[Scalar, Scalar]:
        """Ends of the interval that holds every score."""
        return self.ranks.support

    def init(self, dtype: Any = None, seed: Any = None) -> Watch:
        """Return the state before any score; with a seed for the coins where one is given."""
        ranks = self.ranks.init(dtype, seed)
        nothing = _without_capital(self.martingale.init(ranks.coin.dtype))
        return Watch(ranks, nothing, jnp.zeros((), bool), jnp.zeros((), jnp.int32))

    def observe(self, state: State, score: Numbers) -> Watch:
        """Return the state after one more score; ``state.alarm`` tells whether it set off the alarm."""
        _check_watch(self, state)
        state = state._replace(ranks=room_to_count(state.ranks, 1))
        return _watch_round(self, state, as_score(score, self.support).astype(state.ranks.coin.dtype))


class Watched(NamedTuple):
    """Result of :func:`watch`."""

    log_statistic: Float[Array, "*B T"]  # logarithm of the statistic after each round
    alarm: Bool[Array, "*B T"]  # whether the alarm went off
    state: Watch  # to carry on from


def watch(alarm: ChangeAlarm, scores: Numbers, state: State | None = None) -> Watched:
    """
    Watch a whole sequence, or a batch of them.

    Parameters
    ----------
    alarm : ChangeAlarm
        The alarm.
    scores : array_like, shape (..., T)
        Scores in time order, within ``alarm.support``.
    state : Watch, optional
        The ``state`` of an earlier call, with the same leading axes. By default a fresh one, whose coins all sequences
        of a batch share.

    Returns
    -------
    Watched
        The statistic and the alarms, round by round.

    Examples
    --------
    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> scores = np.concatenate([rng.beta(2, 5, 500), rng.beta(4, 4, 500), rng.beta(2, 5, 500)])
    >>> found = watch(ChangeAlarm(threshold=1e6), scores)
    >>> (np.flatnonzero(found.alarm) + 1) // 250 * 250  # to the last 250
    array([ 500, 1000])
    """
    values = as_scores(scores, alarm.support)
    if not values.ndim:
        raise ValueError("scores has shape (): pass a sequence, shape (T,) or (..., T)")
    if state is None:
        check_not_column("scores", values.shape, "watch")
        begin = alarm.init(values.dtype)
    else:
        _check_watch(alarm, state, values.shape[:-1])
        begin, values = state, values.astype(np.dtype(state.ranks.coin.dtype))
    check_time_index("scores", scores)
    begin = begin._replace(ranks=room_to_count(begin.ranks, values.shape[-1]))
    (statistic, raised), end = drive_rounds(_statistic, alarm, begin, values, fresh=state is None)
    return Watched(statistic, raised, end)


@jax.jit
def _statistic(alarm: ChangeAlarm, state: Watch, score: Any, levels: Any) -> tuple[Array, Array]:
    del alarm, score, levels
    return state.log_statistic, state.alarm


def _check_watch(alarm: ChangeAlarm, state: Any, batch: tuple[int, ...] = ()) -> None:
    if not isinstance(state, Watch):
        raise ValueError(f"state is a {type(state).__name__}: ChangeAlarm carries on from a Watch, such as its init()")
    check_capital(alarm.martingale, state.capital, batch)


def _without_capital(state: Capital) -> Capital:
    return state._replace(log_capitals=jnp.full_like(state.log_capitals, -jnp.inf), rests=jnp.zeros_like(state.rests))


@jax.jit
def _watch_round(alarm: ChangeAlarm, state: Watch, score: Float[Array, ""]) -> Watch:
    ranks, own = jax.tree.map(
        lambda new, old: jnp.where(state.alarm, new, old),
        (alarm.ranks.restarted(state.ranks), _without_capital(state.capital)),
        (state.ranks, state.capital),
    )
    own = alarm.martingale.observe(alarm.martingale.funded(own), alarm.ranks.rank(ranks, score))
    raised = own.log_capital >= jnp.log(jnp.asarray(alarm.threshold, score.dtype))
    return Watch(alarm.ranks.observe(ranks, score), own, raised, state.alarms + raised.astype(state.alarms.dtype))
