"""Scores as they were read: series by name."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from dpconformal.files.source import Block


class Recorded(NamedTuple):
    """Scores of one file."""

    source: str  # the file, as errors call it
    names: list[str]  # series, in order of appearance; one without a name, ``""``, if the file holds just one
    scores: Sequence[np.ndarray]  # (T_k,) each, in the order of the file; in memory, or mapped from a disk

    @property
    def rounds(self) -> int:
        """Length of the longest series."""
        return max(len(series) for series in self.scores)

    @property
    def total(self) -> int:
        """Length of all series together."""
        return sum(len(series) for series in self.scores)


class Names:
    """Series of many blocks under one numbering, in order of appearance."""

    def __init__(self, names: Iterable[str] = ()) -> None:
        self._numbers = {name: k for k, name in enumerate(names)}

    @property
    def all(self) -> list[str]:
        """Names in order."""
        return list(self._numbers)

    def codes(self, block: Block) -> np.ndarray:
        """Return the number of each row's series, and take in series that are new."""
        numbers = [self._numbers.setdefault(name, len(self._numbers)) for name in block.names]
        return np.array(numbers, np.int32)[block.codes]


def gather(source: str, blocks: Iterable[Block]) -> Recorded:
    """Bring the blocks of a file together, in memory."""
    names, scores, codes = Names(), [], []
    for block in blocks:
        scores.append(block.scores)
        if block.codes is not None:
            codes.append(names.codes(block))
    values = np.concatenate(scores)
    if not codes:
        return Recorded(source, [""], [values])
    numbers = np.concatenate(codes)
    order = np.argsort(numbers, kind="stable")
    cuts = np.cumsum(np.bincount(numbers, minlength=len(names.all)))[:-1]
    return Recorded(source, names.all, np.split(values[order], cuts))
