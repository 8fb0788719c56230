"""
A belief's kernel in native loops: on every core for a long sequence or a batch, or inside ``jit``, ``vmap``, ``grad``.

The belief offers its loops over one sequence as a :class:`NativeKernel`; what is around them is here, and the same for
every belief: XLA runs one sequential loop per call, so several calls run in threads. Every round has a flag that says
whether it is observed: padding and missing scores are one thing.
"""

import functools
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.custom_batching import sequential_vmap
from jaxtyping import Array

from dpconformal.engine.machine import allocate_aligned, blocks_of_sequences, cores, in_threads
from dpconformal.engine.pointer_loop import epoch_for
from dpconformal.engine.scan import drive, pit, thresholds
from dpconformal.engine.totals import sum_totals
from dpconformal.learner import State, is_valid_score
from dpconformal.rounds import BLOCK, Rounds, padded_length
from dpconformal.validation import is_traced


class Segment(NamedTuple):
    """Some rounds of a sequence, that can be replayed without those before them."""

    rounds: slice
    run: Callable[[], Any]  # () -> thresholds or totals; rounds beyond the segment's own are padding
    end: State  # after these rounds, if they are the last; otherwise None


class NativeKernel(NamedTuple):
    """
    What a belief offers in the place of a scan. ``begin`` is its state, ``fresh`` whether that has seen nothing.

    A round that is not observed is answered from the counts before it like any other, and leaves no trace. What stands
    for its score is a number in the support.
    """

    # (begin, fresh, scores (..., T), observed) -> placed: where the scores belong. NumPy arrays, with leading axes, on
    # the host; one traced sequence inside jit.
    place: Callable[..., Any]
    # (learner, begin, placed, counts (T + 1,), rounds, keep, epoch) -> (what is kept, state) for one sequence
    # inside jit. counts are the scores seen before each round and after the last. epoch is None where the learner is
    # traced, see pointer_loop.arrivals_by_round.
    run: Callable[..., tuple[Any, State]]
    # (learner, begin, placed, rounds, keep) -> segments of one sequence on the host: work for several cores.
    segments: Callable[..., Iterator[Segment]]


def run_kernel(
    kernel: NativeKernel, learner: Any, begin: State, fresh: bool, rounds: Rounds, keep: str
) -> tuple[Any, State] | None:
    """
    Replay recorded scores without a scan over the learner's state.

    ``begin`` has room for every score, and the leading axes of the scores unless it is ``fresh``. ``keep`` is "all" for
    thresholds, "summary" for their totals, and "pits", with one level for form's sake, for the PITs of the scores,
    (..., T, 1). Returns what is to be kept, with the leading axes of the scores, and the final state; None on an
    accelerator.
    """
    *batch, length = rounds.scores.shape
    if jax.default_backend() != "cpu":
        return None
    observed = np.ones(rounds.scores.shape, bool) if rounds.observed is None else rounds.observed
    rounds = Rounds(rounds.scores, rounds.levels, observed)
    own_levels = None if rounds.split()[1] is not None else 0  # an axis, where each sequence has levels of its own
    if is_traced(learner, begin, rounds):
        program = _differentiable(kernel, fresh, keep)
        for _ in batch:
            program = jax.vmap(program, in_axes=(None, None if fresh else 0, Rounds(0, own_levels, 0)))
        return program(learner, begin, jax.tree.map(jnp.asarray, rounds))

    # On the host from here: whatever its leading axes, a run is a batch of n sequences, one with n = 1.
    levels = rounds.levels if own_levels is None else np.asarray(rounds.levels).reshape(-1, *rounds.levels.shape[-2:])
    rounds = Rounds(np.asarray(rounds.scores).reshape(-1, length), levels, observed.reshape(-1, length))
    begin = jax.tree.map(np.asarray, begin)
    if not fresh:
        begin = jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[len(batch) :]), begin)
    if rounds.scores.size <= BLOCK:
        kept, end = _run_together(kernel, learner, begin, fresh, rounds.padded(), keep)
        kept = kept if keep == "summary" else kept[:, :length]
    elif len(rounds.scores) == 1:
        kept, end = _run_segments(kernel, learner, begin, fresh, rounds, keep)
    else:
        kept, end = _run_in_blocks(kernel, learner, begin, fresh, rounds, keep)
    if len(batch) != 1:
        kept, end = jax.tree.map(lambda leaf: leaf.reshape((*batch, *leaf.shape[1:])), (kept, end))
    # These arrays are nobody else's: JAX may use their memory as it is. Totals are left to the host's precision.
    return kept if keep == "summary" else jax.device_put(kept, may_alias=True), jax.device_put(end, may_alias=True)


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
    """Replay the sequences one after the other: vectorised, the loops would no longer be native."""
    every, shared = rounds.split()

    def one(given: Any) -> tuple[Any, State]:
        own, placed, rounds = given
        own = begin if fresh else own
        counts = own.seen + _new_before(rounds.observed, own.seen.dtype)
        return kernel.run(learner, own, placed, counts, rounds.joined(shared), keep, epoch)

    return lax.map(one, (None if fresh else begin, placed, every))


def _new_before(observed: Array, dtype: Any) -> Array:
    """Count the new scores before each round and after the last, shape (T + 1,)."""
    return jnp.concatenate([jnp.zeros(1, dtype), jnp.cumsum(observed, dtype=dtype)])


def _run_in_blocks(
    kernel: NativeKernel, learner: Any, begin: State, fresh: bool, rounds: Rounds, keep: str
) -> tuple[Any, State]:
    """Replay many sequences, a block of them per core at a time."""
    sequences, count = rounds.scores.shape
    dtype, levels, padded = rounds.scores.dtype, rounds.levels.shape[-1], rounds.padded()
    everything = allocate_aligned((0,) if keep == "summary" else (sequences, count, levels), dtype)
    every, shared = padded.split()

    def run(block: slice) -> Any:
        own, rounds = _take_block((None if fresh else begin, every), block)
        own = begin if fresh else own
        found = _run_together(kernel, learner, own, fresh, rounds.joined(shared), keep)
        used = slice(min(block.stop, sequences) - block.start)
        kept, end = jax.tree.map(lambda leaf: leaf[used], found)
        if keep != "summary":
            everything[block] = kept[:, :count]
            kept = None
        return kept, end

    blocks = blocks_of_sequences(sequences, levels * padded.length * dtype.itemsize + 16 * count)
    results = in_threads(functools.partial(run, block) for block in blocks)
    kept, end = jax.tree.map(lambda *leaves: np.concatenate(leaves), *results)
    return (kept if keep == "summary" else everything), end


def _take_block(tree: Any, block: slice) -> Any:
    """Take a block of sequences out of a batch; beyond its end the last is repeated, so that blocks have one shape."""

    def cut(leaf: Any) -> np.ndarray:
        piece = np.asarray(leaf)[block]
        missing = block.stop - block.start - piece.shape[0]
        return pad(piece, missing, piece[-1])

    return jax.tree.map(cut, tree)


def _run_segments(
    kernel: NativeKernel, learner: Any, begin: State, fresh: bool, rounds: Rounds, keep: str
) -> tuple[Any, State]:
    """Replay one long sequence, a segment of rounds per core."""
    begin = begin if fresh else jax.tree.map(lambda leaf: leaf[0], begin)
    every, shared = rounds.split()
    rounds = jax.tree.map(lambda leaf: leaf[0], every).joined(shared)
    placed = kernel.place(begin, fresh, rounds.scores, rounds.observed)
    kept = allocate_aligned((0 if keep == "summary" else rounds.length, rounds.levels.shape[-1]), rounds.scores.dtype)

    def run(segment: Segment) -> Any:
        found = jax.tree.map(np.asarray, segment.run())
        if keep == "summary":
            return found, segment.end
        kept[segment.rounds] = found[: segment.rounds.stop - segment.rounds.start]
        return None, segment.end

    segments = kernel.segments(learner, begin, placed, rounds, keep)
    results = in_threads(functools.partial(run, segment) for segment in segments)
    end = next(end for _, end in results if end is not None)
    found = sum_totals([totals for totals, _ in results]) if keep == "summary" else kept
    return jax.tree.map(lambda leaf: np.asarray(leaf)[None], (found, end))


class PaddedSegment(NamedTuple):
    """A cut of rounds, and how many to add, so that all pieces have one length and share one compiled program."""

    rounds: slice
    padding: int


def padded_segments(rounds: int, count: int, longest: int | None = None) -> list[PaddedSegment]:
    """Cut rounds into pieces of one length, whole blocks, one piece per core."""
    wanted = cores() if rounds * count >= 16 * BLOCK else 1
    length = padded_length(-(-rounds // wanted))
    length = min(length, longest or length)
    starts = range(0, rounds, length)
    return [PaddedSegment(slice(at, min(at + length, rounds)), max(at + length - rounds, 0)) for at in starts]


def take_segment(rounds: Rounds, piece: PaddedSegment, seen: Any) -> tuple[np.ndarray, Rounds]:
    """Cut a piece out of a sequence on the host: scores seen before each of its rounds, and the padded rounds."""
    here, padding = piece
    scores, observed, levels = rounds.scores[here], rounds.observed[here], rounds.levels
    if levels.ndim == 2:
        levels = np.asarray(levels)[here]
        levels = pad(levels, padding, levels[-1])
    own = Rounds(pad(scores, padding, scores[-1]), levels, pad(observed, padding, False))
    before = seen + seen.dtype.type(np.count_nonzero(rounds.observed[: here.start]))
    return before + (np.cumsum(own.observed, dtype=seen.dtype) - own.observed), own


def pad(column: np.ndarray, padding: int, filler: Any) -> np.ndarray:
    """Lengthen a column on the host by a filler."""
    if not padding:
        return column
    filler = np.broadcast_to(np.asarray(filler, column.dtype), (padding, *column.shape[1:]))
    return np.concatenate([column, filler])


@functools.lru_cache
def _differentiable(kernel: NativeKernel, fresh: bool, keep: str) -> Callable[..., tuple[Any, State]]:
    """Build the replay of one sequence as a function that JAX can trace, map and differentiate."""
    # Mapped, sequences go in turn: vectorised, the loops would no longer be native.
    program = jax.custom_jvp(jax.jit(sequential_vmap(functools.partial(_run_traced, kernel, fresh, keep))))

    @program.defjvp
    def derivative(given: Any, tangents: Any) -> Any:  # the generic scan knows how
        def scan(learner: Any, begin: State, rounds: Rounds) -> tuple[Any, State]:
            if keep == "pits":
                found, end = drive(pit, learner, begin, rounds)
                return found[..., None], end
            return drive(thresholds, learner, begin, rounds, keep)

        return jax.jvp(scan, given, tangents)

    return program


def _run_traced(
    kernel: NativeKernel, fresh: bool, keep: str, learner: Any, begin: State, rounds: Rounds
) -> tuple[Any, State]:
    """Replay one sequence; nothing can raise, so from a bad score on the count of scores seen is negative."""
    scores, observed, seen = rounds.scores, rounds.observed, begin.seen
    low = jnp.asarray(learner.support[0], scores.dtype)
    valid = is_valid_score(scores, learner.support)
    scores = jnp.where(valid, scores, jnp.where(jnp.isfinite(low), low, 0))
    good = lax.cummin(jnp.concatenate([seen[None] >= 0, valid | ~observed]).astype(jnp.int32)) == 1
    counts = seen + _new_before(observed, seen.dtype)
    counts = jnp.where(good & (counts >= 0), counts, -1).astype(seen.dtype)  # nor may a count wrap
    placed = kernel.place(begin, fresh, scores, observed)
    return kernel.run(learner, begin, placed, counts, rounds._replace(scores=scores), keep, None)
