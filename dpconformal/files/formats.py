"""
CSV, Parquet and NumPy files as sources of scores.

Arrow reads CSV quickly, in pieces of whole lines; where it fails, the csv module finds the line.
"""

import collections
import csv
import functools
import io
import itertools
import math
import threading
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from dpconformal.files.source import Block, Source, arrow, check_finite, choose_columns, row_place

BYTES = 2**24  # of a block of CSV
BATCH_ROWS = 2**18  # of a block of Parquet
ROWS = 2**20  # scores of a block of an array
LONGEST_LINE = 2**26  # bytes or characters
_LONGEST_NAME = 1000  # characters of a column's name
_MARK = b"\xef\xbb\xbf"  # of UTF-8, which belongs at the start of a file
# What stands for a number that is missing; none of these is a name of a column by itself.
_MISSING = frozenset(["na", "nan", "n/a", "#n/a", "#na", "nil", "null", "none", "missing"])


# --- NumPy


def array_source(path: Path, column: str | None, batch: str | None) -> Source:
    """Open a ``.npy`` file of one series, or of several that are called by their numbers."""
    for name, value in (("--column", column), ("--batch", batch)):
        if value is not None:
            raise ValueError(f"{name} {value}: {path} is an array without columns; leave {name} out")
    with path.open("rb") as file:
        if file.read(4) == b"PK\x03\x04":
            raise ValueError(f"{path} is an archive of arrays: save one of them by itself, with numpy.save")
    try:
        with warnings.catch_warnings(action="error"):  # a header of Python 2, say, which was never checked
            # Mapped, so that it takes no memory, and a header that lies takes none.
            array = np.lib.format.open_memmap(path, mode="r")
    except Exception as error:  # NumPy reads the header as Python text, and so it fails in many ways
        raise ValueError(f"{path} cannot be read as a NumPy file: {error}") from None
    if array.dtype.kind not in "fiu" or array.ndim not in (1, 2):
        raise ValueError(
            f"{path} holds {array.dtype} of shape {array.shape}: must be numbers of shape (T,) or (series, T)"
        )
    if not array.size:
        raise ValueError(f"{path} holds no scores: its shape is {array.shape}")
    if array.ndim == 2 and array.shape[1] == 1 < array.shape[0]:
        raise ValueError(
            f"{path} has shape {array.shape}, a column: of one series save array[:, 0]; of many series with one round "
            "each there is nothing to learn"
        )
    several, table = array.ndim == 2, np.atleast_2d(array)
    length = table.shape[1]

    def place(row: int) -> str:
        return f"index [{row // length}, {row % length}]" if several else f"index [{row}]"

    def blocks(_: int, row: int) -> Iterator[Block]:  # a row is a place to read on from
        while row < array.size:
            series, start = divmod(row, length)
            # Many short series at a time, or a part of a long one.
            count = 1 if start else min(max(1, ROWS // length), len(table) - series)
            # What is too large for a float becomes infinite, and is complained of as such.
            with np.errstate(over="ignore"):
                part = table[series : series + count, start : start + ROWS].astype(float)
            check_finite(str(path), "array", part.reshape(-1), place, row)
            codes = np.repeat(np.arange(count, dtype=np.int32), part.shape[1]) if several else None
            names = [str(series + k) for k in range(count)]
            yield Block(row, part.reshape(-1), codes, names, row + part.size)
            row += part.size

    return Source(str(path), "array", place, 0, blocks)


# --- Parquet


def parquet_source(path: Path, column: str | None, batch: str | None, lone: bool = False) -> Source:
    """Open a Parquet file; with ``lone``, blocks bring the columns beside the scores, too."""
    pa = arrow()
    try:
        file = pa.parquet.ParquetFile(path)
        schema = file.schema_arrow
        rows = sum(file.metadata.row_group(k).num_rows for k in range(file.num_row_groups))
    except (pa.ArrowException, OSError) as error:
        raise ValueError(f"{path} cannot be read as Parquet: {error}") from None
    often = collections.Counter(schema.names)
    score, series = choose_columns(str(path), schema.names, column, batch)
    wanted = [score] if series is None else [score, series]
    twice = next((name for name in wanted if often[name] > 1), None)
    if twice is not None:
        raise ValueError(f"{path}: two columns are called {twice!r}; rename one")
    kind = schema.field(score).type
    if not (pa.types.is_floating(kind) or pa.types.is_integer(kind)):
        raise ValueError(f"{path}, column {score!r} holds {kind}, not numbers: convert it or choose another column")
    if series is not None:
        kind = schema.field(series).type
        if pa.types.is_nested(kind) or pa.types.is_binary(kind):
            raise ValueError(f"{path}, column {series!r} holds {kind}, not names of series: choose another column")
    others = [f.name for f in schema if lone and often[f.name] == 1 and f.name not in wanted and _is_simple(f.type)]
    if rows == 0:
        raise ValueError(f"{path} has no rows: a file of scores has a row for each round")

    def blocks(_: int, row: int) -> Iterator[Block]:  # a row is a place to read on from
        start = 0
        try:
            for read in file.iter_batches(BATCH_ROWS, columns=wanted + others):
                part = read.slice(max(row - start, 0))  # without the rows that were taken before
                start += read.num_rows
                if not part.num_rows:
                    continue
                first = start - part.num_rows
                values = part.column(score).to_numpy(zero_copy_only=False).astype(float)
                check_finite(str(path), f"column {score!r}", values, row_place, first)
                codes, names = _encode_series(str(path), part, series, first)
                beside = {name: part.column(name) for name in others} or None
                yield Block(first, values, codes, names, start, beside)
        except (pa.ArrowException, OSError) as error:
            raise ValueError(f"{path} cannot be read as Parquet: {error}") from None

    return Source(str(path), f"column {score!r}", row_place, 0, blocks)


def _is_simple(kind: Any) -> bool:
    """Whether a column of an Arrow type can tell series apart, or times."""
    types = arrow().types
    kind = kind.value_type if types.is_dictionary(kind) else kind
    text = types.is_string(kind) or types.is_large_string(kind)
    return text or types.is_integer(kind) or types.is_floating(kind) or types.is_temporal(kind)


def _encode_series(source: str, part: Any, series: str | None, row: int) -> tuple[np.ndarray | None, list[str]]:
    """Return the number and the names of the series of rows, in order of appearance; refuse a row without one."""
    if series is None:
        return None, []
    column = part[series]
    if not arrow().types.is_dictionary(column.type):
        column = column.dictionary_encode()
    missing = column.indices.is_null().to_numpy(zero_copy_only=False)
    codes = column.indices.fill_null(0).to_numpy(zero_copy_only=False).astype(np.int32)
    keys = column.dictionary.to_pylist()
    empty = [key is None or key != key or not str(key).strip() for key in keys]
    missing = missing | np.array([*empty, False])[codes]
    if missing.any():
        raise ValueError(
            f"{source}, {row_place(row + int(np.argmax(missing)))}, column {series!r}: no series; fill it in"
        )
    return codes, [str(key) for key in keys]


# --- CSV


def text_source(text: "Text", column: str | None, batch: str | None, lone: bool = False) -> Source:
    """Open CSV; with ``lone``, blocks bring the columns beside the scores, too."""
    arrow()
    names = text.names()
    score, series = choose_columns(text.source, names, column, batch)
    others = [name for name in names if lone and name not in (score, series)]

    def blocks(where: int, row: int) -> Iterator[Block]:
        first = row
        for data, after in read_whole_lines(text, where):
            block = _parse(text, names, score, series, others, data, row, after)
            row += block.scores.size
            if block.scores.size:
                yield block
        if row == first == 0:
            raise ValueError(f"{text.source} has a header and no rows: a file of scores has a row for each round")

    return Source(text.source, f"column {score!r}", text.place, text.data_start(), blocks)


class Text:
    """CSV that can be opened more than once: to be read quickly, and line by line to explain what is wrong."""

    def __init__(self, source: str, open: Callable[[], io.BufferedReader | io.BytesIO]) -> None:
        self.source, self.open = source, open

    def _lines(self) -> io.TextIOWrapper:
        return io.TextIOWrapper(self.open(), encoding="utf-8-sig", newline="")

    @functools.cached_property
    def _start(self) -> tuple[int, str]:
        """How many lines are blank at the start, and the line after them."""
        try:
            with self._lines() as lines:
                for blank, line in enumerate(iter(lambda: lines.readline(LONGEST_LINE + 1), "")):
                    if len(line) > LONGEST_LINE:  # of blanks, too: the rest of it would count as another line
                        raise ValueError(
                            f"{self.source}, line {blank + 1:,} has more than {LONGEST_LINE:,} characters: "
                            "is it a table?"
                        )
                    if "\0" in line:
                        raise ValueError(f"{self.source} is no text: pass CSV, .parquet or .npy")
                    if line.strip():
                        return blank, line
        except UnicodeDecodeError:
            raise ValueError(f"{self.source} is no text in UTF-8: pass CSV, .parquet or .npy") from None
        raise ValueError(f"{self.source} is empty: a file of scores has a row for each round")

    @property
    def _blank(self) -> int:
        return self._start[0]

    @functools.cached_property
    def separator(self) -> str:
        """The character between columns."""
        return max(",;\t", key=self._start[1].count)

    @functools.cached_property
    def has_header(self) -> bool:
        """Whether the first line names the columns: one is a word then, and none is a number with a fraction."""
        numbers = [_number(field) for field in self._fields]
        fraction = any(number is not None and not number.is_integer() for number in numbers)
        words = [field for field, number in zip(self._fields, numbers, strict=True) if number is None]
        return not fraction and any(map(_is_word, words))

    @functools.cached_property
    def _fields(self) -> list[str]:
        where = f"{self.source}, line {self._blank + 1:,}"
        try:
            with long_fields:
                fields = next(csv.reader([self._start[1]], delimiter=self.separator, strict=True))
        except csv.Error:  # a quote that is not closed in its line would make a column of all that follows
            raise ValueError(f"{where}: the quotes of the first line do not fit together; mend it") from None
        for k, field in enumerate(fields, 1):
            if len(field) > _LONGEST_NAME:
                raise ValueError(
                    f"{where}, column {k:,}: {len(field):,} characters, and {_LONGEST_NAME:,} is the limit in the "
                    "first line; shorten it"
                )
        return fields

    def names(self) -> list[str]:
        """Return the names of the columns; numbers from 1 where there is no header."""
        names = [field.strip() for field in self._fields]
        if not self.has_header:
            return [str(k + 1) for k in range(len(names))]
        if len(set(names)) < len(names):
            twice = collections.Counter(names).most_common(1)[0][0]
            raise ValueError(f"{self.source}, line {self._blank + 1:,}: two columns are called {twice!r}; rename one")
        return names

    def data_start(self) -> int:
        """Return the byte at which the first row of data begins."""
        with self.open() as data:
            mark = len(_MARK) if data.read(len(_MARK)) == _MARK else 0
        with self._lines() as lines:
            return mark + sum(len(line.encode()) for line in itertools.islice(lines, self._blank + self.has_header))

    def _rows(self) -> Iterator[tuple[int, list[str]]]:
        """Yield the rows of data with their line numbers; an empty line is a row in a file of one column alone."""
        keep_empty = len(self.names()) == 1 and self._has_gap()
        with self._lines() as lines:
            for _ in range(self._blank):
                next(lines)
            reader = csv.reader(lines, delimiter=self.separator)
            numbered = ((self._blank + reader.line_num, row) for row in reader if row or keep_empty)
            with long_fields:
                yield from itertools.islice(numbered, 1 if self.has_header else 0, None)

    def _has_gap(self) -> bool:
        """Whether there is an empty line in the midst of the data."""
        with self.open() as data:
            empty = (not line.strip() for line in itertools.islice(data, self._blank, None))
            return any(before and not after for before, after in itertools.pairwise(empty))

    def place(self, row: int) -> str:
        """Return the line of a row of data, counted from 0."""
        line, _ = next(itertools.islice(self._rows(), row, None))
        return f"line {line:,}"

    def explain(self, column: str, batch: str | None) -> None:
        """Read line by line, and raise at the first that cannot be read."""
        names = self.names()
        k, j = names.index(column), None if batch is None else names.index(batch)
        line = 0
        try:
            for line, row in self._rows():
                where = f"{self.source}, line {line:,}"
                if len(row) != len(names) and (row or len(names) > 1):
                    raise ValueError(f"{where}: {len(row)} columns, and the first line has {len(names)}; mend the line")
                field = row[k].strip() if row else ""
                value = _number(field) if row else None
                if value is None:
                    what = f"{field!r} is not a number" if field else "nothing there"
                    if line == self._blank + 1:  # which might have been meant as a header
                        what += ", and no name of a column, which begins with a letter and is not NA, null or the like"
                    raise ValueError(
                        f"{where}, column {column!r}: {what}; mend it, or choose another column with --column"
                    )
                if not math.isfinite(value):
                    raise ValueError(
                        f"{where}, column {column!r}: {field} is no score; drop the round or fill it in on purpose"
                    )
                if j is not None and not row[j].strip():
                    raise ValueError(f"{where}, column {batch!r}: no series; fill it in")
        except UnicodeDecodeError:
            raise ValueError(
                f"{self.source}, line {self._undecodable():,} is no text in UTF-8; mend the line"
            ) from None
        except csv.Error as error:
            raise ValueError(f"{self.source}, after line {line:,}: {error}; mend the file") from None

    def _undecodable(self) -> int:
        """Find the first line that is no UTF-8: it is none with what cannot be decoded left out."""
        with self.open() as data:
            lines = enumerate(data, 1)
            return next((number for number, line in lines if line.decode("utf-8", "ignore").encode() != line), 0)


def _is_word(field: str) -> bool:
    """Whether a field can name a column: it begins with a letter, and does not say that something is missing."""
    name = field.strip()
    return bool(name) and (name[0].isalpha() or name[0] == "_") and name.lower() not in _MISSING


def _number(text: str) -> float | None:
    """Read a number as Arrow does, without the underscores that Python allows; None if it is none."""
    try:
        return None if "_" in text else float(text)
    except ValueError:
        return None


class _LongFields:
    """Lift the csv module's limit of the length of a field, which is one for the whole process."""

    def __init__(self) -> None:
        self._lock, self._within, self._limit = threading.Lock(), 0, 0

    def __enter__(self) -> None:
        with self._lock:
            if not self._within:
                self._limit = csv.field_size_limit(2**31 - 1)
            self._within += 1

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._within -= 1
            if not self._within:  # generators and threads leave in any order: the last one gives the limit back
                csv.field_size_limit(self._limit)


long_fields = _LongFields()


def read_whole_lines(text: Text, where: int) -> Iterator[tuple[bytes, int]]:
    """
    Cut a file into pieces of whole lines, each with the byte after it.

    Blank lines go with the line that follows them, so that a gap in the data is seen in one piece; those at the end of
    the file are left out.
    """
    with text.open() as file:
        file.seek(where)
        waiting = b""
        while fresh := file.read(BYTES):
            waiting += fresh
            end = _last_line(waiting, text.separator)
            if not end and len(waiting) > LONGEST_LINE:  # it is in memory, and looked through again and again
                raise ValueError(
                    f"{text.source}: no row ends in the {LONGEST_LINE:,} bytes after byte {where:,}; close the quotes "
                    "of a long line, cut it into lines, or take out blank ones"
                )
            if end:
                where += end
                yield waiting[:end], where
                waiting = waiting[end:]
    if waiting.strip():
        yield waiting, where + len(waiting)


def _last_line(data: bytes, separator: str) -> int:
    """Find the end of the last complete line with something in it; a newline within quotes ends no line."""
    end = data.rfind(b"\n") + 1 if b'"' not in data else _last_record(data, separator)
    whole = data[:end]
    return whole.find(b"\n", len(whole.rstrip())) + 1 if whole.strip() else 0


def _last_record(data: bytes, separator: str) -> int:
    """Read records one by one: which quotes are meant as such cannot be told from their number."""
    consumed = end = 0

    def lines() -> Iterator[str]:
        nonlocal consumed
        for line in io.StringIO(data.decode("latin-1"), newline=""):  # splitlines would cut within letters of UTF-8
            consumed += len(line)
            yield line
        consumed += 1
        yield "\n"  # goes to a record that is still open, and tells it from one that is not

    try:
        with long_fields:
            for _ in csv.reader(lines(), delimiter=separator):
                end = consumed if consumed <= len(data) and data[consumed - 1 : consumed] == b"\n" else end
    except csv.Error:
        return 0  # no place to cut: Arrow is to judge of the whole
    return end


def _parse(
    text: Text, names: list[str], score: str, series: str | None, others: list[str], data: bytes, row: int, after: int
) -> Block:
    """Parse a piece of a file with Arrow."""
    pa = arrow()
    if data.startswith(_MARK):
        data = b"\n" + data  # Arrow would skip the mark at the start of a piece, and not within one
    texts = [*([] if series is None else [series]), *others]
    try:
        table = pa.csv.read_csv(
            pa.py_buffer(data),
            pa.csv.ReadOptions(column_names=names, block_size=max(len(data), 1)),
            # In a file of one column an empty line is a score that is missing.
            pa.csv.ParseOptions(delimiter=text.separator, newlines_in_values=True, ignore_empty_lines=len(names) > 1),
            pa.csv.ConvertOptions(
                column_types={score: pa.float64()} | dict.fromkeys(texts, pa.string()),
                include_columns=[score, *texts],
                null_values=[],
            ),
        )
    except (pa.ArrowException, UnicodeDecodeError) as error:
        text.explain(score, series)  # finds the line
        raise ValueError(f"{text.source} cannot be read as CSV: {error}") from None
    columns = {name: table[name].combine_chunks() for name in (score, *texts)}
    values = columns[score].to_numpy()
    try:
        check_finite(text.source, f"column {score!r}", values, row_place, row)
        codes, keys = _encode_series(text.source, columns, series, row)
    except ValueError:
        text.explain(score, series)
        raise
    return Block(row, values, codes, keys, after, {name: columns[name] for name in others} or None)
