"""Replay many series of unequal length, in memory or on a disk with the possibility to go on."""

import time
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np

import dpconformal as dpc
from dpconformal.checkpoints.progress import note, recall
from dpconformal.checkpoints.states import leaves_of, state_from
from dpconformal.cli.passes import plan, replay_pass, rows_of
from dpconformal.experiments.progress import track
from dpconformal.files import Recorded

_EVERY = 2.0  # seconds of work between checkpoints, at least; and no more than a tenth of the time for them


def replay_series(learner: Any, recorded: Recorded, levels: Any, show: bool = True) -> dict[str, dpc.Replay]:
    """
    Replay each series by itself, in memory.

    Parameters
    ----------
    learner : Learner
        Who.
    recorded : Recorded
        The scores.
    levels : sequence of float
        Levels.
    show : bool
        Whether to show progress.

    Returns
    -------
    dict
        A run for each series.
    """
    thresholds, state = np.empty((recorded.total, len(levels))), None
    for now in track(plan(learner, recorded, len(levels)), "replaying", show=show):
        state = state if now.rounds.start else None
        found, state = replay_pass(learner, recorded, levels, now, state)
        for k, row, count in rows_of(recorded, now):
            thresholds[row : row + count] = found[k, :count]
    return runs_of(learner, recorded, levels, thresholds)


def replay_to_disk(learner: Any, recorded: Recorded, levels: Any, folder: Path, show: bool = True) -> np.ndarray:
    """
    Replay each series by itself; thresholds go to a file, and checkpoints beside it.

    Parameters
    ----------
    learner : Learner
        Who.
    recorded : Recorded
        The scores.
    levels : sequence of float
        Levels.
    folder : Path
        Where. What an interrupted call left there is carried on with, and the result is the same to the last bit.
    show : bool
        Whether to show progress.

    Returns
    -------
    ndarray, shape (rounds of all series, levels)
        Thresholds of one series after the other, mapped from the file.

    Raises
    ------
    OSError
        If the disk is full; the last checkpoint is still good.
    """
    folder.mkdir(exist_ok=True)
    width, file, journal = 8 * len(levels), folder / "thresholds.f8", folder / "progress.dpc"
    passes = plan(learner, recorded, len(levels))
    found = recall(journal, "replay") if file.exists() else None
    done = found[0]["passes"] if found else 0
    state = state_from(learner, found[1]) if found and found[1] else None
    saved, cost = time.monotonic(), 0.0
    with file.open("r+b" if found else "w+b") as out:
        for k, now in enumerate(track(passes[done:], "replaying", show=show), done + 1):
            thresholds, state = replay_pass(learner, recorded, levels, now, state if now.rounds.start else None)
            for j, row, count in rows_of(recorded, now):
                out.seek(row * width)
                out.write(np.ascontiguousarray(thresholds[j, :count], "<f8").data)
            if k == len(passes) or time.monotonic() - saved > max(_EVERY, 10 * cost):
                start = time.monotonic()
                out.flush()  # to the system: what a killed process has written there is not lost
                carried = k < len(passes) and passes[k].rounds.start
                note(journal, "replay", {"passes": k}, leaves_of(learner, state) if carried else {})
                saved = time.monotonic()
                cost = saved - start
    return np.memmap(file, "<f8", "r", shape=(recorded.total, len(levels)))


def runs_of(learner: Any, recorded: Recorded, levels: Any, thresholds: np.ndarray) -> dict[str, dpc.Replay]:
    """
    Take thresholds for what they are: runs of the learner over each series.

    Parameters
    ----------
    learner : Learner
        Who.
    recorded : Recorded
        The scores.
    levels : sequence of float
        Levels.
    thresholds : ndarray, shape (rounds of all series, levels)
        Of one series after the other.

    Returns
    -------
    dict
        A run for each series, in memory, without a state.
    """
    asked, runs, row = jnp.asarray(levels, float), {}, 0
    for name, series in zip(recorded.names, recorded.scores, strict=True):
        own = jnp.asarray(np.asarray(thresholds[row : row + len(series)]))
        runs[name] = dpc.Replay(own, None, jnp.asarray(np.asarray(series)), asked, learner)
        row += len(series)
    return runs
