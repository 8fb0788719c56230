"""A panel to disk: Zarr, region by region, so that work can stop and go on; NetCDF; or long tables in Parquet."""

import itertools
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from dpconformal.panel.long import to_long

if TYPE_CHECKING:
    import xarray as xr

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
        begin(panel, path, compute=True)
    elif path.suffix == ".nc":
        numbers = {n: v.chunks for n, v in panel.variables.items() if v.dtype.kind in "biufMm" and v.size and v.ndim}
        encoding = {
            n: {"fletcher32": True} | ({"chunksizes": tuple(map(max, c))} if c else {}) for n, c in numbers.items()
        }
        panel.drop_encoding().to_netcdf(path, engine="h5netcdf", encoding=encoding)
    else:
        _tables(panel, path, scores)


def check_free(path: Path) -> None:
    """Refuse to write over something."""
    if path.is_symlink():
        raise ValueError(f"{path} is a link: remove it, or name the place that it leads to")
    if path.is_dir() and not any(path.iterdir()) and path.suffix not in (".zarr", ".nc"):
        return
    if path.suffix not in (".zarr", ".nc", ""):
        raise ValueError(f"{path.name}: write .zarr, .nc, or a folder without a suffix, for Parquet")
    if path.exists():
        raise ValueError(f"{path} exists: remove it, or choose another place")


def begin(panel: "xr.Dataset", path: Path, compute: bool = False) -> None:
    """Make a Zarr store for a panel: all that is known before it is computed."""
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
    """Have the workers of a cluster do tasks that return their numbers."""
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


def _tables(panel: "xr.Dataset", folder: Path, scores: "xr.DataArray | None") -> None:
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
    table, metrics = dask.delayed(_table), []
    for number, region in enumerate(regions):
        parts = [part.isel(region) for part in (panel, scores)]
        metrics.append(table(*parts, str(folder / f"part-{number:05d}.parquet")))
    import pandas as pd

    frame = pd.concat(dask.compute(*metrics), ignore_index=True)
    frame.to_parquet(folder / "_metrics.parquet", index=False)


def _table(panel: "xr.Dataset", scores: "xr.DataArray", file: str) -> Any:
    """Write the long table of some series, and return their metrics."""
    to_long(panel, scores).to_parquet(file, index=False)
    own = [name for name in panel.data_vars if name != "thresholds"]
    return panel[own].reset_coords(drop=True).to_dataframe().reset_index()
