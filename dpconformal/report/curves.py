"""
What pictures show of a run: its rounds in at most 250 blocks, at every level of a grid.

Each level is replayed, and of each only what a picture shows is kept.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from dpconformal.compositions import Head
from dpconformal.display import track
from dpconformal.engine.feedback import Delayed
from dpconformal.learner import BeliefLearner, ContextLearner
from dpconformal.metrics.summary import as_written
from dpconformal.replay import Replay, replay

STEPS = (1000, 200, 100)  # levels are multiples of 1/1000, 1/200 or 1/100
CHUNK, ROOM = 64, 2**25  # levels of one replay, and thresholds that are held at a time
WORK = 5e7  # rounds times levels
BYTES = 3.2e6  # of all curves together, before base64 adds a third
MOST = 250  # blocks of a run
LEAST_WINDOW = 50  # rounds, below which a coverage says little
TAIL = 0.025  # on each side: 95 % between


class Blocks(NamedTuple):
    """Stretches of equal length that end with the last round; only the first may be shorter."""

    rounds: int  # of the run
    size: int  # rounds of a block
    ends: np.ndarray  # (N,), the last round of each, counted from 1
    window: int  # blocks that a rolling coverage averages over: a tenth of the run, but 50 rounds if there are as many


class Curves(NamedTuple):
    """What a run did at many levels."""

    levels: np.ndarray  # (K,), ascending, those that the run was asked for among them
    thresholds: np.ndarray  # (K, N), of the last round of each block
    covered: np.ndarray  # (K, N), rounds of each block in which the score did not exceed the threshold
    following: np.ndarray  # (K,), thresholds of the round after the run; NaN where the learner cannot tell
    below: np.ndarray  # (T,), on how many levels of the grid the threshold was below the score of a round
    equal: np.ndarray  # (T,), on how many it was the score itself


def blocks_of(rounds: int, most: int = MOST) -> Blocks:
    """Divide a run into blocks."""
    size = -(-rounds // most)
    ends = np.arange(rounds, 0, -size)[::-1]
    whole = rounds // size
    window = max(round(whole / 10), -(-LEAST_WINDOW // size))
    return Blocks(rounds, size, ends, max(min(window, whole), 1))


def counts_in(hits: np.ndarray, blocks: Blocks) -> np.ndarray:
    """Count in how many rounds of each block something happened."""
    starts = np.concatenate([[0], blocks.ends[:-1]])
    return np.add.reduceat(hits, starts, axis=0, dtype=np.int64)


def steps_for(learner: Any, sizes: Sequence[Blocks]) -> int | None:
    """Choose the steps of the grid k/steps; None if the learner answers the levels that it was asked for only."""
    if not isinstance(learner, (BeliefLearner, Head)):  # with these, one distribution is behind all thresholds
        return None
    offered = STEPS[1:] if isinstance(learner, Head) else STEPS  # a head may have to solve for each of its levels
    longest = max(blocks.rounds for blocks in sizes)
    cells = sum(blocks.ends.size * (3 if blocks.size < 2**8 else 4) for blocks in sizes)
    fitting = [steps for steps in offered if longest * (steps + 1) <= WORK and cells * (steps + 1) <= BYTES]
    return fitting[0] if fitting else STEPS[-1]


def curves_of(run: Replay, blocks: Blocks, steps: int | None, what: str = "levels", progress: bool = False) -> Curves:
    """Replay a learner at every level of a grid; levels that the run was asked for are taken from the run itself."""
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
        np.zeros(blocks.rounds, np.int32),
        np.zeros(blocks.rounds, np.int32),
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


def chance_band(chance: np.ndarray, tosses: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the 2.5 % and the 97.5 % quantile of binomial counts."""
    from scipy import stats  # slow to import

    coins = stats.binom(tosses, np.asarray(chance, float))
    return coins.ppf(TAIL), coins.ppf(1 - TAIL)


def pit_histogram(curves: Curves, blocks: Blocks, steps: int) -> dict[str, Any]:
    """
    Count PITs in bars, with the ``low`` and ``high`` count that a bar of uniform numbers has 95 times in 100.

    A score exceeds the thresholds of exactly those levels that the belief had at or below P(X < score), so that the
    pass over the levels has placed every PIT between two of them, and in its bar. A score on an atom of the belief, on
    which the thresholds of several levels coincide, draws its place among them. So these are the counts of
    :func:`dpconformal.diagnostics.randomised_pit`, without going through all beliefs again: for a belief that keeps
    every score that takes time in proportion to the square of the rounds.
    """
    bars = 20 if blocks.rounds >= 400 else 10
    # The first level whose threshold is not below the score is number `below`; half a step less is inside its cell.
    place = np.random.default_rng(0).random(blocks.rounds)
    pit = np.clip((curves.below - 0.5 + place * curves.equal) / steps, 0, 1)
    counts, _ = np.histogram(pit, bars, (0, 1))
    low, high = chance_band(np.array([1 / bars]), blocks.rounds)
    return {"counts": counts.tolist(), "low": int(low[0]), "high": int(high[0])}
