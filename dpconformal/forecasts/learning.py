"""Learners that predict a whole distribution of the next score: what they share."""

import math
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from dpconformal.beliefs.belief import check_valid_count
from dpconformal.engine.scan import drive
from dpconformal.engine.states import advance, check_countable, room_to_count
from dpconformal.forecasts.distributions import SHAPES, LocationScale, Quantiles, scale_for_mean_error
from dpconformal.learner import State, is_valid_score
from dpconformal.rounds import Rounds, first_rounds, pad_with_last, padded_length
from dpconformal.validation import (
    Numbers,
    Scalar,
    as_floats,
    as_levels,
    as_score,
    check_float,
    check_not_batched,
    check_within,
    is_traced,
)

# The smallest number whose logarithm is taken: the smallest normal one of float32.
SMALLEST = 1.1754944e-38
EXEMPT = 10  # first rounds in which no score is taken for an outlier
_DF = 4.0  # degrees of freedom, where none are given
OUTLIER = 10.0  # scales: a score is learnt as if it were no further from its forecast


class Errors(NamedTuple):
    """Absolute errors of the forecasts."""

    total: Float[Array, "*B"]  # (), discounted sum; after one score its size, a first guess of the scale
    mass: Float[Array, "*B"]  # (), discounted number of errors; 0 until there are two scores


def check_sums(state: Any) -> None:
    """Check that the sums of a state are finite, and that those of sizes are not negative."""
    for name, leaf in state._asdict().items():
        for part in leaf if isinstance(leaf, Errors) else (leaf,):
            low = 0 if isinstance(leaf, Errors) or name == "mass" else -np.inf
            if name != "seen":
                check_within(f"state.{name}", part, low, np.inf)


ANY = np.zeros(1, np.float32)  # levels for form's sake: what is read off a round is the whole distribution


def _predict_here(learner: Any, state: State, score: Array, levels: Array, context: Any = None) -> Any:
    return learner.forecast(state, context)


def _ask(found: Any, method: str, numbers: Any, rounds: Rounds) -> Any:
    """Ask the distribution of each round, (..., T), about numbers, (A,) or (..., T, A); compiled for few lengths."""
    axis, length = len(rounds.batch), rounds.length
    if is_traced(found, numbers):
        return _ask_all(found, method, axis + 1, jnp.asarray(numbers))
    missing = padded_length(length) - length
    found = jax.tree.map(lambda leaf: pad_with_last(leaf, axis, missing), found)
    if np.ndim(numbers) > 1:
        numbers = pad_with_last(numbers, np.ndim(numbers) - 2, missing)
    return first_rounds(_ask_all(found, method, axis + 1, jnp.asarray(numbers)), axis, length)


@jax.jit(static_argnames=("method", "axes"))
def _ask_all(found: Any, method: str, axes: int, numbers: Array) -> Array:
    shape = jax.tree.leaves(found)[0].shape[:axes]
    numbers = jnp.broadcast_to(numbers, (*shape, numbers.shape[-1]))
    flat, asked = jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[len(shape) :]), (found, numbers))
    return jax.vmap(lambda one, asked: getattr(one, method)(asked))(flat, asked).reshape(numbers.shape)


class Forecaster:
    """A learner whose belief is a distribution with a density, computed from its state and the round's context."""

    low: Scalar
    high: Scalar
    shape: str
    df: Scalar
    state_type: ClassVar[Any]
    at_least: ClassVar[dict[str, float]] = {"df": 1.0}  # hyperparameters, and their least values

    def __post_init__(self) -> None:
        own = type(self).__name__
        if self.shape not in SHAPES:
            raise ValueError(f"{own}.shape = {self.shape!r}: pass one of {', '.join(map(repr, SHAPES))}")
        for name, least in self.at_least.items():
            object.__setattr__(self, name, check_float(f"{own}.{name}", getattr(self, name), least))
        if self.shape != "student_t" and not is_traced(self.df) and not np.array_equal(self.df, _DF):
            raise ValueError(f"{own}.df = {self.df}: only shape='student_t' has degrees of freedom; leave it out")
        for name, infinite in (("low", -math.inf), ("high", math.inf)):
            end = getattr(self, name)
            if is_traced(end) or np.ndim(end) or end != infinite:
                object.__setattr__(self, name, check_float(f"{own}.{name}", end))
        if is_traced(self.low, self.high):
            return
        if not np.all(np.asarray(self.low) < np.asarray(self.high)):
            raise ValueError(f"{own}.high = {self.high}: must exceed low = {self.low}")
        if self.shape == "log_normal":
            if np.any(np.asarray(self.low) < 0) and not np.array_equal(self.low, -math.inf):
                raise ValueError(f"{own}.low = {self.low}: a log-normal score is positive; leave low out, or pass 0")
            object.__setattr__(self, "low", 0.0 if np.array_equal(self.low, -math.inf) else self.low)

    @property
    def support(self) -> tuple[Scalar, Scalar]:
        """Ends of the interval that holds every score; without 0 where a logarithm is taken."""
        if self.shape != "log_normal":
            return self.low, self.high
        return (jnp.maximum(self.low, SMALLEST) if is_traced(self.low) else max(self.low, SMALLEST)), self.high

    def start(self, dtype: Any) -> State:
        """Return the state before any score."""
        raise NotImplementedError

    def predict(self, state: State, context: Any) -> LocationScale | Quantiles:
        """Return the distribution of the next score."""
        raise NotImplementedError

    def learn(self, state: State, score: Float[Array, ""], context: Any) -> State:
        """Learn from a score that is on the support; it is counted elsewhere."""
        raise NotImplementedError

    def init(self, rounds: int | None = None, dtype: Any = None) -> State:
        """Return the state before any score."""
        check_not_batched(self)
        return self.start(np.dtype(dtype or jnp.result_type(float)))

    def prepare(self, state: State, rounds: int) -> State:
        """Check that the rounds to come can be counted."""
        self._check(state, batched=True)
        check_valid_count(state.seen)
        return room_to_count(state, rounds)

    def forecast(self, state: State, context: Any = None) -> LocationScale | Quantiles:
        """Return the distribution of the next score."""
        self._check(state)
        return _predict(self, state, context)

    def quantile(self, state: State, levels: Numbers, context: Any = None) -> Float[Array, "..."]:
        """Predict the threshold of each level."""
        found = self.forecast(state, context)
        return found.quantile(as_levels(levels, jax.tree.leaves(found)[0].dtype))

    def cdf(self, state: State, x: Numbers, side: str = "right", context: Any = None) -> Float[Array, "..."]:
        """Probability that the next score is at most x; there are no atoms, so ``side`` makes no difference."""
        del side
        found = self.forecast(state, context)
        return found.cdf(as_floats(x).astype(jax.tree.leaves(found)[0].dtype))

    def observe(self, state: State, score: Numbers, context: Any = None) -> State:
        """Return the state after one more score."""
        self._check(state)
        return _observe(self, room_to_count(state, 1), as_score(score, self.support), context)

    def kernel(self, begin: State, fresh: bool, rounds: Rounds, keep: str) -> tuple[Any, State] | None:
        """Learn in one scan, and compute the thresholds of all rounds after it; None where only totals are wanted."""
        if keep == "summary":
            return None
        found, end = drive(_predict_here, self, begin, rounds._replace(levels=ANY), fresh=fresh)
        return _ask(found, "quantile", rounds.levels, rounds), end

    def pits(self, begin: State, fresh: bool, rounds: Rounds) -> tuple[Any, State]:
        """Return the PIT of each score before it is learned, and the final state."""
        found, end = drive(_predict_here, self, begin, rounds._replace(levels=ANY), fresh=fresh)
        return _ask(found, "cdf", rounds.scores[..., None], rounds)[..., 0], end

    def _check(self, state: Any, batched: bool = False) -> None:
        check_not_batched(self)
        if not isinstance(state, self.state_type):
            name = self.state_type.__name__
            raise ValueError(
                f"state is a {type(state).__name__}: {type(self).__name__} carries on from a {name}, such as run.state"
            )
        check_countable(state)
        if np.ndim(state.seen) and not batched:
            raise ValueError(f"state is a batch of shape {np.shape(state.seen)}: use jax.vmap")


@jax.jit
def _predict(learner: Forecaster, state: Any, context: Any) -> Any:
    found, invalid = learner.predict(state, context), state.seen < 0
    return jax.tree.map(lambda leaf: jnp.where(invalid, jnp.nan, leaf), found)


@jax.jit
def _observe(learner: Forecaster, state: State, score: Array, context: Any) -> State:
    valid = is_valid_score(score, learner.support)
    low, high = (jnp.asarray(end, score.dtype) for end in learner.support)
    known = jnp.where(valid, score, jnp.clip(jnp.ones((), score.dtype), low, high))
    return learner.learn(state, known, context)._replace(seen=advance(state.seen, valid))


class LearntScale(Forecaster):
    """
    A forecaster whose scale is a discounted mean of the absolute errors.

    A subclass says where it expects the next score (``location``) and how it learns from one (``learn_location``), on
    the axis of the shape: that of the logarithm for a log-normal one. A score that is more than ten scales from its
    forecast is learnt as if it were ten scales away, so that one huge score spoils neither location nor scale; the
    first ten are exempt.
    """

    scale_memory: Scalar
    at_least: ClassVar[dict[str, float]] = {"df": 1.0, "memory": 1.0, "scale_memory": 1.0}

    def location(self, state: State, context: Any) -> Float[Array, ""]:
        """Return where the next score is expected, once there is a score."""
        raise NotImplementedError

    def learn_location(self, state: State, score: Float[Array, ""], context: Any) -> State:
        """Learn from a score."""
        raise NotImplementedError

    def predict(self, state: State, context: Any) -> LocationScale:
        """Return the distribution of the next score."""
        errors, dtype = state.errors, state.errors.total.dtype
        location = jnp.where(state.seen > 0, self.location(state, context), 0)
        error = jnp.where(errors.mass > 0, errors.total / jnp.maximum(errors.mass, 1), errors.total)
        error = jnp.where((error == 0) & (errors.mass == 0), 1, error)  # nothing is known of the scale
        # Next to a constant, errors are what rounding makes of it; a scale below that would make nonsense of the PITs.
        limits = jnp.finfo(dtype)
        least = 64 * limits.eps * jnp.abs(location) + 2.0**20 * limits.tiny
        scale = jnp.maximum(error * scale_for_mean_error(self.shape, self.df, dtype), least)
        low, high = (jnp.asarray(end, dtype) for end in self.support)
        if self.shape == "log_normal":
            low, high = jnp.log(low), jnp.log(high)
        # A location outside the support would leave hardly any of the mass inside.
        scale = jnp.minimum(scale, high - low)
        df, low_end, high_end = (jnp.asarray(part, dtype) for part in (self.df, self.low, self.high))
        return LocationScale(jnp.clip(location, low, high), scale, df, low_end, high_end, self.shape)

    def learn(self, state: State, score: Float[Array, ""], context: Any) -> State:
        """Learn from a score: the error of its forecast, then where to expect the next one."""
        dtype, seen = state.errors.total.dtype, state.seen
        z, of = score.astype(dtype), self.predict(state, context)
        z = jnp.log(z) if self.shape == "log_normal" else z
        limit = jnp.where(seen >= EXEMPT, OUTLIER * of.scale, jnp.inf)
        z = jnp.clip(z, of.location - limit, of.location + limit)
        error, kept = jnp.abs(z - of.location), 1 - 1 / jnp.asarray(self.scale_memory, dtype)
        # The first score has no forecast to differ from: its size is the guess of the scale until the second.
        total = jnp.where(seen == 0, jnp.abs(z), jnp.where(seen == 1, 0, kept * state.errors.total) + error)
        mass = jnp.where(seen == 0, 0, kept * state.errors.mass + 1)
        return self.learn_location(state, z, context)._replace(errors=Errors(total, mass))
