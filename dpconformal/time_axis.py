"""Which axis is time: columns that would be read as series of one round, and times that are out of order."""

import math
import re
import sys
from typing import Any

import numpy as np

_TIMES = ("datetime64", "datetime", "date", "period", "timedelta64", "timedelta")  # as pandas calls them
_NUMBERS = ("integer", "floating", "mixed-integer-float")
_ISO_DATE = re.compile(r"\d{4}-\d{2}-\d{2}")


def check_not_column(name: str, shape: tuple[int, ...], function: str | None = None, delay: Any = None) -> None:
    """
    Refuse a column vector, which would be read as many series of one round.

    ``function``: What the user called, if it can be called for each series under ``jax.vmap`` and takes a state.
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
    if _is_from("pandas", ("Series", "DataFrame"), values):
        return list(values.axes)
    if _is_from("xarray", ("DataArray",), values):
        return [values.indexes.get(dim) for dim in values.dims]
    return []


def _is_from(module: str, names: tuple[str, ...], value: Any) -> bool:
    found = sys.modules.get(module)
    return isinstance(value, tuple(getattr(found, name) for name in names if hasattr(found, name)))


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
