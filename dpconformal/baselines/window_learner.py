"""What the ACI family shares: quantiles of a sliding window, at levels that learn from misses."""

import math
from typing import Any, ClassVar

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from dpconformal.baselines.grid import GridLearner, grid_of
from dpconformal.beliefs.window import CONVENTIONS, Window, empty_window, window_quantile
from dpconformal.learner import State, rounding
from dpconformal.validation import as_numbers, beside, check_within, complain_at, is_traced

OUTSIDE = ("ends", "infinite", "extremes")
RATES = tuple(0.001 * 2**k for k in range(8))  # of experts


def check_choice(name: str, value: Any, choices: tuple[str, ...]) -> None:
    """Check that a hyperparameter is one of a few words."""
    if value not in choices:
        raise ValueError(f"{name} = {value!r}: pass one of {', '.join(map(repr, choices))}")


class WindowLearner(GridLearner):
    """
    A learner that asks a sliding window at a level of its own, which a miss raises and a covered round lowers.

    Its state has the fields of :class:`dpconformal.beliefs.window.Window`, and ``misses``: how many rounds after the
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
            complain_at(name, rates, ~((rates > 0) & (rates < math.inf)), "must be finite and above 0")
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
    check_within("state.misses", state.misses, 0, beside(judged_rounds(state, learner), state.misses))


def judged_rounds(state: Any, learner: Any) -> Any:
    """Return the number of rounds after the warm-up."""
    return np.maximum(np.asarray(state.seen, np.int64) - learner.warmup, 0)


def window_of(state: Any) -> Window:
    """Return the window within a state."""
    return Window(state.seen, state.latest, state.ordered)
