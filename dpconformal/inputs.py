"""Scores and levels as arrays: converted, checked on the host, in the dtype to work in."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from dpconformal.checks import Numbers, Scalar, as_numbers, complain_at, is_traced


def float_dtype(array: Any) -> np.dtype:
    """
    Find the floating type in which an array is worked with: its own, as far as JAX's setting allows.

    Parameters
    ----------
    array : ndarray or Array
        Real numbers.

    Returns
    -------
    dtype
        float32 or float64.
    """
    dtype = array.dtype if jnp.issubdtype(array.dtype, jnp.floating) else np.float64
    return np.dtype(jax.dtypes.canonicalize_dtype(dtype))


def as_scores(values: Numbers, support: tuple[Scalar, Scalar], name: str = "scores") -> Array:
    """
    Convert scores and check them against the support.

    Parameters
    ----------
    values : array_like
        One score or many.
    support : tuple
        The ends of the support.
    name : str
        What to call them in the error.

    Returns
    -------
    Array
        Floating-point scores. Traced ones are not checked here.

    Raises
    ------
    ValueError
        For NaN, infinite or out-of-support scores.
    """
    array = as_numbers(name, values)
    dtype = float_dtype(array)
    if isinstance(array, jax.core.Tracer):
        return array.astype(dtype)
    if array.dtype.kind == "f":
        complain_at(
            name,
            array,
            ~np.isfinite(array),
            "scores must be finite; drop the round or replace the value on purpose",
        )
    with np.errstate(over="ignore"):
        cast = array.astype(dtype)
    complain_at(name, array, ~np.isfinite(cast), f"overflows {dtype}; rescale, or enable 64-bit JAX (jax_enable_x64)")
    if not is_traced(support):
        low, high = (np.asarray(end, dtype) for end in support)
        bad = (cast < low) | (cast > high)
        remedy = "give the learner a wider support, such as prior=priors.Uniform(low, high), or rescale the scores"
        complain_at(name, array, bad, f"outside the support [{low:g}, {high:g}]; {remedy}")
    return jnp.asarray(cast)


def as_levels(values: Numbers, dtype: Any, name: str = "levels") -> Array:
    """
    Convert confidence levels and check that they lie in [0, 1].

    Parameters
    ----------
    values : array_like
        Levels, of any shape.
    dtype : dtype
        The floating type to work in.
    name : str
        What to call them in the error.

    Returns
    -------
    Array
        Floating-point levels. Traced ones are not checked here.

    Raises
    ------
    ValueError
        For NaN or levels outside [0, 1].
    """
    array = as_numbers(name, values)
    if not isinstance(array, jax.core.Tracer):
        why = "a confidence level lies in [0, 1]; 90 % is 0.9"
        complain_at(name, array, ~((array >= 0) & (array <= 1)), why)
    return jnp.asarray(array, dtype)
