"""Replay a panel: independent series along one dimension, labelled, in memory or in chunks."""

import contextlib
import functools
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import numpy as np

from dpconformal.checks import Numbers
from dpconformal.inputs import as_levels, float_dtype
from dpconformal.learner import Learner
from dpconformal.metrics.summary import as_written
from dpconformal.offline.workers import on_one_core
from dpconformal.panel.checking import check_block
from dpconformal.panel.judging import METRICS, least_loss, means_of_totals, totals_of
from dpconformal.panel.sweeps import swept
from dpconformal.replay import replay

if TYPE_CHECKING:
    import xarray as xr


class _Job(NamedTuple):
    """What every block is told."""

    learners: list[Any]  # of a sweep, in the order of its product
    shape: tuple[int, ...]  # of the sweep
    levels: np.ndarray  # (A,)
    keep: str
    size: int  # series of a block; smaller ones are filled up, so that one program serves them all
    wide: bool  # whether JAX has 64 bits where the work was asked for
    masked: bool
    chunked: bool  # then the scheduler keeps the other cores busy
    names: tuple[str, ...]  # of the dimensions of a block, and of its times
    times: np.ndarray | None  # (T,), or with each block


def replay_panel(
    scores: "xr.DataArray",
    learner: Learner,
    levels: Numbers,
    dim: str = "time",
    mask: "xr.DataArray | None" = None,
    keep: str = "all",
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
    wide, dtype = bool(jax.config.read("jax_enable_x64")), float_dtype(scores)
    asked = np.asarray(as_levels(levels, dtype))
    if asked.ndim != 1 or not asked.size:
        raise ValueError(f"levels has shape {asked.shape}: pass (A,), such as [0.9]")
    batch = [str(name) for name in scores.dims if name != dim]
    chunked = scores.chunks is not None
    size = int(np.prod([max(scores.chunksizes[name]) if chunked else scores.sizes[name] for name in batch]))
    times = _alike(_own_times(scores, dim), scores)
    job = _Job(
        learners=learners,
        shape=tuple(points.sizes.values()),
        levels=asked,
        keep=keep,
        size=size,
        wide=wide,
        masked=mask is not None,
        chunked=chunked,
        names=(*batch, dim if times is None else times.name),
        times=scores[dim].values if times is None else None,
    )
    labels = [_labels(scores, name) for name in batch]
    along = [scores, *(part for part in (mask, times) if part is not None)]
    sweep = [str(name) for name in points.dims]
    outputs = [[*sweep, dim, "level"]] * (keep == "all") + [[*sweep, "level"]] * len(METRICS) + [[]]
    kinds = [dtype] * (keep == "all") + [np.dtype(float)] * len(METRICS) + [np.dtype(np.int64)]
    sizes = {**points.sizes, dim: scores.sizes[dim], "level": asked.size}
    results = xr.apply_ufunc(
        functools.partial(_replay_block, job),
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


def _own_times(scores: Any, dim: str) -> Any:
    """Return times that differ from series to series, as of :func:`dpconformal.panel.from_long`; or None."""
    found = (coord for coord in scores.coords.values() if coord.ndim > 1 and set(coord.dims) == set(scores.dims))
    return next((coord.reset_coords(drop=True) for coord in found if dim not in scores.coords), None)


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


def _replay_block(job: _Job, scores: np.ndarray, *rest: np.ndarray) -> tuple[np.ndarray, ...]:
    """Replay a chunk, (..., T), by every learner."""
    brought = list(rest)
    mask = brought.pop(0) if job.masked else None
    times, labels = brought.pop(0) if job.times is None else job.times, brought
    batch, rounds = scores.shape[:-1], scores.shape[-1]
    check_block(job.learners, scores, mask, job.names, labels, times)
    rows = scores.reshape(-1, rounds)
    missing = None if mask is None else mask.reshape(-1, rounds)
    used = slice(len(rows))
    filled, told = (_filled(part, job.size) for part in (rows, missing))
    observed = None if missing is None else ~missing
    counts = np.full(len(rows), rounds) if observed is None else observed.sum(axis=-1)
    least = least_loss(rows if missing is None else np.where(missing, 0, rows), observed, job.levels)
    kept: list[list[np.ndarray]] = []
    with jax.enable_x64(job.wide), on_one_core() if job.chunked else contextlib.nullcontext():
        for learner in job.learners:
            run: Any = replay(learner, filled, job.levels, keep=job.keep, mask=told)
            if job.keep == "all":
                thresholds = [np.asarray(run.thresholds)[used]]
                covered, loss, threshold = totals_of(thresholds[0], rows, observed, job.levels)
            else:
                thresholds = []
                kept_totals = run.covered, run.total_loss, run.total_threshold
                covered, loss, threshold = (np.asarray(total)[used] for total in kept_totals)
            found = means_of_totals(covered, loss, threshold, least, counts)
            kept.append(thresholds + [found[name] for name in METRICS])
    stacked = (np.stack(parts, axis=1) if len(parts) > 1 else parts[0][:, None] for parts in zip(*kept, strict=True))
    return (*(a.reshape(batch + job.shape + a.shape[2:]) for a in stacked), counts.reshape(batch))


def _filled(rows: np.ndarray | None, size: int) -> np.ndarray | None:
    """Repeat the last series until there are as many as in the other chunks."""
    if rows is None or len(rows) in (0, size):
        return rows
    return np.concatenate([rows, np.broadcast_to(rows[-1:], (size - len(rows), rows.shape[-1]))])
