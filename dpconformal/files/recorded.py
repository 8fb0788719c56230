"""Scores as they were read: series by name, each score with its place in the file."""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np


class Recorded(NamedTuple):
    """
    Scores of one file.

    Attributes
    ----------
    source : str
        The file, as errors call it.
    column : str
        Where in it the scores are, as errors call it.
    names : list of str
        Series, in order of appearance; one without a name, ``""``, if the file holds just one.
    scores : list of ndarray, shape (T_k,)
        The scores of each series in the order of the file.
    rows : list of ndarray, shape (T_k,)
        Which row of the data each came from, counted from 0.
    place : callable
        Says where a row is: ``"line 1,234"``.
    """

    source: str
    column: str
    names: list[str]
    scores: list[np.ndarray]  # (T_k,) each
    rows: list[np.ndarray]  # (T_k,) each
    place: Callable[[int], str]

    @property
    def rounds(self) -> int:
        """Length of the longest series."""
        return max(len(series) for series in self.scores)

    def check(self, low: float, high: float, remedy: str) -> None:
        """
        Check that every score lies in a range.

        Parameters
        ----------
        low, high : float
            Ends of the range.
        remedy : str
            What to do about a score that does not.

        Raises
        ------
        ValueError
            Naming file, place, column and value of the first that does not.
        """
        wrong = [np.flatnonzero((series < low) | (series > high)) for series in self.scores]
        found = [(int(self.rows[k][bad[0]]), k, int(bad[0])) for k, bad in enumerate(wrong) if bad.size]
        if found:
            row, k, i = min(found)
            more = sum(bad.size for bad in wrong) - 1
            others = f" ({more:,} more like it)" if more else ""
            if self.scores[k][i] < 0 <= low:
                remedy = "a score says how badly a prediction failed, so of signed errors take the absolute values"
            raise ValueError(
                f"{self.source}, {self.place(row)}, {self.column}: score {self.scores[k][i]:g} lies outside "
                f"[{low:g}, {high:g}]{others}; {remedy}"
            )


def group(keys: Any, scores: np.ndarray) -> tuple[list[str], list[np.ndarray], list[np.ndarray]]:
    """
    Sort scores into series.

    Parameters
    ----------
    keys : sequence or None
        The series of each score; None for one series.
    scores : ndarray, shape (n,)
        Scores in the order of the file.

    Returns
    -------
    tuple
        Names in order of appearance, scores and rows of each.

    Examples
    --------
    >>> group(["b", "a", "b"], np.array([0.1, 0.2, 0.3]))[0]
    ['b', 'a']
    """
    if keys is None:
        return [""], [scores], [np.arange(scores.size)]
    import pandas as pd

    codes, names = pd.factorize(np.asarray(keys, dtype=object))
    order = np.argsort(codes, kind="stable")
    cuts = np.cumsum(np.bincount(codes, minlength=len(names)))[:-1]
    rows = np.split(order, cuts)
    return [str(name) for name in names], [scores[index] for index in rows], rows
