"""Intervals of labels: the sets of regression."""

from typing import Any, NamedTuple

from dpconformal.scores.base import namespace, reals
from dpconformal.validation import Numbers


class Interval(NamedTuple):
    """
    Intervals [low, high], one for each prediction and level. An empty one has NaN for both ends.

    Attributes
    ----------
    low, high : array, shape (..., A)
        Ends; infinite where a threshold is.

    Examples
    --------
    >>> import numpy as np
    >>> sets = Interval(np.array([1.0, 0.0]), np.array([2.0, 4.0]))
    >>> sets.contains(3.0), sets.width
    (array([False,  True]), array([1., 4.]))
    """

    low: Any  # (..., A)
    high: Any  # (..., A)

    @property
    def empty(self) -> Any:
        """Whether no label is inside, shape (..., A)."""
        return self.low != self.low

    @property
    def width(self) -> Any:
        """Length, shape (..., A); 0 for an empty interval."""
        xp = namespace(self)
        return xp.where(self.empty, 0, xp.where(self.low == self.high, 0, self.high - self.low))

    @property
    def size(self) -> Any:
        """Width."""
        return self.width

    def contains(self, labels: Numbers) -> Any:
        """Whether each label lies in its intervals: labels of shape (...), answers of shape (..., A)."""
        xp = namespace(self, labels)
        (labels,) = reals(xp, labels=labels)
        labels = labels[..., None].astype(self.low.dtype)
        return (self.low <= labels) & (labels <= self.high)


def between(xp: Any, low: Any, high: Any) -> Interval:
    """Make intervals, and those whose ends are out of order empty."""
    fine = low <= high
    return Interval(xp.where(fine, low, xp.nan), xp.where(fine, high, xp.nan))
