"""
From pointers to thresholds: one loop over rounds and levels that XLA compiles into a single native kernel.

Two facts about XLA on a CPU shape this file. A buffer that is read and then written in a loop body is copied whole, so
every write here comes first: what a step decides is carried as *pending* and written by the next step. And a loop
becomes native code only if its body touches few bytes (about a kilobyte, by XLA's own reckoning), so a step handles one
level of one round, and the numbers that make up a pointer travel as one short row.

First come the loop and its blocks, then what arrives in each round, last the thresholds that the pointers stand for.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int, Num

from dpconformal.engine.totals import Totals, add_rounds, no_rounds
from dpconformal.rounds import BLOCK, Rounds

NO_PLACE = 2**31 - 2  # of a round without a score: beyond every other
PIECE = 1024  # values whose cdf is evaluated at a time
CHUNK = 32  # quantiles without a closed form that are solved for at a time


class Walk(NamedTuple):
    """How pointers, one for each level, follow a store of scores."""

    # (store, row, first) -> store: take in the score that arrived since the last round. Unless the loops are nested it
    # is called for every level; `first` tells the first of them.
    insert: Callable[[Any, Any, Array], Any]
    find: Callable[[Any, Any, Array, Array], Array]  # (store, row, level, pointer) -> the level's new pointer
    # (store, pointers, factor) -> (store, pointers): multiply every mass. None for counts, which do not fade.
    decay: Callable[[Any, Array, Array], Any] | None
    store: Any  # the evidence before the first round
    pointers: Num[Array, "A P"]  # where the levels' pointers start
    # Whether a loop over levels within one over rounds is still small enough to be native: less work, and more bytes.
    # Otherwise there is one flat loop over both.
    nested: bool
    read: Callable[[Array, Any, Array], Array]  # (pointers (T, A, P), rows (T,), levels (T or 1, A)) -> thresholds


def run_blocks(
    walk: Walk, rows: Any, rounds: Rounds, keep: str, block: int = BLOCK, factors: Float[Array, " N"] | None = None
) -> Float[Array, "T A"] | Totals:
    """
    Run the rounds of a sequence, a block at a time so that working memory stays small.

    ``rows``: What each round brings to the walk. ``factors``: What masses are multiplied by before each block. Rounds
    that are not observed are answered, and not counted in totals.
    """
    levels, length, count = rounds.levels, rounds.length, rounds.levels.shape[-1]
    if not count:  # the state alone is wanted
        dtype = rounds.scores.dtype
        return no_rounds(0, dtype) if keep == "summary" else jnp.zeros((length, 0), dtype)
    block = even_block(length, block)
    blocks, per_round = -(-length // block), levels.ndim == 2

    def in_blocks(column: Array) -> Array:
        # With NaN for weights no pointer moves, and what came in before the last round is in the store already.
        missing = (blocks * block - length, *column.shape[1:])
        weight = jnp.issubdtype(column.dtype, jnp.floating)
        filler = jnp.full(missing, jnp.nan, column.dtype) if weight else jnp.broadcast_to(column[-1], missing)
        return jnp.concatenate([column, filler]).reshape(blocks, block, *column.shape[1:])

    def one_block(carry: Any, given: Any) -> Any:
        store, pointers, totals = carry
        rows, scores, observed, own_levels, factor = given
        asked = own_levels if per_round else levels
        if factor is not None and walk.decay is not None:
            store, pointers = walk.decay(store, pointers, factor)
        store, pointers, found = _loop(walk, store, pointers, rows, asked)
        thresholds = walk.read(found, rows, asked if per_round else asked[None])
        if keep == "all":
            return (store, pointers, totals), thresholds
        return (store, pointers, add_rounds(totals, thresholds, scores, jnp.atleast_2d(asked), observed)), None

    rows, scores, own_levels = jax.tree.map(in_blocks, (rows, rounds.scores, levels if per_round else None))
    observed = jnp.pad(rounds.observed, (0, blocks * block - length)).reshape(blocks, block)
    start = (walk.store, walk.pointers, no_rounds(count, rounds.scores.dtype))
    (_, _, totals), thresholds = lax.scan(one_block, start, (rows, scores, observed, own_levels, factors))
    return totals if keep == "summary" else thresholds.reshape(blocks * block, count)[:length]


def even_block(rounds: int, longest: int) -> int:
    """Divide rounds into blocks of one length with little padding."""
    return -(-rounds // -(-rounds // longest))


def _loop(
    walk: Walk, store: Any, pointers: Num[Array, "A P"], rows: Any, levels: Float[Array, "..."]
) -> tuple[Any, Num[Array, "A P"], Num[Array, "T A P"]]:
    """Return the store and the pointers after the last round, and the pointers of every round."""
    rounds, count = jax.tree.leaves(rows)[0].shape[0], levels.shape[-1]
    per_round = levels.ndim == 2
    levels = levels.reshape(-1)
    none, all_levels, all_rounds = (jnp.asarray(n, jnp.int32) for n in (0, count, rounds))
    # The record tells where each pointer stood a round ago: entry (t + 1) · A + a is round t, level a.
    record = jnp.concatenate([pointers, jnp.zeros((rounds * count, pointers.shape[1]), pointers.dtype)])
    stop = (all_rounds + 1) * all_levels

    def row_of(t: Array) -> Any:
        return jax.tree.map(lambda column: take(column, t), rows)

    def ask(store: Any, row: Any, entry: Array, a: Array, record: Array, pending: Array) -> tuple[Array, Array]:
        record = put(record, entry - 1, pending)
        level = take(levels, entry - all_levels if per_round else a)
        return record, walk.find(store, row, level, take(record, entry - all_levels))

    def one_round(t: Array, carry: Any) -> Any:
        store, record, pending = carry
        row, entry = row_of(t), (t + 1) * all_levels
        store = walk.insert(store, row, jnp.asarray(True))
        return store, *lax.fori_loop(
            none, all_levels, lambda a, c: ask(store, row, entry + a, a, *c), (record, pending)
        )

    def one_step(entry: Array, carry: Any) -> Any:
        store, record, pending = carry
        row, a = row_of(lax.div(entry, all_levels) - 1), lax.rem(entry, all_levels)
        store = walk.insert(store, row, a == 0)
        return store, *ask(store, row, entry, a, record, pending)

    start = (store, record, pointers[-1])
    if walk.nested:
        store, record, pending = lax.fori_loop(none, all_rounds, one_round, start)
    else:
        store, record, pending = lax.fori_loop(all_levels, stop, one_step, start)
    record = put(record, stop - 1, pending)
    return store, record[-count:], record[count:].reshape(rounds, count, pointers.shape[1])


def take(buffer: Array, index: Int[Array, ""]) -> Array:
    """Read one entry of a buffer."""
    start = (index, *(jnp.zeros_like(index),) * (buffer.ndim - 1))
    return lax.dynamic_slice(buffer, start, (1, *buffer.shape[1:]), allow_negative_indices=False)[0]


def put(buffer: Array, index: Int[Array, ""], entry: Array) -> Array:
    """Write one entry of a buffer: in place where the old buffer is not read again."""
    start = (index, *(jnp.zeros_like(index),) * (buffer.ndim - 1))
    return lax.dynamic_update_slice(buffer, entry[None], start, allow_negative_indices=False)


class Arrivals(NamedTuple):
    """What the scores of the rounds before bring to a belief, round by round."""

    place: Int[Array, "*T"]  # of the score that came in since the round before; beyond all others for none
    mass: Num[Array, "*T"]  # of that score, in the units of its time
    decay: Num[Array, "*T"] | None  # brings older masses to those units: 1 but for a few rounds; None for never
    prior_weight: Float[Array, "*T"]  # share of the prior
    atom: Float[Array, "*T"]  # worth of a unit of mass


def arrivals_by_round(
    place: Int[Array, " T"], counts: Int[Array, " T"], weights: Any, no_place: int, epoch: int | None
) -> Arrivals:
    """
    Spread a belief's evidence over its rounds.

    With a discount β every mass fades by β a score. Rather than touch them all, new ones are given more: β^-k after
    k scores, and what a unit is worth fades instead. Before that overflows, every mass is multiplied once.

    ``epoch``: Rounds after which masses are multiplied between blocks, see :func:`epoch_for`. None: decided here, where
    β may be traced, and carried out within the loop.
    """
    rounds, dtype = place.shape[0], weights.prior.dtype
    before = jnp.concatenate([jnp.full(1, no_place, place.dtype), place[:-1]])
    if weights.discount is None:
        return Arrivals(before, jnp.ones(rounds, jnp.int32), None, weights.prior, weights.atom)
    discount = weights.discount
    if epoch is None:
        length = jnp.maximum(jnp.floor(_largest_power(dtype) / -jnp.log2(discount)), 1)
        length = jnp.where(length < rounds, length, rounds + 1).astype(jnp.int32)  # also where β is NaN
        age = (counts - counts[0]) % length
        due = (age == 0) & (jnp.diff(counts, prepend=counts[:1]) > 0)  # not again in a round without a score
        decay = jnp.where(due, discount ** length.astype(dtype), 1)
    else:
        block = even_block(rounds, epoch)
        age, decay = counts - jnp.repeat(counts[::block], block)[:rounds], None
    worth = discount ** age.astype(dtype)
    return Arrivals(before, 1 / worth, decay, weights.prior, weights.atom * worth)


def _largest_power(dtype: Any) -> float:
    """Powers of two that a mass may grow by; the rest is for sums of many."""
    return 0.7 * float(jnp.finfo(dtype).maxexp)


def epoch_for(discount: float | None, dtype: Any) -> int:
    """Count the rounds in which masses may grow: a power of two, for few programs; at most a block."""
    if discount is None:
        return BLOCK
    rounds = max(_largest_power(dtype) / -math.log2(discount), 1.0)
    return min(BLOCK, 1 << int(math.log2(rounds)))


def rounds_remembered(discount: float, dtype: Any) -> int:
    """Count the rounds after which all older scores weigh less than a hundredth of the last bit of the total."""
    return math.ceil((jnp.finfo(dtype).nmant + 8) / -math.log2(discount))


def block_and_decays(
    counts: Int[Array, " T"], epoch: int | None, discount: Float[Array, ""] | None
) -> tuple[int, Float[Array, " N"] | None]:
    """Return how many rounds make a block, and what masses are multiplied by before each."""
    if epoch is None or discount is None:
        return BLOCK, None
    block = even_block(counts.shape[0], epoch)
    starts = counts[::block]
    return block, discount ** jnp.diff(starts, prepend=starts[:1]).astype(discount.dtype)


def decay_in_place(masses: Num[Array, " N"], by: Num[Array, ""], now: Bool[Array, ""]) -> Num[Array, " N"]:
    """Multiply masses from within a loop, in the few rounds where that is due."""
    stop = jnp.where(now & (by < 1), masses.shape[0], 0).astype(jnp.int32)
    return lax.fori_loop(jnp.zeros_like(stop), stop, lambda i, masses: put(masses, i, take(masses, i) * by), masses)


def cdf_of_many(prior: Any, values: Float[Array, " N"]) -> Float[Array, " N"]:
    """
    Evaluate a prior's cdf at many values.

    A cdf that is iterated until every element has converged goes over all of them again and again: in pieces that
    stay in the cache that is many times as fast.
    """
    size = values.shape[0]
    if getattr(prior, "closed_form", False) or size <= PIECE:
        return prior.cdf(values)
    pieces = jnp.pad(values, (0, -size % PIECE), mode="edge").reshape(-1, PIECE)
    return lax.map(prior.cdf, pieces).ravel()[:size]


def quantile_between_atoms(
    prior: Any,
    prior_weight: Float[Array, "..."],
    mass: Float[Array, "..."],
    left: Float[Array, "..."],
    right: Float[Array, "..."],
    levels: Float[Array, "..."],
    rest: Float[Array, "..."] | int = 0,
) -> Float[Array, "..."]:
    """
    Find the point between two neighbouring atoms where the cdf reaches each level.

    Between them only the prior's share grows, so the point is a quantile of the prior; where that lies beyond
    the right neighbour, the level is reached by that atom's jump.
    """
    wanted = ((levels - mass) - rest) / prior_weight  # of the prior's own mass
    between = prior.quantile(jnp.clip(wanted, 0, 1))
    # Clipping to the neighbours undoes rounding only, and makes crossings impossible.
    threshold = jnp.minimum(jnp.maximum(between, left), right)
    high = jnp.asarray(prior.support[1], levels.dtype)
    # NaN in `between` tells of an invalid state, a bad level or a bad prior.
    return jnp.where((levels >= 1) & ~jnp.isnan(between), high, threshold)


def quantiles_between_atoms(
    prior: Any,
    prior_weight: Float[Array, " T"],
    atom: Float[Array, " T"],
    below: Num[Array, "T A"],
    left: Float[Array, "T A"],
    right: Float[Array, "T A"],
    share: Float[Array, "T A"],
    levels: Float[Array, "#T A"],
) -> Float[Array, "T A"]:
    """
    Find :func:`quantile_between_atoms` for all rounds and levels, without inverting a cdf where an atom is the answer.

    ``below`` is the mass up to the left atom, in units that are worth ``atom``; ``share`` the prior's cdf at the right
    one. After t rounds all but a share λ_t of the answers are atoms. A prior whose quantile has no closed form is
    inverted for the others only, a chunk at a time. Thresholds of levels a ≤ b of a round are ordered, to the last bit.
    """
    weight, mass, shape = prior_weight[:, None], atom[:, None] * below.astype(left.dtype), below.shape
    if getattr(prior, "closed_form", False):
        return quantile_between_atoms(prior, weight, mass, left, right, levels)
    reached = weight * share + mass
    asked, levels, weight = levels, jnp.broadcast_to(levels, shape), jnp.broadcast_to(weight, shape)
    high = jnp.asarray(prior.support[1], levels.dtype)
    columns = [column.ravel() for column in (weight, mass, left, right, levels)]
    inside = ~(reached < levels).ravel()  # also where something is NaN
    here, found = _indices(inside)
    answers = jnp.where(levels >= 1, high, right).ravel()

    def solve(chunk: Array, answers: Array) -> Array:
        some = lax.dynamic_slice(here, (chunk * CHUNK,), (CHUNK,))
        # What fills the last chunk lies past the end: read as the last one, and dropped on purpose.
        given = (column.at[some].get(mode="clip") for column in columns)
        return answers.at[some].set(quantile_between_atoms(prior, *given), mode="drop")

    chunks = (found + CHUNK - 1) // CHUNK
    answers = lax.fori_loop(jnp.zeros_like(chunks), chunks, solve, answers).reshape(shape)
    return make_monotone(answers, asked)


def _indices(wanted: Bool[Array, " N"]) -> tuple[Int[Array, " M"], Int[Array, ""]]:
    """Where something is true, padded with N, and how often; a native loop, much faster than ``jnp.nonzero``."""
    size = wanted.shape[0]

    def note(i: Array, carry: Any) -> Any:
        noted, count = carry
        noted = lax.dynamic_update_slice(noted, i[None], (count,))  # overwritten unless it is counted
        return noted, count + lax.dynamic_slice(wanted, (i,), (1,))[0].astype(count.dtype)

    start = jnp.full(size + CHUNK + 1, size, jnp.int32), jnp.zeros((), jnp.int32)
    noted, count = lax.fori_loop(jnp.zeros((), jnp.int32), jnp.asarray(size, jnp.int32), note, start)
    return lax.dynamic_update_slice(noted, jnp.full(1, size, jnp.int32), (count,)), count


def make_monotone(thresholds: Float[Array, "T A"], levels: Float[Array, "#T A"]) -> Float[Array, "T A"]:
    """Undo the rounding that makes thresholds of nearly equal levels cross in their last bits."""
    order = jnp.argsort(levels, axis=-1)
    back = jnp.argsort(order, axis=-1)
    order, back = (jnp.broadcast_to(index, thresholds.shape) for index in (order, back))
    rising = lax.cummax(jnp.take_along_axis(thresholds, order, axis=-1), axis=1)
    return jnp.take_along_axis(rising, back, axis=-1)
