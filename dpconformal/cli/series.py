"""Replay many series of unequal length, in memory or on a disk with the possibility to go on."""

import time
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np

import dpconformal as dpc
from dpconformal.checkpoints.atomic import bring_to_disk
from dpconformal.checkpoints.progress import note, recall
from dpconformal.checkpoints.states import leaves_of, state_from
from dpconformal.cli.passes import plan, replayed
from dpconformal.experiments.progress import track
from dpconformal.files import Recorded

_EVERY = 2.0  # seconds of work between checkpoints, at least; and no more than a tenth of the time for them


def replay_series(learner: Any, recorded: Recorded, levels: Any, show: bool = True) -> dict[str, dpc.Replay]:
    """Replay each series by itself, in memory."""
    thresholds = np.empty((recorded.total, len(levels)))
    passes = track(plan(learner, recorded, len(levels)), "replaying", show=show)
    for found, _ in replayed(learner, recorded, levels, passes):
        for row, some in found:
            thresholds[row : row + len(some)] = some
    return runs_of(learner, recorded, levels, thresholds)


def replay_to_disk(
    learner: Any, recorded: Recorded, levels: Any, folder: Path, show: bool = True, delay: int = 0
) -> tuple[np.ndarray, float]:
    """
    Replay each series by itself; thresholds go to a file, and checkpoints beside it.

    ``folder``: Where. What an interrupted call left there is carried on with, and the result is the same to the last
    bit. Returns: Thresholds of one series after the other, (rounds of all series, levels), mapped from the file; and
    the seconds that the passes took, those before an interruption included.
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
        for k, (found, state) in enumerate(replayed(learner, recorded, levels, left, begin, delay), done + 1):
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
    learner: Any, recorded: Recorded, levels: Any, thresholds: np.ndarray, delay: int = 0
) -> dict[str, dpc.Replay]:
    """Take thresholds for what they are: runs of the learner over each series."""
    asked, runs, row = jnp.asarray(levels, float), {}, 0
    for name, series in zip(recorded.names, recorded.scores, strict=True):
        own = jnp.asarray(np.asarray(thresholds[row : row + len(series)]))
        runs[name] = dpc.Replay(own, None, jnp.asarray(np.asarray(series)), asked, learner, delay=delay)
        row += len(series)
    return runs
