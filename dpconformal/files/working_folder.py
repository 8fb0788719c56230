"""Results that appear whole or not at all, and the hidden folder of unfinished work beside them."""

import contextlib
import errno
import fcntl
import json
import os
import re
import secrets
import shutil
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from dpconformal.checkpoints.container import write_whole_in


class Unwritable(OSError, ValueError):
    """A folder cannot be written to: it is not ours, or the disk is full."""


@contextlib.contextmanager
def naming(folder: Path) -> Iterator[None]:
    """Turn an OSError into one that names the folder."""
    try:
        yield
    except OSError as error:
        raise unwritable(folder, error) from None


def unwritable(folder: Path, error: OSError) -> Unwritable:
    """Return the error that a folder cannot be written to."""
    if isinstance(error, Unwritable):
        return error
    return Unwritable(f"{folder} cannot be written to: {error.strerror or error}; choose another with --out")


@contextlib.contextmanager
def staging_folder(folder: str | os.PathLike[str], within: Path | None = None) -> Iterator[Path]:
    """Collect files in a hidden place, and move them to their folder when all are written; on an error none is left."""
    folder = Path(folder)
    with created_folder(folder), naming(folder):
        stage = Path(tempfile.mkdtemp(prefix=".unfinished-", dir=within or folder))
        try:
            yield stage
            files = sorted(stage.iterdir())
            blocked = next((folder / file.name for file in files if (folder / file.name).is_dir()), None)
            if blocked is not None:  # before the first is moved
                raise ValueError(
                    f"{blocked} is a folder, in the place of a file: remove it, or choose another with --out"
                )
            for file in files:
                os.replace(file, folder / file.name)
        finally:
            shutil.rmtree(stage, ignore_errors=True)


@contextlib.contextmanager
def created_folder(folder: Path, hidden: bool = False) -> Iterator[None]:
    """Make a folder, and take it away again if it was made for nothing."""
    # A link of the user's own is followed: it says where the results are wanted.
    if folder.is_symlink() and (hidden or folder.lstat().st_uid != os.geteuid()):
        raise ValueError(
            f"{folder} is a link{'' if hidden else ' of another user'}: remove it, or choose another --out"
        )
    missing = [path for path in (folder, *folder.parents) if not path.exists()]
    try:
        with naming(folder):
            folder.mkdir(parents=True, exist_ok=True)
        yield
    finally:
        for path in missing:
            with contextlib.suppress(OSError):
                path.rmdir()  # only an empty one can be


_RECORD, _LOCK = "job.json", "lock"
_WORK = re.compile(r"work-[0-9a-f]{16}")


class WorkingFolder:
    """
    A hidden folder with a lock, a record, and one folder of work.

    The record says which job the work is of, and the number (inode) of the folder that was made for it. Only that
    folder is worked in, and only that folder is deleted. It is closed to other users, so what is in it is ours.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        while True:
            with contextlib.ExitStack() as opened:
                with contextlib.suppress(FileExistsError):
                    os.mkdir(path, 0o700)
                self._folder = _open_own(path, os.O_RDONLY | os.O_DIRECTORY)
                opened.callback(os.close, self._folder)
                os.fchmod(self._folder, 0o700)  # it may have been there, and open to others
                try:
                    lock = self._take_lock()
                except FileNotFoundError:
                    continue  # the folder was removed since, by the process that had the lock
                opened.callback(os.close, lock)  # which gives the lock back
                if not os.fstat(lock).st_nlink:
                    continue  # the process that had the lock has removed the folder in the meantime
                self._record = self._read_record()
                self._refuse_strangers()
                self._opened = opened.pop_all()
                return

    def __enter__(self) -> "WorkingFolder":
        return self

    def __exit__(self, *_: object) -> None:
        self._opened.close()

    @property
    def job(self) -> dict[str, Any] | None:
        """The job that was begun here and not finished."""
        return self._record["job"] if self._record else None

    def work(self) -> Path:
        """Return the folder of the work, if it is the one that was recorded."""
        name, inode = self._record["folder"], self._record["inode"]
        found = os.stat(name, dir_fd=self._folder, follow_symlinks=False)
        if not stat.S_ISDIR(found.st_mode) or found.st_ino != inode or found.st_uid != os.geteuid():
            raise ValueError(
                f"{self.path / name} is not the folder that was made there, but a copy or something else: remove "
                f"{self.path}, and start anew without --resume"
            )
        return self.path / name

    def start(self, job: dict[str, Any]) -> Path:
        """Drop earlier work, record a job, and return an empty folder for its work."""
        self._drop_work()
        name = f"work-{secrets.token_hex(8)}"
        os.mkdir(name, 0o700, dir_fd=self._folder)
        inode = os.stat(name, dir_fd=self._folder, follow_symlinks=False).st_ino
        self._write_record({"folder": name, "inode": inode, "job": job})
        return self.path / name

    def remove(self) -> None:
        """Delete the work and what was made for it, and the hidden folder if nothing else is in it."""
        with contextlib.suppress(OSError):
            self._drop_work()
            for name in (_RECORD, _LOCK):
                os.unlink(name, dir_fd=self._folder)
            self.path.rmdir()

    def _drop_work(self) -> None:
        if not self._record:
            return
        with contextlib.suppress(FileNotFoundError):
            name = self.work().name
            # Killed while the work is deleted, half of it must not be taken for whole; it is still known as ours.
            self._write_record(self._record | {"job": None})
            shutil.rmtree(name, dir_fd=self._folder)

    def _take_lock(self) -> int:
        """Make sure that nobody else works here; the lock goes with the process, however it ends."""
        lock = _open_own(self.path / _LOCK, os.O_RDWR | os.O_CREAT, self._folder)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(lock)
            raise ValueError(
                f"{self.path.parent} is being written to by another process: wait for it, or choose another --out"
            ) from None
        return lock

    def _read_record(self) -> dict[str, Any]:
        try:
            file = _open_own(self.path / _RECORD, os.O_RDONLY, self._folder)
        except FileNotFoundError:
            return {}
        with os.fdopen(file, "rb") as opened:
            try:
                record = json.load(opened)
            except (ValueError, RecursionError):
                record = None
        match record:
            case {"folder": str(name), "inode": int(), "job": dict() | None} if _WORK.fullmatch(name):
                return dict(record)
        raise ValueError(f"{self.path / _RECORD} is damaged, or of another version: remove {self.path}, and start anew")

    def _write_record(self, record: dict[str, Any]) -> None:
        write_whole_in(self._folder, _RECORD, [json.dumps(record).encode()])
        self._record = record

    def _refuse_strangers(self) -> None:
        known = {_LOCK, _RECORD, f".{_RECORD}.new", self._record.get("folder")}
        for name in sorted(set(os.listdir(self._folder)) - known):
            try:
                if _WORK.fullmatch(name):
                    os.rmdir(name, dir_fd=self._folder)  # made by a process that was killed before it was recorded
                    continue
            except OSError:
                pass
            raise _foreign(self.path / name)


def _open_own(path: Path, flags: int, folder: int | None = None) -> int:
    """Open a folder of ours, or in one that is open a plain file with no other name; links are not followed."""
    where = path if folder is None else path.name
    try:
        opened = os.open(where, flags | os.O_NOFOLLOW | os.O_NONBLOCK, 0o600, dir_fd=folder)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENOTDIR, errno.EISDIR, errno.ENXIO):
            raise _foreign(path) from None
        raise
    found = os.fstat(opened)  # what it is, is asked of what was opened: the name may stand for something else by now
    # Without a name a file was removed by the process that had the lock, and with two it may be somebody's.
    plain = stat.S_ISREG(found.st_mode) and found.st_nlink <= 1
    if found.st_uid != os.geteuid() or not (plain or folder is None):
        os.close(opened)
        raise _foreign(path)
    return opened


def _foreign(path: Path) -> ValueError:
    what = "a link" if path.is_symlink() else "something"
    return ValueError(f"{path} is {what} that was not made by this program: move it away, or choose another --out")
