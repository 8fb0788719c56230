"""Replays of the exact belief without a scan over a growing store: O(T log T) to rank the scores, then one walk."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from dpconformal.beliefs.sorted_scores import SortedScores
from dpconformal.beliefs.weights import weights_by_round
from dpconformal.offline.arrivals import arrivals, block_and_fade, epoch_for, rounds_remembered
from dpconformal.offline.chain import Chain, Insertion, linked, nowhere, unlink
from dpconformal.offline.driver import Method, Stretch
from dpconformal.offline.exact_tree import NO_PLACE, tree_walk
from dpconformal.offline.exact_walk import chain_walk
from dpconformal.offline.ranking import Ranked, rank, rank_on_host
from dpconformal.offline.rounds import brought, follow, padded, pieces, rounds_of
from dpconformal.rounds import BLOCK, padded_length


@jax.jit(static_argnames="keep")
def walk_chain(
    learner: Any,
    chain: Chain,
    insertions: Insertion,
    values: Float[Array, " C"],
    counts: Int[Array, " T"],
    scores: Float[Array, " T"],
    real: Bool[Array, " T"],
    levels: Float[Array, " A"],
    keep: str,
) -> Any:
    """Replay a stretch of rounds of the undiscounted belief at fixed levels."""
    weights = weights_by_round(learner, counts, values.dtype)
    nothing = jnp.full(1, nowhere(values.shape[0]), jnp.int32)
    came = jax.tree.map(lambda column: jnp.concatenate([nothing, column[:-1]]), insertions)
    rows = came, weights.prior, weights.atom
    return follow(chain_walk(learner.prior, chain, values, levels), rows, levels, scores, real, keep)


@jax.jit(static_argnames=("keep", "epoch"))
def walk_tree(
    learner: Any,
    ranked: Ranked,
    counts: Int[Array, " T"],
    scores: Float[Array, " T"],
    real: Bool[Array, " T"],
    levels: Float[Array, "..."],
    keep: str,
    epoch: int | None,
) -> Any:
    """Replay a stretch of rounds with a discount, or with levels that change."""
    weights = weights_by_round(learner, counts, ranked.values.dtype)
    masses = masses_before(ranked, counts[0], weights.discount)
    walker = tree_walk(learner.prior, masses, ranked.values, levels)
    rows = arrivals(ranked.places, counts, weights, NO_PLACE, epoch)
    return follow(walker, rows, levels, scores, real, keep, *block_and_fade(counts, epoch, weights.discount))


def masses_before(ranked: Ranked, count: Int[Array, ""], discount: Float[Array, ""] | None) -> Array:
    """Weigh the scores seen before a stretch of rounds."""
    age = count - ranked.arrivals  # negative for scores to come
    known = (ranked.arrivals > 0) & (age >= 0)
    if discount is None:
        return known.astype(jnp.int32)
    return jnp.where(known, discount ** jnp.maximum(age, 0).astype(ranked.values.dtype), 0)


def place(learner: Any, begin: SortedScores, fresh: bool, scores: Array, observed: Array | None) -> Ranked:
    """Rank the scores of a run among those before it."""
    del learner
    ranked = rank(None if fresh else begin, scores, begin.values.shape[-1], observed)
    return ranked if observed is None else ranked._replace(places=jnp.where(observed, ranked.places, NO_PLACE))


def place_on_host(
    learner: Any, begin: SortedScores, fresh: bool, scores: np.ndarray, observed: np.ndarray | None
) -> Ranked:
    """Rank the scores of a batch of runs, on the host."""
    del learner
    ranked = rank_on_host(None if fresh else begin, scores, begin.values.shape[-1], observed)
    if observed is None:
        return ranked
    return ranked._replace(places=np.where(observed, ranked.places, np.int32(NO_PLACE)))


def _pointers_suffice(learner: Any, levels: Array) -> bool:
    """Whether each level's place moves little from round to round."""
    return learner.discount is None and levels.ndim == 1


def _run(
    learner: Any,
    begin: SortedScores,
    ranked: Ranked,
    counts: Array,
    scores: Array,
    levels: Array,
    keep: str,
    epoch: int | None,
    observed: Array | None,
) -> Any:
    real = jnp.ones(scores.shape, bool) if observed is None else observed
    if not _pointers_suffice(learner, levels):
        return walk_tree(learner, ranked, counts, scores, real, levels, keep, epoch)
    size, new = ranked.values.shape[0], scores.shape[0] if observed is None else jnp.sum(observed, dtype=jnp.int32)
    chain, insertions = unlink(linked(size, jnp.maximum(begin.seen, 0) + new), _linked_places(jnp, ranked.places, size))
    return walk_chain(learner, chain, insertions, ranked.values, counts, scores, real, levels, keep)


def _linked_places(xp: Any, places: Any, size: int) -> Any:
    """Send rounds that bring no score to the place that is never linked."""
    return xp.minimum(places, xp.asarray(nowhere(size), places.dtype))


def finish(
    learner: Any, begin: SortedScores, ranked: Ranked, count: Array, scores: Array, observed: Array | None
) -> SortedScores:
    """Return the state after all scores."""
    del learner, begin, scores, observed
    return SortedScores(count, ranked.values, ranked.arrivals)


def _stretches(
    learner: Any,
    begin: SortedScores,
    ranked: Ranked,
    scores: np.ndarray,
    levels: Array,
    keep: str,
    observed: np.ndarray | None,
) -> Iterator[Stretch]:
    """Cut the rounds into stretches for several cores."""
    count: Any = np.int32(int(begin.seen) + brought(scores, observed))
    end = SortedScores(count, ranked.values, ranked.arrivals)
    cut = _chain_stretches if _pointers_suffice(learner, levels) else partial(tree_stretches, walk_tree)
    for rounds, run in cut(learner, begin, ranked, scores, levels, keep, observed):
        yield Stretch(rounds, run, end if rounds.stop == scores.size else None)


def _chain_stretches(
    learner: Any,
    begin: SortedScores,
    ranked: Ranked,
    scores: np.ndarray,
    levels: Array,
    keep: str,
    observed: np.ndarray | None,
) -> Iterator[tuple[slice, Callable[[], Any]]]:
    """One per core, the last one first: the chain is unlinked from its end."""
    seen, capacity = begin.seen, ranked.values.size
    chain = _linked(capacity, np.int32(int(seen) + brought(scores, observed)))
    places = _linked_places(np, ranked.places, capacity)
    for rounds, padding in reversed(pieces(scores.size, levels.shape[-1])):
        chain, insertions = unlink(chain, padded(places[rounds], padding, nowhere(capacity)))
        given = rounds_of(rounds, padding, seen, scores, levels, observed)
        yield rounds, partial(walk_chain, learner, chain, insertions, ranked.values, *given, keep)


def tree_stretches(
    walk: Callable[..., Any],
    learner: Any,
    begin: SortedScores,
    ranked: Ranked,
    scores: np.ndarray,
    levels: Array,
    keep: str,
    observed: np.ndarray | None,
) -> Iterator[tuple[slice, Callable[[], Any]]]:
    """Cut the rounds into short stretches where the distant past is forgotten: each ranks only what still weighs."""
    del ranked
    seen, epoch, longest = int(begin.seen), epoch_for(learner, scores.dtype), None
    window = most = padded_length(seen + scores.size)
    if learner.discount is not None:
        window = min(rounds_remembered(learner.discount, scores.dtype), most)
        longest = max(-(-4 * window // BLOCK), 8) * BLOCK
    in_time = scores if observed is None else scores[observed]
    if seen:
        old = np.argsort(np.asarray(begin.arrivals)[:seen])
        in_time = np.concatenate([np.asarray(begin.values)[:seen][old], in_time])

    def run(rounds: slice, padding: int) -> Any:
        length = rounds.stop - rounds.start
        here: Any = slice(None) if observed is None else observed[rounds]
        new = length if observed is None else np.count_nonzero(here)
        start = seen + (rounds.start if observed is None else np.count_nonzero(observed[: rounds.start]))
        first = max(start - window, 0)
        recent = rank_on_host(None, in_time[first : start + new], min(window + length + padding, most))
        arrived = np.where(recent.arrivals > 0, recent.arrivals + np.int32(first), 0)
        places = np.full(length + padding, NO_PLACE, np.int32)
        places[:length][here] = recent.places[start - first :]
        given = rounds_of(rounds, padding, begin.seen, scores, levels, observed)
        return walk(learner, Ranked(recent.values, arrived, places), *given, keep, epoch)

    for piece in pieces(scores.size, levels.shape[-1], longest):
        yield piece.rounds, partial(run, *piece)


_linked = jax.jit(linked, static_argnums=0)

METHOD = Method(epoch_for, place, place_on_host, _run, finish, _stretches)
