"""Scores of vectors, and the balls and ellipsoids that they invert to."""

import math
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np

from dpconformal.pytree import register
from dpconformal.scores.base import namespace, namespace_of_sets, read_thresholds, reals, same_shape
from dpconformal.validation import Numbers, Scalar, check_int, is_traced, raise_at


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
        xp, step = _from_centre(self.centre, labels)
        return xp.linalg.norm(step, self.order, -1)[..., None] <= self.radius

    @property
    def volume(self) -> Any:
        """Volume, shape (..., A)."""
        return _ball_volume(self.radius, self.centre.shape[-1], self.order)

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
    """What distances of vectors share: one stream of scores, from 0."""

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

    def _centre_and_factor(self, xp: Any, predictions: Any) -> tuple[Any, Any]:
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
    if predictions.ndim == 0 or predictions.shape[-1] == 0:
        raise ValueError(f"predictions has shape {predictions.shape}: must be (..., D), vectors")
    return predictions


def _factor(xp: Any, matrix: Any, name: str) -> Any:
    """Factor covariances by Cholesky; a traced one that is not positive definite gives NaN."""
    if not is_traced(matrix):
        given = np.asarray(matrix, float)
        slack = 64 * np.finfo(matrix.dtype).eps * np.abs(given).max(initial=0.0)
        lopsided = np.abs(given - np.swapaxes(given, -1, -2)) > slack
        raise_at(name, given, lopsided, "a covariance is symmetric")
        least = np.linalg.eigvalsh(given)[..., 0]
        raise_at(f"least eigenvalue of {name}", least, least <= 0, "a covariance is positive definite; add a ridge")
    return xp.linalg.cholesky(matrix)
