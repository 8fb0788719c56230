"""
The format of a checkpoint; writing a file so that it is there whole or not at all; and results of unfinished work.

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
from collections.abc import Callable, Iterable
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


# --- The format


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
    """Read a file, with every statement in it checked before it is used; errors name the file."""
    try:
        content = _read_regular_file(path, follow)
        if bytes(content[:8]) != MAGIC[: len(content)]:
            raise ValueError("is no checkpoint of dpconformal")
        if len(content) < _PREFIX.size + _DIGEST:
            raise ValueError(f"is cut off: {len(content)} bytes are no whole checkpoint")
        _, version, length, size = _PREFIX.unpack_from(content)
        if len(content) != size:
            what = "is cut off" if len(content) < size else "is longer than what was written"
            raise ValueError(f"{what}: {len(content):,} bytes, and it says {size:,}")
        if hashlib.sha256(content[:-_DIGEST]).digest() != content[-_DIGEST:]:
            raise ValueError("is damaged: its checksum does not match")
        if not 1 <= version <= VERSION:
            raise ValueError(
                f"has format {version}, of another dpconformal; this one reads up to {VERSION}: upgrade it"
            )
        if length > min(LONGEST_HEADER, size - _PREFIX.size - _DIGEST):
            raise ValueError(f"has a header of {length:,} bytes, more than there may be")
        end = _PREFIX.size + length
        header = _parse_header(bytes(content[_PREFIX.size : end]))
        return header, _parse_arrays(header.pop("arrays", None), content[:-_DIGEST], end)
    except ValueError as error:
        raise ValueError(f"{os.fspath(path)} {error}") from None


def _read_regular_file(path: str | os.PathLike[str], follow: bool) -> memoryview:
    """Read a file; a pipe or a device, which may never end, is refused."""
    # A pipe that nobody writes to would be waited for without O_NONBLOCK.
    flags = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | (0 if follow else getattr(os, "O_NOFOLLOW", 0))
    try:
        with os.fdopen(os.open(path, flags), "rb") as file:
            found = os.fstat(file.fileno())
            if not stat.S_ISREG(found.st_mode):
                raise ValueError("is no regular file: a checkpoint is a file on a disk")
            return memoryview(file.read(found.st_size + 1))  # one more tells if it is growing
    except OSError as error:
        known = {
            errno.ENOENT: "does not exist: check the name",
            errno.EISDIR: "is no regular file: a checkpoint is a file on a disk",
            errno.ENXIO: "is no regular file: a checkpoint is a file on a disk",
            errno.ELOOP: "is a link: remove it",
        }
        raise ValueError(known.get(error.errno or 0, f"cannot be read: {error.strerror}")) from None


def _parse_header(text: bytes) -> dict[str, Any]:
    """Parse JSON, without what would be read in two ways: a name that comes twice, and NaN."""

    def refuse_twice(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) < len(pairs):
            raise ValueError("a name twice")
        return found

    def refuse_constant(name: str) -> NoReturn:
        raise ValueError(f"{name} is no number")

    try:
        header = json.loads(text.decode(), object_pairs_hook=refuse_twice, parse_constant=refuse_constant)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"has a header that cannot be read: {error}") from None
    if not isinstance(header, dict):
        raise ValueError("has a header that is no object")
    return header


def _parse_arrays(listed: Any, content: memoryview, start: int) -> list[np.ndarray]:
    """Return the arrays that a header lists, as views; each length is held against the content first."""
    if not isinstance(listed, list):
        raise ValueError("has no list of arrays")
    arrays = []
    for k, entry in enumerate(listed):
        match entry:
            case {"dtype": str(code), "shape": list(shape)} if code in _DTYPES and _is_shape(shape):
                dtype = _DTYPES[code]
            case _:
                raise ValueError(f"has an array {k} of unknown kind")
        begin = start + -start % _ALIGNMENT
        count = math.prod(shape)
        start = begin + count * dtype.itemsize
        if start > len(content):
            raise ValueError(f"has an array {k} of shape {tuple(shape)}, larger than the file")
        if dtype.kind == "b" and np.frombuffer(content, np.uint8, count, begin).max(initial=0) > 1:
            raise ValueError(f"has an array {k} with truth values that are neither 0 nor 1")
        arrays.append(np.frombuffer(content, dtype, count, begin).reshape(shape))
    if start != len(content):
        raise ValueError(f"holds {len(content) - start:,} bytes that belong to nothing")
    return arrays


def _is_shape(shape: list[Any]) -> bool:
    return len(shape) <= 8 and all(type(length) is int and 0 <= length < 2**48 for length in shape)


# --- Writing


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
        try:
            if not _write_unnamed(folder, waiting, parts):
                _remove(folder, waiting)
                flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL  # never through a link
                with os.fdopen(os.open(waiting, flags, 0o666, dir_fd=folder), "wb") as file:
                    file.writelines(parts)
                    bring_to_disk(file)
            try:
                os.rename(waiting, name, src_dir_fd=folder, dst_dir_fd=folder)
            except FileNotFoundError:  # another process that writes the same file has taken ours: once more
                continue
        except BaseException:
            _remove(folder, waiting)
            raise
        os.fsync(folder)  # the name, too, must be on the disk before anybody relies on it
        return


def _write_unnamed(folder: int, name: str, parts: list[bytes | memoryview]) -> bool:
    """Write a file that gets its name when it is complete; False where the system has no such files."""
    if not hasattr(os, "O_TMPFILE"):
        return False
    try:
        unnamed = os.open(".", os.O_TMPFILE | os.O_WRONLY, 0o666, dir_fd=folder)
    except OSError as error:
        if error.errno in _UNNAMED_REFUSED:
            return False
        raise
    with os.fdopen(unnamed, "wb") as file:
        file.writelines(parts)
        bring_to_disk(file)
        while True:
            try:
                # With a dir_fd Python asks for linkat, which can follow the link to a file without a name.
                os.link(f"/proc/self/fd/{unnamed}", name, dst_dir_fd=folder, follow_symlinks=True)
                return True
            except FileExistsError:  # complete, of a process that ended before it could rename it
                _remove(folder, name)
            except FileNotFoundError:  # no /proc
                return False


def _remove(folder: int, name: str) -> None:
    with contextlib.suppress(FileNotFoundError):
        os.unlink(name, dir_fd=folder)


def bring_to_disk(file: IO[bytes]) -> None:
    """Wait until the disk has what was written, before anything says so: power may fail between the two."""
    file.flush()
    os.fsync(file.fileno())


# --- Unfinished work


class Journal:
    """A folder with the results of steps; ``about`` is what they depend on, and steps of other work are refused."""

    def __init__(self, folder: str | os.PathLike[str] | None, about: dict[str, Any]) -> None:
        self.folder = None if folder is None else Path(folder)
        self.about = json.loads(json.dumps(about))
        if self.folder is not None:
            self.folder.mkdir(parents=True, exist_ok=True)

    def once(self, name: str, work: Callable[..., tuple[Any, ...]], *given: Any) -> tuple[np.ndarray, ...]:
        """Do a step, or recall its result."""
        if self.folder is None:
            return tuple(np.asarray(part) for part in work(*given))
        file = self.folder / f"step-{hashlib.sha256(name.encode()).hexdigest()[:16]}.dpc"
        about, kept = {"name": name, "of": self.about}, recall(file, "step")
        if kept is None:
            parts = {str(k): np.asarray(part) for k, part in enumerate(work(*given))}
            note(file, "step", about, parts)
            return tuple(parts.values())
        if kept[0] != about:
            raise ValueError(
                f"{file} is a step of other work, {kept[0].get('of')} in the place of {self.about}: choose another "
                "folder"
            )
        return tuple(kept[1].values())


def note(path: str | os.PathLike[str], kind: str, about: dict[str, Any], arrays: dict[str, np.ndarray]) -> None:
    """Write a note of how far work has come, in the format of a checkpoint."""
    header = {"kind": kind, "about": about, "names": list(arrays)}
    write_whole(path, pack(header, [np.asarray(array) for array in arrays.values()]), follow=False)


def recall(path: str | os.PathLike[str], kind: str) -> tuple[dict[str, Any], dict[str, np.ndarray]] | None:
    """Read a note and its arrays; None if there is no such file."""
    if not os.path.lexists(path):
        return None
    header, arrays = unpack(path, follow=False)
    match header:
        case {"kind": found, "about": dict(about), "names": list(names)} if found == kind and len(names) == len(arrays):
            return about, dict(zip(map(str, names), arrays, strict=True))
    raise ValueError(f"{os.fspath(path)} is no note of {kind}")
