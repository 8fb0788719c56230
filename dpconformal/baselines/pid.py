"""Conformal PID control: quantile tracking, an integrator of coverage errors, and forecasts of the scores."""

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from dpconformal.baselines.aci import OUTSIDE, check_choice
from dpconformal.baselines.grid import GridLearner, dtype_of, grid_of, is_given
from dpconformal.beliefs.sliding import check_filled
from dpconformal.learner import State
from dpconformal.pytree import register
from dpconformal.validation import Scalar, add_trailing_axes, as_numbers, check_size, check_within, is_traced, raise_at


class Controller(NamedTuple):
    """State of :class:`PID`."""

    seen: Int[Array, "*B"]  # scores; -1 once a bad one was met inside jit
    tracker: Float[Array, "*B G"]  # the quantile tracker of each level: the proportional part
    misses: Int[Array, "*B G"]  # rounds but the latest whose score exceeded the threshold: for the integral part
    missed: Int[Array, "*B G"]  # 1 where the latest score did, which the integral part learns a round later
    latest: Float[Array, "*B W"]  # the latest scores, for the scale of the steps; none without a window

    def check(self, learner: Any) -> None:
        """Refuse what no replay leaves: each miss moved the tracker up by one step at most, each other round down."""
        check_filled(self.seen, self.latest, np.nan)
        rounds = add_trailing_axes(self.seen, self.misses).astype(float)
        check_within("state.missed", self.missed, 0, np.minimum(rounds, 1))
        check_within("state.misses", self.misses, 0, np.maximum(rounds - 1, 0))
        misses, level = np.asarray(self.misses, float) + np.asarray(self.missed), np.asarray(learner.levels)
        with np.errstate(over="ignore"):
            longest = learner.rate * (1 if learner.window is None else np.float64(learner.high) - learner.low)
            up, down = longest * level * misses, longest * (1 - level) * (rounds - misses)
            start = learner.first_tracker()
            slack = (64 + rounds) * float(jnp.finfo(self.tracker.dtype).eps) * (np.abs(start) + up + down)
            low, high = start - down - slack, start + up + slack
        check_within("state.tracker", self.tracker, low, high, "so many steps lead no further")


@register(static=("scorecast", "window", "outside"))
@dataclass(frozen=True, eq=False)
class PID(GridLearner):
    """
    Conformal PID control: threshold = scorecast + tracker + saturation(sum of coverage errors).

    * P, the tracker: r ← r + η · S · (miss - (1 - level)), where S is the spread of recent scores: the largest less
      the smallest of the ``window`` scores before the round's own. With ``integral=0`` and no scorecast nothing else
      remains.
    * I, the integrator: K · tan(x · ln t / (t · C)) after t rounds, where x = misses - (1 - level)·(t - 1) counts all
      of them but the latest; beyond ±π/2 it saturates and the set is everything or nothing.
    * D, the scorecast, with ``scorecast=True``: a forecast of the coming score, or of its quantiles, that you make
      from the past and pass as the round's ``context``: ``replay(learner, scores, levels, context=forecasts)``, of
      shape (T,), or (T, G) with one for each level of the grid. The tracker then follows what the forecasts leave
      over.

    This is the convention of the authors' code (github.com/aangelopoulos/conformal-time-series, ``core/methods.py``);
    the paper's integrator counts the latest round, too. The tracker starts at 0, and one score has no spread, so that
    it makes its first step in round 3 (in the authors' code a step of η in round 1, in whatever units the scores have).
    The integrator is 0 in rounds 1 and 2. Scores that are all alike have no spread, and the tracker stands still.
    ``low`` and ``high`` scale nothing: scores outside are refused, and a saturated integrator answers with them.

    Guarantee, with no assumption: with the integrator the coverage frequency of T rounds is within
    πC/(2 ln T) + 4/T of the level (``outside="infinite"``, or ``"ends"`` if no score equals ``low``); with P alone and
    ``window=None`` within (R + η)/(ηT), R being high - low, if the tracker starts within the support. Thresholds of
    different levels may cross.

    Parameters
    ----------
    levels : array_like, shape (G,)
        The grid; other levels are refused.
    rate : float
        η, as a share of the spread of recent scores; without a window, in units of the scores.
    integral : float, optional
        K, in units of the scores; by default the spread S of recent scores. 0 switches the integrator off.
    saturation : float
        C: the smaller, the sooner the integrator takes over.
    scorecast : bool
        Whether each round comes with a scorecast.
    window : int or None
        How many recent scores their spread is taken of. None: the step is η itself, and K must be given.
    outside : {"ends", "infinite"}
        Threshold of a saturated integrator: ``high`` or ``low``; or ±∞, a set of everything or nothing.
    initial : array_like, optional
        First value of the tracker, one for all levels or one for each; by default 0, or the end of the support that is
        next to it; with a scorecast always 0.
    low, high : float
        The support. Scores outside are refused; thresholds may leave it.

    References
    ----------
    Angelopoulos, Candès and Tibshirani (2023), Conformal PID control for time series prediction.

    Examples
    --------
    >>> import dpconformal as dpc
    >>> learner = PID(levels=[0.9], integral=0, initial=0.5, low=-1)
    >>> dpc.replay(learner, [0.2, -0.4, 0.6, 0.1], [0.9]).thresholds.ravel().round(3)
    Array([0.5  , 0.5  , 0.5  , 0.554], dtype=float...)
    """

    levels: Any
    rate: Scalar = 0.1
    integral: Scalar = None
    saturation: Scalar = 1.0
    scorecast: bool = False
    window: int | None = 100
    outside: str = "ends"
    initial: Any = None
    low: Scalar = 0.0
    high: Scalar = 1.0
    state_type: ClassVar[type] = Controller
    not_negative: ClassVar[tuple[str, ...]] = ("rate", "integral")
    positive: ClassVar[tuple[str, ...]] = ("saturation",)

    def __post_init__(self) -> None:
        if not isinstance(self.scorecast, bool):
            raise ValueError(f"PID.scorecast = {self.scorecast!r}: pass True, and the scorecasts as replay's context")
        super().__post_init__()
        if self.window is not None:
            object.__setattr__(self, "window", check_size("PID.window", self.window, 1))
        elif self.integral is None:
            raise ValueError("PID.integral = None: without a window give K, in units of the scores, or 0 for P alone")
        check_choice("PID.outside", self.outside, OUTSIDE[:2])

    @property
    def start_anywhere(self) -> bool:  # type: ignore[override]
        """Whether initial thresholds may lie outside the support: with a scorecast they are offsets."""
        return self.scorecast

    def _takes(self, context: Any) -> bool:
        needed = "a PID with scorecast=True needs the round's scorecast"
        return is_given(context, self.scorecast, needed, "this PID takes none: make it with scorecast=True")

    def as_context(self, context: Any, shape: tuple[int, ...]) -> Any:
        """Check the scorecasts of a replay: shape (..., T) or, with one for each level of the grid, (..., T, G)."""
        if not self._takes(context):
            return None
        array, grid = as_numbers("context", context), (len(self.levels),)
        # What fits both readings is read as the first; leading axes may be left out.
        for full in (shape, shape + grid):
            if array.ndim >= 1 and array.shape in (full, full[len(shape) - 1 :]):
                break
        else:
            raise ValueError(
                f"context has shape {array.shape}: pass a scorecast a round, shape {shape}, or one a round and level, "
                f"shape {shape + grid}"
            )
        _check_finite(array)
        return jnp.broadcast_to(jnp.asarray(array, jnp.result_type(float)), full)

    def context_row(self, state: State, context: Any) -> tuple[Array, ...]:
        """Bring a round's scorecast into shape: one for each level, or none."""
        if not self._takes(context):
            return ()
        row = jnp.asarray(as_numbers("context", context)).astype(dtype_of(state))
        if row.shape not in ((), (len(self.levels),)):
            raise ValueError(f"context has shape {row.shape}: pass a scorecast, or one for each level of the grid")
        _check_finite(row)
        return (jnp.broadcast_to(jnp.where(jnp.isfinite(row), row, jnp.nan), (len(self.levels),)),)

    def start(self, dtype: Any) -> Controller:
        """Return the state before any score."""
        tracker = jnp.broadcast_to(jnp.asarray(self.first_tracker(), dtype), (len(self.levels),))
        nobody = jnp.zeros(tracker.shape, jnp.int32)
        latest = jnp.full(self.window or 0, jnp.nan, dtype)
        return Controller(jnp.zeros((), jnp.int32), tracker, nobody, nobody, latest)

    def first_tracker(self) -> Any:
        """Return where the tracker of each level starts, or that of all."""
        if self.initial is not None:
            return self.initial
        return 0.0 if self.scorecast else (jnp if is_traced(self.support) else np).clip(0.0, self.low, self.high)

    def spread(self, state: Controller) -> Float[Array, ""]:
        """Measure how far apart recent scores lie, of which there are none at first; 1 without a window."""
        if self.window is None:
            return jnp.ones((), state.tracker.dtype)
        return jnp.where(state.seen > 0, jnp.nanmax(state.latest) - jnp.nanmin(state.latest), 0)

    def thresholds(self, state: Controller, scorecast: Any = None) -> Float[Array, " G"]:
        """Predict the threshold of each level of the grid."""
        dtype = state.tracker.dtype
        rounds = jnp.maximum(state.seen, 1).astype(dtype)
        gain = self.spread(state) if self.integral is None else jnp.asarray(self.integral, dtype)
        error = state.misses.astype(dtype) - (1 - grid_of(self, dtype)) * (rounds - 1)
        angle = error * jnp.log(rounds) / (rounds * jnp.asarray(self.saturation, dtype))
        full = jnp.abs(angle) >= jnp.pi / 2
        answers = state.tracker + gain * jnp.tan(jnp.where(full, 0, angle))
        if scorecast is not None:
            answers = answers + scorecast
        ends = (-jnp.inf, jnp.inf) if self.outside == "infinite" else self.support
        low, high = (jnp.asarray(end, dtype) for end in ends)
        off = False if self.integral is None else gain == 0  # scores that are all alike saturate it, too
        return jnp.where(full & ~jnp.asarray(off), jnp.where(angle > 0, high, low), answers)

    def learn(self, state: Controller, score: Float[Array, ""], scorecast: Any = None) -> Controller:
        """Step the tracker and count the misses."""
        dtype, now = score.dtype, jnp.maximum(state.seen, 0)
        threshold = self.thresholds(state, scorecast)
        missed = score > threshold
        step = jnp.asarray(self.rate, dtype) * self.spread(state)
        tracker = state.tracker + step * (missed.astype(dtype) - (1 - grid_of(self, dtype)))
        tracker = jnp.where(jnp.isnan(threshold), jnp.nan, tracker)  # after a bad traced scorecast nothing is known
        latest = state.latest
        if self.window is not None:
            latest = jnp.where(jnp.arange(self.window, dtype=now.dtype) == now % self.window, score, latest)
        return Controller(state.seen, tracker, state.misses + state.missed, missed.astype(state.missed.dtype), latest)


def _check_finite(scorecasts: Any) -> None:
    if not is_traced(scorecasts):
        raise_at("context", scorecasts, ~np.isfinite(scorecasts), "a scorecast must be finite")
