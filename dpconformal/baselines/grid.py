"""What iterate-centric methods have in common: a copy for each level of a grid, and queries that go to the nearest."""

import functools
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from dpconformal.beliefs.weights import check_unspoilt
from dpconformal.beliefs.window import check_latest
from dpconformal.checks import Numbers, Scalar, as_numbers, complain_at, is_traced, number, ordered, whole
from dpconformal.inputs import as_levels, as_score, check_not_batched
from dpconformal.learner import State, advance, usable


class GridLearner:
    """
    A method that follows each level of its own grid by itself: its thresholds may cross.

    A method says how it starts (``start``), what it answers at the levels of its grid (``thresholds``) and how it
    learns from a score (``learn``), as pure functions; the checks, the routing and the counting are done here.
    """

    levels: Any  # (G,)
    low: Scalar
    high: Scalar
    state_type: ClassVar[type]
    room: ClassVar[int | None] = None  # size of an axis of the state that may also be smaller

    @property
    def support(self) -> tuple[Scalar, Scalar]:
        """Ends of the interval that holds every score."""
        return self.low, self.high

    def init(self, rounds: int | None = None, dtype: Any = None) -> State:
        """Return the state before any score; a replay tells how many ``rounds`` are to come."""
        check_not_batched(self)
        dtype = dtype or jnp.result_type(float)
        check_width(self, dtype)
        if rounds is not None:
            whole("rounds", rounds, 0)
        return self.start(dtype)

    def prepare(self, state: State, rounds: int) -> State:
        """Check that a state, or a batch of them, can be carried on from."""
        del rounds
        check_state(self, state, batched=True)
        check_unspoilt(state.seen)
        check_width(self, dtype_of(state))
        return state

    def quantile(self, state: State, levels: Numbers) -> Float[Array, "..."]:
        """Predict the threshold of each level: that of the nearest level of the grid."""
        return routed(self, state, levels)

    def observe(self, state: State, score: Numbers) -> State:
        """Return the state after one more score."""
        return learnt(self, state, score)

    def sound(self) -> Any:
        """Tell whether hyperparameters are in range; traced ones, which nobody could check, may not be."""
        initial = getattr(self, "initial", None)
        return True if initial is None else jnp.all((initial >= self.low) & (initial <= self.high))

    def start(self, dtype: Any) -> State:
        """Return the state before any score."""
        raise NotImplementedError

    def thresholds(self, state: State, *given: Any) -> Float[Array, " G"]:
        """Predict the threshold of each level of the grid, given the round's context where the method takes one."""
        raise NotImplementedError

    def learn(self, state: State, score: Float[Array, ""], *given: Any) -> State:
        """Return the state after a good score, without counting it."""
        raise NotImplementedError


def routed(learner: Any, state: State, levels: Numbers, *given: Any) -> Float[Array, "..."]:
    """
    Ask a grid learner for any levels.

    Parameters
    ----------
    learner : GridLearner
        The learner.
    state : State
        Its state.
    levels : array_like
        Levels in [0, 1].
    *given
        What else its ``thresholds`` takes.

    Returns
    -------
    Array
        The thresholds of the nearest levels of the grid.
    """
    check_state(learner, state)
    return _routed(learner, state, as_levels(levels, dtype_of(state)), given)


def learnt(learner: Any, state: State, score: Numbers, *given: Any) -> State:
    """
    Let a grid learner take in a score.

    Parameters
    ----------
    learner : GridLearner
        The learner.
    state : State
        Its state.
    score : number
        The score.
    *given
        What else its ``learn`` takes.

    Returns
    -------
    State
        With the score counted; spoilt if it was a bad one inside ``jit``.
    """
    check_state(learner, state)
    return _learnt(learner, state, as_score(score, learner.support).astype(dtype_of(state)), given)


def nearest(grid: Float[Array, " G"], levels: Float[Array, "*n"]) -> Int[Array, "*n"]:
    """
    Find the level of a grid that is nearest to each level asked for.

    Parameters
    ----------
    grid : Array, shape (G,)
        In any order.
    levels : Array
        Levels asked for.

    Returns
    -------
    Array
        Indices; of two that are equally near the first.

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> nearest(jnp.array([0.5, 0.9]), jnp.array([0.0, 0.69, 0.71, 1.0]))
    Array([0, 0, 1, 1], dtype=int...)
    """
    return jnp.argmin(jnp.abs(levels[..., None] - grid.reshape((1,) * levels.ndim + (-1,))), axis=-1)


@jax.jit
def _routed(learner: Any, state: State, levels: Array, given: tuple[Any, ...]) -> Array:
    grid = grid_of(learner, levels.dtype)
    own = jnp.where(jnp.isnan(grid) | ~jnp.asarray(learner.sound()), jnp.nan, learner.thresholds(state, *given))
    return jnp.where((state.seen < 0) | jnp.isnan(levels), jnp.nan, own[nearest(grid, levels)])


@jax.jit
def _learnt(learner: Any, state: State, score: Array, given: tuple[Any, ...]) -> State:
    fine = usable(score, learner.support)
    return learner.learn(state, score, *given)._replace(seen=advance(state.seen, fine))


def grid_of(learner: Any, dtype: Any) -> Float[Array, " G"]:
    """
    Return a learner's levels in the dtype to work in.

    Parameters
    ----------
    learner : GridLearner
        The learner.
    dtype : dtype
        Of its state.

    Returns
    -------
    Array, shape (G,)
        NaN where a traced level lies outside [0, 1].
    """
    levels = jnp.asarray(learner.levels).astype(dtype)
    return jnp.where((levels >= 0) & (levels <= 1), levels, jnp.nan)


def width_of(learner: Any, dtype: Any) -> Float[Array, ""]:
    """
    Return the width of a learner's support.

    Parameters
    ----------
    learner : GridLearner
        The learner.
    dtype : dtype
        Of its state.

    Returns
    -------
    Array, shape ()
        NaN where traced ends do not make an interval.
    """
    width = jnp.asarray(learner.high, dtype) - jnp.asarray(learner.low, dtype)
    return jnp.where(width > 0, width, jnp.nan)


def initial_of(learner: Any, dtype: Any) -> Float[Array, " G"]:
    """
    Return the threshold at which each level starts.

    Parameters
    ----------
    learner : GridLearner
        With a field ``initial``.
    dtype : dtype
        Of its state.

    Returns
    -------
    Array, shape (G,)
        The learner's own, or the quantiles of the uniform distribution on the support.
    """
    levels = grid_of(learner, dtype)
    if learner.initial is None:
        return jnp.asarray(learner.low, dtype) + width_of(learner, dtype) * levels
    return jnp.broadcast_to(jnp.asarray(learner.initial).astype(dtype), levels.shape)


def check_width(learner: Any, dtype: Any) -> None:
    """
    Check that a support is still one in the precision to work in.

    Parameters
    ----------
    learner : GridLearner
        The learner.
    dtype : dtype
        Of its state.

    Raises
    ------
    ValueError
        If its ends fall together.
    """
    if is_traced(learner.low, learner.high):
        return
    low, high = (np.asarray(end, dtype) for end in learner.support)
    if not low < high:
        raise ValueError(
            f"{type(learner).__name__} on [{learner.low}, {learner.high}] collapses in {np.dtype(dtype)}; rescale, or "
            "enable 64-bit JAX (jax_enable_x64)"
        )


def dtype_of(state: State) -> Any:
    """
    Return the floating type of a state.

    Parameters
    ----------
    state : State
        Of a grid learner.

    Returns
    -------
    dtype
        That of its floating-point leaves.
    """
    return next(leaf.dtype for leaf in state if jnp.issubdtype(leaf.dtype, jnp.floating))


def check_grid(learner: Any, start_anywhere: bool = False) -> None:
    """
    Check and normalise the levels, the support and the initial thresholds of a learner that is being constructed.

    Parameters
    ----------
    learner : GridLearner
        The learner; a number for its levels becomes an array of one.
    start_anywhere : bool
        Whether initial thresholds may lie outside the support.

    Raises
    ------
    ValueError
        Naming what is wrong.
    """
    owner = type(learner).__name__
    object.__setattr__(learner, "levels", _column(f"{owner}.levels", learner.levels))
    if not is_traced(learner.levels):
        levels = learner.levels
        if levels.shape[-1] == 0:
            raise ValueError(f"{owner}.levels has shape {levels.shape}: pass at least one level, such as [0.9]")
        complain_at(f"{owner}.levels", levels, ~((levels >= 0) & (levels <= 1)), "a level lies in [0, 1]; 90 % is 0.9")
    for name in ("low", "high"):
        object.__setattr__(learner, name, number(f"{owner}.{name}", getattr(learner, name)))
    ordered(owner, learner.low, learner.high)
    if getattr(learner, "initial", None) is None:
        return
    initial = _column(f"{owner}.initial", learner.initial)
    object.__setattr__(learner, "initial", initial)
    if initial.shape[-1] not in (1, learner.levels.shape[-1]):
        raise ValueError(
            f"{owner}.initial has shape {initial.shape}: pass one threshold, or one for each of the "
            f"{learner.levels.shape[-1]} levels"
        )
    if is_traced(initial, learner.low, learner.high):
        return
    complain_at(f"{owner}.initial", initial, ~np.isfinite(initial), "must be finite")
    if not start_anywhere:
        why = f"a threshold starts within the support [{learner.low}, {learner.high}]"
        complain_at(f"{owner}.initial", initial, ~((initial >= learner.low) & (initial <= learner.high)), why)


def _column(name: str, values: Any) -> Any:
    array = as_numbers(name, values)
    if is_traced(array):
        return jnp.atleast_1d(array)
    return np.atleast_1d(np.asarray(array, float))


def check_state(learner: Any, state: Any, batched: bool = False) -> None:
    """
    Check that a learner can work with a state.

    Parameters
    ----------
    learner : GridLearner
        The learner.
    state : State
        The state.
    batched : bool
        Whether leading axes are allowed.

    Raises
    ------
    ValueError
        If it is of another kind or size, or a batch.
    """
    check_not_batched(learner)
    name, kind = type(learner).__name__, learner.state_type
    if not isinstance(state, kind):
        raise ValueError(
            f"state is a {type(state).__name__}: {name} carries on from a {kind.__name__}, such as run.state"
        )
    if np.ndim(state.seen) and not batched:
        raise ValueError(f"state is a batch of shape {np.shape(state.seen)}: use jax.vmap")
    leaves, structure = jax.tree.flatten(learner)
    expected = _shapes(structure, tuple((np.shape(leaf), jnp.result_type(leaf)) for leaf in leaves))
    for field, own, wanted in zip(kind._fields, state, expected, strict=True):
        shape = np.shape(own)[np.ndim(state.seen) :]
        if len(shape) != len(wanted) or any(
            a != b and not a < b == learner.room for a, b in zip(shape, wanted, strict=True)
        ):
            raise ValueError(
                f"state.{field} has shape {shape}, and this {name} works with {wanted}: carry on with the learner "
                "that made it"
            )
    if hasattr(state, "latest"):
        check_latest(name, state.latest, learner.support)


@functools.lru_cache
def _shapes(structure: Any, leaves: tuple[Any, ...]) -> tuple[tuple[int, ...], ...]:
    """Shapes of a learner's state, by the learner's own; remembered, for online use is a call a round."""
    learner = jax.tree.unflatten(structure, [jax.ShapeDtypeStruct(*leaf) for leaf in leaves])
    return tuple(leaf.shape for leaf in jax.eval_shape(lambda own: own.start(jnp.float32), learner))
