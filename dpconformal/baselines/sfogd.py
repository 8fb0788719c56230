"""Scale-free online gradient descent: steps that shrink with the gradients seen."""

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from dpconformal.baselines.grid import GridLearner, check_in_support, grid_of, initial_of, width_of
from dpconformal.baselines.ogd import slope
from dpconformal.pytree import register
from dpconformal.validation import Scalar, beside, check_within


class ScaledIterates(NamedTuple):
    """Where scale-free gradient descent stands."""

    seen: Int[Array, "*B"]  # scores; -1 once a bad one was met inside jit
    iterate: Float[Array, "*B G"]  # the threshold of each level of the grid
    squares: Float[Array, "*B G"]  # sum of the squared slopes of the loss so far

    def check(self, learner: Any) -> None:
        """Refuse what no replay leaves."""
        check_in_support(learner, "iterate", self.iterate, learner.rate)
        check_within("state.squares", self.squares, 0, beside(self.seen, self.squares) * (1 + 1e-3))


def scale_free_step(
    iterate: Float[Array, "*n"], squares: Float[Array, "*n"], gradient: Float[Array, "*n"], rate: Float[Array, ""]
) -> tuple[Float[Array, "*n"], Float[Array, "*n"]]:
    """Step by rate · gradient / √(sum of squared gradients); return the new iterate and the new sum."""
    squares = squares + gradient**2
    moving = squares > 0
    return iterate - jnp.where(moving, rate * gradient / jnp.sqrt(jnp.where(moving, squares, 1)), 0), squares


@register()
@dataclass(frozen=True, eq=False)
class SFOGD(GridLearner):
    """
    Scale-free OGD (SF-OGD): r ← r - η · g_t / √(g_1² + … + g_t²), for each level of a grid.

    Guarantees, for scores in [low, high] of width R, with no further assumption: with η = R/√3 anytime regret
    O(R√T) for a level of the grid; the coverage frequency is right up to O(T^(-1/4) log T). Thresholds of different
    levels may cross.

    Parameters
    ----------
    levels : array_like, shape (G,)
        The grid; other levels are refused.
    rate : float
        η in units of high - low.
    initial : array_like, optional
        First threshold, one for all levels or one for each; low + level · (high - low) by default.
    low, high : float
        The support. Scores outside are refused; thresholds may leave it.

    References
    ----------
    Bhatnagar, Wang, Xiong and Bai (2023), Improved online conformal prediction via strongly adaptive online learning.
    Orabona and Pál (2018), Scale-free online learning.

    Examples
    --------
    >>> learner = SFOGD(levels=[0.9])
    >>> state = learner.observe(learner.init(), 0.7)
    >>> learner.quantile(state, [0.9]).round(3)
    Array([0.323], dtype=float...)
    """

    levels: Any
    rate: Scalar = 3**-0.5
    initial: Any = None
    low: Scalar = 0.0
    high: Scalar = 1.0
    state_type: ClassVar[type] = ScaledIterates
    not_negative: ClassVar[tuple[str, ...]] = ("rate",)

    def start(self, dtype: Any) -> ScaledIterates:
        """Return the state before any score."""
        initial = initial_of(self, dtype)
        return ScaledIterates(jnp.zeros((), jnp.int32), initial, jnp.zeros_like(initial))

    def thresholds(self, state: ScaledIterates) -> Float[Array, " G"]:
        """Predict the threshold of each level of the grid."""
        return state.iterate

    def learn(self, state: ScaledIterates, score: Float[Array, ""]) -> ScaledIterates:
        """Step down the slope of the loss."""
        rate = jnp.asarray(self.rate, score.dtype) * width_of(self, score.dtype)
        gradient = slope(state.iterate, score, grid_of(self, score.dtype))
        iterate, squares = scale_free_step(state.iterate, state.squares, gradient, rate)
        return ScaledIterates(state.seen, iterate, squares)
