"""Daily prices from a file, and scores of a volatility forecast: how far squared returns are from a GARCH(1, 1)'s."""

import contextlib
import csv
import hashlib
import importlib
import math
import os
import warnings
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from dpconformal.checkpoints.container import Journal, note, recall
from dpconformal.display import track
from dpconformal.experiments.runs import Folder
from dpconformal.validation import as_numbers, check_int, raise_at

if TYPE_CHECKING:
    import pandas as pd

_DAYS = 100  # of a step that is kept
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
    pd = _import("pandas", "reading prices needs pandas")
    first, last = (None if day is None else _parse_day(name, day) for name, day in (("start", start), ("end", end)))
    if first is not None and last is not None and first > last:
        raise ValueError(f"start = {first} is after end = {last}: exchange them")
    if not isinstance(column, str):
        raise ValueError(f"column = {column!r}: pass the name of a column, such as 'Open'")
    is_bundled = isinstance(source, str) and source in BUNDLED
    name, lines, days, cells = _read_bundled(source, column) if is_bundled else _read_file(source, column)
    dates = _parse_dates(name, lines, days)
    order = np.argsort(dates, kind="stable")
    repeated = np.flatnonzero(dates[order][1:] == dates[order][:-1])
    if repeated.size:
        one, two = order[repeated[0]], order[repeated[0] + 1]
        raise ValueError(
            f"{name}, line {lines[two]}, column 'Date' = {dates[two]}: also on line {lines[one]}; keep one price a day"
        )
    inside = (dates >= np.datetime64(first or date.min)) & (dates <= np.datetime64(last or date.max))
    if inside.sum() < LEAST:
        asked = f" from {first or 'the first day'} to {last or 'the last day'}" if first or last else ""
        remedy = f"the dates run from {dates.min()} to {dates.max()}" if asked and dates.size else "add days"
        raise ValueError(f"{name}: {inside.sum()} prices{asked}, and at least {LEAST} are needed; {remedy}")
    prices = np.array([_parse_price(name, lines[row], column, cells[row]) for row in np.flatnonzero(inside).tolist()])
    return pd.Series(prices, pd.DatetimeIndex(dates[inside], name="Date"), name=column).sort_index()


def _import(module: str, why: str) -> Any:
    """Import an optional package, or say how to install it."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise ImportError(f"{why}: pip install '.[experiments]' in a clone of dpconformal") from error


def _read_bundled(source: str, column: str) -> _Columns:
    """Bring a data set of `arch` into the form of a file; its first row counts as line 2, below the header."""
    frame = _import(f"arch.data.{source}", f"{source!r} comes with arch").load()
    place = _column_index(source, list(frame.columns), column)
    cells = [repr(float(price)) for price in frame.iloc[:, place]]
    return source, list(range(2, len(frame) + 2)), list(frame.index.strftime("%Y-%m-%d")), cells


def _read_file(source: Any, column: str) -> _Columns:
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
    day, price = _column_index(name, header, "Date"), _column_index(name, header, column)
    for line, row in rows[1:]:
        if len(row) != len(header):
            remedy = "write one for each column, numbers without thousands separators"
            raise ValueError(f"{name}, line {line}: {len(row)} values below a header of {len(header)}; {remedy}")
    lines, days = [line for line, _ in rows[1:]], [row[day].strip() for _, row in rows[1:]]
    return name, lines, days, [row[price].strip() for _, row in rows[1:]]


def _column_index(name: str, header: list[str], column: str) -> int:
    """Find a column."""
    found = [place for place, cell in enumerate(header) if cell.casefold() == column.casefold()]
    if len(found) != 1:
        fault = "there is no such column" if not found else f"there are {len(found)} columns of that name"
        raise ValueError(f"{name}, column {column!r}: {fault}; it has, separated by commas, {', '.join(header)}")
    return found[0]


def _parse_dates(name: str, lines: list[int], days: list[str]) -> np.ndarray:
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


def _parse_price(name: str, line: int, column: str, cell: str) -> float:
    """Read one price."""
    try:
        price = math.nan if "_" in cell else float(cell)
    except ValueError:
        price = math.nan
    if not 0 < price < math.inf:
        remedy = "correct the line, take it out, or choose start and end around it"
        raise ValueError(f"{name}, line {line}, column {column!r} = {cell!r}: a price is a positive number; {remedy}")
    return price


def _parse_day(name: str, day: Any) -> date:
    """Read the day on which a selection begins or ends."""
    try:
        return date.fromisoformat(day) if isinstance(day, str) else date(day.year, day.month, day.day)
    except (AttributeError, TypeError, ValueError):
        raise ValueError(f"{name} = {day!r}: pass a date such as '2000-01-04'") from None


def garch_scores(
    prices: Any,
    lookback: int = 100,
    refit_every: int = 1,
    warmup: int = 10,
    progress: bool = True,
    cache: Any = None,
    checkpoint: Folder = None,
) -> np.ndarray:
    """
    Score daily prices by the error of one-day-ahead GARCH(1, 1) forecasts of their volatility.

    The paper's protocol (Section 5): with r_t the return of day t in per cent and v_t its variance as forecast from
    the ``lookback`` returns before, the score is e/(1 + e), e = |r_t² - v_t|. The first day, which has no return, is
    given that of the second.

    ``refit_every``: Days from one estimate of the parameters to the next. On those between, the last estimate is used
    on the returns of the latest ``lookback`` days. ``cache``: Folder in which results are kept and looked up; by
    default ``dpconformal/garch`` in ``$XDG_CACHE_HOME`` or ``~/.cache``. False for none. ``checkpoint``: Folder in
    which the days done so far are kept: called again with it, interrupted work goes on.
    """
    lookback, refit_every = check_int("lookback", lookback, 2), check_int("refit_every", refit_every, 1)
    warmup = check_int("warmup", warmup, 2)
    prices = np.ascontiguousarray(as_numbers("prices", prices), np.float64)
    if prices.ndim != 1 or prices.size < warmup + 2:
        raise ValueError(f"prices has shape {prices.shape}: pass a sequence of at least warmup + 2 = {warmup + 2}")
    raise_at("prices", prices, ~((prices > 0) & np.isfinite(prices)), "must be positive and finite")
    arch = _import("arch", "GARCH models need arch")
    options = arch.__version__, lookback, refit_every, warmup
    file = None if cache is False else _cache_file(cache, prices, options)
    if file is not None:
        with contextlib.suppress(OSError, ValueError):  # where a file is damaged, scores are computed anew
            if (kept := recall(file, "garch")) is not None:
                return np.array(kept[1]["scores"])
        try:  # before the work
            file.parent.mkdir(parents=True, exist_ok=True)
            if not os.access(file.parent, os.W_OK):
                raise PermissionError("it cannot be written to")
        except OSError as error:
            raise ValueError(
                f"cache = {str(file.parent)!r}: {error}; pass another folder, or False for no cache"
            ) from None
    returns = 100 * np.diff(prices) / prices[:-1]
    returns = np.concatenate([returns[:1], returns])
    scores, parameters = np.zeros(returns.size), np.zeros(0)
    digest = hashlib.sha256(prices.tobytes()).hexdigest()
    journal = Journal(checkpoint, {"prices": digest, "options": list(options)})

    def score_days(days: range, parameters: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        errors = np.zeros(len(days))
        for k, day in enumerate(days):
            model = arch.arch_model(returns[max(0, day - lookback) : day], vol="GARCH", p=1, q=1, rescale=False)
            with warnings.catch_warnings(action="ignore"):  # a fit on a hundred days does not always converge
                fit_anew = (day - warmup) % refit_every == 0
                result = model.fit(disp="off", show_warning=False) if fit_anew else model.fix(parameters)
                variance = float(result.forecast(horizon=1).variance.iloc[-1, 0])
            parameters = np.asarray(result.params, float)
            errors[k] = abs(returns[day] ** 2 - variance)
            if not np.isfinite(errors[k]):
                raise ValueError(
                    f"prices[{day}] = {prices[day]}: the forecast variance of its return is {variance} and the return "
                    f"{returns[day]} per cent; check the prices around it, or leave them out"
                )
        return errors / (1 + errors), parameters

    for first in track(range(warmup, returns.size, _DAYS), "fitting GARCH", progress):
        days = range(first, min(first + _DAYS, returns.size))
        scores[days], parameters = journal.once(f"days from {first}", score_days, days, parameters)
    if file is not None:
        try:
            note(file, "garch", {}, {"scores": scores})
        except OSError as error:  # the disk is full, say: no reason to lose the scores
            warnings.warn(f"the scores are not kept: {error}", stacklevel=2)
    return scores


def _cache_file(cache: Any, prices: np.ndarray, options: tuple[Any, ...]) -> Path:
    """Name the file of a result by all that it depends on."""
    if cache is None or cache is True:
        folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "dpconformal" / "garch"
    elif isinstance(cache, (str, os.PathLike)):
        folder = Path(cache).expanduser()
    else:
        raise ValueError(f"cache = {cache!r}: pass a folder, or False for no cache")
    content = repr(options).encode() + prices.astype("<f8").tobytes()
    return folder / f"{hashlib.sha256(content).hexdigest()}.dpc"
