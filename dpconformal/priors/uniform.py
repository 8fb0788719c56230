"""The uniform prior: minimax optimal for regret, so a good default."""

from dataclasses import dataclass
from typing import ClassVar

import jax.numpy as jnp
from jaxtyping import Array, Float

from dpconformal.checks import Numbers, Scalar, number, ordered
from dpconformal.inputs import as_floats, as_levels
from dpconformal.priors.inverse import outside_is_zero, within_support
from dpconformal.pytree import register


@register()
@dataclass(frozen=True)
class Uniform:
    """
    Uniform distribution on [low, high].

    Its downstream regulariser is a quadratic, and its regret is O((high - low)√T) whatever the data.

    Parameters
    ----------
    low, high : float
        Ends of the support.

    Examples
    --------
    >>> float(Uniform(0, 4).quantile(0.25))
    1.0
    """

    low: Scalar = 0.0
    high: Scalar = 1.0
    closed_form: ClassVar[bool] = True

    def __post_init__(self) -> None:
        object.__setattr__(self, "low", number("Uniform.low", self.low))
        object.__setattr__(self, "high", number("Uniform.high", self.high))
        ordered("Uniform", self.low, self.high)

    @property
    def support(self) -> tuple[Scalar, Scalar]:
        """Ends of the interval."""
        return self.low, self.high

    def _ends(self, like: Array) -> tuple[Float[Array, ""], Float[Array, ""]]:
        low, high = jnp.asarray(self.low, like.dtype), jnp.asarray(self.high, like.dtype)
        valid = high > low  # only traced ends get here unchecked
        return jnp.where(valid, low, jnp.nan), jnp.where(valid, high, jnp.nan)

    def cdf(self, x: Numbers) -> Array:
        """P0(X ≤ x)."""
        x = as_floats(x)
        low, high = self._ends(x)
        return jnp.clip((x - low) / (high - low), 0, 1)

    def quantile(self, p: Numbers) -> Array:
        """Smallest x with cdf(x) ≥ p."""
        p = as_levels(p, name="p")
        low, high = self._ends(p)
        return within_support(p, low, high, lambda p: low + p * (high - low))

    def density(self, x: Numbers) -> Array:
        """Density at x."""
        x = as_floats(x)
        low, high = self._ends(x)
        return outside_is_zero(x, low, high, 1 / (high - low))
