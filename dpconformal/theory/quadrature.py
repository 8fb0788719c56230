"""Priors of unknown make, evaluated and integrated in float64."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np


def integral(function: Any, start: np.ndarray, end: np.ndarray) -> Any:
    """
    Integrate by the tanh-sinh rule, which bears singular ends and infinite ones.

    Parameters
    ----------
    function : callable
        Maps an array to an array.
    start, end : ndarray
        Of the intervals.

    Returns
    -------
    ndarray
        Integrals; +inf where one does not converge.
    """
    from scipy import integrate  # slow to import, and needed by few

    found = integrate.tanhsinh(function, start, end, atol=1e-13, rtol=1e-12)
    return np.where(found.success | (found.error < 1e-8), found.integral, np.inf)


_CHUNK = 512  # points that one compiled program serves, whatever their number


def evaluated(function: Any, prior: Any, x: Any) -> Any:
    """
    Evaluate a prior in float64, a chunk of points at a time.

    Parameters
    ----------
    function : callable
        :func:`cdf_of` or :func:`density_of`.
    prior : Prior
        P0.
    x : array_like
        Where.

    Returns
    -------
    ndarray
        Values, of the shape of x.
    """
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
