"""Zarr stores and NetCDF files as lazy arrays; their metadata and chunks are checked before they are decoded."""

import contextlib
import itertools
import json
import math
import os
import re
import stat
import struct
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

if TYPE_CHECKING:
    import xarray as xr


LARGEST_CHUNK = 2**31  # bytes
MOST_CHUNKS = 2**20  # of an array: each is a task
MOST_NUMBERS = 2**40
LARGEST_METADATA = 2**26  # bytes

COMPRESSORS = ("blosc", "zstd", "gzip", "zlib", "bz2", "lz4")
TEXT = "vlen-utf8"
CODECS = {2: (TEXT, *COMPRESSORS, "crc32c"), 3: ("bytes", "transpose", TEXT, "blosc", "zstd", "gzip", "crc32c")}
# These trust lengths in what they decode: a wrong one ends the process, or takes all of its memory.
TRUSTING = ("blosc", TEXT)
HDF5_FILTERS = {1: "deflate", 2: "shuffle", 3: "fletcher32"}
_KINDS = {
    2: re.compile(r"[<>|]([biuf][1248]|[mM]8(\[\w+\])?|[SU][1-9]\d{0,8})"),
    3: re.compile(r"bool|u?int\d+|float\d+"),
}


def is_zarr(path: Path) -> bool:
    """Whether a folder is the root of a Zarr store."""
    return path.is_dir() and any((path / name).exists() for name in ("zarr.json", ".zgroup"))


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
        # An index is read whole when the store is opened; of others the first and the last value may be looked at.
        is_index = layout.dims == (name,)
        corners = [(k,) * len(layout.shape) for k in (0, -1)] if all(layout.shape) else []
        for place in [(slice(None),)] if is_index else corners:
            for at in chunks_of(layout, place):
                layout.check(at, decode=is_index)
    with _named_errors(path, "cannot be opened"):
        data = xr.open_dataset(store, chunks=None, cache=False, **how)
    for key, variable in list(data.variables.items()):
        name = str(key)
        if key in data.xindexes or name not in layouts:
            continue
        layout = layouts[name]
        chunks: Any = (layout.chunks or ())[: variable.ndim]
        if layout.chunks is None:
            chunks = "auto" if variable.dtype.kind in "biufMm" else -1  # of objects nobody knows the size
        meta = np.empty((0,) * variable.ndim, variable.dtype)
        own, label = _Stored(layout, variable), f"open-{name}-{uuid.uuid4().hex}"
        lazy = da.from_array(own, chunks, name=label, asarray=False, fancy=False, meta=meta)
        data[key] = variable.copy(data=lazy)  # a coordinate stays one
    return data


class _Stored:
    """A variable on disk; a chunk that cannot be read is named."""

    def __init__(self, layout: "Layout", variable: "xr.Variable") -> None:
        self.layout, self.variable = layout, variable
        self.shape, self.dtype, self.ndim = variable.shape, variable.dtype, variable.ndim

    def __getitem__(self, key: Any) -> np.ndarray:
        key = key if isinstance(key, tuple) else (key,)
        # Text may be stored as letters, along a dimension more.
        touched = list(chunks_of(self.layout, (*key, *[slice(None)] * (len(self.layout.shape) - self.ndim))))
        for at in touched:
            self.layout.check(at, decode=False)
        where = ", ".join(f"{one.start}:{one.stop}" if isinstance(one, slice) else str(one) for one in key)
        with _named_errors(self.layout.store, f"{self.layout.name}[{where}] cannot be read"):
            try:
                return np.asarray(self.variable[key].values)
            except Exception:
                for at in touched:
                    self.layout.check(at, decode=True)  # finds the chunk
                raise


class ZarrLayout(NamedTuple):
    """Where the chunks of an array are, and how they are encoded."""

    store: Path
    name: str
    dims: tuple[str, ...]
    shape: tuple[int, ...]
    chunks: tuple[int, ...]
    item: int | None  # bytes of a number; None: text
    key: str  # of a chunk: how it begins
    separator: str
    codecs: tuple[dict[str, Any], ...]  # from the array to the file

    def place(self, at: tuple[int, ...]) -> str:
        """Return the key of a chunk."""
        words = [self.key] if self.key else []
        return f"{self.name}/{self.separator.join([*words, *map(str, at)]) or '0'}"

    def check(self, at: tuple[int, ...], decode: bool) -> None:
        """Refuse a chunk that must not be decoded; and on request one that cannot be."""
        from numcodecs import get_codec
        from numcodecs.compat import ensure_bytes

        count = math.prod(self.chunks)
        with _named_errors(self.store, f"chunk {self.place(at)} cannot be read"):
            data = _read(self.store, self.place(at))
            if data is None:
                return  # it is full of the fill value
            trusting = [k for k, codec in enumerate(self.codecs) if codec["id"] in TRUSTING]
            innermost = 0 if decode else min(trusting, default=len(self.codecs))
            for k in reversed(range(innermost, len(self.codecs))):
                codec = self.codecs[k]
                if codec["id"] == "blosc" and (len(data) < 16 or struct.unpack_from("<I", data, 12)[0] != len(data)):
                    raise ValueError(f"it is no Blosc frame of {len(data)} bytes")
                if codec["id"] == TEXT and (len(data) < 4 or struct.unpack_from("<I", data)[0] != count):
                    raise ValueError(f"it is no text of {count} labels")
                if k > innermost or decode:
                    decoded = get_codec(codec).decode(data)
                    data = b"" if codec["id"] == TEXT else ensure_bytes(decoded)
            if decode and self.item is not None and len(data) != count * self.item:
                raise ValueError(f"it holds {len(data)} bytes, not {count * self.item}")


class NetCDFLayout(NamedTuple):
    """Which parts of a variable are stored together."""

    store: Path
    name: str
    dims: tuple[str, ...]
    shape: tuple[int, ...]
    chunks: tuple[int, ...] | None  # None: all in one

    def check(self, at: tuple[int, ...], decode: bool) -> None:
        """Refuse a chunk that cannot be decoded."""
        import h5py

        if not decode:
            return
        sizes = self.chunks or self.shape
        part = tuple(slice(k * size, (k + 1) * size) for k, size in zip(at, sizes, strict=True))
        which = "" if self.chunks is None else f"chunk {'.'.join(map(str, at))} of "
        with _named_errors(self.store, f"{which}{self.name} cannot be read"), h5py.File(self.store, "r") as file:
            file[self.name][part]


Layout = ZarrLayout | NetCDFLayout


def chunks_of(layout: Layout, key: tuple[Any, ...]) -> Iterator[tuple[int, ...]]:
    """Iterate over the chunks that a selection by slices and numbers touches."""
    touched = []
    for one, length, size in zip(key, layout.shape, layout.chunks or layout.shape, strict=True):
        rows = range(*one.indices(length)) if isinstance(one, slice) else [int(one) % length]
        touched.append(range(min(rows) // size, max(rows) // size + 1) if rows else range(0))
    return itertools.product(*touched)


def zarr_layouts(store: Path) -> tuple[int, dict[str, ZarrLayout]]:
    """Read the metadata of the arrays in a store, and its format, 2 or 3; refuse what is not to be decoded."""
    import zarr
    from zarr.storage import LocalStore

    formats = [number for number, name in ((2, ".zgroup"), (3, "zarr.json")) if (store / name).exists()]
    if len(formats) != 1:
        raise ValueError(f"{store} has both .zgroup and zarr.json: one format of Zarr, please")
    (number,) = formats
    root = _metadata(store, ".zgroup" if number == 2 else "zarr.json", number)
    if number == 3 and root.get("node_type") != "group":
        raise ValueError(f"{store} is no group of arrays: its zarr.json says node_type = {root.get('node_type')!r}")
    found = {}
    for folder in sorted(path for path in store.iterdir() if path.is_dir()):
        names = (".zarray", ".zgroup") if number == 2 else ("zarr.json",)
        name = next((name for name in names if os.path.lexists(folder / name)), None)
        if name is None:
            continue
        about = _metadata(store, f"{folder.name}/{name}", number)
        group = name == ".zgroup" or about.get("node_type") == "group"
        with _named_errors(store, f"{'group' if group else 'array'} {folder.name} is refused"):
            if not group:
                found[folder.name] = (_array_2 if number == 2 else _array_3)(store, folder.name, about)
            # Zarr reads them one by one: of several that fail at once, it prints tracebacks.
            local = LocalStore(store, read_only=True)
            where: Any = {"store": local, "path": folder.name, "mode": "r", "zarr_format": number}
            zarr.open_group(**where, use_consolidated=False) if group else zarr.open_array(**where)
    return number, found


def netcdf_layouts(file: Path) -> dict[str, NetCDFLayout]:
    """Read how the variables of a file are stored; refuse what is not to be decoded, or is in other files."""
    import h5py

    if not file.is_file():
        raise ValueError(f"{file} is no file")
    found = {}
    with _named_errors(file, "cannot be opened"), h5py.File(file, "r") as opened:
        for name in opened:
            with _named_errors(file, f"variable {name} is refused"):
                if not isinstance(opened.get(name, getlink=True), h5py.HardLink):
                    raise ValueError("it is a link, perhaps to another file")
                data = opened[name]
                if not isinstance(data, h5py.Dataset):
                    continue
                if data.shape is None:
                    raise ValueError("it is empty: it has no shape")
                numbers = data.dtype.kind in "biuf" and not h5py.check_enum_dtype(data.dtype)
                if not numbers and h5py.check_string_dtype(data.dtype) is None:
                    raise ValueError(f"dtype {data.dtype} is neither numbers nor text")
                if data.external or data.is_virtual:
                    raise ValueError("its numbers are in other files: copy them into this one")
                plan = data.id.get_create_plist()
                for code in (plan.get_filter(k)[0] for k in range(plan.get_nfilters())):
                    if code not in HDF5_FILTERS:
                        usual = ", ".join(HDF5_FILTERS.values())
                        raise ValueError(f"HDF5 filter {code} is not one of {usual}: store it with these")
                layout = NetCDFLayout(file, name, (name,) if data.is_scale else (), data.shape, data.chunks)
                _check_sizes(layout, data.dtype.itemsize)
                found[name] = layout
    return found


def _array_2(store: Path, name: str, about: dict[str, Any]) -> ZarrLayout:
    """Read the metadata of an array of format 2."""
    codecs = [_codec(one, "id", 2) for one in (about.get("filters") or [])]
    if about.get("compressor") is not None:
        codecs.append(_codec(about["compressor"], "id", 2))
    kind, text = about.get("dtype"), [codec["id"] for codec in codecs[:1]] == [TEXT]
    if kind == "|O" and not text:
        raise ValueError(f"dtype '|O' holds objects: text has the filter {TEXT}, and nothing else is read")
    if not (kind == "|O" if text else isinstance(kind, str) and _KINDS[2].fullmatch(kind)):
        raise ValueError(f"dtype {_short(kind)} is neither numbers nor times nor text")
    order, separator = about.get("order"), about.get("dimension_separator", ".")
    if order not in ("C", "F") or separator not in (".", "/"):
        raise ValueError(f"order = {_short(order)}, dimension_separator = {_short(separator)}")
    if any(codec["id"] == TEXT for codec in codecs[1:]):
        raise ValueError(f"codec {TEXT} is not the first")
    attributes = _metadata(store, f"{name}/.zattrs", None) if os.path.lexists(store / name / ".zattrs") else {}
    dims, item = attributes.get("_ARRAY_DIMENSIONS", []), None if text else np.dtype(kind).itemsize
    return _layout(store, name, dims, about.get("shape"), about.get("chunks"), item, "", separator, tuple(codecs))


def _array_3(store: Path, name: str, about: dict[str, Any]) -> ZarrLayout:
    """Read the metadata of an array of format 3."""
    if about.get("node_type") != "array" or about.get("storage_transformers"):
        raise ValueError("it is no plain array")
    codecs = [_codec(one, "name", 3) for one in about["codecs"]]
    kind = about.get("data_type")
    setting = kind.get("configuration", {}) if isinstance(kind, dict) else {}
    named = kind.get("name") if isinstance(kind, dict) else kind
    if named in ("string", "fixed_length_utf32", "numpy.datetime64", "numpy.timedelta64"):
        item = {"string": None, "fixed_length_utf32": setting.get("length_bytes")}.get(named, 8)
    elif isinstance(kind, str) and _KINDS[3].fullmatch(kind):
        item = np.dtype(kind).itemsize
    else:
        raise ValueError(f"data_type {_short(kind)} is neither numbers nor times nor text")
    if item is not None and not _is_count(item):
        raise ValueError(f"data_type {_short(kind)} has no size")
    grid, keys = about["chunk_grid"], about["chunk_key_encoding"]
    usual = {"default": "/", "v2": "."}
    if grid.get("name") != "regular" or keys.get("name") not in usual:
        raise ValueError(
            f"chunk_grid {_short(grid)} with chunk_key_encoding {_short(keys)}: store it in regular chunks"
        )
    separator = keys.get("configuration", {}).get("separator", usual[keys["name"]])
    if separator not in (".", "/"):
        raise ValueError(f"separator = {_short(separator)}")
    inner = [codec for codec in codecs if codec["id"] not in ("bytes", "transpose")]
    if [codec["id"] for codec in inner].count(TEXT) != (item is None) or (item is None and inner[0]["id"] != TEXT):
        raise ValueError(f"data_type {_short(kind)} is not in codec {TEXT}, or something else is")
    dims, chunks = about.get("dimension_names") or [], grid["configuration"]["chunk_shape"]
    prefix = "c" if keys["name"] == "default" else ""
    return _layout(store, name, dims, about.get("shape"), chunks, item, prefix, separator, tuple(inner))


def _layout(store: Path, name: str, dims: Any, shape: Any, chunks: Any, *encoding: Any) -> ZarrLayout:
    """Check dimensions and sizes, which may be of any type in the metadata."""
    for what, sizes in (("shape", shape), ("chunks", chunks)):
        if not isinstance(sizes, list) or not all(_is_count(size, what == "shape") for size in sizes):
            raise ValueError(f"{what} = {_short(sizes)}")
    if len(shape) != len(chunks):
        raise ValueError(f"shape = {_short(shape)} and chunks = {_short(chunks)}")
    if not isinstance(dims, list):
        raise ValueError(f"its dimensions are {_short(dims)}")
    layout = ZarrLayout(store, name, tuple(map(str, dims)), tuple(shape), tuple(chunks), *encoding)
    _check_sizes(layout, layout.item or 8)
    return layout


def _codec(about: Any, key: str, number: int) -> dict[str, Any]:
    """Return a codec as numcodecs has it, if it may be used."""
    named = about.get(key) if isinstance(about, dict) else about
    if named not in CODECS[number]:
        raise ValueError(f"codec {_short(named)} is not one of {', '.join(CODECS[number])}: store it with these")
    return {"id": named} if number == 3 else about


def _check_sizes(layout: Layout, item: int) -> None:
    """Refuse shapes and chunks that are too large to read."""
    numbers = math.prod(layout.shape)
    if numbers > MOST_NUMBERS:
        raise ValueError(f"shape {list(layout.shape)} is {numbers:,} numbers: at most {MOST_NUMBERS:,} are read")
    if layout.chunks is None:
        return
    size = math.prod(layout.chunks) * item
    count = math.prod(-(-length // size) for length, size in zip(layout.shape, layout.chunks, strict=True))
    if size > LARGEST_CHUNK:
        raise ValueError(f"a chunk of {size:,} bytes: at most {LARGEST_CHUNK:,} are read")
    if count > MOST_CHUNKS:
        raise ValueError(f"it is in {count:,} chunks: store it in {MOST_CHUNKS:,} or fewer")


def _metadata(store: Path, name: str, number: int | None) -> dict[str, Any]:
    with _named_errors(store, f"{name} cannot be read"):
        data = _read(store, name, LARGEST_METADATA)
        found = None if data is None else json.loads(data)
        if not isinstance(found, dict) or (number is not None and found.get("zarr_format") != number):
            raise ValueError(f"it is no metadata of Zarr, format {number or 2}")
        return found


def _read(store: Path, name: str, most: int | None = None) -> bytes | None:
    """Read a file of a store; None if there is none. Links that lead out of it are refused, and pipes are."""
    root, place = os.path.realpath(store), os.path.realpath(store / name)
    if os.path.commonpath([root, place]) != root:
        raise ValueError(f"it is a link to {place}, outside of the store")
    try:
        about = os.stat(place)
    except (FileNotFoundError, NotADirectoryError):
        return None
    if not stat.S_ISREG(about.st_mode):
        raise ValueError("it is no file")
    if most is not None and about.st_size > most:
        raise ValueError(f"it has {about.st_size:,} bytes: at most {most:,} are read")
    return Path(place).read_bytes()


class Refused(ValueError):
    """A store that was refused, in words that name it."""


@contextlib.contextmanager
def _named_errors(store: Path, what: str) -> Iterator[None]:
    """Turn whatever a library raises over unknown bytes into an error of one line about something in a store."""
    try:
        yield
    except Refused:
        raise
    except Exception as error:
        why = " ".join(str(error).split())[:300] or type(error).__name__
        raise Refused(f"{store}: {what}: {why}") from None


def _is_count(size: Any, zero: bool = False) -> bool:
    return isinstance(size, int) and not isinstance(size, bool) and size >= (0 if zero else 1)


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:60]}…"
