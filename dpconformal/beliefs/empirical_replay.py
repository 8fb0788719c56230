"""Replays of empirical distributions without a scan over a growing store."""

from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Bool, Float, Int

from dpconformal.beliefs.exact_replay import finish, masses_before, place, place_on_host, tree_stretches
from dpconformal.beliefs.sorted_scores import SortedScores
from dpconformal.offline.arrivals import arrivals, block_and_fade, epoch_for
from dpconformal.offline.driver import Method, Stretch
from dpconformal.offline.exact_tree import NO_PLACE
from dpconformal.offline.order_tree import OrderRows, order_walk
from dpconformal.offline.ranking import Ranked
from dpconformal.offline.rounds import brought, follow


@jax.jit(static_argnames=("keep", "epoch"))
def walk_order(
    learner: Any,
    ranked: Ranked,
    counts: Int[Array, " T"],
    scores: Float[Array, " T"],
    real: Bool[Array, " T"],
    levels: Float[Array, "..."],
    keep: str,
    epoch: int | None,
) -> Any:
    """Replay a stretch of rounds of an empirical distribution."""
    dtype = ranked.values.dtype
    weights = learner.weights(counts, dtype)
    masses = masses_before(ranked, counts[0], weights.discount)
    walker = order_walk(learner, masses, ranked.values, levels)
    index = jnp.arange(masses.shape[0], dtype=jnp.int32)
    before = jnp.max(jnp.where(masses > 0, index, 0), initial=0)
    known = jnp.where(ranked.places < masses.shape[0], ranked.places, 0)  # rounds without a score have no place
    last = lax.cummax(jnp.concatenate([before[None], known[:-1]]))
    rows = OrderRows(arrivals(ranked.places, counts, weights, NO_PLACE, epoch), last)
    return follow(walker, rows, levels, scores, real, keep, *block_and_fade(counts, epoch, weights.discount))


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
    del begin
    real = jnp.ones(scores.shape, bool) if observed is None else observed
    return walk_order(learner, ranked, counts, scores, real, levels, keep, epoch)


def _stretches(
    learner: Any,
    begin: SortedScores,
    ranked: Ranked,
    scores: np.ndarray,
    levels: Array,
    keep: str,
    observed: np.ndarray | None,
) -> Iterator[Stretch]:
    count: Any = np.int32(int(begin.seen) + brought(scores, observed))
    end = SortedScores(count, ranked.values, ranked.arrivals)
    for rounds, run in tree_stretches(walk_order, learner, begin, ranked, scores, levels, keep, observed):
        yield Stretch(rounds, run, end if rounds.stop == scores.size else None)


METHOD = Method(epoch_for, place, place_on_host, _run, finish, _stretches)
