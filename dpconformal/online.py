"""A live loop: ask for sets, then tell the label; the belief learns from every one, and so may the base model."""

import copy
import threading
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from dpconformal.conformal import check_score, side_levels
from dpconformal.learner import Learner
from dpconformal.models import Model
from dpconformal.scores import Score
from dpconformal.validation import Numbers


class Online:
    """
    Confidence sets in a live loop.

    In each round :meth:`predict_set` answers any levels, as often as asked, and :meth:`update` tells the label. Nothing
    but labels changes anything: a set is made from the past alone. A round whose label never comes is one without
    :meth:`update`: it leaves no trace, like a masked round of :func:`dpconformal.replay`. A label that comes late is
    told late, with the prediction that its set was made from: keep predictions, and leave the model to its own loop.

    Threads may share the object: a lock makes them take turns, and no label is lost. What a thread is told depends on
    the labels that others told before. With a base model, let one thread do all of a round, or keep predictions: where
    two threads ask about different inputs before either tells its label, the first prediction is made anew.

    Parameters
    ----------
    learner : Learner
        Any method. Its support must hold every score.
    score : Score
        From :mod:`dpconformal.scores`.
    model : Model, optional
        Base model with ``predict`` and ``learn``; see :func:`dpconformal.models.from_sklearn`. None: what is passed as
        x is the prediction itself.
    state : tuple of State, optional
        Where to carry on: ``online.state`` of another loop.

    Attributes
    ----------
    state : tuple of State
        What the learner knows, a state for each side of the score.
    model : Model or None
        The base model as it is now.
    rounds : int
        Labels that were scored in this loop.

    Examples
    --------
    >>> import dpconformal as dpc
    >>> live = Online(dpc.Exact(dpc.priors.Uniform(0, 10)), dpc.scores.Absolute())
    >>> for prediction, label in [(20.0, 21.0), (20.5, 20.0), (20.2, 20.9)]:
    ...     sets = live.predict_set(prediction, levels=[0.5, 0.9])
    ...     score = live.update(prediction, label)
    >>> live.rounds, bool(sets.contains(20.9)[1])
    (3, True)
    """

    def __init__(self, learner: Learner, score: Score, model: Model | None = None, state: Any = None) -> None:
        check_score(score)
        if not isinstance(learner, Learner) or isinstance(learner, type):
            raise ValueError(f"learner = {learner!r}: pass a learner such as dpconformal.Exact()")
        if model is not None and (not isinstance(model, Model) or isinstance(model, type)):
            raise ValueError(f"model = {model!r}: needs predict and learn; see dpconformal.models.from_sklearn")
        fresh = tuple(learner.init() for _ in range(score.sides))
        if state is not None:
            kinds = [jax.tree.structure(one) for one in (state, fresh)]
            if kinds[0] != kinds[1]:  # type: ignore[operator]
                raise ValueError(
                    f"state is a {type(state).__name__}: pass a tuple with a {type(fresh[0]).__name__} for each of the "
                    f"{score.sides} sides of the score, such as online.state or (run.state,)"
                )
            fresh = state
        self.learner, self.score, self.model, self.state = learner, score, model, fresh
        self.rounds = 0
        self._last: tuple[Any, Any] | None = None  # an input and its prediction, until the model learns
        self._lock = threading.RLock()  # an update reads the state, and writes it later

    def __getstate__(self) -> dict[str, Any]:
        with self._lock:  # all of the same moment
            return {name: value for name, value in vars(self).items() if name != "_lock"}

    def __setstate__(self, values: dict[str, Any]) -> None:
        vars(self).update(values, _lock=threading.RLock())  # a copy has a lock of its own

    def predict(self, x: Any) -> Any:
        """
        Ask the base model.

        Parameters
        ----------
        x : object
            Input of the round.

        Returns
        -------
        object
            Its prediction; x itself where there is no model. Asked twice in a round for the same input, it answers from
            memory, so that a label is scored against the prediction that its set was made from.
        """
        if self.model is None:
            return x
        if not getattr(self.model, "ready", True):
            raise ValueError("model has learned too little to predict: call update first, or fit it")
        with self._lock:
            if self._last is None or not _same(self._last[0], x):
                self._last = (copy.deepcopy(x), self.model.predict(x))  # the caller may use its array again
            return self._last[1]

    def thresholds(self, levels: Numbers, context: Any = None) -> Any:
        """
        Ask the learner for thresholds alone.

        Parameters
        ----------
        levels : array_like, shape (A,)
            Confidence levels of sets.
        context : array_like, optional
            For learners that take it.

        Returns
        -------
        Array, shape (A,)
            Thresholds; (2, A) for a score with two sides.
        """
        asked = np.asarray(side_levels(self.score, levels, self.learner))
        if asked.ndim != 1 or not asked.size:
            raise ValueError(f"levels has shape {asked.shape}: pass (A,), such as [0.9]")
        extra = {} if context is None else {"context": context}
        found = [self.learner.quantile(state, asked, **extra) for state in self.state]
        return found[0] if self.score.sides == 1 else jnp.stack(found)

    def predict_set(self, x: Any, levels: Numbers, context: Any = None, noise: Numbers = None) -> Any:
        """
        Make the confidence set of each level.

        Parameters
        ----------
        x : object
            Input of the round; or the prediction, where there is no model.
        levels : array_like, shape (A,)
            Confidence levels in [0, 1], other ones every round if you like.
        context : array_like, optional
            For learners that take it.
        noise : float, optional
            A uniform number, for a score that is randomized; the same for :meth:`update`.

        Returns
        -------
        Interval, array of bool, Ball or EllipsoidRegion
            Sets, of shape (A,); a mask of shape (A, K).
        """
        extra = {} if noise is None else {"noise": noise}
        with self._lock:  # the prediction and the thresholds are of the same moment
            return self.score.set(self.predict(x), self.thresholds(levels, context), **extra)

    def update(self, x: Any, y: Any, context: Any = None, noise: Numbers = None) -> Any:
        """
        Tell the label: the learner observes its score, then the base model learns from it.

        Parameters
        ----------
        x : object
            Input of the round; or the prediction, where there is no model.
        y : object
            Its label.
        context, noise
            As for :meth:`predict_set`.

        Returns
        -------
        array
            The score; None if the model could not predict yet, and only learned.

        Raises
        ------
        ValueError
            For a label or score that is refused. The learner's state has not changed then, nor has it if the model
            fails to learn.
        """
        with self._lock:
            return self._update(x, y, context, noise)

    def _update(self, x: Any, y: Any, context: Any, noise: Numbers) -> Any:
        """Learn from a label, while no other thread does."""
        score, state = None, self.state
        named = getattr(self.model, "label", None)
        label = y if named is None else named(y)
        if getattr(self.model, "ready", True):
            extra = {} if noise is None else {"noise": noise}
            score = self.score(self.predict(x), label, **extra)
            told = {} if context is None else {"context": context}
            sides = [score] if self.score.sides == 1 else list(score)
            state = tuple(self.learner.observe(one, side, **told) for one, side in zip(state, sides, strict=True))
        if self.model is not None:
            learned = self.model.learn(x, y)
            self.model = self.model if learned is None else learned
        self.state, self._last = state, None
        self.rounds += score is not None
        return score


def _same(first: Any, second: Any) -> bool:
    """Whether two inputs are equal; of what cannot be compared, no."""
    try:
        one, two = np.asarray(first), np.asarray(second)
        return bool(first == second) if one.dtype == object else np.array_equal(one, two)
    except (TypeError, ValueError):
        return False
