"""Adaptive conformal inference: quantiles of a sliding window, at a level that learns from misses."""

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from dpconformal.baselines.grid import initial_of
from dpconformal.baselines.window_learner import WindowLearner, check_window_and_misses, window_of
from dpconformal.beliefs.window import slide
from dpconformal.pytree import register
from dpconformal.validation import Scalar


class WindowAndMisses(NamedTuple):
    """The latest scores, as in :class:`dpconformal.beliefs.window.Window`, and how often each level missed."""

    seen: Int[Array, "*B"]
    latest: Float[Array, "*B W"]
    ordered: Float[Array, "*B W"]
    misses: Int[Array, "*B G"]  # rounds after the warm-up whose score exceeded the threshold of the level

    def check(self, learner: Any) -> None:
        """Refuse what no replay leaves."""
        check_window_and_misses(self, learner)


@register(static=("window", "warmup", "convention", "outside"))
@dataclass(frozen=True, eq=False)
class ACI(WindowLearner):
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
    not_negative: ClassVar[tuple[str, ...]] = ("rate",)

    def thresholds(self, state: WindowAndMisses) -> Float[Array, " G"]:
        """Predict the threshold of each level of the grid."""
        answers = self.ask(window_of(state), self.adapted_levels(state))
        return jnp.where(state.seen < self.warmup, initial_of(self, state.latest.dtype), answers)

    def learn(self, state: WindowAndMisses, score: Float[Array, ""]) -> WindowAndMisses:
        """Move the window on, and after the warm-up count the levels that missed."""
        missed = (score > self.thresholds(state)) & (state.seen >= self.warmup)
        return WindowAndMisses(*slide(window_of(state), score), state.misses + missed.astype(state.misses.dtype))
