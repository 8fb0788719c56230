"""Zarr stores and NetCDF files that are almost right: refused by a clear error, or read as they are."""

import itertools
import json
import os
import pathlib
import shutil
import tempfile

import dask
import h5py
import numcodecs
import numpy as np
import xarray as xr
import zarr

import dpconformal as dpc
from dpconformal.panel.layouts import CODECS

from .mutations import mutate

_SCORES = xr.DataArray(
    np.random.default_rng(3).random((6, 4)).round(3),
    {
        "store": np.array(["a", "bb", "ü", "d", "e", "f"], object),
        "time": np.arange("2024-01-01", "2024-01-05", dtype="M8[D]").astype("M8[ns]"),
        "week": ("time", [1, 1, 1, 2]),
        "where": ("store", np.array(["x", "yy", "x", "x", "x", "y"], object)),
    },
    ["store", "time"],
    name="score",
)
_CHUNKS = {"score": {"chunks": (2, 4)}, "where": {"chunks": (4,)}}


def _files(folder):
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def _stores():
    """Make a store as we write it, and as others do, in both formats."""
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        dpc.panel.save_panel(_SCORES.chunk(store=2).to_dataset(), folder / "ours.zarr")
        for number, compressors in enumerate([numcodecs.Blosc("lz4"), numcodecs.GZip(), numcodecs.LZ4()]):
            encoding = {own: known | {"compressors": [compressors]} for own, known in _CHUNKS.items()}
            _SCORES.to_dataset().to_zarr(folder / f"{number}.zarr", encoding=encoding, zarr_format=2)
        for number, compressors in enumerate([zarr.codecs.BloscCodec(), zarr.codecs.ZstdCodec()]):
            encoding = {own: known | {"compressors": [compressors]} for own, known in _CHUNKS.items()}
            whole = _SCORES.to_dataset()
            whole.to_zarr(folder / f"v3-{number}.zarr", encoding=encoding, zarr_format=3, consolidated=False)
        return {path.stem: _files(path) for path in sorted(folder.iterdir())}


STORES = _stores()
_home = tempfile.TemporaryDirectory(dir="/dev/shm" if pathlib.Path("/dev/shm").is_dir() else None)
_store = pathlib.Path(_home.name) / "fuzz.zarr"


def written(files):
    """Return the path of a store with these files."""
    shutil.rmtree(_store, ignore_errors=True)
    for name, data in files.items():
        (_store / name).parent.mkdir(parents=True, exist_ok=True)
        (_store / name).write_bytes(data)
    return _store


def opened(path):
    """Open a panel and read all of it, unless that is a lot."""
    array = dpc.panel.open_panel(path)
    if array.size > 10**6 or array.nbytes > 10**7:
        return None
    with dask.config.set(scheduler="synchronous"):
        return array.compute()


def fuzz_zarr_chunks(rng):
    """Damaged chunks: of a store of ours none is ever read."""
    kind = rng.choice(list(STORES))
    name = rng.choice([n for n in STORES[kind] if pathlib.Path(n).name[0] not in ".z"])
    data = mutate(rng, [STORES[kind][name]])
    found = opened(written(STORES[kind] | {name: data}))
    if kind == "ours":
        assert data == STORES[kind][name], name
    assert found.shape == _SCORES.shape


_WORDS = [
    None,
    True,
    -1,
    0,
    1,
    2,
    5,
    2**31,
    2**70,
    0.5,
    "",
    [],
    {},
    "NaN",
    "C",
    "F",
    ".",
    "/",
    "../..",
    "|O",
    "<f4",
    ">f8",
]
_WORDS += ["<U3", "|S9", "<M8[ns]", "<m8[fs]", "|V8", "float32", "string", "int64", [2, 4], [1, 1], [6], [[1]]]
_WORDS += [
    {"id": "pickle"},
    {"id": "json2"},
    {"id": "msgpack2"},
    {"name": "sharding_indexed"},
    {"id": "delta", "dtype": "O"},
]
_WORDS += [{"id": name} for name in CODECS[2]] + [{"name": name, "configuration": {}} for name in CODECS[3]]
_WORDS += [
    {"id": "crc32c", "location": "start"},
    {"id": "blosc", "cname": "none", "clevel": 99},
    "days since 2024",
    "bool",
]
_KEYS = [
    "filters",
    "compressor",
    "codecs",
    "dtype",
    "data_type",
    "shape",
    "chunks",
    "fill_value",
    "scale_factor",
    "units",
]
_KEYS += [
    "_FillValue",
    "calendar",
    "coordinates",
    "_ARRAY_DIMENSIONS",
    "dimension_names",
    "zarr_format",
    "node_type",
    "id",
]


def _bend(rng, entry):
    """Change something in metadata."""
    if isinstance(entry, dict) and rng.random() < 0.9:
        key = rng.choice([*entry] or _KEYS)
        match rng.randrange(6):
            case 0:
                return {name: value for name, value in entry.items() if name != key}
            case 1:
                return entry | {rng.choice(_KEYS): rng.choice(_WORDS)}
            case _:
                return entry | {key: _bend(rng, entry.get(key))}
    if isinstance(entry, list) and entry and rng.random() < 0.8:
        k = rng.randrange(len(entry))
        return [*entry[:k], *([_bend(rng, entry[k])] * rng.choice([0, 1, 1, 1, 2])), *entry[k + 1 :]]
    return rng.choice(_WORDS)


def fuzz_zarr_metadata(rng):
    """Metadata of somebody who knows the format, or with bytes that changed."""
    files = dict(STORES[rng.choice(list(STORES))])
    for _ in range(rng.choice([1, 1, 2])):
        name = rng.choice([n for n in files if pathlib.Path(n).name[0] in ".z"])
        if rng.random() < 0.3:
            files[name] = mutate(rng, [files[name]])
            continue
        try:
            files[name] = json.dumps(_bend(rng, json.loads(files[name]))).encode()
        except ValueError:  # it was mutated before
            continue
    opened(written(files))


def _netcdf(**how):
    handle, name = tempfile.mkstemp(suffix=".nc")
    os.close(handle)
    _SCORES.to_dataset().to_netcdf(name, engine="h5netcdf", encoding={"score": how})
    data = pathlib.Path(name).read_bytes()
    os.unlink(name)
    return data


NETCDF = [_netcdf(), _netcdf(chunksizes=(2, 4), fletcher32=True), _netcdf(zlib=True, shuffle=True)]
_numbers = itertools.count()


def fuzz_netcdf(rng):
    """Variables of somebody who knows the format. Damaged bytes of HDF5 are HDF5's own business."""
    path = pathlib.Path(_home.name) / f"fuzz-{next(_numbers)}.nc"  # HDF5 remembers files that are open
    path.write_bytes(rng.choice(NETCDF))
    try:
        _bend_netcdf(rng, path)
        opened(path)
    finally:
        path.unlink()


def _bend_netcdf(rng, path):
    """Change something in a file, by HDF5's own means."""
    with h5py.File(path, "r+") as file:
        for _ in range(rng.choice([1, 1, 2])):
            name = rng.choice([name for name in file if isinstance(file.get(name, getlink=True), h5py.HardLink)])
            match rng.randrange(7):
                case 0:
                    file[name].attrs[rng.choice(_KEYS)] = rng.choice(
                        [0.5, "x", "days since 2024-01-01", [1, 2], "nan", b"\xff"]
                    )
                case 1:
                    del file[name]
                case 2:
                    file.move(name, rng.choice(["score", "time", "store", "level", "Ü"]) + "2")
                case 3:
                    key = rng.choice([*file[name].attrs] or ["units"])
                    file[name].attrs.pop(key, None)
                case 4:
                    kind = rng.choice(
                        ["f8", "S3", "i1", h5py.string_dtype(), h5py.ref_dtype, "V8", "c16", h5py.vlen_dtype("f8")]
                    )
                    del file[name]
                    file.create_dataset(
                        name, shape=rng.choice([(), (6,), (4,), (6, 4), (0, 4), (2**40, 4)]), dtype=kind
                    )
                case 5:
                    del file[name]
                    file[name] = rng.choice(
                        [h5py.SoftLink("/time"), h5py.ExternalLink("/etc/passwd", "x"), h5py.SoftLink("/" + name)]
                    )
                case 6:
                    if file[name].dtype.kind in "if" and file[name].shape == (6, 4):
                        file[name][...] = rng.choice([np.nan, np.inf, -1.0, 1e300])


TARGETS = {"zarr chunks": fuzz_zarr_chunks, "zarr metadata": fuzz_zarr_metadata, "netcdf": fuzz_netcdf}
