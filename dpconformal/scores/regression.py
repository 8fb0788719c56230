"""
Scores of real labels and of vectors, and the sets that they invert to: intervals, balls and ellipsoids.

First intervals and the distances outside of them, with :class:`Absolute`, :class:`Signed`, :class:`Normalized` and
:class:`CQR`; then vectors, with :class:`Norm` and :class:`Ellipsoid`.
"""

import math
from dataclasses import dataclass
from types import ModuleType
from typing import Any, ClassVar, NamedTuple

import numpy as np

from dpconformal.pytree import register
from dpconformal.scores.base import namespace, namespace_of_sets, outermost, read_thresholds, reals, same_shape
from dpconformal.validation import Numbers, Scalar, check_float, check_int, is_traced, raise_at


class Interval(NamedTuple):
    """
    Intervals [low, high], one for each prediction and level: two arrays of shape (..., A).

    Ends are infinite where a threshold is. An empty interval has NaN for both ends.

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

    _lowest: ClassVar[float] = -math.inf

    def _ends(self, xp: ModuleType, predictions: Any) -> tuple[Any, Any, Any]:
        """Return the lower end, the upper end, and the unit."""
        return predictions, predictions, 1.0

    @property
    def sides(self) -> int:
        """Streams of scores."""
        return 1

    def bounds(self, predictions: Numbers) -> tuple[float, float]:
        """Return the ends of the interval that holds every score."""
        return self._lowest, math.inf

    def __call__(self, predictions: Numbers, labels: Numbers) -> Any:
        """Score each label; from below and from above where there are two sides."""
        xp = namespace(predictions, labels)
        predictions, labels = reals(xp, predictions=predictions, labels=labels)
        low, high, unit = self._ends(xp, predictions)
        why = "one label for each prediction; one series has both of shape (T,), without an axis of length 1"
        same_shape("labels", labels, low.shape, why)
        below, above = low - labels, labels - high
        return (xp.maximum(below, above) if self.sides == 1 else xp.stack([below, above])) / unit

    def set(self, predictions: Numbers, thresholds: Numbers) -> Interval:
        """Invert thresholds to intervals."""
        xp = namespace_of_sets(predictions, thresholds)
        (predictions,) = reals(xp, predictions=predictions)
        low, high, unit = self._ends(xp, predictions)
        step = read_thresholds(xp, thresholds, low.shape if self.sides == 1 else (2, *low.shape), low.dtype)
        below, above = (step, step) if self.sides == 1 else step
        parts = (xp.asarray(part)[..., None] for part in (low, high, unit))
        low, high, unit = (xp.broadcast_to(part, below.shape).astype(below.dtype) for part in parts)
        bottom, top = low - below * unit, high + above * unit
        if xp is np:  # to the last bit, as the scores compare
            ends, width = (low.ravel(), high.ravel()), unit.ravel()
            bottom = outermost(lambda y, i: (ends[0][i] - y) / width[i], below, bottom, -1)
            top = outermost(lambda y, i: (y - ends[1][i]) / width[i], above, top, 1)
        there = bottom <= top
        return Interval(xp.where(there, bottom, xp.nan), xp.where(there, top, xp.nan))


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

    _lowest: ClassVar[float] = 0.0


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

    sides: ClassVar[int] = 2


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
    _lowest: ClassVar[float] = 0.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "offset", check_float("Normalized.offset", self.offset, 0.0))

    def _ends(self, xp: ModuleType, predictions: Any) -> tuple[Any, Any, Any]:
        centre, spread = _two(predictions, "ŷ and σ̂")
        unit = spread + self.offset
        if not is_traced(unit):
            raise_at("predictions[..., 1]", spread, unit <= 0, "σ̂ + offset must be above 0")
        return centre, centre, xp.where(unit > 0, unit, xp.nan)


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

    def _ends(self, xp: ModuleType, predictions: Any) -> tuple[Any, Any, Any]:
        return *_two(predictions, "the lower and the upper quantile"), 1.0


def _two(predictions: Any, what: str) -> tuple[Any, Any]:
    """Split predictions of shape (..., 2)."""
    if predictions.shape[-1:] != (2,):
        raise ValueError(f"predictions has shape {predictions.shape}: must be (..., 2), {what}")
    return predictions[..., 0], predictions[..., 1]


@register(static=("order",))
@dataclass(frozen=True)
class Ball:
    """
    Balls, whose ``centre`` (..., D) is the prediction and ``radius`` (..., A) the threshold.

    They are those of the norm of an ``order``. A negative radius is an empty ball.

    Examples
    --------
    >>> ball = Ball(np.zeros((1, 2)), np.array([[1.0, 2.0]]), 2.0)
    >>> ball.contains([[0.0, 1.5]]), ball.volume.round(3)
    (array([[False,  True]]), array([[ 3.142, 12.566]]))
    """

    centre: Any  # (..., D)
    radius: Any  # (..., A)
    order: float

    def contains(self, labels: Numbers) -> Any:
        """Whether each label lies in its balls: labels of shape (..., D), answers of shape (..., A)."""
        xp, step = _from_centre(self.centre, labels)
        return xp.linalg.norm(step, self.order, -1)[..., None] <= self.radius

    @property
    def volume(self) -> Any:
        """Volume, shape (..., A)."""
        return _ball_volume(self.radius, self.centre.shape[-1], self.order)

    size = volume  # the name that sets of every kind have


class EllipsoidRegion(NamedTuple):
    """
    Ellipsoids, whose ``centre`` (..., D) is the prediction and ``radius`` (..., A) the threshold.

    ``factor`` (..., D, D) is the lower triangular L with L Lᵀ = Σ. A negative radius is an empty ellipsoid.

    Examples
    --------
    >>> region = EllipsoidRegion(np.zeros((1, 2)), np.array([[[2.0, 0.0], [0.0, 1.0]]]), np.array([[1.0]]))
    >>> region.contains([[1.9, 0.0]]), region.contains([[0.0, 1.9]])
    (array([[ True]]), array([[False]]))
    """

    centre: Any  # (..., D)
    factor: Any  # (..., D, D)
    radius: Any  # (..., A)

    def contains(self, labels: Numbers) -> Any:
        """Whether each label lies in its ellipsoids: labels of shape (..., D), answers of shape (..., A)."""
        xp, step = _from_centre(self.centre, labels)
        step = xp.linalg.solve(self.factor, step[..., None])[..., 0]
        return xp.linalg.norm(step, 2, -1)[..., None] <= self.radius

    @property
    def volume(self) -> Any:
        """Volume, shape (..., A)."""
        xp = namespace(self.centre)
        stretch = xp.prod(xp.diagonal(self.factor, axis1=-2, axis2=-1), axis=-1)
        return stretch[..., None] * _ball_volume(self.radius, self.centre.shape[-1], 2.0)

    @property
    def size(self) -> Any:
        """Volume."""
        return self.volume

    def boundary(self, points: int = 100) -> Any:
        """Trace the boundary in the plane, shape (..., A, points, 2), for a picture."""
        if self.centre.shape[-1] != 2:
            raise ValueError(f"centre has shape {self.centre.shape}: a boundary can be traced in the plane, D = 2")
        angle = np.linspace(0, 2 * math.pi, check_int("points", points, 3))
        circle = namespace(self.centre).asarray(np.stack([np.cos(angle), np.sin(angle)]), self.centre.dtype)
        path = (self.factor @ circle).swapaxes(-1, -2)  # (..., points, 2)
        return self.centre[..., None, None, :] + self.radius[..., None, None] * path[..., None, :, :]


class _VectorScore:
    """A distance of vectors: one stream of scores, from 0."""

    sides: ClassVar[int] = 1

    def bounds(self, predictions: Any) -> tuple[float, float]:
        """Return the ends of the half-line."""
        return 0.0, math.inf


@register(static=("order",))
@dataclass(frozen=True)
class Norm(_VectorScore):
    """
    Distance of a vector to its prediction. Sets are balls of that distance.

    Predictions and labels have the shape (..., D).

    Parameters
    ----------
    order : float
        Of the norm: 2, Euclidean; 1, the sum of the errors; ``numpy.inf``, the largest, whose balls are cubes; or any
        number from 1.

    Examples
    --------
    >>> Norm()([[0.0, 0.0]], [[3.0, 4.0]])
    array([5.])
    >>> Norm(1).set([[0.0, 0.0]], [[2.0]]).volume
    array([[8.]])
    """

    order: Scalar = 2.0

    def __post_init__(self) -> None:
        if not (isinstance(self.order, (int, float)) and self.order >= 1) or 1e300 < self.order < float("inf"):
            raise ValueError(f"Norm.order = {self.order!r}: must be a number from 1, or numpy.inf")
        object.__setattr__(self, "order", float(self.order))

    def __call__(self, predictions: Numbers, labels: Numbers) -> Any:
        """Score each label."""
        xp = namespace(predictions, labels)
        predictions, labels = reals(xp, predictions=predictions, labels=labels)
        same_shape("labels", labels, _vectors(predictions).shape, "one vector for each prediction")
        return xp.linalg.norm(labels - predictions, self.order, -1)

    def set(self, predictions: Numbers, thresholds: Numbers) -> Ball:
        """Invert thresholds to balls."""
        xp = namespace_of_sets(predictions, thresholds)
        (centre,) = reals(xp, predictions=predictions)
        radius = read_thresholds(xp, thresholds, _vectors(centre).shape[:-1], centre.dtype)
        return Ball(centre.astype(radius.dtype), radius, self.order)


@register()
@dataclass(frozen=True)
class Ellipsoid(_VectorScore):
    """
    Distance of Mahalanobis, s = √((y - ŷ)ᵀ Σ⁻¹ (y - ŷ)). Sets are ellipsoids.

    Labels have the shape (..., D).

    Parameters
    ----------
    covariance : array_like, shape (D, D), optional
        Σ, of the errors of a held-out sample for instance; predictions then have the shape (..., D). None: each
        prediction brings its own, and predictions are a pair of means (..., D) and covariances (..., D, D).

    Examples
    --------
    >>> Ellipsoid([[4.0, 0.0], [0.0, 1.0]])([[0.0, 0.0]], [[2.0, 1.0]]).round(4)
    array([1.4142])
    """

    covariance: Any = None

    def __post_init__(self) -> None:
        if self.covariance is None or is_traced(self.covariance):
            return
        (matrix,) = reals(np, covariance=self.covariance)
        if matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1]:
            raise ValueError(f"Ellipsoid.covariance has shape {matrix.shape}: must be (D, D)")
        _factor(np, matrix, "Ellipsoid.covariance")
        object.__setattr__(self, "covariance", matrix)

    def _centre_and_factor(self, xp: ModuleType, predictions: Any) -> tuple[Any, Any]:
        if self.covariance is not None:
            centre, matrix = reals(xp, predictions=predictions, covariance=self.covariance)
            size = matrix.shape[-1]
            same_shape("predictions", centre, (*centre.shape[:-1], size), f"as the covariance is {matrix.shape}")
            return centre, xp.broadcast_to(_factor(xp, matrix, "Ellipsoid.covariance"), (*centre.shape, size))
        if not (isinstance(predictions, (tuple, list)) and len(predictions) == 2):
            raise ValueError("predictions must be a pair of means and covariances, for Ellipsoid has none")
        centre, matrix = reals(xp, **{"predictions[0]": predictions[0], "predictions[1]": predictions[1]})
        same_shape("predictions[1]", matrix, (*_vectors(centre).shape, centre.shape[-1]), "a matrix for each mean")
        return centre, _factor(xp, matrix, "predictions[1]")

    def __call__(self, predictions: Any, labels: Numbers) -> Any:
        """Score each label."""
        xp = namespace(predictions, labels, self.covariance if is_traced(self.covariance) else None)
        centre, factor = self._centre_and_factor(xp, predictions)
        (labels,) = reals(xp, labels=labels)
        same_shape("labels", labels, centre.shape, "one vector for each prediction")
        step = (labels.astype(centre.dtype) - centre)[..., None]
        return xp.linalg.norm(xp.linalg.solve(factor, step)[..., 0], 2, -1)

    def set(self, predictions: Any, thresholds: Numbers) -> EllipsoidRegion:
        """Invert thresholds to ellipsoids."""
        xp = namespace_of_sets((predictions, self.covariance if is_traced(self.covariance) else None), thresholds)
        centre, factor = self._centre_and_factor(xp, predictions)
        radius = read_thresholds(xp, thresholds, centre.shape[:-1], centre.dtype)
        return EllipsoidRegion(centre.astype(radius.dtype), factor.astype(radius.dtype), radius)


def _from_centre(centre: Any, labels: Numbers) -> tuple[Any, Any]:
    """Choose who computes, and subtract the centres of sets from labels."""
    xp = namespace(centre, labels)
    (labels,) = reals(xp, labels=labels)
    same_shape("labels", labels, centre.shape, "one vector for each set")
    return xp, labels.astype(centre.dtype) - centre


def _ball_volume(radius: Any, size: int, order: float) -> Any:
    """Compute the volume of balls of a norm in ``size`` dimensions."""
    unit = 2.0**size
    if not math.isinf(order):
        unit = math.exp(size * (math.log(2) + math.lgamma(1 + 1 / order)) - math.lgamma(1 + size / order))
    return unit * namespace(radius).maximum(radius, 0) ** size


def _vectors(predictions: Any) -> Any:
    """Check that predictions are vectors."""
    if predictions.ndim == 0 or predictions.shape[-1] == 0:
        raise ValueError(f"predictions has shape {predictions.shape}: must be (..., D), vectors")
    return predictions


def _factor(xp: ModuleType, matrix: Any, name: str) -> Any:
    """Factor covariances by Cholesky; a traced one that is not positive definite gives NaN."""
    if not is_traced(matrix):
        given = np.asarray(matrix, float)
        slack = 64 * np.finfo(matrix.dtype).eps * np.abs(given).max(initial=0.0)
        lopsided = np.abs(given - np.swapaxes(given, -1, -2)) > slack
        raise_at(name, given, lopsided, "a covariance is symmetric")
        least = np.linalg.eigvalsh(given)[..., 0]
        raise_at(f"least eigenvalue of {name}", least, least <= 0, "a covariance is positive definite; add a ridge")
    return xp.linalg.cholesky(matrix)
