"""Replay of recorded series in passes that fit into memory, with checkpoints; thresholds and their metrics on disk."""

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
from dpconformal.checkpoints.saving import leaves_of, state_from
from dpconformal.display import track
from dpconformal.engine.states import broadcast_state
from dpconformal.engine.totals import totals_of
from dpconformal.files import Recorded
from dpconformal.learner import State, fresh_state
from dpconformal.metrics.loss import best_threshold
from dpconformal.metrics.summary import measure
from dpconformal.replay import replay_batch

NUMBERS = 2**24  # thresholds of a pass over many series
ROUNDS = 2**17  # of a pass over a long series
PARTS = 8  # of a series, at most, where a state holds every score: each pass goes over all of them
_EVERY = 2.0  # seconds of work between checkpoints, at least; and no more than a tenth of the time for them
BLOCK = 2**18  # rounds that are measured at a time
_DIGIT = 16  # bits of a number that are decided in a pass over the scores


class Pass(NamedTuple):
    """Some rounds of some series."""

    series: slice
    rounds: slice  # which of their rounds


def plan(learner: Any, recorded: Recorded, levels: int) -> list[Pass]:
    """Cut the work into passes: all rounds of some series, then those of the next; an interrupted run repeats them."""
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
    learner: Any, recorded: Recorded, levels: Any, passes: Iterable[Pass], state: State = None, delay: int = 0
) -> Iterator[tuple[list[tuple[int, np.ndarray]], State]]:
    """
    Replay passes; yield the thresholds of each series in a pass with their first row among all, and the state after it.

    A threshold depends on the past alone. So a short series is filled up with its own last score, runs in a batch with
    longer ones, and what comes after its end is cut off: one compiled program for all lengths.
    """
    longest, begins = recorded.rounds, np.cumsum(recorded.lengths) - recorded.lengths
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
                found.append((int(begins[now.series.start + k]) + now.rounds.start, thresholds[k, :count]))
        yield found, state


def _rounds(series: np.ndarray, rounds: slice) -> np.ndarray:
    own = np.asarray(series[rounds])
    missing = rounds.stop - rounds.start - own.size
    return np.concatenate([own, np.full(missing, series[-1])]) if missing else own


def replay_to_disk(
    learner: Any, recorded: Recorded, levels: Any, folder: Path, show: bool = True, delay: int = 0
) -> tuple[np.ndarray, float]:
    """
    Replay each series by itself, with the thresholds in a file and checkpoints beside it.

    An interrupted call is carried on with, and the result is the same to the last bit. Returns: Thresholds of one
    series after the other, (N, levels), mapped from the file; and the seconds of all passes.
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
    learner: Any, recorded: Recorded, levels: list[float], thresholds: np.ndarray, delay: int = 0
) -> dict[str, dpc.Replay]:
    """Return a Replay of each series, in memory."""
    asked = jnp.asarray(levels, float)
    return {
        name: dpc.Replay(
            jnp.asarray(np.asarray(own)), None, jnp.asarray(np.asarray(series)), asked, learner, delay=delay
        )
        for name, series, own in recorded.with_rows(thresholds)
    }


def tally(scores: np.ndarray, thresholds: np.ndarray, levels: Any) -> dict[str, np.ndarray]:
    """Compute the metrics of a run; neither its thresholds nor its scores need fit into memory."""
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
