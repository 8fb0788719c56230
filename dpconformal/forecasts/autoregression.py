"""Autoregressions of the scores, by least squares with forgetting."""

import math
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from dpconformal.forecasts.learning import Errors, LearntScale, check_sums
from dpconformal.pytree import register
from dpconformal.validation import Scalar, check_int

LONGEST = 64  # scores that a regression may look back upon
RIDGE = 1e-5  # of the mean eigenvalue


class Regression(NamedTuple):
    """What an autoregression has seen; its sums are discounted."""

    seen: Int[Array, "*B"]  # (), how many scores; -1 once a bad one was met inside jit
    errors: Errors
    recent: Float[Array, "*B P"]  # (order,), the last scores, the newest first
    total: Float[Array, "*B"]  # (), of the scores
    mass: Float[Array, "*B"]  # (), of 1 for each score
    gram: Float[Array, "*B P P"]  # (order, order), products of the last scores' distances to the mean
    moment: Float[Array, "*B P"]  # (order,), these distances times that of the score that followed

    def check(self, learner: Any) -> None:
        """Refuse what no replay leaves."""
        check_sums(self)


@register(static=("order", "shape"))
@dataclass(frozen=True)
class AutoRegression(LearntScale):
    """
    Predict the next score from the last ones, by least squares with forgetting.

    The location is m + θ·x: m is the discounted mean of the scores, x how far the last ``order`` of them are from it,
    and θ minimises the discounted sum of squares (s - m - θ·x)² of all rounds plus a ridge penalty, which is in
    proportion to the mean square of x and fades with the rounds. So the inverse covariance is bounded relative to the
    data, and there is no scale to state. The heavy tails of the default ``shape`` keep PITs away from 0 and 1, where
    those of a normal one saturate.

    By itself it promises no coverage: it is a base for :class:`dpconformal.Recalibrated`.

    Parameters
    ----------
    order : int
        Scores to look back upon. 0: the location is the mean, as of :class:`LocalLevel`.
    memory : float
        Rounds to remember, at least 1: the weight of a score falls by the factor 1 - 1/memory each round.
    scale_memory : float
        The same for the absolute errors, whose mean is the scale.
    shape : {"cauchy", "student_t", "normal", "log_normal"}
        Of the predictive distribution. With "log_normal" logarithms of the scores are regressed.
    df : float
        Degrees of freedom of "student_t", at least 1.
    low, high : float
        The support: where scores can be. The distribution is conditioned on it.

    Examples
    --------
    >>> import dpconformal as dpc, numpy as np
    >>> scores = np.sin(np.arange(300.0))  # each is a sum of multiples of the two before
    >>> run = dpc.replay(AutoRegression(order=2), scores, levels=[0.5])
    >>> bool(np.abs(run.thresholds[100:, 0] - scores[100:]).max() < 0.05)
    True
    """

    order: int = 2
    memory: Scalar = 100.0
    scale_memory: Scalar = 20.0
    shape: str = "cauchy"
    df: Scalar = 4.0
    low: Scalar = -math.inf
    high: Scalar = math.inf
    state_type: ClassVar[type] = Regression

    def __post_init__(self) -> None:
        super().__post_init__()
        if check_int("AutoRegression.order", self.order, 0) > LONGEST:
            raise ValueError(f"AutoRegression.order = {self.order}: at most {LONGEST}")

    def start(self, dtype: Any) -> Regression:
        """Return the state before any score."""
        zero, row = jnp.zeros((), dtype), jnp.zeros(self.order, dtype)
        square = jnp.zeros((self.order, self.order), dtype)
        return Regression(jnp.zeros((), jnp.int32), Errors(zero, zero), row, zero, zero, square, row)

    def location(self, state: Regression, context: Any) -> Float[Array, ""]:
        """Return m + θ·x."""
        mean, x = _distances(state)
        if not self.order:
            return mean
        ridge = (RIDGE + 1 / jnp.maximum(state.mass, 1) ** 2) * jnp.trace(state.gram) / self.order
        ridge = jnp.where(ridge > 0, ridge, 1)  # equal scores: there is nothing to regress on
        return mean + jnp.sum(x * _solve(state.gram, ridge, state.moment))

    def learn_location(self, state: Regression, score: Float[Array, ""], context: Any) -> Regression:
        """Add the round to the sums."""
        kept = 1 - 1 / jnp.asarray(self.memory, score.dtype)
        mean, x = _distances(state)
        return state._replace(
            recent=jnp.concatenate([score[None], state.recent])[: self.order],
            total=kept * state.total + score,
            mass=kept * state.mass + 1,
            gram=kept * state.gram + x[:, None] * x[None, :],
            moment=kept * state.moment + x * (score - mean),
        )


def _distances(state: Regression) -> tuple[Array, Array]:
    """Return the mean, and how far the last scores are from it; 0 for those before the first."""
    mean = state.total / jnp.maximum(state.mass, 1)
    known = jnp.arange(state.recent.shape[-1], dtype=jnp.int32) < state.seen
    return mean, jnp.where(known, state.recent - mean, 0)


def _solve(gram: Float[Array, "P P"], ridge: Float[Array, ""], right: Float[Array, " P"]) -> Float[Array, " P"]:
    """Solve (gram + ridge · identity) θ = right by elimination, written out: LAPACK is not part of a native loop."""
    size = right.shape[0]
    rows = [[gram[i, j] + (ridge if i == j else 0) for j in range(size)] + [right[i]] for i in range(size)]
    for i in range(size):
        for j in range(i + 1, size):
            factor = rows[j][i] / rows[i][i]
            rows[j] = [there - factor * here for there, here in zip(rows[j], rows[i], strict=True)]
    answer: list[Array] = []  # from the last one back
    for row in reversed(rows):
        known = [row[size - 1 - k] * value for k, value in enumerate(answer)]
        answer.append((row[size] - sum(known, start=jnp.zeros((), right.dtype))) / row[size - 1 - len(answer)])
    return jnp.stack(answer[::-1])
