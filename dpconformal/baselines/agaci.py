"""Aggregated adaptive conformal inference: thresholds at several rates, mixed by Bernstein online aggregation."""

import math
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.nn import softmax
from jaxtyping import Array, Float, Int

from dpconformal.baselines.grid import check_in_support, grid_of, initial_of, width_of
from dpconformal.baselines.ogd import slope
from dpconformal.baselines.window_learner import RATES, WindowExperts, check_window_and_misses, judged_rounds, window_of
from dpconformal.beliefs.window import slide
from dpconformal.pytree import register
from dpconformal.validation import Scalar, beside, check_within, complain_at


class WindowAndRegrets(NamedTuple):
    """The latest scores, as in :class:`dpconformal.beliefs.window.Window`, and experts that differ in their rate."""

    seen: Int[Array, "*B"]
    latest: Float[Array, "*B W"]
    ordered: Float[Array, "*B W"]
    misses: Int[Array, "*B G K"]  # rounds after the warm-up that each expert of each level missed
    regret: Float[Array, "*B G K"]  # what each expert would have saved, less a second-order penalty
    largest: Float[Array, "*B G K"]  # the most that an expert has gained or lost in one round
    squares: Float[Array, "*B G K"]  # sum of squared gains
    experts: Float[Array, "*B G K"]  # the experts' thresholds of the coming round; 0 before any score
    answer: Float[Array, "*B G"]  # their mixture

    def check(self, learner: Any) -> None:
        """Refuse what no replay leaves: a gain is at most 1, and thresholds lie in the support."""
        check_window_and_misses(self, learner)
        rounds = beside(judged_rounds(self, learner), self.regret)
        most = rounds * (1 + 1e-3)
        check_within("state.regret", self.regret, -1.5 * most, 1.5 * most)
        check_within("state.largest", self.largest, 0, 1 + 1e-3)
        check_within("state.squares", self.squares, 0, most)
        check_in_support(learner, "answer", self.answer)
        fresh = beside(self.seen, self.experts) == 0
        check_in_support(learner, "experts", self.experts, also_0=fresh)
        complain_at("state.experts", self.experts, fresh & (np.asarray(self.experts) != 0), "must be 0 at first")


@register(static=("window", "warmup", "convention"))
@dataclass(frozen=True, eq=False)
class AgACI(WindowExperts):
    """
    Aggregated ACI: ACI at several rates, whose thresholds are mixed by Bernstein online aggregation (BOA).

    Each expert is an :class:`ACI` with its own rate and its own misses. Their thresholds are averaged with weights
    proportional to exp(η·(regret - η·squared gains)), gains being linearised at the mean threshold; each expert's η
    is min(1/(2·largest gain), √(ln K / sum of squared gains)).

    Guarantee, with no assumption: BOA's second-order regret bound, O(√(T ln K)) quantile loss more than the best fixed
    mixture of the experts in T rounds; proved for a close relative of these weights, which carry a further factor η
    there. None on coverage for the mixture. Thresholds of different levels may cross. A round costs O(window + K).

    Parameters
    ----------
    levels : array_like, shape (G,)
        The grid; other levels are refused.
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

    def start(self, dtype: Any) -> WindowAndRegrets:
        """Return the state before any score."""
        return super().start(dtype, *(jnp.zeros(self.columns, dtype),) * 4, initial_of(self, dtype))

    def thresholds(self, state: WindowAndRegrets) -> Float[Array, " G"]:
        """Predict the threshold of each level of the grid."""
        return state.answer

    def learn(self, state: WindowAndRegrets, score: Float[Array, ""]) -> WindowAndRegrets:
        """Move the window on, after the warm-up let the experts learn and be judged, and mix what they say next."""
        active = state.seen >= self.warmup
        # In units of the support: squares of anything else may overflow or vanish.
        apart = (state.answer[:, None] - state.experts) / width_of(self, score.dtype)
        gain = slope(state.answer, score, grid_of(self, score.dtype))[:, None] * apart
        gain = jnp.where(active, gain, 0)
        largest, squares = jnp.maximum(state.largest, jnp.abs(gain)), state.squares + gain**2
        rates = _rates(largest, squares)
        regret = state.regret + gain - rates * gain**2
        missed = (score > state.experts) & active
        window = slide(window_of(state), score)._replace(seen=state.seen + 1)
        after = state._replace(
            **window._asdict(),
            misses=state.misses + missed.astype(state.misses.dtype),
            regret=regret,
            largest=largest,
            squares=squares,
        )
        experts = lax.optimization_barrier(self.ask(window, self.adapted_levels(after)))
        # Relative to one of them: a mean of equal thresholds is that threshold to the last bit, as scores may be.
        mean = experts[:, 0] + jnp.sum(softmax(rates * regret, axis=-1) * (experts - experts[:, :1]), axis=-1)
        answer = jnp.where(after.seen < self.warmup, state.answer, mean)
        return after._replace(seen=state.seen, experts=experts, answer=answer)


def _rates(largest: Float[Array, "G K"], squares: Float[Array, "G K"]) -> Float[Array, "G K"]:
    """Learning rate of each expert's weight; while nothing was gained or lost its regret is 0 and any will do."""
    known = squares > 0
    most = jnp.where(known, 2 * largest, 1)
    return jnp.minimum(1 / most, jnp.sqrt(math.log(squares.shape[-1]) / jnp.where(known, squares, 1)))
