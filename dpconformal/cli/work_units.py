"""Coverage, loss and regret of runs on a disk, a block of rounds at a time."""

import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

import dpconformal as dpc
from dpconformal.beliefs.sorted_scores import SortedScores
from dpconformal.checkpoints.container import bring_to_disk
from dpconformal.checkpoints.journal import note, recall
from dpconformal.checkpoints.states import leaves_of, state_from
from dpconformal.engine.states import broadcast_state
from dpconformal.engine.totals import totals_of
from dpconformal.experiments.runs import track
from dpconformal.files import Recorded
from dpconformal.learner import State, fresh_state
from dpconformal.metrics.loss import best_threshold
from dpconformal.metrics.summary import measure
from dpconformal.replay import replay_batch

BLOCK = 2**18
_DIGIT = 16  # bits of a number that are decided in a pass over the scores


def tally(scores: np.ndarray, thresholds: np.ndarray, levels: Any) -> dict[str, np.ndarray]:
    """Measure a run on a disk, as :func:`dpconformal.metrics.summary.measure` does; nor need its scores fit."""
    levels = np.asarray(levels, float)
    if scores.size <= 4 * BLOCK:
        least = best_threshold(np, np.asarray(scores, float), levels[None])[1]
    else:
        ranks = np.clip(np.ceil(levels * scores.size), 1, scores.size).astype(np.int64)
        best = np.broadcast_to(order_statistics(scores, ranks), (scores.size, levels.size))
        least = totals_of(best, scores, levels).loss.high
    return measure(thresholds, scores, levels, least)


def order_statistics(values: np.ndarray, ranks: np.ndarray) -> np.ndarray:
    """Find the k-th smallest of numbers that need not fit into memory, digit by digit."""
    known, left = np.zeros(ranks.size, np.uint64), ranks.astype(np.int64).copy()
    for shift in range(64 - _DIGIT, -1, -_DIGIT):
        counts = np.zeros((ranks.size, 2**_DIGIT), np.int64)
        for start in range(0, values.size, BLOCK):
            bits = _ascending(values[start : start + BLOCK])
            digits = ((bits >> np.uint64(shift)) & np.uint64(2**_DIGIT - 1)).astype(np.int64)
            above = bits >> np.uint64(shift + _DIGIT) if shift + _DIGIT < 64 else np.zeros_like(bits)
            for k in range(ranks.size):
                counts[k] += np.bincount(digits[above == known[k]], minlength=2**_DIGIT)
        total = np.cumsum(counts, axis=1)
        for k in range(ranks.size):
            digit = int(np.searchsorted(total[k], left[k]))
            left[k] -= total[k, digit] - counts[k, digit]
            known[k] = (known[k] << np.uint64(_DIGIT)) | np.uint64(digit)
    return _number(known)


def _ascending(values: np.ndarray) -> np.ndarray:
    """Turn floats into unsigned integers of the same order."""
    bits = (np.asarray(values, float) + 0.0).view(np.uint64)  # -0.0 becomes 0.0, which it equals
    negative = bits >> np.uint64(63) == 1
    return np.where(negative, ~bits, bits | np.uint64(2**63))


def _number(bits: np.ndarray) -> np.ndarray:
    positive = bits >> np.uint64(63) == 1
    return np.where(positive, bits & np.uint64(2**63 - 1), ~bits).view(np.float64)


NUMBERS = 2**24  # thresholds of a pass over many series
ROUNDS = 2**17  # of a pass over a long series
PARTS = 8  # of a series, at most, where a state holds every score: each pass goes over all of them


class Pass(NamedTuple):
    """Some rounds of some series."""

    series: slice
    rounds: slice  # which of their rounds


def plan(learner: Any, recorded: Recorded, levels: int) -> list[Pass]:
    """
    Cut the work into passes. The cuts depend on what is given alone, so that an interrupted run repeats them.

    Returns: In order: all rounds of some series, then those of the next.
    """
    longest, count = recorded.rounds, len(recorded.names)
    size = max(1, min(count, NUMBERS // (longest * levels)))
    grows = isinstance(fresh_state(learner, 1, float), SortedScores)
    length = max(ROUNDS * PARTS, -(-longest // PARTS)) if grows else ROUNDS
    return [
        Pass(slice(first, first + size), slice(start, min(start + length, longest)))
        for first in range(0, count, size)
        for start in range(0, longest, length)
    ]


def replayed(
    learner: Any, recorded: Recorded, levels: Any, passes: Iterable[Pass], state: State = None, delay: int = 0
) -> Iterator[tuple[list[tuple[int, np.ndarray]], State]]:
    """
    Replay passes, one after the other.

    Returns: Where thresholds belong among those of all series, one after the other: the first row, and (rounds, levels)
    of them, for each series that has rounds in the pass; and the state after it.

    A threshold depends on the past alone. So a short series is filled up with its own last score, runs in a batch with
    longer ones, and what comes after its end is cut off: one compiled program for all lengths.
    """
    longest, ends = recorded.rounds, np.cumsum([len(series) for series in recorded.scores])
    for now in passes:
        size, part = now.series.stop - now.series.start, recorded.scores[now.series]
        filled = np.stack([_rounds(series, now.rounds) for series in part])
        # The last pass is as large as the others, so that one program serves them all.
        filled = np.pad(filled, ((0, size - len(part)), (0, 0)), mode="edge")
        state = state if now.rounds.start else None
        if state is None and now.rounds.stop < longest:  # room for all rounds, so that every pass has one shape
            state = broadcast_state(fresh_state(learner, longest, filled.dtype), (size,))
        run: Any = replay_batch(learner, filled, levels, state=state, delay=delay)
        thresholds, state, found = np.asarray(run.thresholds), run.state, []
        for k, series in enumerate(part):
            count = min(len(series), now.rounds.stop) - now.rounds.start
            if count > 0:
                row = int(ends[now.series.start + k]) - len(series) + now.rounds.start
                found.append((row, thresholds[k, :count]))
        yield found, state


def _rounds(series: np.ndarray, rounds: slice) -> np.ndarray:
    own = np.asarray(series[rounds])
    missing = rounds.stop - rounds.start - own.size
    return np.concatenate([own, np.full(missing, series[-1])]) if missing else own


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
