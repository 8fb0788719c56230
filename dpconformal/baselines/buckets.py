"""The evidence of multivalid prediction, and how a bucket is chosen from it."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, UInt32

from dpconformal.learner import rounding
from dpconformal.validation import beside, check_within, complain_at


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
        check_within("state.counts", counts, 0, beside(self.seen, counts))
        check_within("state.misses", self.misses, 0, counts)
        rounds, seen = counts.sum(axis=-1), np.asarray(self.seen, np.int64)[..., None, None]
        lost = (rounds != rounds[..., :1]) | (rounds > seen) | ((rounds != seen) & (learner.groups == 1))
        complain_at("state.counts", rounds, lost, "the sum over buckets must be the rounds of the group")
        worth = 1 / (np.sqrt(counts + 1) * np.log2(counts + 2)) if learner.normalize else np.ones(())
        check_within("state.worth", self.worth, worth * (1 - 1e-3), worth * (1 + 1e-3), "it is that of its count")


class Choice(NamedTuple):
    """What is played in a round."""

    bucket: Int[Array, " G"]  # that of each level's threshold; -1 where the round belongs to no group
    threshold: Float[Array, " G"]  # as a share of the support


def no_rounds(groups: int, levels: int, buckets: int, seed: Any, dtype: Any) -> Buckets:
    """Return the evidence before any score."""
    nothing = jnp.zeros((groups, levels, buckets), jnp.int32)
    zero, coin = jnp.zeros((), jnp.int32), jnp.zeros((), dtype)
    return tossed(Buckets(zero, _key_data(seed), coin, nothing, nothing, jnp.ones(nothing.shape, dtype)))


def reseeded(state: Buckets, seed: Any) -> Buckets:
    """Give evidence another key."""
    return tossed(state._replace(key=_key_data(seed)))


def tossed(state: Buckets) -> Buckets:
    """Toss the coin of the coming round."""
    key = jax.random.wrap_key_data(state.key, impl="threefry2x32")
    coin = jax.random.uniform(jax.random.fold_in(key, jnp.maximum(state.seen, 0) + 1), (), state.coin.dtype)
    return state._replace(coin=coin)


def choose(
    state: Buckets,
    groups: Bool[Array, " N"],
    levels: Float[Array, " G"],
    eta: Float[Array, ""],
    resolution: int,
) -> Choice:
    """
    Choose a bucket for each level, in a round of these groups.

    The lower of two neighbouring buckets is played 1/(resolution · buckets) below its upper edge.
    """
    dtype, buckets = state.coin.dtype, state.counts.shape[-1]
    last = buckets - 1
    sign = _signs(state, groups, levels, eta)
    # The first pair of neighbours whose errors do not have the same sign.
    turns = sign[:, 1:] * sign[:, :-1] <= 0
    left = jnp.min(jnp.where(turns, jnp.arange(last, dtype=jnp.int32)[None], last), axis=-1, initial=last)
    found = left < last
    pair = jnp.minimum(left[:, None] + jnp.arange(2, dtype=jnp.int32)[None], last)
    scale, rest = _errors(_only(state, pair), groups, levels, eta)
    size = scale + jnp.log(jnp.abs(rest))
    # Each is played in proportion to the error of the other; the left one where there is none at all.
    nothing = jnp.isneginf(size).all(axis=-1)
    chance = jnp.where(nothing, 1, jax.nn.sigmoid(jnp.where(nothing, 0, size[:, 1] - size[:, 0])))
    play_left = state.coin <= chance
    edge = jnp.asarray(np.arange(1, buckets + 1) / buckets, dtype)[left]  # of a bucket, from above
    paired = jnp.where(play_left, edge - 1 / (resolution * buckets), edge)
    # Errors of one sign: everything where all cover too rarely, nothing where all cover too often.
    never = sign[:, 0] <= 0
    bucket = jnp.where(found, jnp.where(play_left, left, left + 1), jnp.where(never, last, 0))
    threshold = jnp.where(found, paired, jnp.where(never, 1, 0).astype(dtype))
    member = jnp.any(groups)
    return Choice(jnp.where(member, bucket, -1).astype(jnp.int32), jnp.where(member, threshold, 0))


def counted(
    state: Buckets, groups: Bool[Array, " N"], bucket: Int[Array, " G"], missed: Bool[Array, " G"], normalize: bool
) -> Buckets:
    """Count a round in the buckets played."""
    played = jnp.arange(state.counts.shape[-1], dtype=jnp.int32)[None, :] == bucket[:, None]
    used = groups[:, None, None] & played[None]
    worth = state.worth
    if normalize:
        count = _only(state, jnp.maximum(bucket, 0)[:, None]).counts.astype(worth.dtype) + 1
        worth = jnp.where(used, 1 / (jnp.sqrt(count + 1) * jnp.log2(count + 2)), worth)
    return tossed(state._replace(seen=state.seen + 1))._replace(
        seen=state.seen,
        counts=state.counts + used.astype(state.counts.dtype),
        misses=state.misses + (used & missed[None, :, None]).astype(state.misses.dtype),
        worth=worth,
    )


def _only(state: Buckets, bucket: Int[Array, "G K"]) -> Buckets:
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


def _signs(
    state: Buckets, groups: Bool[Array, " N"], levels: Float[Array, " G"], eta: Float[Array, ""]
) -> Float[Array, "G M"]:
    """Tell whether each bucket covered too often or too rarely, over the round's groups."""
    if groups.shape[0] == 1:
        return jnp.sign(_excess(state, levels)[0])
    return jnp.sign(_errors(state, groups, levels, eta)[1])


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


def _key_data(seed: Any) -> UInt32[Array, "2"]:
    return jax.random.key_data(jax.random.key(seed, impl="threefry2x32"))
