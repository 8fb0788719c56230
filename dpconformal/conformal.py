"""Confidence sets from predictions and labels: over a recorded stream, and in a live loop."""

import copy
import threading
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from dpconformal.engine.states import checked_delay, leading_axes, spread_rounds
from dpconformal.learner import Learner, State, check_levels
from dpconformal.metrics import covered
from dpconformal.models import Model
from dpconformal.replay import Replay, replay_batch
from dpconformal.rounds import checked_mask
from dpconformal.scores import Score
from dpconformal.validation import Numbers, as_levels, as_numbers, check_not_column, check_time_index, is_traced


class Conformal(NamedTuple):
    """
    Results of :func:`conformalize`: sets of a recorded stream.

    Attributes
    ----------
    sets : Interval, array of bool, Ball or EllipsoidRegion
        Row t was computed from prediction t and the rounds before it.
    run : Replay
        Of the scores, for metrics, certificates and diagnostics. Of a score with two sides a batch of two runs, at the
        levels (1 + α)/2.
    levels : array, shape (A,) or (T, A)
        As they were asked for.
    score : Score
        The nonconformity score.
    """

    sets: Any
    run: Replay
    levels: np.ndarray
    score: Score

    @property
    def thresholds(self) -> Any:
        """Thresholds, shape (..., T, A); (2, ..., T, A) for a score with two sides."""
        return self.run.thresholds

    @property
    def covered(self) -> Any:
        """Whether each label is in its sets, shape (..., T, A); of the rounds whose label is not missing."""
        found = covered(self.run)
        return found.all(axis=0) if self.score.sides == 2 else found

    @property
    def coverage(self) -> Any:
        """Share of rounds in which the label is in its set, shape (..., A)."""
        if self.run.mask is None:
            return self.covered.mean(axis=-2)
        # Over the rounds of each sequence whose label is not missing; the others have NaN for a score.
        hits: Any = np.asarray(self.run.scores, float)[..., None] <= np.asarray(self.run.thresholds, float)
        count: Any = np.count_nonzero(~np.asarray(self.run.mask), axis=-1)
        if self.score.sides == 2:
            hits, count = hits.all(axis=0), count[0]
        with np.errstate(invalid="ignore"):  # no label at all: NaN
            return hits.sum(axis=-2) / np.asarray(count)[..., None]

    @property
    def size(self) -> Any:
        """Width, number of labels or volume of each set, shape (..., T, A)."""
        return self.sets.size if hasattr(self.sets, "contains") else self.sets.sum(axis=-1)


def conformalize(
    learner: Learner,
    score: Score,
    predictions: Any,
    labels: Numbers,
    levels: Numbers,
    state: State = None,
    context: Any = None,
    noise: Numbers = None,
    mask: Any = None,
    delay: Any = 0,
) -> Conformal:
    """
    Turn recorded predictions into confidence sets: in each round a set for every level, then the label is seen.

    Parameters
    ----------
    learner : Learner
        Any method. Its support must hold every score: see ``score.bounds(predictions)``.
    score : Score
        From :mod:`dpconformal.scores`.
    predictions : array_like, shape (T, ...) or (..., T, ...)
        Of any model, made before the label of their round was known; each score says what shape it needs.
    labels : array_like, shape (T,) or (..., T)
        What came true; vectors have one more axis. Column vectors, and times that go back or repeat, are refused.
    levels : array_like, shape (A,) or (T, A)
        Confidence levels in [0, 1], the same every round or one row a round.
    state : State, optional
        Where to carry on, from an earlier ``run.state``.
    context : array_like, optional
        For learners that take it, as in :func:`dpconformal.replay`.
    noise : array_like, shape (..., T), optional
        Uniform numbers, for scores that are randomized.
    mask : array_like of bool, shape (T,) or (..., T), optional
        True for rounds whose label is missing: they have sets, and nothing is observed. Their ``labels`` are ignored.
    delay : int or array_like of int
        How many rounds late each label becomes known, as in :func:`dpconformal.replay`. An array broadcasts against the
        leading axes of the labels: a horizon for each series, or one series at many delays.

    Returns
    -------
    Conformal
        Sets, thresholds, coverage and the run itself.

    Examples
    --------
    >>> import numpy as np, dpconformal as dpc
    >>> rng = np.random.default_rng(0)
    >>> labels = rng.normal(20, 1, 500)
    >>> learner = dpc.Exact(dpc.priors.Uniform(0, 10))
    >>> result = conformalize(learner, dpc.scores.Absolute(), np.full(500, 20.0), labels, levels=[0.5, 0.9])
    >>> result.sets.low.shape, result.coverage.round(2)
    ((500, 2), array([0.51, 0.95]))
    """
    check_score(score)
    delay = checked_delay(delay)
    extra, given_mask = _if_given(noise=noise), mask
    if mask is None:
        scores = score(predictions, labels, **extra)
    else:
        scores, mask = _scores_and_mask(score, predictions, labels, mask, extra)
    rounds = np.shape(scores)[score.sides - 1 :]
    if not rounds:
        raise ValueError("labels has shape (): pass a sequence, or use dpconformal.Online for a live loop")
    if state is None:
        check_not_column("labels", rounds, "conformalize", delay)
    # Predictions are an array, or a tuple of arrays.
    several = isinstance(predictions, (tuple, list)) and any(hasattr(part, "shape") for part in predictions)
    parts = (
        {f"predictions[{k}]": part for k, part in enumerate(predictions)} if several else {"predictions": predictions}
    )
    for name, given in {**parts, "labels": labels}.items():
        check_time_index(name, given, len(rounds) - 1)
    for name, given in {"mask": given_mask, "noise": noise}.items():
        check_time_index(name, given)
    batch = leading_axes(delay, rounds[:-1])
    if score.sides == 2 and len(batch) >= len(rounds):  # axes of the delays come after that of the sides
        new = (2, *(1,) * (len(batch) - len(rounds) + 1), *rounds)
        scores, mask = (None if part is None else part.reshape(new) for part in (scores, mask))
    asked = side_levels(score, levels, learner)
    run: Any = replay_batch(learner, scores, asked, state, context=context, mask=mask, delay=delay)
    if batch != rounds[:-1]:
        predictions, extra = (_repeat_for_delays(part, rounds, batch) for part in (predictions, extra))
    sets = score.set(predictions, run.thresholds, **extra)
    return Conformal(sets, run, np.asarray(as_numbers("levels", levels), float), score)


def _repeat_for_delays(values: Any, rounds: tuple[int, ...], batch: tuple[int, ...]) -> Any:
    """Repeat for every delay the arrays of a tree that begin with the axes of the rounds."""

    def is_array(value: Any) -> bool:
        try:
            return np.shape(value)[: len(rounds)] == rounds
        except ValueError:  # a pair of arrays that have unequal shapes
            return False

    arrays = jax.tree.map(
        lambda leaf: leaf if isinstance(leaf, jax.Array) else np.asarray(leaf), values, is_leaf=is_array
    )
    return spread_rounds(arrays, len(rounds) - 1, batch)


def _scores_and_mask(score: Score, predictions: Any, labels: Any, mask: Any, extra: dict[str, Any]) -> tuple[Any, Any]:
    """Score the labels that are not missing; labels that are vectors have an axis that the mask has not."""
    values = labels if isinstance(labels, jax.Array) else np.asarray(labels)
    errors = []
    for shape in (values.shape, values.shape[:-1]):
        try:
            missing = checked_mask(mask, shape)
            scores = score(predictions, _fill_missing(values, missing), **extra)
        except ValueError as error:
            errors.append(error)
            continue
        if np.shape(scores)[score.sides - 1 :] == shape:
            return scores, missing if score.sides == 1 else jnp.broadcast_to(missing, np.shape(scores))
    raise errors[0]


def _fill_missing(values: Any, missing: Any) -> Any:
    """Put a label that is known in the place of those that are missing, for a score refuses NaN. It is not used."""
    where = missing.reshape(missing.shape + (1,) * (values.ndim - missing.ndim))
    if is_traced(values, missing):
        return jnp.where(where, jnp.zeros((), values.dtype), values)
    known = np.asarray(values)[~missing]
    filled = np.where(where, known[0] if len(known) else np.zeros((), values.dtype), np.asarray(values))
    return jnp.asarray(filled) if isinstance(values, jax.Array) else filled


def _if_given(**arguments: Any) -> dict[str, Any]:
    """Keep the arguments that are not None: scores and learners that have no use for them do not take them."""
    return {name: value for name, value in arguments.items() if value is not None}


def check_score(score: Any) -> None:
    """Check that a score is one."""
    if not isinstance(score, Score) or isinstance(score, type):
        hint = "an instance, with brackets" if isinstance(score, type) else "one, such as dpconformal.scores.Absolute()"
        raise ValueError(f"score = {score!r}: pass {hint}")


def side_levels(score: Score, levels: Numbers, learner: Any = None) -> Any:
    """Find the level that each stream of scores is asked for: (1 + α)/2 leaves half of the misses to each of two."""
    as_levels(levels)  # checks them, as the user wrote them
    levels = as_numbers("levels", levels)
    if score.sides == 1:
        return levels
    asked = (1 + levels) / 2
    check_levels(learner, asked, f": {type(score).__name__} has two sides, and asks each for the level (1 + level)/2")
    return asked


class Online:
    """
    Confidence sets in a live loop.

    In each round :meth:`predict_set` answers any levels, as often as asked, and :meth:`update` takes the label. Only
    labels change the state, so a set is made from the past alone. If a label never comes, leave out :meth:`update`:
    that is a masked round of :func:`dpconformal.replay`. If it comes late, call :meth:`update` late, with the
    prediction that its set was made from: keep predictions, and leave the model to its own loop.

    Threads may share the object: a lock makes them take turns, and no label is lost. With a base model, let one thread
    do all of a round, or keep predictions: where two threads ask about different inputs before either gives its label,
    the first prediction is made anew.

    Parameters
    ----------
    learner : Learner
        Any method. Its support must hold every score.
    score : Score
        From :mod:`dpconformal.scores`.
    model : Model, optional
        Base model, such as that of :func:`dpconformal.models.from_sklearn`. None: x is the prediction itself.
    state : tuple of State, optional
        Where to carry on: ``online.state`` of another loop.

    Attributes
    ----------
    state : tuple of State
        State of the learner for each side of the score.
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
        state = fresh if state is None else state
        if jax.tree.structure(state) != jax.tree.structure(fresh):  # type: ignore[operator]
            raise ValueError(
                f"state is a {type(state).__name__}: pass a tuple with a {type(fresh[0]).__name__} for each of the "
                f"{score.sides} sides of the score, such as online.state or (run.state,)"
            )
        self.learner, self.score, self.model, self.state = learner, score, model, state
        self.rounds = 0
        self._last: tuple[Any, Any] | None = None  # an input and its prediction, until the model learns
        self._lock = threading.RLock()  # an update reads the state, and writes it later

    def __getstate__(self) -> dict[str, Any]:
        with self._lock:  # values of the same moment
            return {name: value for name, value in vars(self).items() if name != "_lock"}

    def __setstate__(self, values: dict[str, Any]) -> None:
        vars(self).update(values, _lock=threading.RLock())  # a copy has a lock of its own

    def predict(self, x: Any) -> Any:
        """
        Predict for the input of a round with the base model; return the input itself where there is none.

        A second call in a round with the same input answers from memory, so that a label is scored against the
        prediction that its set was made from.
        """
        if self.model is None:
            return x
        if not getattr(self.model, "ready", True):
            raise ValueError("model has learned too little to predict: call update first, or fit it")
        with self._lock:
            if self._last is None or not _is_same_input(self._last[0], x):
                self._last = (copy.deepcopy(x), self.model.predict(x))  # the caller may use its array again
            return self._last[1]

    def thresholds(self, levels: Numbers, context: Any = None) -> Any:
        """Find the thresholds of :meth:`predict_set`, shape (A,); (2, A) for a score with two sides."""
        asked = np.asarray(side_levels(self.score, levels, self.learner))
        if asked.ndim != 1 or not asked.size:
            raise ValueError(f"levels has shape {asked.shape}: pass (A,), such as [0.9]")
        found = [self.learner.quantile(state, asked, **_if_given(context=context)) for state in self.state]
        return found[0] if self.score.sides == 1 else jnp.stack(found)

    def predict_set(self, x: Any, levels: Numbers, context: Any = None, noise: Numbers = None) -> Any:
        """
        Make the confidence set of each level.

        Parameters
        ----------
        x : object
            Input of the round; or the prediction, where there is no model.
        levels : array_like, shape (A,)
            Confidence levels in [0, 1]; they may change every round.
        context : array_like, optional
            For learners that take it.
        noise : float, optional
            A uniform number, for a score that is randomized; the same for :meth:`update`.

        Returns
        -------
        Interval, array of bool, Ball or EllipsoidRegion
            Sets, of shape (A,); a mask of shape (A, K).
        """
        with self._lock:  # the prediction and the thresholds are of the same moment
            return self.score.set(self.predict(x), self.thresholds(levels, context), **_if_given(noise=noise))

    def update(self, x: Any, y: Any, context: Any = None, noise: Numbers = None) -> Any:
        """
        Learn from a label: the learner observes its score, then the base model learns.

        Parameters
        ----------
        x, context, noise
            As for :meth:`predict_set`.
        y : object
            The label.

        Returns
        -------
        array
            The score; None if the model could not predict yet, and only learned.

        Raises
        ------
        ValueError
            For a label or score that is refused. The learner's state has not changed then; nor has it if the model
            fails to learn.
        """
        with self._lock:
            score, state = None, self.state
            convert = getattr(self.model, "label", None)
            label = y if convert is None else convert(y)
            if getattr(self.model, "ready", True):
                score = self.score(self.predict(x), label, **_if_given(noise=noise))
                given = _if_given(context=context)
                sides = [score] if self.score.sides == 1 else list(score)
                state = tuple(self.learner.observe(one, side, **given) for one, side in zip(state, sides, strict=True))
            if self.model is not None:
                learned = self.model.learn(x, y)
                self.model = self.model if learned is None else learned
            self.state, self._last = state, None
            self.rounds += score is not None
            return score


def _is_same_input(first: Any, second: Any) -> bool:
    """Whether two inputs are equal; of what cannot be compared, no."""
    try:
        one, two = np.asarray(first), np.asarray(second)
        return bool(first == second) if one.dtype == object else np.array_equal(one, two)
    except (TypeError, ValueError):
        return False
