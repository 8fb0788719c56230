"""
The format of a checkpoint, and writing a file so that it is there whole or not at all.

A file, little-endian throughout: 8 bytes of magic, version and length of the header (4 bytes each), length of the file
(8 bytes); the header, JSON; each array in C order from the next multiple of 64 bytes, its dtype and shape listed under
``arrays`` in the header; and the SHA-256 of everything before.
"""

import contextlib
import errno
import hashlib
import json
import math
import os
import stat
import struct
from collections.abc import Iterable
from pathlib import Path
from typing import IO, Any, NoReturn

import numpy as np

MAGIC = b"\x89DPC\r\n\x1a\n"
VERSION = 1
LONGEST_HEADER = 2**20
_PREFIX = struct.Struct("<8sIIQ")
_DIGEST = 32
_ALIGNMENT = 64
_DTYPES = {np.dtype(code).str: np.dtype(code) for code in ("<f4", "<f8", "<i4", "<i8", "<u4", "<u8", "|u1", "|b1")}
# What open() answers where a file system has no files without a name.
_UNNAMED_REFUSED = (errno.EOPNOTSUPP, errno.EISDIR, errno.EINVAL, errno.ENOENT, errno.EPERM)


def pack(header: dict[str, Any], arrays: list[np.ndarray]) -> list[bytes | memoryview]:
    """Return the bytes of a file, in parts."""
    arrays = [np.ascontiguousarray(array, array.dtype.newbyteorder("<")).reshape(array.shape) for array in arrays]
    strange = next((array.dtype for array in arrays if array.dtype.str not in _DTYPES), None)
    if strange is not None:
        raise ValueError(f"arrays of dtype {strange} cannot be saved: convert to one of {', '.join(_DTYPES)}")
    shapes = [{"dtype": array.dtype.str, "shape": list(array.shape)} for array in arrays]
    text = json.dumps(header | {"arrays": shapes}, allow_nan=False, separators=(",", ":")).encode()
    if len(text) > LONGEST_HEADER:
        raise ValueError(f"the description takes {len(text):,} bytes, and {LONGEST_HEADER:,} is the limit")
    parts: list[bytes | memoryview] = [text]
    size = _PREFIX.size + len(text)
    for array in arrays:
        gap = -size % _ALIGNMENT
        parts += [bytes(gap), array.reshape(-1).view(np.uint8).data]
        size += gap + array.nbytes
    parts.insert(0, _PREFIX.pack(MAGIC, VERSION, len(text), size + _DIGEST))
    digest = hashlib.sha256()
    for part in parts:
        digest.update(part)
    return [*parts, digest.digest()]


def unpack(path: str | os.PathLike[str], follow: bool = True) -> tuple[dict[str, Any], list[np.ndarray]]:
    """Read a file, with every statement of it checked before it is used."""
    content = _content(path, follow)
    if len(content) < _PREFIX.size + _DIGEST:
        if bytes(content[:8]) != MAGIC[: len(content)]:
            _refuse(path, "is no checkpoint of dpconformal")
        _refuse(path, f"is cut off: {len(content)} bytes are no whole checkpoint")
    magic, version, length, size = _PREFIX.unpack_from(content)
    if magic != MAGIC:
        _refuse(path, "is no checkpoint of dpconformal")
    if len(content) != size:
        what = "is cut off" if len(content) < size else "is longer than what was written"
        _refuse(path, f"{what}: {len(content):,} bytes, and it says {size:,}")
    if hashlib.sha256(content[:-_DIGEST]).digest() != content[-_DIGEST:]:
        _refuse(path, "is damaged: its checksum does not match")
    if not 1 <= version <= VERSION:
        _refuse(path, f"has format {version}, of another dpconformal; this one reads up to {VERSION}: upgrade it")
    if length > min(LONGEST_HEADER, size - _PREFIX.size - _DIGEST):
        _refuse(path, f"has a header of {length:,} bytes, more than there may be")
    end = _PREFIX.size + length
    header = _header(path, bytes(content[_PREFIX.size : end]))
    return header, _arrays(path, header.pop("arrays", None), content[:-_DIGEST], end)


def _content(path: str | os.PathLike[str], follow: bool) -> memoryview:
    """Read a regular file: a pipe or a device may never end."""
    # A pipe that nobody writes to would be waited for without O_NONBLOCK.
    flags = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | (0 if follow else getattr(os, "O_NOFOLLOW", 0))
    try:
        with os.fdopen(os.open(path, flags), "rb") as file:
            found = os.fstat(file.fileno())
            if not stat.S_ISREG(found.st_mode):
                _refuse(path, "is no regular file: a checkpoint is a file on a disk")
            return memoryview(file.read(found.st_size + 1))  # one more tells if it is growing
    except FileNotFoundError:
        _refuse(path, "does not exist: check the name")
    except OSError as error:
        if error.errno in (errno.EISDIR, errno.ENXIO):
            _refuse(path, "is no regular file: a checkpoint is a file on a disk")
        if error.errno == errno.ELOOP:
            _refuse(path, "is a link: remove it")
        _refuse(path, f"cannot be read: {error.strerror}")


def _header(path: str | os.PathLike[str], text: bytes) -> dict[str, Any]:
    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) < len(pairs):
            raise ValueError("a name twice")
        return found

    def no_number(name: str) -> NoReturn:
        raise ValueError(f"{name} is no number")

    try:
        header = json.loads(text.decode(), object_pairs_hook=once, parse_constant=no_number)
    except (ValueError, RecursionError) as error:
        _refuse(path, f"has a header that cannot be read: {error}")
    if not isinstance(header, dict):
        _refuse(path, "has a header that is no object")
    return header


def _arrays(path: str | os.PathLike[str], listed: Any, content: memoryview, start: int) -> list[np.ndarray]:
    arrays = []
    if not isinstance(listed, list):
        _refuse(path, "has no list of arrays")
    for k, entry in enumerate(listed):
        match entry:
            case {"dtype": str(code), "shape": list(shape)} if code in _DTYPES and _is_shape(shape):
                dtype = _DTYPES[code]
            case _:
                _refuse(path, f"has an array {k} of unknown kind")
        begin = start + -start % _ALIGNMENT
        count = math.prod(shape)
        start = begin + count * dtype.itemsize
        if start > len(content):
            _refuse(path, f"has an array {k} of shape {tuple(shape)}, larger than the file")
        if dtype.kind == "b" and np.frombuffer(content, np.uint8, count, begin).max(initial=0) > 1:
            _refuse(path, f"has an array {k} with truth values that are neither 0 nor 1")
        arrays.append(np.frombuffer(content, dtype, count, begin).reshape(shape))
    if start != len(content):
        _refuse(path, f"holds {len(content) - start:,} bytes that belong to nothing")
    return arrays


def _is_shape(shape: list[Any]) -> bool:
    return len(shape) <= 8 and all(type(length) is int and 0 <= length < 2**48 for length in shape)


def _refuse(path: str | os.PathLike[str], why: str) -> NoReturn:
    raise ValueError(f"{os.fspath(path)} {why}")


def write_whole(path: str | os.PathLike[str], parts: Iterable[bytes | memoryview], follow: bool = True) -> None:
    """
    Write a file so that at every moment its name stands for the old content or the new, and the new one is on the disk.

    The content goes to a file in the same folder that has no name until it is complete, so that a process that is
    killed leaves nothing behind that is half written. Where the system has no such files, a hidden name is used.
    With ``follow`` a symbolic link stays, and what it points at is replaced; otherwise the link itself is replaced.
    """
    target = Path(os.path.realpath(path) if follow else path)
    if target.is_dir() and (follow or not target.is_symlink()):
        raise ValueError(f"path = {str(path)!r} is a folder: name a file in it")
    if not target.parent.is_dir():
        raise ValueError(f"path = {str(path)!r}: there is no folder {target.parent}; make it first")
    folder = os.open(target.parent, os.O_RDONLY)
    try:
        write_whole_in(folder, target.name, list(parts))
    except OSError as error:
        raise OSError(error.errno, f"cannot be written: {error.strerror}", str(path)) from None
    finally:
        os.close(folder)


def write_whole_in(folder: int, name: str, parts: list[bytes | memoryview]) -> None:
    """Write a file into a folder that is open, whatever has its path by now; a link of that name is replaced."""
    waiting = f".{name}.new"
    while True:
        if not _write_unnamed(folder, waiting, parts):
            _write_hidden(folder, waiting, parts)
        try:
            os.rename(waiting, name, src_dir_fd=folder, dst_dir_fd=folder)
        except FileNotFoundError:  # another process that writes the same file has taken ours: once more
            continue
        except OSError:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(waiting, dir_fd=folder)
            raise
        os.fsync(folder)  # the name, too, must be on the disk before anybody relies on it
        return


def _write_unnamed(folder: int, name: str, parts: list[bytes | memoryview]) -> bool:
    """Name a file when it is complete; False where the system cannot."""
    if not hasattr(os, "O_TMPFILE"):
        return False
    try:
        unnamed = os.open(".", os.O_TMPFILE | os.O_WRONLY, 0o666, dir_fd=folder)
    except OSError as error:
        if error.errno in _UNNAMED_REFUSED:
            return False
        raise
    with os.fdopen(unnamed, "wb") as file:
        _fill(file, parts)
        while True:
            try:
                # With a dir_fd Python asks for linkat, which can follow the link to a file without a name.
                os.link(f"/proc/self/fd/{unnamed}", name, dst_dir_fd=folder, follow_symlinks=True)
                return True
            except FileExistsError:  # complete, of a process that ended before it could rename it
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(name, dir_fd=folder)
            except FileNotFoundError:  # no /proc
                return False


def _write_hidden(folder: int, name: str, parts: list[bytes | memoryview]) -> None:
    with contextlib.suppress(FileNotFoundError):
        os.unlink(name, dir_fd=folder)
    descriptor = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666, dir_fd=folder)  # never through a link
    try:
        with os.fdopen(descriptor, "wb") as file:
            _fill(file, parts)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(name, dir_fd=folder)
        raise


def _fill(file: IO[bytes], parts: list[bytes | memoryview]) -> None:
    file.writelines(parts)
    bring_to_disk(file)


def bring_to_disk(file: IO[bytes]) -> None:
    """Wait until the disk has what was written, before anything says so: power may fail between the two."""
    file.flush()
    os.fsync(file.fileno())
