"""Any univariate NumPyro distribution as a prior (duck-typed: NumPyro is not imported)."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from dpconformal.priors.base import invert_cdf, outside_is_zero, within_support
from dpconformal.pytree import register
from dpconformal.validation import Numbers, Scalar, as_floats, as_levels, is_traced


@register(static=("has_icdf",))
@dataclass(frozen=True)
class NumPyroPrior:
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
        def cast(leaf: Any) -> Any:
            leaf = jnp.asarray(leaf)
            return leaf.astype(like.dtype) if jnp.issubdtype(leaf.dtype, jnp.floating) else leaf

        return jax.tree.map(cast, self.distribution)

    def _ends(self, like: Array) -> tuple[Array, Array]:
        low, high = jnp.asarray(self.low, like.dtype), jnp.asarray(self.high, like.dtype)
        valid = _sensible(self._cast(like)) & (high > low)  # only traced parameters get here unchecked
        return jnp.where(valid, low, jnp.nan), jnp.where(valid, high, jnp.nan)

    def cdf(self, x: Numbers) -> Array:
        """P0(X ≤ x)."""
        x = as_floats(x)
        low, high = self._ends(x)
        inside = (x > low) & (x < high)
        middle = jnp.where(inside, x, self._anchor(x))
        value = jnp.clip(_call(self._cast(x).cdf, middle), 0, 1)
        return jnp.where(inside, value, jnp.where(x >= high, 1, jnp.where(x <= low, 0, jnp.nan)))

    def quantile(self, p: Numbers) -> Array:
        """Smallest x with cdf(x) ≥ p."""
        return _quantile(self, as_levels(p, name="p"))

    def density(self, x: Numbers) -> Array:
        """Density at x."""
        x = as_floats(x)
        low, high = self._ends(x)
        middle = jnp.where((x >= low) & (x <= high), x, self._anchor(x))
        return outside_is_zero(x, low, high, jnp.exp(_call(self._cast(x).log_prob, middle)))

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
        Univariate and continuous, with a ``cdf``. On a bounded support the quantile falls back on
        root finding where NumPyro has no ``icdf`` (its Beta, for example); on an unbounded support
        an ``icdf`` is needed.

    Returns
    -------
    NumPyroPrior
        The prior. The distribution's parameters are leaves: they can be swept with ``vmap``.

    Raises
    ------
    ValueError
        If the distribution cannot serve.

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
    low, high = _ends(distribution.support)
    if not is_traced(distribution) and not (low < high and bool(_sensible(distribution))):
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


def _sensible(distribution: Any) -> Array:
    """Whether the parameters are in the range that NumPyro itself demands."""
    valid = jnp.asarray(True)
    for part in (distribution, getattr(distribution, "base_dist", None)):
        for name, constraint in getattr(part, "arg_constraints", {}).items():
            if hasattr(part, name) and type(constraint).__name__ != "_Dependent":
                valid = valid & jnp.all(constraint(getattr(part, name)))
    return valid


def _ends(support: Any) -> tuple[Scalar, Scalar]:
    def end(value: Any) -> Scalar:
        return value if is_traced(value) or np.ndim(value) else float(value)

    return end(getattr(support, "lower_bound", -np.inf)), end(getattr(support, "upper_bound", np.inf))


@jax.jit
def _quantile(prior: NumPyroPrior, p: Array) -> Array:
    low, high = prior._ends(p)

    def solve(p: Array) -> Array:
        if prior.has_icdf:
            return _call(prior._cast(p).icdf, p)
        return invert_cdf(prior.cdf, prior.density, p, low, high)

    return within_support(p, low, high, solve)
