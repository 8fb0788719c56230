"""Conformal PID control: quantile tracking, an integrator of coverage errors, and forecasts of the scores."""

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from dpconformal.baselines.aci import OUTSIDE
from dpconformal.baselines.grid import GridLearner, dtype_of, grid_of, initial_of, learnt, routed, width_of
from dpconformal.baselines.grid_checks import check_grid
from dpconformal.checks import Numbers, Scalar, as_numbers, complain_at, is_traced, number, places
from dpconformal.learner import State
from dpconformal.pytree import register


class Controller(NamedTuple):
    """
    What the controller knows.

    Attributes
    ----------
    seen : Array, shape ()
        Scores seen; -1 once a bad one was met inside ``jit``.
    tracker : Array, shape (G,)
        The quantile tracker of each level: the proportional part.
    misses : Array, shape (G,)
        Rounds whose score exceeded the threshold: the integral part is computed from them.
    latest : Array, shape (window,)
        The latest scores, for the scale of the steps; of length 0 where that is the support's.
    """

    seen: Int[Array, "*B"]  # ()
    tracker: Float[Array, "*B G"]  # (G,)
    misses: Int[Array, "*B G"]  # (G,)
    latest: Float[Array, "*B W"]  # (window,)


@register(static=("scorecast", "window", "outside"))
@dataclass(frozen=True, eq=False)
class PID(GridLearner):
    """
    Conformal PID control: threshold = scorecast + tracker + saturation(sum of coverage errors).

    * P, the tracker: r ← r + η · (miss - (1 - level)), online gradient descent with a constant step. With
      ``integral=0`` and no scorecast nothing else remains.
    * I, the integrator: K · tan(x · ln t / (t · C)) of x = misses - (1 - level)·(t - 1), in round t; beyond ±π/2 it
      saturates and the set is everything or nothing.
    * D, the scorecast, with ``scorecast=True``: a forecast of the coming score, or of its quantiles, that you make
      from the past and pass as the round's ``context``: ``replay(learner, scores, levels, context=forecasts)``, of
      shape (T,), or (T, G) with one for each level of the grid. The tracker then follows what the forecasts leave
      over.

    Guarantee, with no assumption: with ``integral`` > 0 the coverage frequency of T rounds is within
    πC/(2 ln T) + 4/T of the level (``outside="infinite"``, or ``"ends"`` if no score equals ``low``); with P alone and
    without a window, as for :class:`OGD` with a constant step. Thresholds of different levels may cross.

    Parameters
    ----------
    levels : array_like, shape (G,)
        The grid; a query goes to the nearest level.
    rate : float
        η, as a share of the scale: of high - low, or with a window of the largest of the latest scores.
    integral : float
        K, as a share of high - low. 0 switches the integrator off.
    saturation : float
        C: the smaller, the sooner the integrator takes over.
    scorecast : bool
        Whether each round comes with a scorecast.
    window : int, optional
        Take the largest of that many latest scores, less ``low``, for the scale of the steps, as in the paper's
        experiments.
    outside : {"ends", "infinite"}
        Threshold of a saturated integrator: ``high`` or ``low``; or ±∞, a set of everything or nothing.
    initial : array_like, optional
        First value of the tracker, one for all levels or one for each; by default low + level · (high - low), and 0
        with a scorecast.
    low, high : float
        The support. Scores outside are refused; thresholds may leave it.

    References
    ----------
    Angelopoulos, Candès and Tibshirani (2023), Conformal PID control for time series prediction.

    Examples
    --------
    >>> learner = PID(levels=[0.9], integral=0)
    >>> state = learner.observe(learner.init(), 0.95)
    >>> learner.quantile(state, [0.9]).round(3)
    Array([0.99], dtype=float...)
    """

    levels: Any
    rate: Scalar = 0.1
    integral: Scalar = 1.0
    saturation: Scalar = 1.0
    scorecast: bool = False
    window: int | None = None
    outside: str = "ends"
    initial: Any = None
    low: Scalar = 0.0
    high: Scalar = 1.0
    state_type: ClassVar[type] = Controller

    def __post_init__(self) -> None:
        if not isinstance(self.scorecast, bool):
            raise ValueError(f"PID.scorecast = {self.scorecast!r}: pass True, and the scorecasts as replay's context")
        check_grid(self, start_anywhere=self.scorecast)
        for name in ("rate", "integral", "saturation"):
            value = number(f"PID.{name}", getattr(self, name), 0.0, open_low=name == "saturation")
            object.__setattr__(self, name, value)
        if self.window is not None:
            object.__setattr__(self, "window", places("PID.window", self.window, 1))
        if self.outside not in OUTSIDE[:2]:
            raise ValueError(f"PID.outside = {self.outside!r}: pass one of {', '.join(map(repr, OUTSIDE[:2]))}")

    def as_context(self, context: Any, shape: tuple[int, ...]) -> Any:
        """
        Check the scorecasts of a replay: shape (..., T) or, with one for each level of the grid, (..., T, G).

        Parameters
        ----------
        context : array_like
            The scorecasts. What fits both readings is read as the first; leading axes may be left out.
        shape : tuple of int
            Of the scores.

        Returns
        -------
        Array
            With the leading axes of the scores; None without a scorecast.
        """
        if not self._wanted(context):
            return None
        array, grid = as_numbers("context", context), (len(self.levels),)
        for full in (shape, shape + grid):
            if array.ndim >= 1 and array.shape in (full, full[len(shape) - 1 :]):
                break
        else:
            raise ValueError(
                f"context has shape {array.shape}: pass a scorecast a round, shape {shape}, or one a round and level, "
                f"shape {shape + grid}"
            )
        if not is_traced(array):
            complain_at("context", array, ~np.isfinite(array), "a scorecast must be finite")
        return jnp.broadcast_to(jnp.asarray(array, jnp.result_type(float)), full)

    def quantile(self, state: State, levels: Numbers, context: Any = None) -> Float[Array, "..."]:
        """Predict the threshold of each level: that of the nearest level of the grid, given the round's scorecast."""
        return routed(self, state, levels, self._row(state, context))

    def observe(self, state: State, score: Numbers, context: Any = None) -> State:
        """Return the state after one more score, whose scorecast was ``context``."""
        return learnt(self, state, score, self._row(state, context))

    def sound(self) -> Any:
        """Tell whether hyperparameters are in range."""
        if self.scorecast:
            initial: Any = True if self.initial is None else jnp.all(jnp.isfinite(self.initial))
        else:
            initial = super().sound()
        return jnp.asarray(initial) & (self.rate >= 0) & (self.integral >= 0) & (self.saturation > 0)

    def start(self, dtype: Any) -> Controller:
        """Return the state before any score."""
        tracker = initial_of(self, dtype)
        if self.scorecast and self.initial is None:
            tracker = jnp.zeros_like(tracker)
        return Controller(
            jnp.zeros((), jnp.int32),
            tracker,
            jnp.zeros(tracker.shape, jnp.int32),
            jnp.full(self.window or 0, jnp.nan, dtype),
        )

    def thresholds(self, state: Controller, scorecast: Any = None) -> Float[Array, " G"]:
        """Predict the threshold of each level of the grid."""
        dtype = state.tracker.dtype
        rounds = jnp.maximum(state.seen, 0).astype(dtype)
        level, width = grid_of(self, dtype), width_of(self, dtype)
        gain, saturation = jnp.asarray(self.integral, dtype), jnp.asarray(self.saturation, dtype)
        error = state.misses.astype(dtype) - (1 - level) * rounds
        angle = error * jnp.log(rounds + 1) / ((rounds + 1) * saturation)
        full = jnp.abs(angle) >= jnp.pi / 2
        answers = state.tracker + gain * width * jnp.tan(jnp.where(full, 0, angle))
        if scorecast is not None:
            answers = answers + scorecast
        ends = (-jnp.inf, jnp.inf) if self.outside == "infinite" else self.support
        low, high = (jnp.asarray(end, dtype) for end in ends)
        return jnp.where(full & (gain > 0), jnp.where(angle > 0, high, low), answers)

    def learn(self, state: Controller, score: Float[Array, ""], scorecast: Any = None) -> Controller:
        """Step the tracker and count the misses."""
        dtype, now = score.dtype, jnp.maximum(state.seen, 0)
        threshold = self.thresholds(state, scorecast)
        missed = score > threshold
        latest, scale = state.latest, width_of(self, dtype)
        if self.window is not None:
            latest = jnp.where(jnp.arange(self.window, dtype=now.dtype) == now % self.window, score, latest)
            scale = jnp.nanmax(latest) - jnp.asarray(self.low, dtype)
        step = jnp.asarray(self.rate, dtype) * scale
        tracker = state.tracker + step * (missed.astype(dtype) - (1 - grid_of(self, dtype)))
        tracker = jnp.where(jnp.isnan(threshold), jnp.nan, tracker)  # a bad traced scorecast spoils what follows
        return Controller(state.seen, tracker, state.misses + missed.astype(state.misses.dtype), latest)

    def _wanted(self, context: Any) -> bool:
        if self.scorecast == (context is not None):
            return self.scorecast
        if self.scorecast:
            raise ValueError("context is missing: a PID with scorecast=True needs the round's scorecast")
        raise ValueError("context is given, and this PID takes none: make it with scorecast=True")

    def _row(self, state: State, context: Any) -> Any:
        """Bring a round's scorecast into shape: one for each level, or none."""
        if not self._wanted(context):
            return None
        row = jnp.asarray(as_numbers("context", context)).astype(dtype_of(state))
        if row.shape not in ((), (len(self.levels),)):
            raise ValueError(f"context has shape {row.shape}: pass a scorecast, or one for each level of the grid")
        if not is_traced(row):
            complain_at("context", row, ~np.isfinite(row), "a scorecast must be finite")
        row = jnp.where(jnp.isfinite(row), row, jnp.nan)
        return jnp.broadcast_to(row, (len(self.levels),))
