"""Where scores come from, a block at a time: memory is that of a block, however long the file is."""

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
    """A file of scores that has been opened and understood."""

    name: str  # what errors call it
    column: str  # where in it the scores are, as errors call it
    place: Callable[[int], str]  # says where a row is: ``"line 1,234"``
    start: int  # where the first block begins
    # ``(where, row) -> iterator of Block``: reads on from a place that ``start`` or :attr:`Block.after` named, where
    # row number ``row`` stands
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
