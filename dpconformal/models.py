"""Base models for a live loop: what predicts, and learns from each label."""

from typing import Any, Protocol, runtime_checkable

import numpy as np

from dpconformal.checks import Numbers, whole

__all__ = ["Estimator", "Model", "from_sklearn"]


@runtime_checkable
class Model(Protocol):
    """
    A base model: any black box with two methods.

    More is used where it is offered: ``label(y)``, what to make of a label before it is scored, such as the number of
    its class; ``ready``, False as long as the model has learned too little to predict.
    """

    def predict(self, x: Any) -> Any:
        """Predict for one input, in the shape that the score needs."""
        ...

    def learn(self, x: Any, y: Any) -> Any:
        """Learn from one label; return the model that knows it, or None for a model that changes itself."""
        ...


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

    def __init__(
        self, estimator: Any, method: str, learning: str, classes: Any, refit_every: int | None, window: int | None
    ) -> None:
        self.estimator, self.method, self.learning = estimator, method, learning
        self._refit_every, self._window = refit_every, window
        self._given = None if classes is None else np.asarray(classes)
        self._inputs: list[Any] = []
        self._labels: list[Any] = []
        self._seen = 0

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

    @property
    def classes(self) -> Any:
        """Labels in the order of the columns of a mask; None for a regressor."""
        return getattr(self.estimator, "classes_", self._given) if self.method == "predict_proba" else None

    def predict(self, x: Numbers) -> Any:
        """Predict for one input."""
        return getattr(self.estimator, self.method)(np.asarray(x)[None])[0]

    def label(self, y: Any) -> Any:
        """Return the number of a class; a real label as it is."""
        if self.classes is None:
            return y
        place = np.flatnonzero(self.classes == y)
        if not place.size:
            raise ValueError(f"y = {y!r}: the estimator knows the classes {', '.join(map(str, self.classes))}")
        return int(place[0])

    def learn(self, x: Numbers, y: Any) -> None:
        """Learn from one label, at once or with the next refit."""
        x = np.asarray(x)
        if self.learning == "partial_fit":
            first = {} if self._given is None else {"classes": self._given}
            self.estimator.partial_fit(x[None], np.asarray([y]), **first)
        elif self.learning == "refit":
            self._inputs.append(x)
            self._labels.append(y)
            if self._window is not None:
                del self._inputs[: -self._window], self._labels[: -self._window]
            self._seen += 1
            if self._seen % (self._refit_every or 1) == 0:
                self.estimator.fit(np.stack(self._inputs), np.asarray(self._labels))


def from_sklearn(
    estimator: Any, classes: Any = None, refit_every: int | None = None, window: int | None = None, frozen: bool = False
) -> Estimator:
    """
    Let a scikit-learn estimator be the base model of :class:`dpconformal.Online`.

    A classifier predicts by ``predict_proba``, anything else by ``predict``. It learns from each label by
    ``partial_fit`` if it can, and otherwise by fitting again now and then.

    Parameters
    ----------
    estimator : object
        Any estimator or pipeline, fitted or, with ``partial_fit``, not.
    classes : array_like, optional
        All classes, which ``partial_fit`` of a classifier must know from the start; by default those of its last fit.
    refit_every : int, optional
        Rounds between fits on the labels seen so far in this loop.
    window : int, optional
        Fit on that many of the last labels only.
    frozen : bool
        Whether it stays as it is.

    Returns
    -------
    Estimator
        The base model.

    Raises
    ------
    ValueError
        If the estimator can neither predict nor learn as asked.

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
        refit_every = whole("refit_every", refit_every, 1)
        if frozen:
            raise ValueError(f"refit_every = {refit_every}: a frozen estimator does not learn; leave one of them out")
    if window is not None:
        window = whole("window", window, 1)
        if refit_every is None:
            raise ValueError(f"window = {window}: only a fit on the last labels has one; give refit_every, too")
    learning = "frozen" if frozen else "partial_fit" if refit_every is None else "refit"
    if learning == "partial_fit" and not hasattr(estimator, "partial_fit"):
        raise ValueError(
            f"estimator = {estimator!r} has no partial_fit: say refit_every=100 to fit it again every 100 labels, "
            "or frozen=True"
        )
    if classifies and classes is None:
        classes = getattr(estimator, "classes_", None)
        if classes is None and learning == "partial_fit":
            raise ValueError("classes = None: a classifier that learns by partial_fit must be told all classes")
    method = "predict_proba" if classifies else "predict"
    return Estimator(estimator, method, learning, classes if classifies else None, refit_every, window)
