"""Scores of a block that are refused, by series and time as the user calls them."""

import contextlib
import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import numpy as np

from dpconformal.engine.kernel import blocks_of_sequences, in_threads, on_one_core
from dpconformal.engine.totals import totals_of
from dpconformal.learner import support_of
from dpconformal.metrics.loss import best_threshold
from dpconformal.replay import replay_batch


def check_block(
    learners: Sequence[Any],
    scores: np.ndarray,
    mask: np.ndarray | None,
    names: Sequence[str],
    labels: Sequence[Any],
    times: Any,
) -> None:
    """Refuse scores that are not finite or outside of what learners take."""
    ends = [support_of(learner) for learner in learners]
    low, high = max(float(end[0]) for end in ends), min(float(end[1]) for end in ends)
    if mask is None and scores.size and low <= scores.min() and scores.max() <= high and np.isfinite(scores.max()):
        return  # no mask as long as the scores was needed to see it
    looked_at = True if mask is None else ~mask
    remedy = "drop the series, or say which scores are missing: with mask=, or --missing on the command line"
    missing = ~np.isfinite(scores) & looked_at
    complain_by_label(scores, missing, names, labels, times, f"scores must be finite; {remedy}")
    outside = ((scores < low) | (scores > high)) & looked_at
    why = f"outside the support [{low:g}, {high:g}]; rescale the scores, or widen it"
    complain_by_label(scores, outside, names, labels, times, why)


def check_times(dim: str, times: np.ndarray) -> None:
    """Refuse times of all series that go back, stand still or are missing."""
    import pandas as pd

    index = pd.Index(times)
    if index.hasnans:
        raise ValueError(f"{dim}[{int(np.argmax(index.isna()))}] is missing: a score needs a time")
    twice = index.duplicated()
    if twice.any():
        raise ValueError(f"{dim}={written(times[twice.argmax()])} comes twice: leave one out")
    if times.dtype.kind in "iufMm" and not index.is_monotonic_increasing:
        at = int(np.argmax(times[1:] < times[:-1]))
        after, before = written(times[at + 1]), written(times[at])
        raise ValueError(f"{dim}={after} comes after {before}: sort the scores, scores.sortby({dim!r})")


def complain_by_label(
    scores: np.ndarray, bad: np.ndarray, names: Sequence[str], labels: Sequence[Any], times: Any, why: str
) -> None:
    """Refuse the first bad score of a block."""
    if not bad.any():
        return
    index = tuple(int(i) for i in np.argwhere(bad)[0])
    words = [np.asarray(label).reshape(-1)[i] for label, i in zip(labels, index, strict=False)] + [
        times[index if times.ndim > 1 else index[-1]]
    ]
    where = ", ".join(f"{name}={written(word)}" for name, word in zip(names, words, strict=True))
    more = int(np.count_nonzero(bad)) - 1
    others = f" ({more} more in the same block)" if more else ""
    raise ValueError(f"scores at {where} is {scores[index]!s}: {why}{others}")


def written(label: Any) -> str:
    """Write the label of a series or of a time, as short as it is exact."""
    if hasattr(label, "to_datetime64"):
        label = label.to_datetime64()
    if isinstance(label, np.datetime64):
        return str(np.datetime_as_string(label, unit="auto"))
    return repr(label.item() if isinstance(label, np.generic) else label)


METRICS = ("coverage", "loss", "regret", "mean_threshold")


class Job(NamedTuple):
    """What every block is told."""

    learners: list[Any]  # of a sweep, in the order of its product
    shape: tuple[int, ...]  # of the sweep
    levels: np.ndarray  # (A,)
    keep: str
    delay: int | None  # of all series; None: each block brings its own
    size: int  # series of a block; smaller ones are filled up, so that one program serves them all
    wide: bool  # whether JAX has 64 bits where the work was asked for
    masked: bool
    chunked: bool  # then the scheduler keeps the other cores busy
    dtype: np.dtype[Any]  # of thresholds
    names: tuple[str, ...]  # of the dimensions of a block, and of its times
    times: np.ndarray | None  # (T,), or with each block


_seen: dict[str, Job] = {}  # by token, the last few


def replay_chunk(token: str, job: Job, scores: np.ndarray, *rest: np.ndarray) -> tuple[np.ndarray, ...]:
    """
    Replay a chunk, in whatever process; see :func:`replay_block`.

    ``token``: Of the job. A schedule that is a function is compiled for as often as it is made, and every task brings
    its own copy of the job: a process keeps to the first.
    """
    job = _seen.setdefault(token, job)
    for old in list(_seen)[:-16]:
        _seen.pop(old, None)
    return replay_block(job, scores, *rest)


def replay_block(job: Job, scores: np.ndarray, *rest: np.ndarray) -> tuple[np.ndarray, ...]:
    """
    Replay a block by every learner.

    ``*rest``: The mask, if there is one; times of each score, unless the job has them; the delay of each series, unless
    the job has it; labels of each leading axis. Returns: Thresholds, if they are kept; the :data:`METRICS`; and how
    many scores each series had.
    """
    brought = list(rest)
    mask = brought.pop(0) if job.masked else None
    times = brought.pop(0) if job.times is None else job.times
    own, labels = brought.pop(0) if job.delay is None else None, brought
    batch, rounds = scores.shape[:-1], scores.shape[-1]
    check_block(job.learners, scores, mask, job.names, labels, times)
    # What was lost by rounding is lost for thresholds and scores alike, or a score at its threshold would be missed.
    rows = scores.reshape(math.prod(batch), rounds).astype(job.dtype, copy=False)
    missing = None if mask is None else mask.reshape(rows.shape)
    used = slice(len(rows))
    filled, told = (_filled(part, job.size) for part in (rows, missing))
    late: Any = _filled(None if own is None else own.reshape(len(rows), 1), job.size)
    delay = job.delay if late is None else late[:, 0]
    observed = None if missing is None else ~missing
    counts = np.full(len(rows), rounds) if observed is None else observed.sum(axis=-1)
    kept: list[list[np.ndarray]] = []
    with jax.enable_x64(job.wide), on_one_core() if job.chunked else contextlib.nullcontext():
        judged = rows if observed is None else np.where(observed, rows, np.inf)
        (least,) = _by_block(
            lambda own: best_threshold(np, judged[own].astype(float), job.levels[None])[1:],
            len(rows),
            16 * 8 * rounds,  # what is in order, its sums, and so on
        )
        for learner in job.learners:
            thresholds: list[np.ndarray]
            run: Any = replay_batch(learner, filled, job.levels, keep=job.keep, mask=told, delay=delay)
            if job.keep == "all":
                thresholds = [np.asarray(run.thresholds)[used]]
                totals = _totals(thresholds[0], rows, job.levels, observed)
            else:
                parts = run.covered, run.total_loss, run.total_threshold
                thresholds, totals = [], [np.asarray(part)[used] for part in parts]
            kept.append(thresholds + _means(totals, least, counts[:, None]))
    stacked = (np.stack(parts, axis=1) if len(parts) > 1 else parts[0][:, None] for parts in zip(*kept, strict=True))
    return (*(a.reshape(batch + job.shape + a.shape[2:]) for a in stacked), counts.reshape(batch))


def _filled(rows: np.ndarray | None, size: int) -> np.ndarray | None:
    """Repeat the last series until there are as many as in the other chunks."""
    if rows is None or len(rows) in (0, size):
        return rows
    return np.concatenate([rows, np.broadcast_to(rows[-1:], (size - len(rows), rows.shape[-1]))])


def _totals(thresholds: np.ndarray, scores: np.ndarray, levels: np.ndarray, observed: Any) -> list[np.ndarray]:
    def add(own: slice) -> tuple[np.ndarray, ...]:
        found = totals_of(thresholds[own], scores[own], levels, None if observed is None else observed[own])
        return found.covered, found.loss.high, found.threshold.high  # type: ignore[return-value]

    return _by_block(add, len(scores), thresholds[:1].nbytes)


def _by_block(measure: Callable[[slice], tuple[np.ndarray, ...]], count: int, size: int) -> list[np.ndarray]:
    """Measure blocks of series, each of which takes ``size`` bytes, on all cores."""
    blocks = blocks_of_sequences(count, size) or [slice(0)]
    return [np.concatenate(parts) for parts in zip(*in_threads(partial(measure, own) for own in blocks), strict=True)]


def _means(totals: list[np.ndarray], least: np.ndarray, count: np.ndarray) -> list[np.ndarray]:
    """Return the :data:`METRICS`; for a series without a score regret is 0, as a total is, and means are NaN."""
    covered, loss, threshold = totals
    with np.errstate(invalid="ignore", divide="ignore"):
        return [covered / count, loss / count, np.where(count > 0, loss - least, 0), threshold / count]
