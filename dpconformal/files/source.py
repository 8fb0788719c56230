"""Where scores come from, a block at a time: memory is that of a block, however long the file is."""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np


class Block(NamedTuple):
    """
    Some rows of a file.

    Attributes
    ----------
    row : int
        The first of them, counted from 0.
    scores : ndarray, shape (n,)
        Finite numbers.
    codes : ndarray of int, shape (n,), or None
        Which of ``names`` each belongs to; None for a file of one series.
    names : list of str
        Series of this block, in order of appearance.
    after : int
        Where to read on; see :attr:`Source.blocks`.
    others : dict of str to pyarrow.Array, or None
        The columns beside the scores, if they were asked for.
    """

    row: int
    scores: np.ndarray  # (n,)
    codes: np.ndarray | None  # (n,)
    names: list[str]
    after: int
    others: dict[str, Any] | None = None


class Source(NamedTuple):
    """
    A file of scores that has been opened and understood.

    Attributes
    ----------
    name : str
        What errors call it.
    column : str
        Where in it the scores are, as errors call it.
    place : callable
        Says where a row is: ``"line 1,234"``.
    start : int
        Where the first block begins.
    blocks : callable
        ``(where, row) -> iterator of Block``: reads on from a place that ``start`` or :attr:`Block.after` named, where
        row number ``row`` stands.
    """

    name: str
    column: str
    place: Callable[[int], str]
    start: int
    blocks: Callable[[int, int], Iterator[Block]]

    def __iter__(self) -> Iterator[Block]:  # type: ignore[override]
        """Go through all blocks."""
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
