"""Panels on disk: Zarr, NetCDF, and Parquet folders of long tables."""

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from dpconformal.panel.layouts import is_zarr, open_arrays
from dpconformal.panel.long import NUMBERS, ROUND, Columns, check_columns, gather_parts, series_of_a_chunk, to_long

if TYPE_CHECKING:
    import pandas as pd
    import xarray as xr
    from dask.delayed import Delayed
    from distributed import Client

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
    time, score : str
        Columns; in arrays a dimension and a variable.
    numbers : int
        Scores of a chunk, about.

    Returns
    -------
    xarray.DataArray
        Lazy, in chunks of whole series. Of a long table, the dimension of time is called ``"round"``.

    Raises
    ------
    ValueError
        Naming the series and time, or the array or chunk, of what is refused.

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
        parts, lengths = _parquet_parts(path, columns)
        return gather_parts(parts, columns, numbers, lengths)
    data = open_arrays(path)
    if score not in data:
        raise ValueError(f"{score!r} is no variable of {path}: it has {', '.join(map(repr, data.data_vars)) or 'none'}")
    scores = data[score]
    dim = dimension_of_time(scores, time)
    if dim not in scores.dims:
        raise ValueError(f"{time!r} is no dimension of {score} in {path}: it has {', '.join(map(repr, scores.dims))}")
    return rechunk(scores, dim, numbers)


def is_long(path: Path) -> bool:
    """Whether a panel on disk is a long table."""
    if path.suffix in ARRAYS or is_zarr(path):
        return False
    if path.suffix == ".parquet" or (path.is_dir() and _parquet_files(path)):
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


def _parquet_files(path: Path) -> list[Path]:
    """Return the files of a folder, part.2 before part.10, and none that is hidden."""
    from dask.utils import natural_sort_key

    if not path.is_dir():
        return [path]
    inner = {file: file.relative_to(path).parts for file in path.rglob("*.parquet")}
    seen = [file for file, parts in inner.items() if not any(part[0] in "._" for part in parts)]
    return sorted(seen, key=lambda file: [natural_sort_key(part) for part in inner[file]])


def _parquet_parts(path: Path, columns: Columns) -> "tuple[list[Delayed], list[int]]":
    """List the parts of a table, files or row groups, and how many rows each has."""
    import dask
    import pyarrow.parquet as parquet

    read = dask.delayed(_read_parquet, pure=True)
    parts: list[Delayed] = []
    lengths: list[int] = []
    for file in _parquet_files(path):
        changed = os.stat(file).st_mtime_ns
        try:
            about = parquet.read_metadata(file)
        except (OSError, ValueError) as error:
            raise ValueError(f"{file} is no Parquet file: {error}") from None
        columns.check_in(about.schema.to_arrow_schema().names, str(file))
        if about.num_rows > ROWS and about.num_row_groups > 1:
            groups = {group: about.row_group(group).num_rows for group in range(about.num_row_groups)}
        else:
            groups = {-1: about.num_rows}  # the whole file
        parts += [read(str(file), group, list(columns), changed) for group in groups]
        lengths += groups.values()
    return parts, lengths


def _read_parquet(file: str, group: int, columns: list[str], changed: int) -> "pd.DataFrame":
    """Read a row group, or of -1 the file. When it was changed is here for Dask, which takes equal calls for one."""
    import pyarrow.parquet as parquet

    del changed
    opened = parquet.ParquetFile(file)
    return (opened.read(columns) if group < 0 else opened.read_row_group(group, columns)).to_pandas()


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
        ``part-00000.parquet`` and so on, with the rows of :func:`to_long`, one file a chunk, and ``_metrics.parquet``,
        which readers of the folder pass over.
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
    """Return the regions of the chunks of a lazy panel."""
    from dask.array.core import slices_from_chunks

    slices = slices_from_chunks([panel.chunksizes[name] for name in dims])
    return [dict(zip(dims, region, strict=True)) for region in slices]


def write_regions(
    panel: "xr.Dataset",
    path: Path,
    regions: Mapping[int, Region],
    client: "Client | None",
    written: Callable[[int], None],
) -> None:
    """
    Compute regions of a lazy panel, each by a task that writes it into the store.

    A task writes the chunks of its own region and nothing else. So it may be interrupted, and run again by another
    worker, and the result is the same.
    """
    import dask
    from dask.callbacks import Callback

    write, tasks = dask.delayed(_write_region), {}
    along = {dim for region in regions.values() for dim in region}
    lazy = [name for name, variable in panel.variables.items() if variable.chunks and along & set(variable.dims)]
    for number, region in regions.items():
        own = panel.isel(region)
        task = write(str(path), region, number, {name: (own[name].dims, own[name].data) for name in lazy})
        tasks[task.key] = number, task
    if client is not None:
        _run_on_cluster([task for _, task in tasks.values()], client, written)
        return

    def finished(key: Any, *_: Any) -> None:
        if key in tasks:
            written(tasks[key][0])

    with Callback(posttask=finished):
        dask.compute(*(task for _, task in tasks.values()))


def _run_on_cluster(tasks: "list[Delayed]", client: "Client", written: Callable[[int], None]) -> None:
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


def _write_region(path: str, region: Region, number: int, values: dict[Any, Any]) -> int:
    import xarray as xr

    xr.Dataset(values).to_zarr(path, region=region, consolidated=False)
    return number


def _write_tables(panel: "xr.Dataset", folder: Path, scores: "xr.DataArray | None") -> None:
    """Write a long table for each chunk, and one of the metrics of all series."""
    import dask
    import pandas as pd

    if scores is None:
        raise ValueError("scores is missing: Parquet tables hold them beside the thresholds; or save as .zarr or .nc")
    dims = [str(name) for name in panel["rounds"].dims]
    regions = regions_of(panel, dims) if panel["rounds"].chunks is not None else [{}]
    unnamed = [name for name in panel["thresholds"].dims if name not in panel.coords]  # numbered as a whole
    panel = panel.assign_coords({name: np.arange(panel.sizes[name]) for name in unnamed})
    scores = scores.assign_coords({name: np.arange(scores.sizes[name]) for name in unnamed if name in scores.dims})
    folder.mkdir(parents=True, exist_ok=True)
    write = dask.delayed(_write_table)
    metrics = [
        write(panel.isel(region), scores.isel(region), str(folder / f"part-{number:05d}.parquet"))
        for number, region in enumerate(regions)
    ]
    frame = pd.concat(dask.compute(*metrics), ignore_index=True)
    frame.to_parquet(folder / "_metrics.parquet", index=False)


def _write_table(panel: "xr.Dataset", scores: "xr.DataArray", file: str) -> "pd.DataFrame":
    """Write the long table of some series, and return their metrics."""
    to_long(panel, scores).to_parquet(file, index=False)
    own = [name for name in panel.data_vars if name != "thresholds"]
    return panel[own].reset_coords(drop=True).to_dataframe().reset_index()
