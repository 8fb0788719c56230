"""Errors that name a series and a time as the user calls them."""

from collections.abc import Sequence
from typing import Any

import numpy as np


def complain_by_label(
    scores: np.ndarray, bad: np.ndarray, names: Sequence[str], labels: Sequence[Any], times: Any, why: str
) -> None:
    """
    Refuse the first bad score of a block.

    Parameters
    ----------
    scores : ndarray, shape (..., T)
        Scores.
    bad : ndarray of bool, shape (..., T)
        Where they are not what they should be.
    names : sequence of str
        Of the axes.
    labels : sequence of ndarray
        Of each leading axis, along that axis of a block.
    times : ndarray, shape (T,)
        Of the last axis.
    why : str
        What is wrong, and what to do.

    Raises
    ------
    ValueError
        Naming series, time and value.
    """
    if not bad.any():
        return
    index = tuple(int(i) for i in np.argwhere(bad)[0])
    words = [np.asarray(label).reshape(-1)[i] for label, i in zip(labels, index, strict=False)] + [times[index[-1]]]
    where = ", ".join(f"{name}={_written(word)}" for name, word in zip(names, words, strict=True))
    more = int(np.count_nonzero(bad)) - 1
    others = f" ({more} more in the same block)" if more else ""
    raise ValueError(f"scores at {where} is {scores[index]!s}: {why}{others}")


def _written(label: Any) -> str:
    if isinstance(label, np.datetime64):
        return str(np.datetime_as_string(label, unit="auto"))
    return repr(label.item() if isinstance(label, np.generic) else label)
