"""Scores of a block that are refused, by series and time as the user calls them."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from dpconformal.learner import support_of


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
