"""A mixture of priors: several guesses at once, or a guess made safe by a little uniform."""

import functools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from dpconformal.priors.base import Prior
from dpconformal.priors.inverse import invert_cdf, within_support
from dpconformal.pytree import register
from dpconformal.validation import (
    TINY,
    WIDEST,
    Numbers,
    Scalar,
    as_floats,
    as_levels,
    as_numbers,
    complain_at,
    is_traced,
    ordered,
)


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
            complain_at(
                "Mixture.weights",
                weights,
                ~(np.isfinite(weights) & (weights > 0)),
                "must be finite and above 0",
            )
            if weights.max(initial=0.0) > WIDEST / weights.shape[-1]:  # their sum may overflow
                weights = weights / weights.max(axis=-1, keepdims=True)
            weights = weights / weights.sum(axis=-1, keepdims=True)
            complain_at("Mixture.weights", weights, weights < TINY, "nothing beside the others; raise it")
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
        ordered("Mixture", spans[0][0], reach)


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
