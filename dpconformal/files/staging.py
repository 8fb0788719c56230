"""Results appear whole or not at all."""

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def staged(folder: str | os.PathLike[str]) -> Iterator[Path]:
    """
    Collect files in a hidden place beside their folder, and move them there when all are written.

    Parameters
    ----------
    folder : path
        Made if it is not there; files of the same names are replaced, others stay.

    Yields
    ------
    Path
        Where to write. If anything goes wrong it is taken away, and so is a folder made for nothing.

    Raises
    ------
    ValueError
        If the folder cannot be made or written to.
    """
    folder = Path(folder)
    missing = [path for path in (folder, *folder.parents) if not path.exists()]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        stage = Path(tempfile.mkdtemp(prefix=".unfinished-", dir=folder))
    except OSError as error:
        _remove_empty(missing)
        raise _refused(folder, error) from None
    try:
        yield stage
        files = sorted(stage.iterdir())
        blocked = next((folder / file.name for file in files if (folder / file.name).is_dir()), None)
        if blocked is not None:  # before the first is moved
            raise ValueError(f"{blocked} is a folder, in the place of a file: remove it, or choose another with --out")
        for file in files:
            os.replace(file, folder / file.name)
    except OSError as error:
        raise _refused(folder, error) from None
    finally:
        shutil.rmtree(stage, ignore_errors=True)
        _remove_empty(missing)


def _refused(folder: Path, error: OSError) -> ValueError:
    return ValueError(f"{folder} cannot be written to: {error.strerror or error}; choose another with --out")


def _remove_empty(folders: list[Path]) -> None:
    for folder in folders:
        with contextlib.suppress(OSError):
            folder.rmdir()  # only an empty one can be
