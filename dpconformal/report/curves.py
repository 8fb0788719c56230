"""The pass over a grid of levels: each is replayed, and of each only what a picture shows is kept."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from dpconformal.delays import Delayed
from dpconformal.experiments.progress import track
from dpconformal.heads import Head
from dpconformal.learner import BeliefLearner, ContextLearner
from dpconformal.metrics.summary import as_written
from dpconformal.replay import Replay, replay
from dpconformal.report.blocks import Blocks, counts_in

STEPS = (1000, 200, 100)  # levels are multiples of 1/1000, 1/200 or 1/100
CHUNK, ROOM = 64, 2**25  # levels of one replay, and thresholds that are held at a time
WORK = 5e7  # rounds times levels
BYTES = 3.2e6  # of all curves together, before base64 adds a third


class Curves(NamedTuple):
    """What a run did at many levels."""

    levels: np.ndarray  # (K,), ascending, those that the run was asked for among them
    thresholds: np.ndarray  # (K, N), of the last round of each block
    covered: np.ndarray  # (K, N), rounds of each block in which the score did not exceed the threshold
    following: np.ndarray  # (K,), thresholds of the round after the run; NaN where the learner cannot tell
    # (T,), on how many of the even levels the threshold was below the score of a round; None without a grid
    below: np.ndarray | None
    equal: np.ndarray | None  # (T,), on how many it was the score itself


def answers_every_level(learner: Any) -> bool:
    """Whether one distribution is behind all thresholds, so that any level can be asked for afterwards."""
    return isinstance(learner, (BeliefLearner, Head))


def steps_for(learner: Any, sizes: Sequence[Blocks]) -> int | None:
    """
    Choose how fine the grid of levels is.

    Returns: The levels are k/steps. None if the learner answers the levels that it was asked for only.
    """
    if not answers_every_level(learner):
        return None
    offered = STEPS[1:] if isinstance(learner, Head) else STEPS  # a head may have to solve for each of its levels
    longest = max(blocks.rounds for blocks in sizes)
    cells = sum(blocks.ends.size * (3 if blocks.size < 2**8 else 4) for blocks in sizes)
    fitting = [steps for steps in offered if longest * (steps + 1) <= WORK and cells * (steps + 1) <= BYTES]
    return fitting[0] if fitting else STEPS[-1]


def curves_of(run: Replay, blocks: Blocks, steps: int | None, what: str = "levels", progress: bool = False) -> Curves:
    """
    Replay a run's learner over its scores at every level of a grid.

    Levels that the run was asked for are taken from the run itself.
    """
    whole, run = run, run.observed()
    scores = np.asarray(run.scores)
    asked, columns = np.unique(as_written(np.asarray(run.levels)), return_index=True)
    even = np.zeros(0) if steps is None else np.arange(steps + 1) / steps
    levels = np.union1d(even, asked)
    count, size = levels.size, blocks.ends.size
    kept = Curves(
        levels,
        np.empty((count, size)),
        np.empty((count, size), np.int64),
        np.full(count, np.nan),
        None if steps is None else np.zeros(blocks.rounds, np.int32),
        None if steps is None else np.zeros(blocks.rounds, np.int32),
    )
    own = np.searchsorted(levels, asked)
    _keep(kept, own, np.asarray(run.thresholds)[:, columns], scores, blocks, even)
    kept.following[own] = _following(run.learner, run.state, np.asarray(run.levels)[columns])
    others = np.setdiff1d(np.arange(count), own)
    # Every chunk has the same shape, so that one compiled program serves them all.
    width = max(1, min(CHUNK, ROOM // blocks.rounds, max(others.size, 1)))
    starts = range(0, others.size, width)
    for start in track(starts, what, progress):
        here = others[start : start + width]
        asking = np.pad(levels[here], (0, width - here.size), mode="edge")
        again: Any = replay(
            run.learner, whole.scores, asking, whole.start, context=whole.context, mask=whole.mask, delay=whole.delay
        )
        _keep(kept, here, np.asarray(again.observed().thresholds)[:, : here.size], scores, blocks, even)
        kept.following[here] = _following(run.learner, again.state, asking)[: here.size]
        if run.state is None:  # the replays have come to the same end
            kept.following[own] = _following(run.learner, again.state, asked)
    return kept


def _keep(
    kept: Curves, rows: np.ndarray, thresholds: np.ndarray, scores: np.ndarray, blocks: Blocks, even: np.ndarray
) -> None:
    """Keep of the thresholds, (T, len(rows)), what the pictures show."""
    kept.thresholds[rows] = thresholds[blocks.ends - 1].T
    covered = scores[:, None] <= thresholds
    kept.covered[rows] = counts_in(covered, blocks).T
    if kept.below is not None and kept.equal is not None:
        on_grid = np.isin(kept.levels[rows], even)
        kept.below[:] += np.sum(~covered[:, on_grid], axis=1, dtype=np.int32)
        kept.equal[:] += np.sum((scores[:, None] == thresholds)[:, on_grid], axis=1, dtype=np.int32)


def _following(learner: Any, state: Any, levels: np.ndarray) -> np.ndarray:
    """Ask for the thresholds of the next round; a learner that must be told its context first cannot answer."""
    nothing = np.full(levels.size, np.nan)
    state = state.state if isinstance(state, Delayed) else state
    if learner is None or state is None:
        return nothing
    try:
        return np.asarray(learner.quantile(state, levels), float)
    except ValueError:
        if isinstance(learner, ContextLearner):
            return nothing
        raise
