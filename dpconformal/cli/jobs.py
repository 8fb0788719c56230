"""Long work of a command, which may be interrupted at any moment and goes on with --resume.

:func:`resumable_job` holds the folder of the work and stops on Ctrl-C; :func:`replay_to_disk` replays recorded series
in passes that fit into memory, with checkpoints; :func:`tally` measures what they left on disk.
"""

import contextlib
import errno
import json
import os
import shlex
import signal
import sys
import threading
import time
from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from rich.control import Control
from rich.segment import ControlType

import dpconformal as dpc
from dpconformal.beliefs.sorted_scores import SortedScores
from dpconformal.checkpoints.container import bring_to_disk, note, recall
from dpconformal.checkpoints.saving import leaves_of, state_from
from dpconformal.display import track
from dpconformal.display.terminal import Terminal
from dpconformal.engine.states import broadcast_state
from dpconformal.engine.totals import totals_of
from dpconformal.files import Recorded
from dpconformal.files.working_folder import Unwritable, WorkingFolder, created_folder, naming, unwritable
from dpconformal.learner import Learner, State, fresh_state
from dpconformal.metrics.loss import best_threshold
from dpconformal.metrics.summary import measure
from dpconformal.replay import replay_batch

_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EIO)
NUMBERS = 2**24  # thresholds of a pass over many series
ROUNDS = 2**17  # of a pass over a long series
PARTS = 8  # of a series, at most, where a state holds every score: each pass goes over all of them
_EVERY = 2.0  # seconds of work between checkpoints, at least; and no more than a tenth of the time for them
BLOCK = 2**18  # rounds that are measured at a time
_DIGIT = 16  # bits of a number that are decided in a pass over the scores


@contextlib.contextmanager
def resumable_job(out: Path, job: dict[str, Any], resume: bool, hidden: bool = False) -> Iterator[Path]:
    """
    Hold a folder for the work of a command, from its start to its results.

    With ``resume`` it goes on with what an earlier run of the same job left; otherwise that is dropped. The folder is
    taken away in the end, unless the work was interrupted or the disk was full.
    """
    job = json.loads(json.dumps(job | {"dpconformal": dpc.__version__, "jax": jax.__version__}))
    with created_folder(out, hidden):
        with naming(out):
            place = WorkingFolder(out / ".unfinished")
        with place:
            with naming(out):
                work, resumed = _open_work(place, job, resume)
            finished, last_words = False, f"stopped; go on with: {resume_command()}"
            try:
                with exit_on_interrupt(last_words):
                    yield work
                finished = True
            except KeyboardInterrupt:  # where another program handles signals
                Terminal(stderr=True).say(last_words)
                raise SystemExit(130) from None
            except OSError as error:
                if not isinstance(error, Unwritable) and error.errno not in _NO_ROOM:
                    raise  # a file of scores that cannot be read, say
                kept = f"What was done is kept: once there is room, go on with: {resume_command()}"
                raise Unwritable(f"{unwritable(out, error)}. {kept}") from None
            except (ValueError, ImportError):
                # The user has to change the command. So a new run has nothing worth keeping; earlier work is kept.
                finished = not resumed
                raise
            finally:
                if finished:
                    place.remove()


def _open_work(place: WorkingFolder, job: dict[str, Any], resume: bool) -> tuple[Path, bool]:
    """Return the folder to work in, and whether it holds earlier work of the same job."""
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


def resume_command() -> str:
    """Return the command line that resumes this run."""
    words = [Path(sys.argv[0]).name, *sys.argv[1:]]
    return shlex.join(words if "--resume" in words else [*words, "--resume"])


def hyperparameters_of(learners: Any) -> list[Any]:
    """List the hyperparameters of learners in full: how they print leaves digits out."""
    return [np.asarray(leaf).tolist() for leaf in jax.tree.leaves(learners)]


def _exit(last_words: str, *_: object) -> None:
    """Print last words and exit at once: the handler of Ctrl-C."""
    console = Terminal(stderr=True)
    console.show_cursor()  # a progress bar has hidden it, and left its line unfinished
    if console.is_terminal:
        console.control(Control(ControlType.CARRIAGE_RETURN, (ControlType.ERASE_IN_LINE, 2)))
    console.say(last_words)
    sys.stdout.flush()
    os._exit(130)


@contextlib.contextmanager
def exit_on_interrupt(last_words: str) -> Iterator[None]:
    """
    End the process on Ctrl-C, with code 130.

    A KeyboardInterrupt would have to pass through whatever runs. Raised in a callback of the garbage collector, as JAX
    has one, it is lost; and an interpreter that ends while compiled programs run may crash.
    """
    before = signal.getsignal(signal.SIGINT)
    ours = before is signal.default_int_handler or (isinstance(before, partial) and before.func is _exit)
    if not ours or threading.current_thread() is not threading.main_thread():
        yield  # another program handles the signal, or ignores it, as for a command in the background
        return
    signal.signal(signal.SIGINT, partial(_exit, last_words))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


class Pass(NamedTuple):
    """Some rounds of some series."""

    series: slice
    rounds: slice  # which of their rounds


def plan(learner: Learner, recorded: Recorded, levels: int) -> list[Pass]:
    """Cut the work into passes: all rounds of some series, then those of the next; a resumed run cuts it alike."""
    longest, count = recorded.rounds, len(recorded.names)
    size = max(1, min(count, NUMBERS // (longest * levels)))
    grows = isinstance(fresh_state(learner, 1, float), SortedScores)
    length = max(ROUNDS * PARTS, -(-longest // PARTS)) if grows else ROUNDS
    return [
        Pass(slice(first, first + size), slice(start, min(start + length, longest)))
        for first in range(0, count, size)
        for start in range(0, longest, length)
    ]


def replay_passes(
    learner: Learner,
    recorded: Recorded,
    levels: list[float],
    passes: Iterable[Pass],
    state: State = None,
    delay: int = 0,
) -> Iterator[tuple[list[tuple[int, np.ndarray]], State]]:
    """
    Replay passes; yield the thresholds of each series in a pass with their first row among all, and the state after it.

    A threshold depends on the past alone. So a short series is padded with its own last score, runs in a batch with
    longer ones, and what comes after its end is cut off: one compiled program serves all lengths.
    """
    longest, begins = recorded.rounds, np.cumsum(recorded.lengths) - recorded.lengths
    for series, rounds in passes:
        part, count = recorded.scores[series], rounds.stop - rounds.start
        # The last score stands for rounds after the end, also where a series ends before this pass. The last pass is as
        # large as the others.
        rows = [one[np.minimum(np.arange(rounds.start, rounds.stop), len(one) - 1)] for one in part]
        filled = np.pad(np.stack(rows), ((0, series.stop - series.start - len(part)), (0, 0)), mode="edge")
        state = state if rounds.start else None
        if state is None and rounds.stop < longest:  # room for all rounds, so that every pass has one shape
            state = broadcast_state(fresh_state(learner, longest, filled.dtype), filled.shape[:1])
        run: Any = replay_batch(learner, filled, levels, state=state, delay=delay)
        thresholds, state = np.asarray(run.thresholds), run.state
        lengths = [min(len(one) - rounds.start, count) for one in part]
        rows_before = begins[series] + rounds.start
        found = [(int(rows_before[k]), thresholds[k, :length]) for k, length in enumerate(lengths) if length > 0]
        yield found, state


def replay_to_disk(
    learner: Learner, recorded: Recorded, levels: list[float], folder: Path, show: bool = True, delay: int = 0
) -> tuple[np.ndarray, float]:
    """
    Replay each series by itself, with the thresholds in a file and checkpoints beside it.

    An interrupted call goes on where it stopped, and the result is the same to the last bit. Returns the thresholds of
    one series after the other, (N, levels), mapped from the file, and the seconds of all passes.
    """
    folder.mkdir(exist_ok=True)
    width, file, journal = 8 * len(levels), folder / "thresholds.f8", folder / "progress.dpc"
    passes = plan(learner, recorded, len(levels))
    kept = recall(journal, "replay") if file.exists() else None
    done, seconds = (kept[0]["passes"], kept[0]["seconds"]) if kept else (0, 0.0)
    begin = state_from(learner, kept[1]) if kept and kept[1] else None
    saved, cost = time.monotonic(), 0.0
    with file.open("r+b" if kept else "w+b") as out:
        left = track(passes[done:], "replaying", show=show)
        start = time.monotonic()
        for k, (found, state) in enumerate(replay_passes(learner, recorded, levels, left, begin, delay), done + 1):
            seconds += time.monotonic() - start
            for row, some in found:
                out.seek(row * width)
                out.write(np.ascontiguousarray(some, "<f8").data)
            if k == len(passes) or time.monotonic() - saved > max(_EVERY, 10 * cost):
                start = time.monotonic()
                bring_to_disk(out)
                carried = k < len(passes) and passes[k].rounds.start
                about = {"passes": k, "seconds": seconds}
                note(journal, "replay", about, leaves_of(learner, state) if carried else {})
                saved = time.monotonic()
                cost = saved - start
            start = time.monotonic()
    return np.memmap(file, "<f8", "r", shape=(recorded.total, len(levels))), seconds


def runs_of(
    learner: Learner, recorded: Recorded, levels: list[float], thresholds: np.ndarray, delay: int = 0
) -> dict[str, dpc.Replay]:
    """Return a Replay of each series, in memory."""
    asked = jnp.asarray(levels, float)
    return {
        name: dpc.Replay(
            jnp.asarray(np.asarray(own)), None, jnp.asarray(np.asarray(series)), asked, learner, delay=delay
        )
        for name, series, own in recorded.with_rows(thresholds)
    }


def tally(scores: np.ndarray, thresholds: np.ndarray, levels: list[float]) -> dict[str, np.ndarray]:
    """Compute the metrics of a run; neither its thresholds nor its scores need fit into memory."""
    asked = np.asarray(levels, float)
    if scores.size <= 4 * BLOCK:
        least = best_threshold(np, np.asarray(scores, float), asked[None])[1]
    else:
        ranks = np.clip(np.ceil(asked * scores.size), 1, scores.size).astype(np.int64)
        best = np.broadcast_to(order_statistics(scores, ranks), (scores.size, asked.size))
        least = totals_of(best, scores, asked).loss.high
    return measure(thresholds, scores, asked, least)


def order_statistics(values: np.ndarray, ranks: np.ndarray) -> np.ndarray:
    """Find the k-th smallest of numbers that need not fit into memory, digit by digit."""
    known, left = np.zeros(ranks.size, np.uint64), ranks.astype(np.int64).copy()
    for shift in range(64 - _DIGIT, -1, -_DIGIT):
        counts = np.zeros((ranks.size, 2**_DIGIT), np.int64)
        for start in range(0, values.size, BLOCK):
            bits = _to_ordered_bits(values[start : start + BLOCK])
            digits = ((bits >> np.uint64(shift)) & np.uint64(2**_DIGIT - 1)).astype(np.int64)
            above = bits >> np.uint64(shift + _DIGIT) if shift + _DIGIT < 64 else np.zeros_like(bits)
            for k in range(ranks.size):
                counts[k] += np.bincount(digits[above == known[k]], minlength=2**_DIGIT)
        total = np.cumsum(counts, axis=1)
        for k in range(ranks.size):
            digit = int(np.searchsorted(total[k], left[k]))
            left[k] -= total[k, digit] - counts[k, digit]
            known[k] = (known[k] << np.uint64(_DIGIT)) | np.uint64(digit)
    return _from_ordered_bits(known)


def _to_ordered_bits(values: np.ndarray) -> np.ndarray:
    """Turn floats into unsigned integers of the same order."""
    bits = (np.asarray(values, float) + 0.0).view(np.uint64)  # -0.0 becomes 0.0, which it equals
    negative = bits >> np.uint64(63) == 1
    return np.where(negative, ~bits, bits | np.uint64(2**63))


def _from_ordered_bits(bits: np.ndarray) -> np.ndarray:
    positive = bits >> np.uint64(63) == 1
    return np.where(positive, bits & np.uint64(2**63 - 1), ~bits).view(np.float64)
