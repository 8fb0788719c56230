"""Multivalid prediction: thresholds from a few buckets, calibrated within each bucket and each group."""

from dataclasses import dataclass
from typing import Any, ClassVar

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from dpconformal.baselines.buckets import Buckets, Choice, choose, counted, no_rounds, reseeded
from dpconformal.baselines.grid import ContextGridLearner, grid_of, takes_context, width_of
from dpconformal.learner import State
from dpconformal.pytree import register
from dpconformal.validation import Scalar, check_not_forked, check_seed, is_traced, places, whole


@register(static=("buckets", "normalize", "groups", "resolution"))
@dataclass(frozen=True, eq=False)
class MVP(ContextGridLearner):
    """
    Multivalid prediction (MVP), for each level of a grid.

    Thresholds are multiples of 1/buckets of the support. In each round the method looks for two neighbouring buckets,
    of which one has covered too often and the other too rarely, and tosses a coin between them, so that whatever score
    comes, neither error grows in expectation.

    Guarantee, with no assumption but that scores are not concentrated within 1/(resolution · buckets) below a
    bucket's edge, nor at ``low`` itself, which the lowest threshold covers: for each group, and each bucket of
    thresholds within it, the coverage frequency approaches the level; with plain errors and
    η = √(ln(2 · groups · buckets)/T) the excess of covered rounds over their target is at most
    2√(T ln(2 · groups · buckets)) in expectation, for all of them at once. None on the loss. Thresholds of different
    levels may cross. A round costs O(groups · buckets).

    Parameters
    ----------
    levels : array_like, shape (G,)
        The grid. Other levels are refused; :class:`MultiMVP` answers them with the nearest.
    buckets : int
        Thresholds to choose from.
    eta : float
        How sharply errors of a bucket are weighted. 0.5 suits normalised errors; √(ln(2 · groups · buckets)/T) plain
        ones.
    normalize : bool
        Whether to divide the error of a bucket by f(n) = √((n + 1) · log2(n + 2)²) after it was used n times.
    groups : int
        Number of groups, which may overlap. With more than one, each round comes with a row of as many booleans that
        tells to which groups it belongs, as its ``context``: ``replay(learner, scores, levels, context=rows)``, of
        shape (T, groups). A round of no group is answered with ``low`` and teaches nothing.
    seed : int
        For the key of a fresh state. One coin is tossed a round for all levels. Sequences of a batch that start from
        the same state share its coins; for others give each its own state, from ``init(seed=...)``.
    resolution : int
        The lower of two neighbouring buckets is played 1/(resolution · buckets) below its upper edge.
    low, high : float
        The support. Scores outside are refused.

    References
    ----------
    Bastani, Gupta, Jung, Noarov, Ramalingam and Roth (2022), Practical adversarial multivalid conformal prediction.

    Examples
    --------
    >>> learner = MVP(levels=[0.9], buckets=10)
    >>> state = learner.observe(learner.init(), 0.7)
    >>> learner.quantile(state, [0.9]).round(4)
    Array([0.1], dtype=float...)
    """

    levels: Any
    buckets: int = 50
    eta: Scalar = 0.5
    normalize: bool = True
    groups: int = 1
    seed: Scalar = 0
    resolution: int = 1000
    low: Scalar = 0.0
    high: Scalar = 1.0
    state_type: ClassVar[type] = Buckets
    sizes: ClassVar[tuple[str, ...]] = ("buckets", "groups")
    positive: ClassVar[tuple[str, ...]] = ("eta",)

    def __post_init__(self) -> None:
        super().__post_init__()
        own = type(self).__name__
        object.__setattr__(self, "resolution", whole(f"{own}.resolution", self.resolution, 1))
        places(f"{own}.buckets * {own}.groups", self.buckets * self.groups, 1)
        if not isinstance(self.normalize, bool):
            raise ValueError(f"{own}.normalize = {self.normalize!r}: pass True or False")
        check_seed(f"{own}.seed", self.seed)

    def init(self, rounds: int | None = None, dtype: Any = None, seed: Any = None) -> State:
        """Return the state before any score; with a seed of its own where one is given."""
        if seed is not None:
            check_seed("seed", seed)
        state = super().init(rounds, dtype)
        step = 1 / (self.resolution * self.buckets)
        if step < 2 * float(jnp.finfo(state.coin.dtype).eps):
            raise ValueError(
                f"{type(self).__name__}.resolution = {self.resolution}: with {self.buckets} buckets the step {step:g} "
                f"is too fine for {state.coin.dtype}"
            )
        return state if seed is None else reseeded(state, seed)

    def as_context(self, context: Any, shape: tuple[int, ...]) -> Any:
        """Check the group memberships of a replay: booleans of shape (..., T, groups)."""
        if not self._wanted(context):
            return None
        rows = _booleans(context)
        full = (*shape, self.groups)
        if rows.shape not in (full, full[-2:]):
            raise ValueError(f"context has shape {rows.shape}: pass a row of {self.groups} booleans a round, {full}")
        return jnp.broadcast_to(rows, full)

    def start(self, dtype: Any) -> Buckets:
        """Return the state before any score."""
        return no_rounds(self.groups, len(self.levels), self.buckets, self.seed, dtype)

    def choose(self, state: Buckets, groups: Bool[Array, " N"]) -> Choice:
        """Choose a bucket for each level, in a round of these groups."""
        dtype = state.coin.dtype
        return choose(state, groups, grid_of(self, dtype), jnp.asarray(self.eta, dtype), self.resolution)

    def thresholds(self, state: Buckets, groups: Bool[Array, " N"]) -> Float[Array, " G"]:
        """Predict the threshold of each level of the grid."""
        return self._on_support(self.choose(state, groups).threshold)

    def learn(self, state: Buckets, score: Float[Array, ""], groups: Bool[Array, " N"]) -> Buckets:
        """Count the round, and whether it missed, in the buckets played."""
        choice = self.choose(state, groups)
        missed = score > self._on_support(choice.threshold)
        return counted(state, groups, choice.bucket, missed, self.normalize)

    def _on_support(self, share: Float[Array, " G"]) -> Float[Array, " G"]:
        return jnp.asarray(self.low, share.dtype) + width_of(self, share.dtype) * share

    def _wanted(self, context: Any) -> bool:
        needed = f"an MVP with groups = {self.groups} needs each round's groups"
        return takes_context(context, self.groups > 1, needed, "this MVP takes none: make it with groups=2 or more")

    def context_row(self, state: State, context: Any) -> Array:
        """Check the groups of a round; without a context there is one group, of which every round is."""
        del state
        check_not_forked()
        if not self._wanted(context):
            return jnp.ones(1, bool)
        row = _booleans(context)
        if row.shape != (self.groups,):
            raise ValueError(f"context has shape {row.shape}: pass a row of {self.groups} booleans")
        return row


@register(static=("buckets", "normalize", "groups", "resolution"))
@dataclass(frozen=True, eq=False)
class MultiMVP(MVP):
    """
    :class:`MVP` on a grid of levels, which answers any level with the threshold of the nearest one of the grid.

    With ``levels=jnp.linspace(0, 1, 50)`` this is the paper's MultiMVP. What it covers is the level of the grid, not
    the one asked for. Of two levels that are equally near the first answers.

    Parameters
    ----------
    levels : array_like, shape (G,)
        The grid.
    buckets, eta, normalize, groups, seed, resolution, low, high
        As for :class:`MVP`.

    References
    ----------
    Zhang, Lu and Yang (2024), The benefit of being Bayesian in online conformal prediction.

    Examples
    --------
    >>> learner = MultiMVP(levels=[0.5, 0.9], buckets=10)
    >>> learner.quantile(learner.observe(learner.init(), 0.7), [0.99]).round(4)
    Array([0.1], dtype=float...)
    """

    to_nearest: ClassVar[bool] = True


def _booleans(context: Any) -> Array:
    rows = context if is_traced(context) else np.asarray(context)
    if rows.dtype != bool:
        raise ValueError(f"context must be booleans, whether a round belongs to each group; got dtype {rows.dtype}")
    return jnp.asarray(rows)
