"""Priors of unknown make, evaluated and integrated in float64."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np


def integral(function: Any, start: np.ndarray, end: np.ndarray) -> Any:
    """Integrate by the tanh-sinh rule, which bears singular ends and infinite ones."""
    from scipy import integrate  # slow to import, and needed by few

    found = integrate.tanhsinh(function, start, end, atol=1e-13, rtol=1e-12)
    whole = np.where(found.success | (found.error < 1e-8), found.integral, np.inf)
    finite = np.isfinite(start) & np.isfinite(end)
    first, last = np.where(finite, start, 0.0), np.where(finite, end, 0.0)
    short = finite & (last - first <= 1e-12 * (np.abs(first) + np.abs(last)))  # a few floats wide, too few for the rule
    return np.where(short, function(np.where(short, first, 0.5)) * (last - first), whole) if np.any(short) else whole


_LANDMARKS = np.array([1e-9, 1e-4, 0.01, 0.25, 0.5, 0.75, 0.99, 1 - 1e-4, 1 - 1e-9])


def landmarks(prior: Any) -> np.ndarray:
    """Find where the mass of a prior lies, which quadrature from end to end of an unbounded support may miss."""
    with jax.enable_x64(True):
        points = np.asarray(_quantile_of(prior, jnp.asarray(_LANDMARKS)), float)
    return np.unique(points[np.isfinite(points)])


@jax.jit
def _quantile_of(prior: Any, p: Any) -> Any:
    return prior.quantile(p)


_CHUNK = 512  # points that one compiled program serves, whatever their number


def evaluated(function: Any, prior: Any, x: Any) -> Any:
    """Evaluate a prior in float64, a chunk of points at a time."""
    x = np.asarray(x, float)
    chunks = np.pad(x.ravel(), (0, -x.size % _CHUNK), constant_values=0.5).reshape(-1, _CHUNK)
    with jax.enable_x64(True):
        values = [np.asarray(function(prior, jnp.asarray(chunk)), float) for chunk in chunks]
    return np.concatenate([*values, np.zeros(0)])[: x.size].reshape(x.shape)


@jax.jit
def cdf_of(prior: Any, x: Any) -> Any:
    """Evaluate the cdf."""
    return prior.cdf(x)


@jax.jit
def density_of(prior: Any, x: Any) -> Any:
    """Evaluate the density."""
    return prior.density(x)
