"""
Replay of a panel: many labelled series at once or chunk by chunk, with hyperparameters as dimensions.

And the belief of one giant stream, fitted to its chunks in parallel and merged.
"""

import contextlib
import dataclasses
import functools
import math
import uuid
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from dpconformal.beliefs import Quantized
from dpconformal.engine.machine import blocks_of_sequences, in_threads, on_one_core
from dpconformal.engine.states import checked_delay
from dpconformal.engine.totals import totals_of
from dpconformal.learner import Learner, State, check_levels, fresh_state, support_of
from dpconformal.metrics.loss import best_threshold
from dpconformal.metrics.summary import as_written
from dpconformal.replay import replay_batch, run_replay
from dpconformal.rounds import Rounds
from dpconformal.validation import (
    Numbers,
    as_levels,
    as_numbers,
    check_int,
    check_time_index,
    checked_scores,
    float_dtype,
)

if TYPE_CHECKING:
    import xarray as xr
    from dask.delayed import Delayed

FAN_IN = 8  # parts that a task merges
METRICS = ("coverage", "loss", "regret", "mean_threshold")


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
        One dimension is time, all others are independent series. Backed by Dask, it is replayed when the result is
        asked for, chunk by chunk.
    learner : Learner
        Any method.
    levels : array_like, shape (A,)
        Confidence levels.
    dim : str
        The dimension of time.
    mask : xarray.DataArray of bool, optional
        True where a score is missing, and after the end of a shorter series.
    keep : {"all", "summary"}
        Thresholds and metrics, or metrics only.
    delay : int, or xarray.DataArray of int
        How many rounds late each score becomes known: the same for every series, or with some of their dimensions,
        such as ``delay=scores.horizon - 1``.
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
    mask = _chunk_like(mask, scores)
    points, learners = _sweep_learners(learner, hyperparameters, (*scores.dims, "level"))
    wide, dtype = bool(jax.config.read("jax_enable_x64")), float_dtype(as_numbers("scores", np.empty(0, scores.dtype)))
    asked = np.asarray(as_levels(levels, dtype))
    if asked.ndim != 1 or not asked.size:
        raise ValueError(f"levels has shape {asked.shape}: pass (A,), such as [0.9]")
    for one in learners:
        check_levels(one, levels)
    batch = [str(name) for name in scores.dims if name != dim]
    chunked = scores.chunks is not None
    size = int(np.prod([max(scores.chunksizes[name]) if chunked else scores.sizes[name] for name in batch]))
    times = _chunk_like(_own_times(scores, dim), scores)
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
        token=uuid.uuid4().hex if chunked else "",
        dtype=dtype,
        names=(*batch, dim if times is None else str(times.name)),
        times=scores[dim].values if times is None else None,
    )
    along = [part for part in (scores, mask, times) if part is not None]
    labels = [*([] if late is None else [late]), *(_labels(scores, name) for name in batch)]
    sweep = [str(name) for name in points.dims]
    names = [*(["thresholds"] if keep == "all" else []), *METRICS, "rounds"]
    dims = {"thresholds": [*sweep, dim, "level"], "rounds": []}
    kinds = {"thresholds": dtype, "rounds": np.dtype(np.int64)}
    results = xr.apply_ufunc(
        functools.partial(replay_block, job),
        *along,
        *labels,
        input_core_dims=[[dim]] * len(along) + [[]] * len(labels),
        output_core_dims=[dims.get(name, [*sweep, "level"]) for name in names],
        dask="parallelized",
        output_dtypes=[kinds.get(name, np.dtype(float)) for name in names],
        dask_gufunc_kwargs={"output_sizes": {**points.sizes, "level": asked.size}},
    )
    variables = dict(zip(names, results, strict=True))
    found = xr.Dataset(variables, attrs={"learner": repr(learner)})
    return found.assign_coords({"level": as_written(asked), **points.coords})


def _check(scores: Any, mask: Any, dim: str, keep: str) -> None:
    """Refuse arrays of which no panel can be made, before anything is computed."""
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
        _check_times(dim, scores[dim].values)
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


def _delays(delay: "int | xr.DataArray", scores: "xr.DataArray", batch: list[str]) -> "xr.Variable | None":
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
    late = xr.Variable(delay.dims, np.asarray(checked_delay(delay.values)))
    late = late.set_dims({name: scores.sizes[name] for name in batch})
    return late if scores.chunks is None else late.chunk({name: scores.chunksizes[name] for name in batch})


def _own_times(scores: "xr.DataArray", dim: str) -> "xr.DataArray | None":
    """Return times that differ from series to series, as of :func:`dpconformal.panel.from_long`; or None."""
    own = (
        coord for coord in scores.coords.values() if "in_table" in coord.attrs and set(coord.dims) == set(scores.dims)
    )
    return next((coord.reset_coords(drop=True) for coord in own if dim not in scores.coords), None)


def _chunk_like(part: "xr.DataArray | None", scores: "xr.DataArray") -> "xr.DataArray | None":
    """Rechunk an array like the scores, or load it if they are in memory."""
    if part is None or part.chunks == scores.chunks:
        return part
    return part.compute() if scores.chunks is None else part.chunk(scores.chunksizes)


def _labels(scores: "xr.DataArray", name: str) -> "xr.Variable":
    """Return the labels of a dimension, chunked like it; those of an index never are."""
    import xarray as xr

    if scores.chunks is None:
        return scores[name].variable
    import dask.array as da

    return xr.Variable([name], da.from_array(scores[name].values, chunks=(scores.chunksizes[name],)))


def _sweep_learners(
    learner: Any, hyperparameters: dict[str, Any], taken: Sequence[Any]
) -> tuple["xr.DataArray", list[Any]]:
    """Return the grid of all combinations of hyperparameters, as an array, and a learner for each in its order."""
    import xarray as xr

    if not hyperparameters:
        return xr.DataArray(0.0), [learner]
    fields = [field.name for field in dataclasses.fields(learner) if field.init]
    named = {}
    for name, values in hyperparameters.items():
        if name not in fields:
            raise ValueError(f"{name} = ...: {type(learner).__name__} has fields {', '.join(fields)}")
        if not isinstance(values, xr.DataArray):
            raise ValueError(f"{name} is a {type(values).__name__}: pass xarray.DataArray([...], dims={name!r})")
        for dim in values.dims:
            if dim in taken:
                raise ValueError(f"{name} has a dimension {dim!r}, which is one of the scores' or 'level': rename it")
        # A dimension of its own has its values as labels.
        own = values.dims == (name,) and not values.coords
        named[name] = values.assign_coords({name: values.values}) if own else values
    try:
        parts = xr.broadcast(*xr.align(*named.values(), join="exact"))
    except ValueError as error:
        raise ValueError(f"{', '.join(named)}: arrays along one dimension have different labels: {error}") from None
    if not parts[0].size:
        raise ValueError(f"{', '.join(named)}: no value to try")
    rows = zip(*(np.ravel(part.values).tolist() for part in parts), strict=True)
    learners = [dataclasses.replace(learner, **dict(zip(named, row, strict=True))) for row in rows]
    beside = {name: part.drop_vars(list(part.coords)) for name, part in named.items() if name not in part.dims}
    return parts[0].assign_coords(beside), learners


_seen: dict[str, "Job"] = {}  # by token, the last few


class Job(NamedTuple):
    """Settings that all blocks share."""

    learners: list[Any]  # of a sweep, in the order of its product
    shape: tuple[int, ...]  # of the sweep
    levels: np.ndarray  # (A,)
    keep: str
    delay: int | None  # of all series; None: each block brings its own
    size: int  # series of a block; smaller ones are filled up, so that one program serves them all
    wide: bool  # whether JAX has 64 bits where the work was asked for
    masked: bool
    token: str  # of a replay in chunks, where the scheduler keeps the other cores busy; otherwise empty
    dtype: np.dtype[Any]  # of thresholds
    names: tuple[str, ...]  # of the dimensions of a block, and of its times
    times: np.ndarray | None  # (T,), or with each block


def replay_block(job: Job, scores: np.ndarray, *rest: np.ndarray) -> tuple[np.ndarray, ...]:
    """
    Replay a block by every learner: thresholds, if they are kept; the :data:`METRICS`; how many scores each series had.

    ``*rest``: The mask, if there is one; times of each score, unless the job has them; the delay of each series, unless
    the job has it; labels of each leading axis.
    """
    if job.token:
        # A schedule that is a function is compiled for as often as it is made, and every task brings its own copy of
        # the job: a process keeps to the first.
        job = _seen.setdefault(job.token, job)
        for old in list(_seen)[:-16]:
            _seen.pop(old, None)
    brought = list(rest)
    mask = brought.pop(0) if job.masked else None
    times = brought.pop(0) if job.times is None else job.times
    delay: Any = np.asarray(brought.pop(0)).reshape(-1, 1) if job.delay is None else None
    batch, rounds = scores.shape[:-1], scores.shape[-1]
    _check_block(job.learners, scores, mask, job.names, brought, times)
    # What was lost by rounding is lost for thresholds and scores alike, or a score at its threshold would be missed.
    rows = scores.reshape(math.prod(batch), rounds).astype(job.dtype, copy=False)
    missing = None if mask is None else mask.reshape(rows.shape)
    observed = None if missing is None else ~missing
    counts = np.full(len(rows), rounds) if observed is None else observed.sum(axis=-1)
    filled, filled_mask, delay = (_fill_up(part, job.size) for part in (rows, missing, delay))
    kept: list[list[np.ndarray]] = []
    with jax.enable_x64(job.wide), on_one_core() if job.token else contextlib.nullcontext():
        scored = rows if observed is None else np.where(observed, rows, np.inf)
        (least,) = _in_blocks(
            lambda own: best_threshold(np, scored[own].astype(float), job.levels[None])[1:],
            len(rows),
            16 * 8 * rounds,  # what is in order, its sums, and so on
        )
        for learner in job.learners:
            late = job.delay if delay is None else delay[:, 0]
            run: Any = replay_batch(learner, filled, job.levels, keep=job.keep, mask=filled_mask, delay=late)
            thresholds = [np.asarray(run.thresholds)[: len(rows)]] if job.keep == "all" else []
            if job.keep == "all":
                totals = _totals(thresholds[0], rows, job.levels, observed)
            else:
                totals = [np.asarray(part)[: len(rows)] for part in (run.covered, run.total_loss, run.total_threshold)]
            covered, loss, threshold = totals
            count = counts[:, None]
            # For a series without a score regret is 0, as a total is, and means are NaN.
            with np.errstate(invalid="ignore", divide="ignore"):
                regret = np.where(count > 0, loss - least, 0)
                kept.append([*thresholds, covered / count, loss / count, regret, threshold / count])
    # Of a single learner nothing is copied.
    stacked = (np.stack(parts, axis=1) if len(parts) > 1 else parts[0][:, None] for parts in zip(*kept, strict=True))
    return (*(a.reshape(batch + job.shape + a.shape[2:]) for a in stacked), counts.reshape(batch))


def _fill_up(rows: np.ndarray | None, size: int) -> np.ndarray | None:
    """Repeat the last series until there are as many as in the other chunks."""
    if rows is None or len(rows) in (0, size):
        return rows
    return np.concatenate([rows, np.broadcast_to(rows[-1:], (size - len(rows), rows.shape[-1]))])


def _totals(
    thresholds: np.ndarray, scores: np.ndarray, levels: np.ndarray, observed: np.ndarray | None
) -> list[np.ndarray]:
    def add(own: slice) -> tuple[np.ndarray, ...]:
        found = totals_of(thresholds[own], scores[own], levels, None if observed is None else observed[own])
        return found.covered, found.loss.high, found.threshold.high  # type: ignore[return-value]

    return _in_blocks(add, len(scores), thresholds[:1].nbytes)


def _in_blocks(measure: Callable[[slice], tuple[np.ndarray, ...]], count: int, size: int) -> list[np.ndarray]:
    """Measure blocks of series, each of which takes ``size`` bytes, on all cores."""
    blocks = blocks_of_sequences(count, size) or [slice(0)]
    return [
        np.concatenate(parts)
        for parts in zip(*in_threads(functools.partial(measure, own) for own in blocks), strict=True)
    ]


def _check_block(
    learners: Sequence[Any],
    scores: np.ndarray,
    mask: np.ndarray | None,
    names: Sequence[str],
    labels: Sequence[Any],
    times: Any,
) -> None:
    """Refuse scores that are not finite or outside the learners' support."""
    ends = [support_of(learner) for learner in learners]
    low, high = max(float(end[0]) for end in ends), min(float(end[1]) for end in ends)
    if mask is None and scores.size and low <= scores.min() and scores.max() <= high and np.isfinite(scores.max()):
        return  # no mask as long as the scores was needed to see it
    looked_at = True if mask is None else ~mask
    for bad, why in (
        (
            ~np.isfinite(scores) & looked_at,
            "scores must be finite; drop the series, or say which scores are missing: with mask=, or --missing on the "
            "command line",
        ),
        (
            ((scores < low) | (scores > high)) & looked_at,
            f"outside the support [{low:g}, {high:g}]; rescale the scores, or widen it",
        ),
    ):
        if not bad.any():
            continue
        index = tuple(int(i) for i in np.argwhere(bad)[0])
        words = [np.asarray(label).reshape(-1)[i] for label, i in zip(labels, index, strict=False)]
        words.append(times[index if times.ndim > 1 else index[-1]])
        where = ", ".join(f"{name}={format_label(word)}" for name, word in zip(names, words, strict=True))
        more = int(np.count_nonzero(bad)) - 1
        others = f" ({more} more in the same block)" if more else ""
        raise ValueError(f"scores at {where} is {scores[index]!s}: {why}{others}")


def _check_times(dim: str, times: np.ndarray) -> None:
    """Refuse shared times that do not increase or are missing."""
    import pandas as pd

    index = pd.Index(times)
    if index.hasnans:
        raise ValueError(f"{dim}[{int(np.argmax(index.isna()))}] is missing: a score needs a time")
    twice = index.duplicated()
    if twice.any():
        raise ValueError(f"{dim}={format_label(times[twice.argmax()])} comes twice: leave one out")
    if times.dtype.kind in "iufMm" and not index.is_monotonic_increasing:
        at = int(np.argmax(times[1:] < times[:-1]))
        after, before = format_label(times[at + 1]), format_label(times[at])
        raise ValueError(f"{dim}={after} comes after {before}: sort the scores, scores.sortby({dim!r})")


def format_label(label: Any) -> str:
    """Write the label of a series or of a time, as short as it is exact."""
    if hasattr(label, "to_datetime64"):
        label = label.to_datetime64()
    if isinstance(label, np.datetime64):
        return str(np.datetime_as_string(label, unit="auto"))
    return repr(label.item() if isinstance(label, np.generic) else label)


def fit_belief(scores: Any, learner: Any = Quantized(1024)) -> State:
    """
    Find the state of a learner that has seen a stream, without its thresholds.

    Parameters
    ----------
    scores : dask.array.Array, xarray.DataArray or array_like, shape (T,)
        Scores in time order. The states of the chunks of a Dask array are found in parallel, and merged in that order.
    learner : Learner
        One that merges: :class:`dpconformal.Quantized`, whose state has one size for any number of scores,
        :class:`dpconformal.Exact`, or an empirical one.

    Returns
    -------
    State
        As if all scores had been observed one after the other.

    Raises
    ------
    ValueError
        Naming the index of a bad score; or if the learner does not merge.

    Examples
    --------
    >>> import dask.array as da
    >>> import dpconformal as dpc, numpy as np
    >>> stream = da.from_array(np.linspace(0, 1, 1001), chunks=100)
    >>> learner = dpc.Quantized(500, discount=0.999)
    >>> state = dpc.fit_belief(stream, learner)
    >>> int(state.seen), bool(learner.quantile(state, 0.9) > 0.9)
    (1001, True)
    """
    check_time_index("scores", scores)
    scores = getattr(scores, "variable", scores)
    scores = getattr(scores, "data", scores) if hasattr(scores, "dims") else scores
    if not hasattr(scores, "dask"):
        scores = np.asarray(scores)
    if scores.ndim != 1:
        raise ValueError(f"scores has shape {scores.shape}: pass one stream, shape (T,)")
    while hasattr(learner, "learner"):  # a head asks for other levels, of the same belief
        learner = learner.learner
    wide, dtype = bool(jax.config.read("jax_enable_x64")), float_dtype(as_numbers("scores", np.empty(0, scores.dtype)))
    if not hasattr(scores, "dask"):
        return jax.tree.map(jnp.asarray, _fit_part(learner, None, wide, 0, scores))
    if not hasattr(learner, "merge"):
        raise ValueError(f"learner = {learner!r}: does not merge; take Quantized or Exact, or replay the stream whole")
    if np.isnan(scores.shape[0]):
        raise ValueError("scores has chunks of unknown size: call scores.compute_chunk_sizes() first")
    import dask

    # The bins of a Quantized may depend on how many scores there will be; other states are as large as the part.
    begin = _on_host(fresh_state(learner, scores.shape[0], dtype)) if isinstance(learner, Quantized) else None
    fit = dask.delayed(functools.partial(_fit_part, learner, begin, wide), pure=True)
    merge = dask.delayed(functools.partial(_merge_states, learner, wide), pure=True)
    starts = np.cumsum([0, *scores.chunks[0]]).tolist()
    states = [fit(start, chunk) for start, chunk in zip(starts, scores.to_delayed(), strict=False)]
    (state,) = dask.compute(merge_as_tree(merge, states))
    return jax.tree.map(jnp.asarray, state)


def _fit_part(learner: Any, begin: State, wide: bool, start: int, scores: np.ndarray) -> State:
    """Return the state of a part of the stream, which begins at an index; ``wide``: whether JAX has 64 bits there."""
    with jax.enable_x64(wide):
        _check_block([learner], scores, None, ["index"], [], np.arange(start, start + scores.size))
        scores = np.asarray(checked_scores(scores, support_of(learner)))
        begin = fresh_state(learner, scores.size, scores.dtype) if begin is None else begin
        no_levels = jnp.zeros(0, scores.dtype)
        return _on_host(run_replay(learner, begin, True, Rounds(scores, no_levels), "summary")[1])


def _merge_states(learner: Any, wide: bool, states: list[State]) -> State:
    """Merge states pair by pair."""
    with jax.enable_x64(wide):
        while len(states) > 1:
            pairs = [states[k : k + 2] for k in range(0, len(states), 2)]
            states = [learner.merge(*pair) if len(pair) == 2 else pair[0] for pair in pairs]
        return _on_host(states[0])


def _on_host(state: State) -> State:
    """Bring a state into memory that may travel between processes."""
    return jax.tree.map(np.asarray, state)


def merge_as_tree(merge: "Callable[[list[Delayed]], Delayed]", parts: "list[Delayed]") -> "Delayed":
    """Merge parts that Dask will compute, a few in each task, in their order."""
    while len(parts) > 1:
        parts = [merge(parts[k : k + FAN_IN]) for k in range(0, len(parts), FAN_IN)]
    return parts[0]
