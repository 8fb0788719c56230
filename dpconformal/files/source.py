"""A source of scores, read in blocks, and the choice of its columns."""

import difflib
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np


class Block(NamedTuple):
    """Some rows of a file."""

    row: int  # the first of them, counted from 0
    scores: np.ndarray  # (n,), finite numbers
    codes: np.ndarray | None  # (n,), which of ``names`` each belongs to; None for a file of one series
    names: list[str]  # series of this block, in order of appearance
    after: int  # where to read on; see :attr:`Source.blocks`
    others: dict[str, Any] | None = None  # the columns beside the scores, if they were asked for


class Source(NamedTuple):
    """An open file of scores."""

    name: str  # what errors call it
    column: str  # where in it the scores are, as errors call it
    place: Callable[[int], str]  # says where a row is: ``"line 1,234"``
    start: int  # where the first block begins
    # ``(where, row) -> iterator of Block``: reads on from a place that ``start`` or :attr:`Block.after` named, where
    # row number ``row`` stands
    blocks: Callable[[int, int], Iterator[Block]]

    def __iter__(self) -> Iterator[Block]:  # type: ignore[override]
        """Iterate over all blocks."""
        return self.blocks(self.start, 0)

    def check_range(self, block: Block, low: float, high: float, remedy: str) -> None:
        """Check that every score of a block lies in a range."""
        if low <= block.scores.min(initial=high) and block.scores.max(initial=low) <= high:
            return
        outside = np.flatnonzero((block.scores < low) | (block.scores > high))
        value = block.scores[outside[0]]
        others = f" ({outside.size - 1:,} more like it)" if outside.size > 1 else ""
        if value < 0 <= low:
            remedy = "a score says how badly a prediction failed, so of signed errors take the absolute values"
        raise ValueError(
            f"{self.name}, {self.place(block.row + int(outside[0]))}, {self.column}: score {value:g} lies outside "
            f"[{low:g}, {high:g}]{others}; {remedy}"
        )


_LISTED = 20  # columns in an error
_COMPARED = 1000  # columns up to which a similar name is looked for, which takes a while


def choose_columns(source: str, names: list[str], column: str | None, batch: str | None) -> tuple[str, str | None]:
    """Return the column of the scores, and that of the series or None."""
    series = None if batch is None else _named(source, names, batch, "--batch")
    score = _scores(source, names, batch) if column is None else _named(source, names, column, "--column")
    if score == series:
        raise ValueError(f"--batch {batch} is the column of the scores: name another, or leave it out")
    return score, series


def _scores(source: str, names: list[str], batch: str | None) -> str:
    others = [name for name in names if name != batch]
    if not others:
        raise ValueError(f"--batch {batch} is the only column of {source}: the scores need one of their own")
    called = [name for name in others if name.strip().lower() in ("score", "scores")]
    for candidates in (others, called):
        if len(candidates) == 1:
            return candidates[0]
    raise ValueError(f"{source} has the columns {_listed(names)}: say which holds the scores with --column NAME")


def _named(source: str, names: list[str], wanted: str, option: str) -> str:
    if wanted in names:
        return wanted
    close = difflib.get_close_matches(wanted, names, 1) if len(names) <= _COMPARED else []
    hint = f"did you mean {close[0]}?" if close else f"it has {_listed(names)}"
    raise ValueError(f"{option} {wanted}: {source} has no such column; {hint}")


def _listed(names: list[str]) -> str:
    """List the first columns."""
    more = f" and {len(names) - _LISTED:,} more" if len(names) > _LISTED else ""
    return ", ".join(names[:_LISTED]) + more


def check_finite(source: str, column: str, values: np.ndarray, place: Callable[[int], str], row: int = 0) -> None:
    """Refuse scores that are not finite."""
    bad = np.flatnonzero(~np.isfinite(values))
    if bad.size:
        more = f" ({bad.size - 1:,} more like it)" if bad.size > 1 else ""
        raise ValueError(
            f"{source}, {place(row + int(bad[0]))}, {column}: {values[bad[0]]} is no score{more}; "
            "drop the round or fill it in on purpose"
        )


def row_place(row: int) -> str:
    """Name a row of a file without lines."""
    return f"row {row + 1:,}"


def arrow() -> Any:
    """Import Arrow, which reads and writes tables."""
    try:
        import pyarrow
        import pyarrow.csv
        import pyarrow.parquet
    except ImportError as error:
        raise ImportError("tables of scores need pyarrow: pip install '.[cli]' in a clone of dpconformal") from error
    return pyarrow
