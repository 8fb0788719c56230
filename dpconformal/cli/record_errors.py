"""Standard errors of the measures of a learner on recorded series, as if other such series were recorded."""

from typing import Any

import numpy as np

import dpconformal as dpc
from dpconformal.cli.passes import NUMBERS
from dpconformal.cli.tallies import tally
from dpconformal.diagnostics.jackknife import jackknife_error, leave_out_blocks
from dpconformal.files import Recorded

MEASURES = ("coverage", "loss", "mean_threshold")


def record_errors(learner: Any, recorded: Recorded, levels: list[float]) -> dict[str, np.ndarray]:
    """
    Replay each series without each of its blocks, and take the variance of the measures from that.

    Returns: For each measure the standard errors of its mean over the series, level by level, and then that of the mean
    over all levels. NaN if a series has one score only, or if a threshold is infinite. Coverage counts rounds, and its
    error is at least one of them: a learner that steers it may have the same without any of the blocks.
    """
    rows = [(series, kept) for series in recorded.scores if len(series) > 1 for kept in leave_out_blocks(len(series))]
    longest = max((kept.size for _, kept in rows), default=1)
    size = max(1, min(len(rows), NUMBERS // (longest * len(levels))))
    found: dict[str, list[np.ndarray]] = {name: [] for name in MEASURES}
    for begin in range(0, len(rows), size):
        part = [np.asarray(series, float)[kept] for series, kept in rows[begin : begin + size]]
        # Filled up with its last score, and with its last row: one program for all. No threshold before changes.
        filled = np.stack([np.pad(row, (0, longest - row.size), mode="edge") for row in part])
        filled = np.pad(filled, ((0, size - len(part)), (0, 0)), mode="edge")
        run: Any = dpc.replay(learner, filled, levels)
        thresholds = np.asarray(run.thresholds)
        for row, own in zip(part, thresholds, strict=False):
            measured = tally(row, own[: row.size], levels)
            for name in MEASURES:
                found[name].append(np.append(measured[name], measured[name].mean()))
    count = len(recorded.scores)
    least = {"coverage": 1.0}
    return {
        name: np.sqrt(_variance(np.array(values), recorded, len(levels), least.get(name, 0.0))) / count
        for name, values in found.items()
    }


def _variance(values: np.ndarray, recorded: Recorded, levels: int, least: float) -> np.ndarray:
    """Add up the variances of the series, taken to be independent; none is below that of ``least`` over its rounds."""
    total, at = np.zeros(levels + 1), 0
    for series in recorded.scores:
        if len(series) < 2:
            return np.full(levels + 1, np.nan)
        blocks, kept = leave_out_blocks(len(series)).shape
        error = jackknife_error(values[at : at + blocks].T, len(series), kept)
        total = total + np.maximum(error, least / len(series)) ** 2
        at += blocks
    return total
