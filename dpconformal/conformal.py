"""From predictions and labels to confidence sets: the paper's protocol over a recorded stream."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from dpconformal.engine.feedback import checked_delay, leading_axes, spread_rounds
from dpconformal.learner import Learner, State, check_levels
from dpconformal.metrics import covered
from dpconformal.replay import Replay, replay_batch
from dpconformal.rounds import checked_mask
from dpconformal.scores import Score
from dpconformal.validation import Numbers, as_levels, as_numbers, check_not_column, check_time_index, is_traced


class Conformal(NamedTuple):
    """
    What :func:`conformalize` made of a recorded stream.

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
        What was measured.
    """

    sets: Any
    run: Replay
    levels: Any  # (A,) or (T, A)
    score: Any

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
        return _coverage(self)

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
        What came true; vectors have one more axis. As in :func:`dpconformal.replay` times that go back or repeat and
        column vectors are refused.
    levels : array_like, shape (A,) or (T, A)
        Confidence levels in [0, 1], the same every round or one row a round.
    state : State, optional
        Where to carry on, from an earlier ``run.state``.
    context : array_like, optional
        For learners that take it, as in :func:`dpconformal.replay`.
    noise : array_like, shape (..., T), optional
        Uniform numbers, for scores that are randomized.
    mask : array_like of bool, shape (T,) or (..., T), optional
        True for rounds whose label is missing: they have sets, and then nothing is observed, as in
        :func:`dpconformal.replay`. What stands in ``labels`` there is not looked at.
    delay : int or array_like of int
        How many rounds late each label becomes known, as in :func:`dpconformal.replay`. An array broadcasts against the
        leading axes of the labels: a horizon for each series, or one series at many delays.

    Returns
    -------
    Conformal
        Sets, thresholds, coverage and the run itself.

    Raises
    ------
    ValueError
        Naming the argument, the index and the value, before anything runs.

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
    extra, told = {} if noise is None else {"noise": noise}, mask
    if mask is None:
        scores = score(predictions, labels, **extra)
    else:
        scores, mask = _scores_and_mask(score, predictions, labels, mask, extra)
    rounds = np.shape(scores)[score.sides - 1 :]
    if not rounds:
        raise ValueError("labels has shape (): pass a sequence, or use dpconformal.Online for a live loop")
    if state is None:
        check_not_column("labels", rounds, "conformalize", delay)
    for name, given in [*_arrays("predictions", predictions), ("labels", labels)]:
        check_time_index(name, given, len(rounds) - 1)
    for name, given in (("mask", told), ("noise", noise)):
        check_time_index(name, given)
    batch = leading_axes(delay, rounds[:-1])
    if score.sides == 2 and len(batch) >= len(rounds):  # axes of the delays come after that of the sides
        new = (2, *(1,) * (len(batch) - len(rounds) + 1), *rounds)
        scores, mask = (None if part is None else part.reshape(new) for part in (scores, mask))
    asked = side_levels(score, levels, learner)
    run: Any = replay_batch(learner, scores, asked, state, context=context, mask=mask, delay=delay)
    if batch != rounds[:-1]:
        predictions, extra = (_at_each_delay(part, rounds, batch) for part in (predictions, extra))
    sets = score.set(predictions, run.thresholds, **extra)
    return Conformal(sets, run, np.asarray(as_numbers("levels", levels), float), score)


def _arrays(name: str, values: Any) -> list[tuple[str, Any]]:
    """List an argument that is an array, or the arrays of one that is a tuple of them."""
    several = isinstance(values, (tuple, list)) and any(hasattr(value, "shape") for value in values)
    return [(f"{name}[{k}]", value) for k, value in enumerate(values)] if several else [(name, values)]


def _at_each_delay(values: Any, rounds: tuple[int, ...], batch: tuple[int, ...]) -> Any:
    """Repeat arrays that begin with the axes of the rounds for every delay; there may be several in a tree."""

    def is_array(value: Any) -> bool:
        try:
            return np.shape(value)[: len(rounds)] == rounds
        except ValueError:  # a pair of arrays that have unequal shapes
            return False

    arrays = jax.tree.map(
        lambda leaf: leaf if isinstance(leaf, jax.Array) else np.asarray(leaf), values, is_leaf=is_array
    )
    return spread_rounds(arrays, len(rounds) - 1, batch)


def _coverage(result: Conformal) -> Any:
    """Average over the rounds of each sequence whose label is not missing; the others have NaN for a score."""
    run = result.run
    if run.mask is None:
        return result.covered.mean(axis=-2)
    hits: Any = np.asarray(run.scores, float)[..., None] <= np.asarray(run.thresholds, float)
    count = np.count_nonzero(~np.asarray(run.mask), axis=-1)
    if result.score.sides == 2:
        hits, count = hits.all(axis=0), count[0]
    with np.errstate(invalid="ignore"):  # no label at all: NaN
        return hits.sum(axis=-2) / np.asarray(count)[..., None]


def _scores_and_mask(score: Score, predictions: Any, labels: Any, mask: Any, extra: Any) -> tuple[Any, Any]:
    """Score the labels that are there; those of vectors have an axis that the mask has not."""
    values = labels if isinstance(labels, jax.Array) else np.asarray(labels)
    errors = []
    for shape in (values.shape, values.shape[:-1]):
        try:
            told = checked_mask(mask, shape)
            scores = score(predictions, _filled(values, told), **extra)
        except ValueError as error:
            errors.append(error)
            continue
        if np.shape(scores)[score.sides - 1 :] == shape:
            return scores, told if score.sides == 1 else jnp.broadcast_to(told, np.shape(scores))
    raise errors[0]


def _filled(values: Any, mask: Any) -> Any:
    """Put a label that is there in the place of those that are missing: a score refuses NaN, and is not used."""
    where = mask.reshape(mask.shape + (1,) * (values.ndim - mask.ndim))
    if is_traced(values, mask):
        return jnp.where(where, jnp.zeros((), values.dtype), values)
    told = np.asarray(values)[~mask]
    filled = np.where(where, told[0] if len(told) else np.zeros((), values.dtype), np.asarray(values))
    return jnp.asarray(filled) if isinstance(values, jax.Array) else filled


def check_score(score: Any) -> None:
    """Check that a score is one."""
    if not isinstance(score, Score) or isinstance(score, type):
        hint = "an instance, with brackets" if isinstance(score, type) else "one, such as dpconformal.scores.Absolute()"
        raise ValueError(f"score = {score!r}: pass {hint}")


def side_levels(score: Score, levels: Numbers, learner: Any = None) -> Any:
    """
    Find the level that each stream of scores is asked for.

    Returns: The same; or (1 + α)/2, half of the misses being left to each side.
    """
    as_levels(levels)  # checks them, as the user wrote them
    levels = as_numbers("levels", levels)
    if score.sides == 1:
        return levels
    asked = (1 + levels) / 2
    check_levels(learner, asked, f": {type(score).__name__} has two sides, and asks each for the level (1 + level)/2")
    return asked
