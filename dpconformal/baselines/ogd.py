"""Online gradient descent on the quantile loss: OGD, MultiOGD, and the scale-free SF-OGD."""

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from dpconformal import rates
from dpconformal.baselines.grid import GridLearner, check_in_support, grid_of, initial_of, width_of
from dpconformal.engine.states import rounds_after
from dpconformal.learner import State
from dpconformal.pytree import register
from dpconformal.validation import Scalar, add_trailing_axes, check_within, is_traced


class Iterates(NamedTuple):
    """State of :class:`OGD`."""

    seen: Int[Array, "*B"]  # scores; -1 once a bad one was met inside jit
    iterate: Float[Array, "*B G"]  # the threshold of each level of the grid

    def check(self, learner: Any) -> None:
        """Refuse what no replay leaves; how long a user's own steps were is not known."""
        longest = learner.rate.scale if isinstance(learner.rate, rates.Power) else np.inf
        check_in_support(learner, "iterate", self.iterate, longest)


def slope(threshold: Float[Array, "*n"], score: Float[Array, ""], levels: Float[Array, "*n"]) -> Float[Array, "*n"]:
    """Compute a derivative of the quantile loss by the threshold: 1 - level where the score is covered, else -level."""
    return (threshold >= score).astype(levels.dtype) - levels


@register()
@dataclass(frozen=True, eq=False)
class OGD(GridLearner):
    """
    Online gradient descent: r ← r - η_t · ∂l(r), for each level of a grid.

    Each level is followed by itself, so thresholds of different levels may cross. A level that is not in the grid is
    refused; :class:`MultiOGD` answers it with the nearest.

    Guarantees, for scores in [low, high] of width R, with no further assumption:

    * rate 1/√t (the default): regret O(R√T) for a level of the grid, and coverage frequency within 2/√T of it.
    * constant rate η: coverage frequency within (1 + η)/(ηT) of the level.
    * a rate η_t that does not grow: within (1 + η_1)/(η_T·T); with ``rates.decaying()`` thresholds also converge if
      the scores are iid.

    Parameters
    ----------
    levels : array_like, shape (G,)
        The grid.
    rate : Rate, float or callable, optional
        η_t in units of high - low: a number for a constant step, ``dpc.rates.decaying(0.1)``, or any function of t.
        1/√t by default.
    initial : array_like, optional
        First threshold, one for all levels or one for each; low + level · (high - low) by default.
    low, high : float
        The support. Scores outside are refused; thresholds may leave it.

    References
    ----------
    Gibbs and Candès (2021), Adaptive conformal inference under distribution shift. Angelopoulos, Barber and Bates
    (2024), Online conformal prediction with decaying step sizes.

    Examples
    --------
    >>> learner = OGD(levels=[0.5, 0.9])
    >>> state = learner.observe(learner.init(), 0.7)
    >>> learner.quantile(state, [0.5, 0.9])
    Array([1. , 0.8], dtype=float...)
    """

    levels: Any
    rate: Any = rates.Power()
    initial: Any = None
    low: Scalar = 0.0
    high: Scalar = 1.0
    state_type: ClassVar[type] = Iterates

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "rate", rates.as_rate(self.rate, type(self).__name__))

    def init(self, rounds: int | None = None, dtype: Any = None) -> State:
        """Return the state before any score; a user's own rate is checked on the ``rounds`` to come."""
        state = super().init(rounds, dtype)
        rates.check_steps(self.rate, 1, rounds or 0)
        return state

    def prepare(self, state: State, rounds: int) -> State:
        """Check that a state, or a batch of them, can be carried on from."""
        state = super().prepare(state, rounds)
        if not is_traced(state.seen):
            for first, last in rounds_after(state.seen, rounds):
                rates.check_steps(self.rate, first, last)
        return state

    def is_valid(self) -> Any:
        """Whether hyperparameters are in range."""
        return super().is_valid() & ~jnp.isnan(self.rate.step(1.0))

    def start(self, dtype: Any) -> Iterates:
        """Return the state before any score."""
        return Iterates(jnp.zeros((), jnp.int32), initial_of(self, dtype))

    def thresholds(self, state: Iterates) -> Float[Array, " G"]:
        """Predict the threshold of each level of the grid."""
        return state.iterate

    def learn(self, state: Iterates, score: Float[Array, ""]) -> Iterates:
        """Step down the slope of the loss."""
        dtype = score.dtype
        step = width_of(self, dtype) * self.rate.step(state.seen.astype(dtype) + 1).astype(dtype)
        return state._replace(iterate=state.iterate - step * slope(state.iterate, score, grid_of(self, dtype)))


@register()
@dataclass(frozen=True, eq=False)
class MultiOGD(OGD):
    """
    :class:`OGD` on a grid of levels, which answers any level with the threshold of the nearest one of the grid.

    With ``levels=jnp.linspace(0, 1, 50)`` this is the paper's MultiOGD. What it covers is the level of the grid, not
    the one asked for: 0.99 is answered by level 1 of these fifty. Of two that are equally near the first answers.

    Parameters
    ----------
    levels : array_like, shape (G,)
        The grid.
    rate, initial, low, high
        As for :class:`OGD`.

    References
    ----------
    Zhang, Lu and Yang (2024), The benefit of being Bayesian in online conformal prediction.

    Examples
    --------
    >>> learner = MultiOGD(levels=[0.5, 0.9])
    >>> learner.quantile(learner.observe(learner.init(), 0.7), [0.6, 0.99])
    Array([1. , 0.8], dtype=float...)
    """

    to_nearest: ClassVar[bool] = True


class ScaledIterates(NamedTuple):
    """State of :class:`SFOGD`."""

    seen: Int[Array, "*B"]  # scores; -1 once a bad one was met inside jit
    iterate: Float[Array, "*B G"]  # the threshold of each level of the grid
    squares: Float[Array, "*B G"]  # sum of the squared slopes of the loss so far

    def check(self, learner: Any) -> None:
        """Refuse what no replay leaves."""
        check_in_support(learner, "iterate", self.iterate, learner.rate)
        check_within("state.squares", self.squares, 0, add_trailing_axes(self.seen, self.squares) * (1 + 1e-3))


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
    initial, low, high
        As for :class:`OGD`.

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
