"""Unfinished work: kept beside the results until they are there, and carried on with when asked."""

import contextlib
import errno
import json
import os
import shlex
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np
from rich.console import Console

import dpconformal as dpc
from dpconformal.checkpoints.atomic import write_whole
from dpconformal.cli.stopping import stopped_at_once
from dpconformal.files.reading import is_stream
from dpconformal.files.staging import Unwritable, made, refused

FOLDER = ".unfinished"
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EIO)


@contextlib.contextmanager
def unfinished(out: Path, job: dict[str, Any], resume: bool) -> Iterator[Path]:
    """
    Hold a folder for the work of a command, from its start to its results.

    Parameters
    ----------
    out : Path
        Where results go. The work is in a hidden folder there.
    job : dict
        All that the results depend on, as JSON can hold it.
    resume : bool
        Whether to go on with what an earlier run of the same job left; otherwise it is dropped.

    Yields
    ------
    Path
        The folder. It is taken away in the end, unless the work was interrupted or the disk was full.

    Raises
    ------
    ValueError
        If what was left is of another job, or another process works there.
    SystemExit
        On Ctrl-C, with code 130 and a word on how to go on.
    """
    job = json.loads(json.dumps(job | {"dpconformal": dpc.__version__, "jax": jax.__version__}))
    folder = out / FOLDER
    with made(out):
        try:
            folder.mkdir(exist_ok=True)
            lock = (folder / "lock").open("w")
        except OSError as error:
            raise refused(out, error) from None
        with lock:
            _take(lock, out)
            try:
                resumed = _begin(folder, job, resume)
            except OSError as error:
                raise refused(out, error) from None
            finished, last_words = False, f"stopped; go on with: {again()}"
            try:
                with stopped_at_once(last_words):
                    yield folder
                finished = True
            except KeyboardInterrupt:  # where signals are somebody else's
                _say(last_words)
                raise SystemExit(130) from None
            except OSError as error:
                if not isinstance(error, Unwritable) and error.errno not in _NO_ROOM:
                    raise  # a file of scores that cannot be read, say
                kept = f"What was done is kept: once there is room, go on with: {again()}"
                raise Unwritable(f"{refused(out, error)}. {kept}") from None
            except (ValueError, ImportError):
                # Of a new run nothing is worth keeping, for what was asked must change. Of an old one all is.
                finished = not resumed
                raise
            finally:
                if finished:
                    # The job first: killed in between, the rest is nobody's, and not taken for whole.
                    (folder / "job.json").unlink(missing_ok=True)
                    shutil.rmtree(folder, ignore_errors=True)


def again() -> str:
    """
    Write the command that carries on with this one.

    Returns
    -------
    str
        For a shell.
    """
    words = [Path(sys.argv[0]).name, *sys.argv[1:]]
    return shlex.join(words if "--resume" in words else [*words, "--resume"])


def identity(source: str) -> dict[str, Any]:
    """
    Describe a file so that a change to it is noticed.

    Parameters
    ----------
    source : str
        The file; what can be read only once is copied to the folder of the work, and has no more than its name.

    Returns
    -------
    dict
        For the job.
    """
    if is_stream(source) or not Path(source).exists():
        return {"name": source}
    found = os.stat(source)
    return {"name": source, "bytes": found.st_size, "changed": found.st_mtime_ns}


def numbers_of(learners: Any) -> list[Any]:
    """
    List the hyperparameters of learners in full: how they print leaves digits out.

    Parameters
    ----------
    learners : pytree
        The learners.

    Returns
    -------
    list
        For the job.
    """
    return [np.asarray(leaf).tolist() for leaf in jax.tree.leaves(learners)]


def _begin(folder: Path, job: dict[str, Any], resume: bool) -> bool:
    """Find out whether there is something to go on with, and clear the folder if not."""
    file = folder / "job.json"
    try:
        before = json.loads(file.read_text(encoding="utf-8")) if file.exists() else None
    except ValueError:
        if resume:
            raise ValueError(f"{file} is damaged: start anew without --resume") from None
        before = {}
    if resume and before is not None:
        for name in job | before:
            if job.get(name) != before.get(name):
                raise ValueError(_difference(name, before.get(name), job.get(name)))
        return True
    if resume:
        _say("there is nothing to go on with: starting from the beginning")
    elif before is not None:
        _say("an unfinished run was there; starting anew (--resume would have gone on with it)")
    for path in folder.iterdir():
        if path.name != "lock":
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    write_whole(file, [json.dumps(job).encode()])
    return False


def _difference(name: str, before: Any, now: Any) -> str:
    if name == "scores":
        return f"{before['name']} is not what it was when the unfinished run began: start anew without --resume"
    return f"the unfinished run has {name} = {before}, and this one {now}: say the same again, or leave out --resume"


def _take(lock: Any, out: Path) -> None:
    """Make sure that nobody else works here; the lock goes with the process, however it ends."""
    try:
        import fcntl
    except ImportError:  # no such locks on this system
        return
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        raise ValueError(
            f"{out} is being written to by another process: wait for it, or choose another --out"
        ) from None


def _say(what: str) -> None:
    Console(stderr=True).print(what, highlight=False, markup=False, soft_wrap=True)
