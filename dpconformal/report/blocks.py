"""The rounds of a run in at most 250 blocks: what one picture can show, and what one window averages over."""

from typing import NamedTuple

import numpy as np

MOST = 250
LEAST_WINDOW = 50  # rounds, below which a coverage says little


class Blocks(NamedTuple):
    """Stretches of equal length that end with the last round; only the first may be shorter."""

    rounds: int  # of the run
    size: int  # rounds of a block
    ends: np.ndarray  # (N,), the last round of each, counted from 1
    window: int  # blocks that a rolling coverage averages over: a tenth of the run, but 50 rounds if there are as many


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
