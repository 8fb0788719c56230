"""Adaptive conformal inference: quantiles of a sliding window, at a level that learns from misses."""

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from dpconformal.baselines.grid import GridLearner, grid_of, initial_of
from dpconformal.baselines.grid_checks import check_grid
from dpconformal.beliefs.window import CONVENTIONS, Window, empty_window, slide, window_quantile
from dpconformal.checks import Scalar, beside, check_within, number, places
from dpconformal.learner import rounding
from dpconformal.pytree import register

OUTSIDE = ("ends", "infinite", "extremes")


class WindowAndMisses(NamedTuple):
    """
    The latest scores and how often each level missed.

    Attributes
    ----------
    seen : Array, shape ()
        Scores seen; -1 once a bad one was met inside ``jit``.
    latest, ordered : Array, shape (window,)
        As in :class:`dpconformal.beliefs.window.Window`.
    misses : Array, shape (G,)
        Rounds after the warm-up whose score exceeded the threshold of the level. A count: adapted levels are computed
        from it anew each round, so that no rounding piles up.
    """

    seen: Int[Array, "*B"]  # ()
    latest: Float[Array, "*B W"]  # (window,)
    ordered: Float[Array, "*B W"]  # (window,)
    misses: Int[Array, "*B G"]  # (G,)

    def check(self, learner: Any) -> None:
        """Refuse what no replay leaves."""
        check_window_and_misses(self, learner)


def check_window_and_misses(state: Any, learner: Any) -> None:
    """Refuse a window that is out of order, and more misses than there were rounds after the warm-up."""
    window_of(state).check(learner)
    check_within("state.misses", state.misses, 0, beside(judged_rounds(state, learner), state.misses))


def judged_rounds(state: Any, learner: Any) -> Any:
    """Return the number of rounds after the warm-up."""
    return np.maximum(np.asarray(state.seen, np.int64) - learner.warmup, 0)


def check_window(learner: Any) -> None:
    """Check and normalise what the methods with a window have in common, while one is being constructed."""
    owner = type(learner).__name__
    check_grid(learner)
    object.__setattr__(learner, "window", places(f"{owner}.window", learner.window, 1))
    object.__setattr__(learner, "warmup", places(f"{owner}.warmup", learner.warmup, 1))
    for name, choices in (("convention", CONVENTIONS), ("outside", OUTSIDE)):
        value = getattr(learner, name, choices[0])
        if value not in choices:
            raise ValueError(f"{owner}.{name} = {value!r}: pass one of {', '.join(map(repr, choices))}")


def window_of(state: Any) -> Window:
    """Return the window within a state."""
    return Window(state.seen, state.latest, state.ordered)


def adapted_levels(
    levels: Float[Array, "*n"], misses: Int[Array, "*n"], rounds: Int[Array, ""], rate: Float[Array, "*n"]
) -> Float[Array, "*n"]:
    """
    Compute the level at which ACI asks its window: higher after misses, lower after coverage.

    One round moves it by rate · (miss - (1 - level)); together they come to the closed form used here.
    """
    expected = (1 - levels) * rounds.astype(levels.dtype)
    return levels + rate * (misses.astype(levels.dtype) - expected)


def asked_of_window(
    learner: Any, window: Window, levels: Float[Array, "*n"], convention: str, outside: str
) -> Float[Array, "*n"]:
    """Take quantiles of a window at levels that may lie outside [0, 1]."""
    inside = window_quantile(window, jnp.clip(levels, 0, 1), convention)
    if outside == "extremes":
        return inside
    ends = (-jnp.inf, jnp.inf) if outside == "infinite" else learner.support
    low, high = (jnp.asarray(end, levels.dtype) for end in ends)
    edge = rounding(levels.dtype)  # a level that rounding alone has carried past an end is still inside
    return jnp.where(levels > 1 + edge, high, jnp.where(levels < -edge, low, inside))


@register(static=("window", "warmup", "convention", "outside"))
@dataclass(frozen=True, eq=False)
class ACI(GridLearner):
    """
    Adaptive conformal inference: the quantile of a sliding window at an adapted level, for each level of a grid.

    A miss raises the level at which the window is asked by γ · level, a covered round lowers it by γ · (1 - level).
    ``ACI(levels=[0.9], rate=0.005, window=100)`` is the setting of the paper's stock experiment.

    Guarantee, with no assumption: over T rounds after the warm-up the coverage frequency is within (1 + γ)/(γT) of
    the level, on any sequence, if levels outside [0, 1] cover everything or nothing: with ``outside="infinite"``
    always, with ``"ends"`` if no score equals ``low``. No guarantee on the loss. Thresholds of different levels may
    cross. A round costs O(window).

    Parameters
    ----------
    levels : array_like, shape (G,)
        The grid; other levels are refused.
    rate : float
        γ, how much one round moves the level.
    window : int
        Latest scores to take quantiles of.
    warmup : int
        Rounds at the start that are answered by ``initial`` and from which only the window learns.
    convention : {"linear", "higher", "inverted_cdf"}
        Quantile of the window, as for ``numpy.quantile``.
    outside : {"ends", "infinite", "extremes"}
        Threshold where the adapted level leaves [0, 1]: ``high`` or ``low``; ±∞, a set of everything or nothing; or
        the largest or smallest score of the window, which gives up the guarantee.
    initial : array_like, optional
        Threshold of the warm-up, one for all levels or one for each; low + level · (high - low) by default.
    low, high : float
        The support. Scores outside are refused.

    References
    ----------
    Gibbs and Candès (2021), Adaptive conformal inference under distribution shift.

    Examples
    --------
    >>> import dpconformal as dpc
    >>> run = dpc.replay(ACI(levels=[0.9], window=3, warmup=2), [0.2, 0.4, 0.6, 0.1], [0.9])
    >>> run.thresholds.ravel().round(3)
    Array([0.9  , 0.9  , 0.38 , 0.562], dtype=float...)
    """

    levels: Any
    rate: Scalar = 0.005
    window: int = 100
    warmup: int = 10
    convention: str = "linear"
    outside: str = "ends"
    initial: Any = None
    low: Scalar = 0.0
    high: Scalar = 1.0
    state_type: ClassVar[type] = WindowAndMisses

    def __post_init__(self) -> None:
        check_window(self)
        object.__setattr__(self, "rate", number("ACI.rate", self.rate, 0.0))

    def sound(self) -> Any:
        """Tell whether hyperparameters are in range."""
        return super().sound() & jnp.asarray(self.rate >= 0)

    def start(self, dtype: Any) -> WindowAndMisses:
        """Return the state before any score."""
        return WindowAndMisses(*empty_window(self.window, dtype), jnp.zeros(len(self.levels), jnp.int32))

    def thresholds(self, state: WindowAndMisses) -> Float[Array, " G"]:
        """Predict the threshold of each level of the grid."""
        dtype = state.latest.dtype
        levels, rate = grid_of(self, dtype), jnp.asarray(self.rate, dtype)
        adapted = adapted_levels(levels, state.misses, state.seen - self.warmup, jnp.broadcast_to(rate, levels.shape))
        answers = asked_of_window(self, window_of(state), adapted, self.convention, self.outside)
        return jnp.where(state.seen < self.warmup, initial_of(self, dtype), answers)

    def learn(self, state: WindowAndMisses, score: Float[Array, ""]) -> WindowAndMisses:
        """Move the window on, and after the warm-up count the levels that missed."""
        missed = (score > self.thresholds(state)) & (state.seen >= self.warmup)
        return WindowAndMisses(*slide(window_of(state), score), state.misses + missed.astype(state.misses.dtype))
