"""Adaptive conformal inference: window quantiles at levels that learn from misses, at one rate or at several, mixed."""

import math
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.nn import softmax
from jax.scipy.special import logsumexp
from jaxtyping import Array, Float, Int

from dpconformal.baselines.grid import GridLearner, check_in_support, grid_of, initial_of, width_of
from dpconformal.baselines.ogd import slope
from dpconformal.beliefs.sliding import CONVENTIONS, Window, empty_window, share_at_least, slide, window_quantile
from dpconformal.learner import State, rounding
from dpconformal.pytree import register
from dpconformal.validation import Scalar, add_trailing_axes, as_numbers, check_within, is_traced, raise_at

OUTSIDE = ("ends", "infinite", "extremes")


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
    def rate_of_levels(self) -> Any:
        """How much one round moves each level: (), or (K,) with an expert for each of several rates."""
        return self.rate  # type: ignore[attr-defined]

    @property
    def columns(self) -> tuple[int, ...]:
        """Shape of what is counted for each level and expert."""
        return len(self.levels), *np.shape(self.rate_of_levels)

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
    def rate_of_levels(self) -> Any:
        """How much one round moves the level of each expert."""
        return self.rates

    def is_valid(self) -> Any:
        """Whether hyperparameters are in range."""
        return super().is_valid() & jnp.all(jnp.asarray(self.rates) > 0)


def window_of(state: State) -> Window:
    """Return the window within a state."""
    return Window(*state[:3])


def check_window_and_misses(state: State, learner: WindowLearner) -> np.ndarray | np.int64:
    """Refuse a window out of order, or more misses than rounds after the warm-up; return how many those are."""
    window_of(state).check(learner)
    judged = np.maximum(np.asarray(state.seen, np.int64) - learner.warmup, 0)
    check_within("state.misses", state.misses, 0, add_trailing_axes(judged, state.misses))
    return judged


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


RATES = tuple(0.001 * 2**k for k in range(8))  # of the experts of a mixture


class WindowAndExperts(NamedTuple):
    """The latest scores, as in :class:`dpconformal.beliefs.sliding.Window`, and experts that differ in their rate."""

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
        raise_at("state.log_weights", self.log_weights, (largest != 0)[..., None], "the largest must be 0")


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
    horizon : int
        H, the length of the stretches to do well on. It sets the share 1/(2H) that is spread over all experts, and the
        learning rate of their weights, √(3/H · (ln(K·H) + 2) / ((1 - a)²a³ + a²(1 - a)³)) with a = 1 - level.
    window, warmup, outside, initial, low, high
        As for :class:`ACI`; ``outside`` is about the mean level.

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
        answers = self.ask(window_of(state), level)
        return jnp.where(state.seen < self.warmup, initial_of(self, state.latest.dtype), answers)

    def learn(self, state: WindowAndExperts, score: Float[Array, ""]) -> WindowAndExperts:
        """Move the window on, and after the warm-up judge the experts by the score's p-value."""
        dtype, active = score.dtype, state.seen >= self.warmup
        target, experts = 1 - grid_of(self, dtype)[:, None], 1 - self.adapted_levels(state)  # as miscoverage
        value = share_at_least(window_of(state), score)
        loss = target * (value - experts) - jnp.minimum(value - experts, 0)
        level = grid_of(self, dtype)
        spread = level**2 * (1 - level) ** 3 + (1 - level) ** 2 * level**3
        log = math.log(len(self.rates) * self.horizon) + 2
        # Levels 0 and 1 have nothing to learn: no expert ever loses there.
        rate = jnp.sqrt(3 / self.horizon * log / jnp.where(spread > 0, spread, 1))
        moved = state.log_weights - rate[:, None] * loss
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


class WindowAndRegrets(NamedTuple):
    """The latest scores, as in :class:`dpconformal.beliefs.sliding.Window`, and experts that differ in their rate."""

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
        most = add_trailing_axes(check_window_and_misses(self, learner), self.regret) * (1 + 1e-3)
        check_within("state.regret", self.regret, -1.5 * most, 1.5 * most)
        check_within("state.largest", self.largest, 0, 1 + 1e-3)
        check_within("state.squares", self.squares, 0, most)
        check_in_support(learner, "answer", self.answer)
        fresh = add_trailing_axes(self.seen, self.experts) == 0
        check_in_support(learner, "experts", self.experts, also_0=fresh)
        raise_at("state.experts", self.experts, fresh & (np.asarray(self.experts) != 0), "must be 0 at first")


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
    window, warmup, convention, initial, low, high
        As for :class:`ACI`; an expert whose level leaves [0, 1] answers with an end of the support.

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
        # The learning rate of each expert's weight. While nothing was gained or lost its regret is 0 and any will do.
        known = squares > 0
        most = jnp.where(known, 2 * largest, 1)
        rates = jnp.minimum(1 / most, jnp.sqrt(math.log(squares.shape[-1]) / jnp.where(known, squares, 1)))
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
