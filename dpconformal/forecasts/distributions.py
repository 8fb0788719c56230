"""Predictive distributions: a location, a scale and a shape; or some quantiles."""

import math
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
from jax.scipy.special import betainc, gammaln, ndtr, ndtri
from jaxtyping import Array, Float

from dpconformal.priors.base import invert_cdf
from dpconformal.pytree import register

SHAPES = ("cauchy", "student_t", "normal", "log_normal")


@register(static=("shape",))
@dataclass(frozen=True)
class LocationScale:
    """The distribution of location + scale · Z, or of its exponential, conditioned on [low, high]."""

    location: Float[Array, "*T"]
    scale: Float[Array, "*T"]
    df: Any  # (), degrees of freedom of Student's t
    low: Any  # ()
    high: Any  # ()
    shape: str = "cauchy"

    def cdf(self, x: Float[Array, "*#T"]) -> Float[Array, "*T"]:
        """P(X ≤ x)."""
        below, inside = self._mass()
        return jnp.clip((self._standard_cdf(self._to_line(x)) - below) / inside, 0, 1)

    def quantile(self, p: Float[Array, "*#T"]) -> Float[Array, "*T"]:
        """Smallest x of the support with P(X ≤ x) ≥ p."""
        below, inside = self._mass()
        # What is infinite is put in place at the end: on the way it would make derivatives NaN.
        inner = jnp.where((p > 0) & (p < 1), p, 0.5)
        x = self.location + self.scale * _standard_quantile(self.shape, self.df, below + inside * inner)
        x = jnp.exp(x) if self.shape == "log_normal" else x
        low, high = (jnp.asarray(end, p.dtype) for end in (self.low, self.high))
        x = jnp.where(p == 0, low, jnp.where(p == 1, high, jnp.clip(x, low, high)))
        return jnp.where(jnp.isnan(self.location) | jnp.isnan(p), jnp.nan, x)

    def density(self, x: Float[Array, "*#T"]) -> Float[Array, "*T"]:
        """Density at x; 0 outside the support."""
        there = (x >= self.low) & (x <= self.high) & ((x > 0) if self.shape == "log_normal" else True)
        inner = jnp.where(there, x, 1)
        z = (self._to_line(inner) - self.location) / self.scale
        value = _standard_density(self.shape, self.df, z) / (self.scale * self._mass()[1])
        return jnp.where(there, value / inner if self.shape == "log_normal" else value, 0)

    def _to_line(self, x: Array) -> Array:
        if self.shape != "log_normal":
            return x
        return jnp.where(x > 0, jnp.log(jnp.where(x > 0, x, 1)), -jnp.inf)

    def _standard_cdf(self, x: Array) -> Array:
        infinite = jnp.isinf(x)
        z = (jnp.where(infinite, 0, x) - self.location) / self.scale
        if self.shape in ("normal", "log_normal"):
            value = ndtr(z)
        else:  # from the nearer tail, where no digits are lost in a difference to 1
            tail = _tail(self.shape, self.df, jnp.abs(z))
            value = jnp.where(z > 0, 1 - tail, tail)
        return jnp.where(infinite, (x > 0).astype(value.dtype), value)

    def _mass(self) -> tuple[Array, Array]:
        """Return the mass below the support, and that inside."""
        ends = (jnp.asarray(end, self.scale.dtype) for end in (self.low, self.high))
        below, upto = (self._standard_cdf(self._to_line(end)) for end in ends)
        return below, upto - below


def _tail(shape: str, df: Any, z: Array) -> Array:
    """P(Z > z), for z ≥ 0."""
    if shape == "cauchy":
        return jnp.arctan2(jnp.ones_like(z), z) / math.pi
    df, finite = jnp.asarray(df, z.dtype), jnp.where(jnp.isfinite(z), z, 1)
    # Each in the half in which its argument keeps its digits.
    half, square = jnp.asarray(0.5, z.dtype), finite**2
    far = betainc(df / 2, half, df / (df + square)) / 2
    tail = jnp.where(square > df, far, half - betainc(half, df / 2, square / (df + square)) / 2)
    return jnp.where(jnp.isposinf(z), 0, jnp.where(jnp.isnan(z), jnp.nan, tail))


def _standard_quantile(shape: str, df: Any, p: Array) -> Array:
    """Smallest z with P(Z ≤ z) ≥ p, for location 0 and scale 1; infinite at 0 and 1."""
    if shape in ("normal", "log_normal"):
        return ndtri(p)
    near = jnp.minimum(p, 1 - p)
    inside = jnp.where((near > 0) & (near < 0.5), near, 0.25)
    size = 1 / jnp.tan(math.pi * inside)
    if shape == "student_t":
        # With one degree of freedom or more the tail is no heavier than Cauchy's.
        size = -invert_cdf(
            lambda z: _tail(shape, df, -z),
            lambda z: _standard_density(shape, df, z),
            inside,
            -size,
            jnp.zeros_like(size),
        )
    size = jnp.where(near == 0, jnp.inf, jnp.where(near == 0.5, 0, size))
    return jnp.where(p < 0.5, -size, size)


def _standard_density(shape: str, df: Any, z: Array) -> Array:
    if shape in ("normal", "log_normal"):
        return jnp.exp(-0.5 * z**2) / math.sqrt(2 * math.pi)
    if shape == "cauchy":
        return 1 / (math.pi * (1 + z**2))
    df = jnp.asarray(df, z.dtype)
    constant = gammaln((df + 1) / 2) - gammaln(df / 2) - 0.5 * jnp.log(math.pi * df)
    return jnp.exp(constant - (df + 1) / 2 * jnp.log1p(z**2 / df))


def scale_for_mean_error(shape: str, df: Any, dtype: Any) -> Array:
    """Return the scale for a mean absolute error of 1; for Cauchy's, which has none, the median of a normal error."""
    if shape == "cauchy":
        return jnp.asarray(0.6744897501960817 * math.sqrt(math.pi / 2), dtype)
    if shape != "student_t":
        return jnp.asarray(math.sqrt(math.pi / 2), dtype)
    df = jnp.maximum(jnp.asarray(df, dtype), 1.25)  # at 1 the mean error is infinite
    mean = 2 * jnp.sqrt(df / math.pi) * jnp.exp(gammaln((df + 1) / 2) - gammaln(df / 2)) / (df - 1)
    return 1 / mean


@register()
@dataclass(frozen=True)
class Quantiles:
    """Linear between the quantiles of some levels; exponential tails beyond them, with the density beside them."""

    levels: Float[Array, " Q"]
    values: Float[Array, "*T Q"]  # ascending

    def cdf(self, x: Float[Array, "*#T"]) -> Float[Array, "*T"]:
        """P(X ≤ x)."""
        before, low, high, left, right = self._segment(self.values, x)
        density = (high - low) / (right - left)
        inner = low + density * (x - left)
        below = low * jnp.exp(jnp.minimum(density * (x - left) / low, 0))
        above = 1 - (1 - high) * jnp.exp(-jnp.maximum(density * (x - right) / (1 - high), 0))
        return jnp.where(before == 0, below, jnp.where(before == self.levels.shape[0], above, inner))

    def quantile(self, p: Float[Array, "*#T"]) -> Float[Array, "*T"]:
        """Smallest x with P(X ≤ x) ≥ p; infinite at 0 and 1."""
        before, low, high, left, right = self._segment(self.levels, p)
        width = (right - left) / (high - low)
        inner = left + width * (p - low)
        below = left + low * width * jnp.log(jnp.minimum(p / low, 1))
        above = right - (1 - high) * width * jnp.log(jnp.minimum((1 - p) / (1 - high), 1))
        return jnp.where(before == 0, below, jnp.where(before == self.levels.shape[0], above, inner))

    def density(self, x: Float[Array, "*#T"]) -> Float[Array, "*T"]:
        """Density at x."""
        before, low, high, left, right = self._segment(self.values, x)
        density = (high - low) / (right - left)
        below = density * jnp.exp(jnp.minimum(density * (x - left) / low, 0))
        above = density * jnp.exp(-jnp.maximum(density * (x - right) / (1 - high), 0))
        return jnp.where(before == 0, below, jnp.where(before == self.levels.shape[0], above, density))

    def _segment(self, knots: Array, at: Array) -> tuple[Array, ...]:
        """Return how many knots lie before a point, and levels and values of the two that are beside it."""
        count = self.levels.shape[0]
        before = jnp.sum(jnp.broadcast_to(knots, (*at.shape, count)) <= at[..., None], axis=-1)
        right = jnp.clip(before, 1, count - 1)
        values = jnp.broadcast_to(self.values, (*at.shape, count))
        ends = (jnp.take_along_axis(values, i[..., None], axis=-1)[..., 0] for i in (right - 1, right))
        return before, self.levels[right - 1], self.levels[right], *ends
