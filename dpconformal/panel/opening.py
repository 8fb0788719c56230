"""Panels on disk: Zarr, NetCDF, and Parquet folders of long tables."""

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from dpconformal.panel.arrays import open_arrays
from dpconformal.panel.gathering import NUMBERS, gathered, series_of_a_chunk
from dpconformal.panel.layouts import is_zarr
from dpconformal.panel.rows import ROUND, Columns, named

if TYPE_CHECKING:
    import xarray as xr

ARRAYS = (".nc", ".nc4", ".h5")
ROWS = 2**22  # of a Parquet file, above which its row groups are read apart


def open_panel(
    path: str | os.PathLike[str],
    id: str = "series",
    time: str = "time",
    score: str = "score",
    numbers: int = NUMBERS,
) -> "xr.DataArray":
    """
    Open a panel on disk, chunk by chunk.

    Parameters
    ----------
    path : path
        A Zarr store, a NetCDF file, a Parquet file, or a folder of Parquet files, which are read in the order of their
        names. Parquet holds long tables, see :func:`from_long`.
    id : str
        Column of a long table that says which series a row belongs to. In arrays all dimensions but time are series.
    time : str
        Column, or dimension of an array.
    score : str
        Column, or variable.
    numbers : int
        Scores of a chunk, about.

    Returns
    -------
    xarray.DataArray
        Lazy, in chunks of whole series. Of a long table, the dimension of time is called ``"round"``.

    Raises
    ------
    ValueError
        If there is nothing of the kind there; for long tables, naming series and time of what is refused. Of a Zarr
        store or a NetCDF file, naming the array if it has a dtype or codec that is not read; and when a chunk is read
        that is damaged, naming the chunk.

    Examples
    --------
    >>> import dpconformal as dpc, tempfile, xarray as xr
    >>> folder = tempfile.mkdtemp()
    >>> array = xr.DataArray([[0.2, 0.9], [0.5, 0.1]], {"store": ["A", "B"]}, ["store", "time"], name="score")
    >>> array.to_netcdf(f"{folder}/scores.nc", engine="h5netcdf")
    >>> scores = dpc.panel.open_panel(f"{folder}/scores.nc")
    >>> dpc.replay_panel(scores, dpc.Exact(), [0.9]).coverage.values.ravel()
    array([0.5, 1. ])
    """
    if not Path(path).exists():
        raise ValueError(f"{path} does not exist")
    path = Path(path).absolute()  # workers may be in another folder
    if is_long(path):
        columns = named(id, time, score)
        parts, lengths = _parts(path, columns)
        return gathered(parts, columns, numbers, lengths)
    return in_chunks(_variable(path, score, time), time, numbers)


def is_long(path: Path) -> bool:
    """Tell whether a panel on disk is a long table."""
    if path.suffix in ARRAYS or is_zarr(path):
        return False
    if path.suffix == ".parquet" or (path.is_dir() and _files(path)):
        return True
    kind = "a folder without Parquet files" if path.is_dir() else "of no kind that is known"
    raise ValueError(f"{path} is {kind}: pass a Zarr store, a NetCDF file (.nc), or Parquet files")


def in_chunks(scores: "xr.DataArray", time: str, numbers: int) -> "xr.DataArray":
    """Lay an array out in chunks of whole series."""
    sizes = {time: -1}
    left = series_of_a_chunk(*counts_of(scores, time), numbers)
    for name in reversed([name for name in scores.dims if name != time]):
        sizes[str(name)] = max(1, min(left, scores.sizes[name]))
        left = max(left // sizes[str(name)], 1)
    return scores.chunk(sizes)


def _files(path: Path) -> list[Path]:
    if not path.is_dir():
        return [path]
    seen = (file for file in path.rglob("*.parquet") if not any(p[0] in "._" for p in file.relative_to(path).parts))
    return sorted(seen, key=lambda file: [_natural(part) for part in file.relative_to(path).parts])


def _natural(name: str) -> list[Any]:
    """Order part.2 before part.10."""
    return [(int(word), "") if word.isdigit() else (-1, word) for word in re.split(r"(\d+)", name)]


def _variable(path: Path, score: str, time: str) -> Any:
    data = open_arrays(path)
    if score not in data:
        raise ValueError(f"{score!r} is no variable of {path}: it has {', '.join(map(repr, data.data_vars)) or 'none'}")
    scores = data[score]
    if time not in scores.dims and ROUND in scores.dims:
        return scores.transpose(..., ROUND)
    if time not in scores.dims:
        raise ValueError(f"{time!r} is no dimension of {score} in {path}: it has {', '.join(map(repr, scores.dims))}")
    return scores


def _parts(path: Path, columns: Columns) -> tuple[list[Any], list[int]]:
    """List the parts of a table, and how many rows each has."""
    import dask
    import pyarrow.parquet as parquet

    read, parts, lengths = dask.delayed(_read, pure=True), [], []
    for file in _files(path):
        changed = os.stat(file).st_mtime_ns
        try:
            about = parquet.read_metadata(file)
        except (OSError, ValueError) as error:
            raise ValueError(f"{file} is no Parquet file: {error}") from None
        there = about.schema.to_arrow_schema().names
        for what, name in zip(columns._fields, columns, strict=True):
            if name not in there:
                raise ValueError(f"{what} = {name!r}: {file} has columns {', '.join(map(repr, there))}")
        if about.num_rows > ROWS and about.num_row_groups > 1:
            groups: list[int | None] = list(range(about.num_row_groups))
            lengths += [about.row_group(group).num_rows for group in range(about.num_row_groups)]
        else:
            groups, lengths = [None], [*lengths, about.num_rows]
        parts += [read(str(file), group, list(columns), changed) for group in groups]
    return parts, lengths


def _read(file: str, group: int | None, columns: list[str], changed: int) -> Any:
    """Read a file or a row group. When it was changed is here for Dask, which takes equal calls for one."""
    import pyarrow.parquet as parquet

    del changed
    opened = parquet.ParquetFile(file)
    return (opened.read(columns) if group is None else opened.read_row_group(group, columns)).to_pandas()


def described(path: Path) -> list[Any]:
    """
    Describe a panel on disk so that a change to it is noticed.

    Returns: Name, size and time of each file, as JSON can hold them.
    """
    files = [path] if path.is_file() else sorted(file for file in path.rglob("*") if file.is_file())
    return [[str(file.relative_to(path)), os.stat(file).st_size, os.stat(file).st_mtime_ns] for file in files]


def dimension_of_time(scores: "xr.DataArray", time: str) -> str:
    """Tell along which dimension an opened panel is to be replayed."""
    return time if time in scores.dims else ROUND


def counts_of(scores: "xr.DataArray", dim: str) -> tuple[int, int]:
    """Count series and rounds."""
    return int(np.prod([size for name, size in scores.sizes.items() if name != dim])), scores.sizes[dim]
