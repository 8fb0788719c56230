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

from dpconformal.checks import NARROWEST, WIDEST, Numbers, Scalar, number
from dpconformal.inputs import as_floats, as_levels
from dpconformal.priors.inverse import outside_is_zero, within_support
from dpconformal.pytree import register


@register()
@dataclass(frozen=True)
class HalfNormal:
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

    def __post_init__(self) -> None:
        object.__setattr__(self, "scale", _scale("HalfNormal", self.scale))

    @property
    def support(self) -> tuple[Scalar, Scalar]:
        """Ends of the half-line."""
        return _ENDS

    def cdf(self, x: Numbers) -> Array:
        """P0(X ≤ x)."""
        z = _standard(as_floats(x), self.scale)
        return erf(z / math.sqrt(2))

    def quantile(self, p: Numbers) -> Array:
        """Smallest x with cdf(x) ≥ p."""
        return _quantiles(p, self.scale, lambda p: math.sqrt(2) * erfinv(p))

    def density(self, x: Numbers) -> Array:
        """Density at x."""
        return _density(x, self.scale, lambda z: math.sqrt(2 / math.pi) * jnp.exp(-0.5 * z**2))


@register()
@dataclass(frozen=True)
class Exponential:
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

    def __post_init__(self) -> None:
        object.__setattr__(self, "scale", _scale("Exponential", self.scale))

    @property
    def support(self) -> tuple[Scalar, Scalar]:
        """Ends of the half-line."""
        return _ENDS

    def cdf(self, x: Numbers) -> Array:
        """P0(X ≤ x)."""
        return -jnp.expm1(-_standard(as_floats(x), self.scale))

    def quantile(self, p: Numbers) -> Array:
        """Smallest x with cdf(x) ≥ p."""
        return _quantiles(p, self.scale, lambda p: -jnp.log1p(-p))

    def density(self, x: Numbers) -> Array:
        """Density at x."""
        return _density(x, self.scale, lambda z: jnp.exp(-z))


@register()
@dataclass(frozen=True)
class LogNormal:
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
        object.__setattr__(self, "loc", number("LogNormal.loc", self.loc))
        object.__setattr__(self, "scale", _scale("LogNormal", self.scale))

    @property
    def support(self) -> tuple[Scalar, Scalar]:
        """Ends of the half-line."""
        return _ENDS

    def cdf(self, x: Numbers) -> Array:
        """P0(X ≤ x)."""
        x = as_floats(x)
        value = ndtr(self._standard(jnp.maximum(x, 0)))
        return jnp.where(x > 0, value, jnp.where(jnp.isnan(x), jnp.nan, 0 * value))

    def quantile(self, p: Numbers) -> Array:
        """Smallest x with cdf(x) ≥ p."""
        p = as_levels(p, name="p")
        loc, scale = jnp.asarray(self.loc, p.dtype), _sensible(self.scale, p)
        return _within(p, scale, lambda p: jnp.exp(loc + scale * ndtri(p)))

    def density(self, x: Numbers) -> Array:
        """Density at x."""
        x = as_floats(x)
        positive = jnp.where(x > 0, x, 1)
        bell = jnp.exp(-0.5 * self._standard(positive) ** 2) / math.sqrt(2 * math.pi)
        value = bell / (positive * _sensible(self.scale, x))
        return jnp.where(jnp.isposinf(x), 0, jnp.where(x > 0, value, jnp.where(jnp.isnan(x), jnp.nan, 0 * value)))

    def _standard(self, x: Array) -> Array:
        return (jnp.log(x) - jnp.asarray(self.loc, x.dtype)) / _sensible(self.scale, x)


@register()
@dataclass(frozen=True)
class HalfCauchy:
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

    def __post_init__(self) -> None:
        object.__setattr__(self, "scale", _scale("HalfCauchy", self.scale))

    @property
    def support(self) -> tuple[Scalar, Scalar]:
        """Ends of the half-line."""
        return _ENDS

    def cdf(self, x: Numbers) -> Array:
        """P0(X ≤ x)."""
        return 2 / math.pi * jnp.arctan(_standard(as_floats(x), self.scale))

    def quantile(self, p: Numbers) -> Array:
        """Smallest x with cdf(x) ≥ p."""
        # From the nearer end: the tangent of an angle close to a right one has lost its digits.
        return _quantiles(
            p,
            self.scale,
            lambda p: jnp.where(p <= 0.5, jnp.tan(math.pi / 2 * p), 1 / jnp.tan(math.pi / 2 * (1 - p))),
        )

    def density(self, x: Numbers) -> Array:
        """Density at x."""
        return _density(x, self.scale, lambda z: 2 / (math.pi * (1 + z**2)))


_ENDS = (0.0, math.inf)


def _scale(owner: str, value: Scalar) -> Scalar:
    if owner == "LogNormal":  # of a logarithm
        return number(f"{owner}.scale", value, 0.0, open_low=True)
    scale = number(f"{owner}.scale", value, 0.0, open_low=True)
    return number(f"{owner}.scale", scale, NARROWEST, WIDEST, hint="rescale the scores")


def _sensible(scale: Scalar, like: Array) -> Array:
    scale = jnp.asarray(scale, like.dtype)
    return jnp.where(scale > 0, scale, jnp.nan)  # only traced ones get here unchecked


def _standard(x: Array, scale: Scalar) -> Array:
    return jnp.maximum(x, 0) / _sensible(scale, x)


def _quantiles(p: Numbers, scale: Scalar, solve: Callable[[Array], Array]) -> Array:
    p = as_levels(p, name="p")
    scale = _sensible(scale, p)
    return _within(p, scale, lambda p: scale * solve(p))


def _within(p: Array, scale: Array, solve: Callable[[Array], Array]) -> Array:
    low = 0 * scale  # NaN for a scale that makes no sense
    return within_support(p, low, low + jnp.inf, solve)


def _density(x: Numbers, scale: Scalar, standard: Callable[[Array], Array]) -> Array:
    x = as_floats(x)
    scale = _sensible(scale, x)
    return outside_is_zero(x, 0 * scale, 0 * scale + jnp.inf, standard(jnp.maximum(x, 0) / scale) / scale)
