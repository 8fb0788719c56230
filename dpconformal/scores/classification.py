"""
Scores of class labels, and the masks that they invert to.

Predictions are probabilities of shape (..., K), labels whole numbers of shape (...) from 0 to K - 1. The mask for
thresholds of shape (..., A) has the shape (..., A, K). Classes of equal probability are ranked by their number.
"""

from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType
from typing import Any, ClassVar

import jax.numpy as jnp
import numpy as np

from dpconformal.pytree import register
from dpconformal.scores.base import namespace, namespace_of_sets, read_thresholds, reals, same_shape
from dpconformal.validation import Numbers, Scalar, as_numbers, check_float, check_int, is_traced, raise_at


class LabelScore:
    """A score for every class, from which labels are picked and masks are made."""

    sides: ClassVar[int] = 1
    randomized: bool = False
    _scores: ClassVar[Callable[..., Any]]  # of all classes, from namespace, probabilities and noise

    def label_scores(self, predictions: Numbers, noise: Numbers = None) -> Any:
        """Score every class."""
        xp = namespace(predictions, noise)
        (p,) = reals(xp, predictions=predictions)
        if p.ndim == 0 or p.shape[-1] == 0:
            raise ValueError(f"predictions has shape {p.shape}: must be (..., K), the probabilities of K classes")
        if not is_traced(p):
            raise_at("predictions", p, ~((p >= 0) & (p <= 1)), "a probability lies in [0, 1]")
        owner = type(self).__name__
        if self.randomized and noise is None:
            raise ValueError(f"noise is needed by {owner}(randomized=True): pass a uniform number for each prediction")
        if noise is None:
            return self._scores(xp, p, 1.0)
        if not self.randomized:
            raise ValueError(f"noise is given, and this {owner} is not randomized")
        (noise,) = reals(xp, noise=noise)
        same_shape("noise", noise, p.shape[:-1], "one number for each prediction")
        if not is_traced(noise):
            raise_at("noise", noise, ~((noise >= 0) & (noise <= 1)), "must lie in [0, 1]")
        return self._scores(xp, p, noise[..., None])

    def __call__(self, predictions: Numbers, labels: Numbers, noise: Numbers = None) -> Any:
        """Score each label."""
        scores = self.label_scores(predictions, noise)
        classes = scores.shape[-1]
        if not is_traced(labels) and np.asarray(labels).dtype.kind in "USO":
            raise ValueError("labels are names: pass their numbers, such as numpy.searchsorted(model.classes_, labels)")
        labels = as_numbers("labels", labels)
        same_shape("labels", labels, scores.shape[:-1], "one label for each prediction")
        xp = jnp if is_traced(labels) else np
        wrong = (labels < 0) | (labels >= classes) | (labels != xp.floor(labels))
        if is_traced(labels):  # no number of a class, not even a negative one, which would count from the end
            labels = jnp.where(wrong, classes, labels).astype(jnp.int32)
        else:
            raise_at("labels", labels, wrong, f"must be the number of a class, from 0 to {classes - 1}")
            labels = np.asarray(labels).astype(np.int64 if labels.dtype.kind != "i" else labels.dtype)
        if namespace(scores, labels) is np:
            return np.take_along_axis(scores, labels[..., None], -1)[..., 0]
        return jnp.take_along_axis(scores, jnp.asarray(labels)[..., None], -1, mode="fill", fill_value=jnp.nan)[..., 0]

    def set(self, predictions: Numbers, thresholds: Numbers, noise: Numbers = None) -> Any:
        """Invert thresholds to a mask of the classes in each set."""
        return label_mask(self.label_scores(predictions, noise), thresholds)

    def bounds(self, predictions: Numbers) -> tuple[float, float]:
        """Return the ends of the interval that holds every score."""
        return self._range(np.shape(predictions)[-1])

    def _range(self, classes: int) -> tuple[float, float]:
        return 0.0, 1.0


def label_mask(scores: Any, thresholds: Numbers) -> Any:
    """Compare the scores of all classes with thresholds."""
    limits = read_thresholds(namespace_of_sets(scores, thresholds), thresholds, scores.shape[:-1])
    # In the precision of the thresholds, in which past scores were kept: an equal score stays equal.
    return scores[..., None, :].astype(limits.dtype) <= limits[..., None]


@register()
@dataclass(frozen=True)
class LAC(LabelScore):
    """
    Least ambiguous sets, s = 1 - p_y: the smallest sets on average, unequal coverage of easy and hard inputs.

    From Sadinle, Lei & Wasserman (2019).

    Examples
    --------
    >>> LAC()([[0.7, 0.2, 0.1]], [1])
    array([0.8])
    >>> LAC().set([[0.7, 0.2, 0.1]], [[0.5, 0.85]])
    array([[[ True, False, False],
            [ True,  True, False]]])
    """

    def _scores(self, xp: ModuleType, p: Any, u: Any) -> Any:
        return 1 - p


@register(static=("randomized",))
@dataclass(frozen=True)
class APS(LabelScore):
    """
    Adaptive prediction sets: the probability of the classes that are at least as likely as the label.

    Sets grow with the difficulty of the input. From Romano, Sesia & Candès (2020), who randomize: without noise a label
    that is all but certain has a score near 1, as a hopeless one has, so a confident model gets erratic sets.
    Probabilities are divided by their sum, which may be up to 0.001 away from 1.

    Parameters
    ----------
    randomized : bool
        Whether a uniform share of the label's own probability, 1 - ``noise``, is left out: sets are smaller, and may be
        empty.

    Examples
    --------
    >>> APS()([[0.7, 0.2, 0.1]], [1]).round(3)
    array([0.9])
    """

    randomized: bool = False

    def _scores(self, xp: ModuleType, p: Any, u: Any) -> Any:
        return _mass_up_to(xp, p, u)[1]


@register(static=("randomized",))
@dataclass(frozen=True)
class RAPS(LabelScore):
    """
    Regularised adaptive prediction sets: :class:`APS` plus a penalty for each rank beyond the first few.

    Keeps the long tail of unlikely classes out of the sets. From Angelopoulos, Bates, Jordan & Malik (2021).

    Parameters
    ----------
    penalty : float
        Added for each rank beyond ``free``, at least 0.
    free : int
        Ranks without penalty.
    randomized : bool
        As for :class:`APS`.

    Examples
    --------
    >>> RAPS(penalty=0.1)([[0.7, 0.2, 0.1]], [2]).round(3)
    array([1.2])
    """

    penalty: Scalar = 0.01
    free: int = 1
    randomized: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "penalty", check_float("RAPS.penalty", self.penalty, 0.0))
        if not is_traced(self.free):
            object.__setattr__(self, "free", check_int("RAPS.free", self.free, 0))

    def _scores(self, xp: ModuleType, p: Any, u: Any) -> Any:
        rank, mass = _mass_up_to(xp, p, u)
        return mass + self.penalty * xp.maximum(rank - self.free, 0).astype(p.dtype)

    def _range(self, classes: int) -> tuple[float, float]:
        return 0.0, 1.0 + float(self.penalty) * max(classes - self.free, 0)


@register(static=("randomized",))
@dataclass(frozen=True)
class SAPS(LabelScore):
    """
    Sorted adaptive prediction sets: only the largest probability counts, and then the rank.

    s = u·p_max for the most likely class and p_max + (rank - 2 + u)·weight for the others; u is 1, or ``noise``. For
    classifiers whose small probabilities mean little. From Huang, Xi, Zhang, Yao, Qiu & Wei (2024).

    Parameters
    ----------
    weight : float
        Of a rank, above 0.
    randomized : bool
        Whether u is noise.

    Examples
    --------
    >>> SAPS(weight=0.2)([[0.7, 0.2, 0.1]], [2]).round(3)
    array([1.1])
    """

    weight: Scalar = 0.2
    randomized: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "weight", check_float("SAPS.weight", self.weight, 0.0, open_low=True))

    def _scores(self, xp: ModuleType, p: Any, u: Any) -> Any:
        rank, _ = _ranked(xp, p)
        top = xp.max(p, axis=-1, keepdims=True)
        later = top + (rank.astype(p.dtype) - 2 + u) * self.weight
        return xp.where(rank == 1, u * top, later)

    def _range(self, classes: int) -> tuple[float, float]:
        return 0.0, 1.0 + float(self.weight) * max(classes - 1, 0)


@register()
@dataclass(frozen=True)
class Margin(LabelScore):
    """
    How far the label falls behind its strongest rival, s = max over other classes of p - p_y. Between -1 and 1.

    Examples
    --------
    >>> Margin()([[0.7, 0.2, 0.1]], [1]).round(3)
    array([0.5])
    """

    def _scores(self, xp: ModuleType, p: Any, u: Any) -> Any:
        if p.shape[-1] < 2:
            raise ValueError(f"predictions has shape {p.shape}: a margin needs two classes or more")
        rank, _ = _ranked(xp, p)
        first, second = (xp.max(xp.where(rank == k, p, 0), axis=-1, keepdims=True) for k in (1, 2))
        return xp.where(rank == 1, second, first) - p

    def _range(self, classes: int) -> tuple[float, float]:
        return -1.0, 1.0


@register()
@dataclass(frozen=True)
class TopK(LabelScore):
    """
    Rank of the label by its probability, from 1: the set for a threshold r has the floor(r) most likely classes.

    Examples
    --------
    >>> TopK()([[0.7, 0.1, 0.2]], [2])
    array([2.])
    """

    def _scores(self, xp: ModuleType, p: Any, u: Any) -> Any:
        return _ranked(xp, p)[0].astype(p.dtype)

    def _range(self, classes: int) -> tuple[float, float]:
        return 0.0, float(classes)


def _ranked(xp: ModuleType, p: Any) -> tuple[Any, Any]:
    """Rank of each class, from 1, and the mass of the classes up to and with it."""
    order = xp.argsort(-p, axis=-1, stable=True)
    place = xp.argsort(order, axis=-1)
    mass = xp.cumsum(xp.take_along_axis(p, order, -1), axis=-1)
    return place + 1, xp.take_along_axis(mass, place, -1)


def _mass_up_to(xp: ModuleType, p: Any, u: Any) -> tuple[Any, Any]:
    """Rank of each class, and the mass up to it, with a share u of its own; of probabilities divided by their sum."""
    total = xp.sum(p, axis=-1, keepdims=True)
    if not is_traced(p):  # probabilities that were rounded to a few digits sum to nearly 1
        sums = np.asarray(total, float)[..., 0]
        raise_at("predictions.sum(axis=-1)", sums, np.abs(sums - 1) > 1e-3, "probabilities sum to 1; divide by it")
    p = p / total
    rank, mass = _ranked(xp, p)
    return rank, xp.minimum(mass - (1 - u) * p, 1)  # rounding only
