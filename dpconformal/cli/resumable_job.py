"""Ctrl-C: an end at once, for whatever is saved as it goes may be killed at any moment."""

import contextlib
import errno
import json
import os
import shlex
import signal
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np
from rich.control import Control
from rich.segment import ControlType

import dpconformal as dpc
from dpconformal.display.terminal import Terminal
from dpconformal.files.reading import is_stream
from dpconformal.files.working_folder import Unwritable, WorkingFolder, made, refused


@dataclass(frozen=True)
class _End:
    """What Ctrl-C does."""

    last_words: str

    def __call__(self, *_: object) -> None:
        console = Terminal(stderr=True)
        console.show_cursor()  # a progress bar has hidden it, and left its line unfinished
        if console.is_terminal:
            console.control(Control(ControlType.CARRIAGE_RETURN, (ControlType.ERASE_IN_LINE, 2)))
        console.print(self.last_words, highlight=False, markup=False, soft_wrap=True)
        sys.stdout.flush()
        os._exit(130)


@contextlib.contextmanager
def stopped_at_once(last_words: str) -> Iterator[None]:
    """
    End the process on Ctrl-C, with code 130.

    Notes
    -----
    An exception would have to find its way through whatever runs. Raised in a callback of the garbage collector, as JAX
    has one, it is lost; and an interpreter that ends while compiled programs run may crash.
    """
    before, ours = signal.getsignal(signal.SIGINT), threading.current_thread() is threading.main_thread()
    if not ours or not (before is signal.default_int_handler or isinstance(before, _End)):
        yield  # somebody else listens, or is not to be disturbed, as in the background
        return
    signal.signal(signal.SIGINT, _End(last_words))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


FOLDER = ".unfinished"
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EIO)


@contextlib.contextmanager
def resumable_job(out: Path, job: dict[str, Any], resume: bool, hidden: bool = False) -> Iterator[Path]:
    """
    Hold a folder for the work of a command, from its start to its results.

    ``resume``: Whether to go on with what an earlier run of the same job left; otherwise it is dropped. Returns: The
    folder. It is taken away in the end, unless the work was interrupted or the disk was full.
    """
    job = json.loads(json.dumps(job | {"dpconformal": dpc.__version__, "jax": jax.__version__}))
    with made(out, hidden):
        try:
            place = WorkingFolder(out / FOLDER)
        except OSError as error:
            raise refused(out, error) from None
        with place:
            try:
                work, resumed = _begin(place, job, resume)
            except OSError as error:
                raise refused(out, error) from None
            finished, last_words = False, f"stopped; go on with: {again()}"
            try:
                with stopped_at_once(last_words):
                    yield work
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
                    place.remove()


def again() -> str:
    """Write the command that carries on with this one."""
    words = [Path(sys.argv[0]).name, *sys.argv[1:]]
    return shlex.join(words if "--resume" in words else [*words, "--resume"])


def identity(source: str) -> dict[str, Any]:
    """
    Describe a file so that a change to it is noticed.

    ``source``: The file; what can be read only once is copied to the folder of the work, and has no more than its name.
    """
    if is_stream(source) or not Path(source).exists():
        return {"name": source}
    found = os.stat(source)
    return {"name": source, "bytes": found.st_size, "changed": found.st_mtime_ns}


def numbers_of(learners: Any) -> list[Any]:
    """List the hyperparameters of learners in full: how they print leaves digits out."""
    return [np.asarray(leaf).tolist() for leaf in jax.tree.leaves(learners)]


def _begin(place: WorkingFolder, job: dict[str, Any], resume: bool) -> tuple[Path, bool]:
    """Return where to work, and whether there is something to go on with."""
    before = place.job
    if resume and before is not None:
        for name in job | before:
            if job.get(name) != before.get(name):
                raise ValueError(_difference(name, before.get(name), job.get(name)))
        return place.work(), True
    if resume:
        _say("there is nothing to go on with: starting from the beginning")
    elif before is not None:
        _say("an unfinished run was there; starting anew (--resume would have gone on with it)")
    return place.start(job), False


def _difference(name: str, before: Any, now: Any) -> str:
    if name == "scores":
        return f"{before['name']} is not what it was when the unfinished run began: start anew without --resume"
    return f"the unfinished run has {name} = {before}, and this one {now}: say the same again, or leave out --resume"


def _say(what: str) -> None:
    Terminal(stderr=True).print(what, highlight=False, markup=False, soft_wrap=True)
