"""A file that is there whole or not at all, whatever happens while it is written."""

import contextlib
import errno
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

# What open() answers where a file system has no files without a name.
_UNNAMED_REFUSED = (errno.EOPNOTSUPP, errno.EISDIR, errno.EINVAL, errno.ENOENT, errno.EPERM)


def write_whole(path: str | os.PathLike[str], parts: Iterable[Any], follow: bool = True) -> None:
    """
    Write a file so that at every moment its name stands for the old content or the new, and the new one is on the disk.

    The content goes to a file in the same folder that has no name until it is complete, so that a process that is
    killed leaves nothing behind that is half written. Where the system has no such files, a hidden name is used.

    ``follow``: Whether a symbolic link stays one, and what it points at is replaced. Otherwise the link itself is
    replaced.
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


def write_whole_in(folder: int, name: str, parts: list[Any]) -> None:
    """Write a file into a folder that is open, whatever has its path by now; a link of that name is replaced."""
    waiting = f".{name}.new"
    while True:
        if not _write_unnamed(folder, waiting, parts):
            _write_hidden(folder, waiting, parts)
        try:
            os.rename(waiting, name, src_dir_fd=folder, dst_dir_fd=folder)
        except FileNotFoundError:  # another process that writes the same file has taken ours: once more
            continue
        os.fsync(folder)  # the name, too, must be on the disk before anybody relies on it
        return


def _write_unnamed(folder: int, name: str, parts: list[Any]) -> bool:
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


def _write_hidden(folder: int, name: str, parts: list[Any]) -> None:
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


def _fill(file: Any, parts: list[Any]) -> None:
    for part in parts:
        file.write(part)
    bring_to_disk(file)


def bring_to_disk(file: Any) -> None:
    """
    Wait until what was written to a file is on the disk.

    Before anything says that it is there: without power the one might be lost and the other not.
    """
    file.flush()
    os.fsync(file.fileno())
