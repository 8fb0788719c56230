"""All that the page holds of one series, ready for JSON."""

from typing import Any

import numpy as np

from dpconformal.diagnostics import coverage_curve
from dpconformal.diagnostics.coverage import clopper_pearson
from dpconformal.learner import BeliefLearner
from dpconformal.metrics.arrays import arrays_of, totals_over_rounds
from dpconformal.metrics.summary import as_written
from dpconformal.replay import Replay
from dpconformal.report.curves import TAIL, Blocks, Curves, blocks_of, chance_band, curves_of, histogram
from dpconformal.report.encode import packed_counts, packed_rows, plain
from dpconformal.report.losses import LONGEST, Losses, losses_of
from dpconformal.theory import certify

DOTS = 1500


def series_of(name: str, run: Replay, steps: int | None, progress: bool = False) -> dict[str, Any]:
    """Gather what the pictures of one series show."""
    whole, run = run, run.observed()
    blocks = blocks_of(int(np.shape(run.scores)[0]))
    curves = curves_of(whole, blocks, steps, f"{name}: levels" if name else "levels", progress)
    losses = losses_of(whole, blocks.ends)
    belief = steps is not None and isinstance(run.learner, BeliefLearner)
    held = {
        "name": name,
        "rounds": blocks.rounds,
        "block": blocks.size,
        "ends": blocks.ends,
        "dots": _dots(np.asarray(run.scores, float)),
        "following": curves.following,
        "window": {"blocks": blocks.window, "rounds": blocks.window * blocks.size},
        "table": _table(whole, losses),
        "kind": losses.kind,
        "regret": _by_level(run, losses.regret),
        "bound": _by_level(run, losses.bound),
        "pit": histogram(curves, blocks, steps) if belief and steps is not None else None,
    }
    # What is encoded keeps the digits of its ends.
    return plain(held) | _encoded(curves, blocks)


def _encoded(curves: Curves, blocks: Blocks) -> dict[str, Any]:
    rounds = blocks.window * blocks.size
    ends = clopper_pearson(curves.covered.sum(axis=1), blocks.rounds, TAIL)
    band = [count / rounds for count in chance_band(curves.levels, rounds)]
    return {
        "thresholds": packed_rows(curves.thresholds),
        "covered": packed_counts(curves.covered, blocks.size),
        "interval": packed_rows(np.stack(ends)),
        "chance": packed_rows(np.stack(band)),
    }


def _dots(scores: np.ndarray) -> dict[str, Any]:
    """Thin the scores evenly: dot i is that of round ⌊(i + 1/2) T/count⌋, counted from 0."""
    count = min(scores.size, DOTS)
    shown = scores[((np.arange(count) + 0.5) * scores.size / count).astype(int)]
    return {"count": count, "least": scores.min(), "most": scores.max(), **packed_rows(shown[None])}


def _by_level(run: Replay, values: np.ndarray) -> list[np.ndarray]:
    """Turn (N, A) into a list over the asked levels, each once, ascending."""
    return list(values[:, _columns(run)].T)


def _columns(run: Replay) -> np.ndarray:
    return np.unique(as_written(np.asarray(run.levels)), return_index=True)[1]


def _table(run: Replay, losses: Losses) -> list[dict[str, Any]]:
    """Make a row for each asked level."""
    levels, rounds = as_written(np.asarray(run.levels)), np.shape(run.observed().scores)[0]
    curve = coverage_curve(run) if rounds <= LONGEST else None
    totals = totals_over_rounds(arrays_of(run))
    verdicts = _verdicts(run)
    return [
        {
            "level": levels[i],
            "coverage": totals.covered[i] / rounds,
            "size": totals.threshold.high[i] / rounds,
            "loss": totals.loss.high[i] / rounds,
            "regret": losses.regret[-1, i],
            "bound": losses.bound[-1, i],
            "low": np.nan if curve is None else curve.band_low.values[i],
            "high": np.nan if curve is None else curve.band_high.values[i],
            **verdicts[i],
        }
        for i in _columns(run)
    ]


def _verdicts(run: Replay) -> list[dict[str, Any]]:
    """Hold the run to its theorems, level by level; with groups a level fails if it does in any of them."""
    rounds, levels = np.shape(run.observed().thresholds)
    if rounds > LONGEST:
        return [{"verdict": "left out", "failed": [], "groups": []}] * levels
    wrong = certify(run).dataset.verdict == "FAIL"
    rows = []
    for i in range(levels):
        here = wrong.isel(level=i)
        by_check = here.any("group") if "group" in here.dims else here
        failed = here.check.values[by_check.values].tolist()
        groups = here.group.values[here.any("check").values].tolist() if "group" in here.dims else []
        rows.append({"verdict": "fail" if failed else "pass", "failed": failed, "groups": list(map(str, groups))})
    return rows
