"""NumPy and Parquet files as a source of scores."""

import collections
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from dpconformal.files.several import one_series
from dpconformal.files.source import Block, Source, arrow, check_finite, choose_columns, row_place

ROWS = 2**20  # scores of a block
BATCH_ROWS = 2**18  # the same, of Parquet


def array_source(path: Path, column: str | None, batch: str | None) -> Source:
    """Open a ``.npy`` file of one series, or of several that are called by their numbers."""
    for name, value in (("--column", column), ("--batch", batch)):
        if value is not None:
            raise ValueError(f"{name} {value}: {path} is an array without columns; leave {name} out")
    with path.open("rb") as file:
        archive = file.read(4) == b"PK\x03\x04"
    if archive:
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
    length = array.shape[-1]

    def place(row: int) -> str:
        return f"index [{row // length}, {row % length}]" if array.ndim == 2 else f"index [{row}]"

    def blocks(where: int, row: int) -> Iterator[Block]:
        del where  # a row is a place
        table = array.reshape(-1, length) if array.ndim == 1 else array
        while row < array.size:
            series, start = divmod(row, length)
            # Many short series at a time, or a part of a long one.
            count = 1 if start else min(max(1, ROWS // length), len(table) - series)
            # What is too large for a float becomes infinite, and is complained of as such.
            with np.errstate(over="ignore"):
                part = table[series : series + count, start : start + ROWS].astype(float)
            check_finite(str(path), "array", part.reshape(-1), place, row)
            codes = None if array.ndim == 1 else np.repeat(np.arange(count, dtype=np.int32), part.shape[1])
            names = [str(series + k) for k in range(count)]
            yield Block(row, part.reshape(-1), codes, names, row + part.size)
            row += part.size

    return Source(str(path), "array", place, 0, blocks)


def parquet_source(path: Path, column: str | None, batch: str | None, lone: bool = False) -> Source:
    """Open a Parquet file."""
    pa = arrow()
    try:
        file = pa.parquet.ParquetFile(path)
        schema = file.schema_arrow
        groups = [file.metadata.row_group(k).num_rows for k in range(file.num_row_groups)]
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
    beside = [
        field.name
        for field in schema
        if lone and often[field.name] == 1 and field.name not in wanted and _is_simple(pa, field.type)
    ]
    if sum(groups) == 0:
        raise ValueError(f"{path} has no rows: a file of scores has a row for each round")

    def blocks(where: int, row: int) -> Iterator[Block]:
        del where  # a row is a place
        first, start = 0, 0
        # From the beginning no group is passed over, not even one that claims to have no rows.
        while start < row and start + groups[first] <= row:
            start += groups[first]
            first += 1
        try:
            for part in file.iter_batches(BATCH_ROWS, row_groups=range(first, len(groups)), columns=wanted + beside):
                here = part.slice(max(row - start, 0))
                at, start = max(row, start), start + part.num_rows
                if here.num_rows:
                    block = _block(pa, path, here, score, series, at)
                    yield block._replace(others={name: here.column(name) for name in beside} or None)
        except (pa.ArrowException, OSError) as error:
            raise ValueError(f"{path} cannot be read as Parquet: {error}") from None

    source = Source(str(path), f"column {score!r}", row_place, 0, blocks)
    return one_series(source) if lone else source


def _is_simple(pa: Any, kind: Any) -> bool:
    kind = kind.value_type if pa.types.is_dictionary(kind) else kind
    text = pa.types.is_string(kind) or pa.types.is_large_string(kind)
    return text or pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_temporal(kind)


def _block(pa: Any, path: Path, part: Any, score: str, series: str | None, row: int) -> Block:
    values = part.column(score).to_numpy(zero_copy_only=False).astype(float)
    check_finite(str(path), f"column {score!r}", values, row_place, row)
    if series is None:
        return Block(row, values, None, [], row + values.size)
    column = part.column(series)
    if not pa.types.is_dictionary(column.type):
        column = column.dictionary_encode()
    missing = column.indices.is_null().to_numpy(zero_copy_only=False)
    codes = np.where(missing, 0, column.indices.fill_null(0).to_numpy(zero_copy_only=False)).astype(np.int32)
    keys = column.dictionary.to_pylist()
    empty = [key is None or key != key or not str(key).strip() for key in keys]
    missing = missing | np.array([*empty, False])[codes]
    if missing.any():
        raise ValueError(
            f"{path}, {row_place(row + int(np.argmax(missing)))}, column {series!r}: no series; fill it in"
        )
    return Block(row, values, codes, [str(key) for key in keys], row + values.size)
