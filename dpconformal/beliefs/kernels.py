"""
Native kernels of the beliefs: what each keeps in the place of its state, and how its rounds are cut for several cores.

Exact beliefs rank all scores first, O(T log T), and then walk a linked list; with a discount, or with levels that
change by round, they descend a Fenwick tree. Quantized beliefs walk their bins.
"""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Bool, Float, Int

from dpconformal.beliefs.bins import BinnedScores, bin_atoms, bin_index
from dpconformal.beliefs.sorted_scores import Ranked, SortedScores, rank_scores
from dpconformal.beliefs.weights import weights_by_round
from dpconformal.engine.fenwick import order_walk, tree_walk
from dpconformal.engine.kernel import NativeKernel, PaddedSegment, Segment, pad, padded_segments, take_segment
from dpconformal.engine.pointer_loop import (
    NO_PLACE,
    arrivals_by_round,
    block_and_decays,
    epoch_for,
    rounds_remembered,
    run_blocks,
)
from dpconformal.engine.walks import Insertion, LinkedList, bin_walk, linked, null_node, unlink, walk_list
from dpconformal.rounds import BLOCK, Rounds, padded_length

LONGEST = 2**20  # rounds of a segment of bins: working memory does not grow with their number


def _masses_before(ranked: Ranked, count: Int[Array, ""], discount: Float[Array, ""] | None) -> Array:
    """Weigh the scores seen before some rounds."""
    age = count - ranked.arrivals  # negative for scores to come
    known = (ranked.arrivals > 0) & (age >= 0)
    if discount is None:
        return known.astype(jnp.int32)
    return jnp.where(known, discount ** jnp.maximum(age, 0).astype(ranked.values.dtype), 0)


@jax.jit(static_argnames="keep")
def _run_list(
    learner: Any,
    nodes: LinkedList,
    insertions: Insertion,
    values: Float[Array, " C"],
    counts: Int[Array, " T"],
    rounds: Rounds,
    keep: str,
) -> Any:
    """Replay rounds of the undiscounted belief at fixed levels: each level's place moves little from round to round."""
    weights = weights_by_round(learner, counts, values.dtype)
    nothing = jnp.full(1, null_node(values.shape[0]), jnp.int32)
    came = jax.tree.map(lambda column: jnp.concatenate([nothing, column[:-1]]), insertions)
    walk = walk_list(learner.prior, nodes, values, rounds.levels)
    return run_blocks(walk, (came, weights.prior, weights.atom), rounds, keep)


@jax.jit(static_argnames=("keep", "epoch"))
def _run_tree(
    learner: Any, ranked: Ranked, counts: Int[Array, " T"], rounds: Rounds, keep: str, epoch: int | None
) -> Any:
    """Replay rounds of the exact belief with a discount, or with levels that change."""
    weights = weights_by_round(learner, counts, ranked.values.dtype)
    masses = _masses_before(ranked, counts[0], weights.discount)
    walk = tree_walk(learner.prior, masses, ranked.values, rounds.levels)
    rows = arrivals_by_round(ranked.places, counts, weights, NO_PLACE, epoch)
    return run_blocks(walk, rows, rounds, keep, *block_and_decays(counts, epoch, weights.discount))


@jax.jit(static_argnames=("keep", "epoch"))
def _run_order(
    learner: Any, ranked: Ranked, counts: Int[Array, " T"], rounds: Rounds, keep: str, epoch: int | None
) -> Any:
    """Replay rounds of an empirical distribution."""
    weights = learner.weights(counts, ranked.values.dtype)
    masses = _masses_before(ranked, counts[0], weights.discount)
    walk = order_walk(learner, masses, ranked.values, rounds.levels)
    index = jnp.arange(masses.shape[0], dtype=jnp.int32)
    before = jnp.max(jnp.where(masses > 0, index, 0), initial=0)
    known = jnp.where(rounds.observed, ranked.places, 0)
    largest = lax.cummax(jnp.concatenate([before[None], known[:-1]]))
    rows = arrivals_by_round(ranked.places, counts, weights, NO_PLACE, epoch), largest
    return run_blocks(walk, rows, rounds, keep, *block_and_decays(counts, epoch, weights.discount))


@jax.jit(static_argnames=("keep", "epoch"))
def _run_bins(
    learner: Any, state: BinnedScores, counts: Int[Array, " T"], rounds: Rounds, keep: str, epoch: int | None
) -> Any:
    """Replay rounds of the quantized belief."""
    levels, bins = rounds.levels, state.weights.shape[-1]
    weights = weights_by_round(learner, counts, levels.dtype)
    atoms = bin_atoms(learner.support, bins, levels.dtype, learner.rounding)
    pointers_suffice = levels.ndim == 1  # a level of its own each round has far to walk
    walk = (bin_walk if pointers_suffice else tree_walk)(learner.prior, state.weights, atoms, levels)
    no_place = bins if pointers_suffice else NO_PLACE
    own = bin_index(rounds.scores, learner.support, bins, learner.rounding)
    own = jnp.where(rounds.observed, own, no_place).astype(own.dtype)
    rows = arrivals_by_round(own, counts, weights, no_place, epoch)
    rows = rows._replace(mass=rows.mass.astype(state.weights.dtype))
    return run_blocks(walk, rows, rounds, keep, *block_and_decays(counts, epoch, weights.discount))


@jax.jit
def state_after(
    learner: Any, state: BinnedScores, scores: Float[Array, " T"], observed: Bool[Array, " T"], count: Int[Array, ""]
) -> BinnedScores:
    """Take the observed scores into a state at once; ``count`` of them have then been seen in all."""
    old = state.weights
    bins = bin_index(jnp.asarray(scores), learner.support, old.shape[-1], learner.rounding)
    if learner.discount is None:
        return BinnedScores(count, old.at[bins].add(observed.astype(old.dtype)))
    discount = jnp.asarray(learner.discount, old.dtype)
    new = jnp.sum(observed, dtype=jnp.int32)
    age = new - jnp.cumsum(observed, dtype=jnp.int32)
    masses = jnp.where(observed, discount ** age.astype(old.dtype), 0)
    return BinnedScores(count, (old * discount ** new.astype(old.dtype)).at[bins].add(masses))


def _run_exact(
    learner: Any, begin: SortedScores, ranked: Ranked, counts: Array, rounds: Rounds, keep: str, epoch: int | None
) -> tuple[Any, SortedScores]:
    end = SortedScores(counts[-1], ranked.values, ranked.arrivals)
    if learner.discount is not None or rounds.levels.ndim == 2:
        return _run_tree(learner, ranked, counts[:-1], rounds, keep, epoch), end
    size = ranked.values.shape[0]
    nodes = linked(size, jnp.maximum(begin.seen, 0) + jnp.sum(rounds.observed, dtype=jnp.int32))
    nodes, insertions = unlink(nodes, jnp.minimum(ranked.places, null_node(size)))
    return _run_list(learner, nodes, insertions, ranked.values, counts[:-1], rounds, keep), end


def _run_empirical(
    learner: Any, begin: SortedScores, ranked: Ranked, counts: Array, rounds: Rounds, keep: str, epoch: int | None
) -> tuple[Any, SortedScores]:
    del begin
    end = SortedScores(counts[-1], ranked.values, ranked.arrivals)
    return _run_order(learner, ranked, counts[:-1], rounds, keep, epoch), end


def _run_quantized(
    learner: Any, begin: BinnedScores, placed: Any, counts: Array, rounds: Rounds, keep: str, epoch: int | None
) -> tuple[Any, BinnedScores]:
    end = state_after(learner, begin, rounds.scores, rounds.observed, counts[-1])
    return _run_bins(learner, begin, counts[:-1], rounds, keep, epoch), end


def _exact_segments(learner: Any, begin: SortedScores, ranked: Ranked, rounds: Rounds, keep: str) -> Iterator[Segment]:
    """Cut the rounds into a segment per core, the last one first: scores are taken out of the list from its end."""
    if learner.discount is not None or rounds.levels.ndim == 2:
        yield from _tree_segments(_run_tree, learner, begin, ranked, rounds, keep)
        return
    end, size = _last_state(begin, ranked, rounds), ranked.values.size
    nodes, null = _linked(size, end.seen), null_node(size)
    places = np.minimum(ranked.places, np.int32(null))
    for piece in reversed(padded_segments(rounds.length, rounds.levels.shape[-1])):
        nodes, insertions = unlink(nodes, pad(places[piece.rounds], piece.padding, null))
        run = partial(
            _run_list, learner, nodes, insertions, ranked.values, *take_segment(rounds, piece, begin.seen), keep
        )
        yield Segment(piece.rounds, run, end if piece.rounds.stop == rounds.length else None)


_linked = jax.jit(linked, static_argnums=0)


def _tree_segments(
    run_tree: Callable[..., Any], learner: Any, begin: SortedScores, ranked: Ranked, rounds: Rounds, keep: str
) -> Iterator[Segment]:
    """Cut the rounds into short segments where the distant past is forgotten: each ranks only what still weighs."""
    scores, observed, seen = rounds.scores, rounds.observed, int(begin.seen)
    epoch, longest = epoch_for(learner.discount, scores.dtype), None
    window = most = padded_length(seen + rounds.length)
    if learner.discount is not None:
        window = min(rounds_remembered(learner.discount, scores.dtype), most)
        longest = max(-(-4 * window // BLOCK), 8) * BLOCK
    in_time = scores[observed]
    if seen:
        old = np.argsort(begin.arrivals[:seen])
        in_time = np.concatenate([begin.values[:seen][old], in_time])

    def run(piece: PaddedSegment) -> Any:
        counts, own = take_segment(rounds, piece, begin.seen)
        start, new = int(counts[0]), np.count_nonzero(own.observed)
        first = max(start - window, 0)
        recent = in_time[first : start + new]
        room = begin._replace(values=np.empty(min(window + own.length, most), recent.dtype))  # type: ignore[arg-type]
        recent = rank_scores(room, True, recent, np.ones(recent.shape, bool))
        arrived = np.where(recent.arrivals > 0, recent.arrivals + np.int32(first), 0)
        places = np.full(own.length, NO_PLACE, np.int32)
        places[own.observed] = recent.places[start - first :]
        return run_tree(learner, Ranked(recent.values, arrived, places), counts, own, keep, epoch)

    end = _last_state(begin, ranked, rounds)
    for piece in padded_segments(rounds.length, rounds.levels.shape[-1], longest):
        yield Segment(piece.rounds, partial(run, piece), end if piece.rounds.stop == rounds.length else None)


def _last_state(begin: SortedScores, ranked: Ranked, rounds: Rounds) -> SortedScores:
    return SortedScores(begin.seen + np.int32(np.count_nonzero(rounds.observed)), ranked.values, ranked.arrivals)


def _bin_segments(learner: Any, begin: BinnedScores, placed: Any, rounds: Rounds, keep: str) -> Iterator[Segment]:
    """Cut the rounds into segments; the state between them needs the bins of the scores only."""
    state, epoch = begin, epoch_for(learner.discount, rounds.scores.dtype)
    for piece in padded_segments(rounds.length, rounds.levels.shape[-1], LONGEST):
        counts, own = take_segment(rounds, piece, begin.seen)
        run = partial(_run_bins, learner, state, counts, own, keep, epoch)
        count = counts[-1] + own.observed[-1].astype(counts.dtype)
        state = state_after(learner, state, own.scores, own.observed, count)
        yield Segment(piece.rounds, run, state if piece.rounds.stop == rounds.length else None)


def _no_places(begin: BinnedScores, fresh: bool, scores: Any, observed: Any) -> tuple[()]:
    """Return nothing: to find a score's bin again is cheaper than to remember it."""
    return ()


EXACT = NativeKernel(rank_scores, _run_exact, _exact_segments)
EMPIRICAL = NativeKernel(rank_scores, _run_empirical, partial(_tree_segments, _run_order))
QUANTIZED = NativeKernel(_no_places, _run_quantized, _bin_segments)
