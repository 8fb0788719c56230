"""What a page holds of one series: curves, regret and a table, as small numbers that are safe inside HTML."""

import base64
import html
import json
import math
from typing import Any, NamedTuple

import numpy as np

from dpconformal.beliefs import Exact, Quantized
from dpconformal.compositions import Hierarchical
from dpconformal.diagnostics import coverage_curve
from dpconformal.diagnostics.coverage import clopper_pearson
from dpconformal.learner import BeliefLearner
from dpconformal.metrics.arrays import arrays_of, totals_over_rounds
from dpconformal.metrics.loss import regret_curve
from dpconformal.metrics.summary import as_written
from dpconformal.replay import Replay
from dpconformal.report.curves import TAIL, blocks_of, chance_band, curves_of, pit_histogram
from dpconformal.runs import not_at_once
from dpconformal.theory import certify
from dpconformal.theory.path import discounted_regret, path_of, regret_and_bound, sequences

LONGEST = 200_000  # rounds, beyond which bounds and certificates take longer than a reader waits
DOTS = 1500
LAST = 65532
MINUS_INFINITY, INFINITY, NOTHING = 65533, 65534, 65535


def series_of(name: str, run: Replay, steps: int | None, progress: bool = False) -> dict[str, Any]:
    """Compute what the pictures of one series show."""
    whole, run = run, run.observed()
    blocks = blocks_of(int(np.shape(run.scores)[0]))
    curves = curves_of(whole, blocks, steps, f"{name}: levels" if name else "levels", progress)
    losses = losses_of(whole, blocks.ends)
    asked = np.unique(as_written(np.asarray(run.levels)), return_index=True)[1]
    belief = steps is not None and isinstance(run.learner, BeliefLearner)
    held = {
        "name": name,
        "rounds": blocks.rounds,
        "block": blocks.size,
        "ends": blocks.ends,
        "dots": _dots(np.asarray(run.scores, float)),
        "following": curves.following,
        "window": {"blocks": blocks.window, "rounds": blocks.window * blocks.size},
        "table": _table(whole, losses, asked),
        "kind": losses.kind,
        "regret": losses.regret[:, asked].T,
        "bound": losses.bound[:, asked].T,
        "pit": pit_histogram(curves, blocks, steps) if belief and steps is not None else None,
    }
    # What is encoded keeps the digits of its ends.
    rounds = blocks.window * blocks.size
    ends = clopper_pearson(curves.covered.sum(axis=1), blocks.rounds, TAIL)
    band = [count / rounds for count in chance_band(curves.levels, rounds)]
    return as_plain(held) | {
        "thresholds": pack_rows(curves.thresholds),
        "covered": pack_counts(curves.covered, blocks.size),
        "interval": pack_rows(np.stack(ends)),
        "chance": pack_rows(np.stack(band)),
    }


def _dots(scores: np.ndarray) -> dict[str, Any]:
    """Thin the scores evenly: dot i is that of round ⌊(i + 1/2) T/count⌋, counted from 0."""
    count = min(scores.size, DOTS)
    shown = scores[((np.arange(count) + 0.5) * scores.size / count).astype(int)]
    return {"count": count, "least": scores.min(), "most": scores.max(), **pack_rows(shown[None])}


def _table(run: Replay, losses: "Losses", columns: np.ndarray) -> list[dict[str, Any]]:
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
        for i in columns
    ]


def _verdicts(run: Replay) -> list[dict[str, Any]]:
    """Certify the run level by level; with groups a level fails if it does in any of them."""
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


class Losses(NamedTuple):
    """Regret and bound over time."""

    # Whose the bound is. "own": of this learner on this path. "discounted": the same with a discount, in regret and
    # bound. "borrowed": of :class:`dpconformal.Exact`, for a learner without a bound. "none": of nobody. "groups": of
    # each group, and none of all rounds together. "long": left out, for a run that is too long. Where scores became
    # known late, "late": of this learner on any path; "unproved": of nobody.
    kind: str
    regret: np.ndarray  # (N, A), against the best fixed threshold for the rounds so far
    bound: np.ndarray  # (N, A), NaN where there is none


def losses_of(run: Replay, ends: np.ndarray) -> Losses:
    """Compute regret and its bound over time; late scores and a discount together have no bound."""
    _, whole = next(sequences(run, observed=False))
    sequence, late, long = whole.observed(), not_at_once(whole), ends[-1] > LONGEST
    groups, discounted = isinstance(run.learner, Hierarchical), getattr(run.learner, "discount", None) is not None
    path = path_of(sequence) if not late and (discounted or not long) else None
    found = None
    with np.errstate(invalid="ignore"):  # ∞ - ∞, where a threshold is infinite
        if path is not None and path.discount != 1:
            faded = discounted_regret(path, ends)
            return Losses("discounted", faded.regret, faded.bound)
        if not long and not groups:
            found = regret_and_bound(whole, path)
        if found is not None:
            ours = isinstance(run.learner, (Exact, Quantized)) if late else path is not None
            kind = ("late" if late else "own") if ours else "borrowed"
            return Losses(kind, found.regret[ends - 1], found.bound[ends - 1])
        seen = regret_curve(sequence.thresholds, sequence.scores, sequence.levels)[0][ends - 1]
    kind = "long" if long else "unproved" if late else "groups" if groups else "none"
    return Losses(kind, seen, np.full(seen.shape, np.nan))


def pack_rows(rows: np.ndarray) -> dict[str, Any]:
    """
    Encode the rows of a table: ``low`` and ``high``, the ends of each row, and base64 of 16-bit ``codes``, row by row.

    A code c up to 65532 stands for low + c · (high - low)/65532: half a step is 1/131064 of what a row spans. The last
    three codes are 65533 for -∞, 65534 for +∞ and 65535 for no number.
    """
    rows = np.asarray(rows, float)
    finite = np.isfinite(rows)
    # A row without any finite number spans nothing. Ends are divided before they are subtracted, which cannot overflow.
    low = np.where(finite.any(axis=1), np.min(rows, axis=1, initial=np.inf, where=finite), 0.0)
    high = np.where(finite.any(axis=1), np.max(rows, axis=1, initial=-np.inf, where=finite), 0.0)
    step = (high / LAST - low / LAST)[:, None]
    known = np.where(finite, rows, low[:, None])
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        codes = np.where(step > 0, np.rint((known - low[:, None]) / step), 0)
    codes = np.clip(np.nan_to_num(codes), 0, LAST).astype("<u2")
    codes[rows == -np.inf], codes[rows == np.inf], codes[np.isnan(rows)] = MINUS_INFINITY, INFINITY, NOTHING
    return {"low": low.tolist(), "high": high.tolist(), "codes": _base64(codes)}


def pack_counts(counts: np.ndarray, most: int) -> dict[str, Any]:
    """Encode counts in as few bytes as they need."""
    size = 1 if most < 2**8 else 2 if most < 2**16 else 4
    return {"bytes": size, "codes": _base64(np.asarray(counts).astype(f"<u{size}"))}


def _base64(array: np.ndarray) -> str:
    return base64.b64encode(np.ascontiguousarray(array).tobytes()).decode("ascii")


def as_plain(value: Any) -> Any:
    """Turn arrays and numbers into what JSON has words for: infinite ones become ``"inf"`` and ``"-inf"``, NaN null."""
    if isinstance(value, dict):
        return {str(key): as_plain(part) for key, part in value.items()}
    if isinstance(value, (list, tuple, np.ndarray)):
        return [as_plain(part) for part in value]
    if isinstance(value, (bool, np.bool_)):
        return bool(value)
    if isinstance(value, (int, np.integer)):
        return int(value)
    if isinstance(value, (float, np.floating)):
        number = float(value)
        if math.isnan(number):
            return None
        return float(f"{number:.7g}") if math.isfinite(number) else ("inf" if number > 0 else "-inf")
    return value


def as_json(value: Any) -> str:
    r"""Write JSON that no HTML parser mistakes for an end of the script that holds it."""
    text = json.dumps(value, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def as_html(text: str) -> str:
    """Escape text for HTML; a lone surrogate, which no file can hold, becomes a question mark."""
    return html.escape(text.encode("utf-8", "replace").decode("utf-8"), quote=True)
