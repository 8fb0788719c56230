"""Replays of the exact belief without a scan over a growing store: O(T log T) to rank the scores, then one walk."""

from collections.abc import Iterator
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from dpconformal.beliefs.sorted_scores import SortedScores
from dpconformal.beliefs.weights import weights_by_round
from dpconformal.offline.arrivals import arrivals, block_and_fade, epoch_for
from dpconformal.offline.chain import Chain, Insertion, linked, nowhere, unlink
from dpconformal.offline.driver import Method, Stretch
from dpconformal.offline.exact_tree import NO_PLACE, tree_walk
from dpconformal.offline.exact_walk import chain_walk
from dpconformal.offline.ranking import Ranked, rank, rank_on_host
from dpconformal.offline.rounds import follow, padded, pieces, rounds_of


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
    """
    Replay a stretch of rounds of the undiscounted belief at fixed levels.

    Parameters
    ----------
    learner : Exact
        The belief.
    chain : Chain
        The scores before the stretch.
    insertions : Insertion of arrays, shape (T,)
        Of the stretch's scores.
    values : Array, shape (C,)
        Every score, in the final order.
    counts : Array, shape (T,)
        Scores seen before each round; negative where the state was spoilt.
    scores, real : Array, shape (T,)
        The scores; and False for padding.
    levels : Array, shape (A,)
        The levels.
    keep : {"all", "summary"}
        What to keep.

    Returns
    -------
    Array or Totals
        What was to be kept.
    """
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
    """
    Replay a stretch of rounds with a discount, or with levels that change.

    Parameters
    ----------
    learner : Exact
        The belief.
    ranked : Ranked
        Every score; its places are those of the stretch.
    counts, scores, real : Array, shape (T,)
        As for :func:`walk_chain`.
    levels : Array, shape (A,) or (T, A)
        The levels.
    keep : {"all", "summary"}
        What to keep.
    epoch : int, optional
        See :func:`dpconformal.offline.arrivals.arrivals`.

    Returns
    -------
    Array or Totals
        What was to be kept.
    """
    weights = weights_by_round(learner, counts, ranked.values.dtype)
    age = counts[0] - ranked.arrivals  # negative for scores to come
    known = (ranked.arrivals > 0) & (age >= 0)
    if weights.discount is None:
        masses = known.astype(jnp.int32)
    else:
        masses = jnp.where(known, weights.discount ** jnp.maximum(age, 0).astype(ranked.values.dtype), 0)
    walker = tree_walk(learner.prior, masses, ranked.values, levels)
    rows = arrivals(ranked.places, weights, NO_PLACE, epoch)
    return follow(walker, rows, levels, scores, real, keep, *block_and_fade(epoch, weights.discount))


def _place(learner: Any, begin: SortedScores, fresh: bool, scores: Array) -> Ranked:
    del learner
    return rank(None if fresh else begin, scores, begin.values.shape[-1])


def _place_on_host(learner: Any, begin: SortedScores, fresh: bool, scores: np.ndarray) -> Ranked:
    del learner
    return rank_on_host(None if fresh else begin, scores, begin.values.shape[-1])


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
) -> Any:
    real = jnp.ones(scores.shape, bool)
    if not _pointers_suffice(learner, levels):
        return walk_tree(learner, ranked, counts, scores, real, levels, keep, epoch)
    chain = linked(ranked.values.shape[0], jnp.maximum(begin.seen, 0) + scores.shape[0])
    chain, insertions = unlink(chain, ranked.places)
    return walk_chain(learner, chain, insertions, ranked.values, counts, scores, real, levels, keep)


def _finish(learner: Any, begin: SortedScores, ranked: Ranked, count: Array, scores: Array) -> SortedScores:
    del learner, begin, scores
    return SortedScores(count, ranked.values, ranked.arrivals)


def _stretches(
    learner: Any, begin: SortedScores, ranked: Ranked, scores: np.ndarray, levels: Array, keep: str
) -> Iterator[Stretch]:
    """Cut the rounds into one stretch per core, the last one first: the chain is unlinked from its end."""
    seen, capacity = int(begin.seen), ranked.values.size
    count: Any = np.int32(seen + scores.size)
    chain, end = _linked(capacity, count), SortedScores(count, ranked.values, ranked.arrivals)
    for rounds, padding in reversed(pieces(scores.size, levels.shape[-1])):
        places = padded(ranked.places[rounds], padding, nowhere(capacity))
        given = rounds_of(rounds, padding, seen, scores, levels)
        if _pointers_suffice(learner, levels):
            chain, insertions = unlink(chain, places)
            run = partial(walk_chain, learner, chain, insertions, ranked.values, *given, keep)
        else:
            epoch = epoch_for(learner, scores.dtype)
            run = partial(walk_tree, learner, ranked._replace(places=places), *given, keep, epoch)
        yield Stretch(rounds, run, end if rounds.stop == scores.size else None)


_linked = jax.jit(linked, static_argnums=0)

METHOD = Method(epoch_for, _place, _place_on_host, _run, _finish, _stretches)
