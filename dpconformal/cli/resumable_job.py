"""Work of a command that may be interrupted at any moment and goes on with --resume."""

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
from dpconformal.files.working_folder import Unwritable, WorkingFolder, created_folder, naming, unwritable

FOLDER = ".unfinished"
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EIO)


@contextlib.contextmanager
def resumable_job(out: Path, job: dict[str, Any], resume: bool, hidden: bool = False) -> Iterator[Path]:
    """
    Hold a folder for the work of a command, from its start to its results.

    ``resume``: Whether to go on with what an earlier run of the same job left; otherwise it is dropped. The folder is
    taken away in the end, unless the work was interrupted or the disk was full.
    """
    job = json.loads(json.dumps(job | {"dpconformal": dpc.__version__, "jax": jax.__version__}))
    with created_folder(out, hidden):
        with naming(out):
            place = WorkingFolder(out / FOLDER)
        with place:
            with naming(out):
                work, resumed = _begin(place, job, resume)
            finished, last_words = False, f"stopped; go on with: {resume_command()}"
            try:
                with stopped_at_once(last_words):
                    yield work
                finished = True
            except KeyboardInterrupt:  # where signals are somebody else's
                Terminal(stderr=True).say(last_words)
                raise SystemExit(130) from None
            except OSError as error:
                if not isinstance(error, Unwritable) and error.errno not in _NO_ROOM:
                    raise  # a file of scores that cannot be read, say
                kept = f"What was done is kept: once there is room, go on with: {resume_command()}"
                raise Unwritable(f"{unwritable(out, error)}. {kept}") from None
            except (ValueError, ImportError):
                # Of a new run nothing is worth keeping, for what was asked must change. Of an old one all is.
                finished = not resumed
                raise
            finally:
                if finished:
                    place.remove()


def resume_command() -> str:
    """Return the command line that resumes this run."""
    words = [Path(sys.argv[0]).name, *sys.argv[1:]]
    return shlex.join(words if "--resume" in words else [*words, "--resume"])


def describe_source(source: str) -> dict[str, Any]:
    """Return name, size and time of a file, by which a change to it is noticed; a stream has only its name."""
    if is_stream(source) or not Path(source).exists():
        return {"name": source}
    found = os.stat(source)
    return {"name": source, "bytes": found.st_size, "changed": found.st_mtime_ns}


def hyperparameters_of(learners: Any) -> list[Any]:
    """List the hyperparameters of learners in full: how they print leaves digits out."""
    return [np.asarray(leaf).tolist() for leaf in jax.tree.leaves(learners)]


def _begin(place: WorkingFolder, job: dict[str, Any], resume: bool) -> tuple[Path, bool]:
    """Return where to work, and whether there is something to go on with."""
    before = place.job
    if resume and before is not None:
        for name in job | before:
            if job.get(name) != before.get(name):
                if name == "scores":
                    what = f"{before[name]['name']} is not what it was when the unfinished run began"
                    raise ValueError(f"{what}: start anew without --resume")
                what = f"the unfinished run has {name} = {before.get(name)}, and this one {job.get(name)}"
                raise ValueError(f"{what}: say the same again, or leave out --resume")
        return place.work(), True
    if resume:
        Terminal(stderr=True).say("there is nothing to go on with: starting from the beginning")
    elif before is not None:
        Terminal(stderr=True).say("an unfinished run was there; starting anew (--resume would have gone on with it)")
    return place.start(job), False


@dataclass(frozen=True)
class _End:
    """Handler of Ctrl-C: print last words and exit at once."""

    last_words: str

    def __call__(self, *_: object) -> None:
        console = Terminal(stderr=True)
        console.show_cursor()  # a progress bar has hidden it, and left its line unfinished
        if console.is_terminal:
            console.control(Control(ControlType.CARRIAGE_RETURN, (ControlType.ERASE_IN_LINE, 2)))
        console.say(self.last_words)
        sys.stdout.flush()
        os._exit(130)


@contextlib.contextmanager
def stopped_at_once(last_words: str) -> Iterator[None]:
    """
    End the process on Ctrl-C, with code 130.

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
