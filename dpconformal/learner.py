"""The one protocol: a learner predicts thresholds from a state, then observes a score."""

from typing import Any, Protocol, runtime_checkable

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from dpconformal.checks import Numbers, Scalar

# A NamedTuple of arrays. Each learner has its own.
State = Any


@runtime_checkable
class Learner(Protocol):
    """
    What :func:`dpconformal.replay` needs of a method: ours, a baseline, or your own.

    A learner is a frozen dataclass registered as a pytree (:func:`dpconformal.pytree.register`).
    Two methods are optional: ``prepare(state, rounds)`` makes room for more rounds when a state is
    carried on, and ``cdf(state, x)`` makes the learner a *belief*, with PIT and CRPS.
    """

    @property
    def support(self) -> tuple[Scalar, Scalar]:
        """Ends of the interval that holds every score."""
        ...

    def init(self, rounds: int | None = None, dtype: Any = None) -> State:
        """Return the state before any score, sized for ``rounds`` of them where that matters."""
        ...

    def quantile(self, state: State, levels: Numbers) -> Array:
        """Predict the threshold of each level from the state alone."""
        ...

    def observe(self, state: State, score: Numbers) -> State:
        """Return the state after one more score."""
        ...


def usable(score: Float[Array, ""], support: tuple[Scalar, Scalar]) -> Bool[Array, ""]:
    """
    Whether a (possibly traced) score may enter a state.

    Parameters
    ----------
    score : Array
        The score.
    support : tuple
        The ends of the support.

    Returns
    -------
    Array
        False for NaN, infinite and out-of-support scores.
    """
    low, high = (jnp.asarray(end, score.dtype) for end in support)
    return jnp.isfinite(score) & (score >= low) & (score <= high)


def advance(count: Int[Array, ""], fine: Bool[Array, ""]) -> Int[Array, ""]:
    """
    Count one more score, or mark the state as spoilt.

    Inside ``jit`` nothing can raise. A bad score or a full buffer sets the count to -1 for good, and
    a belief with a negative count answers NaN to everything.

    Parameters
    ----------
    count : Array
        Scores seen, or -1.
    fine : Array
        Whether the new score could be taken in.

    Returns
    -------
    Array
        The new count.
    """
    return jnp.where(fine & (count >= 0), count + 1, -1).astype(count.dtype)
