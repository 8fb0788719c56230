"""Errors over records of what was computed from one of them: its blocks are left out, one after the other."""

from typing import Any

import numpy as np
from scipy import special

BLOCKS = 20  # at least, where the record has so many scores


def leave_out_blocks(count: int) -> np.ndarray:
    """
    List what is left of a record without each of its blocks.

    Returns: Positions that are kept, ascending. Blocks are consecutive and equally long; there are 20 to 39 of them, or
    as many as there are numbers. What remains at the end, shorter than a block, is never left out.
    """
    length = max(1, count // BLOCKS)
    starts = np.arange(0, count - length + 1, length)
    kept = np.arange(count - length)
    return kept + length * (kept >= starts[:, None])


def jackknife_error(values: Any, count: int, kept: int) -> Any:
    """
    Estimate the standard error of a statistic over records from its values on one record without each block.

    Returns: Standard errors of the delete-a-group jackknife, times what Student's distribution asks for: few blocks
    tell a standard error roughly, and two of these have the probability of two exact ones. With 20 blocks that is 1.07.
    """
    values = np.where(np.isfinite(values), values, np.nan)
    variance = values.var(axis=-1, ddof=1) * kept**2 / ((count - kept) * count)
    return np.sqrt(variance) * special.stdtrit(values.shape[-1] - 1, special.ndtr(2)) / 2
