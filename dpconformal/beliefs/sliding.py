"""The empirical distribution of a sliding window."""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from dpconformal.beliefs.empirical import rank_of_level
from dpconformal.beliefs.weights import check_precision, check_prior, check_unspoilt
from dpconformal.beliefs.window import Window, check_latest, empty_window, held, slide
from dpconformal.counting import advance, check_countable, joint_count, ready_to_merge, room_to_count
from dpconformal.learner import usable
from dpconformal.priors import Prior, Uniform
from dpconformal.pytree import register
from dpconformal.validation import Numbers, Scalar, as_floats, as_levels, as_score, check_not_batched, places


@register(static=("window",))
@dataclass(frozen=True)
class SlidingERM:
    """
    Empirical quantile of the latest scores: ERM that forgets.

    Follows drift at the pace of its window, and is as brittle as :class:`ERM`: an adversary that alternates costs it
    linear regret. For iid scores its coverage is off by O(1/window) on average. Thresholds never cross. A round costs
    O(window).

    Parameters
    ----------
    window : int
        Scores to remember.
    prior : Prior
        Answers while there is no score at all, and gives the support. It has no further influence.

    Examples
    --------
    >>> learner = SlidingERM(window=2)
    >>> state = learner.init()
    >>> for score in (0.1, 0.9, 0.5):
    ...     state = learner.observe(state, score)
    >>> learner.quantile(state, [0.1, 0.5, 0.9])
    Array([0.5, 0.5, 0.9], dtype=float...)
    """

    window: int = 100
    prior: Prior = Uniform()

    def __post_init__(self) -> None:
        check_prior("SlidingERM", self.prior)
        object.__setattr__(self, "window", places("SlidingERM.window", self.window, 1))

    @property
    def support(self) -> tuple[Scalar, Scalar]:
        """Ends of the interval that holds every score."""
        return self.prior.support

    def init(self, rounds: int | None = None, dtype: Any = None) -> Window:
        """Return the state before any score."""
        check_not_batched(self)
        dtype = dtype or jnp.result_type(float)
        check_precision(self, dtype)
        return empty_window(self.window, dtype)

    def prepare(self, state: Window, rounds: int) -> Window:
        """Check that a state, or a batch of them, can be carried on from, and that it can count the rounds to come."""
        self._check(state, batched=True)
        check_unspoilt(state.seen)
        if rounds:  # without any, nothing need be compiled
            check_precision(self, state.latest.dtype)
        return room_to_count(state, rounds)

    def observe(self, state: Window, score: Numbers) -> Window:
        """Return the state after one more score."""
        self._check(state)
        state = room_to_count(state, 1)
        return _observe(self, state, as_score(score, self.support).astype(state.latest.dtype))

    def quantile(self, state: Window, levels: Numbers) -> Float[Array, "..."]:
        """Predict the smallest score that a share ``level`` of the window does not exceed."""
        self._check(state)
        return _quantile(self, state, as_levels(levels, state.latest.dtype))

    def cdf(self, state: Window, x: Numbers, side: str = "right") -> Float[Array, "..."]:
        """Share of the window that is at most x; with ``side="left"`` below x."""
        self._check(state)
        return _cdf(self, state, as_floats(x).astype(state.latest.dtype), side)

    def merge(self, first: Window, second: Window) -> Window:
        """Return the state that saw the scores of ``first``, then those of ``second``."""
        self._check(first)
        self._check(second)
        return _merge(self, *ready_to_merge(first, second))

    def _check(self, state: Any, batched: bool = False) -> None:
        check_not_batched(self)
        if not isinstance(state, Window):
            raise ValueError(
                f"state is a {type(state).__name__}: SlidingERM carries on from a Window, such as run.state"
            )
        check_countable(state)
        if np.ndim(state.seen) and not batched:
            raise ValueError(f"state is a batch of shape {np.shape(state.seen)}: use jax.vmap")
        if state.latest.shape[-1] != self.window:
            raise ValueError(
                f"state has room for {state.latest.shape[-1]} scores, and this SlidingERM has window = {self.window}"
            )
        check_latest("SlidingERM", state.latest, self.support)


@jax.jit
def _observe(learner: SlidingERM, state: Window, score: Array) -> Window:
    return slide(state, score)._replace(seen=advance(state.seen, usable(score, learner.support)))


@jax.jit
def _quantile(learner: SlidingERM, state: Window, levels: Array) -> Array:
    rank = rank_of_level(levels, held(state))
    answers = state.ordered[jnp.clip(rank - 1, 0, state.ordered.shape[-1] - 1)]
    answers = jnp.where(rank > 0, answers, jnp.asarray(learner.support[0], levels.dtype))
    answers = jnp.where(state.seen == 0, learner.prior.quantile(levels), answers)
    return jnp.where((state.seen < 0) | jnp.isnan(levels), jnp.nan, answers)


@jax.jit(static_argnames="side")
def _cdf(learner: SlidingERM, state: Window, x: Array, side: str) -> Array:
    count = held(state)
    passed = jnp.minimum(jnp.searchsorted(state.ordered, x, side=side), count)
    share = passed.astype(x.dtype) / count.astype(x.dtype)
    share = jnp.where(state.seen == 0, learner.prior.cdf(x), share)
    return jnp.where((state.seen < 0) | jnp.isnan(x), jnp.nan, share)


@jax.jit
def _merge(learner: SlidingERM, first: Window, second: Window) -> Window:
    """Play the scores that the second still remembers to the first, in the order they came."""
    size = learner.window
    seen = jnp.maximum(second.seen, 0)
    first_kept = jnp.maximum(seen - size, 0)

    def play(k: Array, window: Window) -> Window:
        score = second.latest[(first_kept + k) % size].astype(window.latest.dtype)
        return slide(window, score)._replace(seen=window.seen + 1)

    # Scores that the second has forgotten itself move the first on without being remembered.
    start = first._replace(seen=first.seen + first_kept)
    stop = jnp.minimum(seen, size)
    merged = jax.lax.fori_loop(jnp.zeros_like(stop), stop, play, start)
    return merged._replace(seen=joint_count(first.seen, second.seen))
