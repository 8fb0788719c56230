"""Results appear whole or not at all; unfinished work stays beside them, to go on with."""

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path


class Unwritable(OSError, ValueError):
    """A folder cannot be written to: it is not ours, or the disk is full."""


@contextlib.contextmanager
def staged(folder: str | os.PathLike[str], within: Path | None = None) -> Iterator[Path]:
    """
    Collect files in a hidden place beside their folder, and move them there when all are written.

    Returns: Where to write. If anything goes wrong it is taken away, and so is a folder made for nothing.
    """
    folder = Path(folder)
    with made(folder):
        try:
            stage = Path(tempfile.mkdtemp(prefix=".unfinished-", dir=within or folder))
        except OSError as error:
            raise refused(folder, error) from None
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
        except OSError as error:
            raise refused(folder, error) from None
        finally:
            shutil.rmtree(stage, ignore_errors=True)


@contextlib.contextmanager
def made(folder: Path, hidden: bool = False) -> Iterator[None]:
    """
    Make a folder, and take it away again if it was made for nothing.

    ``folder``: The folder. A link of the user's own is followed: it says where the results are wanted.
    """
    if folder.is_symlink() and (hidden or folder.lstat().st_uid != os.geteuid()):
        raise ValueError(
            f"{folder} is a link{'' if hidden else ' of another user'}: remove it, or choose another --out"
        )
    missing = [path for path in (folder, *folder.parents) if not path.exists()]
    try:
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise refused(folder, error) from None
        yield
    finally:
        for path in missing:
            with contextlib.suppress(OSError):
                path.rmdir()  # only an empty one can be


def refused(folder: Path, error: OSError) -> Unwritable:
    """Say that a folder cannot be written to."""
    if isinstance(error, Unwritable):
        return error
    return Unwritable(f"{folder} cannot be written to: {error.strerror or error}; choose another with --out")
