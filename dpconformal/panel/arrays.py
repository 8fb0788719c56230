"""Zarr stores and NetCDF files as lazy arrays: checked first, and what cannot be read is named."""

import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from dpconformal.panel.layouts import Layout, chunks_of, is_zarr, netcdf_layouts, refused, zarr_layouts

if TYPE_CHECKING:
    import xarray as xr


def open_arrays(path: Path) -> "xr.Dataset":
    """Open a store lazily, in the chunks that it has; a ValueError names the store, and the chunk if there is one."""
    import dask.array as da
    import xarray as xr

    layouts: dict[str, Any]
    if is_zarr(path):
        from zarr.storage import LocalStore

        number, layouts = zarr_layouts(path)
        # Metadata that were checked, and no consolidated copies of them.
        how: Any = {"engine": "zarr", "zarr_format": number, "consolidated": False}
        store: Any = LocalStore(path, read_only=True)
    else:
        layouts, how, store = netcdf_layouts(path), {"engine": "h5netcdf"}, str(path)
    for name, layout in layouts.items():
        if layout.dims == (name,):  # an index, which is read whole when the store is opened
            for at in chunks_of(layout, (slice(None),)):
                layout.check(at, decode=True)
        elif all(layout.shape):  # whose first and last value may be looked at
            for corner in (0, -1):
                for at in chunks_of(layout, (corner,) * len(layout.shape)):
                    layout.check(at, decode=False)
    try:
        data = xr.open_dataset(store, chunks=None, cache=False, **how)
    except Exception as error:
        raise refused(path, "cannot be opened", error) from None
    for key, variable in data.variables.items():
        name = str(key)
        if key in data.xindexes or name not in layouts:
            continue
        layout = layouts[name]
        chunks: Any = (layout.chunks or ())[: variable.ndim]
        if layout.chunks is None:
            chunks = "auto" if variable.dtype.kind in "biufMm" else -1  # of objects nobody knows the size
        own = _Stored(path, layout, variable)
        meta = np.empty((0,) * variable.ndim, variable.dtype)
        lazy = da.from_array(own, chunks, name=f"open-{name}-{uuid.uuid4().hex}", asarray=False, fancy=False, meta=meta)
        put = data.assign_coords if name in data.coords else data.assign
        data = put({name: variable.copy(data=lazy)})
    return data


class _Stored:
    """A variable on disk; a chunk that cannot be read is named."""

    def __init__(self, path: Path, layout: Layout, variable: Any):
        self.path, self.layout, self.variable = path, layout, variable
        self.shape, self.dtype, self.ndim = variable.shape, variable.dtype, variable.ndim

    def __getitem__(self, key: Any) -> np.ndarray:
        key = key if isinstance(key, tuple) else (key,)
        # Text may be stored as letters, along a dimension more.
        touched = list(chunks_of(self.layout, (*key, *[slice(None)] * (len(self.layout.shape) - self.ndim))))
        for at in touched:
            self.layout.check(at, decode=False)
        try:
            return np.asarray(self.variable[key].values)
        except Exception as error:
            for at in touched:
                self.layout.check(at, decode=True)
            where = ", ".join(f"{one.start}:{one.stop}" if isinstance(one, slice) else str(one) for one in key)
            raise refused(self.path, f"{self.layout.name}[{where}] cannot be read", error) from None
