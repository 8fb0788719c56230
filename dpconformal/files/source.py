"""A source of scores, read in blocks; the choice of its columns; and a check that it holds a single series."""

import dataclasses
import difflib
import re
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np


class Block(NamedTuple):
    """Some rows of a file."""

    row: int  # the first of them, counted from 0
    scores: np.ndarray  # (n,), finite numbers
    codes: np.ndarray | None  # (n,), which of ``names`` each belongs to; None for a file of one series
    names: list[str]  # series of this block, in order of appearance
    after: int  # where to read on; see :attr:`Source.blocks`
    others: dict[str, Any] | None = None  # the columns beside the scores, if they were asked for


@dataclasses.dataclass(frozen=True)
class Source:
    """An open file of scores."""

    name: str  # what errors call it
    column: str  # where in it the scores are, as errors call it
    place: Callable[[int], str]  # says where a row is: ``"line 1,234"``
    start: int  # where the first block begins
    # ``(where, row) -> iterator of Block``: reads on from a place that ``start`` or :attr:`Block.after` named, where
    # row number ``row`` stands
    blocks: Callable[[int, int], Iterator[Block]]

    def __iter__(self) -> Iterator[Block]:
        """Iterate over all blocks."""
        return self.blocks(self.start, 0)

    def check_range(self, block: Block, low: float, high: float, remedy: str) -> None:
        """Check that every score of a block lies in a range."""
        if low <= block.scores.min(initial=high) and block.scores.max(initial=low) <= high:
            return
        outside = np.flatnonzero((block.scores < low) | (block.scores > high))
        value = block.scores[outside[0]]
        if value < 0 <= low:
            remedy = "a score says how badly a prediction failed, so of signed errors take the absolute values"
        raise ValueError(
            f"{self.name}, {self.place(block.row + int(outside[0]))}, {self.column}: score {value:g} lies outside "
            f"[{low:g}, {high:g}]{_more(outside)}; {remedy}"
        )


def check_finite(source: str, column: str, values: np.ndarray, place: Callable[[int], str], row: int = 0) -> None:
    """Refuse scores that are not finite."""
    bad = np.flatnonzero(~np.isfinite(values))
    if bad.size:
        raise ValueError(
            f"{source}, {place(row + int(bad[0]))}, {column}: {values[bad[0]]} is no score{_more(bad)}; "
            "drop the round or fill it in on purpose"
        )


def _more(bad: np.ndarray) -> str:
    """Say how many rows are as bad as the first one."""
    return f" ({bad.size - 1:,} more like it)" if bad.size > 1 else ""


def row_place(row: int) -> str:
    """Name a row of a file without lines."""
    return f"row {row + 1:,}"


def arrow() -> Any:
    """Import Arrow, which reads and writes tables."""
    try:
        import pyarrow
        import pyarrow.csv
        import pyarrow.parquet
    except ImportError as error:
        raise ImportError("tables of scores need pyarrow: pip install '.[cli]' in a clone of dpconformal") from error
    return pyarrow


# --- The choice of columns

_LISTED = 20  # columns in an error
_COMPARED = 1000  # columns up to which a similar name is looked for, which takes a while


def choose_columns(source: str, names: list[str], column: str | None, batch: str | None) -> tuple[str, str | None]:
    """Return the column of the scores, and that of the series or None."""
    listed = ", ".join(names[:_LISTED])
    if len(names) > _LISTED:
        listed += f" and {len(names) - _LISTED:,} more"
    for option, wanted in (("--batch", batch), ("--column", column)):
        if wanted is not None and wanted not in names:
            close = difflib.get_close_matches(wanted, names, 1) if len(names) <= _COMPARED else []
            hint = f"did you mean {close[0]}?" if close else f"it has {listed}"
            raise ValueError(f"{option} {wanted}: {source} has no such column; {hint}")
    if column is None:
        others = [name for name in names if name != batch]
        called = [name for name in others if name.strip().lower() in ("score", "scores")]
        if not others:
            raise ValueError(f"--batch {batch} is the only column of {source}: the scores need one of their own")
        if len(others) > 1 and len(called) != 1:
            raise ValueError(f"{source} has the columns {listed}: say which holds the scores with --column NAME")
        column = others[0] if len(others) == 1 else called[0]
    if column == batch:
        raise ValueError(f"--batch {batch} is the column of the scores: name another, or leave it out")
    return column, batch


# --- One series, or several

MOST = 2**13  # values of a column that are kept, or twice as many; one with more is no key, or shows it by then
_TIME_NAMES = {"time", "t", "timestamp", "datetime", "date", "ds", "round", "step"}  # also where they hold numbers
# These repeat in a single series.
_CALENDAR = re.compile(
    "(is)?(day|dayof(week|month|year)|dow|dom|doy|weekday|week|weekofyear|month|quarter|season|year|hour|hourofday|"
    "minute|second|holiday|weekend|epoch)"
)
_DATE, _OFFSET = re.compile(r"\d{4}-\d{2}-\d{2}"), re.compile(r":\d{2}[+-]\d{2}(:?\d{2})?$")
_CALENDAR_WORD = re.compile(
    "(mon|tues?|wed(nes)?|thu(rs)?|fri|sat(ur)?|sun)(day)?|jan(uary)?|feb(ruary)?|mar(ch)?|apr(il)?|may|june?|july?|"
    "aug(ust)?|sep(tember)?|oct(ober)?|nov(ember)?|dec(ember)?|spring|summer|autumn|fall|winter|q[1-4]|am|pm"
)


def require_one_series(source: Source) -> Source:
    """Return a source that raises after its last block if the columns beside the scores show several series."""

    def blocks(where: int, row: int) -> Iterator[Block]:
        watched = _OtherColumns()
        for block in source.blocks(where, row):
            watched.update(block)
            yield block
        watched.check_one_series(source)

    return dataclasses.replace(source, blocks=blocks)


class _OtherColumns:
    """
    The columns beside the scores, and the patterns seen in them so far.

    A time that goes forward from row to row proves that there is one series. A time that goes back speaks for several;
    so does a key: a column whose values differ among rows of the same time, or, in a file without times, come in
    blocks, or take turns. Memory does not grow with the file.
    """

    def __init__(self) -> None:
        self.times: dict[str, _Times] = {}
        self.values: dict[str, _Values] = {}
        self.rows = 0

    def update(self, block: Block) -> None:
        """Update the patterns with a block."""
        others = block.others or {}
        for name, column in others.items():
            if self.rows == 0:
                self.times[name], self.values[name] = _Times(name), _Values(name)
            self.times[name].update(column, block.row)
        times = next((times.now for times in self.times.values() if times.is_time), None)
        for name, column in others.items():
            if self.values[name].may_be_key and not self.times[name].is_time:
                self.values[name].update(column, block.row, times)
        self.rows += block.scores.size

    def check_one_series(self, source: Source) -> None:
        """Refuse a file that seems to hold several series."""
        times = [times for times in self.times.values() if times.is_time]
        if any(time.forward for time in times):
            return
        in_order = bool(times) and all(time.back is None for time in times)
        crowded = any(2 * self.rows >= 3 * time.count for time in times)  # what repeats now and then says little
        keys = {
            name: values.describe_key(self.rows, in_order)
            for name, values in self.values.items()
            if not self.times[name].is_time and (crowded or not in_order)
        }
        key, how = next(((name, how) for name, how in keys.items() if how), ("COLUMN", ""))
        for time in times:
            if time.back is not None:
                row, after, before = time.back
                raise ValueError(
                    f"{source.name}, {source.place(row)}, column {time.name!r}: {after} comes after {before}; if there "
                    f"are several series, tell them apart with --batch {key}; if there is one, sort the rows, or pass "
                    "--one-series"
                )
        if how:
            raise ValueError(
                f"{source.name}, column {key!r}: its values {how}, as those of several series do; "
                f"tell them apart with --batch {key}, or pass --one-series if it is one"
            )


class _Times:
    """A column that may hold times: dates, or numbers under the name of a time."""

    def __init__(self, name: str) -> None:
        self.name, self.is_time, self.forward, self.count = name, True, True, 0
        self.back: tuple[int, str, str] | None = None  # the first row whose time goes back; its time and that before
        self.now = np.zeros(0)  # (n,) of the block at hand
        self._last = (-np.inf, "")  # time of the row before the block, and its text

    def update(self, column: Any, row: int) -> None:
        numbers = _as_times(column, self.name) if self.is_time else None
        if numbers is None:
            self.is_time = False
            return
        last, shown = self._last
        steps = np.diff(numbers, prepend=last)
        self.count += int(np.count_nonzero(steps))
        self.forward &= bool((steps > 0).all())
        if self.back is None and (steps < 0).any():
            at = int(np.argmax(steps < 0))
            before = str(column[at - 1].as_py()) if at else shown
            self.back = row + at, str(column[at].as_py()), before
        self.now, self._last = numbers, (float(numbers[-1]), str(column[-1].as_py()))


class _Values:
    """A column whose values may tell series apart; numbered in order of appearance, which makes its patterns plain."""

    def __init__(self, name: str) -> None:
        self.may_be_key = not _CALENDAR.fullmatch("".join(filter(str.isalnum, name.lower())))
        self.in_blocks = self.in_turn = self.apart = True
        self.count = 0
        self._numbers: dict[Any, int] = {}
        self._period: int | None = None
        self._last = 0
        self._group: tuple[Any, set[int]] = (None, set())  # the last time, and what came at it

    def update(self, column: Any, row: int, times: np.ndarray | None) -> None:
        plain = _plain(column)
        self.may_be_key = not plain.null_count and _is_key(plain[0].as_py())
        if not self.may_be_key:
            return
        coded = plain.dictionary_encode()  # in order of appearance
        places, count = coded.indices.to_numpy(), len(coded.dictionary)
        if len(self._numbers) + count > 2 * MOST:  # too many to remember: blocks tell by themselves
            runs = 1 + np.count_nonzero(np.diff(places))
            self.count, self.in_turn, self.apart = self.count + count, False, False
            self.may_be_key = self.in_blocks = self.in_blocks and runs == count and places.size >= 2 * runs
            return
        own = coded.dictionary.to_pylist()
        codes = np.array([self._numbers.setdefault(value, len(self._numbers)) for value in own])[places]
        rows = np.arange(row, row + codes.size)
        self.count = len(self._numbers)
        self.in_blocks &= bool((np.diff(codes, prepend=self._last) >= 0).all())
        self._last = int(codes[-1])
        if self._period is None and (returned := codes != rows).any():
            self._period = int(rows[np.argmax(returned)])
        self.in_turn &= bool((codes == (rows if self._period is None else rows % self._period)).all())
        self.apart = self.apart and (times is None or self._differ_at_a_time(times, codes))
        self.may_be_key = all(map(_is_key, own)) and (self.in_blocks or self.in_turn or self.apart)

    def _differ_at_a_time(self, times: np.ndarray, codes: np.ndarray) -> bool:
        """Whether rows of the same time, which follow each other, have different values."""
        groups = np.cumsum(np.diff(times, prepend=times[0]) != 0)
        if groups[-1] + 1 < codes.size and np.unique(groups * (2 * MOST) + codes).size < codes.size:
            return False
        time, before = self._group
        first, last = (set(codes[groups == group].tolist()) for group in (groups[0], groups[-1]))
        if time == times[0] and before & first:
            return False
        self._group = times[-1], last | before if time == times[-1] else last
        return True

    def describe_key(self, rows: int, in_order: bool) -> str:
        """Describe how the column shows that it is a key; empty if it does not."""
        if not self.may_be_key or self.count < 2 or rows < 2 * self.count:
            return ""
        if in_order:
            return "differ among rows of the same time" if self.apart else ""
        return "come in blocks" if self.in_blocks else "take turns" if self.in_turn else ""


def _is_key(value: Any) -> bool:
    """Whether a value may name a series: text, or a whole number, and no word of the calendar."""
    if isinstance(value, str):
        word = value.strip().lower()
        try:
            return float(word).is_integer()
        except ValueError:
            return not _CALENDAR_WORD.fullmatch(word)
    return isinstance(value, int) and not isinstance(value, bool)


def _plain(column: Any) -> Any:
    """Return a column without dictionary encoding."""
    return column.cast(column.type.value_type) if hasattr(column, "indices") else column


def _as_times(column: Any, name: str) -> np.ndarray | None:
    """Read a column as times, numbers that compare as they do; None if it holds something else."""
    pa, plain, named = arrow(), _plain(column), name.strip().lower() in _TIME_NAMES
    kind, first = plain.type, str(plain[0].as_py())
    try:
        if pa.types.is_string(kind) or pa.types.is_large_string(kind):
            # Only what looks like it is cast: Arrow takes seconds to refuse a column of text.
            if _DATE.match(first):
                zone = "UTC" if first.endswith("Z") or _OFFSET.search(first) else None
                plain = plain.cast(pa.timestamp("us", zone)).cast(pa.int64())
            elif named:
                float(first)  # a ValueError, if the first is no number
                plain = plain.cast(pa.float64())
            else:
                return None
        elif pa.types.is_temporal(kind) and not pa.types.is_time(kind):
            plain = plain.cast(pa.int32() if pa.types.is_date32(kind) else pa.int64())
        elif not (named and (pa.types.is_integer(kind) or pa.types.is_floating(kind))):
            return None
        if plain.null_count:
            return None
        numbers = np.asarray(plain.to_numpy(zero_copy_only=False), float)
    except (pa.ArrowException, ValueError):
        return None
    return numbers if np.isfinite(numbers).all() else None
