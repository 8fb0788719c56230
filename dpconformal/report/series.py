"""
The data of one series on a page, encoded in few bytes that are safe inside HTML.

Pictures show the rounds in at most 250 blocks, at every level of a grid: each level is replayed, and of each only what
a picture shows is kept. Beside these curves there are regret and its bound, and a table.
"""

import base64
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from dpconformal.beliefs import Exact, Quantized
from dpconformal.compositions import Head, Hierarchical
from dpconformal.diagnostics import coverage_curve
from dpconformal.diagnostics.coverage import clopper_pearson
from dpconformal.display import track
from dpconformal.engine.states import Delayed
from dpconformal.learner import BeliefLearner, ContextLearner, Learner, State
from dpconformal.metrics.arrays import arrays_of, totals_over_rounds
from dpconformal.metrics.loss import regret_curve
from dpconformal.metrics.summary import as_written
from dpconformal.replay import Replay, replay
from dpconformal.runs import not_at_once
from dpconformal.theory import certify
from dpconformal.theory.path import discounted_regret, path_of, regret_and_bound, sequences

LONGEST = 200_000  # rounds, beyond which bounds and certificates take longer than a reader waits
DOTS = 1500  # scores that are drawn, at most
LAST = 65532  # the largest code of a finite number
MINUS_INFINITY, INFINITY, NOTHING = 65533, 65534, 65535

STEPS = (1000, 200, 100)  # levels are multiples of 1/1000, 1/200 or 1/100
CHUNK, ROOM = 64, 2**25  # levels of one replay, and thresholds that are held at a time
WORK = 5e7  # rounds times levels
BYTES = 3.2e6  # of all curves together, before base64 adds a third
MOST = 250  # blocks of a run
LEAST_WINDOW = 50  # rounds, below which a coverage says little
TAIL = 0.025  # on each side: 95 % between


def series_of(name: str, run: Replay, steps: int | None, progress: bool = False) -> dict[str, Any]:
    """Compute what the pictures of one series show."""
    whole, run = run, run.observed()
    blocks = blocks_of(len(run.scores))
    curves = curves_of(whole, blocks, steps, f"{name}: levels" if name else "levels", progress)
    losses = losses_of(whole, blocks.ends)
    asked = levels_of(run, steps)[2]
    # Scores are thinned evenly: dot i is that of round ⌊(i + 1/2) T/count⌋, counted from 0.
    scores, count = np.asarray(run.scores, float), min(blocks.rounds, DOTS)
    dots = scores[((np.arange(count) + 0.5) * scores.size / count).astype(int)]
    rounds = blocks.window * blocks.size
    held = {
        "name": name,
        "rounds": blocks.rounds,
        "block": blocks.size,
        "ends": blocks.ends,
        "dots": {"count": count, "least": scores.min(), "most": scores.max(), **pack_rows(dots[None])},
        "following": curves.following,
        "window": {"blocks": blocks.window, "rounds": rounds},
        "table": _table(whole, losses, asked),
        "kind": losses.kind,
        "regret": losses.regret[:, asked].T,
        "bound": losses.bound[:, asked].T,
        "pit": pit_histogram(curves, blocks, steps) if steps and isinstance(run.learner, BeliefLearner) else None,
    }
    # What is packed is not rounded by as_plain.
    return as_plain(held) | {
        "thresholds": pack_rows(curves.thresholds),
        "covered": pack_counts(curves.covered, blocks.size),
        "interval": pack_rows(np.stack(clopper_pearson(curves.covered.sum(axis=1), blocks.rounds, TAIL))),
        "chance": pack_rows(chance_band(curves.levels, rounds) / rounds),
    }


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


class Blocks(NamedTuple):
    """Stretches of equal length that end with the last round; only the first may be shorter."""

    rounds: int  # of the run
    size: int  # rounds of a block
    ends: np.ndarray  # (N,), the last round of each, counted from 1
    window: int  # blocks that a rolling coverage averages over: a tenth of the run, but 50 rounds if there are as many


class Curves(NamedTuple):
    """Results of a run at many levels, as far as pictures show them."""

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


def steps_for(learner: Learner | None, sizes: Sequence[Blocks]) -> int | None:
    """Choose the steps of the grid k/steps; None if the learner answers the levels that it was asked for only."""
    if not isinstance(learner, (BeliefLearner, Head)):  # with these, one distribution is behind all thresholds
        return None
    offered = STEPS[1:] if isinstance(learner, Head) else STEPS  # a head may have to solve for each of its levels
    longest = max(blocks.rounds for blocks in sizes)
    cells = sum(blocks.ends.size * (3 if blocks.size < 2**8 else 4) for blocks in sizes)
    fitting = [steps for steps in offered if longest * (steps + 1) <= WORK and cells * (steps + 1) <= BYTES]
    return fitting[0] if fitting else STEPS[-1]


def levels_of(run: Replay, steps: int | None) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the levels of a page, where those of the run are among them, and the columns of these in the run."""
    asked, columns = np.unique(as_written(np.asarray(run.levels)), return_index=True)
    levels = asked if steps is None else np.union1d(np.arange(steps + 1) / steps, asked)
    return levels, np.searchsorted(levels, asked), columns


def curves_of(run: Replay, blocks: Blocks, steps: int | None, what: str = "levels", progress: bool = False) -> Curves:
    """Replay a learner at every level of a grid; levels that the run was asked for are taken from the run itself."""
    whole, run = run, run.observed()
    scores = np.asarray(run.scores)[:, None]
    levels, own, columns = levels_of(run, steps)
    count, shape = levels.size, (levels.size, blocks.ends.size)
    on_grid = np.isin(levels, [] if steps is None else np.arange(steps + 1) / steps)
    below, equal = np.zeros((2, blocks.rounds), np.int32)
    kept = Curves(levels, np.empty(shape), np.empty(shape, np.int64), np.full(count, np.nan), below, equal)

    def keep(rows: np.ndarray, thresholds: np.ndarray) -> None:
        covered, even = scores <= thresholds, on_grid[rows]
        kept.thresholds[rows] = thresholds[blocks.ends - 1].T
        kept.covered[rows] = counts_in(covered, blocks).T
        kept.below[:] += np.sum(~covered[:, even], axis=1, dtype=np.int32)
        kept.equal[:] += np.sum((scores == thresholds)[:, even], axis=1, dtype=np.int32)

    keep(own, np.asarray(run.thresholds)[:, columns])
    kept.following[own] = _next_thresholds(run.learner, run.state, np.asarray(run.levels)[columns])
    others = np.setdiff1d(np.arange(count), own)
    # Every chunk has the same shape, so that one compiled program serves them all.
    width = max(1, min(CHUNK, ROOM // blocks.rounds, max(others.size, 1)))
    for start in track(range(0, others.size, width), what, progress):
        here = others[start : start + width]
        asking = np.pad(levels[here], (0, width - here.size), mode="edge")
        again: Any = replay(
            run.learner, whole.scores, asking, whole.start, context=whole.context, mask=whole.mask, delay=whole.delay
        )
        keep(here, np.asarray(again.observed().thresholds)[:, : here.size])
        kept.following[here] = _next_thresholds(run.learner, again.state, asking)[: here.size]
        if run.state is None:  # the replays have come to the same end
            kept.following[own] = _next_thresholds(run.learner, again.state, levels[own])
    return kept


def _next_thresholds(learner: Learner | None, state: State, levels: np.ndarray) -> np.ndarray:
    """Ask for the thresholds of the next round; NaN if the learner must be told its context first."""
    state = state.state if isinstance(state, Delayed) else state
    if learner is not None and state is not None:
        try:
            return np.asarray(learner.quantile(state, levels), float)
        except ValueError:
            if not isinstance(learner, ContextLearner):
                raise
    return np.full(levels.size, np.nan)


def chance_band(chances: np.ndarray, rounds: int) -> np.ndarray:
    """Return the 2.5 % and the 97.5 % quantiles of binomial counts, as rows."""
    from scipy import stats  # slow to import

    return np.asarray(stats.binom.ppf([[TAIL], [1 - TAIL]], rounds, chances))


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
    low, high = chance_band(np.array([1 / bars]), blocks.rounds)[:, 0].astype(int).tolist()
    return {"counts": counts.tolist(), "low": low, "high": high}


class Losses(NamedTuple):
    """Regret and bound over time."""

    # What the bound holds for. "own": this learner on this path. "discounted": the same, with a discount in both regret
    # and bound. "borrowed": the bound of Exact, for a learner that has none. "none": there is no bound. "groups": there
    # is one for each group, but none for all rounds together. "long": left out, because the run is too long. If scores
    # became known late, "late": this learner on any path, or "unproved": there is no bound.
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
