"""The uniform prior: minimax optimal for regret, so a good default."""

from dataclasses import dataclass
from typing import ClassVar

import jax.numpy as jnp
from jaxtyping import Array

from dpconformal.priors.inverse import OnInterval, outside_is_zero, within_support
from dpconformal.pytree import register
from dpconformal.validation import Numbers, Scalar, as_floats, as_levels


@register()
@dataclass(frozen=True)
class Uniform(OnInterval):
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
