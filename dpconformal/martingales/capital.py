"""Martingales against exchangeability: capital on bets, some of which jumps to other bets before each round."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import logsumexp
from jaxtyping import Array, Float

from dpconformal.engine.scan import drive
from dpconformal.learner import State
from dpconformal.pytree import register
from dpconformal.rounds import Rounds
from dpconformal.validation import (
    Numbers,
    Scalar,
    as_levels,
    check_float,
    check_not_batched,
    check_not_column,
    check_size,
    check_time_index,
    is_traced,
)


class Capital(NamedTuple):
    """What a gambler owns, by jumper and bet."""

    log_capitals: Float[Array, "*B J"]  # of each jumper; at first the capitals sum to 1. NaN after a bad number in jit
    # What rounding took from these logarithms, to be added in the next round: over a million rounds of float32 it
    # would come to more than the rest.
    rests: Float[Array, "*B J"]
    shares: Float[Array, "*B J K"]  # how each jumper's capital is divided among its bets

    @property
    def log_capital(self) -> Float[Array, "*B"]:
        """Logarithm of the whole capital."""
        return logsumexp(self.log_capitals, axis=-1)


@runtime_checkable
class Martingale(Protocol):
    """
    A gambler against exchangeability: :class:`SimpleJumper`, :class:`Composite`, :class:`Mixture`.

    Numbers that are independent and uniform on [0, 1] are fair to it: whatever it owns, it expects to own as much after
    the next one.
    """

    def init(self, dtype: Any = None) -> Capital:
        """Return a capital of 1."""
        ...

    def observe(self, state: Capital, p: Numbers) -> Capital:
        """Return the capital after a bet on one more number."""
        ...

    def funded(self, state: Capital) -> Capital:
        """Return the capital with one more unit, divided as at first."""
        ...


class Path(NamedTuple):
    """Result of :func:`run`."""

    log_capital: Float[Array, "*B T"]  # logarithm of the capital after each round
    state: Capital  # to carry on from


def run(martingale: Martingale, p: Numbers, state: Capital | None = None) -> Path:
    """
    Follow the capital of a martingale.

    Parameters
    ----------
    martingale : Martingale
        The gambler.
    p : array_like, shape (..., T)
        Numbers in [0, 1] in time order, such as :func:`dpconformal.diagnostics.smoothed_ranks`. Others are refused.
    state : Capital, optional
        The ``state`` of an earlier run, with the same leading axes; a capital of 1 by default.

    Returns
    -------
    Path
        The capital round by round, in logarithms: a million rounds neither overflow nor underflow.

    Examples
    --------
    >>> import numpy as np
    >>> p = np.random.default_rng(0).random(1000) ** 0.5
    >>> path = run(SimpleJumper(), p)
    >>> path.log_capital.shape, bool(path.log_capital[-1] > 20)
    ((1000,), True)
    """
    numbers = as_levels(p, None, "p")
    if not numbers.ndim:
        raise ValueError("p has shape (): pass a sequence, shape (T,) or (..., T)")
    if state is None:
        check_not_column("p", numbers.shape, "run")
        begin = martingale.init(dtype=numbers.dtype)
    else:
        check_capital(martingale, state, numbers.shape[:-1])
        dtype = np.result_type(numbers.dtype, state.shares.dtype)
        numbers, begin = jax.tree.map(lambda leaf: jnp.asarray(leaf).astype(dtype), (numbers, state))
    check_time_index("p", p)
    return Path(*drive_rounds(_log_capital, martingale, begin, numbers, fresh=state is None))


def drive_rounds(read: Any, owner: Any, state: Any, values: Float[Array, "*B T"], fresh: bool) -> tuple[Any, Any]:
    """Read something off the state after each round of a sequence, or of a batch; return it and the final state."""
    # The generic scan asks for `observe` alone where no levels are asked for.
    before, end = drive(read, owner, state, Rounds(values, np.zeros(0, values.dtype)), fresh=fresh)
    if not values.shape[-1]:
        return before, end
    xp, last = jnp if is_traced(before) else np, read(owner, end, None, None)

    def shift(row: Array, final: Array) -> Array:
        return jnp.asarray(xp.concatenate([row[..., 1:], final[..., None]], axis=-1))

    return jax.tree.map(shift, before, last), end  # the scan reads a state before each round


@jax.jit
def _log_capital(martingale: Any, state: Capital, p: Any, levels: Any) -> Array:
    del martingale, p, levels
    return state.log_capital


class Division(NamedTuple):
    """How capital is divided among jumpers, and how each of these divides its own among its bets."""

    weights: Float[Array, " J"]  # the share of each jumper in fresh capital
    jumps: Float[Array, " J"]  # the share of a jumper's capital that is divided anew before each round
    shares: Float[Array, " K"]  # the share of each bet in what is divided anew


class Bets:
    """A martingale by its bets: pure functions say how capital is divided and what bets pay; the sums are done here."""

    def init(self, dtype: Any = None) -> Capital:
        """Return a capital of 1."""
        check_not_batched(self)
        return _initial_capital(self, np.dtype(dtype or jnp.result_type(float)))

    def observe(self, state: State, p: Numbers) -> Capital:
        """Return the capital after a bet on one more number."""
        check_capital(self, state)
        number = as_levels(p, state.shares.dtype, "p")
        if number.ndim:
            raise ValueError(f"p has shape {number.shape}: observe takes one number; use run for many, or jax.vmap")
        return _place_bets(self, state, number)

    def funded(self, state: Capital) -> Capital:
        """Return the capital with one more unit, divided as at first."""
        check_capital(self, state)
        fresh = _initial_capital(self, np.dtype(state.shares.dtype))
        log_capitals = jnp.logaddexp(state.log_capitals, fresh.log_capitals)
        old, new = (jnp.exp(part.log_capitals - log_capitals)[:, None] for part in (state, fresh))
        return Capital(log_capitals, jnp.zeros_like(state.rests), old * state.shares + new * fresh.shares)

    def division(self, dtype: Any) -> Division:
        """Return how capital is divided."""
        raise NotImplementedError

    def bets(self, p: Float[Array, ""]) -> Float[Array, "#J K"]:
        """Return what each bet pays for a unit; over p in [0, 1], each pays 1 on average."""
        raise NotImplementedError


def check_capital(martingale: Any, state: Any, batch: tuple[int, ...] = ()) -> None:
    """Refuse the state of another martingale."""
    name = type(martingale).__name__
    if not isinstance(state, Capital):
        raise ValueError(f"state is a {type(state).__name__}: {name} carries on from a Capital, such as its init()")
    wanted = (*batch, *jax.eval_shape(martingale.init).shares.shape)
    found = jnp.shape(state.shares)
    if found != wanted:
        remedy = "; use run for many sequences, or jax.vmap" if not batch and found[-2:] == wanted[-2:] else ""
        raise ValueError(f"state.shares has shape {found}: this {name} has {wanted}{remedy}")


@jax.jit(static_argnames="dtype")
def _initial_capital(martingale: Any, dtype: Any) -> Capital:
    weights, _, division = martingale.division(dtype)
    shares = jnp.broadcast_to(division[None], weights.shape + division.shape)
    return Capital(jnp.log(weights), jnp.zeros_like(weights), shares)


@jax.jit
def _place_bets(martingale: Any, state: Capital, p: Float[Array, ""]) -> Capital:
    _, jumps, division = martingale.division(state.shares.dtype)
    # Capital moves before the bet, so what is bet depends on the past alone.
    held = (1 - jumps[:, None]) * state.shares + jumps[:, None] * division[None]
    paid = held * martingale.bets(p)
    growth = jnp.sum(paid, axis=-1)
    step = jnp.log(growth) + state.rests  # added as by Kahan
    log_capitals = state.log_capitals + step
    rests = jnp.where(jnp.isneginf(state.log_capitals), 0, step - (log_capitals - state.log_capitals))
    return Capital(log_capitals, rests, paid / growth[:, None])


class _HalfBets(Bets):
    """Bets that pay between ½ and 1½: on high and on low numbers, on outer and on inner ones, and on nothing."""

    spread: bool

    def _rates(self) -> Sequence[Scalar]:
        """Return the rate of each jumper."""
        raise NotImplementedError

    def division(self, dtype: Any) -> Division:
        """Return equal shares, and the rates."""
        jumps = jnp.stack([jnp.asarray(rate, dtype) for rate in self._rates()])
        jumps = jnp.where((jumps >= 0) & (jumps <= 1), jumps, jnp.nan)  # only traced ones get here unchecked
        bets = 5 if self.spread else 3
        return Division(jnp.full_like(jumps, 1 / jumps.shape[0]), jumps, jnp.full(bets, 1 / bets, dtype))

    def bets(self, p: Float[Array, ""]) -> Float[Array, "#J K"]:
        """Return 1 + ε(p − ½) for ε = 0, 1, −1, and the same for abs(2p − 1), which is uniform if p is."""
        high, outer = p - 0.5, jnp.abs(2 * p - 1) - 0.5
        return 1 + jnp.stack([0 * p, high, -high, *([outer, -outer] if self.spread else [])])[None]


@register(static=("spread",))
@dataclass(frozen=True)
class SimpleJumper(_HalfBets):
    """
    The simple jumper of Vovk: a third of the capital bets on each of 1, 1 + (p − ½) and 1 − (p − ½).

    Before each round a share of the capital is divided evenly among the bets anew, so that what pays now need not have
    paid before.

    Parameters
    ----------
    rate : float
        That share, in (0, 1]. About one over the rounds for which a bet keeps paying.
    spread : bool
        Whether to bet on abs(2p − 1) as well. The first three bets do not see a change of spread around the middle,
        which moves p outwards on both sides.

    References
    ----------
    Vovk, Petej, Nouretdinov, Ahlberg, Carlsson and Gammerman (2021), Retrain or not retrain: conformal test martingales
    for change-point detection. Vovk, Gammerman and Shafer (2022), Algorithmic learning in a random world, 2nd edition.

    Examples
    --------
    >>> jumper = SimpleJumper()
    >>> state = jumper.init()
    >>> for p in (0.9, 0.8, 0.95):
    ...     state = jumper.observe(state, p)
    >>> f"{state.log_capital:.3f}"
    '0.251'
    """

    rate: Scalar = 0.01
    spread: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "rate", check_float("SimpleJumper.rate", self.rate, 0.0, 1.0, open_low=True))
        _check_flag("SimpleJumper.spread", self.spread)

    def _rates(self) -> Sequence[Scalar]:
        return [self.rate]


@register(static=("spread",))
@dataclass(frozen=True)
class Composite(_HalfBets):
    """
    The mean of simple jumpers of several rates, which need not be chosen.

    It owns at least a J-th of what the best of its J jumpers owns. A jumper of rate 1 bets nothing, so with it the
    capital never falls below 1/J.

    Parameters
    ----------
    rates : sequence of float, shape (J,)
        The rates, each in (0, 1].
    spread : bool
        Whether to bet on abs(2p − 1) as well, see :class:`SimpleJumper`. By default it does: a shift is seen 5 to 15 %
        later, a change of spread is seen at all.

    References
    ----------
    As for :class:`SimpleJumper`. Hallberg Szabadváry (2026), Betting on moments: Legendre jumper martingales for online
    exchangeability testing, has bets on further moments.

    Examples
    --------
    >>> path = run(Composite(), [0.1, 0.9, 0.05, 0.92])
    >>> [f"{x:.2f}" for x in path.log_capital]
    ['0.00', '-0.02', '0.05', '0.10']
    """

    rates: Any = (1.0, 0.1, 0.01, 0.001)
    spread: bool = True

    def __post_init__(self) -> None:
        if not (isinstance(self.rates, (tuple, list)) or getattr(self.rates, "ndim", 0) == 1) or not len(self.rates):
            raise ValueError(f"Composite.rates = {self.rates!r}: pass one rate or more, such as (0.1, 0.01)")
        named = ((f"Composite.rates[{i}]", rate) for i, rate in enumerate(self.rates))
        rates = tuple(check_float(name, rate, 0.0, 1.0, open_low=True) for name, rate in named)
        object.__setattr__(self, "rates", rates)
        _check_flag("Composite.spread", self.spread)

    def _rates(self) -> Sequence[Scalar]:
        return self.rates


def _check_flag(name: str, value: Any) -> None:
    if not isinstance(value, bool):
        raise ValueError(f"{name} = {value!r}: pass True or False")


@register(static=("nodes", "side"))
@dataclass(frozen=True)
class Mixture(Bets):
    """
    The simple mixture of Vovk, Nouretdinov and Gammerman: the mean of ∏ ε·p^(ε − 1) over ε in (0, 1).

    The mean is taken at the nodes of Gauss and Legendre: a finite mixture is a martingale in its own right. Nothing
    jumps: capital stays where it was put at first, so that a change after a long calm is seen late. The bet ε·p^(ε − 1)
    is infinite at p = 0, a number that chance does not draw and rounding does. So the bet is constant below ``floor``,
    and scaled by 1/(1 − (1 − ε)·floor^ε) such that it is fair exactly.

    Parameters
    ----------
    nodes : int
        Exponents ε.
    side : {"both", "low", "high"}
        Whether small p pay, as in the literature, or large p, which are large scores; "both": half of the capital each.
    floor : float
        In (0, 1). Below it p is not told apart.

    References
    ----------
    Vovk, Nouretdinov and Gammerman (2003), Testing exchangeability on-line.

    Examples
    --------
    >>> mixture = Mixture()
    >>> mixture.observe(mixture.init(), 0.001).log_capital.round(2)
    Array(2.55, dtype=float...)
    """

    nodes: int = 16
    side: str = "both"
    floor: Scalar = 1e-6

    def __post_init__(self) -> None:
        object.__setattr__(self, "nodes", check_size("Mixture.nodes", self.nodes, 1))
        if self.nodes > 256:
            raise ValueError(f"Mixture.nodes = {self.nodes}: at most 256; 16 differ from the integral by little")
        if self.side not in ("both", "low", "high"):
            raise ValueError(f"Mixture.side = {self.side!r}: pass one of both, low, high")
        floor = check_float("Mixture.floor", self.floor, 0.0, 1.0, open_low=True, open_high=True)
        object.__setattr__(self, "floor", floor)

    def init(self, dtype: Any = None) -> Capital:
        """Return a capital of 1."""
        state = super().init(dtype)
        own, least = state.shares.dtype, jnp.finfo(state.shares.dtype).tiny
        if not is_traced(self.floor) and self.floor < least:
            raise ValueError(f"Mixture.floor = {self.floor:g}: too small for {own}; at least {least:.3g}")
        return state

    def division(self, dtype: Any) -> Division:
        """Return the weights of the quadrature: each exponent is a jumper of one bet, and none of them jumps."""
        nodes = _legendre(self.nodes)[1]
        weights = jnp.asarray(np.tile(nodes, 2) / 2 if self.side == "both" else nodes, dtype)
        return Division(weights, jnp.zeros_like(weights), jnp.ones(1, dtype))

    def bets(self, p: Float[Array, ""]) -> Float[Array, "J 1"]:
        """Return what each power bet pays."""
        power = jnp.asarray(_legendre(self.nodes)[0], p.dtype)
        floor = jnp.asarray(self.floor, p.dtype)
        floor = jnp.where((floor > 0) & (floor < 1), floor, jnp.nan)  # a traced one that nobody could check
        scale = power / (1 + (power - 1) * floor**power)
        sides = {"low": [p], "high": [1 - p], "both": [p, 1 - p]}[self.side]
        return jnp.concatenate([scale * jnp.maximum(q, floor) ** (power - 1) for q in sides])[:, None]


def _legendre(nodes: int) -> tuple[np.ndarray, np.ndarray]:
    place, weight = np.polynomial.legendre.leggauss(nodes)
    return (place + 1) / 2, weight / 2
