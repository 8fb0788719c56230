"""Scores and levels as arrays: converted, checked on the host, in the dtype to work in."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from dpconformal.checks import (
    NARROWEST,
    WIDEST,
    Numbers,
    Scalar,
    as_numbers,
    complain_at,
    is_subnormal,
    is_traced,
)


def float_dtype(array: Any) -> np.dtype:
    """Find the floating type in which an array is worked with: its own, as far as JAX's setting allows."""
    dtype = array.dtype if jnp.issubdtype(array.dtype, jnp.floating) else np.float64
    return np.dtype(jax.dtypes.canonicalize_dtype(dtype))


def checked_scores(values: Numbers, support: tuple[Scalar, Scalar], name: str = "scores") -> np.ndarray | Array:
    """Check scores against the support, without a copy where none is needed."""
    array = as_numbers(name, values)
    dtype = float_dtype(array)
    if isinstance(array, jax.core.Tracer):
        return array.astype(dtype)
    with np.errstate(over="ignore"):
        cast = array.astype(dtype, copy=False)
    # In the precision the scores came in: float32 scores at a float32 end are inside.
    exact = array.dtype if array.dtype.kind == "f" else float
    with np.errstate(over="ignore"):  # an end that overflows is not in the way of any score
        low, high = (-np.inf, np.inf) if is_traced(support) else support
        low, high = np.asarray(low, exact), np.asarray(high, exact)
    if np.ndim(low) or np.ndim(high):
        raise ValueError("the learner's support is an array: to sweep a hyperparameter, use jax.vmap over the learner")
    if array.size and np.isfinite([cast.min(), cast.max()]).all() and low <= array.min() and array.max() <= high:
        # All is well, and no mask as long as the scores was needed to see it.
        tiny = np.finfo(cast.dtype).tiny
        return cast if cast.min() >= tiny or cast.max() <= -tiny else _without_subnormals(cast)
    if array.dtype.kind == "f":
        complain_at(
            name,
            array,
            ~np.isfinite(array),
            "scores must be finite; drop the round, or tell replay that it is missing with mask=numpy.isnan(scores)",
        )
    complain_at(name, array, ~np.isfinite(cast), f"overflows {dtype}; rescale, or enable 64-bit JAX (jax_enable_x64)")
    remedy = "widen it (a belief's is that of its prior, such as priors.Uniform(low, high)) or rescale the scores"
    complain_at(name, array, (array < low) | (array > high), f"outside the support [{low:g}, {high:g}]; {remedy}")
    return cast


def _without_subnormals(scores: Any) -> Any:
    """Write 0 for what XLA would take for 0 now and then: in comparisons, and not in copies."""
    small = is_subnormal(scores)
    return np.where(small, scores.dtype.type(0), scores) if small.any() else scores


def is_interval(support: tuple[Scalar, Scalar], dtype: Any) -> bool:
    """
    Tell whether a support is still one in the precision to work in.

    Returns: False if the ends fall together or overflow, or the width comes near the largest or smallest number.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        low, high = (np.asarray(end, float).astype(dtype) for end in support)
        width = high - low
    kept = all(np.isfinite(own) == np.isfinite(end) for own, end in zip((low, high), support, strict=True))
    narrowest, widest = (NARROWEST, WIDEST) if width.dtype.itemsize == 8 else (1e-30, 1e30)
    sized = not np.isfinite([low, high]).all() or narrowest <= width <= widest
    return bool(low < high and kept and sized and not is_subnormal(low) and not is_subnormal(high))


def as_scores(values: Numbers, support: tuple[Scalar, Scalar], name: str = "scores") -> Array:
    """Convert scores and check them against the support."""
    return jnp.asarray(checked_scores(values, support, name))


def as_score(value: Numbers, support: tuple[Scalar, Scalar]) -> Array:
    """Convert one score and check it against the support."""
    score = as_scores(value, support, "score")
    if score.ndim:
        raise ValueError(f"score has shape {score.shape}: observe takes one score; use replay for many, or jax.vmap")
    return score


def as_levels(values: Numbers, dtype: Any = None, name: str = "levels") -> Array:
    """
    Convert confidence levels, or other probabilities, and check that they lie in [0, 1].

    Returns: Floating-point levels. What lies strictly between 0 and 1 stays there, whatever the precision. Traced ones
    outside [0, 1] are NaN.
    """
    array = as_numbers(name, values)
    dtype = dtype or float_dtype(array)
    if isinstance(array, jax.core.Tracer):
        array = array.astype(dtype)
        return jnp.where((array >= 0) & (array <= 1), array, jnp.nan)
    what = "a confidence level lies in [0, 1]; 90 % is 0.9" if name == "levels" else "must lie in [0, 1]"
    complain_at(name, array, ~((array >= 0) & (array <= 1)), what)
    # Level 0 is answered by the lower end and level 1 by the upper one: rounding must not lead there.
    one = np.dtype(dtype).type(1)
    inner = np.clip(array.astype(dtype), np.finfo(one).tiny, np.nextafter(one, one - one))
    # Of a new shape, jnp.asarray would compile a program.
    return jax.device_put(np.where((array > 0) & (array < 1), inner, array.astype(dtype)))


def as_floats(values: Numbers, name: str = "x") -> Array:
    """
    Convert to a floating-point array; any real numbers will do.

    Returns: The same numbers, in their own floating type as far as JAX's setting allows.
    """
    array = as_numbers(name, values)
    return jnp.asarray(array, float_dtype(array))


def check_not_batched(owner: Any) -> None:
    """Refuse hyperparameters that are arrays where a number is meant."""
    for path, leaf in jax.tree_util.tree_leaves_with_path(owner):
        names = [getattr(key, "name", "") for key in path]
        if "distribution" in names:  # NumPyro's own, whose batch_shape was checked
            continue
        axes = 1 if names[-1] in ("edges", "masses", "weights", "levels", "initial", "rates") else 0
        if np.ndim(leaf) > axes:
            name = f"{type(owner).__name__}{jax.tree_util.keystr(path)}"
            raise ValueError(
                f"{name} has shape {np.shape(leaf)}: to sweep a hyperparameter, use jax.vmap over the learner"
            )


def exactly(level: Any) -> str:
    """Write a level with all of its digits: 0.9, and 0.9999999 where that is meant."""
    return np.format_float_positional(float(level), trim="-")
