"""
Priors on [0, ∞), for scores without an upper end: half-normal, exponential, log-normal, half-Cauchy.

From the lightest tail to the heaviest. The prior is all that a belief knows beyond the largest score seen, so its tail
decides what the highest levels are told there: level 1 - λ and above, λ being the prior's weight.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import jax.numpy as jnp
from jax.scipy.special import erf, erfinv, ndtr, ndtri
from jaxtyping import Array

from dpconformal.priors.base import outside_is_zero, within_support
from dpconformal.pytree import register
from dpconformal.validation import NARROWEST, WIDEST, Numbers, Scalar, as_floats, as_levels, check_float


class _OnHalfLine:
    """What priors on [0, ∞) share: a scale, and the ends."""

    scale: Scalar

    def __post_init__(self) -> None:
        object.__setattr__(self, "scale", check_float(f"{type(self).__name__}.scale", self.scale, 0.0, open_low=True))

    @property
    def support(self) -> tuple[Scalar, Scalar]:
        """Ends of the half-line."""
        return 0.0, math.inf

    def _scale(self, like: Array) -> Array:
        scale = jnp.asarray(self.scale, like.dtype)
        return jnp.where(scale > 0, scale, jnp.nan)  # only traced ones get here unchecked


class _Scaled(_OnHalfLine):
    """A distribution that is known where its scale is 1."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check_float(f"{type(self).__name__}.scale", self.scale, NARROWEST, WIDEST, hint="rescale the scores")

    def cdf(self, x: Numbers) -> Array:
        """P0(X ≤ x)."""
        x = as_floats(x)
        return self._standard_cdf(jnp.maximum(x, 0) / self._scale(x))

    def quantile(self, p: Numbers) -> Array:
        """Smallest x with cdf(x) ≥ p."""
        p = as_levels(p, name="p")
        scale = self._scale(p)
        return _within(p, scale, lambda p: scale * self._standard_quantile(p))

    def density(self, x: Numbers) -> Array:
        """Density at x."""
        x = as_floats(x)
        scale = self._scale(x)
        density = self._standard_density(jnp.maximum(x, 0) / scale) / scale
        return outside_is_zero(x, 0 * scale, 0 * scale + jnp.inf, density)

    def _standard_cdf(self, z: Array) -> Array:
        raise NotImplementedError

    def _standard_quantile(self, p: Array) -> Array:
        raise NotImplementedError

    def _standard_density(self, z: Array) -> Array:
        raise NotImplementedError


def _within(p: Array, scale: Array, solve: Callable[[Array], Array]) -> Array:
    low = 0 * scale  # NaN for a scale that makes no sense
    return within_support(p, low, low + jnp.inf, solve)


@register()
@dataclass(frozen=True)
class HalfNormal(_Scaled):
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
    closed_form: ClassVar[bool] = True

    def _standard_cdf(self, z: Array) -> Array:
        return erf(z / math.sqrt(2))

    def _standard_quantile(self, p: Array) -> Array:
        return math.sqrt(2) * erfinv(p)

    def _standard_density(self, z: Array) -> Array:
        return math.sqrt(2 / math.pi) * jnp.exp(-0.5 * z**2)


@register()
@dataclass(frozen=True)
class Exponential(_Scaled):
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
    closed_form: ClassVar[bool] = True

    def _standard_cdf(self, z: Array) -> Array:
        return -jnp.expm1(-z)

    def _standard_quantile(self, p: Array) -> Array:
        return -jnp.log1p(-p)

    def _standard_density(self, z: Array) -> Array:
        return jnp.exp(-z)


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
    closed_form: ClassVar[bool] = True

    def __post_init__(self) -> None:
        object.__setattr__(self, "loc", check_float("LogNormal.loc", self.loc))
        super().__post_init__()

    def cdf(self, x: Numbers) -> Array:
        """P0(X ≤ x)."""
        x = as_floats(x)
        value = ndtr(self._standard(jnp.maximum(x, 0)))
        return jnp.where(x > 0, value, jnp.where(jnp.isnan(x), jnp.nan, 0 * value))

    def quantile(self, p: Numbers) -> Array:
        """Smallest x with cdf(x) ≥ p."""
        p = as_levels(p, name="p")
        loc, scale = jnp.asarray(self.loc, p.dtype), self._scale(p)
        return _within(p, scale, lambda p: jnp.exp(loc + scale * ndtri(p)))

    def density(self, x: Numbers) -> Array:
        """Density at x."""
        x = as_floats(x)
        positive = jnp.where(x > 0, x, 1)
        bell = jnp.exp(-0.5 * self._standard(positive) ** 2) / math.sqrt(2 * math.pi)
        value = bell / (positive * self._scale(x))
        return jnp.where(jnp.isposinf(x), 0, jnp.where(x > 0, value, jnp.where(jnp.isnan(x), jnp.nan, 0 * value)))

    def _standard(self, x: Array) -> Array:
        return (jnp.log(x) - jnp.asarray(self.loc, x.dtype)) / self._scale(x)


@register()
@dataclass(frozen=True)
class HalfCauchy(_Scaled):
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
    closed_form: ClassVar[bool] = True

    def _standard_cdf(self, z: Array) -> Array:
        return 2 / math.pi * jnp.arctan(z)

    def _standard_quantile(self, p: Array) -> Array:
        # From the nearer end: the tangent of an angle close to a right one has lost its digits.
        return jnp.where(p <= 0.5, jnp.tan(math.pi / 2 * p), 1 / jnp.tan(math.pi / 2 * (1 - p)))

    def _standard_density(self, z: Array) -> Array:
        return 2 / (math.pi * (1 + z**2))
