"""Rows of a long table, (series, time, score): refused by series and time where they make no panel."""

from typing import Any, NamedTuple

import numpy as np

from dpconformal.panel.blocks import METRICS
from dpconformal.panel.checking import written

ROUND = "round"
RESERVED = (ROUND, "rounds", "level", "thresholds", *METRICS)


class Columns(NamedTuple):
    """Names of the columns of a long table: which series, when, and the score."""

    id: str
    time: str
    score: str


def named(id: str, time: str, score: str) -> Columns:
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


def checked_rows(frame: Any, columns: Columns, first: int = 0) -> Rows:
    """Take the columns of a long table apart, and refuse rows that mean nothing by themselves."""
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
            where = f"row {first + row}, {other}={written(frame[other].iloc[row])}"
            raise ValueError(f"{name} is missing in {where}: {remedy}")
        _check_one_type(column, name, first)
    return Rows(_plain_ids(ids), _plain_times(times, columns), _plain_scores(frame, columns))


def _check_one_type(column: Any, name: str, first: int) -> None:
    if column.dtype != object:
        return
    kinds = column.map(type)
    other = (kinds != kinds.iloc[0]).to_numpy() if len(column) else np.zeros(0, bool)
    if other.any():
        row = int(other.argmax())
        values = f"{column.iloc[0]!r} in row {first} and {column.iloc[row]!r} in row {first + row}"
        raise ValueError(f"{name} has mixed types, such as {values}: convert the column to one")


def _plain_ids(ids: Any) -> np.ndarray:
    if ids.dtype.name == "category":
        ids = ids.astype(ids.cat.categories.dtype)
    if ids.dtype.kind in "iufb" or ids.dtype.kind == "M":
        return ids.to_numpy()
    return ids.to_numpy(object)


def _plain_times(times: Any, columns: Columns) -> np.ndarray:
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


def _plain_scores(frame: Any, columns: Columns) -> np.ndarray:
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
        why = "no finite number; a score that is missing has no row"
        _complain(frame, columns, int(bad.argmax()), why)
    return scores if scores.dtype == np.float32 else scores.astype(float)


def _complain(frame: Any, columns: Columns, row: int, why: str) -> None:
    series, time, score = (frame[name].iloc[row] for name in columns)
    where = f"{columns.id}={written(series)}, {columns.time}={written(time)}"
    raise ValueError(f"{columns.score} at {where} is {written(score)}: {why}")


def check_order(rows: Rows, codes: np.ndarray, columns: Columns) -> None:
    """Refuse series that go back in time, or stand still."""
    bad = (codes[1:] == codes[:-1]) & (rows.times[1:] <= rows.times[:-1])
    if not bad.any():
        return
    row = int(bad.argmax())
    whose = f"{columns.id}={written(rows.ids[row])}"
    before, after = written(rows.times[row]), written(rows.times[row + 1])
    if rows.times[row] == rows.times[row + 1]:
        raise ValueError(f"{whose} has two scores at {columns.time}={after}: leave one out, or name them two series")
    raise ValueError(
        f"{whose} is not in order: {columns.time}={after} comes after {before}; sort the table by {columns.time}"
    )
