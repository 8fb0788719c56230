"""
Increasing transforms of scores, undone on thresholds: for scores whose range is not known.

An increasing transform changes neither which label is covered nor the order of thresholds. What it changes is the scale
on which a learner measures loss: regret bounds then speak of transformed scores.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType
from typing import Any, ClassVar, Protocol, runtime_checkable

import jax.numpy as jnp
import numpy as np

from dpconformal.pytree import register
from dpconformal.scores.base import Score, namespace, namespace_of_sets, outermost, reals, widest
from dpconformal.scores.classification import label_mask
from dpconformal.validation import Numbers, Scalar, as_numbers, check_float, is_traced, raise_at


@runtime_checkable
class Transform(Protocol):
    """An increasing function and its inverse."""

    def __call__(self, scores: Numbers) -> Any:
        """Transform scores."""

    def values(self, xp: ModuleType, s: Any) -> Any:
        """Transform numbers that were not checked, by NumPy or JAX; NaN where the function is not defined."""

    def undo(self, thresholds: Numbers) -> Any:
        """Return thresholds to the scale of the scores."""

    def image(self, low: float, high: float) -> tuple[float, float]:
        """Return the ends between which scores from an interval are moved."""


class _Increasing:
    """Checks of scores; a transform to the unit interval, unless ``image`` says otherwise."""

    domain: ClassVar[str] = ""  # what to say of scores outside of it
    values: ClassVar[Callable[..., Any]]

    def __call__(self, scores: Numbers) -> Any:
        """Transform scores."""
        xp = namespace(scores, getattr(self, "reference", None))
        (s,) = reals(xp, scores=scores)
        found = self.values(xp, s)
        if not is_traced(found):
            raise_at("scores", s, np.isnan(found), self.domain)
        return found

    def image(self, low: float, high: float) -> tuple[float, float]:
        """Return the ends between which scores from an interval are moved."""
        return 0.0, 1.0


@register()
@dataclass(frozen=True)
class Ratio(_Increasing):
    """
    Squeeze [0, ∞) into [0, 1) by s/(scale + s).

    Parameters
    ----------
    scale : float
        The score that is moved to 1/2, above 0: best a typical one.

    Examples
    --------
    >>> Ratio(2.0)([0.0, 2.0, 6.0])
    array([0.  , 0.5 , 0.75])
    >>> Ratio(2.0).undo([0.5, 1.0])
    array([ 2., inf])
    """

    scale: Scalar = 1.0
    domain: ClassVar[str] = "s/(scale + s) is for scores from 0; see Rank for any"

    def __post_init__(self) -> None:
        object.__setattr__(self, "scale", check_float("Ratio.scale", self.scale, 0.0, open_low=True))

    def values(self, xp: ModuleType, s: Any) -> Any:
        """Transform numbers that were not checked; NaN below 0."""
        return xp.where(s >= 0, _rising(xp, s, self.scale), xp.nan)

    def undo(self, thresholds: Numbers) -> Any:
        """Return thresholds to the scale of the scores."""
        xp, r = _thresholds(thresholds)
        has_score = (r < 1) & xp.isfinite(r)
        inside = xp.where(has_score, r, 0)
        return xp.where(has_score, self.scale * inside / (1 - inside), xp.where(r >= 1, math.inf, r))  # -∞, NaN stay


@register()
@dataclass(frozen=True)
class Log(_Increasing):
    """
    Take logarithms, log(offset + s): for scores over many orders of magnitude.

    Parameters
    ----------
    offset : float
        From 0. With 0 scores must be above 0, and the image is the whole line; with an offset scores may be 0.

    Examples
    --------
    >>> Log(1.0)([0.0, 9.0]).round(4)
    array([0.    , 2.3026])
    """

    offset: Scalar = 0.0
    domain: ClassVar[str] = "a logarithm needs offset + score above 0; raise Log.offset"

    def __post_init__(self) -> None:
        object.__setattr__(self, "offset", check_float("Log.offset", self.offset, 0.0))

    def values(self, xp: ModuleType, s: Any) -> Any:
        """Transform numbers that were not checked; NaN where there is no logarithm."""
        shifted = s + self.offset
        return xp.log(xp.where(shifted > 0, shifted, xp.nan))

    def undo(self, thresholds: Numbers) -> Any:
        """Return thresholds to the scale of the scores."""
        xp, r = _thresholds(thresholds)
        with np.errstate(over="ignore"):
            return xp.exp(r) - self.offset

    def image(self, low: float, high: float) -> tuple[float, float]:
        """Return the logarithms of the ends."""
        with np.errstate(divide="ignore"):
            ends = np.log(np.maximum(np.array([low, high]) + float(self.offset), 0))
        return float(ends[0]), float(ends[1])


@register()
@dataclass(frozen=True)
class Rank(_Increasing):
    """
    Replace a score by its place among reference scores, between 0 and 1.

    The share of the reference below it: linear between neighbours, and beyond the ends of the reference by a tail that
    never ends, so that every score has a place and every place below 1 a score. If new scores are distributed as the
    reference, their ranks are near uniform, for which a uniform prior is just right.

    Parameters
    ----------
    reference : array_like, shape (n,)
        Scores of a held-out sample or of last year, any number and order.

    Examples
    --------
    >>> rank = Rank([1.0, 2.0, 4.0])
    >>> rank([1.0, 3.0, 4.0])
    array([0.25 , 0.625, 0.75 ])
    >>> rank.undo([0.25, 0.625, 1.0])
    array([ 1.,  3., inf])
    """

    reference: Any

    def __post_init__(self) -> None:
        if is_traced(self.reference):
            return
        (values,) = reals(np, **{"Rank.reference": self.reference})
        if values.ndim != 1 or not values.size:
            raise ValueError(f"Rank.reference has shape {values.shape}: must be (n,), with n ≥ 1")
        object.__setattr__(self, "reference", np.sort(values))

    def _knots(self, xp: ModuleType, dtype: Any) -> tuple[Any, Any, Any]:
        """Return the reference scores, their places, and how far the tails reach."""
        values = xp.asarray(self.reference, dtype)
        places = xp.searchsorted(values, values, side="right").astype(dtype) / (values.size + 1)
        spread = (values[-1] - values[0]) / values.size
        return values, places, xp.where(spread > 0, spread, xp.maximum(xp.abs(values[0]), 1))

    def values(self, xp: ModuleType, s: Any) -> Any:
        """Transform numbers that were not checked."""
        values, places, reach = self._knots(xp, s.dtype)
        first, last = places[0], places[-1]
        below, above = xp.maximum(values[0] - s, 0), xp.maximum(s - values[-1], 0)
        right = xp.clip(xp.searchsorted(values, s), 1, max(values.size - 1, 1)) if values.size > 1 else 0
        left = right - 1 if values.size > 1 else 0
        gap = xp.where(values[right] > values[left], values[right] - values[left], 1)
        inside = places[left] + (s - values[left]) / gap * (places[right] - places[left])
        inside = xp.where(s >= values[right], places[right], xp.minimum(inside, places[right]))  # never falls
        lower = xp.minimum(first * (reach / (reach + below)), first)
        upper = last + (1 - last) * _rising(xp, above, reach)
        return xp.where(below > 0, lower, xp.where(above > 0, upper, inside))

    def undo(self, thresholds: Numbers) -> Any:
        """Return thresholds to the scale of the scores."""
        xp, r = _thresholds(thresholds, self.reference)
        values, places, reach = self._knots(xp, r.dtype)
        first, last = places[0], places[-1]
        inside = xp.interp(r.ravel(), places, values).reshape(r.shape)
        small = xp.where((r > 0) & (r < first), r, first)
        lower = xp.where(r > 0, values[0] - reach * (first / small - 1), -math.inf)
        share = xp.where((r > last) & (r < 1), (r - last) / (1 - last), 0)
        upper = xp.where(r < 1, values[-1] + reach * share / (1 - share), math.inf)
        found = xp.where(r < first, lower, xp.where(r > last, upper, inside))
        return xp.where(xp.isnan(r), r, found)


def _rising(xp: ModuleType, s: Any, scale: Any) -> Any:
    """Compute s/(scale + s) for s ≥ 0 as 1/(1 + scale/s), which does not fall anywhere, not even by rounding."""
    positive = xp.where(s > 0, s, 1)
    with np.errstate(over="ignore"):
        return xp.where(s > 0, 1 / (1 + scale / positive), xp.where(s == 0, 0, xp.nan))


def _thresholds(thresholds: Numbers, *also: Any) -> tuple[Any, Any]:
    """Choose who computes, and read thresholds of any shape."""
    xp = namespace(thresholds, *also)
    array = as_numbers("thresholds", thresholds)
    return xp, array.astype(float) if xp is np else jnp.asarray(array)


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

    score: Any  # a Score, and a Transform: the constructor says so of anything else
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
            return label_mask(self.transform(self.score.label_scores(predictions, **noise)), thresholds)
        if namespace_of_sets(predictions, thresholds) is np:
            # The largest score whose transform is at most the threshold, to the last bit.
            limits = widest(thresholds)
            undone = outermost(lambda s, _: self.transform.values(np, s), limits, self.transform.undo(limits), 1)
        else:
            undone = self.transform.undo(thresholds)
        return self.score.set(predictions, undone, **noise)

    def bounds(self, predictions: Any) -> tuple[float, float]:
        """Return the ends of the interval that holds every transformed score."""
        return self.transform.image(*self.score.bounds(predictions))
