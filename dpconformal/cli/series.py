"""Replay many series of unequal length as batches."""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import dpconformal as dpc
from dpconformal.experiments.progress import track
from dpconformal.files import Recorded

_NUMBERS = 2**24  # thresholds of one batch


def replay_series(learner: Any, recorded: Recorded, levels: Any, show: bool = True) -> dict[str, dpc.Replay]:
    """
    Replay each series by itself.

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
        A run for each series; the last state of the longest ones only.

    Notes
    -----
    A threshold depends on the past alone. So a short series is filled up with its own last score, runs in a batch with
    longer ones, and what came after its end is cut off: one compiled program for all lengths.
    """
    longest = recorded.rounds
    size = max(1, min(len(recorded.names), _NUMBERS // (longest * len(levels))))
    runs: dict[str, dpc.Replay] = {}
    blocks = range(0, len(recorded.names), size)
    for start in track(blocks, "replaying", show=show):
        part = recorded.scores[start : start + size]
        filled = np.stack([np.pad(series, (0, longest - series.size), mode="edge") for series in part])
        # The last block is as large as the others, so that one program serves them all.
        filled = np.pad(filled, ((0, size - len(part)), (0, 0)), mode="edge")
        run: Any = dpc.replay(learner, filled, levels)
        thresholds = np.asarray(run.thresholds)
        for k, series in enumerate(part):
            name = recorded.names[start + k]
            own = jnp.asarray(thresholds[k, : series.size])
            whole = series.size == longest  # else the state has seen the filling, too
            state = jax.tree.map(lambda leaf, k=k: leaf[k], run.state) if whole else None
            runs[name] = dpc.Replay(own, state, jnp.asarray(series), run.levels, learner)
    return runs


def mean_over_series(runs: dict[str, dpc.Replay], measures: Sequence[str]) -> dict[str, np.ndarray]:
    """
    Average measures over series.

    Parameters
    ----------
    runs : dict
        Runs by series.
    measures : sequence of str
        Variables of :func:`dpconformal.metrics.summary`.

    Returns
    -------
    dict of ndarray, shape (A,)
        The mean of each over the series.
    """
    found = [dpc.metrics.summary(run) for run in runs.values()]
    return {measure: np.mean([summary[measure].values for summary in found], axis=0) for measure in measures}
