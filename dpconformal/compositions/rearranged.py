"""Any grid method in order: its thresholds sorted."""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from dpconformal.baselines.grid import SAME, GridLearner, grid_of
from dpconformal.learner import ContextLearner, State, support_of
from dpconformal.pytree import register
from dpconformal.validation import Numbers, Scalar, as_levels, check_not_batched


@register()
@dataclass(frozen=True, eq=False)
class Rearranged:
    """
    A method that follows each level of a grid by itself, with the thresholds of the grid sorted in each round.

    Thresholds no longer cross. In every round as many levels of the grid cover the score as before, so the mean
    coverage over the grid is the same, and the k highest levels together never cover less often; the coverage of a
    single level can change. The quantile loss summed over the grid is never larger. With unequal weights of the levels
    it can be.

    Parameters
    ----------
    learner : Learner
        One of the methods with a grid: :class:`OGD`, :class:`ACI`, :class:`DtACI`, :class:`PID` and the others.

    References
    ----------
    Chernozhukov, Fernández-Val and Galichon (2010), Quantile and probability curves without crossing.

    Examples
    --------
    >>> import dpconformal as dpc
    >>> grid = [0.5, 0.6, 0.7, 0.8, 0.9]
    >>> scores = dpc.streams.drifting(500)
    >>> plain, sorted_ = (dpc.replay(one, scores, grid) for one in (dpc.OGD(grid), Rearranged(dpc.OGD(grid))))
    >>> int(dpc.metrics.crossings(plain).rounds) > 0, int(dpc.metrics.crossings(sorted_).rounds)
    (True, 0)
    """

    learner: Any

    def __post_init__(self) -> None:
        if not isinstance(self.learner, GridLearner):
            name = getattr(self.learner, "__name__", type(self.learner).__name__)
            raise ValueError(f"Rearranged.learner is {name}: pass a method with a grid of levels, such as OGD(levels)")

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Rearranged) and self.learner == other.learner

    __hash__ = None  # type: ignore[assignment]

    @property
    def levels(self) -> Any:
        """The grid."""
        return self.learner.levels

    @property
    def support(self) -> tuple[Scalar, Scalar]:
        """Ends of the interval that holds every score."""
        return support_of(self.learner)

    def init(self, rounds: int | None = None, dtype: Any = None) -> State:
        """Return the state before any score, that of the method."""
        return self.learner.init(rounds, dtype)

    def prepare(self, state: State, rounds: int) -> State:
        """Check that a state, or a batch of them, can be carried on from."""
        return self.learner.prepare(state, rounds)

    def check_levels(self, levels: Numbers, why: str = "") -> None:
        """Refuse levels that the grid does not have."""
        self.learner.check_levels(levels, why)

    def as_context(self, context: Any, shape: tuple[int, ...]) -> Any:
        """Check what a replay tells the method."""
        if isinstance(self.learner, ContextLearner):
            return self.learner.as_context(context, shape)
        if context is not None:
            raise ValueError(f"context is given, and {type(self.learner).__name__} takes none")
        return None

    def quantile(self, state: State, levels: Numbers, context: Any = None) -> Float[Array, "..."]:
        """Predict the threshold of each level, which must be one of the grid."""
        check_not_batched(self)
        self.check_levels(levels)
        given = {} if context is None else {"context": context}
        found = self.learner.quantile(state, self.levels, **given)
        return _in_order(self.learner, found, as_levels(levels, found.dtype))

    def observe(self, state: State, score: Numbers, context: Any = None) -> State:
        """Return the state after one more score."""
        return self.learner.observe(state, score, **({} if context is None else {"context": context}))


@jax.jit
def _in_order(learner: GridLearner, thresholds: Float[Array, " G"], levels: Float[Array, "*n"]) -> Float[Array, "*n"]:
    """Sort the thresholds of the grid, and pick those of some levels."""
    grid = jnp.sort(grid_of(learner, levels.dtype))
    found = jnp.argmin(jnp.abs(levels[..., None] - grid.reshape((1,) * levels.ndim + (-1,))), axis=-1)
    known = learner.to_nearest | (jnp.abs(grid[found] - levels) <= SAME)
    return jnp.where(known & ~jnp.isnan(levels), jnp.sort(thresholds)[found], jnp.nan)
