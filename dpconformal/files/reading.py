"""Read scores from a CSV, Parquet or NumPy file, or from standard input."""

import io
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from dpconformal.files.arrays import array_source, parquet_source
from dpconformal.files.csv import Text, text_source
from dpconformal.files.recorded import Recorded, gather
from dpconformal.files.source import Block, Source


def open_scores(
    source: str | os.PathLike[str], column: str | None = None, batch: str | None = None, lone: bool = False
) -> Source:
    """
    Open a file of scores, to read it in blocks.

    ``source``: A ``.npy`` file with an array of shape (T,) or (series, T); a ``.parquet`` or ``.pq`` file; anything
    else is read as CSV, with or without a header, separated by commas, semicolons or tabs. ``column``: Column of the
    scores: by name, or by number from 1 where there is no header. Not needed if there is only one, or one that is
    called ``score`` or ``scores``.
    """
    path = Path(source)
    if not path.exists():
        raise ValueError(f"{path} does not exist: check the name, or pass - for standard input")
    if path.is_dir():
        raise ValueError(f"{path} is a folder: pass a file of scores")
    if path.stat().st_size == 0:
        raise ValueError(f"{path} is empty: a file of scores has a row for each round")
    if path.suffix == ".npy":
        return array_source(path, column, batch)
    if path.suffix in (".parquet", ".pq"):
        return parquet_source(path, column, batch, lone and batch is None)
    return text_source(Text(str(path), lambda: path.open("rb")), column, batch, lone and batch is None)


def read_scores(
    source: str | os.PathLike[str],
    column: str | None = None,
    batch: str | None = None,
    stdin: Any = None,
    check: Callable[[Source, Block], None] = lambda source, block: None,
    lone: bool = False,
) -> Recorded:
    """Read scores into memory."""
    opened = (
        read_once(source, column, batch, stdin, lone) if is_stream(source) else open_scores(source, column, batch, lone)
    )

    def checked() -> Iterator[Block]:
        for block in opened:
            check(opened, block)
            yield block._replace(others=None)

    return gather(opened.name, checked())


def is_stream(source: str | os.PathLike[str]) -> bool:
    """Tell whether a source can be read only once."""
    path = Path(source)
    return str(source) == "-" or (path.exists() and not path.is_file() and not path.is_dir())


def read_once(
    source: str | os.PathLike[str], column: str | None, batch: str | None, stdin: Any = None, lone: bool = False
) -> Source:
    """Take in CSV that can be read only once."""
    given = str(source) == "-"
    content = (stdin or sys.stdin.buffer).read() if given else Path(source).read_bytes()
    name = "standard input" if given else str(source)
    return text_source(Text(name, lambda: io.BytesIO(content)), column, batch, lone and batch is None)
