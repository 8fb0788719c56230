"""Jumpers: bets on one half of the numbers against the other, that can be changed in each round."""

from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Float

from dpconformal.martingales.capital import Bets
from dpconformal.pytree import register
from dpconformal.validation import Scalar, number


class _HalfBets(Bets):
    """Bets that pay between ½ and 1½: on high and on low numbers, on outer and on inner ones, and on nothing."""

    spread: bool

    def weights(self, dtype: Any) -> Float[Array, " J"]:
        """Return equal shares."""
        jumps = self.jumps(dtype)
        return jnp.full_like(jumps, 1 / jumps.shape[0])

    def division(self, dtype: Any) -> Float[Array, " K"]:
        """Return equal shares."""
        count = 5 if self.spread else 3
        return jnp.full(count, 1 / count, dtype)

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
        Whether to bet on abs(2p − 1) as well: a change of spread that leaves the middle where it was moves p outwards
        on both sides, and the first three bets do not see it.

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
        object.__setattr__(self, "rate", number("SimpleJumper.rate", self.rate, 0.0, 1.0, open_low=True))
        _check_flag("SimpleJumper.spread", self.spread)

    def jumps(self, dtype: Any) -> Float[Array, " J"]:
        """Return the one rate."""
        return _rates([self.rate], dtype)


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
    >>> from dpconformal.martingales import run
    >>> path = run(Composite(), [0.1, 0.9, 0.05, 0.92])
    >>> [f"{x:.2f}" for x in path.log_capital]
    ['0.00', '-0.02', '0.05', '0.10']
    """

    rates: Any = (1.0, 0.1, 0.01, 0.001)
    spread: bool = True

    def __post_init__(self) -> None:
        named = ((f"Composite.rates[{i}]", rate) for i, rate in enumerate(_several(self.rates)))
        object.__setattr__(self, "rates", tuple(number(name, rate, 0.0, 1.0, open_low=True) for name, rate in named))
        _check_flag("Composite.spread", self.spread)

    def jumps(self, dtype: Any) -> Float[Array, " J"]:
        """Return the rates."""
        return _rates(self.rates, dtype)


def _rates(rates: Any, dtype: Any) -> Float[Array, " J"]:
    """Return the rates as an array; NaN for traced ones out of range, which nobody could check."""
    found = jnp.stack([jnp.asarray(rate, dtype) for rate in rates])
    return jnp.where((found >= 0) & (found <= 1), found, jnp.nan)


def _several(rates: Any) -> list[Any]:
    if not (isinstance(rates, (tuple, list)) or getattr(rates, "ndim", 0) == 1) or not len(rates):
        raise ValueError(f"Composite.rates = {rates!r}: pass one rate or more, such as (0.1, 0.01)")
    return list(rates)


def _check_flag(name: str, value: Any) -> None:
    if not isinstance(value, bool):
        raise ValueError(f"{name} = {value!r}: pass True or False")
