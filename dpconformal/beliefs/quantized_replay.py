"""Replays of the quantized belief: the scores' bins first, then one walk over the bins."""

from collections.abc import Iterator
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from dpconformal.beliefs.bins import BinnedScores, bin_atoms, bin_index
from dpconformal.beliefs.weights import weights_by_round
from dpconformal.offline.arrivals import arrivals, block_and_fade, epoch_for
from dpconformal.offline.bin_walk import bin_walk
from dpconformal.offline.driver import Method, Stretch
from dpconformal.offline.exact_tree import NO_PLACE, tree_walk
from dpconformal.offline.rounds import brought, follow, pieces, rounds_of

LONGEST = 2**20  # rounds of a stretch: working memory does not grow with their number


@jax.jit(static_argnames=("keep", "epoch"))
def walk_bins(
    learner: Any,
    state: BinnedScores,
    counts: Int[Array, " T"],
    scores: Float[Array, " T"],
    real: Bool[Array, " T"],
    levels: Float[Array, "..."],
    keep: str,
    epoch: int | None,
) -> Any:
    """Replay a stretch of rounds."""
    dtype, size, bins = levels.dtype, state.weights.shape[-1], _bins(learner, state, scores)
    weights = weights_by_round(learner, counts, dtype)
    atoms = bin_atoms(learner.support, size, dtype, learner.rounding)
    if levels.ndim == 1:
        walker, none = bin_walk(learner.prior, state.weights, atoms, levels), size
    else:  # a level of its own each round has far to walk
        walker, none = tree_walk(learner.prior, state.weights, atoms, levels), NO_PLACE
    rows = arrivals(jnp.where(real, bins, none).astype(bins.dtype), counts, weights, none, epoch)
    rows = rows._replace(mass=rows.mass.astype(state.weights.dtype))
    return follow(walker, rows, levels, scores, real, keep, *block_and_fade(counts, epoch, weights.discount))


@jax.jit
def after(
    learner: Any, state: BinnedScores, scores: Float[Array, " T"], real: Bool[Array, " T"], count: Int[Array, ""]
) -> BinnedScores:
    """Take in a stretch of scores at once."""
    old, bins = state.weights, _bins(learner, state, scores)
    if learner.discount is None:
        return BinnedScores(count, old.at[bins].add(real.astype(old.dtype)))
    discount = jnp.asarray(learner.discount, old.dtype)
    length = jnp.sum(real, dtype=jnp.int32)
    age = length - jnp.cumsum(real, dtype=jnp.int32)
    new = jnp.where(real, discount ** age.astype(old.dtype), 0)
    return BinnedScores(count, (old * discount ** length.astype(old.dtype)).at[bins].add(new))


def _bins(learner: Any, state: BinnedScores, scores: Any) -> Int[Array, "..."]:
    return bin_index(jnp.asarray(scores), learner.support, state.weights.shape[-1], learner.rounding)


def _place(learner: Any, begin: BinnedScores, fresh: bool, scores: Any, observed: Any) -> tuple[()]:
    """Return nothing: to find a score's bin again is cheaper than to remember it."""
    del learner, begin, fresh, scores, observed
    return ()


def _run(
    learner: Any,
    begin: BinnedScores,
    placed: tuple[()],
    counts: Array,
    scores: Array,
    levels: Array,
    keep: str,
    epoch: int | None,
    observed: Array | None,
) -> Any:
    real = jnp.ones(scores.shape, bool) if observed is None else observed
    return walk_bins(learner, begin, counts, scores, real, levels, keep, epoch)


def _finish(
    learner: Any, begin: BinnedScores, placed: tuple[()], count: Array, scores: Array, observed: Array | None
) -> BinnedScores:
    real = jnp.ones(scores.shape, bool) if observed is None else observed
    return after(learner, begin, scores, real, count)


def _stretches(
    learner: Any,
    begin: BinnedScores,
    placed: tuple[()],
    scores: np.ndarray,
    levels: Array,
    keep: str,
    observed: np.ndarray | None,
) -> Iterator[Stretch]:
    """Cut the rounds into stretches; the state between them needs the bins of the scores only."""
    state, seen = begin, begin.seen
    for rounds, padding in pieces(scores.size, levels.shape[-1], LONGEST):
        counts, own, real, asked = rounds_of(rounds, padding, seen, scores, levels, observed)
        run = partial(walk_bins, learner, state, counts, own, real, asked, keep, epoch_for(learner, scores.dtype))
        so_far = None if observed is None else observed[: rounds.stop]
        state = after(learner, state, own, real, seen + seen.dtype.type(brought(scores[: rounds.stop], so_far)))
        yield Stretch(rounds, run, state if rounds.stop == scores.size else None)


METHOD = Method(epoch_for, _place, _place, _run, _finish, _stretches)
