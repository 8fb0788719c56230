"""A prior with a piecewise-constant density, also learned from a reference sample."""

from dataclasses import dataclass
from typing import Any, ClassVar

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from dpconformal.priors.inverse import outside_is_zero, within_support
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
    complain_at,
    is_subnormal,
    is_traced,
    number,
    ordered,
    whole,
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
            complain_at("Histogram.edges", edges, ~np.isfinite(edges), "must be finite")
            complain_at("Histogram.edges", edges, is_subnormal(edges), f"nearer to 0 than {TINY:.3g}; rescale")
            falling = np.concatenate([np.zeros_like(edges[..., :1], bool), edges[..., 1:] <= edges[..., :-1]], axis=-1)
            complain_at("Histogram.edges", edges, falling, "edges must increase strictly")
            ordered("Histogram", edges[..., 0], edges[..., -1])
            narrow = np.diff(edges, axis=-1) < NARROWEST
            complain_at("Histogram.edges", edges[..., :-1], narrow, f"less than {NARROWEST:g} below the next; rescale")
        if not is_traced(masses):
            masses = masses.astype(float)
            why = "masses must be finite and above 0, for the density of a prior is positive; see from_scores"
            complain_at("Histogram.masses", masses, ~(np.isfinite(masses) & (masses > 0)), why)
            if masses.max(initial=0.0) > WIDEST / masses.shape[-1]:  # their sum may overflow
                masses = masses / masses.max(axis=-1, keepdims=True)
            masses = masses / masses.sum(axis=-1, keepdims=True)
            complain_at("Histogram.masses", masses, masses < TINY, "nothing beside the others; raise it")
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
        bins = whole("bins", bins, 1)
        smoothing = number("smoothing", smoothing, 0.0, open_low=True)
        low, high = number("low", low), number("high", high)
        ordered("from_scores", low, high)
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
