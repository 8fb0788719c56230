"""The rounds of a run in at most 250 blocks: what one picture can show, and what one window averages over."""

from typing import NamedTuple

import numpy as np

MOST = 250
LEAST_WINDOW = 50  # rounds, below which a coverage says little


class Blocks(NamedTuple):
    """
    Stretches of equal length that end with the last round; only the first may be shorter.

    Attributes
    ----------
    rounds : int
        Of the run.
    size : int
        Rounds of a block.
    ends : ndarray of int, shape (N,)
        The last round of each, counted from 1.
    window : int
        Blocks that a rolling coverage averages over: a tenth of the run, but 50 rounds if there are as many.
    """

    rounds: int
    size: int
    ends: np.ndarray  # (N,)
    window: int


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
