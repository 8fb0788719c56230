"""The variance over records of what was computed from one of them: its blocks are left out, one after the other."""

from typing import Any

import numpy as np

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


def jackknife_variance(values: Any, count: int, kept: int) -> Any:
    """
    Estimate the variance of a statistic over records from its values on one record without each block.

    Parameters
    ----------
    values : ndarray, shape (..., blocks, orders)
        The statistic on each row of :func:`leave_out_blocks`, in one or several random orders of the whole record.
    count : int
        Numbers in the record.
    kept : int
        Numbers that each row has.

    Returns
    -------
    ndarray, shape (...)
        Variances of the mean over all orders. With blocks that fill the record and one order this is the usual
        delete-a-group jackknife, which is exact for a mean of independent numbers. With several, the part of the
        variance between blocks that is due to the few orders is estimated from the interaction of both, and taken off.

    Examples
    --------
    >>> numbers = np.random.default_rng(0).random(100)
    >>> left = numbers[leave_out_blocks(100)].mean(axis=1)
    >>> bool(0.5 < jackknife_variance(left[:, None], 100, 95) / (numbers.var() / 100) < 2)
    True
    """
    values = np.asarray(values, float)
    blocks, orders = values.shape[-2:]
    between = values.mean(axis=-1).var(axis=-1, ddof=1)
    if orders > 1:
        rest = values - values.mean(axis=-1, keepdims=True) - values.mean(axis=-2, keepdims=True)
        rest = rest + values.mean(axis=(-2, -1), keepdims=True)
        noise = (rest**2).sum(axis=(-2, -1)) / ((blocks - 1) * (orders - 1) * orders)
        between = np.maximum(between - noise, 0)
    return between * kept**2 / ((count - kept) * count)
