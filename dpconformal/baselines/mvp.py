"""Multivalid prediction: thresholds from a few buckets, calibrated within each bucket and each group."""

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
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
    worth : Array, shape (groups, G, buckets)
        1/f(counts), what a round more or less counts; 1 without normalisation.
    """

    seen: Int[Array, "*B"]  # ()
    key: UInt32[Array, "*B 2"]  # (2,)
    coin: Float[Array, "*B"]  # ()
    counts: Int[Array, "*B N G M"]  # (groups, G, buckets)
    misses: Int[Array, "*B N G M"]  # (groups, G, buckets)
    worth: Float[Array, "*B N G M"]  # (groups, G, buckets)


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
    bucket's edge, nor at ``low`` itself, which the lowest threshold covers: for each group, and each bucket of
    thresholds within it, the coverage frequency approaches the level; with plain errors and
    η = √(ln(2 · groups · buckets)/T) the excess of covered rounds over their target is at most
    2√(T ln(2 · groups · buckets)) in expectation, for all of them at once. None on the loss. Thresholds of different
    levels may cross. A round costs O(groups · buckets).

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
        _check_seed("MVP.seed", self.seed)

    def init(self, rounds: int | None = None, dtype: Any = None, seed: Any = None) -> State:
        """Return the state before any score; with a seed of its own where one is given."""
        if seed is not None:
            _check_seed("seed", seed)
        state = super().init(rounds, dtype)
        step = 1 / (self.resolution * self.buckets)
        if step < 2 * float(jnp.finfo(state.coin.dtype).eps):
            raise ValueError(
                f"MVP.resolution = {self.resolution}: with {self.buckets} buckets the step {step:g} is too fine for "
                f"{state.coin.dtype}"
            )
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

    def sound(self) -> Any:
        """Tell whether hyperparameters are in range."""
        return jnp.asarray(self.eta > 0)

    def start(self, dtype: Any) -> Buckets:
        """Return the state before any score."""
        nothing = jnp.zeros((self.groups, len(self.levels), self.buckets), jnp.int32)
        zero = jnp.zeros((), jnp.int32)
        worth = jnp.ones(nothing.shape, dtype)
        return _tossed(Buckets(zero, _key_data(self.seed), jnp.zeros((), dtype), nothing, nothing, worth))

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
        worth = state.worth
        if self.normalize:
            here = jnp.broadcast_to(jnp.maximum(choice.bucket, 0)[None, :, None], (self.groups, len(self.levels), 1))
            count = jnp.take_along_axis(state.counts, here, axis=-1).astype(dtype) + 1
            worth = jnp.where(used, 1 / (jnp.sqrt(count + 1) * jnp.log2(count + 2)), worth)
        return _tossed(state._replace(seen=state.seen + 1))._replace(
            seen=state.seen,
            counts=state.counts + used.astype(jnp.int32),
            misses=state.misses + (used & missed[None, :, None]).astype(jnp.int32),
            worth=worth,
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
        both = jnp.broadcast_to(pair[None], (self.groups, *pair.shape))
        scale, rest = self._errors(
            state._replace(
                **{
                    name: jnp.take_along_axis(getattr(state, name), both, axis=-1)
                    for name in ("counts", "misses", "worth")
                }
            ),
            groups,
        )
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
        threshold = jnp.where(found, paired, jnp.where(never, 1, 0).astype(dtype))
        member = jnp.any(groups)
        return Choice(jnp.where(member, bucket, -1).astype(jnp.int32), jnp.where(member, threshold, 0))

    def _excess(self, state: Buckets) -> Float[Array, "N G K"]:
        """Count covered rounds beyond their target."""
        dtype = state.coin.dtype
        used = state.counts.astype(dtype)
        excess = (1 - grid_of(self, dtype)[None, :, None]) * used - state.misses.astype(dtype)
        return jnp.where(jnp.abs(excess) <= rounding(dtype) * used, 0, excess)  # rounding is no error

    def _signs(self, state: Buckets, groups: Bool[Array, " N"]) -> Float[Array, "G M"]:
        """Tell whether each bucket covered too often or too rarely, over the round's groups."""
        if self.groups == 1:
            return jnp.sign(self._excess(state)[0])
        return jnp.sign(self._errors(state, groups)[1])

    def _errors(self, state: Buckets, groups: Bool[Array, " N"]) -> tuple[Float[Array, "G K"], Float[Array, "G K"]]:
        """Sum (e^x - e^-x)/f over groups, x = η · excess/f, as a logarithm of the scale and what remains."""
        dtype = state.coin.dtype
        error = jnp.asarray(self.eta, dtype) * self._excess(state) * state.worth
        weight = jnp.where(groups[:, None, None], state.worth, 0)
        scale = jnp.max(jnp.where(groups[:, None, None], jnp.abs(error), 0), axis=0)
        over, under = (jnp.sum(weight * jnp.exp(sign * error - scale[None]), axis=0) for sign in (1, -1))
        rest = over - under
        # Groups may cancel but for rounding.
        return scale, jnp.where(jnp.abs(rest) <= 4 * rounding(dtype) * jnp.maximum(over, under), 0, rest)

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


def _tossed(state: Buckets) -> Buckets:
    """Toss the coin of the coming round."""
    key = jax.random.wrap_key_data(state.key, impl="threefry2x32")
    coin = jax.random.uniform(jax.random.fold_in(key, jnp.maximum(state.seen, 0) + 1), (), state.coin.dtype)
    return state._replace(coin=coin)


def _check_seed(name: str, seed: Any) -> None:
    if is_traced(seed):
        return
    array = np.asarray(seed)
    if not np.issubdtype(array.dtype, np.integer) or (array < 0).any() or (array >= 2**31).any():
        raise ValueError(f"{name} = {seed!r}: pass a whole number from 0 to 2^31 - 1")


def _key_data(seed: Any) -> UInt32[Array, "2"]:
    return jax.random.key_data(jax.random.key(seed, impl="threefry2x32"))


def _booleans(context: Any) -> Array:
    rows = context if is_traced(context) else np.asarray(context)
    if rows.dtype != bool:
        raise ValueError(f"context must be booleans, whether a round belongs to each group; got dtype {rows.dtype}")
    return jnp.asarray(rows)
