"""Intervals of labels: the sets of regression."""

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from dpconformal.pytree import register
from dpconformal.scores.base import namespace, reals, same_shape
from dpconformal.validation import Numbers, check_int


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


@register(static=("order",))
@dataclass(frozen=True)
class Ball:
    """
    Balls around predictions. A negative radius is an empty ball.

    Attributes
    ----------
    centre : array, shape (..., D)
        Predictions.
    radius : array, shape (..., A)
        Thresholds.
    order : float
        Of the norm.

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
        xp, labels = _read(self.centre, labels)
        return xp.linalg.norm(labels - self.centre, self.order, -1)[..., None] <= self.radius

    @property
    def volume(self) -> Any:
        """Volume, shape (..., A)."""
        return _unit_ball(self.centre.shape[-1], self.order) * _power(self.radius, self.centre.shape[-1])

    @property
    def size(self) -> Any:
        """Volume."""
        return self.volume


class EllipsoidRegion(NamedTuple):
    """
    Ellipsoids around predictions. A negative radius is an empty one.

    Attributes
    ----------
    centre : array, shape (..., D)
        Predictions.
    factor : array, shape (..., D, D)
        Lower triangular L with L Lᵀ = Σ.
    radius : array, shape (..., A)
        Thresholds.

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
        xp, labels = _read(self.centre, labels)
        step = xp.linalg.solve(self.factor, (labels - self.centre)[..., None])[..., 0]
        return xp.linalg.norm(step, 2, -1)[..., None] <= self.radius

    @property
    def volume(self) -> Any:
        """Volume, shape (..., A)."""
        xp, size = namespace(self.centre), self.centre.shape[-1]
        stretch = xp.prod(xp.diagonal(self.factor, axis1=-2, axis2=-1), axis=-1)
        return _unit_ball(size, 2.0) * stretch[..., None] * _power(self.radius, size)

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


def _read(centre: Any, labels: Numbers) -> tuple[Any, Any]:
    xp = namespace(centre, labels)
    (labels,) = reals(xp, labels=labels)
    same_shape("labels", labels, centre.shape, "one vector for each set")
    return xp, labels.astype(centre.dtype)


def _power(radius: Any, size: int) -> Any:
    return namespace(radius).maximum(radius, 0) ** size


def _unit_ball(size: int, order: float) -> float:
    """Volume of the unit ball of a norm."""
    if math.isinf(order):
        return 2.0**size
    return math.exp(size * (math.log(2) + math.lgamma(1 + 1 / order)) - math.lgamma(1 + size / order))
