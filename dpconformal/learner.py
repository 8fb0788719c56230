"""The protocols: a learner predicts thresholds from a state, then observes a score; some learners offer more."""

import math
from collections.abc import Callable
from typing import Any, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from dpconformal.validation import Numbers, Scalar, is_traced

# A NamedTuple of arrays. Each learner has its own.
State = Any


@runtime_checkable
class Learner(Protocol):
    """
    What :func:`dpconformal.replay` needs of a method: ours, a baseline, or your own.

    A learner is a frozen dataclass registered as a pytree (:func:`dpconformal.pytree.register`). An attribute
    ``support``, the ends of the interval that holds every score, is read where there is one. A learner that offers more
    follows one or more of these protocols: :class:`SizedLearner`, :class:`BeliefLearner`, :class:`GridOfLevels`,
    :class:`ContextLearner`, :class:`WeightedLearner`, :class:`KernelLearner`, :class:`PitLearner`,
    :class:`PlayedLearner`.
    """

    def init(self) -> State:
        """Return the state before any score, a NamedTuple of arrays."""

    def quantile(self, state: State, levels: Numbers) -> Array:
        """Predict the threshold of each level from the state alone."""

    def observe(self, state: State, score: Numbers) -> State:
        """Return the state after one more score."""


@runtime_checkable
class SizedLearner(Protocol):
    """A learner whose state depends on the number of rounds, or on the precision of the scores."""

    def init(self, rounds: int | None = None, dtype: Any = None) -> State:
        """Return the state before any score, for that many rounds in that precision."""

    def prepare(self, state: State, rounds: int) -> State:
        """Return a state, or a batch of them, with room for more rounds; refuse one that cannot be carried on from."""


@runtime_checkable
class BeliefLearner(Protocol):
    """A learner with a cdf: a belief about the next score, which has a PIT."""

    def cdf(self, state: State, x: Numbers, side: str = "right") -> Array:
        """Probability that the next score is at most x; with ``side="left"`` below x."""


@runtime_checkable
class GridOfLevels(Protocol):
    """A learner that answers some levels only."""

    def check_levels(self, levels: Numbers, why: str = "") -> None:
        """Refuse other levels; ``why`` tells where they come from, if the user did not ask for them."""


@runtime_checkable
class ContextLearner(Protocol):
    """A learner that is told more than scores: its ``quantile`` and ``observe`` take the ``context`` of the round."""

    def as_context(self, context: Any, shape: tuple[int, ...]) -> Any:
        """Check what a replay over scores of this shape tells, a row a round."""


@runtime_checkable
class WeightedLearner(Protocol):
    """A learner whose scores may count more or less."""

    def weighted_state(self, state: State, dtype: Any) -> State:
        """Return a state, or a batch of them, whose masses need not be whole numbers."""

    def observe_weighted(self, state: State, score: Numbers, weight: Array) -> State:
        """Return the state after one more score, whose mass is multiplied by its weight."""


@runtime_checkable
class KernelLearner(Protocol):
    """A learner with a way through recorded rounds that is faster than the generic scan."""

    def kernel(self, begin: State, fresh: bool, rounds: Any, keep: str) -> tuple[Any, State] | None:
        """
        Replay :class:`dpconformal.rounds.Rounds`: thresholds (..., T, A) or totals, and the final state.

        ``begin`` has room for every score, and the leading axes of the scores unless it is ``fresh``. Returns None
        where the generic scan must do; ``keep="summary"`` asks for :class:`dpconformal.engine.totals.Totals`.
        """


@runtime_checkable
class PitLearner(Protocol):
    """A belief with a way to the PITs of recorded scores that is faster than the generic scan."""

    def pits(self, begin: State, fresh: bool, rounds: Any) -> tuple[Any, State] | None:
        """
        Return the PIT of each score of :class:`dpconformal.rounds.Rounds`, shape (..., T), and the final state.

        The PIT is the left limit of the cdf before the score is learned. None where the generic scan must do.
        """


@runtime_checkable
class PlayedLearner(Protocol):
    """A learner that learns from the forecast that was played, too: it is told of it when the score becomes known."""

    def played(self, begin: State, fresh: bool, rounds: Any, feedback: Callable[[Any], Any]) -> Any:
        """
        Return the context of some rounds with what their forecasts said added, which comes with the scores.

        ``feedback`` turns :class:`dpconformal.rounds.Rounds` into what becomes known in each of them.
        """


def support_of(learner: Any) -> tuple[Scalar, Scalar]:
    """Return the ends of the interval that holds every score."""
    return getattr(learner, "support", (-math.inf, math.inf))


def fresh_state(learner: Any, rounds: int, dtype: Any) -> State:
    """Return the state before any score, for a replay of that many rounds."""
    if not isinstance(learner, SizedLearner):
        return learner.init()
    setting: Any = jax.config
    key = learner, rounds, np.dtype(dtype), setting.jax_enable_x64, setting.jax_default_device
    try:
        state = _FRESH.get(key)
    except TypeError:  # it holds arrays, or what is being traced
        return learner.init(rounds=rounds, dtype=dtype)
    if state is None:
        state = learner.init(rounds=rounds, dtype=dtype)
        if sum(leaf.nbytes for leaf in jax.tree.leaves(state)) <= _KEPT_BYTES and not is_traced(state):
            if len(_FRESH) >= _KEPT_STATES:
                _FRESH.clear()
            _FRESH[key] = state
    return state


# Small states of learners that were checked and started before: to check a schedule on its rounds takes a millisecond.
_FRESH: dict[Any, State] = {}
_KEPT_STATES, _KEPT_BYTES = 64, 2**18


def check_levels(learner: Any, levels: Numbers, why: str = "") -> None:
    """Let a learner refuse levels that it cannot answer, before anything runs."""
    if isinstance(learner, GridOfLevels):
        learner.check_levels(levels, why)


def is_valid_score(score: Float[Array, "*n"], support: tuple[Scalar, Scalar]) -> Bool[Array, "*n"]:
    """Whether a (possibly traced) score may enter a state."""
    low, high = (jnp.asarray(end, score.dtype) for end in support)
    return jnp.isfinite(score) & (score >= low) & (score <= high)


def rounding(dtype: Any) -> float:
    """Return how far apart numbers of about 1 may be if only rounding makes them differ."""
    return 64 * float(jnp.finfo(dtype).eps)
