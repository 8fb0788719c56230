"""Priors made of parts: histograms and mixtures."""

import functools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from dpconformal.priors.base import Prior, PriorBase, invert_cdf
from dpconformal.pytree import register
from dpconformal.validation import (
    NARROWEST,
    TINY,
    WIDEST,
    Numbers,
    Scalar,
    as_floats,
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
class Histogram(PriorBase):
    """
    Density that is constant on each bin; at an inner edge it is that of the bin above.

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
        why = "masses must be finite and above 0, for the density of a prior is positive; see from_scores"
        object.__setattr__(self, "edges", edges)
        object.__setattr__(self, "masses", _normalize("Histogram.masses", masses, why))

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

    def _parameters(self, like: Array) -> tuple[Array, ...]:
        edges, masses = jnp.asarray(self.edges, like.dtype), jnp.asarray(self.masses, like.dtype)
        valid = jnp.all(masses > 0) & jnp.all(edges[1:] > edges[:-1])  # only traced ones get here unchecked
        edges, masses = jnp.where(valid, edges, jnp.nan), jnp.where(valid, masses / jnp.sum(masses), jnp.nan)
        below = jnp.concatenate([jnp.zeros(1, like.dtype), jnp.cumsum(masses)[:-1]])
        return edges[0], edges[-1], edges, masses, below

    def _cdf(self, x: Array, low: Array, high: Array, edges: Array, masses: Array, below: Array) -> Array:
        k = _find_bin(edges, x)
        share = jnp.clip((x - edges[k]) / (edges[k + 1] - edges[k]), 0, 1)
        # The top of a bin is the bottom of the next, so that rounding cannot make the cdf fall.
        top = jnp.where(k + 1 < masses.size, below[jnp.minimum(k + 1, masses.size - 1)], 1)
        return jnp.minimum(below[k] + share * masses[k], top)

    def _quantile(self, p: Array, low: Array, high: Array, edges: Array, masses: Array, below: Array) -> Array:
        k = jnp.clip(jnp.searchsorted(below, p, side="left") - 1, 0, masses.size - 1)
        share = jnp.clip((p - below[k]) / masses[k], 0, 1)
        x = edges[k] + share * (edges[k + 1] - edges[k])
        return jnp.minimum(jnp.maximum(x, edges[k]), edges[k + 1])

    def _density(self, x: Array, low: Array, high: Array, edges: Array, masses: Array, below: Array) -> Array:
        k = _find_bin(edges, x)
        return masses[k] / (edges[k + 1] - edges[k])


def _find_bin(edges: Array, x: Array) -> Array:
    """Return the number of the bin that holds x; at an inner edge, of the bin above."""
    return jnp.clip(jnp.searchsorted(edges, x, side="right") - 1, 0, edges.size - 2)


def _normalize(name: str, masses: np.ndarray | Array, why: str) -> np.ndarray | Array:
    """Check that masses are above 0, and divide them by their sum; what is traced comes back as it is."""
    if is_traced(masses):
        return masses
    masses = masses.astype(float)
    raise_at(name, masses, ~(np.isfinite(masses) & (masses > 0)), why)
    if masses.max(initial=0.0) > WIDEST / masses.shape[-1]:  # their sum may overflow
        masses = masses / masses.max(axis=-1, keepdims=True)
    masses = masses / masses.sum(axis=-1, keepdims=True)
    raise_at(name, masses, masses < TINY, "nothing beside the others; raise it")
    return masses


@register()
@dataclass(frozen=True)
class Mixture(PriorBase):
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
        if isinstance(self.components, (Prior, np.ndarray)) or not isinstance(self.components, Iterable):
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
        weights = _normalize("Mixture.weights", weights, "must be finite and above 0")
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

    def density(self, x: Numbers) -> Array:
        """Density at x."""
        x = as_floats(x)
        return self._sum([component.density(x) for component in self.components])

    def _parameters(self, like: Array) -> tuple[Array, ...]:
        low, high = (jnp.asarray(end, like.dtype) for end in self.support)
        invalid = jnp.isnan(self.cdf(low))  # a traced parameter of a component that makes no sense
        return jnp.where(invalid, jnp.nan, low), jnp.where(invalid, jnp.nan, high)

    def _quantile(self, p: Array, low: Array, high: Array) -> Array:
        # A mixture's quantile lies between the extremes of its components' quantiles.
        inner = [component.quantile(p) for component in self.components]
        bracket = functools.reduce(jnp.minimum, inner), functools.reduce(jnp.maximum, inner)
        return invert_cdf(self.cdf, self.density, p, *bracket)


def _check_no_gap(components: tuple[Prior, ...]) -> None:
    """Refuse supports whose union is not an interval."""
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
