"""The mixture of power bets: no rate to choose, and no change of mind."""

from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from dpconformal.martingales.capital import Bets, Capital
from dpconformal.pytree import register
from dpconformal.validation import Scalar, is_traced, number, places

_SIDES = ("both", "low", "high")


@register(static=("nodes", "side"))
@dataclass(frozen=True)
class Mixture(Bets):
    """
    The simple mixture of Vovk, Nouretdinov and Gammerman: the mean of ∏ ε·p^(ε − 1) over ε in (0, 1).

    The mean is taken by the nodes and weights of Gauss and Legendre. A finite mixture is a martingale in its own
    right, so nothing is lost to the quadrature but a little power. Nothing jumps: capital stays where it was put at
    first, so that a change after a long calm is seen late.

    The bet ε·p^(ε − 1) is infinite at p = 0, a number that chance does not draw and rounding does. So the bet is level
    below ``floor``, and scaled by 1/(1 − (1 − ε)·floor^ε) such that it is fair exactly.

    Parameters
    ----------
    nodes : int
        Exponents ε.
    side : {"both", "low", "high"}
        Whether small p pay, as in the literature, or large p, which are large scores; by default half of the capital is
        on each side.
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
        object.__setattr__(self, "nodes", places("Mixture.nodes", self.nodes, 1))
        if self.nodes > 256:
            raise ValueError(f"Mixture.nodes = {self.nodes}: at most 256; 16 differ from the integral by little")
        if self.side not in _SIDES:
            raise ValueError(f"Mixture.side = {self.side!r}: pass one of {', '.join(_SIDES)}")
        ends: dict[str, Any] = {"open_low": True, "open_high": True}
        object.__setattr__(self, "floor", number("Mixture.floor", self.floor, 0.0, 1.0, **ends))

    def init(self, dtype: Any = None) -> Capital:
        """Return a capital of 1."""
        state = super().init(dtype)
        own = state.shares.dtype
        if not is_traced(self.floor) and self.floor < jnp.finfo(own).tiny:
            raise ValueError(f"Mixture.floor = {self.floor:g}: too small for {own}; at least {jnp.finfo(own).tiny:.3g}")
        return state

    def weights(self, dtype: Any) -> Float[Array, " J"]:
        """Return the weights of the quadrature."""
        weights = _legendre(self.nodes)[1]
        return jnp.asarray(np.tile(weights, 2) / 2 if self.side == "both" else weights, dtype)

    def jumps(self, dtype: Any) -> Float[Array, " J"]:
        """Return a rate of 0 for each exponent, which is a jumper of one bet."""
        return jnp.zeros_like(self.weights(dtype))

    def division(self, dtype: Any) -> Float[Array, " K"]:
        """Return all for the one bet."""
        return jnp.ones(1, dtype)

    def bets(self, p: Float[Array, ""]) -> Float[Array, "J 1"]:
        """Return what each power bet pays."""
        power = jnp.asarray(_legendre(self.nodes)[0], p.dtype)
        floor = jnp.asarray(self.floor, p.dtype)
        floor = jnp.where((floor > 0) & (floor < 1), floor, jnp.nan)  # a traced one that nobody could check
        scale = power / (1 + (power - 1) * floor**power)
        sides = {"low": [p], "high": [1 - p], "both": [p, 1 - p]}[self.side]
        return jnp.concatenate([scale * jnp.maximum(q, floor) ** (power - 1) for q in sides])[:, None]


def _legendre(nodes: int) -> tuple[np.ndarray, np.ndarray]:
    """Nodes and weights on (0, 1)."""
    place, weight = np.polynomial.legendre.leggauss(nodes)
    return (place + 1) / 2, weight / 2
