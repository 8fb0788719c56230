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

    Parameters
    ----------
    path : Path
        The file.
    column, batch : str, optional
        Must not be asked for.

    Returns
    -------
    Source
        Of one series, or of several that are called by their numbers.

    Raises
    ------
    ValueError
        If it is no array of numbers, of shape (T,) or (series, T).
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
    length = array.shape[-1]

    def place(row: int) -> str:
        return f"index [{row // length}, {row % length}]" if array.ndim == 2 else f"index [{row}]"

    def blocks(where: int, row: int) -> Iterator[Block]:
        del where  # a row is a place
        table = array.reshape(-1, length) if array.ndim == 1 else array
        for series in range(row // length, len(table)):
            for start in range(row - series * length if row > series * length else 0, length, ROWS):
                # What is too large for a float becomes infinite, and is complained of as such.
                with np.errstate(over="ignore"):
                    scores = table[series, start : start + ROWS].astype(float)
                first = series * length + start
                check_finite(str(path), "array", scores, place, first)
                codes = None if array.ndim == 1 else np.zeros(scores.size, np.int32)
                yield Block(first, scores, codes, [str(series)], first + scores.size)

    return Source(str(path), "array", place, 0, blocks)
