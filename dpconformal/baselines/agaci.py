"""Aggregated adaptive conformal inference: thresholds at several rates, mixed by Bernstein online aggregation."""

import math
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import jax.numpy as jnp
from jax.nn import softmax
from jaxtyping import Array, Float, Int

from dpconformal.baselines.aci import asked_of_window, check_window, window_of
from dpconformal.baselines.dtaci import RATES, check_rates, levels_of_experts
from dpconformal.baselines.grid import GridLearner, grid_of, initial_of
from dpconformal.baselines.ogd import slope
from dpconformal.beliefs.window import empty_window, slide
from dpconformal.checks import Scalar
from dpconformal.pytree import register


class WindowAndRegrets(NamedTuple):
    """
    The latest scores, and experts that differ in their rate.

    Attributes
    ----------
    seen : Array, shape ()
        Scores seen; -1 once a bad one was met inside ``jit``.
    latest, ordered : Array, shape (window,)
        As in :class:`dpconformal.beliefs.window.Window`.
    misses : Array, shape (G, K)
        Rounds after the warm-up that each expert of each level missed.
    regret : Array, shape (G, K)
        What each expert would have saved, less a second-order penalty.
    largest : Array, shape (G, K)
        The most that an expert has gained or lost in one round.
    squares : Array, shape (G, K)
        Sum of squared gains.
    """

    seen: Int[Array, "*B"]  # ()
    latest: Float[Array, "*B W"]  # (window,)
    ordered: Float[Array, "*B W"]  # (window,)
    misses: Int[Array, "*B G K"]  # (G, K)
    regret: Float[Array, "*B G K"]  # (G, K)
    largest: Float[Array, "*B G K"]  # (G, K)
    squares: Float[Array, "*B G K"]  # (G, K)


@register(static=("window", "warmup", "convention"))
@dataclass(frozen=True)
class AgACI(GridLearner):
    """
    Aggregated ACI: ACI at several rates, whose thresholds are mixed by Bernstein online aggregation (BOA).

    Each expert is an :class:`ACI` with its own rate and its own misses. Their thresholds are averaged with weights
    proportional to exp(η·(regret - η·squared gains)), gains being linearised at the mean threshold; each expert's η
    is min(1/(2·largest gain), √(ln K / sum of squared gains)).

    Guarantee, with no assumption: the quantile loss is close to that of the best fixed mixture of the experts,
    O(√(T ln K)) in T rounds. None on coverage for the mixture. Thresholds of different levels may cross. A round
    costs O(window + K).

    Parameters
    ----------
    levels : array_like, shape (G,)
        The grid; a query goes to the nearest level.
    rates : array_like, shape (K,)
        γ of each expert.
    window : int
        Latest scores to take quantiles of.
    warmup : int
        Rounds at the start that are answered by ``initial`` and from which only the window learns.
    convention : {"linear", "higher", "inverted_cdf"}
        Quantile of the window, as for ``numpy.quantile``.
    initial : array_like, optional
        Threshold of the warm-up, one for all levels or one for each; low + level · (high - low) by default.
    low, high : float
        The support. Scores outside are refused; an expert whose level leaves [0, 1] answers with an end of it.

    References
    ----------
    Zaffran, Féron, Goude, Josse and Dieuleveut (2022), Adaptive conformal predictions for time series. Wintenberger
    (2017), Optimal learning with Bernstein online aggregation.

    Examples
    --------
    >>> import dpconformal as dpc
    >>> run = dpc.replay(AgACI(levels=[0.5], window=3, warmup=2), [0.2, 0.4, 0.6, 0.1], [0.5])
    >>> run.thresholds.ravel().round(3)
    Array([0.5  , 0.5  , 0.3  , 0.406], dtype=float...)
    """

    levels: Any
    rates: Any = RATES
    window: int = 100
    warmup: int = 10
    convention: str = "linear"
    initial: Any = None
    low: Scalar = 0.0
    high: Scalar = 1.0
    state_type: ClassVar[type] = WindowAndRegrets

    def __post_init__(self) -> None:
        check_window(self)
        check_rates(self)

    def start(self, dtype: Any) -> WindowAndRegrets:
        """Return the state before any score."""
        shape = len(self.levels), len(self.rates)
        return WindowAndRegrets(
            *empty_window(self.window, dtype), jnp.zeros(shape, jnp.int32), *(jnp.zeros(shape, dtype),) * 3
        )

    def experts(self, state: WindowAndRegrets) -> Float[Array, "G K"]:
        """Predict the threshold of each expert of each level."""
        return asked_of_window(self, window_of(state), levels_of_experts(self, state), self.convention, "ends")

    def thresholds(self, state: WindowAndRegrets) -> Float[Array, " G"]:
        """Predict the threshold of each level of the grid."""
        weights = softmax(_rates(state.largest, state.squares) * state.regret, axis=-1)
        answers = jnp.sum(weights * self.experts(state), axis=-1)
        return jnp.where(state.seen < self.warmup, initial_of(self, state.latest.dtype), answers)

    def learn(self, state: WindowAndRegrets, score: Float[Array, ""]) -> WindowAndRegrets:
        """Move the window on, and after the warm-up let the experts learn and be judged."""
        active, experts, mean = state.seen >= self.warmup, self.experts(state), self.thresholds(state)
        gain = slope(mean, score, grid_of(self, score.dtype))[:, None] * (mean[:, None] - experts)
        gain = jnp.where(active, gain, 0)
        largest, squares = jnp.maximum(state.largest, jnp.abs(gain)), state.squares + gain**2
        regret = state.regret + gain - _rates(largest, squares) * gain**2
        missed = (score > experts) & active
        return WindowAndRegrets(
            *slide(window_of(state), score), state.misses + missed.astype(jnp.int32), regret, largest, squares
        )


def _rates(largest: Float[Array, "G K"], squares: Float[Array, "G K"]) -> Float[Array, "G K"]:
    """Learning rate of each expert's weight; while nothing was gained or lost its regret is 0 and any will do."""
    known = squares > 0
    most = jnp.where(known, 2 * largest, 1)
    return jnp.minimum(1 / most, jnp.sqrt(math.log(squares.shape[-1]) / jnp.where(known, squares, 1)))
