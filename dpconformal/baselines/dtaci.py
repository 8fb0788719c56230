"""Dynamically-tuned adaptive conformal inference: many rates at once, weighted by how well they do."""

import math
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import jax.numpy as jnp
import numpy as np
from jax.nn import softmax
from jax.scipy.special import logsumexp
from jaxtyping import Array, Float, Int

from dpconformal.baselines.grid import grid_of, initial_of
from dpconformal.baselines.window_learner import RATES, WindowExperts, check_window_and_misses, window_of
from dpconformal.beliefs.window import share_at_least, slide
from dpconformal.pytree import register
from dpconformal.validation import Scalar, check_within, complain_at


class WindowAndExperts(NamedTuple):
    """The latest scores, as in :class:`dpconformal.beliefs.window.Window`, and experts that differ in their rate."""

    seen: Int[Array, "*B"]
    latest: Float[Array, "*B W"]
    ordered: Float[Array, "*B W"]
    misses: Int[Array, "*B G K"]  # rounds after the warm-up that each expert of each level missed
    log_weights: Float[Array, "*B G K"]  # logarithms of the experts' weights; the largest is 0

    def check(self, learner: Any) -> None:
        """Refuse what no replay leaves: what is shared out keeps every expert's weight up."""
        check_window_and_misses(self, learner)
        smallest = math.log(2 * learner.horizon * len(learner.rates)) + 1e-3
        check_within("state.log_weights", self.log_weights, -smallest, 0)
        largest = np.max(self.log_weights, axis=-1)
        complain_at("state.log_weights", self.log_weights, (largest != 0)[..., None], "the largest must be 0")


@register(static=("window", "horizon", "warmup", "outside"))
@dataclass(frozen=True, eq=False)
class DtACI(WindowExperts):
    """
    Dynamically-tuned ACI (DtACI, first called FACI): ACI at several rates, mixed by exponential weights.

    In each round the window is asked at the experts' weighted mean level. How well an expert's level fits is judged
    by the quantile loss of the score's p-value in the window, over the last ``horizon`` rounds or so: fixed-share
    weights forget.

    Guarantees, with no assumption: on every stretch of ``horizon`` rounds its loss in terms of levels comes close to
    that of the best slowly moving sequence of levels. The coverage frequency is right in the long run only if the
    weights move ever more slowly. Thresholds of different levels may cross. A round costs O(window + K).

    Parameters
    ----------
    levels : array_like, shape (G,)
        The grid; other levels are refused.
    rates : array_like, shape (K,)
        γ of each expert.
    window : int
        Latest scores to take quantiles of.
    horizon : int
        H, the length of the stretches to do well on. It sets the share 1/(2H) that is spread over all experts, and the
        learning rate of their weights, √(3/H · (ln(K·H) + 2) / ((1 - a)²a³ + a²(1 - a)³)) with a = 1 - level.
    warmup : int
        Rounds at the start that are answered by ``initial`` and from which only the window learns.
    outside : {"ends", "infinite", "extremes"}
        Threshold where the mean level leaves [0, 1], see :class:`ACI`.
    initial : array_like, optional
        Threshold of the warm-up, one for all levels or one for each; low + level · (high - low) by default.
    low, high : float
        The support. Scores outside are refused.

    References
    ----------
    Gibbs and Candès (2024), Conformal inference for online prediction with arbitrary distribution shifts.

    Examples
    --------
    >>> import dpconformal as dpc
    >>> run = dpc.replay(DtACI(levels=[0.5], window=3, warmup=2), [0.2, 0.4, 0.6, 0.1], [0.5])
    >>> run.thresholds.ravel().round(3)
    Array([0.5, 0.5, 0.2, 0.4], dtype=float...)
    """

    levels: Any
    rates: Any = RATES
    window: int = 100
    horizon: int = 100
    warmup: int = 10
    outside: str = "ends"
    initial: Any = None
    low: Scalar = 0.0
    high: Scalar = 1.0
    state_type: ClassVar[type] = WindowAndExperts
    sizes: ClassVar[tuple[str, ...]] = ("window", "horizon", "warmup")

    def start(self, dtype: Any) -> WindowAndExperts:
        """Return the state before any score."""
        return super().start(dtype, jnp.zeros(self.columns, dtype))

    def thresholds(self, state: WindowAndExperts) -> Float[Array, " G"]:
        """Predict the threshold of each level of the grid."""
        level = jnp.sum(softmax(state.log_weights, axis=-1) * self.adapted_levels(state), axis=-1)
        return jnp.where(
            state.seen < self.warmup, initial_of(self, state.latest.dtype), self.ask(window_of(state), level)
        )

    def learn(self, state: WindowAndExperts, score: Float[Array, ""]) -> WindowAndExperts:
        """Move the window on, and after the warm-up judge the experts by the score's p-value."""
        dtype, active = score.dtype, state.seen >= self.warmup
        target, experts = 1 - grid_of(self, dtype)[:, None], 1 - self.adapted_levels(state)  # as miscoverage
        value = share_at_least(window_of(state), score)
        loss = target * (value - experts) - jnp.minimum(value - experts, 0)
        moved = state.log_weights - self._learning_rate(dtype)[:, None] * loss
        share = 1 / (2 * self.horizon)
        pooled = logsumexp(moved, axis=-1, keepdims=True) + math.log(share / len(self.rates))
        mixed = jnp.logaddexp(moved + math.log1p(-share), pooled)
        mixed = mixed - jnp.max(mixed, axis=-1, keepdims=True)
        missed = (score > self.ask(window_of(state), 1 - experts)) & active
        return WindowAndExperts(
            *slide(window_of(state), score),
            state.misses + missed.astype(state.misses.dtype),
            jnp.where(active, mixed, state.log_weights),
        )

    def _learning_rate(self, dtype: Any) -> Float[Array, " G"]:
        level = grid_of(self, dtype)
        spread = level**2 * (1 - level) ** 3 + (1 - level) ** 2 * level**3
        log = math.log(len(self.rates) * self.horizon) + 2
        # Levels 0 and 1 have nothing to learn: no expert ever loses there.
        return jnp.sqrt(3 / self.horizon * log / jnp.where(spread > 0, spread, 1))
