"""The rounds of many series as passes of bounded size: what is replayed at a time, and from where one can go on."""

from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple

import numpy as np

from dpconformal.beliefs.sorted_scores import SortedScores
from dpconformal.files import Recorded
from dpconformal.learner import State, fresh_state
from dpconformal.replay import replay_batch
from dpconformal.starting import spread

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
            state = spread(fresh_state(learner, longest, filled.dtype), (size,))
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
