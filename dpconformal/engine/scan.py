"""
The generic driver: one scan for any learner, the oracle of every faster way.

The scan reads *predict, then observe*. Around it is what a batch needs; last comes what several devices need. The
sequences of a batch are independent, so each device scans its own, without a word to the others. Traced input is its
caller's to place, and native loops (:mod:`dpconformal.engine.kernel`) use the cores of the host.
"""

import math
from collections.abc import Callable
from operator import attrgetter
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec, Sharding
from jaxtyping import Array

from dpconformal.engine.states import broadcast_state
from dpconformal.engine.totals import add_rounds, no_rounds
from dpconformal.learner import State
from dpconformal.rounds import Rounds, first_rounds
from dpconformal.validation import is_traced

# What is read off a learner in a round: (learner, state, score, query, **given) -> answer. The score is the
# one of the round, and `given` holds its context, for a learner that takes one.
Reader = Callable[..., Any]


def thresholds(learner: Any, state: State, score: Array, levels: Array, **given: Any) -> Array:
    """Read off the thresholds of a round from the state before its score."""
    del score
    return learner.quantile(state, levels, **given)


def pit(learner: Any, state: State, score: Array, levels: Array, **given: Any) -> Array:
    """Read off the PIT of the round's score: what the learner believes to lie below it."""
    del levels
    return learner.cdf(state, score, side="left", **given)


def drive(
    read: Reader, learner: Any, state: State, rounds: Rounds, keep: str = "all", fresh: bool = False
) -> tuple[Any, State]:
    """
    Read off a learner before each score, over one sequence or a batch of them, each device its part of the batch.

    ``keep="summary"`` keeps the :class:`dpconformal.engine.totals.Totals` of answers that are thresholds. The state has
    the leading axes of the scores, or is that of one sequence, if it is ``fresh``. Rounds without a score are answered,
    and leave the state and the totals as they are; answers, totals and context are those of the round, also where its
    score becomes known later. Returns answers, with axes (..., T) in front, or totals, with axes (...); and the final
    state. A NumPy array must not change before the answers are there.
    """
    if is_traced(learner, state, rounds):
        state = broadcast_state(state, rounds.batch) if fresh else state
        return _scan_any(read, keep, learner, state, jax.tree.map(jnp.asarray, rounds), None)
    batch, count = rounds.batch, rounds.length
    layout = layout_of(rounds.scores) if has_several_devices() else None  # asks where they are: padding may move them
    # Without any round there is nothing to pad, and nothing to look at.
    used, rounds = jnp.asarray(count, jnp.int32) if count else None, rounds.padded()
    if layout is not None:
        begin = copy_to_rows(layout, state) if fresh else lay_out(layout, state)
        own, levels = rounds.split()
        whole = replicate(layout, (learner, levels, used))
        found = _scan_apart(read, keep, layout.mesh, whole, begin, lay_out(layout, own))
        found = collect(layout, found)
    else:
        if has_several_devices():  # of a sequence out of a batch: one device is enough
            state = jax.tree.map(bring_to_one_device, state)
        state = broadcast_state(state, batch) if fresh else state
        found = _scan_any(read, keep, learner, state, jax.tree.map(jnp.asarray, rounds), used)
    answers, end = found
    return (answers if keep == "summary" else first_rounds(answers, len(batch), count)), end


def _scan_any(
    read: Reader, keep: str, learner: Any, state: State, rounds: Rounds, used: Array | None
) -> tuple[Any, State]:
    """Scan a sequence, or a batch whatever its axes."""
    batch = rounds.batch
    if not batch:
        return _scan(read, keep, learner, state, rounds, used)
    count = math.prod(batch)
    own, levels = rounds.split()
    state, own = jax.tree.map(lambda leaf: leaf.reshape((count, *leaf.shape[len(batch) :])), (state, own))
    answers, end = _scan_batch(read, keep, learner, state, own.joined(levels), used)
    return jax.tree.map(lambda leaf: leaf.reshape(batch + leaf.shape[1:]), (answers, end))


@jax.jit(static_argnames=("read", "keep"))
def _scan(read: Reader, keep: str, learner: Any, state: State, rounds: Rounds, used: Array | None) -> tuple[Any, State]:
    """Scan one sequence: predict, then observe. Rounds beyond the first ``used`` are padding."""
    levels, per_round = rounds.levels, rounds.levels.ndim == 2

    def one_round(carry: Any, here: Rounds) -> tuple[Any, Any]:
        state, totals = carry
        score, observed, asked = here.scores, here.observed, here.levels if per_round else levels
        given = {} if here.context is None else {"context": here.context}
        answer = read(learner, state, score, asked, **given)  # predict: only the past is read
        if keep == "summary":
            known = jnp.ones(1, bool) if observed is None else observed[None]
            totals, answer = add_rounds(totals, answer[None], score[None], asked[None], known), None
        feedback = here if here.feedback is None else here.feedback
        score, observed = feedback.scores, feedback.observed
        given = {} if feedback.context is None else {"context": feedback.context}
        if feedback.weights is None:
            after = learner.observe(state, score, **given)  # then observe
        else:
            after = learner.observe_weighted(state, score, feedback.weights)
        if observed is not None:
            after = jax.tree.map(lambda new, old: jnp.where(observed, new, old), after, state)
        return (after, totals), answer

    totals = no_rounds(levels.shape[-1], rounds.scores.dtype) if keep == "summary" else None
    rows = rounds if per_round else rounds._replace(levels=None)
    if used is None:
        (end, totals), answers = lax.scan(one_round, (state, totals), rows)
    else:
        (end, totals), answers = _scan_first(one_round, (state, totals), rows, used)
    return (totals if keep == "summary" else answers), end


def _scan_first(one_round: Callable[[Any, Any], Any], carry: Any, rows: Any, used: Array) -> tuple[Any, Any]:
    """Do what ``lax.scan`` does for the first rounds, whose number the program does not depend on."""
    one_round = jax.jit(one_round, inline=True)  # traced once, though it is called for its shapes first

    def row(t: Any) -> Any:
        return jax.tree.map(
            lambda column: lax.dynamic_index_in_dim(column, t, keepdims=False, allow_negative_indices=False), rows
        )

    def step(t: Array, both: Any) -> Any:
        carry, kept = both
        carry, answer = one_round(carry, row(t))
        return carry, jax.tree.map(
            lambda all, one: lax.dynamic_update_index_in_dim(all, one, t, 0, allow_negative_indices=False), kept, answer
        )

    length, shapes = jax.tree.leaves(rows)[0].shape[0], jax.eval_shape(one_round, carry, row(0))[1]
    kept = jax.tree.map(lambda leaf: jnp.zeros((length, *leaf.shape), leaf.dtype), shapes)
    return lax.fori_loop(jnp.zeros_like(used), used, step, (carry, kept))


@jax.jit(static_argnames=("read", "keep"))
def _scan_batch(
    read: Reader, keep: str, learner: Any, state: State, rounds: Rounds, used: Array | None
) -> tuple[Any, State]:
    own, levels = rounds.split()

    def one(state: State, own: Rounds) -> tuple[Any, State]:
        return _scan(read, keep, learner, state, own.joined(levels), used)

    return jax.vmap(one)(state, own)


class Layout(NamedTuple):
    """How the sequences of a batch are divided among devices."""

    mesh: Mesh  # the devices, with an axis for each of `rows`
    batch: tuple[int, ...]  # leading axes of the scores
    # Leading axes as they are laid out: those of the batch where the devices divide them evenly; otherwise one axis,
    # with the last sequence repeated at its end.
    rows: tuple[int, ...]
    home: Any  # device to bring what has to be cut to; None: wherever JAX puts new arrays

    @property
    def by_sequence(self) -> NamedSharding:
        """Where arrays go that have a row for each sequence."""
        return NamedSharding(self.mesh, PartitionSpec(*self.mesh.axis_names))


def has_several_devices() -> bool:
    """Whether this process has more than one device of its own to work on; others of a cluster have their own runs."""
    return len(jax.local_devices()) > 1


def placement(values: Any) -> Sharding | None:
    """Return where the user has put an array; None if that was left to JAX, or where there is one device only."""
    if not has_several_devices() or is_traced(values) or not isinstance(values, jax.Array) or not values.committed:
        return None
    return values.sharding


@jax.jit(static_argnames=("read", "keep", "mesh"))
def _scan_apart(
    read: Reader, keep: str, mesh: Mesh, whole: tuple[Any, Any, Any], state: State, own: Rounds
) -> tuple[Any, State]:
    """Scan a batch that is laid out over devices, with no communication among them."""

    def program(learner: Any, levels: Array | None, used: Array, state: State, own: Rounds) -> tuple[Any, State]:
        return _scan_any(read, keep, learner, state, own.joined(levels), used)

    # Left to XLA's partitioner, a loop that ends when every sequence is done would ask all devices in every turn.
    parts = PartitionSpec(*mesh.axis_names)
    specs = (PartitionSpec(),) * len(whole) + (parts, parts)
    # A sum that starts from a constant 0 on every device becomes another on each: that is meant, and not to be refused.
    return jax.shard_map(program, mesh=mesh, in_specs=specs, out_specs=parts, check_vma=False)(*whole, state, own)


def layout_of(scores: Any) -> Layout | None:
    """
    Divide a batch among devices: those that its scores are committed to, or all of this process.

    None where JAX's own choice of a device does: for one sequence, on one device, and inside ``jax.default_device`` or
    ``jax.set_mesh``, by which the user has chosen.
    """
    batch = scores.shape[:-1]
    count = math.prod(batch)
    if not has_several_devices() or not count:
        return None
    own, default = placement(scores), jax.config.jax_default_device  # type: ignore[attr-defined]
    if own is not None:
        devices = sorted(own.device_set, key=attrgetter("id"))
    elif count > 1 and default is None and jax.sharding.get_abstract_mesh().empty:
        devices = jax.local_devices()
    else:
        return None
    devices = devices[:count]
    rows, shape = batch, split_axes(batch, len(devices))
    if shape is None:
        rows, shape = (-(-count // len(devices)) * len(devices),), (len(devices),)
    names = tuple(f"sequences_{axis}" if axis else "sequences" for axis in range(len(shape)))
    # Explicit axes would be part of the type of every result, and ask users to place whatever they use it with.
    mesh = Mesh(np.array(devices).reshape(shape), names, axis_types=(AxisType.Auto,) * len(names))
    return Layout(mesh, batch, rows, None if own is None else devices[0])


def split_axes(batch: tuple[int, ...], count: int) -> tuple[int, ...] | None:
    """Return into how many parts to divide each axis of a batch, ``count`` in all; None if that cannot be even."""
    shape = []
    for size in batch:
        shape.append(math.gcd(size, count))
        count //= shape[-1]
    return tuple(shape) if shape and count == 1 else None


def lay_out(layout: Layout, tree: Any) -> Any:
    """
    Bring each device its sequences, from anywhere.

    What is on the host goes straight to each device, and must not change before results are there: on a CPU, devices
    use the host's memory as it is, even if asked not to.
    """
    axes, sharding = len(layout.batch), layout.by_sequence

    def put(leaf: Any) -> Any:
        if layout.rows != layout.batch:
            count = math.prod(layout.batch)
            leaf = leaf.reshape((count, *leaf.shape[axes:]))
            if layout.rows[0] > count:
                leaf = leaf[np.minimum(np.arange(layout.rows[0]), count - 1)]
        return jax.device_put(leaf, sharding)

    return jax.tree.map(put, tree)


def copy_to_rows(layout: Layout, tree: Any) -> Any:
    """Give every sequence its own copy, made on the sequence's device."""
    return _broadcast_rows(layout.rows, layout.by_sequence, replicate(layout, tree))


@jax.jit(static_argnames=("rows", "sharding"))
def _broadcast_rows(rows: tuple[int, ...], sharding: NamedSharding, tree: Any) -> Any:
    def copies(leaf: Any) -> Any:
        return jax.lax.with_sharding_constraint(jnp.broadcast_to(leaf, rows + leaf.shape), sharding)

    return jax.tree.map(copies, tree)


def replicate(layout: Layout, tree: Any) -> Any:
    """Copy arrays of JAX's to every device; numbers are left as they are, since their type is a weak one."""
    sharding = NamedSharding(layout.mesh, PartitionSpec())
    return jax.tree.map(lambda leaf: jax.device_put(leaf, sharding) if isinstance(leaf, jax.Array) else leaf, tree)


def collect(layout: Layout, tree: Any) -> Any:
    """
    Give results the leading axes of the batch.

    They stay where they are, if they are laid out evenly. Otherwise they come to one device, without the sequences that
    were repeated: an array of JAX's has parts of one size only.
    """
    if layout.rows == layout.batch:
        return tree
    count = math.prod(layout.batch)

    def back(leaf: Any) -> Any:
        return bring_to_one_device(leaf, layout.home, slice(count)).reshape(layout.batch + leaf.shape[1:])

    return jax.tree.map(back, tree)


def bring_to_one_device(leaf: Any, home: Any = None, rows: slice | None = None) -> Any:
    """
    Bring an array, or some rows of it, that is on several devices to one; what is on one, or traced, stays there.

    Without a ``home`` JAX chooses the device, and the array is not committed to it: it can be used with any other.
    """
    several = isinstance(leaf, jax.Array) and not is_traced(leaf) and len(leaf.sharding.device_set) > 1
    if several and jnp.issubdtype(leaf.dtype, jax.dtypes.extended):  # keys of random numbers are nothing to the host
        leaf, several = jax.device_put(leaf, home or jax.local_devices()[0]), False
    wanted = np.asarray(leaf) if several else leaf
    wanted = wanted if rows is None else wanted[rows]
    return jax.device_put(wanted, home, may_alias=True) if several else wanted
