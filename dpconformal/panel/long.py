"""Long tables, a row for each score with its series and time, as panels and back: in memory, or in parts."""

import itertools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

import numpy as np

from dpconformal.panel.replaying import METRICS, format_label
from dpconformal.validation import format_level

if TYPE_CHECKING:
    import pandas as pd
    import xarray as xr

ROUND = "round"
RESERVED = (ROUND, "rounds", "level", "thresholds", *METRICS)
FAN_IN = 8  # tallies that a task adds up
NUMBERS = 2**20  # scores of a chunk, about: with ten levels 80 MB of thresholds
CHUNKS = 32  # at least, so that there is work for some cores; unless they would be smaller than
SMALLEST = 2**14  # scores


def from_long(frame: Any, id: str = "series", time: str = "time", score: str = "score") -> "xr.DataArray":
    """
    Make a panel of a long table.

    Parameters
    ----------
    frame : pandas.DataFrame or dask.dataframe.DataFrame
        A row for each score. The rows of a series are in the order of time, and may be anywhere among those of others.
    id, time, score : str
        Its columns: which series, when, and the score.

    Returns
    -------
    xarray.DataArray, shape (series, round)
        Scores of each series, one after the other, and NaN after the end of the shorter ones; series in ascending
        order. The times are a coordinate of the same shape. Of a Dask table it is lazy, after a look at every row:
        for the series, their lengths, and rows to refuse.

    Raises
    ------
    ValueError
        Naming series and time: for a missing id or time, mixed types, a score that is no finite number, a time that
        comes twice or too late.

    See Also
    --------
    replay_panel : to be called with ``dim="round"`` and ``mask=scores.isnull()``.
    to_long : the way back.

    Examples
    --------
    >>> import dpconformal as dpc, pandas as pd
    >>> table = pd.DataFrame({"series": ["B", "A", "B"], "time": [1, 1, 2], "score": [0.5, 0.2, 0.7]})
    >>> scores = dpc.panel.from_long(table)
    >>> scores.values
    array([[0.2, nan],
           [0.5, 0.7]])
    >>> panel = dpc.replay_panel(scores, dpc.Exact(), [0.9], dim="round", mask=scores.isnull())
    >>> dpc.panel.to_long(panel, scores).round(3)
      series  time  score  threshold_0.9
    0      A     1    0.2          0.900
    1      B     1    0.5          0.900
    2      B     2    0.7          0.859
    """
    columns = check_columns(id, time, score)
    if hasattr(frame, "to_delayed"):
        return gather_parts(frame.to_delayed(), columns)
    if not hasattr(frame, "columns"):
        raise ValueError(f"frame is a {type(frame).__name__}: pass a pandas or Dask DataFrame")
    names, counts, rows = group_by_series(checked_rows(frame, columns), columns)
    scores, times = pad_series(rows, counts, int(counts.max(initial=0)))
    return as_panel(scores, times, names, columns, rows.times.dtype)


def to_long(panel: "xr.Dataset", scores: "xr.DataArray") -> "pd.DataFrame":
    """
    Make a long table of a panel: a row for each score, with its thresholds beside it.

    Parameters
    ----------
    panel : xarray.Dataset
        From :func:`replay_panel`, with thresholds.
    scores : xarray.DataArray
        What it was made of. Missing ones get no row.

    Returns
    -------
    pandas.DataFrame
        Columns: the dimensions, series and time first; the score; and ``threshold_0.9`` for each level.

    Raises
    ------
    ValueError
        If there are no thresholds, or the scores are not those of the panel.

    Examples
    --------
    >>> import dpconformal as dpc, xarray as xr
    >>> scores = xr.DataArray([[0.2, 0.9]], {"store": ["A"], "time": [5, 6]}, ["store", "time"], name="residual")
    >>> dpc.panel.to_long(dpc.replay_panel(scores, dpc.Exact(), [0.5]), scores).round(3)
      store  time  residual  threshold_0.5
    0     A     5       0.2          0.500
    1     A     6       0.9          0.293
    """
    import pandas as pd
    import xarray as xr

    if "thresholds" not in panel:
        raise ValueError("panel has no thresholds: replay it with keep='all'")
    thresholds = panel["thresholds"].transpose(..., "level")
    axes = thresholds.dims[:-1]
    try:
        xr.align(thresholds, scores, join="exact", copy=False)
    except ValueError as error:
        raise ValueError(f"scores has other labels than panel, or another order: {error}") from None
    for dim in scores.dims:
        if dim not in axes or scores.sizes[dim] != thresholds.sizes[dim]:
            sizes = f"{dict(scores.sizes)} and panel {dict(thresholds.sizes)}"
            raise ValueError(f"scores has sizes {sizes}: pass the scores that the panel was made of")
    spread = scores.broadcast_like(thresholds.isel(level=0)).transpose(*axes)
    values = np.asarray(spread.values)
    where = np.nonzero(~np.isnan(values))
    table: dict[Any, np.ndarray] = {}
    for dim, index in zip(axes, where, strict=True):
        for name, coordinate in scores.coords.items():  # times that differ from series to series stand for the round
            if dim == ROUND and dim in coordinate.dims and coordinate.ndim > 1:
                at = tuple(where[axes.index(own)] for own in coordinate.dims)
                table[name] = coordinate.values[at].astype(coordinate.attrs.get("in_table", coordinate.dtype))
                break
        else:
            table[dim] = thresholds[dim].values[index]
    table[scores.name or "score"] = values[where]
    found = np.asarray(thresholds.values)[where]
    table |= {f"threshold_{format_level(level)}": found[:, k] for k, level in enumerate(panel["level"].values)}
    return pd.DataFrame(table)


class Columns(NamedTuple):
    """Names of the columns of a long table: which series, when, and the score."""

    id: str
    time: str
    score: str


def check_columns(id: str, time: str, score: str) -> Columns:
    """Check the names of columns."""
    columns = Columns(id, time, score)
    if len(set(columns)) < 3:
        raise ValueError(f"id = {id!r}, time = {time!r}, score = {score!r}: name three columns")
    for what, name in zip(columns._fields, columns, strict=True):
        if name in RESERVED:
            raise ValueError(f"{what} = {name!r}: a panel has something else of this name; rename the column")
    return columns


class Rows(NamedTuple):
    """Checked rows of a long table, N of them."""

    ids: np.ndarray  # (N,), series
    times: np.ndarray  # (N,)
    scores: np.ndarray  # (N,), finite

    def take(self, index: np.ndarray | slice) -> "Rows":
        """Return some rows, or all in another order."""
        return Rows(self.ids[index], self.times[index], self.scores[index])


def checked_rows(frame: "pd.DataFrame", columns: Columns, first: int = 0) -> Rows:
    """Return the columns of a long table; refuse rows with a missing or invalid value."""
    for what, name in zip(columns._fields, columns, strict=True):
        if name not in frame.columns:
            raise ValueError(f"{what} = {name!r}: the table has columns {', '.join(map(repr, frame.columns))}")
    if not len(frame):  # columns without a row have no type
        return Rows(np.empty(0, object), np.empty(0), np.empty(0))
    ids, times = frame[columns.id], frame[columns.time]
    for name, column, other, remedy in (
        (columns.id, ids, columns.time, "say which series the score belongs to"),
        (columns.time, times, columns.id, "a score needs a time"),
    ):
        missing = column.isna().to_numpy()
        if missing.any():
            row = int(missing.argmax())
            where = f"row {first + row}, {other}={format_label(frame[other].iloc[row])}"
            raise ValueError(f"{name} is missing in {where}: {remedy}")
        _check_one_type(column, name, first)
    return Rows(_plain_ids(ids), _plain_times(times, columns), _plain_scores(frame, columns))


def _check_one_type(column: "pd.Series", name: str, first: int) -> None:
    if column.dtype != object:
        return
    kinds = column.map(type)
    other = (kinds != kinds.iloc[0]).to_numpy()
    if other.any():
        row = int(other.argmax())
        values = f"{column.iloc[0]!r} in row {first} and {column.iloc[row]!r} in row {first + row}"
        raise ValueError(f"{name} has mixed types, such as {values}: convert the column to one")


def _plain_ids(ids: "pd.Series") -> np.ndarray:
    if ids.dtype.name == "category":
        ids = ids.astype(ids.cat.categories.dtype)
    return ids.to_numpy() if ids.dtype.kind in "iufbM" else ids.to_numpy(object)


def _plain_times(times: "pd.Series", columns: Columns) -> np.ndarray:
    zone = getattr(times.dtype, "tz", None) or getattr(getattr(times.dtype, "pyarrow_dtype", None), "tz", None)
    if zone is not None:
        remedy = f"frame[{columns.time!r}].dt.tz_convert('UTC').dt.tz_localize(None)"
        raise ValueError(f"{columns.time} has a time zone, which arrays do not have: pass {remedy}")
    if times.dtype.kind not in "iufMm":
        remedy = "convert it, with pandas.to_datetime for instance"
        raise ValueError(f"{columns.time} has dtype {times.dtype}, neither numbers nor dates: {remedy}")
    values = times.to_numpy()
    if values.dtype.kind in "iu" and values.size and np.abs(values).max() > 2**53:
        raise ValueError(f"{columns.time} has whole numbers above 2^53, such as {values.max()}: pass dates")
    return values


def _plain_scores(frame: "pd.DataFrame", columns: Columns) -> np.ndarray:
    column = frame[columns.score]
    if column.dtype.kind not in "iuf" or not isinstance(column.dtype, np.dtype):
        import pandas as pd

        numbers = pd.to_numeric(column, errors="coerce")
        odd = numbers.isna().to_numpy()
        if column.dtype.kind in "bMmc" or odd.any():
            _complain(frame, columns, int(odd.argmax()), "no finite number; mend the row, or leave it out")
        if column.dtype.kind not in "iuf":
            why = f"text in a column of dtype {column.dtype}; convert the column, with pandas.to_numeric"
            _complain(frame, columns, 0, why)
        column = numbers
    scores = column.to_numpy()
    bad = ~np.isfinite(scores)
    if bad.any():
        _complain(frame, columns, int(bad.argmax()), "no finite number; a score that is missing has no row")
    return scores if scores.dtype == np.float32 else scores.astype(float)


def _complain(frame: "pd.DataFrame", columns: Columns, row: int, why: str) -> NoReturn:
    series, time, score = (frame[name].iloc[row] for name in columns)
    where = f"{columns.id}={format_label(series)}, {columns.time}={format_label(time)}"
    raise ValueError(f"{columns.score} at {where} is {format_label(score)}: {why}")


def check_order(rows: Rows, codes: np.ndarray, columns: Columns) -> None:
    """Refuse series whose times do not increase."""
    bad = (codes[1:] == codes[:-1]) & (rows.times[1:] <= rows.times[:-1])
    if not bad.any():
        return
    row = int(bad.argmax())
    whose = f"{columns.id}={format_label(rows.ids[row])}"
    before, after = format_label(rows.times[row]), format_label(rows.times[row + 1])
    if rows.times[row] == rows.times[row + 1]:
        raise ValueError(f"{whose} has two scores at {columns.time}={after}: leave one out, or name them two series")
    raise ValueError(
        f"{whose} is not in order: {columns.time}={after} comes after {before}; sort the table by {columns.time}"
    )


def group_by_series(rows: Rows, columns: Columns) -> tuple[np.ndarray, np.ndarray, Rows]:
    """Return the series in ascending order, how many rows each has, and the rows of one series after another."""
    import pandas as pd

    codes, names = pd.factorize(rows.ids, sort=True)
    if (np.diff(codes) < 0).any():
        order = np.argsort(codes, kind="stable")
        codes, rows = codes[order], rows.take(order)
    check_order(rows, codes, columns)
    return np.asarray(names), np.bincount(codes, minlength=len(names)), rows


def pad_series(rows: Rows, counts: np.ndarray, rounds: int) -> tuple[np.ndarray, np.ndarray]:
    """Return scores and times as arrays (series, rounds), padded at the end."""
    codes = np.repeat(np.arange(counts.size), counts)
    place = np.arange(codes.size) - (np.cumsum(counts) - counts)[codes]
    scores = np.full((len(counts), rounds), np.nan, rows.scores.dtype)
    dated = rows.times.dtype.kind in "Mm"
    times = np.full(scores.shape, np.array("NaT", rows.times.dtype) if dated else np.nan)
    scores[codes, place], times[codes, place] = rows.scores, rows.times
    return scores, times


def as_panel(scores: Any, times: Any, names: np.ndarray, columns: Columns, kind: np.dtype[Any]) -> "xr.DataArray":
    """Make a DataArray with series and times as coordinates."""
    import xarray as xr

    dims = (columns.id, ROUND)
    when = xr.Variable(dims, times, {"in_table": str(kind)})
    return xr.DataArray(scores, {columns.id: names, columns.time: when}, dims, name=columns.score)


class Tally(NamedTuple):
    """Series and types of some rows."""

    names: np.ndarray  # (B,), series, ascending
    counts: np.ndarray  # (B,), rows of each
    times: Any  # dtype of the column; None without a row
    scores: Any  # the same


def gather_parts(
    parts: Sequence[Any], columns: Columns, numbers: int = NUMBERS, lengths: Sequence[int] | None = None
) -> "xr.DataArray":
    """
    Make a panel of a table in parts.

    A part is cut at the borders of chunks. Where files hold whole series, that is one or two cuts; where each file
    holds one day of all series, every chunk takes something from every file.
    """
    import dask
    import dask.array as da

    if lengths is None:
        lengths = dask.compute(*[dask.delayed(len)(part) for part in parts])
    starts = np.cumsum([0, *lengths]).tolist()
    tallies = [
        dask.delayed(count_rows_per_series)(part, columns, start) for part, start in zip(parts, starts, strict=False)
    ]
    tally, *ends = dask.compute(_total(tallies), *[dask.delayed(_ends)(one) for one in tallies])
    names, rounds = tally.names, int(tally.counts.max(initial=0))
    if not names.size:
        raise ValueError("the table has no rows")
    size = series_of_a_chunk(len(names), rounds, numbers)
    firsts = names[::size]
    cut = [dask.delayed(_split_by_chunk)(part, columns, firsts) for part in parts]
    scores, times = [], []
    for number, first in enumerate(firsts):
        own = names[number * size : (number + 1) * size]
        given = [
            one[number] for one, end in zip(cut, ends, strict=True) if end and end[0] <= own[-1] and first <= end[1]
        ]
        both = dask.delayed(_chunk_arrays, nout=2)(given, columns, len(own), rounds, tally.scores)
        shape = len(own), rounds
        scores.append(da.from_delayed(both[0], shape, tally.scores))
        times.append(da.from_delayed(both[1], shape, tally.times if tally.times.kind in "Mm" else float))
    return as_panel(da.concatenate(scores), da.concatenate(times), names, columns, tally.times)


def series_of_a_chunk(series: int, rounds: int, numbers: int) -> int:
    """Choose how many series a chunk has, from the panel alone: an interrupted run finds the same chunks anywhere."""
    few = max(-(-series // CHUNKS), SMALLEST // max(rounds, 1))
    return max(1, min(few, numbers // max(rounds, 1), series))


def count_rows_per_series(frame: "pd.DataFrame", columns: Columns, first: int) -> Tally:
    """Check rows, and count those of each series."""
    rows = checked_rows(frame, columns, first)
    if not len(frame):
        return Tally(np.empty(0, object), np.empty(0, int), None, None)
    names, counts = np.unique(rows.ids, return_counts=True)
    return Tally(names, counts, rows.times.dtype, rows.scores.dtype)


def _ends(tally: Tally) -> tuple[Any, Any] | None:
    return (tally.names[0], tally.names[-1]) if tally.names.size else None


def _total(tallies: list[Any]) -> Any:
    import dask

    add = dask.delayed(_add)
    while True:  # one alone, too: for what is checked there
        tallies = [add(tallies[k : k + FAN_IN]) for k in range(0, len(tallies), FAN_IN)]
        if len(tallies) <= 1:
            return tallies[0] if tallies else Tally(np.empty(0, object), np.empty(0, int), None, None)


def _add(tallies: list[Tally]) -> Tally:
    import pandas as pd

    some = [tally for tally in tallies if tally.names.size]
    if not some:
        return tallies[0]
    words = [tally.names[0] for tally in some]
    other = [word for word in words if isinstance(word, str) != isinstance(words[0], str)]
    if other:
        raise ValueError(f"series have mixed types, such as {words[0]!r} and {other[0]!r}: convert the column to one")
    kinds = {
        "n" if tally.times.kind in "iuf" else tally.times.kind: word for tally, word in zip(some, words, strict=True)
    }
    if len(kinds) > 1:
        whose = " and ".join(map(repr, kinds.values()))
        raise ValueError(f"times are numbers here and dates there, such as those of series {whose}: choose one")
    total = pd.Series(np.concatenate([t.counts for t in some]), np.concatenate([t.names for t in some]))
    total = total.groupby(level=0).sum().sort_index()
    times, scores = (np.result_type(*(getattr(t, field) for t in some)) for field in ("times", "scores"))
    return Tally(total.index.to_numpy(), total.to_numpy(), times, scores)


def _split_by_chunk(frame: "pd.DataFrame", columns: Columns, firsts: np.ndarray) -> list[Rows]:
    """Split rows by the chunk that they belong to."""
    rows = checked_rows(frame, columns)
    chunk = np.searchsorted(firsts, rows.ids, side="right") - 1
    if (np.diff(chunk) < 0).any():
        order = np.argsort(chunk, kind="stable")
        chunk, rows = chunk[order], rows.take(order)
    borders = np.searchsorted(chunk, np.arange(len(firsts) + 1))
    return [rows.take(slice(a, b)) for a, b in itertools.pairwise(borders)]


def _chunk_arrays(
    pieces: list[Rows], columns: Columns, series: int, rounds: int, dtype: Any
) -> tuple[np.ndarray, np.ndarray]:
    """Return scores and times of the series of a chunk."""
    rows = Rows(*(np.concatenate(some) for some in zip(*(piece for piece in pieces if piece.ids.size), strict=True)))
    names, counts, rows = group_by_series(rows, columns)
    if len(names) != series or counts.max() > rounds:
        raise ValueError(f"the table is not what it was: {series} series were counted, and {len(names)} came")
    scores, times = pad_series(rows, counts, rounds)
    return scores.astype(dtype, copy=False), times
