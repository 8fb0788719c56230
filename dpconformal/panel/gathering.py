"""Long tables that no memory holds: one look at every row, then the rows of each series brought together by Dask."""

import itertools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from dpconformal.panel.long import Columns, Rows, checked_rows, grouped, labelled, padded

if TYPE_CHECKING:
    import xarray as xr

FAN_IN = 8  # tallies that a task adds up
NUMBERS = 2**20  # scores of a chunk, about: with ten levels 80 MB of thresholds
CHUNKS = 32  # at least, so that there is work for some cores; unless they would be smaller than
SMALLEST = 2**14  # scores


class Tally(NamedTuple):
    """What some rows hold."""

    names: np.ndarray  # (B,), series, ascending
    counts: np.ndarray  # (B,), rows of each
    times: Any  # dtype of the column; None without a row
    scores: Any  # the same


def gathered(
    parts: Sequence[Any], columns: Columns, numbers: int = NUMBERS, lengths: Sequence[int] | None = None
) -> "xr.DataArray":
    """
    Make a panel of a table in parts.

    A part is cut at the borders of chunks. Where files hold whole series, that is one or two cuts; where each file
    holds one day of all series, every chunk takes something from every file.
    """
    import dask
    import dask.array as da

    if lengths is None:
        lengths = dask.compute(*[dask.delayed(len)(part) for part in parts])
    starts = np.cumsum([0, *lengths]).tolist()
    tallies = [
        dask.delayed(count_rows_per_series)(part, columns, start) for part, start in zip(parts, starts, strict=False)
    ]
    tally, *ends = dask.compute(_added_up(tallies), *[dask.delayed(_ends)(one) for one in tallies])
    names, rounds = tally.names, int(tally.counts.max(initial=0))
    if not names.size:
        raise ValueError("the table has no rows")
    size = series_of_a_chunk(len(names), rounds, numbers)
    firsts = names[::size]
    cut = [dask.delayed(_cut)(part, columns, firsts) for part in parts]
    scores, times = [], []
    for number, first in enumerate(firsts):
        own = names[number * size : (number + 1) * size]
        given = [
            one[number] for one, end in zip(cut, ends, strict=True) if end and end[0] <= own[-1] and first <= end[1]
        ]
        both = dask.delayed(_assembled, nout=2)(given, columns, len(own), rounds, tally.scores)
        shape = len(own), rounds
        scores.append(da.from_delayed(both[0], shape, tally.scores))
        times.append(da.from_delayed(both[1], shape, tally.times if tally.times.kind in "Mm" else float))
    return labelled(da.concatenate(scores), da.concatenate(times), names, columns, tally.times)


def series_of_a_chunk(series: int, rounds: int, numbers: int) -> int:
    """Tell how many series go together, from the panel alone: an interrupted run finds the same chunks anywhere."""
    few = max(-(-series // CHUNKS), SMALLEST // max(rounds, 1))
    return max(1, min(few, numbers // max(rounds, 1), series))


def count_rows_per_series(frame: Any, columns: Columns, first: int) -> Tally:
    """Check rows, and count those of each series."""
    rows = checked_rows(frame, columns, first)
    if not len(frame):
        return Tally(np.empty(0, object), np.empty(0, int), None, None)
    names, counts = np.unique(rows.ids, return_counts=True)
    return Tally(names, counts, rows.times.dtype, rows.scores.dtype)


def _ends(tally: Tally) -> tuple[Any, Any] | None:
    return (tally.names[0], tally.names[-1]) if tally.names.size else None


def _added_up(tallies: list[Any]) -> Any:
    import dask

    add = dask.delayed(_sum)
    while True:  # one alone, too: for what is checked there
        tallies = [add(tallies[k : k + FAN_IN]) for k in range(0, len(tallies), FAN_IN)]
        if len(tallies) <= 1:
            return tallies[0] if tallies else Tally(np.empty(0, object), np.empty(0, int), None, None)


def _sum(tallies: list[Tally]) -> Tally:
    import pandas as pd

    some = [tally for tally in tallies if tally.names.size]
    if not some:
        return tallies[0]
    words = [tally.names[0] for tally in some]
    other = [word for word in words if isinstance(word, str) != isinstance(words[0], str)]
    if other:
        raise ValueError(f"series have mixed types, such as {words[0]!r} and {other[0]!r}: convert the column to one")
    kinds = {
        "n" if tally.times.kind in "iuf" else tally.times.kind: word for tally, word in zip(some, words, strict=True)
    }
    if len(kinds) > 1:
        whose = " and ".join(map(repr, kinds.values()))
        raise ValueError(f"times are numbers here and dates there, such as those of series {whose}: choose one")
    total = pd.Series(np.concatenate([t.counts for t in some]), np.concatenate([t.names for t in some]))
    total = total.groupby(level=0).sum().sort_index()
    times, scores = (np.result_type(*(getattr(t, field) for t in some)) for field in ("times", "scores"))
    return Tally(total.index.to_numpy(), total.to_numpy(), times, scores)


def _cut(frame: Any, columns: Columns, firsts: np.ndarray) -> list[Rows]:
    """Part rows by the chunk that they belong to."""
    rows = checked_rows(frame, columns)
    chunk = np.searchsorted(firsts, rows.ids, side="right") - 1
    if (np.diff(chunk) < 0).any():
        order = np.argsort(chunk, kind="stable")
        chunk, rows = chunk[order], Rows(*(column[order] for column in rows))
    borders = np.searchsorted(chunk, np.arange(len(firsts) + 1))
    return [Rows(*(column[a:b] for column in rows)) for a, b in itertools.pairwise(borders)]


def _assembled(pieces: list[Rows], columns: Columns, series: int, rounds: int, dtype: Any) -> Any:
    """Lay out the series of a chunk."""
    rows = Rows(*(np.concatenate(some) for some in zip(*(piece for piece in pieces if piece.ids.size), strict=True)))
    names, codes, rows = grouped(rows, columns)
    counts = np.bincount(codes, minlength=len(names))
    if len(names) != series or counts.max() > rounds:
        raise ValueError(f"the table is not what it was: {series} series were counted, and {len(names)} came")
    scores, times = padded(rows, codes, counts, rounds)
    return scores.astype(dtype, copy=False), times
