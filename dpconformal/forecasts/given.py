"""Forecasts that the user's own model brings each round."""

import math
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from dpconformal.forecasts.distributions import LocationScale, Quantiles
from dpconformal.forecasts.learning import Forecaster
from dpconformal.pytree import register
from dpconformal.validation import Scalar, as_floats, as_numbers, is_traced, raise_at


class Counted(NamedTuple):
    """How many scores there were: all that a given forecast keeps."""

    seen: Int[Array, "*B"]  # (); -1 once a bad one was met inside jit

    def check(self, learner: Any) -> None:
        """Every count is one that a replay leaves."""


@register(static=("levels", "shape"))
@dataclass(frozen=True)
class Given(Forecaster):
    """
    The distribution of the next score that your own model brings each round, as the round's ``context``.

    Either location and scale, ``context`` of shape (..., T, 2), of a distribution of some shape on [low, high]; or the
    quantiles of some ``levels``, of shape (..., T, Q). Between quantiles the cdf is linear; beyond the outermost two it
    has exponential tails, with the density that is beside them. Nothing is learnt from the scores: recalibrate it, as
    ``Recalibrated(Given())``.

    Parameters
    ----------
    levels : sequence of float, optional
        Of the quantiles, ascending, at least two. None: the context is location and scale.
    shape, df, low, high
        As for :class:`AutoRegression`. Quantiles take none of them.

    Examples
    --------
    >>> import dpconformal as dpc
    >>> run = dpc.replay(Given(levels=(0.1, 0.9)), [3.0], levels=[0.1, 0.5, 0.9], context=[[1.0, 5.0]])
    >>> run.thresholds.round(3)
    Array([[1., 3., 5.]], dtype=float...)
    """

    levels: Any = None
    shape: str = "cauchy"
    df: Scalar = 4.0
    low: Scalar = -math.inf
    high: Scalar = math.inf
    state_type: ClassVar[type] = Counted

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.levels is None:
            return
        levels = as_numbers("Given.levels", self.levels)
        fits = levels.ndim == 1 and levels.size > 1 and ((levels > 0) & (levels < 1)).all()
        if not fits or (np.diff(levels) <= 0).any():
            raise ValueError(f"Given.levels = {self.levels!r}: pass two levels or more in (0, 1), ascending")
        object.__setattr__(self, "levels", tuple(map(float, levels)))
        if (self.shape, self.low, self.high) != ("cauchy", -math.inf, math.inf):
            given = f"Given.shape, low, high = {self.shape!r}, {self.low}, {self.high}"
            raise ValueError(f"{given}: quantiles have a shape of their own, on the whole line; leave these out")

    @property
    def width(self) -> int:
        """How many numbers a round brings."""
        return 2 if self.levels is None else len(self.levels)

    def start(self, dtype: Any) -> Counted:
        """Return the state before any score."""
        return Counted(jnp.zeros((), jnp.int32))

    def as_context(self, context: Any, shape: tuple[int, ...]) -> Any:
        """Check what the model brings to a replay."""
        what = "location and scale" if self.levels is None else f"{self.width} quantiles"
        if context is None:
            raise ValueError(f"context is missing: pass the {what} of each round, shape {(*shape, self.width)}")
        rows = as_numbers("context", context)
        if rows.shape not in ((*shape, self.width), (shape[-1], self.width)):
            raise ValueError(
                f"context has shape {rows.shape}: pass the {what} of each round, shape {(*shape, self.width)}"
            )
        if not is_traced(rows):
            raise_at("context", rows, ~np.isfinite(rows), "must be finite")
            if self.levels is None:
                raise_at("context", rows, (np.arange(2) == 1) & (rows <= 0), "a scale is above 0")
            else:
                falls = np.diff(rows, axis=-1, prepend=-np.inf) <= 0
                raise_at("context", rows, falls, "the quantiles of a round must ascend; sort them, and part ties")
        return jnp.broadcast_to(as_floats(rows), (*shape, self.width))

    def predict(self, state: Counted, context: Any) -> LocationScale | Quantiles:
        """Return the distribution of the next score."""
        if context is None or np.shape(context) != (self.width,):
            raise ValueError(f"context has shape {np.shape(context)}: pass {self.width} numbers for the round")
        row = as_floats(context)
        if self.levels is not None:
            return Quantiles(jnp.asarray(self.levels, row.dtype), row)
        df, low, high = (jnp.asarray(part, row.dtype) for part in (self.df, self.low, self.high))
        return LocationScale(row[0], jnp.where(row[1] > 0, row[1], jnp.nan), df, low, high, self.shape)

    def learn(self, state: Counted, score: Float[Array, ""], context: Any) -> Counted:
        """Learn nothing."""
        return state
