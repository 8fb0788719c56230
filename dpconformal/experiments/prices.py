"""Daily prices from a CSV file or from the data sets that come with `arch`, checked line by line."""

import csv
import importlib
import math
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import pandas as pd

# Data sets of `arch` by name, and the column to take by default. Their opening prices often repeat the last close.
BUNDLED = {"sp500": "Adj Close", "nasdaq": "Adj Close"}
LEAST = 12  # the first ten days only warm up; below this there is nothing to score
_Columns = tuple[str, list[int], list[str], list[str]]  # name of the source; lines, dates and prices as text
_FORMATS = (
    *("%Y-%m-%d", "%Y/%m/%d", "%Y%m%d", "%m/%d/%Y", "%d/%m/%Y", "%m-%d-%Y", "%d-%m-%Y", "%d.%m.%Y"),
    *("%m/%d/%y", "%d/%m/%y", "%d.%m.%y", "%d-%b-%Y", "%d-%b-%y", "%d %b %Y", "%b %d, %Y", "%B %d, %Y", "%d %B %Y"),
)


def read_prices(source: Any, column: str = "Open", start: Any = None, end: Any = None) -> "pd.Series":
    """
    Read daily prices.

    ``source``: A data set of `arch`, 1999 to 2018; or a CSV file with a header, a column ``Date`` and columns of
    prices. Its days may come in any order; its dates in any usual format, as long as day and month cannot be confused.
    """
    try:
        import pandas as pd
    except ImportError as error:
        raise ImportError(
            "reading prices needs pandas: pip install '.[experiments]' in a clone of dpconformal"
        ) from error

    first, last = (None if day is None else _day(name, day) for name, day in (("start", start), ("end", end)))
    if first is not None and last is not None and first > last:
        raise ValueError(f"start = {first} is after end = {last}: exchange them")
    if not isinstance(column, str):
        raise ValueError(f"column = {column!r}: pass the name of a column, such as 'Open'")
    is_bundled = isinstance(source, str) and source in BUNDLED
    name, lines, days, cells = _bundled(source, column) if is_bundled else _from_file(source, column)
    dates = _dates(name, lines, days)
    _refuse_repeated(name, lines, dates)
    inside = np.ones(dates.shape, bool)
    inside &= True if first is None else dates >= np.datetime64(first)
    inside &= True if last is None else dates <= np.datetime64(last)
    if inside.sum() < LEAST:
        asked = f" from {first or 'the first day'} to {last or 'the last day'}" if first or last else ""
        remedy = f"the dates run from {dates.min()} to {dates.max()}" if asked and dates.size else "add days"
        raise ValueError(f"{name}: {inside.sum()} prices{asked}, and at least {LEAST} are needed; {remedy}")
    prices = np.array([_price(name, lines[row], column, cells[row]) for row in np.flatnonzero(inside).tolist()])
    return pd.Series(prices, pd.DatetimeIndex(dates[inside], name="Date"), name=column).sort_index()


def _bundled(source: str, column: str) -> _Columns:
    """Bring a data set of `arch` into the form of a file; its first row counts as line 2, below the header."""
    try:
        frame = importlib.import_module(f"arch.data.{source}").load()
    except ImportError as error:
        raise ImportError(
            f"{source!r} comes with arch: pip install '.[experiments]' in a clone of dpconformal"
        ) from error
    place = _position(source, list(frame.columns), column)
    cells = [repr(float(price)) for price in frame.iloc[:, place]]
    return source, list(range(2, len(frame) + 2)), list(frame.index.strftime("%Y-%m-%d")), cells


def _from_file(source: Any, column: str) -> _Columns:
    """Take the dates and one column out of a CSV file, as text, with the lines they stand on."""
    try:
        path = Path(source).expanduser()
        with path.open(encoding="utf-8-sig", newline="") as file:
            reader = csv.reader(file, skipinitialspace=True, strict=True)
            rows = [(reader.line_num, row) for row in reader if row not in ([], [""])]  # but for blank lines
    except FileNotFoundError:
        known = ", ".join(map(repr, BUNDLED))
        raise ValueError(f"source = {str(source)!r}: no such file; pass a CSV file or one of {known}") from None
    except (OSError, TypeError, ValueError, RuntimeError, csv.Error) as error:
        raise ValueError(f"source = {str(source)!r} cannot be read as a CSV file: {error}") from None
    name = str(path)
    if not rows:
        raise ValueError(f"{name} is empty: expected a header such as Date,Open,High,Low,Close and a line a day")
    header = [cell.strip() for cell in rows[0][1]]
    day, price = _position(name, header, "Date"), _position(name, header, column)
    for line, row in rows[1:]:
        if len(row) != len(header):
            raise ValueError(
                f"{name}, line {line}: {len(row)} values below a header of {len(header)}; write one for each column, "
                "numbers without thousands separators"
            )
    lines, days = [line for line, _ in rows[1:]], [row[day].strip() for _, row in rows[1:]]
    return name, lines, days, [row[price].strip() for _, row in rows[1:]]


def _position(name: str, header: list[str], column: str) -> int:
    """Find a column."""
    found = [place for place, cell in enumerate(header) if cell.casefold() == column.casefold()]
    if len(found) != 1:
        fault = "there is no such column" if not found else f"there are {len(found)} columns of that name"
        raise ValueError(f"{name}, column {column!r}: {fault}; it has, separated by commas, {', '.join(header)}")
    return found[0]


def _dates(name: str, lines: list[int], days: list[str]) -> np.ndarray:
    """Read dates in the one format that fits all of them."""
    import pandas as pd

    # A time of day after an ISO date says nothing about daily prices; with two prices a day the dates repeat.
    plain = pd.Series([day[:10] if day[4:5] == "-" and day[10:11] in ("T", " ") else day for day in days], dtype=str)
    readings = {form: pd.to_datetime(plain, format=form, errors="coerce") for form in _FORMATS}
    best = min(readings, key=lambda form: int(readings[form].isna().sum()))
    unread, late = readings[best].isna().to_numpy(), (readings[best] > pd.Timestamp.now()).to_numpy()

    def complain(row: int, why: str) -> None:
        raise ValueError(f"{name}, line {lines[row]}, column 'Date' = {days[row]!r}: {why}")

    if unread.any():
        others = "" if unread.all() else f", or like the others, {best}"
        complain(int(np.argmax(unread)), f"not a date; write it as 2020-12-31{others}")
    for form, reading in readings.items():
        if reading.notna().all() and (reading != readings[best]).any():
            complain(0, f"all dates can be read as {best} and as {form}; write them as 2020-12-31")
    if "%y" in best and late.any():
        complain(int(np.argmax(late)), "lies in the future as it stands; write all years with four digits")
    return np.asarray(readings[best].to_numpy(), "datetime64[D]")


def _refuse_repeated(name: str, lines: list[int], dates: np.ndarray) -> None:
    order = np.argsort(dates, kind="stable")
    repeated = np.flatnonzero(dates[order][1:] == dates[order][:-1])
    if repeated.size:
        one, two = order[repeated[0]], order[repeated[0] + 1]
        raise ValueError(
            f"{name}, line {lines[two]}, column 'Date' = {dates[two]}: also on line {lines[one]}; keep one price a day"
        )


def _price(name: str, line: int, column: str, cell: str) -> float:
    try:
        price = math.nan if "_" in cell else float(cell)
    except ValueError:
        price = math.nan
    if not 0 < price < math.inf:
        raise ValueError(
            f"{name}, line {line}, column {column!r} = {cell!r}: a price is a positive number; correct the line, take "
            "it out, or choose start and end around it"
        )
    return price


def _day(name: str, day: Any) -> date:
    try:
        return date.fromisoformat(day) if isinstance(day, str) else date(day.year, day.month, day.day)
    except (AttributeError, TypeError, ValueError):
        raise ValueError(f"{name} = {day!r}: pass a date such as '2000-01-04'") from None
