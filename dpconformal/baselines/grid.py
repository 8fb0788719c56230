"""What iterate-centric methods have in common: a copy for each level of a grid, and queries for these levels alone."""

from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from dpconformal.baselines.grid_checks import SAME, check_asked, check_state, check_width
from dpconformal.beliefs.weights import check_unspoilt
from dpconformal.checks import Numbers, Scalar, whole
from dpconformal.counting import advance, room_to_count
from dpconformal.inputs import as_levels, as_score, check_not_batched
from dpconformal.learner import State, usable


class GridLearner:
    """
    A method that follows each level of its own grid by itself: its thresholds may cross.

    A level that is not in the grid is refused, and inside ``jit``, where nothing can be raised, answered with NaN. Two
    levels are the same if they differ by 2⁻²² (2.4e-7) at most, which is what rounding in float32 comes to: 0.9 of
    float32 and 0.9 of float64 are one level. Where the grid has several so close, the nearest answers.

    A method says how it starts (``start``), what it answers at the levels of its grid (``thresholds``) and how it
    learns from a score (``learn``), as pure functions; the checks, the routing and the counting are done here.
    """

    levels: Any  # (G,)
    low: Scalar
    high: Scalar
    state_type: ClassVar[type]
    to_nearest: ClassVar[bool] = False  # whether the nearest level of the grid answers for one that it does not have
    room: ClassVar[int | None] = None  # size of an axis of the state that may also be smaller

    @property
    def support(self) -> tuple[Scalar, Scalar]:
        """Ends of the interval that holds every score."""
        return self.low, self.high

    def __eq__(self, other: object) -> bool:
        (mine, structure), (others, shape) = jax.tree.flatten(self), jax.tree.flatten(other)
        same: bool = structure == shape  # type: ignore[operator]
        return same and all(map(np.array_equal, mine, others))

    __hash__ = None  # type: ignore[assignment]

    def init(self, rounds: int | None = None, dtype: Any = None) -> State:
        """Return the state before any score; a replay tells how many ``rounds`` are to come."""
        check_not_batched(self)
        dtype = dtype or jnp.result_type(float)
        check_width(self, dtype)
        if rounds is not None:
            whole("rounds", rounds, 0)
        return _started(self, np.dtype(dtype))

    def prepare(self, state: State, rounds: int) -> State:
        """Check that a state, or a batch of them, can be carried on from, and that it can count the rounds to come."""
        check_state(self, state, batched=True)
        check_unspoilt(state.seen)
        check_width(self, dtype_of(state))
        return room_to_count(state, rounds)

    def check_levels(self, levels: Numbers, why: str = "") -> None:
        """Refuse levels that the grid does not have; ``why`` is added to the message."""
        check_asked(self, levels, why)

    def quantile(self, state: State, levels: Numbers) -> Float[Array, "..."]:
        """Predict the threshold of each level, which must be one of the grid."""
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
    Ask a grid learner for levels of its grid, in any order.

    Returns: Thresholds; NaN for a traced level that is not in the grid.
    """
    check_state(learner, state)
    learner.check_levels(levels)
    return _routed(learner, state, as_levels(levels, dtype_of(state)), given)


def learnt(learner: Any, state: State, score: Numbers, *given: Any) -> State:
    """
    Let a grid learner take in a score.

    Returns: With the score counted; spoilt if it was a bad one inside ``jit``.
    """
    check_state(learner, state)
    state = room_to_count(state, 1)
    return _learnt(learner, state, as_score(score, learner.support).astype(dtype_of(state)), given)


def nearest(grid: Float[Array, " G"], levels: Float[Array, "*n"]) -> Int[Array, "*n"]:
    """Find the level of a grid that is nearest to each level asked for."""
    return jnp.argmin(jnp.abs(levels[..., None] - grid.reshape((1,) * levels.ndim + (-1,))), axis=-1)


@jax.jit(static_argnames="dtype")
def _started(learner: Any, dtype: Any) -> State:
    return learner.start(dtype)


@jax.jit
def _routed(learner: Any, state: State, levels: Array, given: tuple[Any, ...]) -> Array:
    grid = grid_of(learner, levels.dtype)
    own = jnp.where(jnp.isnan(grid) | ~jnp.asarray(learner.sound()), jnp.nan, learner.thresholds(state, *given))
    found = nearest(grid, levels)
    known = learner.to_nearest | (jnp.abs(grid[found] - levels) <= SAME)
    return jnp.where((state.seen < 0) | jnp.isnan(levels) | ~known, jnp.nan, own[found])


@jax.jit
def _learnt(learner: Any, state: State, score: Array, given: tuple[Any, ...]) -> State:
    fine = usable(score, learner.support)
    return learner.learn(state, score, *given)._replace(seen=advance(state.seen, fine))


def grid_of(learner: Any, dtype: Any) -> Float[Array, " G"]:
    """Return a learner's levels in the dtype to work in."""
    levels = jnp.asarray(learner.levels).astype(dtype)
    return jnp.where((levels >= 0) & (levels <= 1), levels, jnp.nan)


def width_of(learner: Any, dtype: Any) -> Float[Array, ""]:
    """Return the width of a learner's support."""
    width = jnp.asarray(learner.high, dtype) - jnp.asarray(learner.low, dtype)
    return jnp.where(width > 0, width, jnp.nan)


def initial_of(learner: Any, dtype: Any) -> Float[Array, " G"]:
    """
    Return the threshold at which each level starts.

    Returns: The learner's own, or the quantiles of the uniform distribution on the support.
    """
    levels = grid_of(learner, dtype)
    if learner.initial is None:
        return jnp.asarray(learner.low, dtype) + width_of(learner, dtype) * levels
    return jnp.broadcast_to(jnp.asarray(learner.initial).astype(dtype), levels.shape)


def dtype_of(state: State) -> Any:
    """Return the floating type of a state."""
    return next(leaf.dtype for leaf in state if jnp.issubdtype(leaf.dtype, jnp.floating))
