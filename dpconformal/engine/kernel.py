"""
A belief's kernel in native loops: on every core for a long sequence or a batch, or inside ``jit``, ``vmap``, ``grad``.

The belief offers its loops over one sequence as a :class:`NativeKernel`; what is around them is here, and the same for
every belief: XLA runs one sequential loop per call, so several calls run in threads. Every round has a flag that says
whether it is observed: padding and missing scores are one thing.
"""

import contextlib
import functools
import itertools
import os
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.custom_batching import custom_vmap
from jaxtyping import Array

from dpconformal.engine.pointer_loop import epoch_for
from dpconformal.engine.scan import drive, thresholds
from dpconformal.engine.totals import sum_totals
from dpconformal.learner import State, is_valid_score
from dpconformal.rounds import BLOCK, Rounds, padded_length
from dpconformal.validation import is_traced

ALIGNMENT = 64  # bytes: what XLA asks of memory that it is to use as it is
BYTES = 2**24  # results of a block of sequences, at most
_local = threading.local()


class Segment(NamedTuple):
    """
    Some rounds of a sequence, that can be replayed without those before them.

    Attributes
    ----------
    rounds : slice
        Which.
    run : callable
        Replays them: ``() -> thresholds or totals``. Rounds beyond the segment's own are padding.
    end : State
        After them, if they are the last; otherwise None.
    """

    rounds: slice
    run: Callable[[], Any]
    end: State


class NativeKernel(NamedTuple):
    """
    What a belief offers in the place of a scan. ``begin`` is its state, ``fresh`` whether that has seen nothing.

    A round that is not observed is answered from the counts before it like any other, and leaves no trace. What stands
    for its score is a number in the support.

    Attributes
    ----------
    place : callable
        ``(begin, fresh, scores (..., T), observed) -> placed``: where the scores belong. NumPy arrays, with leading
        axes, on the host; one traced sequence inside ``jit``.
    run : callable
        ``(learner, begin, placed, counts (T + 1,), rounds, keep, epoch) -> (thresholds or totals, state)`` for one
        sequence inside ``jit``; ``counts`` are the scores seen before each round and after the last. The epoch is None
        where the learner is traced, see :func:`dpconformal.engine.pointer_loop.arrivals_by_round`.
    segments : callable
        ``(learner, begin, placed, rounds, keep) -> iterator of Segment`` for one sequence on the host: work for
        several cores.
    """

    place: Callable[..., Any]
    run: Callable[..., tuple[Any, State]]
    segments: Callable[..., Iterator[Segment]]


def run_kernel(
    kernel: NativeKernel, learner: Any, begin: State, fresh: bool, rounds: Rounds, keep: str
) -> tuple[Any, State] | None:
    """
    Replay recorded scores without a scan over the learner's state.

    ``begin`` has room for every score, and the leading axes of the scores unless it is ``fresh``. Returns what is to be
    kept, with the leading axes of the scores, and the final state; None on an accelerator.
    """
    batch = rounds.scores.shape[:-1]
    if jax.default_backend() != "cpu":
        return None
    observed = np.ones(rounds.scores.shape, bool) if rounds.observed is None else rounds.observed
    rounds = Rounds(rounds.scores, rounds.levels, observed)
    if is_traced(learner, begin, rounds):
        program = _differentiable(kernel, fresh, keep)
        for _ in batch:
            program = jax.vmap(program, in_axes=(None, None if fresh else 0, Rounds(0, None, 0)))
        return program(learner, begin, jax.tree.map(jnp.asarray, rounds))

    # On the host from here: whatever its leading axes, a run is a batch of n sequences, one with n = 1.
    length = rounds.length
    rounds = Rounds(np.asarray(rounds.scores).reshape(-1, length), rounds.levels, observed.reshape(-1, length))
    begin = jax.tree.map(np.asarray, begin)
    if not fresh:
        begin = jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[len(batch) :]), begin)
    if rounds.scores.size <= BLOCK:
        kept, end = _run_together(kernel, learner, begin, fresh, rounds.padded(), keep)
        kept = kept[:, :length] if keep == "all" else kept
    elif len(rounds.scores) == 1:
        kept, end = _run_segments(kernel, learner, begin, fresh, rounds, keep)
    else:
        kept, end = _run_in_blocks(kernel, learner, begin, fresh, rounds, keep)
    if len(batch) != 1:
        kept, end = jax.tree.map(lambda leaf: leaf.reshape(batch + leaf.shape[1:]), (kept, end))
    # These arrays are nobody else's: JAX may use their memory as it is. Totals are left to the host's precision.
    return jax.device_put(kept, may_alias=True) if keep == "all" else kept, jax.device_put(end, may_alias=True)


def _run_together(
    kernel: NativeKernel, learner: Any, begin: State, fresh: bool, rounds: Rounds, keep: str
) -> tuple[Any, State]:
    """Replay some padded sequences in one compiled program, each by its own native loop."""
    epoch = BLOCK if learner.discount is None else epoch_for(learner.discount, rounds.scores.dtype)
    placed = kernel.place(begin, fresh, rounds.scores, rounds.observed)
    return jax.tree.map(np.asarray, _run_each(kernel, fresh, epoch, learner, begin, placed, rounds, keep))


@jax.jit(static_argnames=("kernel", "fresh", "epoch", "keep"))
def _run_each(
    kernel: NativeKernel, fresh: bool, epoch: int, learner: Any, begin: State, placed: Any, rounds: Rounds, keep: str
) -> tuple[Any, State]:
    def one(given: Any) -> tuple[Any, State]:
        own, placed, scores, observed = given
        own = begin if fresh else own
        counts = own.seen + _new_before(observed, own.seen.dtype)
        return kernel.run(learner, own, placed, counts, Rounds(scores, rounds.levels, observed), keep, epoch)

    return lax.map(one, (None if fresh else begin, placed, rounds.scores, rounds.observed))


def _new_before(observed: Array, dtype: Any) -> Array:
    """Count the new scores before each round and after the last, shape (T + 1,)."""
    return jnp.concatenate([jnp.zeros(1, dtype), jnp.cumsum(observed, dtype=dtype)])


def _run_in_blocks(
    kernel: NativeKernel, learner: Any, begin: State, fresh: bool, rounds: Rounds, keep: str
) -> tuple[Any, State]:
    """Replay many sequences, a block of them per core at a time."""
    sequences, count = rounds.scores.shape
    dtype, levels, padded = rounds.scores.dtype, rounds.levels.shape[-1], rounds.padded()
    everything = aligned((sequences, count, levels) if keep == "all" else (0,), dtype)

    def run(block: slice) -> Any:
        own, scores, observed = take_block((None if fresh else begin, padded.scores, padded.observed), block)
        own = begin if fresh else own
        found = _run_together(kernel, learner, own, fresh, Rounds(scores, padded.levels, observed), keep)
        used = slice(min(block.stop, sequences) - block.start)
        kept, end = jax.tree.map(lambda leaf: leaf[used], found)
        if keep == "all":
            everything[block] = kept[:, :count]
            kept = None
        return kept, end

    blocks = blocks_of_sequences(sequences, levels * padded.length * dtype.itemsize + 16 * count)
    results = in_threads(functools.partial(run, block) for block in blocks)
    kept, end = jax.tree.map(lambda *leaves: np.concatenate(leaves), *results)
    return (everything if keep == "all" else kept), end


def _run_segments(
    kernel: NativeKernel, learner: Any, begin: State, fresh: bool, rounds: Rounds, keep: str
) -> tuple[Any, State]:
    """Replay one long sequence, a segment of rounds per core."""
    begin = begin if fresh else jax.tree.map(lambda leaf: leaf[0], begin)
    rounds = Rounds(rounds.scores[0], rounds.levels, rounds.observed[0])
    placed = kernel.place(begin, fresh, rounds.scores, rounds.observed)
    kept = aligned((rounds.length if keep == "all" else 0, rounds.levels.shape[-1]), rounds.scores.dtype)

    def run(segment: Segment) -> Any:
        found = jax.tree.map(np.asarray, segment.run())
        if keep == "summary":
            return found, segment.end
        kept[segment.rounds] = found[: segment.rounds.stop - segment.rounds.start]
        return None, segment.end

    segments = kernel.segments(learner, begin, placed, rounds, keep)
    results = in_threads(functools.partial(run, segment) for segment in segments)
    end = next(end for _, end in results if end is not None)
    found = kept if keep == "all" else sum_totals([totals for totals, _ in results])
    return jax.tree.map(lambda leaf: np.asarray(leaf)[None], (found, end))


class PaddedSegment(NamedTuple):
    """
    A cut of rounds.

    Attributes
    ----------
    rounds : slice
        Which.
    padding : int
        Rounds to add, so that all pieces have one length and share one compiled program.
    """

    rounds: slice
    padding: int


def padded_segments(rounds: int, count: int, longest: int | None = None) -> list[PaddedSegment]:
    """Cut rounds into pieces of one length, whole blocks, one piece per core."""
    wanted = cores() if rounds * count >= 16 * BLOCK else 1
    length = padded_length(-(-rounds // wanted))
    length = min(length, longest or length)
    if length >= rounds:
        return [PaddedSegment(slice(0, rounds), length - rounds)]
    starts = range(0, rounds, length)
    return [PaddedSegment(slice(at, min(at + length, rounds)), max(at + length - rounds, 0)) for at in starts]


def take_segment(rounds: Rounds, piece: PaddedSegment, seen: Any) -> tuple[np.ndarray, Rounds]:
    """Cut a piece out of a sequence on the host: scores seen before each of its rounds, and the padded rounds."""
    here, padding = piece
    own = Rounds(rounds.scores[here], rounds.levels, pad(rounds.observed[here], padding, False))
    own = own._replace(scores=pad(own.scores, padding, own.scores[-1]))
    if rounds.levels.ndim == 2:
        levels = np.asarray(rounds.levels)[here]
        own = own._replace(levels=pad(levels, padding, levels[-1]))
    before = seen + seen.dtype.type(np.count_nonzero(rounds.observed[: here.start]))
    return before + (np.cumsum(own.observed, dtype=seen.dtype) - own.observed), own


def pad(column: np.ndarray, padding: int, filler: Any) -> np.ndarray:
    """Lengthen a column on the host."""
    if not padding:
        return column
    filler = np.broadcast_to(np.asarray(filler, column.dtype), (padding, *column.shape[1:]))
    return np.concatenate([column, filler])


@contextlib.contextmanager
def on_one_core() -> Iterator[None]:
    """Leave the other cores alone, for a task of a scheduler that keeps them busy with other tasks."""
    before = getattr(_local, "one", False)
    _local.one = True
    try:
        yield
    finally:
        _local.one = before


def cores() -> int:
    """Count the cores this thread may keep busy: all that the process has, or the one of :func:`on_one_core`."""
    if getattr(_local, "one", False):
        return 1
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def in_threads(tasks: Iterable[Callable[[], Any]]) -> list[Any]:
    """Run tasks side by side, one per core at a time."""
    wide = bool(jax.config.read("jax_enable_x64"))  # may hold for this thread only

    def run(task: Callable[[], Any]) -> Any:
        with jax.enable_x64(wide):
            return task()

    results: list[Any] = []
    waiting: deque[Future[Any]] = deque()
    tasks = iter(tasks)
    ahead = list(itertools.islice(tasks, 2))
    if len(ahead) == 1:
        return [ahead[0]()]
    if cores() == 1:
        return [task() for task in itertools.chain(ahead, tasks)]
    with ThreadPoolExecutor(cores()) as pool:
        for task in itertools.chain(ahead, tasks):
            waiting.append(pool.submit(run, task))
            if len(waiting) > cores():  # what the tasks to come need is made when their turn comes
                results.append(waiting.popleft().result())
        return results + [future.result() for future in waiting]


def aligned(shape: tuple[int, ...], dtype: Any) -> np.ndarray:
    """Allocate an array that JAX can take over without a copy."""
    size = int(np.prod(shape)) * np.dtype(dtype).itemsize
    raw = np.empty(size + ALIGNMENT, np.uint8)
    start = -raw.ctypes.data % ALIGNMENT
    return raw[start : start + size].view(dtype).reshape(shape)


def blocks_of_sequences(count: int, bytes_each: int) -> list[slice]:
    """Divide a batch into blocks of one size, enough of them for every core, small enough for memory."""
    parts = -(-count * bytes_each // BYTES)
    parts = min(-(-max(parts, 1) // cores()) * cores(), count)  # as many for each core
    size = max(-(-count // max(parts, 1)), 1)
    return [slice(start, start + size) for start in range(0, count, size)]


def take_block(tree: Any, block: slice) -> Any:
    """
    Take a block of sequences out of a batch on the host.

    ``block``: Which; where it reaches beyond the end, the last sequence is repeated, so that all blocks have one shape.
    """

    def cut(leaf: Any) -> np.ndarray:
        piece = np.asarray(leaf)[block]
        missing = block.stop - block.start - piece.shape[0]
        return np.concatenate([piece, np.repeat(piece[-1:], missing, axis=0)]) if missing else piece

    return jax.tree.map(cut, tree)


@functools.lru_cache
def _differentiable(kernel: NativeKernel, fresh: bool, keep: str) -> Callable[..., tuple[Any, State]]:
    """Build the replay of one sequence as a function that JAX can trace, map and differentiate."""

    @custom_vmap
    def one(learner: Any, begin: State, rounds: Rounds) -> tuple[Any, State]:
        return _run_traced(kernel, fresh, keep, learner, begin, rounds)

    @one.def_vmap
    def map_one(size: int, batched: Any, *given: Any) -> Any:
        del size
        leaves, structure = jax.tree.flatten(given)
        answer = _one_by_one(kernel, fresh, keep, structure, tuple(jax.tree.leaves(batched)), leaves)
        return answer, jax.tree.map(lambda _: True, answer)

    @jax.custom_jvp
    def differentiable(learner: Any, begin: State, rounds: Rounds) -> Any:
        return one(learner, begin, rounds)

    @differentiable.defjvp
    def derivative(given: Any, tangents: Any) -> Any:  # the generic scan knows how
        def scan(learner: Any, begin: State, rounds: Rounds) -> tuple[Any, State]:
            return drive(thresholds, learner, begin, rounds, keep)

        return jax.jvp(scan, given, tangents)

    return differentiable


@jax.jit(static_argnames=("kernel", "fresh", "keep"))
def _run_traced(
    kernel: NativeKernel, fresh: bool, keep: str, learner: Any, begin: State, rounds: Rounds
) -> tuple[Any, State]:
    scores, observed, seen = rounds.scores, rounds.observed, begin.seen
    low = jnp.asarray(learner.support[0], scores.dtype)
    valid = is_valid_score(scores, learner.support)
    scores = jnp.where(valid, scores, jnp.where(jnp.isfinite(low), low, 0))
    # Nothing can raise here: from a bad score on, the count of scores seen is negative.
    good = lax.cummin(jnp.concatenate([seen[None] >= 0, valid | ~observed]).astype(jnp.int32)) == 1
    counts = seen + _new_before(observed, seen.dtype)
    counts = jnp.where(good & (counts >= 0), counts, -1).astype(seen.dtype)  # nor may a count wrap
    placed = kernel.place(begin, fresh, scores, observed)
    return kernel.run(learner, begin, placed, counts, rounds._replace(scores=scores), keep, None)


@jax.jit(static_argnames=("kernel", "fresh", "keep", "structure", "batched"))
def _one_by_one(
    kernel: NativeKernel, fresh: bool, keep: str, structure: Any, batched: tuple[bool, ...], leaves: list[Array]
) -> tuple[Any, State]:
    """Map over a batch in turn: vectorised, the loops would no longer be native."""
    mapped = [leaf for leaf, is_batched in zip(leaves, batched, strict=True) if is_batched]

    def one(own: list[Array]) -> tuple[Any, State]:
        queue = iter(own)
        every = [next(queue) if is_batched else leaf for leaf, is_batched in zip(leaves, batched, strict=True)]
        return _run_traced(kernel, fresh, keep, *jax.tree.unflatten(structure, every))

    return lax.map(one, mapped)
