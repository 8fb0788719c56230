"""Parquet files as a source of scores."""

import collections
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from dpconformal.files.columns import arrow, check_finite, choose_columns, row_place
from dpconformal.files.several import one_series
from dpconformal.files.source import Block, Source

ROWS = 2**18


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
            for part in file.iter_batches(ROWS, row_groups=range(first, len(groups)), columns=wanted + beside):
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
