"""Forecasts without a regression: a local level, and a level for each place in a season."""

import math
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from dpconformal.forecasts.learning import Errors, LearntScale, check_sums
from dpconformal.pytree import register
from dpconformal.validation import Scalar, check_size, is_traced, raise_at


class Levels(NamedTuple):
    """Discounted sums of the scores at each place in the season."""

    seen: Int[Array, "*B"]  # (), how many scores; -1 once a bad one was met inside jit
    errors: Errors
    total: Float[Array, "*B P"]  # (period,), of the scores
    mass: Float[Array, "*B P"]  # (period,), of 1 for each score

    def check(self, learner: Any) -> None:
        """Refuse what no replay leaves."""
        check_sums(self)


@register(static=("shape",))
@dataclass(frozen=True)
class LocalLevel(LearntScale):
    """
    Predict the discounted mean of the past scores; with ``memory=1`` the last score.

    Parameters
    ----------
    memory : float
        Rounds to remember, at least 1: the weight of a score falls by the factor 1 - 1/memory each round.
    scale_memory, shape, df, low, high
        As for :class:`AutoRegression`.

    Examples
    --------
    >>> import dpconformal as dpc
    >>> dpc.replay(LocalLevel(memory=1), [3.0, 5.0, 4.0], levels=[0.5]).thresholds.ravel()
    Array([0., 3., 5.], dtype=float...)
    """

    memory: Scalar = 20.0
    scale_memory: Scalar = 20.0
    shape: str = "cauchy"
    df: Scalar = 4.0
    low: Scalar = -math.inf
    high: Scalar = math.inf
    state_type: ClassVar[type] = Levels

    def start(self, dtype: Any) -> Levels:
        """Return the state before any score."""
        return _no_scores(1, dtype)

    def location(self, state: Levels, context: Any) -> Float[Array, ""]:
        """Return the mean."""
        return state.total[0] / jnp.maximum(state.mass[0], 1)

    def learn_location(self, state: Levels, score: Float[Array, ""], context: Any) -> Levels:
        """Add the score to the sum."""
        kept = 1 - 1 / jnp.asarray(self.memory, score.dtype)
        return state._replace(total=kept * state.total + score, mass=kept * state.mass + 1)


@register(static=("period", "shape"))
@dataclass(frozen=True)
class Seasonal(LearntScale):
    """
    Predict the discounted mean of the past scores at the same place in the season.

    Each round comes with its place in the season as its ``context``, a whole number from 0 to period - 1:
    ``replay(Seasonal(24), scores, levels, context=numpy.arange(T) % 24)``. So gaps and delays do not shift the season.
    A place that has had no score is expected at the mean of all.

    Parameters
    ----------
    period : int
        Rounds of a season.
    memory : float
        Seasons to remember, at least 1.
    scale_memory, shape, df, low, high
        As for :class:`AutoRegression`. There is one scale for all places.

    Examples
    --------
    >>> import dpconformal as dpc, numpy as np
    >>> day = np.tile([1.0, 5.0, 3.0], 4)
    >>> dpc.replay(Seasonal(3), day, levels=[0.5], context=np.arange(12) % 3).thresholds[3:6].ravel()
    Array([1., 5., 3.], dtype=float...)
    """

    period: int
    memory: Scalar = 10.0
    scale_memory: Scalar = 20.0
    shape: str = "cauchy"
    df: Scalar = 4.0
    low: Scalar = -math.inf
    high: Scalar = math.inf
    state_type: ClassVar[type] = Levels

    def __post_init__(self) -> None:
        super().__post_init__()
        check_size("Seasonal.period", self.period, 1)

    def start(self, dtype: Any) -> Levels:
        """Return the state before any score."""
        return _no_scores(self.period, dtype)

    def as_context(self, context: Any, shape: tuple[int, ...]) -> Any:
        """Check the places of a replay's rounds in the season."""
        remedy = f"pass each round's place in the season, such as numpy.arange({shape[-1]}) % {self.period}"
        if context is None:
            raise ValueError(f"context is missing: {remedy}")
        places = context if is_traced(context) else np.asarray(context)
        if places.dtype.kind not in "iu" or places.shape not in (shape, shape[-1:]):
            raise ValueError(f"context has dtype {places.dtype} and shape {places.shape}: {remedy}")
        if not is_traced(places):
            raise_at("context", places, (places < 0) | (places >= self.period), f"must be from 0 to {self.period - 1}")
        return jnp.broadcast_to(jnp.asarray(places, jnp.int32), shape)

    def location(self, state: Levels, context: Any) -> Float[Array, ""]:
        """Return the mean of the place, or of all places; NaN for a place that the season does not have."""
        here = self._here(context)
        at_all = jnp.any(here & (state.mass > 0))
        total, mass = (jnp.sum(jnp.where(at_all, jnp.where(here, part, 0), part)) for part in (state.total, state.mass))
        return jnp.where(jnp.any(here), total / jnp.maximum(mass, 1), jnp.nan)

    def learn_location(self, state: Levels, score: Float[Array, ""], context: Any) -> Levels:
        """Add the score to the sum of its place."""
        here, kept = self._here(context), 1 - 1 / jnp.asarray(self.memory, score.dtype)
        return state._replace(
            total=jnp.where(here, kept * state.total + score, state.total),
            mass=jnp.where(here, kept * state.mass + 1, state.mass),
        )

    def _here(self, context: Any) -> Array:
        if context is None:
            raise ValueError(f"context is missing: pass the round's place in the season, from 0 to {self.period - 1}")
        return jnp.arange(self.period, dtype=jnp.int32) == jnp.asarray(context, jnp.int32)


def _no_scores(period: int, dtype: Any) -> Levels:
    zero, row = jnp.zeros((), dtype), jnp.zeros(period, dtype)
    return Levels(jnp.zeros((), jnp.int32), Errors(zero, zero), row, row)
