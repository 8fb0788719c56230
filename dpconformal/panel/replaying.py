"""Hyperparameters as dimensions: one learner for each point of a labelled grid."""

import dataclasses
import functools
import uuid
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from dpconformal.engine.feedback import checked_delay
from dpconformal.learner import Learner, check_levels
from dpconformal.metrics.summary import as_written
from dpconformal.panel.blocks import METRICS, Job, check_times, replay_block, replay_chunk
from dpconformal.validation import Numbers, as_levels, as_numbers, check_int, float_dtype

if TYPE_CHECKING:
    import xarray as xr


def swept(learner: Any, hyperparameters: dict[str, Any], taken: Sequence[Any]) -> tuple["xr.DataArray", list[Any]]:
    """
    Make a learner for every combination of hyperparameters.

    Returns: An array with the dimensions and coordinates of the grid, and the learners in its order; without
    hyperparameters no dimension and one learner.
    """
    import xarray as xr

    fields = [field.name for field in dataclasses.fields(learner) if field.init] if hyperparameters else []
    for name, values in hyperparameters.items():
        if name not in fields:
            raise ValueError(f"{name} = ...: {type(learner).__name__} has fields {', '.join(fields)}")
        if not isinstance(values, xr.DataArray):
            raise ValueError(f"{name} is a {type(values).__name__}: pass xarray.DataArray([...], dims={name!r})")
        for dim in values.dims:
            if dim in taken:
                raise ValueError(f"{name} has a dimension {dim!r}, which is one of the scores' or 'level': rename it")
    named = {
        name: values.assign_coords({name: values.values}) if values.dims == (name,) and not values.coords else values
        for name, values in hyperparameters.items()
    }
    if not named:
        return xr.DataArray(0.0), [learner]
    try:
        parts = xr.broadcast(*xr.align(*named.values(), join="exact"))
    except ValueError as error:
        raise ValueError(f"{', '.join(named)}: arrays along one dimension have different labels: {error}") from None
    if not parts[0].size:
        raise ValueError(f"{', '.join(named)}: no value to try")
    rows = zip(*(np.ravel(part.values).tolist() for part in parts), strict=True)
    learners = [dataclasses.replace(learner, **dict(zip(named, row, strict=True))) for row in rows]
    values = {name: part for name, part in named.items() if name not in part.dims}
    return parts[0].assign_coords({name: part.drop_vars(list(part.coords)) for name, part in values.items()}), learners


if TYPE_CHECKING:
    import xarray as xr


def replay_panel(
    scores: "xr.DataArray",
    learner: Learner,
    levels: Numbers,
    dim: str = "time",
    mask: "xr.DataArray | None" = None,
    keep: str = "all",
    delay: "int | xr.DataArray" = 0,
    **hyperparameters: "xr.DataArray",
) -> "xr.Dataset":
    """
    Replay every series of a panel.

    Parameters
    ----------
    scores : xarray.DataArray
        Nonconformity scores. One dimension is time, all others are independent series. Backed by NumPy it is replayed
        at once; backed by Dask nothing runs until it is asked for, and then chunk by chunk.
    learner : Learner
        Any method.
    levels : array_like, shape (A,)
        Confidence levels.
    dim : str
        The dimension of time.
    mask : xarray.DataArray of bool, optional
        True where a score is missing, and after the end of a shorter series. See :func:`dpconformal.replay`.
    keep : {"all", "summary"}
        Thresholds and metrics, or metrics only.
    delay : int, or xarray.DataArray of int
        How many rounds late each score becomes known, as in :func:`dpconformal.replay`: the same for every series, or
        with some of their dimensions, such as ``delay=scores.horizon - 1``.
    **hyperparameters : xarray.DataArray
        Values of the learner's fields to try, such as ``discount=xr.DataArray([0.9, 0.99], dims="discount")``. Their
        dimensions come out as dimensions of the result.

    Returns
    -------
    xarray.Dataset
        ``thresholds`` with the dimensions of the scores, the sweep's and ``level``; ``coverage``, ``loss`` (mean),
        ``regret`` (total) and ``mean_threshold`` of each series and level; and ``rounds``, how many scores each had.

    Raises
    ------
    ValueError
        Naming the series and the time of a bad score: at once, or where chunks are computed.

    Examples
    --------
    >>> import dpconformal as dpc, numpy as np, xarray as xr
    >>> scores = xr.DataArray([[0.2, 0.9, 0.4], [0.5, 0.1, 0.3]], {"store": ["A", "B"]}, ["store", "time"])
    >>> panel = dpc.replay_panel(scores, dpc.Exact(), levels=[0.5, 0.9])
    >>> panel.coverage.sel(store="B", level=0.9).item()
    1.0
    >>> rates = xr.DataArray([0.5, 0.9], dims="discount")
    >>> dpc.replay_panel(scores, dpc.Exact(), [0.5], discount=rates).thresholds.sizes
    Frozen({'store': 2, 'discount': 2, 'time': 3, 'level': 1})
    """
    import xarray as xr

    _check(scores, mask, dim, keep)
    mask = _alike(mask, scores)
    points, learners = swept(learner, hyperparameters, (*scores.dims, "level"))
    wide, dtype = bool(jax.config.read("jax_enable_x64")), float_dtype(as_numbers("scores", np.empty(0, scores.dtype)))
    asked = np.asarray(as_levels(levels, dtype))
    if asked.ndim != 1 or not asked.size:
        raise ValueError(f"levels has shape {asked.shape}: pass (A,), such as [0.9]")
    for one in learners:
        check_levels(one, levels)
    batch = [str(name) for name in scores.dims if name != dim]
    chunked = scores.chunks is not None
    size = int(np.prod([max(scores.chunksizes[name]) if chunked else scores.sizes[name] for name in batch]))
    times = _alike(_own_times(scores, dim), scores)
    late = _delays(delay, scores, batch)
    job = Job(
        learners=learners,
        shape=tuple(points.sizes.values()),
        levels=asked,
        keep=keep,
        delay=None if late is not None else check_int("delay", delay, 0),
        size=size,
        wide=wide,
        masked=mask is not None,
        chunked=chunked,
        dtype=dtype,
        names=(*batch, dim if times is None else times.name),
        times=scores[dim].values if times is None else None,
    )
    labels = [_labels(scores, name) for name in batch]
    along = [scores, *(part for part in (mask, times) if part is not None)]
    labels = labels if late is None else [late, *labels]
    sweep = [str(name) for name in points.dims]
    outputs = [[*sweep, dim, "level"]] * (keep == "all") + [[*sweep, "level"]] * len(METRICS) + [[]]
    kinds = [dtype] * (keep == "all") + [np.dtype(float)] * len(METRICS) + [np.dtype(np.int64)]
    sizes = {**points.sizes, dim: scores.sizes[dim], "level": asked.size}
    results = xr.apply_ufunc(
        functools.partial(replay_chunk, uuid.uuid4().hex, job) if chunked else functools.partial(replay_block, job),
        *along,
        *labels,
        input_core_dims=[[dim]] * len(along) + [[]] * len(labels),
        output_core_dims=outputs,
        dask="parallelized",
        output_dtypes=kinds,
        dask_gufunc_kwargs={"output_sizes": {name: sizes[name] for name in outputs[0]}},
    )
    variables = dict(zip(["thresholds"] * (keep == "all") + [*METRICS, "rounds"], results, strict=True))
    found = xr.Dataset(variables, attrs={"learner": repr(learner)})
    return found.assign_coords({"level": as_written(asked), **points.coords})


def _delays(delay: Any, scores: Any, batch: list[str]) -> Any:
    """Return the delay of each series, laid out and chunked like them; None for a number, which serves them all."""
    import xarray as xr

    if not isinstance(delay, xr.DataArray):
        return None
    unknown = next((name for name in delay.dims if name not in batch), None)
    if unknown is not None:
        raise ValueError(f"delay has a dimension {unknown!r}: the series have {', '.join(map(repr, batch)) or 'none'}")
    for name in delay.dims:
        if not np.array_equal(delay[name].values, scores[name].values):
            raise ValueError(f"delay and scores have different labels along {name!r}: reindex one like the other")
    numbers = xr.DataArray(np.asarray(checked_delay(delay.values)), dims=delay.dims)
    sizes = {name: scores.sizes[name] for name in batch}
    wide = numbers.expand_dims({name: size for name, size in sizes.items() if name not in delay.dims}).transpose(*batch)
    return (wide if scores.chunks is None else wide.chunk({name: scores.chunksizes[name] for name in batch})).variable


def _own_times(scores: Any, dim: str) -> Any:
    """Return times that differ from series to series, as of :func:`dpconformal.panel.from_long`; or None."""
    own = (
        coord for coord in scores.coords.values() if "in_table" in coord.attrs and set(coord.dims) == set(scores.dims)
    )
    return next((coord.reset_coords(drop=True) for coord in own if dim not in scores.coords), None)


def _alike(part: Any, scores: Any) -> Any:
    """Lay something out in the chunks of the scores, or in memory if they are there."""
    if part is None or part.chunks == scores.chunks:
        return part
    return part.compute() if scores.chunks is None else part.chunk(scores.chunksizes)


def _labels(scores: Any, name: str) -> Any:
    """Return the labels of a dimension, chunked like it; those of an index never are."""
    import xarray as xr

    if scores.chunks is None:
        return scores[name].variable
    import dask.array as da

    return xr.Variable([name], da.from_array(scores[name].values, chunks=(scores.chunksizes[name],)))


def _check(scores: Any, mask: Any, dim: str, keep: str) -> None:
    import xarray as xr

    if not isinstance(scores, xr.DataArray):
        raise ValueError(f"scores is a {type(scores).__name__}: pass an xarray.DataArray, or from_long(frame)")
    if dim not in scores.dims:
        raise ValueError(f"dim = {dim!r}: the scores have dimensions {', '.join(map(repr, scores.dims))}")
    for name in ("level", "rounds", "thresholds", *METRICS):
        if name in scores.dims or name in scores.coords:
            raise ValueError(
                f"scores has a dimension or coordinate {name!r}, which the result has: rename it, or drop it"
            )
    if dim in scores.coords:
        check_times(dim, scores[dim].values)
    if keep not in ("all", "summary"):
        raise ValueError(f"keep = {keep!r}: pass one of 'all', 'summary'")
    if scores.dtype.kind not in "fiu":
        raise ValueError(f"scores has dtype {scores.dtype}: pass numbers")
    if scores.chunks is not None and any(np.isnan(size) for sizes in scores.chunks for size in sizes):
        raise ValueError("scores has chunks of unknown size: call compute_chunk_sizes() on its Dask array first")
    if scores.chunks is not None and len(scores.chunksizes[dim]) > 1:
        raise ValueError(
            f"scores has {len(scores.chunksizes[dim])} chunks along {dim!r}: a series is replayed whole; pass "
            f"scores.chunk({{{dim!r}: -1}}), with fewer series in a chunk"
        )
    if mask is None:
        return
    if not isinstance(mask, xr.DataArray) or mask.dtype != bool:
        raise ValueError("mask: pass an xarray.DataArray of bool, such as scores.isnull()")
    if dict(mask.sizes) != dict(scores.sizes):
        raise ValueError(f"mask has sizes {dict(mask.sizes)} and scores {dict(scores.sizes)}: not the same")
