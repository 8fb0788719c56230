"""CSV as a source of scores: cut into blocks at the ends of lines, each parsed by Arrow."""

import csv
import io
from collections.abc import Iterator
from typing import Any

import numpy as np

from dpconformal.files.columns import arrow, check_finite, choose_columns, row_place
from dpconformal.files.several import one_series
from dpconformal.files.source import Block, Source
from dpconformal.files.text import LONGEST_LINE, Text, long_fields

BYTES = 2**24
_MARK = b"\xef\xbb\xbf"  # of UTF-8, which belongs at the start of a file


def text_source(text: Text, column: str | None, batch: str | None, lone: bool = False) -> Source:
    """Understand CSV: its columns, and where its data begin."""
    pa = arrow()
    names = text.names()
    score, series = choose_columns(text.source, names, column, batch)
    beside = [name for name in names if name not in (score, series)] if lone else []

    def blocks(where: int, row: int) -> Iterator[Block]:
        first = row
        for data, after in pieces(text, where):
            block = _parsed(pa, text, data, names, score, series, beside, row, after)
            row += block.scores.size
            if block.scores.size:
                yield block
        if row == first == 0:
            raise ValueError(f"{text.source} has a header and no rows: a file of scores has a row for each round")

    source = Source(text.source, f"column {score!r}", text.place, text.data_start(), blocks)
    return one_series(source) if lone else source


def pieces(text: Text, where: int) -> Iterator[tuple[bytes, int]]:
    """
    Cut a file into pieces of whole lines.

    Returns: Some lines, and the byte after them. Blank lines go with the line that follows them, so that a gap in the
    data is seen in one piece; those at the end of the file are left out.
    """
    with text.open() as file:
        file.seek(where)
        waiting = b""
        while fresh := file.read(BYTES):
            waiting += fresh
            end = last_line(waiting, text.separator)
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


def last_line(data: bytes, separator: str) -> int:
    r"""
    Find the end of the last line with something in it that is complete.

    Returns: Bytes up to and with its newline; 0 if there is none. A newline within quotes ends no line.
    """
    end = data.rfind(b"\n") + 1 if b'"' not in data else _last_record(data, separator)
    whole = data[:end]
    return whole.find(b"\n", len(whole.rstrip())) + 1 if whole.strip() else 0


def _last_record(data: bytes, separator: str) -> int:
    """Go through records one by one: which quotes are meant as such cannot be told from their number."""
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


def _parsed(
    pa: Any,
    text: Text,
    data: bytes,
    names: list[str],
    score: str,
    series: str | None,
    beside: list[str],
    row: int,
    after: int,
) -> Block:
    gap = data.startswith((b"\n", b"\r\n")) or b"\n\n" in data or b"\n\r\n" in data
    if gap and len(names) == 1:
        text.explain(score, series)  # in a file of one column an empty line is a score that is missing
    if data.startswith(_MARK):
        data = b"\n" + data  # Arrow would skip it at the start of a piece, and not within one
    texts = [*([] if series is None else [series]), *beside]
    try:
        table = pa.csv.read_csv(
            pa.py_buffer(data),
            pa.csv.ReadOptions(column_names=names, block_size=max(len(data), 1)),
            pa.csv.ParseOptions(delimiter=text.separator, newlines_in_values=True),
            pa.csv.ConvertOptions(
                column_types={score: pa.float64()} | dict.fromkeys(texts, pa.string()),
                include_columns=[score, *texts],
                null_values=[],
            ),
        )
    except (pa.ArrowException, UnicodeDecodeError) as error:
        text.explain(score, series)  # finds the line
        raise ValueError(f"{text.source} cannot be read as CSV: {error}") from None
    values = table[score].to_numpy()
    if not np.isfinite(values).all():
        text.explain(score, series)
        check_finite(text.source, f"column {score!r}", values, row_place, row)
    others = {name: table[name].combine_chunks() for name in beside} or None
    if series is None:
        return Block(row, values, None, [], after, others)
    column = table[series].combine_chunks().dictionary_encode()
    keys = column.dictionary.to_pylist()
    if not all(key.strip() for key in keys):
        text.explain(score, series)
    return Block(row, values, column.indices.to_numpy(), keys, after, others)
