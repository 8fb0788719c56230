"""
Checks at the boundary: on the host, before anything runs.

Every check names the argument, the first bad index and its value. Values that are being traced
(inside ``jit``, ``vmap``, ``grad``) cannot be looked at; there, what a check would have refused
becomes NaN downstream and never a plausible number (see :mod:`dpconformal.learner`).
"""

import math
import os
import re
import sys
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax._src.xla_bridge import backends_are_initialized  # nothing public tells without initializing them
from jaxtyping import Array

# Whatever numpy.asarray takes: lists, numbers, NumPy and JAX arrays, pandas and xarray objects.
Numbers = Any
TINY = float(np.finfo(float).tiny)  # the smallest normal number
# Widths of supports, and scales of priors: squares and reciprocals are then far from where numbers end.
NARROWEST, WIDEST = 1e-100, 1e100

MOST_PLACES = 2**28  # two gigabytes; 2³¹ of them could not be numbered

# A hyperparameter: a number, or an array of them as an axis for vmap.
Scalar = Any


# Whether JAX had run before the last fork; and whether this process came out of such a fork.
_had_run = _lost_threads = False


def _before_fork() -> None:
    global _had_run
    _had_run = backends_are_initialized()


def _after_fork() -> None:
    global _lost_threads
    _lost_threads = _lost_threads or _had_run


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before_fork, after_in_child=_after_fork)


def check_not_forked() -> None:
    """Refuse to work in a process that was forked after JAX had run: its threads are gone, and it would hang."""
    if _lost_threads:
        raise RuntimeError(
            "this process was forked from one in which JAX had run, and would wait forever for threads that it does "
            "not have: start processes with multiprocessing.get_context('spawn'), or use threads"
        )


def is_hashable(value: Any) -> bool:
    """Whether a value hashes: a learner does if it holds plain numbers, and no arrays or tracers."""
    try:
        hash(value)
    except TypeError:
        return False
    return True


def is_traced(*values: Any) -> bool:
    """Whether any leaf of the values is being traced, so that it has no number to look at."""
    for leaf in jax.tree.leaves(values):  # noqa: SIM110 - a generator would be a call a leaf
        if isinstance(leaf, jax.core.Tracer):
            return True
    return False


def raise_at(name: str, values: Any, bad: Any, why: str) -> None:
    """Raise for the first bad entry, if there is one."""
    array, bad = np.asarray(values), np.asarray(bad)
    if not bad.any():
        return
    index = np.unravel_index(int(np.argmax(bad)), bad.shape)
    where = f"[{', '.join(str(i) for i in index)}]" if index else ""
    more = int(bad.sum()) - 1
    others = f" ({more} more like it)" if more else ""
    raise ValueError(f"{name}{where} = {array[index]!s}: {why}{others}")


def check_within(
    name: str, values: Any, low: Any, high: Any, why: str = "no replay of this learner leaves more"
) -> None:
    """Check that every number is finite and within its bounds."""
    array = np.asarray(values)
    bad = ~(np.isfinite(array) & (array >= low) & (array <= high))
    if bad.any():
        low, high = (np.broadcast_to(end, array.shape).flat[int(np.argmax(bad))] for end in (low, high))
        raise_at(name, array, bad, f"must be finite and in [{low:g}, {high:g}], for {why}")


def add_trailing_axes(count: Any, values: Any) -> np.ndarray:
    """Give a number of each state of a batch axes of length 1, so that it broadcasts against a field of the states."""
    array = np.asarray(count)
    return array.reshape(array.shape + (1,) * (np.ndim(values) - array.ndim))


def as_numbers(name: str, values: Numbers) -> np.ndarray | Array:
    """
    Convert to an array of real numbers; refuse text, objects, masks, times and complex numbers.

    The result is a NumPy view where there is a number to look at, and a traced array as it is. Half precision is
    widened to float32, which loses nothing. Numbers in another byte order are copied to that of the machine.
    """
    if _lost_threads:  # asked here, for everything that is given numbers comes by
        check_not_forked()
    if isinstance(values, np.ma.MaskedArray):
        remedy = "fill it or drop the masked rounds"
        if name == "scores":
            remedy = "pass scores.data and mask=scores.mask to replay"
        raise ValueError(f"{name} is a masked array, whose mask would be lost: {remedy}")
    if isinstance(values, jax.core.Tracer):
        array: Any = values
    elif is_traced(values):
        array = jnp.asarray(values)
    else:
        try:
            array = np.asarray(values)
        except (ValueError, TypeError) as error:
            raise ValueError(f"{name} cannot be read as an array of numbers: {error}") from None
    kind = array.dtype.kind
    if kind in "mM":  # NumPy takes a timedelta64 for an integer
        remedy = "divide by the unit you mean, such as numpy.timedelta64(1, 'h')"
        raise ValueError(f"{name} must be real numbers; got dtype {array.dtype}{'; ' + remedy if kind == 'm' else ''}")
    if not (jnp.issubdtype(array.dtype, jnp.number) or array.dtype == bool) or jnp.issubdtype(
        array.dtype, jnp.complexfloating
    ):
        raise ValueError(f"{name} must be real numbers; got dtype {array.dtype}")
    if not array.dtype.isnative:
        array = array.astype(array.dtype.newbyteorder("="))
    if array.dtype == np.longdouble:
        return array.astype(np.float64)
    if jnp.issubdtype(array.dtype, jnp.floating) and jnp.finfo(array.dtype).bits < 32:
        return array.astype(np.float32)
    return array


def check_float(
    name: str,
    value: Scalar,
    low: float = -math.inf,
    high: float = math.inf,
    *,
    open_low: bool = False,
    open_high: bool = False,
    hint: str = "",
) -> Scalar:
    """
    Check a hyperparameter: finite and within a range.

    A number comes back as a plain float, so that it is weakly typed and takes on the dtype of the scores; arrays and
    traced values come back as they are.
    """
    array = as_numbers(name, value)
    if isinstance(array, jax.core.Tracer):
        return array
    array = array.astype(float)
    above = array > low if open_low else array >= low
    below = array < high if open_high else array <= high
    left = "(" if open_low or low == -math.inf else "["
    right = ")" if open_high or high == math.inf else "]"
    why = f"must be finite and in {left}{low:g}, {high:g}{right}{'; ' + hint if hint else ''}"
    raise_at(name, array, ~(np.isfinite(array) & above & below), why)
    raise_at(name, array, is_subnormal(array), f"nearer to 0 than {TINY:.3g}, XLA takes it for 0; rescale")
    return float(array) if array.ndim == 0 else jnp.asarray(array)


def is_subnormal(array: Any) -> Any:
    """Whether numbers are so close to 0 that XLA, which works without subnormal numbers, takes them for 0."""
    return (array != 0) & (np.abs(array) < np.finfo(array.dtype).tiny)


def check_scalar(name: str, value: Scalar, low: float = -math.inf, high: float = math.inf, **ends: bool) -> Scalar:
    """Check a number where an axis for ``vmap`` would make no sense."""
    found = check_float(name, value, low, high, **ends)  # type: ignore[arg-type]
    if np.ndim(found):
        raise ValueError(f"{name} has shape {np.shape(found)}: pass one number")
    return found


def check_interval(owner: str, low: Scalar, high: Scalar) -> None:
    """Check that two ends make an interval of finite, positive width, neither overflowing nor taken for 0."""
    if is_traced(low, high):
        return
    low, high = np.broadcast_arrays(np.asarray(low, float), np.asarray(high, float))
    with np.errstate(over="ignore"):
        width = high - low
    bad = ~((low < high) & np.isfinite(width))
    raise_at(f"{owner}.high", high, bad, f"must exceed low = {low[bad][0] if bad.any() else 0:g} by a finite width")
    why = f"must exceed low by {NARROWEST:g} at least and {WIDEST:g} at most; rescale the scores"
    raise_at(f"{owner}.high", high, (width < NARROWEST) | (width > WIDEST), why)


def check_size(name: str, value: Any, minimum: int) -> int:
    """Check how many numbers a state is to keep, or rounds it is to count."""
    if check_int(name, value, minimum) > MOST_PLACES:
        raise ValueError(f"{name} = {value}: at most {MOST_PLACES}")
    return int(value)


def check_int(name: str, value: Any, minimum: int) -> int:
    """Check a size: a whole number, not below a minimum."""
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < minimum:
        raise ValueError(f"{name} = {value!r}: must be a whole number, at least {minimum}")
    return int(value)


def check_seed(name: str, seed: Any) -> None:
    """Check a seed of JAX's random numbers."""
    if is_traced(seed):
        return
    array = np.asarray(seed)
    if not np.issubdtype(array.dtype, np.integer) or (array < 0).any() or (array >= 2**31).any():
        raise ValueError(f"{name} = {seed!r}: pass a whole number from 0 to 2^31 - 1")


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
    low, high = (-np.inf, np.inf) if is_traced(support) else support
    # In the precision the scores came in: float32 scores at a float32 end are inside.
    exact = array.dtype if array.dtype.kind == "f" else float
    with np.errstate(over="ignore"):  # an end that overflows is not in the way of any score
        cast = array.astype(dtype, copy=False)
        low, high = np.asarray(low, exact), np.asarray(high, exact)
    if np.ndim(low) or np.ndim(high):
        raise ValueError("the learner's support is an array: to sweep a hyperparameter, use jax.vmap over the learner")
    if array.size and np.isfinite([cast.min(), cast.max()]).all() and low <= array.min() and array.max() <= high:
        # All is well, and no mask as long as the scores was needed to see it.
        tiny = np.finfo(cast.dtype).tiny
        if cast.min() >= tiny or cast.max() <= -tiny or not (small := is_subnormal(cast)).any():
            return cast
        # XLA would take them for 0 now and then: in comparisons, and not in copies.
        return np.where(small, cast.dtype.type(0), cast)
    if array.dtype.kind == "f":
        remedy = "drop the round, or tell replay that it is missing with mask=numpy.isnan(scores)"
        raise_at(name, array, ~np.isfinite(array), f"scores must be finite; {remedy}")
    raise_at(name, array, ~np.isfinite(cast), f"overflows {dtype}; rescale, or enable 64-bit JAX (jax_enable_x64)")
    remedy = "widen it (a belief's is that of its prior, such as priors.Uniform(low, high)) or rescale the scores"
    raise_at(name, array, (array < low) | (array > high), f"outside the support [{low:g}, {high:g}]; {remedy}")
    return cast


def is_interval(support: tuple[Scalar, Scalar], dtype: Any) -> bool:
    """Whether a support, in the precision to work in, has ends apart, none that overflows, and a safe width."""
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
    Convert confidence levels, or other probabilities, to floating point, and check that they lie in [0, 1].

    What lies strictly between 0 and 1 stays there, whatever the precision. Traced levels outside [0, 1] are NaN.
    """
    array = as_numbers(name, values)
    dtype = dtype or float_dtype(array)
    if isinstance(array, jax.core.Tracer):
        array = array.astype(dtype)
        return jnp.where((array >= 0) & (array <= 1), array, jnp.nan)
    what = "a confidence level lies in [0, 1]; 90 % is 0.9" if name == "levels" else "must lie in [0, 1]"
    if (bad := ~((array >= 0) & (array <= 1))).any():
        raise_at(name, array, bad, what)
    # Level 0 is answered by the lower end and level 1 by the upper one: rounding must not lead there.
    one = np.dtype(dtype).type(1)
    inner = np.clip(array.astype(dtype), np.finfo(one).tiny, np.nextafter(one, one - one))
    # Of a new shape, jnp.asarray would compile a program.
    return jax.device_put(np.where((array > 0) & (array < 1), inner, array.astype(dtype)))


def as_floats(values: Numbers, name: str = "x") -> Array:
    """Convert any real numbers to a floating-point array, in their own type as far as JAX's setting allows."""
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


def format_level(level: Any) -> str:
    """Write a level with all of its digits: 0.9, and 0.9999999 where that is meant."""
    return np.format_float_positional(float(level), trim="-")


_TIMES = ("datetime64", "datetime", "date", "period", "timedelta64", "timedelta")  # as pandas calls them
_NUMBERS = ("integer", "floating", "mixed-integer-float")
_ISO_DATE = re.compile(r"\d{4}-\d{2}-\d{2}")


def check_not_column(name: str, shape: tuple[int, ...], function: str | None = None, delay: Any = None) -> None:
    """
    Refuse a column vector, which would be read as many series of one round.

    ``function`` is what the user called, if it can be called for each series under ``jax.vmap`` and takes a state.
    """
    series, batch = math.prod(shape[:-1]), shape[:-1]
    if shape[-1:] != (1,) or series <= 1 or np.shape(delay) == batch:
        return
    each = "" if delay is None else f", a delay for each of them, such as delay=numpy.zeros({batch}, int),"
    many = f"; for {series} series of one round use jax.vmap over {function}{each} or the states they carry on from"
    raise ValueError(
        f"{name} has shape {shape}, which reads as {series} series of one round: for one series of {series} rounds "
        f"drop the last axis, as {name}[..., 0] or {name}.squeeze() does{many if function else ''}"
    )


def check_time_index(name: str, values: Any, axis: int = -1) -> None:
    """Refuse a pandas or xarray object whose times go back, repeat or lie along another axis than the rounds."""
    if values is None or isinstance(values, (np.ndarray, list, tuple)):
        return
    indexes = _indexes(values)
    if not indexes:
        return
    axis %= len(indexes)
    is_frame = not hasattr(values, "dims")
    called = ("index", "columns") if is_frame else values.dims
    where, plain = f"{name}.{called[axis]}", f"or pass {name}.to_numpy() if the rounds are in order"
    times = [part for part in _levels(indexes[axis]) if _is_time(part) or part.name == "time"]
    for part in times:
        _check_order(where, part, f"sort by it, {plain}")
    other = next((k for k, index in enumerate(indexes) if any(map(_is_time, _levels(index)))), None)
    if not times and other is not None:
        turned = f"{name}.T" if is_frame else f"{name}.transpose(..., {called[other]!r})"
        raise ValueError(f"{name}.{called[other]} holds times, and rounds are read along {where}: pass {turned}")
    for part in _levels(indexes[axis]):
        if not times and part.inferred_type in _NUMBERS and part.is_monotonic_decreasing and part.is_unique:
            raise ValueError(f"{where} goes back from {part[0]} to {part[-1]}, the newest first: sort by it, {plain}")


def _indexes(values: Any) -> list[Any]:
    """Return the pandas index of each axis, None where there is none, without importing pandas or xarray."""
    pandas, xarray = sys.modules.get("pandas"), sys.modules.get("xarray")
    with_axes: Any = getattr(pandas, "Series", ()), getattr(pandas, "DataFrame", ())
    with_indexes: Any = getattr(xarray, "DataArray", ())
    if isinstance(values, with_axes):
        return list(values.axes)
    if isinstance(values, with_indexes):
        return [values.indexes.get(dim) for dim in values.dims]
    return []


def _levels(index: Any) -> list[Any]:
    """Return each level of an index, most often itself; none of what has a single entry, which is always in order."""
    if index is None or len(index) < 2:
        return []
    return [index.get_level_values(k) for k in range(index.nlevels)] if index.nlevels > 1 else [index]


def _is_time(index: Any) -> bool:
    """Whether an index holds times; of text the first and the last entry decide, if both begin with a date."""
    if index.inferred_type == "string":
        return all(_ISO_DATE.match(str(index[k])) for k in (0, -1))
    return index.inferred_type in _TIMES


def _check_order(where: str, times: Any, remedy: str) -> None:
    """Refuse times, a pandas index, that are missing, go back or repeat."""
    if times.hasnans:
        raise ValueError(f"{where}[{int(np.argmax(times.isna()))}] is missing: a round needs a time")
    if times.is_monotonic_increasing and times.is_unique:
        return
    at = int(np.argmax(np.asarray(times[1:] <= times[:-1])))
    after, before = (str(time).removesuffix(" 00:00:00") for time in (times[at + 1], times[at]))
    if after == before:
        series = "if there are several series in it, pass one at a time, or see dpconformal.panel.from_long"
        raise ValueError(f"{where}[{at + 1}] = {after} comes twice: {series}; {remedy}")
    raise ValueError(f"{where}[{at + 1}] = {after} comes after {before}: {remedy}")
