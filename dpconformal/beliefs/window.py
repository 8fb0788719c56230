"""The evidence of methods that look back a fixed number of rounds: the latest scores, by time and by size."""

from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from dpconformal.validation import Scalar, beside, complain_at, is_traced

CONVENTIONS = ("linear", "higher", "inverted_cdf")


class Window(NamedTuple):
    """
    The latest scores.

    Attributes
    ----------
    seen : Array, shape ()
        Scores seen in all; -1 once a bad one was met inside ``jit``.
    latest : Array, shape (window,)
        The score of round t stands at (t - 1) mod window; +inf where none came yet.
    ordered : Array, shape (window,)
        The same, ascending.
    """

    seen: Int[Array, "*B"]  # ()
    latest: Float[Array, "*B W"]  # (window,)
    ordered: Float[Array, "*B W"]  # (window,)

    def check(self, learner: Any) -> None:
        """Refuse what no replay leaves; the support is :func:`check_latest`'s."""
        del learner
        check_filled(self.seen, self.latest, np.inf)
        ordered = np.asarray(self.ordered)
        complain_at("state.ordered", ordered, ordered != np.sort(self.latest, axis=-1), "state.latest, ascending")


def check_filled(seen: Any, latest: Any, nothing: float) -> None:
    """Refuse a window that holds no score where one must be, or something else where none came yet."""
    latest = np.asarray(latest)
    used = np.arange(latest.shape[-1]) < beside(seen, latest)
    empty = np.isnan(latest) if np.isnan(nothing) else latest == nothing
    why = f"state.seen scores stand first, {nothing} where none came yet"
    complain_at("state.latest", latest, np.where(used, ~np.isfinite(latest), ~empty), why)


def check_latest(owner: str, latest: Any, support: tuple[Scalar, Scalar]) -> None:
    """Check that the scores of a window are such as its learner would have taken."""
    if is_traced(latest, support):
        return
    scores = np.asarray(latest)
    low, high = (np.asarray(end, scores.dtype) for end in support)
    foreign = np.isfinite(scores) & ((scores < low) | (scores > high))
    why = f"outside the support [{low:g}, {high:g}] of this {owner}: carry on with the learner that made it"
    complain_at("state.latest", scores, foreign, why)


def empty_window(size: int, dtype: Any) -> Window:
    """Return a window before any score."""
    nothing = jnp.full(size, jnp.inf, dtype)
    return Window(jnp.zeros((), jnp.int32), nothing, nothing)


def slide(window: Window, score: Float[Array, ""]) -> Window:
    """
    Take in a score and drop the oldest, in O(window).

    Returns: Without counting the score: that is for the learner, which knows whether it is a good one.
    """
    size = window.latest.shape[-1]
    slot = jnp.arange(size, dtype=jnp.int32)
    now = (jnp.maximum(window.seen, 0) % size).astype(jnp.int32)
    # What stands above the one that goes moves down by one. While the window fills, a place without a score goes.
    gone = jnp.sum(window.ordered < window.latest[now], dtype=jnp.int32)
    left = jnp.where(slot < gone, window.ordered, jnp.roll(window.ordered, -1))
    place = jnp.sum(jnp.where(slot < size - 1, left <= score, False), dtype=jnp.int32)
    ordered = jnp.where(slot < place, left, jnp.where(slot == place, score, jnp.roll(left, 1)))
    return Window(window.seen, jnp.where(slot == now, score, window.latest), ordered)


def held(window: Window) -> Int[Array, ""]:
    """
    Count the scores in a window.

    Returns: At most its size; at least 1, so that one may divide by it.
    """
    return jnp.clip(window.seen, 1, window.latest.shape[-1])


def window_quantile(window: Window, levels: Float[Array, "*n"], convention: str) -> Float[Array, "*n"]:
    """
    Take an empirical quantile of the scores in a window.

    ``convention``: As for ``numpy.quantile``: interpolate between the neighbours of index (n - 1)·level, take the one
    above, or the smallest score that a share ``level`` of the window does not exceed. An index that rounding alone
    keeps from being a whole number is taken for one.
    """
    count = held(window)
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
    here = jnp.isfinite(window.ordered)
    return jnp.sum(here & (window.ordered >= score)).astype(score.dtype) / held(window).astype(score.dtype)
