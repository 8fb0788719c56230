"""What iterate-centric methods have in common: a copy for each level of a grid, and queries for these levels alone."""

import functools
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from dpconformal.beliefs.belief import check_valid_count
from dpconformal.beliefs.sliding import check_latest
from dpconformal.engine.states import advance, check_countable, room_to_count
from dpconformal.learner import State, is_valid_score
from dpconformal.validation import (
    Numbers,
    Scalar,
    as_levels,
    as_numbers,
    as_score,
    check_float,
    check_int,
    check_interval,
    check_not_batched,
    check_not_forked,
    check_size,
    check_within,
    format_level,
    is_interval,
    is_traced,
    raise_at,
)

SAME = 2.0**-22  # levels that are no further apart are one level: four units in the last place of a float32 below 1


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
    initial: Any = None  # (G,) or (1,), for methods with initial thresholds
    state_type: ClassVar[type]
    sizes: ClassVar[tuple[str, ...]] = ()  # hyperparameters that are whole numbers, at least 1
    not_negative: ClassVar[tuple[str, ...]] = ()  # hyperparameters that are at least 0; None is left alone
    positive: ClassVar[tuple[str, ...]] = ()  # hyperparameters that are above 0
    start_anywhere: bool = False  # whether initial thresholds may lie outside the support
    to_nearest: ClassVar[bool] = False  # whether the nearest level of the grid answers for one that it does not have
    room: ClassVar[int | None] = None  # size of an axis of the state that may also be smaller

    def __post_init__(self) -> None:
        owner = type(self).__name__
        levels = _as_row(f"{owner}.levels", self.levels)
        object.__setattr__(self, "levels", levels)
        if not is_traced(levels):
            if levels.shape[-1] == 0:
                raise ValueError(f"{owner}.levels has shape {levels.shape}: pass at least one level, such as [0.9]")
            raise_at(f"{owner}.levels", levels, ~((levels >= 0) & (levels <= 1)), "a level lies in [0, 1]; 90 % is 0.9")
        for name in ("low", "high"):
            object.__setattr__(self, name, check_float(f"{owner}.{name}", getattr(self, name)))
        check_interval(owner, self.low, self.high)
        if self.initial is not None:
            self._check_initial(f"{owner}.initial")
        for name in (*self.not_negative, *self.positive):
            if (value := getattr(self, name)) is not None:
                value = check_float(f"{owner}.{name}", value, 0.0, open_low=name in self.positive)
                object.__setattr__(self, name, value)
        for name in self.sizes:
            object.__setattr__(self, name, check_size(f"{owner}.{name}", getattr(self, name), 1))

    def _check_initial(self, name: str) -> None:
        initial, count = _as_row(name, self.initial), self.levels.shape[-1]
        object.__setattr__(self, "initial", initial)
        if initial.shape[-1] not in (1, count):
            raise ValueError(
                f"{name} has shape {initial.shape}: pass one threshold, or one for each of the {count} levels"
            )
        if is_traced(initial, self.support):
            return
        raise_at(name, initial, ~np.isfinite(initial), "must be finite")
        if not self.start_anywhere:
            why = f"a threshold starts within the support [{self.low}, {self.high}]"
            raise_at(name, initial, ~((initial >= self.low) & (initial <= self.high)), why)

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
        self._check_width(dtype)
        if rounds is not None:
            check_int("rounds", rounds, 0)
        return _start(self, np.dtype(dtype))

    def prepare(self, state: State, rounds: int) -> State:
        """Check that a state, or a batch of them, can be carried on from, and that it can count the rounds to come."""
        self._check_state(state, batched=True)
        check_valid_count(state.seen)
        self._check_width(dtype_of(state))
        return room_to_count(state, rounds)

    def check_levels(self, levels: Numbers, why: str = "") -> None:
        """Refuse levels that the grid does not have; ``why`` is added to the message."""
        if self.to_nearest or is_traced(levels, self.levels) or np.ndim(self.levels) != 1:
            return  # what is traced cannot be looked at
        as_levels(levels)
        asked, grid = np.asarray(as_numbers("levels", levels), float), np.asarray(self.levels, float)
        ascending = np.sort(grid)
        after = np.searchsorted(ascending, asked)  # the two neighbours of each level: rounds may be many
        neighbours = (ascending[np.clip(place, 0, grid.size - 1)] for place in (after - 1, after))
        missing = np.minimum(*(np.abs(asked - neighbour) for neighbour in neighbours)) > SAME
        if missing.any():
            name, grids = type(self).__name__, (_format_levels(grid), _format_levels(np.unique(asked)))
            remedy = f"construct it with the levels that you ask for, {name}({grids[1]}), or use MultiOGD or MultiMVP"
            why = f"not in the grid of this {name}, {grids[0]}{why}; {remedy}, which answer with their nearest level"
            raise_at("levels", asked, missing, why)

    def quantile(self, state: State, levels: Numbers, context: Any = None) -> Float[Array, "..."]:
        """Predict the threshold of each level, which must be one of the grid; some methods take a context."""
        self._check_state(state)
        self.check_levels(levels)
        return _quantile(self, state, as_levels(levels, dtype_of(state)), self.context_row(state, context))

    def observe(self, state: State, score: Numbers, context: Any = None) -> State:
        """Return the state after one more score."""
        self._check_state(state)
        state = room_to_count(state, 1)
        score = as_score(score, self.support).astype(dtype_of(state))
        return _observe(self, state, score, self.context_row(state, context))

    def context_row(self, state: State, context: Any) -> tuple[Any, ...]:
        """Return what ``thresholds`` and ``learn`` are given besides: the context of one round, checked."""
        del state
        is_given(context, False, "", f"{type(self).__name__} takes none")
        return ()

    def _check_state(self, state: Any, batched: bool = False) -> None:
        check_not_forked()
        check_not_batched(self)
        name: str = type(self).__name__
        kind: Any = self.state_type
        if not isinstance(state, kind):
            raise ValueError(
                f"state is a {type(state).__name__}: {name} carries on from a {kind.__name__}, such as run.state"
            )
        check_countable(state)
        if np.ndim(state.seen) and not batched:
            raise ValueError(f"state is a batch of shape {np.shape(state.seen)}: use jax.vmap")
        leaves, structure = jax.tree.flatten(self)
        expected = _state_shapes(structure, tuple((np.shape(leaf), jnp.result_type(leaf)) for leaf in leaves))
        for field, own, wanted in zip(state._fields, state, expected, strict=True):
            shape = np.shape(own)[np.ndim(state.seen) :]
            if len(shape) != len(wanted) or any(
                a != b and not a < b == self.room for a, b in zip(shape, wanted, strict=True)
            ):
                raise ValueError(
                    f"state.{field} has shape {shape}, and this {name} works with {wanted}: carry on with the learner "
                    "that made it"
                )
        if hasattr(state, "latest"):
            check_latest(name, state.latest, self.support)

    def _check_width(self, dtype: Any) -> None:
        """Check that the support is still an interval in the precision to work in."""
        if not is_traced(self.support) and not is_interval(self.support, dtype):
            raise ValueError(
                f"{type(self).__name__} on [{self.low}, {self.high}] collapses in {np.dtype(dtype)}; rescale, or "
                "enable 64-bit JAX (jax_enable_x64)"
            )

    def is_valid(self) -> Any:
        """Whether hyperparameters are in range: traced ones, which nobody could check, may not be."""
        found = jnp.asarray(self.low < self.high)
        if (own := self.initial) is not None:
            found &= jnp.all(jnp.isfinite(own) if self.start_anywhere else (own >= self.low) & (own <= self.high))
        for name in self.not_negative:
            found &= True if getattr(self, name) is None else getattr(self, name) >= 0
        for name in self.positive:
            found &= getattr(self, name) > 0
        return found

    def start(self, dtype: Any) -> State:
        """Return the state before any score."""
        raise NotImplementedError

    def thresholds(self, state: State, *given: Any) -> Float[Array, " G"]:
        """Predict the threshold of each level of the grid, given the round's context where the method takes one."""
        raise NotImplementedError

    def learn(self, state: State, score: Float[Array, ""], *given: Any) -> State:
        """Return the state after a good score, without counting it."""
        raise NotImplementedError


def is_given(context: Any, wanted: bool, needed: str, refused: str) -> bool:
    """Whether there is a context; refuse one that is missing, or given in vain."""
    if wanted == (context is not None):
        return wanted
    raise ValueError(f"context is missing: {needed}" if wanted else f"context is given, and {refused}")


@jax.jit(static_argnames="dtype")
def _start(learner: Any, dtype: Any) -> State:
    return learner.start(dtype)


@jax.jit
def _quantile(learner: Any, state: State, levels: Array, given: tuple[Any, ...]) -> Array:
    grid = grid_of(learner, levels.dtype)
    own = jnp.where(jnp.isnan(grid) | ~learner.is_valid(), jnp.nan, learner.thresholds(state, *given))
    found = jnp.argmin(jnp.abs(levels[..., None] - grid.reshape((1,) * levels.ndim + (-1,))), axis=-1)
    known = learner.to_nearest | (jnp.abs(grid[found] - levels) <= SAME)
    return jnp.where((state.seen < 0) | jnp.isnan(levels) | ~known, jnp.nan, own[found])


@jax.jit
def _observe(learner: Any, state: State, score: Array, given: tuple[Any, ...]) -> State:
    valid = is_valid_score(score, learner.support)
    return learner.learn(state, score, *given)._replace(seen=advance(state.seen, valid))


def grid_of(learner: Any, dtype: Any) -> Float[Array, " G"]:
    """Return a learner's levels in the dtype to work in."""
    levels = jnp.asarray(learner.levels).astype(dtype)
    return jnp.where((levels >= 0) & (levels <= 1), levels, jnp.nan)


def width_of(learner: Any, dtype: Any) -> Float[Array, ""]:
    """Return the width of a learner's support."""
    width = jnp.asarray(learner.high, dtype) - jnp.asarray(learner.low, dtype)
    return jnp.where(width > 0, width, jnp.nan)


def initial_of(learner: Any, dtype: Any) -> Float[Array, " G"]:
    """Return where each level starts: the learner's own thresholds, or uniform quantiles on the support."""
    levels = grid_of(learner, dtype)
    if learner.initial is None:
        return jnp.asarray(learner.low, dtype) + width_of(learner, dtype) * levels
    return jnp.broadcast_to(jnp.asarray(learner.initial).astype(dtype), levels.shape)


def dtype_of(state: State) -> Any:
    """Return the floating type of a state."""
    return next(leaf.dtype for leaf in state if jnp.issubdtype(leaf.dtype, jnp.floating))


def _as_row(name: str, values: Numbers) -> Any:
    array = as_numbers(name, values)
    return jnp.atleast_1d(array) if is_traced(array) else np.atleast_1d(np.asarray(array, float))


def _format_levels(levels: np.ndarray) -> str:
    shown = [format_level(level) for level in levels]
    return f"[{', '.join(shown if len(shown) <= 8 else [*shown[:3], '…', shown[-1]])}]"


def check_in_support(learner: Any, name: str, values: Any, step: Any = None, also_0: Any = False) -> None:
    """
    Check that thresholds of a state lie in the support, give or take rounding.

    ``step``: Descent leaves the support by one step at most: above all scores it only steps down, below them only up.
    ``also_0``: Where 0 may stand instead, for there is no threshold yet.
    """
    why = "thresholds stay in the support" if step is None else "one step leads no further from the support"
    low: Any = np.float64(learner.low)
    high: Any = np.float64(learner.high)
    with np.errstate(over="ignore"):
        reach = (high - low) * (step or 0)
        reach = reach + 64 * float(jnp.finfo(values.dtype).eps) * (max(abs(low), abs(high)) + reach)
        low, high = low - reach, high + reach
    low, high = np.where(also_0, np.minimum(low, 0), low), np.where(also_0, np.maximum(high, 0), high)
    check_within(f"state.{name}", values, low, high, why)


@functools.lru_cache
def _state_shapes(structure: Any, leaves: tuple[Any, ...]) -> tuple[tuple[int, ...], ...]:
    """Return the shapes of a learner's state, by its own; remembered, for online use is a call a round."""
    learner = jax.tree.unflatten(structure, [jax.ShapeDtypeStruct(*leaf) for leaf in leaves])
    return tuple(leaf.shape for leaf in jax.eval_shape(lambda own: own.start(jnp.float32), learner))
