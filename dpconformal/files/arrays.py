"""NumPy files as a source of scores."""

import warnings
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from dpconformal.files.columns import check_finite
from dpconformal.files.source import Block, Source

ROWS = 2**20


def array_source(path: Path, column: str | None, batch: str | None) -> Source:
    """
    Open a ``.npy`` file; it is mapped, not read, so that it takes no memory and a header that lies takes none.

    Returns: Of one series, or of several that are called by their numbers.
    """
    for name, value in (("--column", column), ("--batch", batch)):
        if value is not None:
            raise ValueError(f"{name} {value}: {path} is an array without columns; leave {name} out")
    with path.open("rb") as file:
        archive = file.read(4) == b"PK\x03\x04"
    if archive:
        raise ValueError(f"{path} is an archive of arrays: save one of them by itself, with numpy.save")
    try:
        with warnings.catch_warnings(action="error"):  # a header of Python 2, say, which was never checked
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
