"""The rounds of many series as passes of bounded size: what is replayed at a time, and from where one can go on."""

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

import dpconformal as dpc
from dpconformal.beliefs.sorted_scores import SortedScores
from dpconformal.files import Recorded
from dpconformal.learner import State, fresh_state
from dpconformal.starting import spread

NUMBERS = 2**24  # thresholds of a pass over many series
ROUNDS = 2**17  # of a pass over a long series
PARTS = (
    8  # into which a series is cut at most where a state holds every score, for each pass costs as much as all scores
)


class Pass(NamedTuple):
    """
    Some rounds of some series.

    Attributes
    ----------
    series : slice
        Which series.
    rounds : slice
        Which of their rounds.
    """

    series: slice
    rounds: slice


def plan(learner: Any, recorded: Recorded, levels: int) -> list[Pass]:
    """
    Cut the work into passes. The cuts depend on what is given alone, so that an interrupted run repeats them.

    Parameters
    ----------
    learner : Learner
        Who.
    recorded : Recorded
        The scores.
    levels : int
        How many levels.

    Returns
    -------
    list of Pass
        In order: all rounds of some series, then those of the next.
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


def replay_pass(learner: Any, recorded: Recorded, levels: Any, now: Pass, state: State) -> tuple[np.ndarray, State]:
    """
    Replay the rounds of a pass.

    Parameters
    ----------
    learner : Learner
        Who.
    recorded : Recorded
        The scores.
    levels : sequence of float
        Levels.
    now : Pass
        The pass.
    state : State
        After the pass before it; None at the beginning of a series.

    Returns
    -------
    tuple
        Thresholds (series, rounds, levels), and the state after them.

    Notes
    -----
    A threshold depends on the past alone. So a short series is filled up with its own last score, runs in a batch with
    longer ones, and what comes after its end is cut off: one compiled program for all lengths.
    """
    longest, size = recorded.rounds, now.series.stop - now.series.start
    part = recorded.scores[now.series]
    filled = np.stack([_rounds(series, now.rounds) for series in part])
    # The last pass is as large as the others, so that one program serves them all.
    filled = np.pad(filled, ((0, size - len(part)), (0, 0)), mode="edge")
    if size == 1:
        filled = filled[0]
    if state is None and now.rounds.stop < longest:  # room for all rounds, so that every pass has one shape
        state = fresh_state(learner, longest, filled.dtype)
        state = state if size == 1 else spread(state, (size,))
    run: Any = dpc.replay(learner, filled, levels, state=state)
    thresholds = np.asarray(run.thresholds)
    return (thresholds[None] if size == 1 else thresholds), run.state


def _rounds(series: np.ndarray, rounds: slice) -> np.ndarray:
    own = np.asarray(series[rounds])
    missing = rounds.stop - rounds.start - own.size
    return np.concatenate([own, np.full(missing, series[-1])]) if missing else own


def rows_of(recorded: Recorded, now: Pass) -> Iterator[tuple[int, int, int]]:
    """
    Tell where the thresholds of a pass belong among those of all series, one after the other.

    Parameters
    ----------
    recorded : Recorded
        The scores.
    now : Pass
        The pass.

    Yields
    ------
    tuple of int
        For each series that has rounds in it: its number in the pass, the first row, and how many rows.
    """
    ends = np.cumsum([len(series) for series in recorded.scores])
    for k, series in enumerate(recorded.scores[now.series]):
        count = min(len(series), now.rounds.stop) - now.rounds.start
        if count > 0:
            yield k, int(ends[now.series.start + k]) - len(series) + now.rounds.start, count
