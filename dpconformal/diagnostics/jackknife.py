"""Errors over records of what was computed from one of them: its blocks are left out, one after the other."""

from typing import Any

import numpy as np
from scipy import special

BLOCKS = 20  # at least, where the record has so many scores


def leave_out_blocks(count: int) -> np.ndarray:
    """
    List what is left of a record without each of its blocks.

    Parameters
    ----------
    count : int
        Numbers in the record, at least two.

    Returns
    -------
    ndarray of int, shape (blocks, kept)
        Positions that are kept, ascending. Blocks are consecutive and equally long; there are 20 to 39 of them, or as
        many as there are numbers. What remains at the end, shorter than a block, is never left out.

    Examples
    --------
    >>> leave_out_blocks(3)
    array([[1, 2],
           [0, 2],
           [0, 1]])
    >>> leave_out_blocks(415).shape
    (20, 395)
    """
    length = max(1, count // BLOCKS)
    starts = np.arange(0, count - length + 1, length)
    kept = np.arange(count - length)
    return kept + length * (kept >= starts[:, None])


def jackknife_error(values: Any, count: int, kept: int) -> Any:
    """
    Estimate the standard error of a statistic over records from its values on one record without each block.

    Parameters
    ----------
    values : ndarray, shape (..., blocks)
        The statistic on each row of :func:`leave_out_blocks`; NaN and infinities make NaN.
    count : int
        Numbers in the record.
    kept : int
        Numbers that each row has.

    Returns
    -------
    ndarray, shape (...)
        Standard errors of the delete-a-group jackknife, times what Student's distribution asks for: few blocks tell a
        standard error roughly, and two of these have the probability of two exact ones. With 20 blocks that is 1.07.

    Examples
    --------
    >>> numbers = np.random.default_rng(0).random(100)
    >>> error = jackknife_error(numbers[leave_out_blocks(100)].mean(axis=1), 100, 95)
    >>> bool(0.7 < error / (numbers.std() / 10) < 1.4)
    True
    """
    values = np.where(np.isfinite(values), values, np.nan)
    variance = values.var(axis=-1, ddof=1) * kept**2 / ((count - kept) * count)
    return np.sqrt(variance) * special.stdtrit(values.shape[-1] - 1, special.ndtr(2)) / 2
