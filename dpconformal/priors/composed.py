"""Priors made of other distributions: histograms, mixtures, and those of NumPyro, which is not imported here."""

import functools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import jax
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


@register(static=("has_icdf",))
@dataclass(frozen=True)
class NumPyroPrior(PriorBase):
    """A NumPyro distribution as a prior; made by :func:`from_numpyro`."""

    distribution: Any
    low: Scalar
    high: Scalar
    has_icdf: bool

    @property
    def support(self) -> tuple[Scalar, Scalar]:
        """Ends of the interval."""
        return self.low, self.high

    def _cast(self, like: Array) -> Any:
        """Convert the distribution's parameters to the dtype to work in."""

        def cast(leaf: Any) -> Array:
            leaf = jnp.asarray(leaf)
            return leaf.astype(like.dtype) if jnp.issubdtype(leaf.dtype, jnp.floating) else leaf

        return jax.tree.map(cast, self.distribution)

    def _parameters(self, like: Array) -> tuple[Array, ...]:
        low, high = jnp.asarray(self.low, like.dtype), jnp.asarray(self.high, like.dtype)
        valid = _parameters_valid(self._cast(like)) & (high > low)  # only traced parameters get here unchecked
        return jnp.where(valid, low, jnp.nan), jnp.where(valid, high, jnp.nan)

    def _cdf(self, x: Array, low: Array, high: Array) -> Array:
        inside = (x > low) & (x < high)
        value = jnp.clip(_call(self._cast(x).cdf, jnp.where(inside, x, self._anchor(x))), 0, 1)
        return jnp.where(inside, value, jnp.where(x >= high, 1, jnp.where(x <= low, 0, jnp.nan)))

    def _quantile(self, p: Array, low: Array, high: Array) -> Array:
        return _call(self._cast(p).icdf, p) if self.has_icdf else invert_cdf(self.cdf, self.density, p, low, high)

    def _density(self, x: Array, low: Array, high: Array) -> Array:
        inside = jnp.where((x >= low) & (x <= high), x, self._anchor(x))
        return jnp.exp(_call(self._cast(x).log_prob, inside))

    def _anchor(self, like: Array) -> Array:
        """Return a point inside the support, to evaluate where the asked-for point is outside."""
        low, high = jnp.asarray(self.low, like.dtype), jnp.asarray(self.high, like.dtype)
        finite_low = jnp.where(jnp.isfinite(low), low, jnp.where(jnp.isfinite(high), high - 1, 0))
        finite_high = jnp.where(jnp.isfinite(high), high, finite_low + 1)
        return (finite_low + finite_high) / 2


def from_numpyro(distribution: Any) -> NumPyroPrior:
    """
    Turn a NumPyro distribution into a prior.

    Parameters
    ----------
    distribution : numpyro.distributions.Distribution
        Univariate and continuous, with a ``cdf``. Where NumPyro has no ``icdf`` (for its Beta, for example) quantiles
        are found by root finding, for which the support must be bounded.

    Returns
    -------
    NumPyroPrior
        The prior. The distribution's parameters are leaves: they can be swept with ``vmap``.

    Examples
    --------
    >>> import numpyro.distributions as dist
    >>> prior = from_numpyro(dist.Uniform(0.0, 2.0))
    >>> float(prior.quantile(0.25))
    0.5
    """
    name = type(distribution).__name__
    if not all(hasattr(distribution, needed) for needed in ("cdf", "log_prob", "support", "event_shape")):
        raise ValueError(f"distribution = {distribution!r}: not a NumPyro distribution")
    if distribution.event_shape or getattr(distribution.support, "is_discrete", False):
        raise ValueError(f"{name} is not univariate and continuous; a prior needs a density over one score")
    if distribution.batch_shape:
        raise ValueError(f"{name} has batch_shape {distribution.batch_shape}: to sweep a parameter, use jax.vmap")
    ends = (
        getattr(distribution.support, f"{side}_bound", end) for side, end in (("lower", -np.inf), ("upper", np.inf))
    )
    low, high = (end if is_traced(end) or np.ndim(end) else float(end) for end in ends)
    if not is_traced(distribution) and not (low < high and bool(_parameters_valid(distribution))):
        raise ValueError(f"{name} on [{low:g}, {high:g}] has parameters out of range")
    probe = as_floats(0.5)
    anchor = NumPyroPrior(distribution, low, high, False)._anchor(probe)
    try:
        jax.eval_shape(lambda d: _call(d.cdf, anchor), distribution)
    except NotImplementedError:
        raise ValueError(f"{name} has no cdf in NumPyro, so it cannot be a prior") from None
    try:
        jax.eval_shape(lambda d: _call(d.icdf, probe), distribution)
        has_icdf = True
    except (NotImplementedError, ImportError, AttributeError):
        has_icdf = False
    if not has_icdf and not is_traced(low, high) and not (np.all(np.isfinite(low)) and np.all(np.isfinite(high))):
        raise ValueError(f"{name} has no icdf in NumPyro and an unbounded support; truncate it to an interval")
    return NumPyroPrior(distribution, low, high, has_icdf)


def _call(function: Callable[[Any], Any], x: Array) -> Array:
    """Call NumPyro, whose own code leans on implicit promotion, whatever the user's setting is."""
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        return function(x).astype(x.dtype)


def _parameters_valid(distribution: Any) -> Array:
    """Whether the parameters are in the range that NumPyro itself demands."""
    valid = jnp.asarray(True)
    for part in (distribution, getattr(distribution, "base_dist", None)):
        for name, constraint in getattr(part, "arg_constraints", {}).items():
            if hasattr(part, name) and type(constraint).__name__ != "_Dependent":
                valid = valid & jnp.all(constraint(getattr(part, name)))
    return valid
