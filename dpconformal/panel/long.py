"""Long tables, a row for each score with its series and time, as panels and back: in memory, or in parts."""

import itertools
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

import numpy as np

from dpconformal.panel.replaying import METRICS, format_label, merge_as_tree
from dpconformal.validation import format_level

if TYPE_CHECKING:
    import pandas as pd
    import xarray as xr
    from dask.delayed import Delayed

ROUND = "round"
RESERVED = (ROUND, "rounds", "level", "thresholds", *METRICS)
NUMBERS = 2**20  # scores of a chunk, about: with ten levels 80 MB of thresholds
CHUNKS = 32  # at least, so that there is work for some cores; unless they would be smaller than
SMALLEST = 2**14  # scores


def from_long(frame: Any, id: str = "series", time: str = "time", score: str = "score") -> "xr.DataArray":
    """
    Make a panel of a long table.

    Parameters
    ----------
    frame : pandas.DataFrame or dask.dataframe.DataFrame
        A row for each score; those of a series in the order of time.
    id, time, score : str
        Its columns: which series, when, and the score.

    Returns
    -------
    xarray.DataArray, shape (series, round)
        Scores of each series, in ascending order, with NaN after the end of the shorter ones. The times are a
        coordinate of the same shape. Of a Dask table it is lazy, after a look at every row.

    Raises
    ------
    ValueError
        Naming series and time of a row: if an id or time is missing, of mixed types, comes twice or too late, or if a
        score is no finite number.

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
        Columns: the dimensions, the score, and ``threshold_0.9`` for each level.

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
    where = np.nonzero(spread.notnull().values)
    times = next((coord for coord in scores.coords.values() if ROUND in coord.dims and coord.ndim > 1), None)
    table: dict[Any, np.ndarray] = {}
    for dim, index in zip(axes, where, strict=True):
        if dim == ROUND and times is not None:  # times that differ from series to series stand for the round
            own = times.values[tuple(where[axes.index(name)] for name in times.dims)]
            table[times.name] = own.astype(times.attrs.get("in_table", times.dtype))
        else:
            table[dim] = thresholds[dim].values[index]
    table[scores.name or "score"] = spread.values[where]
    found = thresholds.values[where]
    table |= {f"threshold_{format_level(level)}": found[:, k] for k, level in enumerate(panel["level"].values)}
    return pd.DataFrame(table)


class Columns(NamedTuple):
    """Names of the columns of a long table: which series, when, and the score."""

    id: str
    time: str
    score: str

    def check_in(self, names: Collection[str], owner: str) -> None:
        """Refuse a table without one of the columns."""
        for what, name in self._asdict().items():
            if name not in names:
                raise ValueError(f"{what} = {name!r}: {owner} has columns {', '.join(map(repr, names))}")


def check_columns(id: str, time: str, score: str) -> Columns:
    """Check the names of columns."""
    columns = Columns(id, time, score)
    if len(set(columns)) < 3:
        raise ValueError(f"id = {id!r}, time = {time!r}, score = {score!r}: name three columns")
    for what, name in columns._asdict().items():
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


def _sort_by(keys: np.ndarray, rows: Rows) -> tuple[np.ndarray, Rows]:
    """Sort rows by a key each; rows of one key stay in their order."""
    if (np.diff(keys) >= 0).all():
        return keys, rows
    order = np.argsort(keys, kind="stable")
    return keys[order], rows.take(order)


def checked_rows(frame: "pd.DataFrame", columns: Columns, first: int = 0) -> Rows:
    """Return the columns of a long table; refuse rows with a missing or invalid value."""
    columns.check_in(frame.columns, "the table")
    if not len(frame):  # columns without a row have no type
        return Rows(np.empty(0, object), np.empty(0), np.empty(0))
    for name, other, remedy in (
        (columns.id, columns.time, "say which series the score belongs to"),
        (columns.time, columns.id, "a score needs a time"),
    ):
        missing = frame[name].isna().to_numpy()
        if missing.any():
            row = int(missing.argmax())
            where = f"row {first + row}, {other}={format_label(frame[other].iloc[row])}"
            raise ValueError(f"{name} is missing in {where}: {remedy}")
        if frame[name].dtype == object:
            kinds = frame[name].map(type)
            mixed = (kinds != kinds.iloc[0]).to_numpy()
            if mixed.any():
                row = int(mixed.argmax())
                values = f"{frame[name].iloc[0]!r} in row {first} and {frame[name].iloc[row]!r} in row {first + row}"
                raise ValueError(f"{name} has mixed types, such as {values}: convert the column to one")
    ids = frame[columns.id]
    if ids.dtype.name == "category":
        ids = ids.astype(ids.cat.categories.dtype)
    plain = ids.to_numpy() if ids.dtype.kind in "iufbM" else ids.to_numpy(object)
    return Rows(plain, _plain_times(frame[columns.time], columns), _plain_scores(frame, columns))


def _plain_times(times: "pd.Series", columns: Columns) -> np.ndarray:
    """Return times as numbers or dates, which an array can hold."""
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
    """Return the scores as floats, of 32 bits if they are."""
    column = frame[columns.score]
    if column.dtype.kind not in "iuf":
        import pandas as pd

        odd = pd.to_numeric(column, errors="coerce").isna().to_numpy()
        if column.dtype.kind in "bMmc" or odd.any():
            _refuse_score(frame, columns, int(odd.argmax()), "no finite number; mend the row, or leave it out")
        why = f"text in a column of dtype {column.dtype}; convert the column, with pandas.to_numeric"
        _refuse_score(frame, columns, 0, why)
    single = (column.dtype.kind, column.dtype.itemsize) == ("f", 4)
    scores = column.to_numpy(np.float32 if single else float, na_value=np.nan)
    bad = ~np.isfinite(scores)
    if bad.any():
        _refuse_score(frame, columns, int(bad.argmax()), "no finite number; a score that is missing has no row")
    return scores


def _refuse_score(frame: "pd.DataFrame", columns: Columns, row: int, why: str) -> NoReturn:
    series, time, score = (frame[name].iloc[row] for name in columns)
    where = f"{columns.id}={format_label(series)}, {columns.time}={format_label(time)}"
    raise ValueError(f"{columns.score} at {where} is {format_label(score)}: {why}")


def group_by_series(rows: Rows, columns: Columns) -> tuple[np.ndarray, np.ndarray, Rows]:
    """
    Return the series in ascending order, how many rows each has, and the rows of one series after another.

    Series whose times do not increase are refused.
    """
    import pandas as pd

    codes, names = pd.factorize(rows.ids, sort=True)
    codes, rows = _sort_by(codes, rows)
    bad = (codes[1:] == codes[:-1]) & (rows.times[1:] <= rows.times[:-1])
    if bad.any():
        row = int(bad.argmax())
        whose, time = f"{columns.id}={format_label(rows.ids[row])}", columns.time
        before, after = format_label(rows.times[row]), format_label(rows.times[row + 1])
        if rows.times[row] == rows.times[row + 1]:
            raise ValueError(f"{whose} has two scores at {time}={after}: leave one out, or name them two series")
        raise ValueError(f"{whose} is not in order: {time}={after} comes after {before}; sort the table by {time}")
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

    @property
    def ends(self) -> np.ndarray:
        """First and last series; nothing without a row."""
        return self.names[[0, -1]] if self.names.size else self.names


def gather_parts(
    parts: "Sequence[Delayed]", columns: Columns, numbers: int = NUMBERS, lengths: Sequence[int] | None = None
) -> "xr.DataArray":
    """
    Make a panel of a table in parts.

    A part is cut at the borders of chunks. Where files hold whole series, that is one or two cuts; where each file
    holds one day of all series, every chunk takes something from every file.
    """
    import dask
    import dask.array as da

    count, cut = dask.delayed(count_rows_per_series), dask.delayed(_split_by_chunk)
    if lengths is None:
        lengths = dask.compute(*[dask.delayed(len)(part) for part in parts])
    starts = np.cumsum([0, *lengths]).tolist()
    tallies = [count(part, columns, start) for part, start in zip(parts, starts, strict=False)]
    if not tallies:
        raise ValueError("the table has no rows")
    tally, *ends = dask.compute(merge_as_tree(dask.delayed(_add), tallies), *[one.ends for one in tallies])
    names, rounds = tally.names, int(tally.counts.max(initial=0))
    if not names.size:
        raise ValueError("the table has no rows")
    size = series_of_a_chunk(len(names), rounds, numbers)
    firsts = names[::size]
    pieces = [cut(part, columns, firsts) for part in parts]
    scores, times = [], []
    for number, first in enumerate(firsts):
        own = names[number * size : (number + 1) * size]
        given = [
            piece[number]
            for piece, end in zip(pieces, ends, strict=True)
            if len(end) and end[0] <= own[-1] and first <= end[1]
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
    chunk, rows = _sort_by(np.searchsorted(firsts, rows.ids, side="right") - 1, rows)
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
