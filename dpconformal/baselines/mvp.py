"""Multivalid prediction: thresholds from a few buckets, calibrated within each bucket and each group."""

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import logsumexp
from jaxtyping import Array, Bool, Float, Int, UInt32

from dpconformal.baselines.grid import GridLearner, check_grid, grid_of, learnt, routed, width_of
from dpconformal.checks import Numbers, Scalar, is_traced, number, whole
from dpconformal.learner import State, rounding
from dpconformal.pytree import register


class Buckets(NamedTuple):
    """
    Coverage within each bucket of thresholds and each group.

    Attributes
    ----------
    seen : Array, shape ()
        Scores seen; -1 once a bad one was met inside ``jit``.
    key : Array, shape (2,)
        Data of a threefry key, which does not change: the coin of round t comes from ``fold_in(key, t)``.
    coin : Array, shape ()
        A number in [0, 1), drawn for the coming round.
    counts : Array, shape (groups, G, buckets)
        Rounds in which a group came up and the level's threshold lay in the bucket.
    misses : Array, shape (groups, G, buckets)
        Those whose score exceeded the threshold.
    """

    seen: Int[Array, "*B"]  # ()
    key: UInt32[Array, "*B 2"]  # (2,)
    coin: Float[Array, "*B"]  # ()
    counts: Int[Array, "*B N G M"]  # (groups, G, buckets)
    misses: Int[Array, "*B N G M"]  # (groups, G, buckets)


class Choice(NamedTuple):
    """
    What is played in a round.

    Attributes
    ----------
    bucket : Array, shape (G,)
        The bucket of each level's threshold; -1 where the round belongs to no group.
    threshold : Array, shape (G,)
        The threshold, as a share of the support.
    """

    bucket: Int[Array, " G"]  # (G,)
    threshold: Float[Array, " G"]  # (G,)


@register(static=("buckets", "normalize", "groups", "resolution"))
@dataclass(frozen=True)
class MVP(GridLearner):
    """
    Multivalid prediction (MVP), for each level of a grid (MultiMVP).

    Thresholds are multiples of 1/buckets of the support. In each round the method looks for two neighbouring buckets,
    of which one has covered too often and the other too rarely, and tosses a coin between them, so that whatever score
    comes, neither error grows in expectation.

    Guarantee, with no assumption but that scores are not concentrated within 1/(resolution · buckets) below a
    bucket's edge: for each group, and each bucket of thresholds within it, the coverage frequency approaches the
    level; with plain errors and η = √(ln(2 · groups · buckets)/T) the excess of covered rounds over their target is at
    most 2√(T ln(2 · groups · buckets)) in expectation, for all of them at once. None on the loss. Thresholds of
    different levels may cross. A round costs O(groups · buckets).

    Parameters
    ----------
    levels : array_like, shape (G,)
        The grid; a query goes to the nearest level. With one level this is MVP, with ``jnp.linspace(0, 1, 50)``
        the paper's MultiMVP.
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

    def __post_init__(self) -> None:
        check_grid(self)
        for name, least in (("buckets", 1), ("groups", 1), ("resolution", 1)):
            object.__setattr__(self, name, whole(f"MVP.{name}", getattr(self, name), least))
        object.__setattr__(self, "eta", number("MVP.eta", self.eta, 0.0, open_low=True))
        if not isinstance(self.normalize, bool):
            raise ValueError(f"MVP.normalize = {self.normalize!r}: pass True or False")
        if not is_traced(self.seed) and not np.issubdtype(np.asarray(self.seed).dtype, np.integer):
            raise ValueError(f"MVP.seed = {self.seed!r}: pass a whole number")

    def init(self, rounds: int | None = None, dtype: Any = None, seed: Any = None) -> State:
        """Return the state before any score; with a seed of its own where one is given."""
        state = super().init(rounds, dtype)
        return state if seed is None else _tossed(state._replace(key=_key_data(seed)))

    def as_context(self, context: Any, shape: tuple[int, ...]) -> Any:
        """Check the group memberships of a replay: booleans of shape (..., T, groups)."""
        if not self._wanted(context):
            return None
        rows = _booleans(context)
        full = (*shape, self.groups)
        if rows.shape not in (full, full[-2:]):
            raise ValueError(f"context has shape {rows.shape}: pass a row of {self.groups} booleans a round, {full}")
        return jnp.broadcast_to(rows, full)

    def quantile(self, state: State, levels: Numbers, context: Any = None) -> Float[Array, "..."]:
        """Predict the threshold of each level: that of the nearest level of the grid, for a round of these groups."""
        return routed(self, state, levels, self._row(context))

    def observe(self, state: State, score: Numbers, context: Any = None) -> State:
        """Return the state after one more score, in a round of these groups."""
        return learnt(self, state, score, self._row(context))

    def start(self, dtype: Any) -> Buckets:
        """Return the state before any score."""
        nothing = jnp.zeros((self.groups, len(self.levels), self.buckets), jnp.int32)
        zero = jnp.zeros((), jnp.int32)
        return _tossed(Buckets(zero, _key_data(self.seed), jnp.zeros((), dtype), nothing, nothing))

    def thresholds(self, state: Buckets, groups: Bool[Array, " N"]) -> Float[Array, " G"]:
        """Predict the threshold of each level of the grid."""
        dtype = state.coin.dtype
        return jnp.asarray(self.low, dtype) + width_of(self, dtype) * self.choose(state, groups).threshold

    def learn(self, state: Buckets, score: Float[Array, ""], groups: Bool[Array, " N"]) -> Buckets:
        """Count the round, and whether it missed, in the buckets played."""
        dtype = state.coin.dtype
        choice = self.choose(state, groups)
        missed = score > jnp.asarray(self.low, dtype) + width_of(self, dtype) * choice.threshold
        played = jnp.arange(self.buckets, dtype=jnp.int32)[None, :] == choice.bucket[:, None]
        used = groups[:, None, None] & played[None]
        return _tossed(state._replace(seen=state.seen + 1))._replace(
            seen=state.seen,
            counts=state.counts + used.astype(jnp.int32),
            misses=state.misses + (used & missed[None, :, None]).astype(jnp.int32),
        )

    def choose(self, state: Buckets, groups: Bool[Array, " N"]) -> Choice:
        """
        Choose a bucket for each level.

        Parameters
        ----------
        state : Buckets
            Errors so far.
        groups : Array, shape (groups,)
            To which groups the round belongs.

        Returns
        -------
        Choice
            Of the coming round.
        """
        dtype, last = state.coin.dtype, self.buckets - 1
        sign = self._signs(state, groups)
        # The first pair of neighbours whose errors do not have the same sign.
        turns = sign[:, 1:] * sign[:, :-1] <= 0
        left = jnp.min(jnp.where(turns, jnp.arange(last, dtype=jnp.int32)[None], last), axis=-1, initial=last)
        found = left < last
        pair = jnp.minimum(left[:, None] + jnp.arange(2, dtype=jnp.int32)[None], last)
        counts, misses = (
            jnp.take_along_axis(counted, jnp.broadcast_to(pair[None], (self.groups, *pair.shape)), axis=-1)
            for counted in (state.counts, state.misses)
        )
        over, under = self._weights(counts, misses, groups, dtype)
        size = jnp.maximum(over, under) + jnp.log(-jnp.expm1(-jnp.abs(_unlike(over, under))))  # log |e^over - e^under|
        # Each is played in proportion to the error of the other; the left one where there is none at all.
        nothing = jnp.isneginf(size).all(axis=-1)
        chance = jnp.where(nothing, 1, jax.nn.sigmoid(jnp.where(nothing, 0, size[:, 1] - size[:, 0])))
        play_left = state.coin <= chance
        edge = jnp.asarray(np.arange(1, self.buckets + 1) / self.buckets, dtype)[left]  # of a bucket, from above
        paired = jnp.where(play_left, edge - 1 / (self.resolution * self.buckets), edge)
        # Errors of one sign: everything where all cover too rarely, nothing where all cover too often.
        never = sign[:, 0] <= 0
        bucket = jnp.where(found, jnp.where(play_left, left, left + 1), jnp.where(never, last, 0))
        threshold = jnp.where(found, paired, jnp.where(never, 1, 0).astype(dtype))
        member = jnp.any(groups)
        return Choice(jnp.where(member, bucket, -1).astype(jnp.int32), jnp.where(member, threshold, 0))

    def _excess(self, counts: Int[Array, "N G K"], misses: Int[Array, "N G K"], dtype: Any) -> Float[Array, "N G K"]:
        """Covered rounds beyond their target."""
        used = counts.astype(dtype)
        excess = (1 - grid_of(self, dtype)[None, :, None]) * used - misses.astype(dtype)
        return jnp.where(jnp.abs(excess) <= rounding(dtype) * used, 0, excess)  # rounding is no error

    def _signs(self, state: Buckets, groups: Bool[Array, " N"]) -> Float[Array, "G M"]:
        """Tell whether each bucket covered too often or too rarely, over the round's groups."""
        dtype = state.coin.dtype
        if self.groups == 1:
            return jnp.sign(self._excess(state.counts, state.misses, dtype)[0])
        over, under = self._weights(state.counts, state.misses, groups, dtype)
        return jnp.sign(_unlike(over, under))

    def _weights(
        self, counts: Int[Array, "N G K"], misses: Int[Array, "N G K"], groups: Bool[Array, " N"], dtype: Any
    ) -> tuple[Float[Array, "G K"], Float[Array, "G K"]]:
        """Sum over groups how much buckets covered too often, and too rarely, in logarithms."""
        error = jnp.asarray(self.eta, dtype) * self._excess(counts, misses, dtype)
        log_norm = jnp.zeros_like(error)
        if self.normalize:
            used = counts.astype(dtype)
            norm = jnp.sqrt(used + 1) * jnp.log2(used + 2)
            error, log_norm = error / norm, -jnp.log(norm)
        outside = jnp.where(groups, 0, -jnp.inf).astype(dtype)[:, None, None]
        return logsumexp(outside + log_norm + error, axis=0), logsumexp(outside + log_norm - error, axis=0)

    def _wanted(self, context: Any) -> bool:
        if (context is None) != (self.groups > 1):
            return self.groups > 1
        if context is None:
            raise ValueError(f"context is missing: an MVP with groups = {self.groups} needs each round's groups")
        raise ValueError("context is given, and this MVP takes none: make it with groups=2 or more")

    def _row(self, context: Any) -> Array:
        if not self._wanted(context):
            return jnp.ones(1, bool)
        row = _booleans(context)
        if row.shape != (self.groups,):
            raise ValueError(f"context has shape {row.shape}: pass a row of {self.groups} booleans")
        return row


def _unlike(over: Float[Array, "G K"], under: Float[Array, "G K"]) -> Float[Array, "G K"]:
    """Subtract logarithms of errors; 0 where only rounding parts them, as where groups cancel."""
    difference = over - under
    return jnp.where(jnp.abs(difference) <= 4 * rounding(difference.dtype), 0, difference)


def _tossed(state: Buckets) -> Buckets:
    """Toss the coin of the coming round."""
    key = jax.random.wrap_key_data(state.key, impl="threefry2x32")
    coin = jax.random.uniform(jax.random.fold_in(key, jnp.maximum(state.seen, 0) + 1), (), state.coin.dtype)
    return state._replace(coin=coin)


def _key_data(seed: Any) -> UInt32[Array, "2"]:
    return jax.random.key_data(jax.random.key(seed, impl="threefry2x32"))


def _booleans(context: Any) -> Array:
    rows = context if is_traced(context) else np.asarray(context)
    if rows.dtype != bool:
        raise ValueError(f"context must be booleans, whether a round belongs to each group; got dtype {rows.dtype}")
    return jnp.asarray(rows)
