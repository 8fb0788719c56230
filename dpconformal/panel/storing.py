"""Panels on disk: Zarr, NetCDF, and Parquet folders of long tables."""

import itertools
import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from dpconformal.panel.layouts import is_zarr, open_arrays
from dpconformal.panel.long import NUMBERS, ROUND, Columns, check_columns, gather_parts, series_of_a_chunk, to_long

if TYPE_CHECKING:
    import pandas as pd
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
        columns = check_columns(id, time, score)
        parts, lengths = _parts(path, columns)
        return gather_parts(parts, columns, numbers, lengths)
    return rechunk(_variable(path, score, time), time, numbers)


def is_long(path: Path) -> bool:
    """Whether a panel on disk is a long table."""
    if path.suffix in ARRAYS or is_zarr(path):
        return False
    if path.suffix == ".parquet" or (path.is_dir() and _files(path)):
        return True
    kind = "a folder without Parquet files" if path.is_dir() else "of no kind that is known"
    raise ValueError(f"{path} is {kind}: pass a Zarr store, a NetCDF file (.nc), or Parquet files")


def rechunk(scores: "xr.DataArray", time: str, numbers: int) -> "xr.DataArray":
    """Lay an array out in chunks of whole series."""
    sizes = {time: -1}
    left = series_of_a_chunk(*counts_of(scores, time), numbers)
    for name in reversed([name for name in scores.dims if name != time]):
        sizes[str(name)] = max(1, min(left, scores.sizes[name]))
        left = max(left // sizes[str(name)], 1)
    return scores.chunk(sizes)


def _files(path: Path) -> list[Path]:
    """Return the files of a folder, part.2 before part.10, and none that is hidden."""

    def order(file: Path) -> list[list[tuple[int, str]]]:
        words = [re.split(r"(\d+)", part) for part in file.relative_to(path).parts]
        return [[(int(word), "") if word.isdigit() else (-1, word) for word in part] for part in words]

    seen = (file for file in path.rglob("*.parquet") if not any(p[0] in "._" for p in file.relative_to(path).parts))
    return sorted(seen, key=order) if path.is_dir() else [path]


def _variable(path: Path, score: str, time: str) -> "xr.DataArray":
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


def _read(file: str, group: int | None, columns: list[str], changed: int) -> "pd.DataFrame":
    """Read a file or a row group. When it was changed is here for Dask, which takes equal calls for one."""
    import pyarrow.parquet as parquet

    del changed
    opened = parquet.ParquetFile(file)
    return (opened.read(columns) if group is None else opened.read_row_group(group, columns)).to_pandas()


def describe_files(path: Path) -> list[Any]:
    """Return name, size and time of each file of a panel, by which a change to it is noticed."""
    files = [path] if path.is_file() else sorted(file for file in path.rglob("*") if file.is_file())
    return [[str(file.relative_to(path)), os.stat(file).st_size, os.stat(file).st_mtime_ns] for file in files]


def dimension_of_time(scores: "xr.DataArray", time: str) -> str:
    """Return the dimension of time of an opened panel."""
    return time if time in scores.dims else ROUND


def counts_of(scores: "xr.DataArray", dim: str) -> tuple[int, int]:
    """Count series and rounds."""
    return int(np.prod([size for name, size in scores.sizes.items() if name != dim])), scores.sizes[dim]


Region = dict[str, slice]


def save_panel(panel: "xr.Dataset", path: str | os.PathLike[str], scores: "xr.DataArray | None" = None) -> None:
    """
    Write a panel, chunk by chunk if it is lazy.

    Parameters
    ----------
    panel : xarray.Dataset
        From :func:`replay_panel`.
    path : path
        ``.zarr``: a Zarr store; ``.nc``: a NetCDF file; without a suffix a folder of Parquet files:
        ``part-00000.parquet`` and so on, a row for each score as of :func:`to_long`, one file a chunk, and
        ``_metrics.parquet``, which readers of the folder pass over.
    scores : xarray.DataArray, optional
        What the panel was made of; for Parquet, which holds them beside the thresholds.

    Raises
    ------
    ValueError
        If something is there already, or the scores are missing.

    Examples
    --------
    >>> import dpconformal as dpc, tempfile, xarray as xr
    >>> folder = tempfile.mkdtemp()
    >>> scores = xr.DataArray([[0.2, 0.9], [0.5, 0.1]], {"store": ["A", "B"]}, ["store", "time"])
    >>> panel = dpc.replay_panel(scores, dpc.Exact(), [0.9])
    >>> dpc.panel.save_panel(panel, f"{folder}/panel.zarr")
    >>> xr.open_zarr(f"{folder}/panel.zarr").coverage.sel(store="A", level=0.9).values
    array(0.5)
    """
    path = Path(path).absolute()  # workers may be in another folder
    check_free(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".zarr":
        create_store(panel, path, compute=True)
    elif path.suffix == ".nc":
        numbers = {n: v.chunks for n, v in panel.variables.items() if v.dtype.kind in "biufMm" and v.size and v.ndim}
        encoding = {
            n: {"fletcher32": True} | ({"chunksizes": tuple(map(max, c))} if c else {}) for n, c in numbers.items()
        }
        panel.drop_encoding().to_netcdf(path, engine="h5netcdf", encoding=encoding)
    else:
        _write_tables(panel, path, scores)


def check_free(path: Path) -> None:
    """Refuse a path that is taken."""
    if path.is_symlink():
        raise ValueError(f"{path} is a link: remove it, or name the place that it leads to")
    if path.is_dir() and not any(path.iterdir()) and path.suffix not in (".zarr", ".nc"):
        return
    if path.suffix not in (".zarr", ".nc", ""):
        raise ValueError(f"{path.name}: write .zarr, .nc, or a folder without a suffix, for Parquet")
    if path.exists():
        raise ValueError(f"{path} exists: remove it, or choose another place")


def create_store(panel: "xr.Dataset", path: Path, compute: bool = False) -> None:
    """Create a Zarr store and write what needs no computing; with ``compute`` the whole panel."""
    from numcodecs import CRC32C, Blosc, VLenUTF8, Zstd

    uneven = {name: max(own) for name, own in panel.chunksizes.items() if {*own[:-1], max(own)} != {own[0]}}
    panel = panel.chunk(uneven) if uneven else panel
    shared = {name: coord.compute() for name, coord in panel.coords.items() if coord.ndim < 2 and coord.chunks}
    panel = panel.assign_coords(shared)  # which belong to no region, or to all
    lazy = {name: variable.chunks for name, variable in panel.variables.items() if variable.chunks}
    encoding: Any = {name: {"chunks": tuple(map(max, chunks))} for name, chunks in lazy.items()}
    # xarray reads text as a dtype that it writes in another way than the text of others.
    panel = panel.assign_coords({name: c.astype(object) for name, c in panel.coords.items() if c.dtype.kind == "T"})
    for name, variable in panel.variables.items():
        # Thresholds are scores that come again and again: faster than no compression at all.
        compressor = Blosc("lz4", shuffle=Blosc.NOSHUFFLE) if name == "thresholds" else Zstd()
        # The checksum is the last filter, of what is in the file; format 2 has no place for it behind a compressor.
        filters = [VLenUTF8()] * (variable.dtype.kind == "O") + [compressor, CRC32C()]
        encoding.setdefault(name, {}).update(filters=filters, compressors=None)
    # Format 2: format 3 has neither consolidated metadata nor text labels that every reader knows.
    whole: Any = panel.drop_encoding()
    whole.to_zarr(path, mode="w", compute=compute, encoding=encoding, zarr_format=2)


def regions_of(panel: "xr.Dataset", dims: list[str]) -> list[Region]:
    """Cut a lazy panel into the regions of its chunks."""
    sizes = [panel.chunksizes[name] for name in dims]
    ends = [np.cumsum([0, *each]).tolist() for each in sizes]
    slices = [[slice(a, b) for a, b in itertools.pairwise(each)] for each in ends]
    return [dict(zip(dims, region, strict=True)) for region in itertools.product(*slices)]


def write_regions(
    panel: "xr.Dataset", path: Path, regions: Mapping[int, Region], client: Any, written: Callable[[int], None]
) -> None:
    """
    Compute regions of a lazy panel, each by a task that writes it into the store.

    A task writes the chunks of its own region and nothing else. So it may be interrupted, and run again by another
    worker, and the result is the same.
    """
    import dask
    from dask.callbacks import Callback

    write, tasks = dask.delayed(_write), []
    along = {dim for region in regions.values() for dim in region}
    lazy = [name for name, variable in panel.variables.items() if variable.chunks and along & set(variable.dims)]
    for number, region in regions.items():
        own = panel.isel(region)
        values = {name: (own[name].dims, own[name].data) for name in lazy}
        tasks.append(write(str(path), region, number, values))
    if client is not None:
        _on_cluster(tasks, client, written)
        return
    numbers = {task.key: number for task, number in zip(tasks, regions, strict=True)}

    def finished(key: Any, *_: Any) -> None:
        if key in numbers:
            written(numbers[key])

    with Callback(posttask=finished):
        dask.compute(*tasks)


def _on_cluster(tasks: list[Any], client: Any, written: Callable[[int], None]) -> None:
    """Run tasks, which return their numbers, on a cluster."""
    from distributed import CancelledError, KilledWorker, as_completed

    futures = client.compute(tasks)
    try:
        for future in as_completed(futures):
            written(future.result())
            future.release()
    except (CancelledError, KilledWorker) as error:
        why = "workers were lost, again and again, or the scheduler was: do they have enough memory?"
        raise OSError(f"{why} ({error})") from error
    finally:
        client.cancel(futures)


def _write(path: str, region: Region, number: int, values: dict[Any, Any]) -> int:
    import xarray as xr

    xr.Dataset(values).to_zarr(path, region=region, consolidated=False)
    return number


def _write_tables(panel: "xr.Dataset", folder: Path, scores: "xr.DataArray | None") -> None:
    import dask

    if scores is None:
        raise ValueError("scores is missing: Parquet tables hold them beside the thresholds; or save as .zarr or .nc")
    dims = [str(name) for name in panel["rounds"].dims]
    lazy = panel["rounds"].chunks is not None
    regions = regions_of(panel, dims) if lazy else [{name: slice(None) for name in dims}]
    unnamed = [name for name in panel["thresholds"].dims if name not in panel.coords]  # numbered as a whole
    panel = panel.assign_coords({name: np.arange(panel.sizes[name]) for name in unnamed})
    scores = scores.assign_coords({name: np.arange(scores.sizes[name]) for name in unnamed if name in scores.dims})
    folder.mkdir(parents=True, exist_ok=True)
    table, metrics = dask.delayed(_write_table), []
    for number, region in enumerate(regions):
        parts = [part.isel(region) for part in (panel, scores)]
        metrics.append(table(*parts, str(folder / f"part-{number:05d}.parquet")))
    import pandas as pd

    frame = pd.concat(dask.compute(*metrics), ignore_index=True)
    frame.to_parquet(folder / "_metrics.parquet", index=False)


def _write_table(panel: "xr.Dataset", scores: "xr.DataArray", file: str) -> "pd.DataFrame":
    """Write the long table of some series, and return their metrics."""
    to_long(panel, scores).to_parquet(file, index=False)
    own = [name for name in panel.data_vars if name != "thresholds"]
    return panel[own].reset_coords(drop=True).to_dataframe().reset_index()
