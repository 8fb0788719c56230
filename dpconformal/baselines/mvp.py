"""Multivalid prediction: buckets of thresholds, each covered as often as it should be."""

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, UInt32

from dpconformal.baselines.grid import GridLearner, grid_of, is_given, width_of
from dpconformal.learner import State, rounding
from dpconformal.pytree import register
from dpconformal.validation import (
    Scalar,
    add_trailing_axes,
    check_int,
    check_seed,
    check_size,
    check_within,
    is_traced,
    raise_at,
)


class Buckets(NamedTuple):
    """Coverage within each bucket of thresholds and each group."""

    seen: Int[Array, "*B"]  # scores; -1 once a bad one was met inside jit
    key: UInt32[Array, "*B 2"]  # a threefry key that does not change: the coin of round t comes from fold_in(key, t)
    coin: Float[Array, "*B"]  # a number in [0, 1), drawn for the coming round
    counts: Int[Array, "*B N G M"]  # rounds in which a group came up and the level's threshold lay in the bucket
    misses: Int[Array, "*B N G M"]  # those whose score exceeded the threshold
    worth: Float[Array, "*B N G M"]  # 1/f(counts), what a round more or less counts; 1 without normalisation

    def check(self, learner: Any) -> None:
        """Refuse what no replay leaves: a round of a group is counted once for each level."""
        counts = np.asarray(self.counts, np.int64)
        check_within("state.coin", self.coin, 0, np.nextafter(1, 0))
        check_within("state.counts", counts, 0, add_trailing_axes(self.seen, counts))
        check_within("state.misses", self.misses, 0, counts)
        rounds, seen = counts.sum(axis=-1), np.asarray(self.seen, np.int64)[..., None, None]
        lost = (rounds != rounds[..., :1]) | (rounds > seen) | ((rounds != seen) & (learner.groups == 1))
        raise_at("state.counts", rounds, lost, "the sum over buckets must be the rounds of the group")
        worth = 1 / (np.sqrt(counts + 1) * np.log2(counts + 2)) if learner.normalize else np.ones(())
        check_within("state.worth", self.worth, worth * (1 - 1e-3), worth * (1 + 1e-3), "it is that of its count")


def key_data(seed: Any) -> UInt32[Array, "2"]:
    """Make the key of a state from a seed."""
    return jax.random.key_data(jax.random.key(seed, impl="threefry2x32"))


def draw_coin(state: State) -> Any:
    """Draw the coin of the coming round, for a state with ``seen``, ``key`` and ``coin``."""
    key = jax.random.wrap_key_data(state.key, impl="threefry2x32")
    key = jax.random.fold_in(key, jnp.maximum(state.seen, 0) + 1)
    return state._replace(coin=jax.random.uniform(key, (), state.coin.dtype))


def _take_buckets(state: Buckets, bucket: Int[Array, "G K"]) -> Buckets:
    """Take out some buckets of each level."""
    index = jnp.broadcast_to(bucket[None], (state.counts.shape[0], *bucket.shape))
    counts, misses, worth = (jnp.take_along_axis(leaf, index, axis=-1) for leaf in state[3:])
    return Buckets(*state[:3], counts, misses, worth)


def _excess(state: Buckets, levels: Float[Array, " G"]) -> Float[Array, "N G K"]:
    """Count covered rounds beyond their target."""
    dtype = state.coin.dtype
    used = state.counts.astype(dtype)
    excess = (1 - levels[None, :, None]) * used - state.misses.astype(dtype)
    return jnp.where(jnp.abs(excess) <= rounding(dtype) * used, 0, excess)  # rounding is no error


def _errors(
    state: Buckets, groups: Bool[Array, " N"], levels: Float[Array, " G"], eta: Float[Array, ""]
) -> tuple[Float[Array, "G K"], Float[Array, "G K"]]:
    """Sum (e^x - e^-x)/f over the round's groups, x = η · excess/f, as a logarithm of the scale and what remains."""
    inside = groups[:, None, None]
    error = jnp.where(inside, eta * _excess(state, levels) * state.worth, 0)
    weight = jnp.where(inside, state.worth, 0)
    scale = jnp.max(jnp.abs(error), axis=0)
    over, under = (jnp.sum(weight * jnp.exp(sign * error - scale[None]), axis=0) for sign in (1, -1))
    rest = over - under
    # Groups may cancel but for rounding.
    return scale, jnp.where(jnp.abs(rest) <= 4 * rounding(rest.dtype) * jnp.maximum(over, under), 0, rest)


@register(static=("buckets", "normalize", "groups", "resolution"))
@dataclass(frozen=True, eq=False)
class MVP(GridLearner):
    """
    Multivalid prediction (MVP), for each level of a grid.

    Thresholds are multiples of 1/buckets of the support. In each round the method looks for two neighbouring buckets,
    of which one has covered too often and the other too rarely, and draws a coin between them, so that whatever score
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
        For the key of a fresh state. One coin is drawn a round for all levels. Sequences of a batch that start from
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
        object.__setattr__(self, "resolution", check_int(f"{own}.resolution", self.resolution, 1))
        check_size(f"{own}.buckets * {own}.groups", self.buckets * self.groups, 1)
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
        return state if seed is None else draw_coin(state._replace(key=key_data(seed)))

    def start(self, dtype: Any) -> Buckets:
        """Return the state before any score."""
        nothing = jnp.zeros((self.groups, len(self.levels), self.buckets), jnp.int32)
        zero, coin = jnp.zeros((), jnp.int32), jnp.zeros((), dtype)
        return draw_coin(Buckets(zero, key_data(self.seed), coin, nothing, nothing, jnp.ones(nothing.shape, dtype)))

    def choose(self, state: Buckets, groups: Bool[Array, " N"]) -> tuple[Int[Array, " G"], Float[Array, " G"]]:
        """
        Choose a bucket and a threshold within it for each level, in a round of these groups.

        The bucket is -1 where the round belongs to no group. The lower of two neighbouring buckets is played
        1/(resolution · buckets) below its upper edge.
        """
        dtype, last = state.coin.dtype, self.buckets - 1
        levels, eta = grid_of(self, dtype), jnp.asarray(self.eta, dtype)
        # Whether each bucket covered too often or too rarely, over the round's groups.
        sign = jnp.sign(_excess(state, levels)[0] if self.groups == 1 else _errors(state, groups, levels, eta)[1])
        # The first pair of neighbours whose errors do not have the same sign.
        turns = sign[:, 1:] * sign[:, :-1] <= 0
        left = jnp.min(jnp.where(turns, jnp.arange(last, dtype=jnp.int32)[None], last), axis=-1, initial=last)
        found = left < last
        pair = jnp.minimum(left[:, None] + jnp.arange(2, dtype=jnp.int32)[None], last)
        scale, rest = _errors(_take_buckets(state, pair), groups, levels, eta)
        size = scale + jnp.log(jnp.abs(rest))
        # Each is played in proportion to the error of the other; the left one where there is none at all.
        nothing = jnp.isneginf(size).all(axis=-1)
        chance = jnp.where(nothing, 1, jax.nn.sigmoid(jnp.where(nothing, 0, size[:, 1] - size[:, 0])))
        play_left = state.coin <= chance
        edge = jnp.asarray(np.arange(1, self.buckets + 1) / self.buckets, dtype)[left]  # of a bucket, from above
        paired = jnp.where(play_left, edge - 1 / (self.resolution * self.buckets), edge)
        # Errors of one sign: everything where all cover too rarely, nothing where all cover too often.
        never = sign[:, 0] <= 0
        bucket = jnp.where(found, jnp.where(play_left, left, left + 1), jnp.where(never, last, 0))
        share = jnp.where(found, paired, jnp.where(never, 1, 0).astype(dtype))  # of the support
        member = jnp.any(groups)
        threshold = jnp.asarray(self.low, dtype) + width_of(self, dtype) * jnp.where(member, share, 0)
        return jnp.where(member, bucket, -1).astype(jnp.int32), threshold

    def thresholds(self, state: Buckets, groups: Bool[Array, " N"]) -> Float[Array, " G"]:
        """Predict the threshold of each level of the grid."""
        return self.choose(state, groups)[1]

    def learn(self, state: Buckets, score: Float[Array, ""], groups: Bool[Array, " N"]) -> Buckets:
        """Count the round, and whether it missed, in the buckets played."""
        bucket, threshold = self.choose(state, groups)
        missed = score > threshold
        played = jnp.arange(self.buckets, dtype=jnp.int32)[None, :] == bucket[:, None]
        used, worth = groups[:, None, None] & played[None], state.worth
        if self.normalize:
            count = _take_buckets(state, jnp.maximum(bucket, 0)[:, None]).counts.astype(worth.dtype) + 1
            worth = jnp.where(used, 1 / (jnp.sqrt(count + 1) * jnp.log2(count + 2)), worth)
        return Buckets(
            state.seen,
            state.key,
            draw_coin(state._replace(seen=state.seen + 1)).coin,
            state.counts + used.astype(state.counts.dtype),
            state.misses + (used & missed[None, :, None]).astype(state.misses.dtype),
            worth,
        )

    def _takes(self, context: Any) -> bool:
        needed = f"an MVP with groups = {self.groups} needs each round's groups"
        return is_given(context, self.groups > 1, needed, "this MVP takes none: make it with groups=2 or more")

    def as_context(self, context: Any, shape: tuple[int, ...]) -> Any:
        """Check the group memberships of a replay: booleans of shape (..., T, groups)."""
        if not self._takes(context):
            return None
        rows, full = _booleans(context), (*shape, self.groups)
        if rows.shape not in (full, full[-2:]):
            raise ValueError(f"context has shape {rows.shape}: pass a row of {self.groups} booleans a round, {full}")
        return jnp.broadcast_to(rows, full)

    def context_row(self, state: State, context: Any) -> tuple[Array]:
        """Check the groups of a round; without a context there is one group, of which every round is."""
        del state
        if not self._takes(context):
            return (jnp.ones(1, bool),)
        row = _booleans(context)
        if row.shape != (self.groups,):
            raise ValueError(f"context has shape {row.shape}: pass a row of {self.groups} booleans")
        return (row,)


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
