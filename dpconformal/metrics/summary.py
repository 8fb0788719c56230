"""One table for a run."""

from typing import TYPE_CHECKING

import numpy as np

from dpconformal.metrics.arrays import arrays_of, by_sequence, per_round_levels
from dpconformal.metrics.coverage import coverage, coverage_error, longest_miss_run, mean_over_rounds
from dpconformal.metrics.loss import regret
from dpconformal.metrics.order import crossings
from dpconformal.pinball import pinball
from dpconformal.replay import Replay

if TYPE_CHECKING:
    import xarray as xr


def summary(run: Replay) -> "xr.Dataset":
    """
    Summarise a run: coverage, loss, regret and crossings of each level.

    Parameters
    ----------
    run : Replay
        The run.

    Returns
    -------
    xarray.Dataset
        Variables over ``level`` (and ``batch`` axes): ``coverage``, ``coverage_error``, ``loss`` (mean
        quantile loss), ``regret``, ``longest_miss_run``, ``crossings`` (rounds in which the level
        crosses another) and ``mean_threshold``. The run's own ``thresholds`` and ``scores`` come
        along over ``time``, with the ``mask`` where there is one.
        ``summary(run).drop_dims("time").to_dataframe()`` is a table.

    Examples
    --------
    >>> import dpconformal as dpc
    >>> table = summary(dpc.replay(dpc.Exact(), [0.2, 0.9, 0.4], levels=[0.5, 0.9]))
    >>> float(table.coverage.sel(level=0.5).round(3))
    0.667
    """
    import xarray as xr  # with pandas half of the package's import time, and needed only here

    loss, threshold, level = _means(run)
    thresholds = np.asarray(run.thresholds)
    axes = thresholds.ndim - 2
    batch = ["batch"] if axes == 1 else [f"batch_{i}" for i in range(axes)]
    rounds = thresholds.shape[-2]
    with np.errstate(invalid="ignore"):  # ∞ - ∞, where a threshold is infinite
        per_level = {
            "coverage": coverage(run),
            "coverage_error": coverage_error(run),
            "loss": loss,
            "regret": regret(run),
            "longest_miss_run": longest_miss_run(run),
            "crossings": crossings(run).by_level,
            "mean_threshold": threshold,
        }
    variables = {name: ([*batch, "level"], value) for name, value in per_level.items()}
    variables["thresholds"] = ([*batch, "time", "level"], np.asarray(run.thresholds))
    variables["scores"] = ([*batch, "time"], np.asarray(run.scores))
    if run.mask is not None:
        variables["mask"] = ([*batch, "time"], np.asarray(run.mask))
    coords = {"time": np.arange(1, rounds + 1)}
    if np.ndim(run.levels) == 1:
        coords["level"] = as_written(np.asarray(run.levels))
    elif np.ndim(run.levels) == thresholds.ndim:
        variables["levels"] = ([*batch, "time", "level"], np.asarray(run.levels))
        variables["mean_level"] = ([*batch, "level"], level)
    else:
        variables["levels"] = ([*batch, "level"], np.asarray(run.levels))
    return xr.Dataset(variables, coords, attrs={"learner": repr(run.learner)})


@by_sequence
def _means(run: Replay) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Average the losses, the thresholds and the levels over the rounds."""
    arrays = arrays_of(run)
    with np.errstate(invalid="ignore"):  # ∞ - ∞, where a threshold is infinite
        parts = pinball(*arrays), arrays.thresholds, per_round_levels(arrays)
        loss, threshold, level = (mean_over_rounds(part) for part in parts)
    return loss, threshold, level


def as_written(levels: np.ndarray) -> np.ndarray:
    """Return levels as a person writes them: 0.9, also where float32 holds 0.89999998."""
    return np.array([float(np.format_float_positional(level, unique=True)) for level in levels])
