"""A score seen through a transform."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from dpconformal.pytree import register
from dpconformal.scores.base import Score, namespace_of_sets
from dpconformal.scores.edges import outermost, widest
from dpconformal.scores.labels import label_mask
from dpconformal.scores.transforms import Transform
from dpconformal.validation import Numbers, as_numbers


@register()
@dataclass(frozen=True)
class Transformed:
    """
    A score moved to another scale by a transform, which is undone on thresholds.

    Parameters
    ----------
    score : Score
        Any score.
    transform : Transform
        :class:`Ratio`, :class:`Log`, :class:`Rank`, or your own.

    Examples
    --------
    >>> from dpconformal.scores import Absolute, Ratio
    >>> score = Transformed(Absolute(), Ratio(2.0))
    >>> score([10.0], [12.0])
    array([0.5])
    >>> score.set([10.0], [[0.5]])
    Interval(low=array([[8.]]), high=array([[12.]]))
    """

    score: Any
    transform: Any

    def __post_init__(self) -> None:
        for name, value, kind in (("score", self.score, Score), ("transform", self.transform, Transform)):
            if not isinstance(value, kind) or isinstance(value, type):
                raise ValueError(f"Transformed.{name} = {value!r}: pass a {name}, such as those of dpconformal.scores")

    @property
    def sides(self) -> int:
        """Streams of scores."""
        return self.score.sides

    @property
    def randomized(self) -> bool:
        """Whether the score needs noise."""
        return getattr(self.score, "randomized", False)

    def __call__(self, predictions: Any, labels: Numbers, **noise: Any) -> Any:
        """Score each label."""
        return self.transform(self.score(predictions, labels, **noise))

    def set(self, predictions: Any, thresholds: Numbers, **noise: Any) -> Any:
        """Invert thresholds to sets."""
        if hasattr(self.score, "label_scores"):  # scores of classes are compared as they are, without rounding
            scores = self.transform(self.score.label_scores(predictions, **noise))
            return label_mask(scores, thresholds)
        return self.score.set(predictions, self._undone(predictions, thresholds), **noise)

    def _undone(self, predictions: Any, thresholds: Numbers) -> Any:
        """Find the largest score whose transform is at most each threshold; by NumPy to the last bit."""
        if namespace_of_sets(predictions, thresholds) is not np:
            return self.transform.undo(thresholds)
        array = as_numbers("thresholds", thresholds)
        limits = widest(array if array.dtype.kind == "f" else np.asarray(array, float))
        return outermost(lambda s, _: self.transform.values(np, s), limits, self.transform.undo(limits), 1)

    def bounds(self, predictions: Any) -> tuple[float, float]:
        """Return the ends of the interval that holds every transformed score."""
        return self.transform.image(*self.score.bounds(predictions))
