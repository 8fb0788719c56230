"""Adaptive conformal inference: quantiles of a sliding window, at levels that learn from misses."""

import math
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from dpconformal.baselines.grid import GridLearner, grid_of, initial_of
from dpconformal.beliefs.sliding import CONVENTIONS, Window, empty_window, slide, window_quantile
from dpconformal.learner import State, rounding
from dpconformal.pytree import register
from dpconformal.validation import Scalar, add_trailing_axes, as_numbers, check_within, is_traced, raise_at

OUTSIDE = ("ends", "infinite", "extremes")
RATES = tuple(0.001 * 2**k for k in range(8))  # of experts


def check_choice(name: str, value: Any, choices: tuple[str, ...]) -> None:
    """Check that a hyperparameter is one of a few words."""
    if value not in choices:
        raise ValueError(f"{name} = {value!r}: pass one of {', '.join(map(repr, choices))}")


class WindowLearner(GridLearner):
    """
    A learner that asks a sliding window at a level of its own, which a miss raises and a covered round lowers.

    Its state has the fields of :class:`dpconformal.beliefs.sliding.Window`, and ``misses``: how many rounds after the
    warm-up each level missed. These are counts: adapted levels are computed from them anew each round, so that no
    rounding piles up.
    """

    window: int
    warmup: int
    convention: str = "inverted_cdf"
    outside: str = "ends"
    sizes: ClassVar[tuple[str, ...]] = ("window", "warmup")

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, choices in (("convention", CONVENTIONS), ("outside", OUTSIDE)):
            check_choice(f"{type(self).__name__}.{name}", getattr(self, name), choices)

    @property
    def columns(self) -> tuple[int, ...]:
        """Shape of what is counted for each level and expert."""
        return (len(self.levels),)

    @property
    def rate_of_levels(self) -> Any:
        """How much one round moves each level."""
        return self.rate  # type: ignore[attr-defined]

    def start(self, dtype: Any, *rest: Any) -> State:
        """Return the state before any score, with what a method keeps besides window and misses."""
        return self.state_type(*empty_window(self.window, dtype), jnp.zeros(self.columns, jnp.int32), *rest)

    def adapted_levels(self, state: State) -> Float[Array, "*n"]:
        """
        Compute the levels at which the window is asked: higher after misses, lower after coverage.

        One round moves a level by rate · (miss - (1 - level)); together they come to the closed form used here.
        """
        dtype, shape = state.latest.dtype, self.columns
        levels = jnp.broadcast_to(grid_of(self, dtype).reshape(-1, *(1,) * (len(shape) - 1)), shape)
        rate = jnp.broadcast_to(jnp.asarray(self.rate_of_levels).astype(dtype), shape)
        expected = (1 - levels) * (state.seen - self.warmup).astype(dtype)
        return levels + rate * (state.misses.astype(dtype) - expected)

    def ask(self, window: Window, levels: Float[Array, "*n"]) -> Float[Array, "*n"]:
        """Take quantiles of a window at levels that may lie outside [0, 1]."""
        inside = window_quantile(window, jnp.clip(levels, 0, 1), self.convention)
        if self.outside == "extremes":
            return inside
        ends = (-jnp.inf, jnp.inf) if self.outside == "infinite" else self.support
        low, high = (jnp.asarray(end, levels.dtype) for end in ends)
        edge = rounding(levels.dtype)  # a level that rounding alone has carried past an end is still inside
        return jnp.where(levels > 1 + edge, high, jnp.where(levels < -edge, low, inside))


class WindowExperts(WindowLearner):
    """A window learner with an expert for each of several rates."""

    rates: Any  # (K,)

    def __post_init__(self) -> None:
        super().__post_init__()
        name = f"{type(self).__name__}.rates"
        rates = as_numbers(name, self.rates)
        if rates.ndim == 0 or rates.shape[-1] == 0:
            raise ValueError(f"{name} has shape {rates.shape}: pass a rate for each expert, such as [0.001, 0.01, 0.1]")
        if not is_traced(rates):
            rates = rates.astype(float)
            raise_at(name, rates, ~((rates > 0) & (rates < math.inf)), "must be finite and above 0")
        object.__setattr__(self, "rates", rates)

    @property
    def columns(self) -> tuple[int, ...]:
        """Shape of what is counted for each level and expert."""
        return len(self.levels), len(self.rates)

    @property
    def rate_of_levels(self) -> Any:
        """How much one round moves the level of each expert."""
        return self.rates

    def sound(self) -> Any:
        """Tell whether hyperparameters are in range."""
        return super().sound() & jnp.all(jnp.asarray(self.rates) > 0)


def check_window_and_misses(state: Any, learner: Any) -> None:
    """Refuse a window that is out of order, and more misses than there were rounds after the warm-up."""
    window_of(state).check(learner)
    check_within("state.misses", state.misses, 0, add_trailing_axes(judged_rounds(state, learner), state.misses))


def judged_rounds(state: Any, learner: Any) -> Any:
    """Return the number of rounds after the warm-up."""
    return np.maximum(np.asarray(state.seen, np.int64) - learner.warmup, 0)


def window_of(state: Any) -> Window:
    """Return the window within a state."""
    return Window(state.seen, state.latest, state.ordered)


class WindowAndMisses(NamedTuple):
    """The latest scores, as in :class:`dpconformal.beliefs.sliding.Window`, and how often each level missed."""

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
