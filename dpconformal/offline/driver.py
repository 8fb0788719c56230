"""One way for every kind of call: a sequence or a batch on the host, or anything inside ``jit``, ``vmap``, ``grad``."""

import functools
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.custom_batching import custom_vmap
from jaxtyping import Array

from dpconformal.checks import is_traced
from dpconformal.learner import State, usable
from dpconformal.offline.workers import aligned, blocks_of_sequences, in_threads, part
from dpconformal.rounds import Rounds
from dpconformal.scan import drive, thresholds
from dpconformal.totals import joined


class Stretch(NamedTuple):
    """
    Some rounds of a sequence, that can be replayed without those before them.

    Attributes
    ----------
    rounds : slice
        Which.
    run : callable
        Replays them: ``() -> thresholds or totals``. Rounds beyond the stretch's own are padding.
    end : State
        After them, if they are the last; otherwise None.
    """

    rounds: slice
    run: Callable[[], Any]
    end: State


class Method(NamedTuple):
    """
    What a learner offers in the place of a scan. ``begin`` is its state, ``fresh`` whether that has seen nothing.

    ``observed`` tells which rounds bring a score, (T,); None: all do. A round without one is answered from the counts
    before it like any other, and leaves no trace. What stands for its score is a number in the support.

    Attributes
    ----------
    tune : callable
        ``(learner, dtype) -> tuning``: something static to choose by the learner's numbers, where they are not traced.
    place : callable
        ``(learner, begin, fresh, scores (T,), observed) -> placed``: where the scores belong.
    place_on_host : callable
        The same for a batch of NumPy arrays, (B, T); so does ``begin`` have a leading axis unless it is fresh.
    run : callable
        ``(learner, begin, placed, counts (T,), scores (T,), levels, keep, tuning, observed) -> thresholds or totals``;
        the tuning is None where the learner is traced.
    finish : callable
        ``(learner, begin, placed, count, scores, observed) -> state`` after all scores, which makes ``count`` of them.
    stretches : callable
        ``(learner, begin, placed, scores, levels, keep, observed) -> iterator of Stretch``, on the host: work for
        several cores.
    """

    tune: Callable[..., Any]
    place: Callable[..., Any]
    place_on_host: Callable[..., Any]
    run: Callable[..., Any]
    finish: Callable[..., Any]
    stretches: Callable[..., Iterator[Stretch]]


def replay_offline(
    method: Method, learner: Any, begin: State, fresh: bool, rounds: Rounds, keep: str
) -> tuple[Any, State]:
    """
    Replay recorded scores without a scan over the learner's state.

    ``begin`` has room for every score, and the leading axes of the scores unless it is ``fresh``. Returns what is to be
    kept, with the leading axes of the scores, and the final state.
    """
    batch, given = rounds.batch, (rounds.scores, rounds.levels, rounds.observed)
    if is_traced(learner, begin, given):
        program = _program(method, fresh, keep)
        for _ in batch:
            told = None if rounds.observed is None else 0
            program = jax.vmap(program, in_axes=(None, None if fresh else 0, 0, None, told))
        return program(learner, begin, *jax.tree.map(jnp.asarray, given))

    def flat(leaf: Any) -> np.ndarray:
        return np.asarray(leaf).reshape((-1, *leaf.shape[len(batch) :]))

    begin = jax.tree.map(np.asarray if fresh else flat, begin)
    run = _batch if np.prod(batch) > 1 else _sequence
    rounds = rounds._replace(scores=flat(rounds.scores), observed=jax.tree.map(flat, rounds.observed))
    kept, end = run(method, learner, begin, fresh, rounds, keep)
    kept, end = jax.tree.map(lambda leaf: leaf.reshape(batch + leaf.shape[1:]), (kept, end))
    # These arrays are nobody else's: JAX may use their memory as it is. Totals are left to the host's precision.
    put = functools.partial(jax.device_put, may_alias=True)
    return jax.tree.map(put, kept) if keep == "all" else kept, jax.tree.map(put, end)


def _sequence(method: Method, learner: Any, begin: State, fresh: bool, rounds: Rounds, keep: str) -> tuple[Any, State]:
    """Replay one sequence, a stretch of rounds per core."""
    scores, levels, observed = rounds.scores, rounds.levels, rounds.observed
    placed = method.place_on_host(learner, begin, fresh, scores, observed)
    begin = begin if fresh else jax.tree.map(lambda leaf: leaf[0], begin)
    placed = jax.tree.map(lambda leaf: leaf[0], placed)
    everything = aligned((1, scores.shape[1] if keep == "all" else 0, levels.shape[-1]), scores.dtype)

    def task(stretch: Stretch) -> Any:
        kept = jax.tree.map(np.asarray, stretch.run())
        if keep == "all":
            everything[0, stretch.rounds] = kept[: stretch.rounds.stop - stretch.rounds.start]
            kept = None
        return kept, stretch.end

    told = None if observed is None else observed[0]
    stretches = method.stretches(learner, begin, placed, scores[0], levels, keep, told)
    results = in_threads(functools.partial(task, stretch) for stretch in stretches)
    end = next(end for _, end in results if end is not None)
    kept = None if keep == "all" else joined([totals for totals, _ in results])
    kept, end = jax.tree.map(lambda leaf: np.asarray(leaf)[None], (kept, end))
    return (everything if keep == "all" else kept), end


def _batch(method: Method, learner: Any, begin: State, fresh: bool, rounds: Rounds, keep: str) -> tuple[Any, State]:
    """Replay many sequences, a block of them per core at a time, each by its own native loop."""
    sequences, count = rounds.scores.shape
    observed = np.ones(rounds.scores.shape, bool) if rounds.observed is None else rounds.observed
    longer = rounds._replace(observed=observed).padded()
    longer = longer._replace(observed=longer.observed & (np.arange(longer.length) < count))
    shape = (sequences, count, rounds.levels.shape[-1]) if keep == "all" else (0,)
    everything, tuning = aligned(shape, rounds.scores.dtype), method.tune(learner, rounds.scores.dtype)

    def task(block: slice) -> Any:
        own, scores, told = part((None if fresh else begin, longer.scores, longer.observed), block)
        own = begin if fresh else own
        placed = method.place_on_host(learner, own, fresh, scores, told)
        result = _run_each(method, fresh, tuning, learner, own, placed, scores, longer.levels, keep, told)
        used = slice(min(block.stop, sequences) - block.start)
        kept, end = jax.tree.map(lambda leaf: np.asarray(leaf)[used], result)
        if keep == "all":
            everything[block] = kept[:, :count]
            kept = None
        return kept, end

    blocks = blocks_of_sequences(sequences, rounds.levels.shape[-1] * longer.length * everything.itemsize + 16 * count)
    results = in_threads(functools.partial(task, block) for block in blocks)
    kept, end = jax.tree.map(lambda *leaves: np.concatenate(leaves), *results)
    return (everything if keep == "all" else kept), end


@jax.jit(static_argnames=("method", "fresh", "tuning", "keep"))
def _run_each(
    method: Method,
    fresh: bool,
    tuning: Any,
    learner: Any,
    begin: State,
    placed: Any,
    scores: Array,
    levels: Array,
    keep: str,
    observed: Array | None,
) -> Any:
    def one(given: Any) -> Any:
        placed, scores, own, told = given
        own = begin if fresh else own
        counts = own.seen + _new_before(scores, told).astype(own.seen.dtype)
        kept = method.run(learner, own, placed, counts[:-1], scores, levels, keep, tuning, told)
        return kept, method.finish(learner, own, placed, counts[-1], scores, told)

    return lax.map(one, (placed, scores, None if fresh else begin, observed))


def _new_before(scores: Array, observed: Array | None) -> Array:
    """Count the new scores before each round and after the last, shape (T + 1,)."""
    if observed is None:
        return jnp.arange(scores.shape[0] + 1, dtype=jnp.int32)
    return jnp.concatenate([jnp.zeros(1, jnp.int32), jnp.cumsum(observed, dtype=jnp.int32)])


@functools.lru_cache
def _program(method: Method, fresh: bool, keep: str) -> Callable[..., tuple[Any, State]]:
    """Build the replay of one sequence as a function that JAX can trace, map and differentiate."""

    @custom_vmap
    def one(learner: Any, begin: State, scores: Array, levels: Array, told: Array | None) -> tuple[Any, State]:
        return _traced(method, fresh, keep, learner, begin, scores, levels, told)

    @one.def_vmap
    def map_one(size: int, batched: Any, *given: Any) -> Any:
        del size
        leaves, structure = jax.tree.flatten(given)
        answer = _one_by_one(method, fresh, keep, structure, tuple(jax.tree.leaves(batched)), leaves)
        return answer, jax.tree.map(lambda _: True, answer)

    @jax.custom_jvp
    def differentiable(learner: Any, begin: State, scores: Array, levels: Array, told: Array | None) -> Any:
        return one(learner, begin, scores, levels, told)

    @differentiable.defjvp
    def derivative(given: Any, tangents: Any) -> Any:  # the generic scan knows how
        def scan(learner: Any, begin: State, scores: Array, levels: Array, told: Array | None) -> tuple[Any, State]:
            return drive(thresholds, learner, begin, Rounds(scores, levels, told), keep)

        return jax.jvp(scan, given, tangents)

    return differentiable


@jax.jit(static_argnames=("method", "fresh", "keep"))
def _traced(
    method: Method,
    fresh: bool,
    keep: str,
    learner: Any,
    begin: State,
    scores: Array,
    levels: Array,
    told: Array | None,
) -> tuple[Any, State]:
    low = jnp.asarray(learner.support[0], scores.dtype)
    fine = usable(scores, learner.support)
    scores = jnp.where(fine, scores, jnp.where(jnp.isfinite(low), low, 0))
    fine = fine if told is None else fine | ~told
    # Nothing can raise here: from a bad score on, the count of scores seen is negative.
    good = lax.cummin(jnp.concatenate([begin.seen[None] >= 0, fine]).astype(jnp.int32)) == 1
    counts = begin.seen + _new_before(scores, told).astype(begin.seen.dtype)
    counts = jnp.where(good & (counts >= 0), counts, -1).astype(begin.seen.dtype)  # nor may a count wrap
    placed = method.place(learner, begin, fresh, scores, told)
    kept = method.run(learner, begin, placed, counts[:-1], scores, levels, keep, None, told)
    return kept, method.finish(learner, begin, placed, counts[-1], scores, told)


@jax.jit(static_argnames=("method", "fresh", "keep", "structure", "batched"))
def _one_by_one(
    method: Method, fresh: bool, keep: str, structure: Any, batched: tuple[bool, ...], leaves: list[Array]
) -> tuple[Any, State]:
    """Map over a batch in turn: vectorised, the loops would no longer be native."""
    mapped = [leaf for leaf, is_batched in zip(leaves, batched, strict=True) if is_batched]

    def one(own: list[Array]) -> tuple[Any, State]:
        queue = iter(own)
        whole = [next(queue) if is_batched else leaf for leaf, is_batched in zip(leaves, batched, strict=True)]
        return _traced(method, fresh, keep, *jax.tree.unflatten(structure, whole))

    return lax.map(one, mapped)
