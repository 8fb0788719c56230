"""Univariate NumPyro distributions as priors. NumPyro is not imported here: what counts is what they can do."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from dpconformal.priors.base import PriorBase, invert_cdf
from dpconformal.pytree import register
from dpconformal.validation import Scalar, as_floats, is_traced


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
