"""A beta prior, for scores that lean to one side."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
from jax.scipy.special import betainc, betaln, xlog1py, xlogy
from jaxtyping import Array

from dpconformal.priors.inverse import OnInterval, invert_cdf, outside_is_zero, within_support
from dpconformal.pytree import register
from dpconformal.validation import Numbers, Scalar, as_floats, as_levels, number


@register()
@dataclass(frozen=True)
class Beta(OnInterval):
    """
    Beta(a, b) distribution, stretched to [low, high].

    With a or b above 1 the density falls to zero at an end of the support, and the local strong
    convexity that the regret bound divides by falls with it: mix in a little ``Uniform`` if the
    scores may go there.

    Parameters
    ----------
    a, b : float
        Shapes, above 0.
    low, high : float
        Ends of the support.

    Examples
    --------
    >>> round(float(Beta(2, 1).quantile(0.25)), 6)
    0.5
    """

    a: Scalar
    b: Scalar
    low: Scalar = 0.0
    high: Scalar = 1.0

    def __post_init__(self) -> None:
        hint = "so narrow a prior is told better by TruncatedNormal"
        for name in ("a", "b"):  # beyond that the incomplete beta function loses its digits, and then all of them
            value = number(f"Beta.{name}", getattr(self, name), 0.0, 1e5, open_low=True, hint=hint)
            object.__setattr__(self, name, value)
        super().__post_init__()

    def _parameters(self, like: Array) -> tuple[Array, ...]:
        a, b = jnp.asarray(self.a, like.dtype), jnp.asarray(self.b, like.dtype)
        return a, b, *self._ends(like, (a > 0) & (b > 0))

    def cdf(self, x: Numbers) -> Array:
        """P0(X ≤ x)."""
        x = as_floats(x)
        a, b, low, high = self._parameters(x)
        z = jnp.clip((x - low) / (high - low), 0, 1)
        return jnp.where(jnp.isnan(z), jnp.nan, betainc(a, b, z))

    def quantile(self, p: Numbers) -> Array:
        """Smallest x with cdf(x) ≥ p."""
        return _quantile(self, as_levels(p, name="p"))

    def density(self, x: Numbers) -> Array:
        """Density at x."""
        x = as_floats(x)
        a, b, low, high = self._parameters(x)
        z = jnp.clip((x - low) / (high - low), 0, 1)
        return outside_is_zero(x, low, high, self._unit_density(z, a, b) / (high - low))

    @staticmethod
    def _unit_density(z: Array, a: Array, b: Array) -> Array:
        return jnp.exp(xlogy(a - 1, z) + xlog1py(b - 1, -z) - betaln(a, b))


@jax.jit
def _quantile(prior: Beta, p: Array) -> Array:
    a, b, low, high = prior._parameters(p)

    def solve(p: Array) -> Array:
        unit = jnp.zeros_like(p), jnp.ones_like(p)
        z = invert_cdf(lambda z: betainc(a, b, z), lambda z: prior._unit_density(z, a, b), p, *unit)
        return low + z * (high - low)

    return within_support(p, low, high, solve)
