"""Results of a replay: every threshold, or totals; with or without rounds whose score is missing."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from dpconformal.engine.scan import bring_to_one_device
from dpconformal.engine.states import broadcast_state
from dpconformal.learner import State, fresh_state
from dpconformal.rounds import kept_rounds, take_rounds
from dpconformal.validation import is_traced


class Replay(NamedTuple):
    """
    Result of a replay. ``Replay(thresholds, None, scores, levels)`` wraps any method's output.

    Attributes
    ----------
    thresholds : Array, shape (..., T, A)
        Row t was computed from ``scores[..., :t]`` alone.
    state : State
        After the last score; pass it to the next :func:`replay` or to ``learner.observe``. With a delay a
        :class:`dpconformal.Delayed`: the learner's own is its ``state``.
    scores : Array, shape (..., T)
        The scores as they were used; NaN where they are masked, so that what forgets the mask says NaN.
    levels : Array, shape (A,) or (..., T, A)
        The levels as they were used; with as many axes as the thresholds if they change by round.
    learner : Learner, optional
        The learner that made the thresholds.
    start : State, optional
        The state before the first score; None for a fresh one.
    mask : Array of bool, shape (..., T), optional
        True for rounds whose score is missing: they have thresholds, and nothing was observed. Metrics, certificates,
        diagnostics and reports judge the other rounds, as if the run were :meth:`observed`. None: no mask was given.
    context : pytree of Array, shape (..., T, ...), optional
        What the learner was told besides, a row a round.
    delay : int, or array of int, shape (...)
        How many rounds late a score became known; row t of the thresholds was then computed from
        ``scores[..., :t - delay]`` alone. None: rounds have been taken out since, so the run cannot be replayed.
    weights : array, shape (..., T), optional
        How much each score counted; None: all alike.
    """

    thresholds: Float[Array, "*B T A"]
    state: State
    scores: Float[Array, "*B T"]
    levels: Float[Array, "..."]
    learner: Any = None
    start: State = None
    mask: Bool[Array | np.ndarray, "*B T"] | None = None
    context: Any = None
    delay: Any = 0
    weights: Any = None

    def observed(self) -> "Replay":
        """
        Return the run without the rounds whose score is missing: this run itself if it has no mask.

        Returns
        -------
        Replay
            With as many rounds as there were scores, and no mask.

        Raises
        ------
        ValueError
            If the sequences of a batch have unequal numbers of scores, or the mask is traced.

        Examples
        --------
        >>> import dpconformal as dpc
        >>> run = dpc.replay(dpc.Exact(), [0.2, 0.0, 0.6], levels=[0.5], mask=[False, True, False])
        >>> run.scores, run.observed().scores
        (Array([0.2, nan, 0.6], dtype=float...), Array([0.2, 0.6], dtype=float...))
        """
        if self.mask is None:
            return self
        kept, start = kept_rounds(self.mask), _pinned_start(self)
        if kept.shape[-1] == self.mask.shape[-1]:
            return self._replace(mask=None)
        by_round = {name: getattr(self, name) for name in ("thresholds", "scores", "context", "weights")}
        if np.ndim(self.levels) == np.ndim(self.thresholds):
            by_round["levels"] = self.levels
        left = jax.tree.map(lambda leaf: take_rounds(leaf, kept), by_round)
        # With rounds gone, scores are no longer equally late.
        return self._replace(**left, start=start, mask=None, delay=None if not_at_once(self) else self.delay)

    def sequence(self, *index: int) -> "Replay":
        """
        Return the run of one sequence of a batch.

        Parameters
        ----------
        *index : int
            Place of the sequence, a number for each leading axis.

        Returns
        -------
        Replay
            With thresholds of shape (T, A).

        Examples
        --------
        >>> import dpconformal as dpc
        >>> dpc.replay(dpc.Exact(), [[0.2, 0.4], [0.6, 0.8]], levels=[0.5]).sequence(1).scores
        Array([0.6, 0.8], dtype=float...)
        """
        batch = self.thresholds.shape[:-2]
        if len(index) != len(batch):
            raise ValueError(f"index = {index}: the run has leading axes {batch}, pass a number for each of them")
        for axis, (i, size) in enumerate(zip(index, batch, strict=True)):
            if not -size <= i < size:
                raise ValueError(f"index[{axis}] = {i}: the run has {size} sequences on that axis")
        if not batch:
            return self
        # A part of what several devices hold would be on all of them, and so would the work with it.
        names = ("state", "start", "thresholds", "scores", "mask", "context", "weights")
        own = jax.tree.map(lambda leaf: bring_to_one_device(leaf[index]), {name: getattr(self, name) for name in names})
        delay = self.delay[index] if np.ndim(self.delay) else self.delay
        delay = delay if delay is None or is_traced(delay) else int(delay)
        levels, learner = self.levels, self.learner
        if np.ndim(levels) > 1:  # by round, or out of vmap: then every hyperparameter has the batch's axes too
            levels, mapped = levels[index], levels.ndim < self.thresholds.ndim
            learner = jax.tree.map(
                lambda leaf: np.asarray(leaf)[index] if mapped and np.shape(leaf)[: len(batch)] == batch else leaf,
                learner,
            )
        return self._replace(**own, levels=levels, learner=learner, delay=delay)


def not_at_once(run: Replay) -> bool:
    """Whether scores became known late, or may have: the delay is traced, or rounds were taken out of the run."""
    return run.delay is None or is_traced(run.delay) or bool(np.any(np.asarray(run.delay)))


def _pinned_start(run: Replay) -> State:
    """
    Return the state that a replay of the observed scores alone would have to start from.

    A fresh state may be sized by the number of rounds, as the bins of ``Quantized(bins=None)`` are: with masked rounds
    gone, it has to be written down.
    """
    if run.start is not None or run.learner is None or is_traced(run.learner) or not_at_once(run):
        return run.start
    dtype, rounds = run.scores.dtype, run.scores.shape[-1]
    shapes = [jax.eval_shape(lambda n=n: fresh_state(run.learner, n, dtype)) for n in (rounds, 0)]
    if [leaf.shape for leaf in jax.tree.leaves(shapes[0])] == [leaf.shape for leaf in jax.tree.leaves(shapes[1])]:
        return None
    return broadcast_state(fresh_state(run.learner, rounds, dtype), run.scores.shape[:-1])


class Summary(NamedTuple):
    """
    Result of a replay with ``keep="summary"``: totals over its rounds, in memory for the levels only.

    The totals of two runs, one carrying on from the other, add up to those of the run over both.

    Attributes
    ----------
    rounds : int or array, shape (...)
        Rounds that were observed: T, less those that are masked. An array where sequences differ in it.
    covered : array, shape (..., A)
        Rounds in which the score did not exceed the threshold.
    total_loss : array, shape (..., A)
        Sum of the quantile losses; the regret is this minus the loss of a comparator.
    total_threshold : array, shape (..., A)
        Sum of the thresholds.
    state : State
        After the last score; pass it to the next :func:`replay` or to ``learner.observe``. With a delay a
        :class:`dpconformal.Delayed`.
    levels : Array, shape (A,) or (T, A)
        The levels as they were used.
    learner : Learner, optional
        The learner that made the thresholds.
    start : State, optional
        The state before the first score; None for a fresh one.
    """

    rounds: Any
    covered: Any
    total_loss: Any
    total_threshold: Any
    state: State
    levels: Float[Array, "..."]
    learner: Any = None
    start: State = None

    @property
    def coverage(self) -> Any:
        """Share of rounds in which the score was covered."""
        return self._share(self.covered)

    @property
    def loss(self) -> Any:
        """Mean quantile loss."""
        return self._share(self.total_loss)

    @property
    def mean_threshold(self) -> Any:
        """Mean threshold: how large the confidence sets are."""
        return self._share(self.total_threshold)

    def _share(self, total: Any) -> Any:
        rounds = self.rounds if np.ndim(self.rounds) == 0 else self.rounds[..., None]
        if is_traced(total, rounds):
            dtype = self.total_loss.dtype
            return total.astype(dtype) / jnp.asarray(rounds, dtype)
        with np.errstate(invalid="ignore", divide="ignore"):  # no rounds: NaN
            return total / np.asarray(rounds)
