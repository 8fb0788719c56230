"""An alarm for a stream that goes off at each change, on ranks in bins, so that memory does not grow with time."""

from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, UInt32

from dpconformal.beliefs.quantized import bin_index
from dpconformal.engine.states import advance, room_to_count
from dpconformal.learner import State, is_valid_score
from dpconformal.martingales.capital import Capital, Composite, Martingale, check_capital
from dpconformal.martingales.exchangeability import fields_by_round
from dpconformal.pytree import register
from dpconformal.validation import (
    Numbers,
    Scalar,
    as_score,
    as_scores,
    check_float,
    check_interval,
    check_not_batched,
    check_not_column,
    check_seed,
    check_size,
    check_time_index,
)


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
        key = jax.random.key_data(jax.random.key(seed, impl="threefry2x32"))
        zero, coin = jnp.zeros((), jnp.int32), jnp.zeros((), dtype or jnp.result_type(float))
        return _with_new_coin(RankedBins(zero, key, coin, jnp.zeros(self.bins, jnp.int32)))

    def rank(self, state: RankedBins, score: Numbers) -> Float[Array, ""]:
        """Place a score among those before it, in [0, 1]; the state stays as it is."""
        return _rank(self, state, self._score(state, score))

    def observe(self, state: RankedBins, score: Numbers) -> RankedBins:
        """Return the state after one more score, with another coin."""
        return _with_score(self, room_to_count(state, 1), self._score(state, score))

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
    here = _bin_of(ranks, score)
    place = jnp.arange(ranks.bins, dtype=jnp.int32)
    less = jnp.sum(jnp.where(place < here, state.counts, 0))
    seen, equal = jnp.sum(state.counts), state.counts[here]
    rank = (less.astype(dtype) + state.coin * (equal + 1).astype(dtype)) / (seen + 1).astype(dtype)
    return jnp.where((state.seen >= 0) & is_valid_score(score, ranks.support), rank, jnp.nan)


@jax.jit
def _with_score(ranks: BinnedRanks, state: RankedBins, score: Float[Array, ""]) -> RankedBins:
    valid = is_valid_score(score, ranks.support)
    counts = state.counts.at[_bin_of(ranks, score)].add(valid.astype(state.counts.dtype))
    return _with_new_coin(state._replace(seen=advance(state.seen, valid), counts=counts))


def _bin_of(ranks: BinnedRanks, score: Float[Array, ""]) -> Int[Array, ""]:
    return bin_index(score, ranks.support, ranks.bins, "nearest")


@jax.jit
def _with_new_coin(state: RankedBins) -> RankedBins:
    key = jax.random.wrap_key_data(state.key, impl="threefry2x32")
    coin = jax.random.uniform(jax.random.fold_in(key, jnp.maximum(state.seen, 0) + 1), (), state.coin.dtype)
    return state._replace(coin=coin)


class Watch(NamedTuple):
    """
    What a :class:`ChangeAlarm` remembers.

    Attributes
    ----------
    ranks : RankedBins
        Scores since the last alarm, in bins.
    capital : Capital
        Of a gambler who is given one unit in each round.
    alarm : Array of bool, shape ()
        Whether the alarm went off at the last score.
    alarms : Array, shape ()
        How often it has.
    """

    ranks: RankedBins
    capital: Capital
    alarm: Bool[Array, "*B"]  # ()
    alarms: Int[Array, "*B"]  # ()

    @property
    def log_statistic(self) -> Float[Array, "*B"]:
        """Logarithm of the statistic of Shiryaev and Roberts, which sets off the alarm."""
        return self.capital.log_capital


class Watched(NamedTuple):
    """
    What :func:`watch` returns.

    Attributes
    ----------
    log_statistic : Array, shape (..., T)
        Logarithm of the statistic after each round.
    alarm : Array of bool, shape (..., T)
        Whether the alarm went off.
    state : Watch
        To carry on from.
    """

    log_statistic: Float[Array, "*B T"]  # (..., T)
    alarm: Bool[Array, "*B T"]  # (..., T)
    state: Watch


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
    batch, rounds = values.shape[:-1], values.shape[-1]
    if state is None:
        check_not_column("scores", values.shape, "watch")
        begin = alarm.init(values.dtype)
    else:
        _check_watch(alarm, state, batch)
        begin, values = state, values.astype(np.dtype(state.ranks.coin.dtype))
    check_time_index("scores", scores)
    begin = begin._replace(ranks=room_to_count(begin.ranks, rounds))
    (statistic, raised), end = fields_by_round(alarm, ("log_statistic", "alarm"), begin, values, fresh=state is None)
    return Watched(statistic, raised, end)


def _check_watch(alarm: ChangeAlarm, state: Any, batch: tuple[int, ...] = ()) -> None:
    if not isinstance(state, Watch):
        raise ValueError(f"state is a {type(state).__name__}: ChangeAlarm carries on from a Watch, such as its init()")
    check_capital(alarm.martingale, state.capital, batch)


def _without_capital(state: Capital) -> Capital:
    return state._replace(log_capitals=jnp.full_like(state.log_capitals, -jnp.inf), rests=jnp.zeros_like(state.rests))


@jax.jit
def _watch_round(alarm: Any, state: Watch, score: Float[Array, ""]) -> Watch:
    ranks, own = jax.tree.map(
        lambda new, old: jnp.where(state.alarm, new, old),
        (alarm.ranks.restarted(state.ranks), _without_capital(state.capital)),
        (state.ranks, state.capital),
    )
    own = alarm.martingale.observe(alarm.martingale.funded(own), alarm.ranks.rank(ranks, score))
    raised = own.log_capital >= jnp.log(jnp.asarray(alarm.threshold, score.dtype))
    return Watch(alarm.ranks.observe(ranks, score), own, raised, state.alarms + raised.astype(state.alarms.dtype))
