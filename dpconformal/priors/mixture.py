"""Priors made of parts: histograms and mixtures."""

import functools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from dpconformal.priors.base import Prior, invert_cdf, outside_is_zero, within_support
from dpconformal.pytree import register
from dpconformal.validation import (
    NARROWEST,
    TINY,
    WIDEST,
    Numbers,
    Scalar,
    as_floats,
    as_levels,
    as_numbers,
    as_scores,
    check_float,
    check_int,
    check_interval,
    is_subnormal,
    is_traced,
    raise_at,
)


@register()
@dataclass(frozen=True)
class Histogram:
    """
    Density that is constant on each bin.

    Parameters
    ----------
    edges : array_like, shape (K + 1,)
        Strictly increasing bin edges; the first and the last are the support.
    masses : array_like, shape (K,)
        Mass of each bin, above 0; normalised to sum to 1.

    Examples
    --------
    >>> prior = Histogram(edges=[0, 1, 4], masses=[1, 1])
    >>> float(prior.quantile(0.75))
    2.5
    """

    edges: Any
    masses: Any
    closed_form: ClassVar[bool] = True

    def __post_init__(self) -> None:
        edges, masses = as_numbers("Histogram.edges", self.edges), as_numbers("Histogram.masses", self.masses)
        if edges.ndim < 1 or edges.shape[-1] < 2 or masses.shape[-1:] != (edges.shape[-1] - 1,):
            raise ValueError(
                f"Histogram.masses has shape {masses.shape} and edges {edges.shape}: K masses need K + 1 edges, K ≥ 1"
            )
        if not is_traced(edges):
            edges = edges.astype(float)
            raise_at("Histogram.edges", edges, ~np.isfinite(edges), "must be finite")
            raise_at("Histogram.edges", edges, is_subnormal(edges), f"nearer to 0 than {TINY:.3g}; rescale")
            falling = np.concatenate([np.zeros_like(edges[..., :1], bool), edges[..., 1:] <= edges[..., :-1]], axis=-1)
            raise_at("Histogram.edges", edges, falling, "edges must increase strictly")
            check_interval("Histogram", edges[..., 0], edges[..., -1])
            narrow = np.diff(edges, axis=-1) < NARROWEST
            raise_at("Histogram.edges", edges[..., :-1], narrow, f"less than {NARROWEST:g} below the next; rescale")
        if not is_traced(masses):
            masses = masses.astype(float)
            why = "masses must be finite and above 0, for the density of a prior is positive; see from_scores"
            raise_at("Histogram.masses", masses, ~(np.isfinite(masses) & (masses > 0)), why)
            if masses.max(initial=0.0) > WIDEST / masses.shape[-1]:  # their sum may overflow
                masses = masses / masses.max(axis=-1, keepdims=True)
            masses = masses / masses.sum(axis=-1, keepdims=True)
            raise_at("Histogram.masses", masses, masses < TINY, "nothing beside the others; raise it")
        object.__setattr__(self, "edges", edges)
        object.__setattr__(self, "masses", masses)

    @classmethod
    def from_scores(
        cls, scores: Numbers, bins: int = 32, smoothing: Scalar = 1.0, low: Scalar = 0.0, high: Scalar = 1.0
    ) -> "Histogram":
        """
        Learn a prior from a reference sample: a smoothed histogram with equal bins.

        Parameters
        ----------
        scores : array_like, shape (n,)
            A sample of scores from elsewhere: an earlier period, a similar series.
        bins : int
            How many bins.
        smoothing : float
            Pseudo-scores spread evenly over the support, above 0, so that the density is positive
            everywhere. In scores, not per bin: 1 is the weight of one observation.
        low, high : float
            The support, which must hold the scores to come as well.

        Returns
        -------
        Histogram
            The prior; bin k has mass (count_k + smoothing/bins)/(n + smoothing).

        Examples
        --------
        >>> prior = Histogram.from_scores([0.1, 0.2, 0.3], bins=2, smoothing=1.0)
        >>> float(prior.cdf(0.5))
        0.875
        """
        bins = check_int("bins", bins, 1)
        smoothing = check_float("smoothing", smoothing, 0.0, open_low=True)
        low, high = check_float("low", low), check_float("high", high)
        check_interval("from_scores", low, high)
        sample = np.asarray(as_scores(scores, (low, high)), float)
        if sample.ndim != 1:
            raise ValueError(f"scores has shape {sample.shape}: pass one sample, shape (n,)")
        counts, edges = np.histogram(sample, bins=bins, range=(low, high))
        return cls(edges, (counts + smoothing / bins) / (sample.size + smoothing))

    @property
    def support(self) -> tuple[Scalar, Scalar]:
        """Ends of the interval."""
        return self.edges[..., 0], self.edges[..., -1]

    def _parameters(self, like: Array) -> tuple[Array, Array, Array]:
        edges, masses = jnp.asarray(self.edges, like.dtype), jnp.asarray(self.masses, like.dtype)
        valid = jnp.all(masses > 0) & jnp.all(edges[1:] > edges[:-1])  # only traced ones get here unchecked
        edges, masses = jnp.where(valid, edges, jnp.nan), jnp.where(valid, masses / jnp.sum(masses), jnp.nan)
        below = jnp.concatenate([jnp.zeros(1, like.dtype), jnp.cumsum(masses)[:-1]])
        return edges, masses, below

    def cdf(self, x: Numbers) -> Array:
        """P0(X ≤ x)."""
        x = as_floats(x)
        edges, masses, below = self._parameters(x)
        k = jnp.clip(jnp.searchsorted(edges, x, side="right") - 1, 0, masses.size - 1)
        share = jnp.clip((x - edges[k]) / (edges[k + 1] - edges[k]), 0, 1)
        # The top of a bin is the bottom of the next, so that rounding cannot make the cdf fall.
        top = jnp.where(k + 1 < masses.size, below[jnp.minimum(k + 1, masses.size - 1)], 1)
        return jnp.minimum(below[k] + share * masses[k], top)

    def quantile(self, p: Numbers) -> Array:
        """Smallest x with cdf(x) ≥ p."""
        p = as_levels(p, name="p")
        edges, masses, below = self._parameters(p)

        def solve(p: Array) -> Array:
            k = jnp.clip(jnp.searchsorted(below, p, side="left") - 1, 0, masses.size - 1)
            share = jnp.clip((p - below[k]) / masses[k], 0, 1)
            x = edges[k] + share * (edges[k + 1] - edges[k])
            return jnp.minimum(jnp.maximum(x, edges[k]), edges[k + 1])

        return within_support(p, edges[0], edges[-1], solve)

    def density(self, x: Numbers) -> Array:
        """Density at x; at an inner edge, that of the bin above."""
        x = as_floats(x)
        edges, masses, _ = self._parameters(x)
        k = jnp.clip(jnp.searchsorted(edges, x, side="right") - 1, 0, masses.size - 1)
        return outside_is_zero(x, edges[0], edges[-1], masses[k] / (edges[k + 1] - edges[k]))


@register()
@dataclass(frozen=True)
class Mixture:
    """
    Weighted mixture of priors, whose supports together must cover an interval.

    Parameters
    ----------
    components : sequence of Prior
        The priors mixed.
    weights : array_like, shape (len(components),)
        Above 0; normalised to sum to 1.

    Examples
    --------
    >>> from dpconformal.priors import Beta, Uniform
    >>> safe = Mixture([Beta(2, 8), Uniform()], weights=[0.9, 0.1])
    >>> round(float(safe.density(1.0)), 6)
    0.1
    """

    components: Sequence[Prior]
    weights: Any

    def __post_init__(self) -> None:
        if isinstance(self.components, Prior):
            raise ValueError(f"Mixture.components = {self.components!r}: pass a list of priors")
        if not isinstance(self.components, Iterable) or isinstance(self.components, np.ndarray):
            raise ValueError(f"Mixture.components = {self.components!r}: pass a list of priors")
        components = tuple(self.components)
        for i, component in enumerate(components):
            if not isinstance(component, Prior) or isinstance(component, type):
                raise ValueError(f"Mixture.components[{i}] = {component!r}: not a prior; see dpconformal.priors")
        weights = as_numbers("Mixture.weights", self.weights)
        if not components or weights.shape[-1:] != (len(components),):
            raise ValueError(
                f"Mixture.weights has shape {weights.shape}: one weight for each of the {len(components)} components"
            )
        if not is_traced(weights):
            weights = weights.astype(float)
            raise_at(
                "Mixture.weights",
                weights,
                ~(np.isfinite(weights) & (weights > 0)),
                "must be finite and above 0",
            )
            if weights.max(initial=0.0) > WIDEST / weights.shape[-1]:  # their sum may overflow
                weights = weights / weights.max(axis=-1, keepdims=True)
            weights = weights / weights.sum(axis=-1, keepdims=True)
            raise_at("Mixture.weights", weights, weights < TINY, "nothing beside the others; raise it")
        _check_no_gap(components)
        object.__setattr__(self, "components", components)
        object.__setattr__(self, "weights", weights)

    @property
    def support(self) -> tuple[Scalar, Scalar]:
        """Ends of the union of the components' supports."""
        lows, highs = zip(*(component.support for component in self.components), strict=True)
        if is_traced(lows, highs):
            return functools.reduce(jnp.minimum, lows), functools.reduce(jnp.maximum, highs)
        return float(np.min(lows)), float(np.max(highs))

    def _sum(self, terms: list[Array]) -> Array:
        weights = jnp.asarray(self.weights, terms[0].dtype)
        valid = jnp.all(weights > 0)  # only traced ones get here unchecked
        weights = jnp.where(valid, weights / jnp.sum(weights), jnp.nan)
        return functools.reduce(jnp.add, (weights[i] * term for i, term in enumerate(terms)))

    def cdf(self, x: Numbers) -> Array:
        """P0(X ≤ x)."""
        x = as_floats(x)
        return jnp.minimum(self._sum([component.cdf(x) for component in self.components]), 1)  # rounding only

    def quantile(self, p: Numbers) -> Array:
        """Smallest x with cdf(x) ≥ p."""
        return _quantile(self, as_levels(p, name="p"))

    def density(self, x: Numbers) -> Array:
        """Density at x."""
        x = as_floats(x)
        return self._sum([component.density(x) for component in self.components])


def _check_no_gap(components: tuple[Prior, ...]) -> None:
    supports = [component.support for component in components]
    if is_traced(supports) or any(np.ndim(end) for ends in supports for end in ends):
        return
    spans = sorted((float(low), float(high)) for low, high in supports)
    reach = spans[0][1]
    for low, high in spans[1:]:
        if low > reach:
            raise ValueError(
                f"Mixture.components leave ({reach:g}, {low:g}) without density: a prior is positive on its whole "
                "support; add a component that covers the gap, such as a small Uniform"
            )
        reach = max(reach, high)
    if np.isfinite([spans[0][0], reach]).all():
        check_interval("Mixture", spans[0][0], reach)


@jax.jit
def _quantile(prior: Mixture, p: Array) -> Array:
    low, high = (jnp.asarray(end, p.dtype) for end in prior.support)
    nonsense = jnp.isnan(prior.cdf(low))

    def solve(p: Array) -> Array:
        # A mixture's quantile lies between the extremes of its components' quantiles.
        inner = [component.quantile(p) for component in prior.components]
        bracket = functools.reduce(jnp.minimum, inner), functools.reduce(jnp.maximum, inner)
        return invert_cdf(prior.cdf, prior.density, p, *bracket)

    return jnp.where(nonsense, jnp.nan, within_support(p, low, high, solve))
