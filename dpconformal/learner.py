"""The one protocol: a learner predicts thresholds from a state, then observes a score."""

import inspect
import math
from typing import Any, Protocol, runtime_checkable

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from dpconformal.checks import Numbers, Scalar

# A NamedTuple of arrays. Each learner has its own.
State = Any


@runtime_checkable
class Learner(Protocol):
    """
    What :func:`dpconformal.replay` needs of a method: ours, a baseline, or your own.

    A learner is a frozen dataclass registered as a pytree (:func:`dpconformal.pytree.register`).
    More is used where it is offered: ``support``, the ends of the interval that holds every score;
    ``init(rounds, dtype)``, a state sized for that many rounds; ``prepare(state, rounds)``, room for more
    rounds when a state is carried on; ``cdf(state, x, side)``, which makes the learner a *belief* with a PIT;
    ``recorded(begin, fresh, scores, levels, keep)``, a replay of its own, or None where the scan must do, asked about
    masked rounds only if it takes ``observed`` too;
    ``check_levels(levels, why)``, which refuses levels that it cannot answer;
    ``as_context(context, shape)``, which checks what a replay tells it besides scores and levels, a row a round that
    ``quantile`` and ``observe`` then take as ``context``.
    """

    def init(self) -> State:
        """Return the state before any score, a NamedTuple of arrays."""
        ...

    def quantile(self, state: State, levels: Numbers) -> Array:
        """Predict the threshold of each level from the state alone."""
        ...

    def observe(self, state: State, score: Numbers) -> State:
        """Return the state after one more score."""
        ...


def support_of(learner: Any) -> tuple[Scalar, Scalar]:
    """Return the ends of the interval that holds every score."""
    return getattr(learner, "support", (-math.inf, math.inf))


def fresh_state(learner: Any, rounds: int, dtype: Any) -> State:
    """Return the state before any score, sized for a replay where the learner's ``init`` takes that."""
    taken = inspect.signature(learner.init).parameters
    offered = {"rounds": rounds, "dtype": dtype}
    return learner.init(**{name: value for name, value in offered.items() if name in taken})


def check_levels(learner: Any, levels: Numbers, why: str = "") -> None:
    """
    Let a learner refuse levels that it cannot answer, before anything runs.

    ``why``: Where the levels come from, where the user did not ask for them: a part of the message.
    """
    if hasattr(learner, "check_levels"):
        learner.check_levels(levels, why)


def usable(score: Float[Array, "*n"], support: tuple[Scalar, Scalar]) -> Bool[Array, "*n"]:
    """Whether a (possibly traced) score may enter a state."""
    low, high = (jnp.asarray(end, score.dtype) for end in support)
    return jnp.isfinite(score) & (score >= low) & (score <= high)


def rounding(dtype: Any) -> float:
    """Tell how far apart numbers of about 1 may be that only rounding has parted."""
    return 64 * float(jnp.finfo(dtype).eps)
