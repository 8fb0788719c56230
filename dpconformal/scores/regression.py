"""Scores of real labels, and the intervals that they invert to."""

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from dpconformal.pytree import register
from dpconformal.scores.base import namespace, namespace_of_sets, outermost, read_thresholds, reals, same_shape
from dpconformal.validation import Numbers, Scalar, check_float, is_traced, raise_at


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
        return xp.where(self.empty | (self.low == self.high), 0, self.high - self.low)

    @property
    def size(self) -> Any:
        """Width."""
        return self.width

    def contains(self, labels: Numbers) -> Any:
        """Whether each label lies in its intervals: labels of shape (...), answers of shape (..., A)."""
        (labels,) = reals(namespace(self, labels), labels=labels)
        labels = labels[..., None].astype(self.low.dtype)
        return (self.low <= labels) & (labels <= self.high)


class IntervalScore:
    """
    Distance outside of a predicted interval in some unit: (low - y)/unit from below, (y - high)/unit from above.

    The score is the larger of the two, or both where there are two sides. The sets are intervals whose ends move by the
    threshold times the unit.
    """

    def _ends(self, xp: Any, predictions: Any) -> tuple[Any, Any, Any]:
        """Return the lower end, the upper end, and the unit, or None for 1."""
        return predictions, predictions, None

    @property
    def sides(self) -> int:
        """Streams of scores."""
        return 1

    def __call__(self, predictions: Numbers, labels: Numbers) -> Any:
        """Score each label; from below and from above where there are two sides."""
        xp = namespace(predictions, labels)
        predictions, labels = reals(xp, predictions=predictions, labels=labels)
        low, high, unit = self._ends(xp, predictions)
        why = "one label for each prediction; one series has both of shape (T,), without an axis of length 1"
        same_shape("labels", labels, low.shape, why)
        below, above = low - labels, labels - high
        score = xp.maximum(below, above) if self.sides == 1 else xp.stack([below, above])
        return score if unit is None else score / unit

    def set(self, predictions: Numbers, thresholds: Numbers) -> Interval:
        """Invert thresholds to intervals."""
        xp = namespace_of_sets(predictions, thresholds)
        (predictions,) = reals(xp, predictions=predictions)
        low, high, unit = self._ends(xp, predictions)
        step = read_thresholds(xp, thresholds, low.shape if self.sides == 1 else (2, *low.shape), low.dtype)
        below, above = (step, step) if self.sides == 1 else step
        unit = xp.ones(low.shape, low.dtype) if unit is None else unit
        low, high, unit = (
            xp.broadcast_to(part[..., None], below.shape).astype(below.dtype) for part in (low, high, unit)
        )
        bottom, top = low - below * unit, high + above * unit
        if xp is np:  # to the last bit, as the scores compare
            ends, width = (low.ravel(), high.ravel()), unit.ravel()
            bottom = outermost(lambda y, i: (ends[0][i] - y) / width[i], below, bottom, -1)
            top = outermost(lambda y, i: (y - ends[1][i]) / width[i], above, top, 1)
        there = bottom <= top
        return Interval(xp.where(there, bottom, xp.nan), xp.where(there, top, xp.nan))

    def bounds(self, predictions: Numbers) -> tuple[float, float]:
        """Return the ends of the line."""
        return -math.inf, math.inf


@register()
@dataclass(frozen=True)
class Absolute(IntervalScore):
    """
    Distance to a point prediction, s = abs(y - ŷ). Intervals are ŷ ± r.

    Predictions have the shape (...) of the labels.

    Examples
    --------
    >>> score = Absolute()
    >>> score([10.0, 20.0], [11.0, 17.0])
    array([1., 3.])
    >>> score.set([10.0], [[2.0, 5.0]])
    Interval(low=array([[8., 5.]]), high=array([[12., 15.]]))
    """

    def bounds(self, predictions: Numbers) -> tuple[float, float]:
        """Return the ends of the half-line."""
        return 0.0, math.inf


@register()
@dataclass(frozen=True)
class Signed(IntervalScore):
    """
    Errors to either side of a point prediction, in two streams: ŷ - y below, y - ŷ above.

    Each side has a belief of its own at level (1 + α)/2, so intervals need not be symmetric around the prediction: a
    model that runs low gets a higher upper end only. An interval misses when one of its sides does.

    Predictions have the shape (...) of the labels, scores (2, ...), thresholds (2, ..., A).

    Examples
    --------
    >>> score = Signed()
    >>> score([10.0, 20.0], [11.0, 17.0])
    array([[-1.,  3.],
           [ 1., -3.]])
    >>> score.set([10.0], [[[2.0]], [[5.0]]])
    Interval(low=array([[8.]]), high=array([[15.]]))
    """

    @property
    def sides(self) -> int:
        """Streams of scores."""
        return 2


@register()
@dataclass(frozen=True)
class Normalized(IntervalScore):
    """
    Distance in units of a predicted difficulty, s = abs(y - ŷ)/(σ̂ + offset). Intervals are ŷ ± r·(σ̂ + offset).

    Predictions have the shape (..., 2): ŷ, and σ̂ from a second model or a forecast of volatility.

    Parameters
    ----------
    offset : float
        Added to each σ̂, at least 0: keeps a single overconfident forecast from giving a huge score.

    Examples
    --------
    >>> score = Normalized()
    >>> score([[10.0, 2.0]], [11.0])
    array([0.5])
    >>> score.set([[10.0, 2.0]], [[1.5]])
    Interval(low=array([[7.]]), high=array([[13.]]))
    """

    offset: Scalar = 0.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "offset", check_float("Normalized.offset", self.offset, 0.0))

    def _ends(self, xp: Any, predictions: Any) -> tuple[Any, Any, Any]:
        centre, spread = _two(predictions, "ŷ and σ̂")
        unit = spread + self.offset
        if not is_traced(unit):
            raise_at("predictions[..., 1]", spread, unit <= 0, "σ̂ + offset must be above 0")
        return centre, centre, xp.where(unit > 0, unit, xp.nan)

    def bounds(self, predictions: Numbers) -> tuple[float, float]:
        """Return the ends of the half-line."""
        return 0.0, math.inf


@register(static=("symmetric",))
@dataclass(frozen=True)
class CQR(IntervalScore):
    """
    Distance outside of a predicted interval, s = max(low - y, y - high): conformalised quantile regression.

    Inside the interval it is negative: the distance to the nearer end. Intervals are [low - r, high + r], narrower than
    the predicted ones where r is negative, and empty where nothing is left of them. From Romano, Patterson & Candès
    (2019).

    Predictions have the shape (..., 2): the lower and the upper quantile, from any model.

    Parameters
    ----------
    symmetric : bool
        Whether both ends move by the same threshold. Otherwise each has a stream of scores and a belief of its own, as
        with :class:`Signed`.

    Examples
    --------
    >>> score = CQR()
    >>> score([[8.0, 12.0], [8.0, 12.0]], [13.0, 9.5])
    array([ 1. , -1.5])
    >>> score.set([[8.0, 12.0]], [[0.5]])
    Interval(low=array([[7.5]]), high=array([[12.5]]))
    """

    symmetric: bool = True

    @property
    def sides(self) -> int:
        """Streams of scores."""
        return 1 if self.symmetric else 2

    def _ends(self, xp: Any, predictions: Any) -> tuple[Any, Any, Any]:
        return *_two(predictions, "the lower and the upper quantile"), None


def _two(predictions: Any, what: str) -> tuple[Any, Any]:
    if predictions.shape[-1:] != (2,):
        raise ValueError(f"predictions has shape {predictions.shape}: must be (..., 2), {what}")
    return predictions[..., 0], predictions[..., 1]
