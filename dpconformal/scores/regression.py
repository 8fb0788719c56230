"""Scores of real labels, which invert to intervals."""

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from dpconformal.pytree import register
from dpconformal.scores.base import namespace, namespace_of_sets, outermost, read_thresholds, reals, same_shape
from dpconformal.scores.sets import Interval, between
from dpconformal.validation import Numbers, Scalar, check_float, is_traced, raise_at

_PAIR = "one label for each prediction; one series has both of shape (T,), without an axis of length 1"


@register()
@dataclass(frozen=True)
class Absolute:
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

    sides: ClassVar[int] = 1

    def __call__(self, predictions: Numbers, labels: Numbers) -> Any:
        """Score each label."""
        xp = namespace(predictions, labels)
        predictions, labels = reals(xp, predictions=predictions, labels=labels)
        same_shape("labels", labels, predictions.shape, _PAIR)
        return xp.abs(labels - predictions)

    def set(self, predictions: Numbers, thresholds: Numbers) -> Interval:
        """Invert thresholds to intervals."""
        xp = namespace_of_sets(predictions, thresholds)
        (centre,) = reals(xp, predictions=predictions)
        radius = read_thresholds(xp, thresholds, centre.shape, centre.dtype)
        return _interval(xp, centre, centre, radius, radius)

    def bounds(self, predictions: Numbers) -> tuple[float, float]:
        """Return the ends of the half-line."""
        return 0.0, math.inf


@register()
@dataclass(frozen=True)
class Signed:
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

    sides: ClassVar[int] = 2

    def __call__(self, predictions: Numbers, labels: Numbers) -> Any:
        """Score each label, from below and from above."""
        xp = namespace(predictions, labels)
        predictions, labels = reals(xp, predictions=predictions, labels=labels)
        same_shape("labels", labels, predictions.shape, _PAIR)
        return xp.stack([predictions - labels, labels - predictions])

    def set(self, predictions: Numbers, thresholds: Numbers) -> Interval:
        """Invert thresholds to intervals."""
        xp = namespace_of_sets(predictions, thresholds)
        (centre,) = reals(xp, predictions=predictions)
        below, above = read_thresholds(xp, thresholds, (2, *centre.shape), centre.dtype)
        return _interval(xp, centre, centre, below, above)

    def bounds(self, predictions: Numbers) -> tuple[float, float]:
        """Return the ends of the line."""
        return -math.inf, math.inf


@register()
@dataclass(frozen=True)
class Normalized:
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
    sides: ClassVar[int] = 1

    def __post_init__(self) -> None:
        object.__setattr__(self, "offset", check_float("Normalized.offset", self.offset, 0.0))

    def _read(self, xp: Any, predictions: Any) -> tuple[Any, Any]:
        centre, spread = _two(predictions, "ŷ and σ̂")
        unit = spread + self.offset
        if not is_traced(unit):
            raise_at("predictions[..., 1]", spread, unit <= 0, "σ̂ + offset must be above 0")
        return centre, xp.where(unit > 0, unit, xp.nan)

    def __call__(self, predictions: Numbers, labels: Numbers) -> Any:
        """Score each label."""
        xp = namespace(predictions, labels)
        predictions, labels = reals(xp, predictions=predictions, labels=labels)
        centre, unit = self._read(xp, predictions)
        same_shape("labels", labels, centre.shape, _PAIR)
        return xp.abs(labels - centre) / unit

    def set(self, predictions: Numbers, thresholds: Numbers) -> Interval:
        """Invert thresholds to intervals."""
        xp = namespace_of_sets(predictions, thresholds)
        (predictions,) = reals(xp, predictions=predictions)
        centre, unit = self._read(xp, predictions)
        radius = read_thresholds(xp, thresholds, centre.shape, centre.dtype)
        return _interval(xp, centre, centre, radius, radius, unit)

    def bounds(self, predictions: Numbers) -> tuple[float, float]:
        """Return the ends of the half-line."""
        return 0.0, math.inf


@register(static=("symmetric",))
@dataclass(frozen=True)
class CQR:
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

    def __call__(self, predictions: Numbers, labels: Numbers) -> Any:
        """Score each label."""
        xp = namespace(predictions, labels)
        predictions, labels = reals(xp, predictions=predictions, labels=labels)
        low, high = _two(predictions, "the lower and the upper quantile")
        same_shape("labels", labels, low.shape, _PAIR)
        if self.symmetric:
            return xp.maximum(low - labels, labels - high)
        return xp.stack([low - labels, labels - high])

    def set(self, predictions: Numbers, thresholds: Numbers) -> Interval:
        """Invert thresholds to intervals."""
        xp = namespace_of_sets(predictions, thresholds)
        (predictions,) = reals(xp, predictions=predictions)
        low, high = _two(predictions, "the lower and the upper quantile")
        step = read_thresholds(xp, thresholds, low.shape if self.symmetric else (2, *low.shape), low.dtype)
        below, above = (step, step) if self.symmetric else step
        return _interval(xp, low, high, below, above)

    def bounds(self, predictions: Numbers) -> tuple[float, float]:
        """Return the ends of the line."""
        return -math.inf, math.inf


def _interval(xp: Any, low: Any, high: Any, below: Any, above: Any, unit: Any = None) -> Interval:
    """Make the intervals [low - below·unit, high + above·unit]; by NumPy to the last bit, as the scores compare."""
    parts = [low, high] if unit is None else [low, high, unit]
    low, high, *units = (xp.broadcast_to(part[..., None], below.shape).astype(below.dtype) for part in parts)
    scale = units[0] if units else xp.ones((), below.dtype)
    ends = low - below * scale, high + above * scale
    if xp is np:
        bottom, top, width = low.ravel(), high.ravel(), units[0].ravel() if units else np.ones(low.size)
        ends = (
            outermost(lambda y, i: (bottom[i] - y) / width[i], below, ends[0], -1),
            outermost(lambda y, i: (y - top[i]) / width[i], above, ends[1], 1),
        )
    return between(xp, *ends)


def _two(predictions: Any, what: str) -> tuple[Any, Any]:
    if predictions.shape[-1:] != (2,):
        raise ValueError(f"predictions has shape {predictions.shape}: must be (..., 2), {what}")
    return predictions[..., 0], predictions[..., 1]
