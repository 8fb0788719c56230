"""The test of exchangeability: ranks of the scores at their arrival, and a martingale that bets on them."""

from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from dpconformal.engine.scan import drive
from dpconformal.martingales.capital import Capital, Composite, Martingale, check_capital
from dpconformal.pytree import register
from dpconformal.rounds import Rounds
from dpconformal.validation import (
    Numbers,
    Scalar,
    as_levels,
    as_numbers,
    check_int,
    check_not_column,
    check_scalar,
    check_time_index,
    is_traced,
    raise_at,
)


def smoothed_ranks(scores: Numbers, seed: Any = 0) -> np.ndarray:
    """
    Rank each score among those before it, smoothed to a number in [0, 1).

    With n scores before, k of them smaller and e of them equal, this is (k + U(e + 1))/(n + 1), U being uniform. If the
    scores are exchangeable, of whatever distribution, these numbers are independent and exactly uniform. So their
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
    """
    Count how many of the scores before are smaller, and how many are equal.

    Returns: Smaller scores and equal ones. The work grows with T log T.
    """
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
    """
    Count, for each place in sorted order, the smaller places that arrived earlier.

    Bit by bit from the highest: places that share their higher bits stand together in order of arrival, and those with
    a 0 are smaller than those with a 1. Each bit costs a cumulative sum.
    """
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


class Path(NamedTuple):
    """
    What :func:`run` returns.

    Attributes
    ----------
    log_capital : Array, shape (..., T)
        Logarithm of the capital after each round.
    state : Capital
        To carry on from.
    """

    log_capital: Float[Array, "*B T"]  # (..., T)
    state: Capital


def run(martingale: Martingale, p: Numbers, state: Capital | None = None) -> Path:
    """
    Follow the capital of a martingale.

    Parameters
    ----------
    martingale : Martingale
        The gambler.
    p : array_like, shape (..., T)
        Numbers in [0, 1], in time order: :func:`dpconformal.diagnostics.smoothed_ranks`, for instance.
    state : Capital, optional
        The ``state`` of an earlier run, with the same leading axes; a capital of 1 by default.

    Returns
    -------
    Path
        The capital round by round, in logarithms: a million rounds neither overflow nor underflow.

    Raises
    ------
    ValueError
        For NaN and numbers outside [0, 1].

    Examples
    --------
    >>> import numpy as np
    >>> from dpconformal.martingales import SimpleJumper
    >>> p = np.random.default_rng(0).random(1000) ** 0.5
    >>> path = run(SimpleJumper(), p)
    >>> path.log_capital.shape, bool(path.log_capital[-1] > 20)
    ((1000,), True)
    """
    numbers = as_levels(p, None, "p")
    if not numbers.ndim:
        raise ValueError("p has shape (): pass a sequence, shape (T,) or (..., T)")
    batch = numbers.shape[:-1]
    if state is None:
        check_not_column("p", numbers.shape, "run")
        begin = martingale.init(dtype=numbers.dtype)
    else:
        check_capital(martingale, state, batch)
        dtype = np.result_type(numbers.dtype, state.shares.dtype)
        numbers, begin = jax.tree.map(lambda leaf: jnp.asarray(leaf).astype(dtype), (numbers, state))
    check_time_index("p", p)
    (log_capital,), end = fields_by_round(martingale, ("log_capital",), begin, numbers, fresh=state is None)
    return Path(log_capital, end)


@register(static=("fields",))
@dataclass(frozen=True)
class _StateReader:
    """A learner for the generic scan: it answers each round with some fields of its state."""

    owner: Any
    fields: tuple[str, ...]

    def init(self) -> Any:
        """Return the owner's fresh state."""
        return self.owner.init()

    def quantile(self, state: Any, levels: Any) -> Any:
        """Read the fields off a state."""
        del levels
        return tuple(getattr(state, name) for name in self.fields)

    def observe(self, state: Any, score: Any) -> Any:
        """Return the owner's state after one more round."""
        return self.owner.observe(state, score)


def fields_by_round(
    owner: Any, fields: tuple[str, ...], state: Any, values: Float[Array, "*B T"], fresh: bool
) -> tuple[tuple[Array, ...], Any]:
    """Scan a sequence, or a batch of them; return some fields of the state after each round, and the final state."""
    learner = _StateReader(owner, fields)
    before, end = drive(_answer, learner, state, Rounds(values, np.zeros(0, values.dtype)), fresh=fresh)
    if not values.shape[-1]:
        return before, end
    xp, last = jnp if is_traced(before) else np, _answer(learner, end, None, None)
    # The generic scan reads a state before each round.
    rows = (xp.concatenate([row[..., 1:], own[..., None]], axis=-1) for row, own in zip(before, last, strict=True))
    return tuple(jnp.asarray(row) for row in rows), end


@jax.jit
def _answer(learner: Any, state: Any, score: Any, levels: Any) -> tuple[Array, ...]:
    del score
    return learner.quantile(state, levels)


class Exchangeability(NamedTuple):
    """
    What :func:`exchangeability` found.

    Attributes
    ----------
    ranks : ndarray, shape (..., T)
        Smoothed ranks, independent and uniform if the scores are exchangeable.
    log_capital : ndarray, shape (..., T)
        Logarithm of the martingale's capital after each round.
    log_maximum : ndarray, shape (..., T)
        Logarithm of the largest capital so far.
    alarm : int or ndarray of int, shape (...)
        The round, counted from 1, in which the capital first reached the threshold; 0 if it never did.
    threshold : float
        The capital that makes an alarm.
    """

    ranks: np.ndarray  # (..., T)
    log_capital: np.ndarray  # (..., T)
    log_maximum: np.ndarray  # (..., T)
    alarm: Any  # (...)
    threshold: float

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
        Scores in time order.
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

    Raises
    ------
    ValueError
        For NaN among the scores.

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
