"""Priors on an interval: uniform, Beta, truncated normal."""

import math
from dataclasses import dataclass
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import betainc, betaln, erf, erfc, xlog1py, xlogy
from jaxtyping import Array

from dpconformal.priors.base import OnInterval, invert_cdf, outside_is_zero, within_support
from dpconformal.pytree import register
from dpconformal.validation import (
    NARROWEST,
    WIDEST,
    Numbers,
    Scalar,
    as_floats,
    as_levels,
    check_float,
    is_traced,
    raise_at,
)


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
            value = check_float(f"Beta.{name}", getattr(self, name), 0.0, 1e5, open_low=True, hint=hint)
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
        return _beta_quantile(self, as_levels(p, name="p"))

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
def _beta_quantile(prior: Beta, p: Array) -> Array:
    a, b, low, high = prior._parameters(p)

    def solve(p: Array) -> Array:
        unit = jnp.zeros_like(p), jnp.ones_like(p)
        z = invert_cdf(lambda z: betainc(a, b, z), lambda z: prior._unit_density(z, a, b), p, *unit)
        return low + z * (high - low)

    return within_support(p, low, high, solve)


_FAR = 10  # scales from loc to the support; further out the mass there underflows in float32


@register()
@dataclass(frozen=True)
class TruncatedNormal(OnInterval):
    """
    Normal(loc, scale²) distribution, conditioned on [low, high].

    Parameters
    ----------
    loc, scale : float
        Of the normal distribution before truncation; ``loc`` may lie outside the support.
    low, high : float
        Ends of the support.

    Examples
    --------
    >>> round(float(TruncatedNormal(0.5, 0.1).quantile(0.5)), 6)
    0.5
    """

    loc: Scalar
    scale: Scalar
    low: Scalar = 0.0
    high: Scalar = 1.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "loc", check_float("TruncatedNormal.loc", self.loc))
        scale = check_float("TruncatedNormal.scale", self.scale, 0.0, open_low=True)
        scale = check_float("TruncatedNormal.scale", scale, NARROWEST, WIDEST, hint="rescale the scores")
        object.__setattr__(self, "scale", scale)
        super().__post_init__()
        if is_traced(self.loc, self.scale, self.low, self.high):
            return
        loc, scale, low, high = (np.asarray(v, float) for v in (self.loc, self.scale, self.low, self.high))
        distance = np.maximum(np.maximum(low - loc, loc - high), 0) / scale
        why = "lies more than 10 scales outside the support; move it closer or raise scale"
        raise_at("TruncatedNormal.loc", np.broadcast_to(loc, distance.shape), distance > _FAR, why)

    def _parameters(self, like: Array) -> tuple[Array, ...]:
        loc, scale, low, high = (jnp.asarray(v, like.dtype) for v in (self.loc, self.scale, self.low, self.high))
        near = jnp.maximum(jnp.maximum(low - loc, loc - high), 0) <= _FAR * scale
        return loc, scale, *self._ends(like, (scale > 0) & near)

    def cdf(self, x: Numbers) -> Array:
        """P0(X ≤ x)."""
        x = as_floats(x)
        loc, scale, low, high = self._parameters(x)
        inside = jnp.clip(x, low, high)
        share = _mass(loc, scale, low, inside) / _mass(loc, scale, low, high)
        # The two masses may come from differently compiled code: keep the ends exact.
        exact = jnp.where(x >= high, 1, jnp.where(x <= low, 0, jnp.minimum(share, 1)))
        return jnp.where(jnp.isnan(share), jnp.nan, exact)

    def quantile(self, p: Numbers) -> Array:
        """Smallest x with cdf(x) ≥ p."""
        return _normal_quantile(self, as_levels(p, name="p"))

    def density(self, x: Numbers) -> Array:
        """Density at x."""
        x = as_floats(x)
        loc, scale, low, high = self._parameters(x)
        bell = jnp.exp(-0.5 * ((x - loc) / scale) ** 2) / (scale * math.sqrt(2 * math.pi))
        return outside_is_zero(x, low, high, bell / _mass(loc, scale, low, high))


def _mass(loc: Array, scale: Array, start: Array, end: Array) -> Array:
    """Mass of Normal(loc, scale²) on [start, end], without cancellation in either tail."""
    u, v = ((end_point - loc) / (scale * math.sqrt(2)) for end_point in (start, end))
    # Mirror an interval that lies to the left of loc: erfc keeps its digits to the right only.
    u, v = jnp.where(v < 0, -v, u), jnp.where(v < 0, -u, v)
    return 0.5 * jnp.where(u > 0.5, erfc(u) - erfc(v), erf(v) - erf(u))


@jax.jit
def _normal_quantile(prior: TruncatedNormal, p: Array) -> Array:
    _, _, low, high = prior._parameters(p)
    return within_support(p, low, high, lambda p: invert_cdf(prior.cdf, prior.density, p, low, high))
