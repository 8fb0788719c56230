"""Run a learner over recorded scores: predict, then observe, round by round."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from dpconformal.checks import Numbers, is_traced
from dpconformal.counting import check_countable
from dpconformal.inputs import as_levels, checked_scores
from dpconformal.learner import Learner, State, fresh_state, support_of
from dpconformal.offline.driver import replay_offline
from dpconformal.scan import drive, thresholds
from dpconformal.totals import Totals


class Replay(NamedTuple):
    """
    What a replay leaves behind. ``Replay(thresholds, None, scores, levels)`` wraps any method's output.

    Attributes
    ----------
    thresholds : Array, shape (..., T, A)
        Row t was computed from ``scores[..., :t]`` alone.
    state : State
        After the last score; pass it to the next :func:`replay` or to ``learner.observe``.
    scores : Array, shape (..., T)
        The scores as they were used.
    levels : Array, shape (A,) or (..., T, A)
        The levels as they were used; with as many axes as the thresholds if they change by round.
    learner : Learner, optional
        Who made the thresholds.
    start : State, optional
        The state before the first score; None for a fresh one.
    """

    thresholds: Float[Array, "*B T A"]
    state: State
    scores: Float[Array, "*B T"]
    levels: Float[Array, "..."]
    learner: Any = None
    start: State = None


class Summary(NamedTuple):
    """
    What a replay with ``keep="summary"`` leaves behind: totals over its rounds, in memory for the levels only.

    The totals of two runs, one carrying on from the other, add up to those of the run over both.

    Attributes
    ----------
    rounds : int
        T.
    covered : array, shape (..., A)
        Rounds in which the score did not exceed the threshold.
    total_loss : array, shape (..., A)
        Sum of the quantile losses; the regret is this minus the loss of a comparator.
    total_threshold : array, shape (..., A)
        Sum of the thresholds.
    state : State
        After the last score; pass it to the next :func:`replay` or to ``learner.observe``.
    levels : Array, shape (A,) or (T, A)
        The levels as they were used.
    learner : Learner
        Who made the thresholds.
    start : State
        The state before the first score; None for a fresh one.
    """

    rounds: int
    covered: Any  # (..., A)
    total_loss: Any  # (..., A)
    total_threshold: Any  # (..., A)
    state: State
    levels: Float[Array, "..."]
    learner: Any = None
    start: State = None

    @property
    def coverage(self) -> Any:
        """Share of rounds in which the score was covered."""
        return self.covered / self.rounds

    @property
    def loss(self) -> Any:
        """Mean quantile loss."""
        return self.total_loss / self.rounds

    @property
    def mean_threshold(self) -> Any:
        """Mean threshold: how large the confidence sets are."""
        return self.total_threshold / self.rounds


def replay(
    learner: Learner,
    scores: Numbers,
    levels: Numbers,
    state: State = None,
    keep: str = "all",
    method: str = "auto",
    context: Any = None,
) -> Replay | Summary:
    """
    Run a learner over recorded scores: in each round predict thresholds, then observe the score.

    Parameters
    ----------
    learner : Learner
        Any method: a belief, a baseline, or your own.
    scores : array_like, shape (T,) or (..., T)
        Nonconformity scores in time order; leading axes are independent sequences.
    levels : array_like, shape (A,) or (T, A)
        Confidence levels in [0, 1], the same every round or one row a round.
    state : State, optional
        Where to carry on, from an earlier run or from ``learner.observe``, with the same leading axes
        as the scores. The result is as if the run had never been interrupted.
    keep : {"all", "summary"}
        Every threshold; or totals only, in memory that does not grow with T × A.
    method : {"auto", "scan"}
        By default the fastest way that the learner offers; ``"scan"`` asks for the generic scan over the
        learner's state, which every other way agrees with up to rounding.
    context : array_like, shape (T, ...) or (..., T, ...), optional
        What else is known before each round, for a learner that takes it: the groups of :class:`dpconformal.MVP`, the
        scorecasts of :class:`dpconformal.PID`.

    Returns
    -------
    Replay or Summary
        Thresholds of shape (..., T, A), or their totals; and the state to carry on with.

    Raises
    ------
    ValueError
        Naming the argument, the index and the value, before anything runs.

    Notes
    -----
    Works inside ``jit``, ``vmap`` and ``grad``, over scores and over any hyperparameter. Traced input
    cannot be checked: there, a bad score or hyperparameter gives NaN thresholds from its round on.

    On a CPU beliefs that keep every score, and :class:`dpconformal.Quantized`, replay in native loops, a long sequence
    or a batch on every core that the process may use. On an accelerator, and for any other learner, a batch is one
    vectorised scan.

    Examples
    --------
    >>> import dpconformal as dpc
    >>> run = dpc.replay(dpc.Exact(), [0.2, 0.4, 0.6], levels=[0.5, 0.9])
    >>> run.thresholds.round(3)
    Array([[0.5  , 0.9  ],
           [0.293, 0.859],
           [0.4  , 0.827]], dtype=float...)
    >>> dpc.replay(dpc.Exact(), [0.2, 0.4, 0.6], levels=[0.5, 0.9], keep="summary").covered
    array([1, 3])
    """
    if not isinstance(learner, Learner) or isinstance(learner, type):
        hint = "an instance, with brackets" if isinstance(learner, type) else "a learner such as dpconformal.Exact()"
        raise ValueError(f"learner = {learner!r}: pass {hint}")
    if any(leaf is learner for leaf in jax.tree.leaves(learner)):
        raise ValueError(f"learner = {learner!r}: not a pytree; register its class, see dpconformal.pytree.register")
    for name, value, choices in (("keep", keep, ("all", "summary")), ("method", method, ("auto", "scan"))):
        if value not in choices:
            raise ValueError(f"{name} = {value!r}: pass one of {', '.join(map(repr, choices))}")
    scores = checked_scores(scores, support_of(learner))
    if keep == "all":  # the run holds on to them, so they need memory of their own
        scores = jnp.asarray(scores)
    if scores.ndim == 0:
        raise ValueError("scores has shape (): pass a sequence, shape (T,) or (..., T)")
    scores, begin = starting_state(learner, scores, state)
    levels = _shaped_levels(levels, scores)
    context = _checked_context(learner, context, scores.shape)
    if keep == "summary":
        _check_totals(support_of(learner), scores)
    offline, recorded = getattr(learner, "offline", None), getattr(learner, "recorded", None)
    own = recorded(begin, state is None, scores, levels, keep) if recorded and method == "auto" else None
    if own is not None:
        kept, end = own
    elif method == "auto" and offline is not None and scores.size and jax.default_backend() == "cpu":
        kept, end = replay_offline(offline, learner, begin, state is None, scores, levels, keep)
    else:
        begin = begin if state is not None else spread(begin, scores.shape[:-1])
        kept, end = drive(thresholds, learner, begin, jnp.asarray(scores), levels, keep, context)
    if keep == "summary":
        return _summary(kept, scores.shape[-1], end, levels, learner, state)
    if levels.ndim == 2:  # as many axes as the thresholds: what vmap over a replay returns reads the same
        levels = jnp.broadcast_to(levels, kept.shape)
    return Replay(kept, end, scores, levels, learner, state)


def _check_totals(support: Any, scores: Any) -> None:
    """Refuse to add up what would overflow: totals are kept in the precision of the scores."""
    if is_traced(support) or not np.isfinite(support).all():
        return
    low, high = (float(end) for end in support)
    most = scores.shape[-1] * max(abs(low), abs(high), high - low)
    if most > float(jnp.finfo(scores.dtype).max) / 4:
        raise ValueError(
            f"keep = 'summary': on a support [{low:g}, {high:g}] the totals of {scores.shape[-1]} rounds overflow "
            f"{scores.dtype}; rescale the scores, or keep='all'"
        )


def _summary(totals: Totals, rounds: int, end: State, levels: Array, learner: Any, start: State) -> Summary:
    sums = totals.loss, totals.threshold
    if is_traced(totals):
        loss, threshold = (total.high + total.low for total in sums)
        return Summary(rounds, totals.covered, loss, threshold, end, levels, learner, start)
    loss, threshold = (np.asarray(total.high, float) + np.asarray(total.low, float) for total in sums)
    return Summary(rounds, np.asarray(totals.covered, np.int64), loss, threshold, end, levels, learner, start)


def _checked_context(learner: Any, context: Any, shape: tuple[int, ...]) -> Any:
    if hasattr(learner, "as_context"):
        return learner.as_context(context, shape)
    if context is not None:
        raise ValueError(f"context is given, and {type(learner).__name__} takes none")
    return None


def _shaped_levels(levels: Numbers, scores: Any) -> Array:
    levels = as_levels(levels, scores.dtype)
    rounds = scores.shape[-1]
    if levels.ndim not in (1, 2) or (levels.ndim == 2 and levels.shape[0] != rounds) or levels.shape[-1] == 0:
        raise ValueError(
            f"levels has shape {levels.shape}: pass (A,), such as [0.9], or (T, A) with T = {rounds} rows; A ≥ 1"
        )
    return levels


def starting_state(learner: Learner, scores: Any, state: State) -> tuple[Any, State]:
    """
    Make the state from which a run over the scores begins.

    Parameters
    ----------
    learner : Learner
        The learner.
    scores : Array, shape (..., T)
        Checked scores.
    state : State or None
        The user's state, to carry on from.

    Returns
    -------
    tuple
        The scores and a state, in a common dtype that loses nothing. The user's has the leading axes of the scores;
        a fresh one has none, see :func:`spread`.

    Raises
    ------
    ValueError
        If the state is not one of this learner's, or has other leading axes.
    """
    batch, rounds = scores.shape[:-1], scores.shape[-1]
    if state is None:
        return scores, fresh_state(learner, rounds, scores.dtype)
    pattern = jax.eval_shape(lambda: fresh_state(learner, 1, scores.dtype))
    if jax.tree.structure(state) != jax.tree.structure(pattern):  # type: ignore[operator]
        raise ValueError(
            f"state is a {type(state).__name__}: {type(learner).__name__} carries on from a "
            f"{type(pattern).__name__}, such as run.state"
        )
    if hasattr(getattr(state, "seen", None), "dtype"):
        check_countable(state)
    state = jax.tree.map(jnp.asarray, state)
    for path, leaf in jax.tree_util.tree_leaves_with_path(state):
        extra = leaf.ndim - dict(jax.tree_util.tree_leaves_with_path(pattern))[path].ndim
        if leaf.shape[: max(extra, 0)] != batch:
            raise ValueError(
                f"state{jax.tree_util.keystr(path)} has shape {leaf.shape}: its leading axes must be those of "
                f"the scores, {batch}"
            )
    kinds = [leaf.dtype for leaf in jax.tree.leaves(state) if jnp.issubdtype(leaf.dtype, jnp.floating)]
    dtype = np.result_type(scores.dtype, *kinds)

    def widen(leaf: Array) -> Array:
        return leaf.astype(dtype) if jnp.issubdtype(leaf.dtype, jnp.floating) else leaf

    state = jax.tree.map(widen, state)
    prepare = getattr(learner, "prepare", None)
    return scores.astype(dtype), prepare(state, rounds) if prepare else state


def spread(state: State, batch: tuple[int, ...]) -> State:
    """
    Give every sequence of a batch its own copy of a state.

    Parameters
    ----------
    state : State
        Of one sequence.
    batch : tuple of int
        Leading axes.

    Returns
    -------
    State
        With those axes.
    """
    return jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, batch + leaf.shape), state)
