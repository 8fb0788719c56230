"""
Families of priors: uniform, Beta and truncated normal on an interval, and four on [0, ∞).

Those on [0, ∞) are for scores without an upper end. From the lightest tail to the heaviest they are half-normal,
exponential, log-normal, half-Cauchy. The prior is all that a belief knows beyond the largest score seen. So its tail
decides the thresholds of the highest levels there: level 1 - λ and above, λ being the prior's weight.
"""

import math
from dataclasses import dataclass
from typing import ClassVar

import jax.numpy as jnp
import numpy as np
from jax.scipy.special import betainc, betaln, erf, erfc, erfinv, ndtr, ndtri, xlog1py, xlogy
from jaxtyping import Array

from dpconformal.priors.base import OnInterval, PriorBase, check_scale, invert_cdf
from dpconformal.pytree import register
from dpconformal.validation import Scalar, check_float, is_traced, raise_at


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

    def _cdf(self, x: Array, low: Array, high: Array) -> Array:
        return jnp.clip((x - low) / (high - low), 0, 1)

    def _quantile(self, p: Array, low: Array, high: Array) -> Array:
        return low + p * (high - low)

    def _density(self, x: Array, low: Array, high: Array) -> Array:
        return 1 / (high - low)


@register()
@dataclass(frozen=True)
class Beta(OnInterval):
    """
    Beta(a, b) distribution, stretched to [low, high].

    With a or b above 1 the density falls to zero at an end of the support. The local strong convexity that the regret
    bound divides by falls with it: mix in a little ``Uniform`` if the scores may go there.

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
        return *self._ends(like, (a > 0) & (b > 0)), a, b

    def _cdf(self, x: Array, low: Array, high: Array, a: Array, b: Array) -> Array:
        z = jnp.clip((x - low) / (high - low), 0, 1)
        return jnp.where(jnp.isnan(z), jnp.nan, betainc(a, b, z))

    def _quantile(self, p: Array, low: Array, high: Array, a: Array, b: Array) -> Array:
        # On [0, 1], where numbers near 0 have more digits than they have near another end.
        unit = jnp.zeros_like(p), jnp.ones_like(p)
        z = invert_cdf(lambda z: betainc(a, b, z), lambda z: self._unit_density(z, a, b), p, *unit)
        return low + z * (high - low)

    def _density(self, x: Array, low: Array, high: Array, a: Array, b: Array) -> Array:
        z = jnp.clip((x - low) / (high - low), 0, 1)
        return self._unit_density(z, a, b) / (high - low)

    @staticmethod
    def _unit_density(z: Array, a: Array, b: Array) -> Array:
        return jnp.exp(xlogy(a - 1, z) + xlog1py(b - 1, -z) - betaln(a, b))


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
        object.__setattr__(self, "scale", check_scale("TruncatedNormal.scale", self.scale))
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
        return *self._ends(like, (scale > 0) & near), loc, scale

    def _cdf(self, x: Array, low: Array, high: Array, loc: Array, scale: Array) -> Array:
        inside = jnp.clip(x, low, high)
        share = _normal_mass(loc, scale, low, inside) / _normal_mass(loc, scale, low, high)
        # The two masses may come from differently compiled code: keep the ends exact.
        exact = jnp.where(x >= high, 1, jnp.where(x <= low, 0, jnp.minimum(share, 1)))
        return jnp.where(jnp.isnan(share), jnp.nan, exact)

    def _quantile(self, p: Array, low: Array, high: Array, loc: Array, scale: Array) -> Array:
        return invert_cdf(self.cdf, self.density, p, low, high)

    def _density(self, x: Array, low: Array, high: Array, loc: Array, scale: Array) -> Array:
        bell = jnp.exp(-0.5 * ((x - loc) / scale) ** 2) / (scale * math.sqrt(2 * math.pi))
        return bell / _normal_mass(loc, scale, low, high)


def _normal_mass(loc: Array, scale: Array, start: Array, end: Array) -> Array:
    """Mass of Normal(loc, scale²) on [start, end], without cancellation in either tail."""
    u, v = ((end_point - loc) / (scale * math.sqrt(2)) for end_point in (start, end))
    # Mirror an interval that lies to the left of loc: erfc keeps its digits to the right only.
    u, v = jnp.where(v < 0, -v, u), jnp.where(v < 0, -u, v)
    return 0.5 * jnp.where(u > 0.5, erfc(u) - erfc(v), erf(v) - erf(u))


class _OnHalfLine(PriorBase):
    """A prior on [0, ∞) with a scale."""

    scale: Scalar
    closed_form: ClassVar[bool] = True

    def __post_init__(self) -> None:
        object.__setattr__(self, "scale", check_scale(f"{type(self).__name__}.scale", self.scale))

    @property
    def support(self) -> tuple[Scalar, Scalar]:
        """Ends of the half-line."""
        return 0.0, math.inf

    def _parameters(self, like: Array) -> tuple[Array, ...]:
        scale = jnp.asarray(self.scale, like.dtype)
        scale = jnp.where(scale > 0, scale, jnp.nan)  # only traced ones get here unchecked
        return 0 * scale, 0 * scale + jnp.inf, scale


@register()
@dataclass(frozen=True)
class HalfNormal(_OnHalfLine):
    """
    Distribution of abs(X), X being normal around 0: the lightest tail of the four.

    Parameters
    ----------
    scale : float
        Standard deviation of X, above 0. The median is 0.674 scales.

    Examples
    --------
    >>> round(float(HalfNormal(2.0).quantile(0.5)), 3)
    1.349
    """

    scale: Scalar = 1.0

    def _cdf(self, x: Array, low: Array, high: Array, scale: Array) -> Array:
        return erf(jnp.maximum(x, 0) / scale / math.sqrt(2))

    def _quantile(self, p: Array, low: Array, high: Array, scale: Array) -> Array:
        return scale * (math.sqrt(2) * erfinv(p))

    def _density(self, x: Array, low: Array, high: Array, scale: Array) -> Array:
        return math.sqrt(2 / math.pi) * jnp.exp(-0.5 * (jnp.maximum(x, 0) / scale) ** 2) / scale


@register()
@dataclass(frozen=True)
class Exponential(_OnHalfLine):
    """
    Exponential distribution.

    Parameters
    ----------
    scale : float
        Its mean, above 0. The median is 0.693 scales.

    Examples
    --------
    >>> round(float(Exponential(2.0).quantile(0.5)), 3)
    1.386
    """

    scale: Scalar = 1.0

    def _cdf(self, x: Array, low: Array, high: Array, scale: Array) -> Array:
        return -jnp.expm1(-(jnp.maximum(x, 0) / scale))

    def _quantile(self, p: Array, low: Array, high: Array, scale: Array) -> Array:
        return scale * -jnp.log1p(-p)

    def _density(self, x: Array, low: Array, high: Array, scale: Array) -> Array:
        return jnp.exp(-(jnp.maximum(x, 0) / scale)) / scale


@register()
@dataclass(frozen=True)
class LogNormal(_OnHalfLine):
    """
    Distribution of exp(X), X being normal.

    Parameters
    ----------
    loc, scale : float
        Mean and standard deviation of X. The median is exp(loc).

    Examples
    --------
    >>> round(float(LogNormal(0.0, 0.5).quantile(0.5)), 3)
    1.0
    """

    loc: Scalar = 0.0
    scale: Scalar = 1.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "loc", check_float("LogNormal.loc", self.loc))
        object.__setattr__(self, "scale", check_float("LogNormal.scale", self.scale, 0.0, open_low=True))

    def _parameters(self, like: Array) -> tuple[Array, ...]:
        return *super()._parameters(like), jnp.asarray(self.loc, like.dtype)

    def _cdf(self, x: Array, low: Array, high: Array, scale: Array, loc: Array) -> Array:
        value = ndtr((jnp.log(jnp.maximum(x, 0)) - loc) / scale)
        return jnp.where(x > 0, value, jnp.where(jnp.isnan(x), jnp.nan, 0 * value))

    def _quantile(self, p: Array, low: Array, high: Array, scale: Array, loc: Array) -> Array:
        return jnp.exp(loc + scale * ndtri(p))

    def _density(self, x: Array, low: Array, high: Array, scale: Array, loc: Array) -> Array:
        positive = jnp.where(x > 0, x, 1)
        bell = jnp.exp(-0.5 * ((jnp.log(positive) - loc) / scale) ** 2) / math.sqrt(2 * math.pi)
        value = bell / (positive * scale)
        return jnp.where(x > 0, value, 0 * value)


@register()
@dataclass(frozen=True)
class HalfCauchy(_OnHalfLine):
    """
    Distribution of abs(X), X being Cauchy around 0: a tail so heavy that it has no mean.

    Parameters
    ----------
    scale : float
        The median, above 0.

    Examples
    --------
    >>> round(float(HalfCauchy(2.0).quantile(0.5)), 3)
    2.0
    """

    scale: Scalar = 1.0

    def _cdf(self, x: Array, low: Array, high: Array, scale: Array) -> Array:
        return 2 / math.pi * jnp.arctan(jnp.maximum(x, 0) / scale)

    def _quantile(self, p: Array, low: Array, high: Array, scale: Array) -> Array:
        # From the nearer end: the tangent of an angle close to a right one has lost its digits.
        return scale * jnp.where(p <= 0.5, jnp.tan(math.pi / 2 * p), 1 / jnp.tan(math.pi / 2 * (1 - p)))

    def _density(self, x: Array, low: Array, high: Array, scale: Array) -> Array:
        return 2 / (math.pi * (1 + (jnp.maximum(x, 0) / scale) ** 2)) / scale
