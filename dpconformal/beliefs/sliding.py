"""
A window of the latest scores, by time and by size, and :class:`SlidingERM`, which answers with its quantiles.

Baselines that look back a fixed number of rounds keep the same window.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from dpconformal.beliefs.belief import check_precision, check_prior, check_state, check_valid_count
from dpconformal.beliefs.empirical import PriorUntilScores, cdf_by_rank, quantile_by_rank
from dpconformal.engine.states import advance, check_countable, joint_count, ready_to_merge, room_to_count
from dpconformal.learner import is_valid_score
from dpconformal.priors import Prior, Uniform
from dpconformal.pytree import register
from dpconformal.validation import (
    Numbers,
    Scalar,
    add_trailing_axes,
    as_floats,
    as_levels,
    as_score,
    check_not_batched,
    check_size,
    is_traced,
    raise_at,
)

CONVENTIONS = ("linear", "higher", "inverted_cdf")


class Window(NamedTuple):
    """The latest scores."""

    seen: Int[Array, "*B"]  # (): scores seen in all; -1 once a bad one was met inside ``jit``
    latest: Float[Array, "*B W"]  # (window,): that of round t stands at (t - 1) mod window; +inf where none came yet
    ordered: Float[Array, "*B W"]  # (window,): the same, ascending

    def check(self, learner: Any) -> None:
        """Refuse a state that no replay leaves; :func:`check_latest` checks the support."""
        check_filled(self.seen, self.latest, np.inf)
        ordered = np.asarray(self.ordered)
        raise_at("state.ordered", ordered, ordered != np.sort(self.latest, axis=-1), "state.latest, ascending")


def check_filled(seen: Any, latest: Any, nothing: float) -> None:
    """Refuse a window that holds no score where one must be, or something else where none came yet."""
    latest = np.asarray(latest)
    used = np.arange(latest.shape[-1]) < add_trailing_axes(seen, latest)
    empty = np.isnan(latest) if np.isnan(nothing) else latest == nothing
    why = f"state.seen scores stand first, {nothing} where none came yet"
    raise_at("state.latest", latest, np.where(used, ~np.isfinite(latest), ~empty), why)


def check_latest(owner: str, latest: Any, support: tuple[Scalar, Scalar]) -> None:
    """Check that the scores of a window are such as its learner would have taken."""
    if is_traced(latest, support):
        return
    scores = np.asarray(latest)
    low, high = (np.asarray(end, scores.dtype) for end in support)
    foreign = np.isfinite(scores) & ((scores < low) | (scores > high))
    why = f"outside the support [{low:g}, {high:g}] of this {owner}: carry on with the learner that made it"
    raise_at("state.latest", scores, foreign, why)


def empty_window(size: int, dtype: Any) -> Window:
    """Return a window before any score."""
    nothing = jnp.full(size, jnp.inf, dtype)
    return Window(jnp.zeros((), jnp.int32), nothing, nothing)


def slide(window: Window, score: Float[Array, ""]) -> Window:
    """Take in a score and drop the oldest, in O(window). The learner counts it: only it knows whether it is valid."""
    size = window.latest.shape[-1]
    slot = jnp.arange(size, dtype=jnp.int32)
    now = (jnp.maximum(window.seen, 0) % size).astype(jnp.int32)
    # What stands above the one that goes moves down by one. While the window fills, a place without a score goes.
    gone = jnp.sum(window.ordered < window.latest[now], dtype=jnp.int32)
    left = jnp.where(slot < gone, window.ordered, jnp.roll(window.ordered, -1))
    place = jnp.sum(jnp.where(slot < size - 1, left <= score, False), dtype=jnp.int32)
    ordered = jnp.where(slot < place, left, jnp.where(slot == place, score, jnp.roll(left, 1)))
    return Window(window.seen, jnp.where(slot == now, score, window.latest), ordered)


def count_scores(window: Window) -> Int[Array, ""]:
    """Count the scores in a window: at most its size, and at least 1, so that one may divide by it."""
    return jnp.clip(window.seen, 1, window.latest.shape[-1])


def window_quantile(window: Window, levels: Float[Array, "*n"], convention: str) -> Float[Array, "*n"]:
    """
    Take an empirical quantile of the scores in a window.

    ``convention``: As for ``numpy.quantile``: interpolate between the neighbours of index (n - 1)·level, take the one
    above, or the smallest score that a share ``level`` of the window does not exceed. An index that rounding alone
    keeps from being a whole number is taken for one.
    """
    count = count_scores(window)
    size = count.astype(levels.dtype)
    index = levels * size - 1 if convention == "inverted_cdf" else levels * (size - 1)
    whole = jnp.round(index)
    # Adapted levels are off by more than their last bits: 0.9 is no float, and an error of 2e-17 counts every round.
    slack = max(8 * float(jnp.finfo(levels.dtype).eps), 1e-12)
    index = jnp.where(jnp.abs(index - whole) <= slack * size, whole, index)
    above = jnp.clip(jnp.ceil(index), 0, size - 1)
    ordered = jnp.where(jnp.isfinite(window.ordered), window.ordered, 0)  # nobody asks an empty window for more
    upper = ordered[above.astype(jnp.int32)]
    if convention != "linear":
        return upper
    below = jnp.clip(jnp.floor(index), 0, size - 1)
    lower = ordered[below.astype(jnp.int32)]
    part = jnp.clip(index - below, 0, 1)
    return lower + part * (upper - lower)


def share_at_least(window: Window, score: Float[Array, ""]) -> Float[Array, ""]:
    """Return the share of the window that is at least as large as a score: its p-value among them."""
    present = jnp.isfinite(window.ordered)
    return jnp.sum(present & (window.ordered >= score)).astype(score.dtype) / count_scores(window).astype(score.dtype)


@register(static=("window",))
@dataclass(frozen=True)
class SlidingERM(PriorUntilScores):
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
        object.__setattr__(self, "window", check_size("SlidingERM.window", self.window, 1))

    def init(self, rounds: int | None = None, dtype: Any = None) -> Window:
        """Return the state before any score."""
        check_not_batched(self)
        dtype = dtype or jnp.result_type(float)
        check_precision(self, dtype)
        return empty_window(self.window, dtype)

    def prepare(self, state: Window, rounds: int) -> Window:
        """Check that a state, or a batch of them, can be carried on from, and that it can count the rounds to come."""
        self._check(state, batched=True)
        check_valid_count(state.seen)
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
        check_state(self, state, Window, batched)
        check_countable(state)
        if state.latest.shape[-1] != self.window:
            raise ValueError(
                f"state has room for {state.latest.shape[-1]} scores, and this SlidingERM has window = {self.window}"
            )
        check_latest("SlidingERM", state.latest, self.support)


@jax.jit
def _observe(learner: SlidingERM, state: Window, score: Array) -> Window:
    return slide(state, score)._replace(seen=advance(state.seen, is_valid_score(score, learner.support)))


@jax.jit
def _quantile(learner: SlidingERM, state: Window, levels: Array) -> Array:
    count = jnp.minimum(state.seen, learner.window).astype(jnp.int32)
    return quantile_by_rank(learner, state.ordered, state.seen, count, levels)


@jax.jit(static_argnames="side")
def _cdf(learner: SlidingERM, state: Window, x: Array, side: str) -> Array:
    count = jnp.minimum(state.seen, learner.window).astype(jnp.int32)
    return cdf_by_rank(learner, state.ordered, state.seen, count, x, side)


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
