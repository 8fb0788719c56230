"""Base models of a live loop, which predict and learn from each label; scikit-learn's estimators as such."""

import copy
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, runtime_checkable

import numpy as np

from dpconformal.validation import as_numbers, check_int

__all__ = ["Estimator", "Model", "from_sklearn"]


@runtime_checkable
class Model(Protocol):
    """
    A base model: any black box with two methods.

    Two more members are used if they exist: ``label(y)`` converts a label before it is scored, for instance to the
    number of its class; ``ready`` is False as long as the model has learned too little to predict.
    """

    def predict(self, x: Any) -> Any:
        """Predict for one input, in the shape that the score needs."""

    def learn(self, x: Any, y: Any) -> Any:
        """Learn from one label; return the model that knows it, or None for a model that changes itself."""


@dataclass(eq=False)
class Estimator:
    """
    A scikit-learn estimator as a base model; made by :func:`from_sklearn`.

    Attributes
    ----------
    estimator : object
        The estimator, which changes as it learns.
    classes : ndarray or None
        Labels in the order of the columns of a mask; None for a regressor.
    """

    estimator: Any
    learning: Literal["frozen", "partial_fit", "refit"]
    classes: np.ndarray | None
    refit_every: int = 1
    window: int | None = None
    _inputs: list[Any] = field(default_factory=list, init=False, repr=False)  # what the next refit is made of
    _labels: list[Any] = field(default_factory=list, init=False, repr=False)
    _seen: int = field(default=0, init=False, repr=False)  # labels since the beginning

    @property
    def ready(self) -> bool:
        """Whether the estimator has been fitted."""
        from sklearn.exceptions import NotFittedError
        from sklearn.utils.validation import check_is_fitted

        try:
            check_is_fitted(self.estimator)
        except NotFittedError:
            return False
        return True

    def predict(self, x: Any) -> Any:
        """Predict for one input: a row of numbers, or a data frame of one row."""
        if self.classes is None:
            return self.estimator.predict(_rows([x]))[0]
        found = self.estimator.predict_proba(_rows([x]))[0]
        known = getattr(self.estimator, "classes_", self.classes)
        p = np.zeros(len(self.classes))  # classes that the last fit has not met have no probability
        p[[int(np.flatnonzero(self.classes == name)[0]) for name in known]] = found
        return p

    def label(self, y: Any) -> Any:
        """Return the number of a class, or a real label as it is."""
        if self.classes is None:
            if not np.all(np.isfinite(as_numbers("y", y))):
                raise ValueError(f"y = {y!r}: must be finite; drop the round or replace it on purpose")
            return y
        place = np.flatnonzero(self.classes == y)
        if not place.size:
            raise ValueError(f"y = {y!r}: the classes are {', '.join(map(str, self.classes))}")
        return int(place[0])

    def learn(self, x: Any, y: Any) -> None:
        """Learn from one label, at once or with the next refit; a fit that fails leaves the label out."""
        if self.learning == "partial_fit":
            first = {} if self.classes is None else {"classes": self.classes}
            self.estimator.partial_fit(_rows([x]), np.asarray([y]), **first)
        elif self.learning == "refit":
            kept = slice(None if self.window is None else -self.window, None)
            # A copy of the input: the caller may use its array again.
            inputs, labels = [*self._inputs, copy.deepcopy(x)][kept], [*self._labels, y][kept]
            if (self._seen + 1) % self.refit_every == 0:
                # On a copy, for a fit that fails leaves an estimator neither old nor new.
                self.estimator = copy.deepcopy(self.estimator).fit(_rows(inputs), np.asarray(labels))
            self._inputs, self._labels, self._seen = inputs, labels, self._seen + 1


def _rows(inputs: list[Any]) -> Any:
    """Stack inputs for scikit-learn: to a frame if they are frames of one row, to an array otherwise."""
    if hasattr(inputs[0], "columns"):
        import pandas as pd

        return pd.concat(inputs, ignore_index=True)
    return np.stack([np.asarray(x) for x in inputs])


def from_sklearn(
    estimator: Any, classes: Any = None, refit_every: int | None = None, window: int | None = None, frozen: bool = False
) -> Estimator:
    """
    Adapt a scikit-learn estimator as the base model of :class:`dpconformal.Online`.

    A classifier predicts by ``predict_proba``, anything else by ``predict``. It learns from each label by
    ``partial_fit``, or by a fit every ``refit_every`` labels.

    Parameters
    ----------
    estimator : object
        Any estimator or pipeline, fitted or, with ``partial_fit``, not.
    classes : array_like, optional
        All classes, in the order of the columns of a mask; by default those that a classifier was fitted with.
    refit_every : int, optional
        Rounds between fits on the labels seen so far in this loop.
    window : int, optional
        Fit on that many of the last labels only.
    frozen : bool
        Whether the estimator never learns.

    Returns
    -------
    Estimator
        The base model.

    Examples
    --------
    >>> from sklearn.linear_model import SGDRegressor
    >>> model = from_sklearn(SGDRegressor())
    >>> model.learn([1.0, 2.0], 3.0)
    >>> model.predict([1.0, 2.0]).shape
    ()
    """
    if isinstance(estimator, type) or not hasattr(estimator, "predict"):
        raise ValueError(f"estimator = {estimator!r}: pass an instance with a predict method")
    classifies = getattr(estimator, "_estimator_type", None) == "classifier" or hasattr(estimator, "classes_")
    if not classifies and hasattr(estimator, "__sklearn_tags__"):
        classifies = estimator.__sklearn_tags__().estimator_type == "classifier"
    if classifies and not hasattr(estimator, "predict_proba"):
        raise ValueError(f"estimator = {estimator!r} has no predict_proba: calibrate it, or choose one that has")
    if refit_every is not None:
        refit_every = check_int("refit_every", refit_every, 1)
        if frozen:
            raise ValueError(f"refit_every = {refit_every}: a frozen estimator does not learn; leave one of them out")
    if window is not None:
        window = check_int("window", window, 1)
        if refit_every is None:
            raise ValueError(f"window = {window}: only a fit on the last labels has one; give refit_every, too")
    learning: Literal["frozen", "partial_fit", "refit"]
    learning = "frozen" if frozen else "partial_fit" if refit_every is None else "refit"
    if learning == "partial_fit" and not hasattr(estimator, "partial_fit"):
        raise ValueError(
            f"estimator = {estimator!r} has no partial_fit: say refit_every=100 to fit it again every 100 labels, "
            "or frozen=True"
        )
    if classifies and classes is None:
        classes = getattr(estimator, "classes_", None)
        if classes is None:
            raise ValueError(
                "classes = None: all classes must be told of a classifier that was not fitted yet, by classes=[…]"
            )
    if not classifies and classes is not None:
        raise ValueError(f"classes = {classes!r}: {type(estimator).__name__} is no classifier; leave them out")
    return Estimator(estimator, learning, None if classes is None else np.asarray(classes), refit_every or 1, window)
