"""
The paper's Algorithm 1: the exact belief, plain or discounted, and its native kernel.

At fixed levels the undiscounted belief walks a linked list of the ranked scores: each level's place moves little from
round to round. With a discount, or with levels that change by round, it descends a Fenwick tree.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from dpconformal.beliefs.belief import (
    Belief,
    DirichletLearner,
    check_rounds,
    closes_over_traced,
    walk_of_pits,
    weights_by_round,
    weights_of,
)
from dpconformal.beliefs.sorted_scores import (
    Ranked,
    SortedLearner,
    SortedScores,
    masses_before,
    rank_scores,
    ranking_kernel,
    state_at_end,
)
from dpconformal.engine.kernel import NativeKernel, Segment, pad, padded_segments, run_kernel, take_segment
from dpconformal.engine.pointer_loop import NO_PLACE, arrivals_by_round, block_and_decays, run_blocks
from dpconformal.engine.walks import Insertion, LinkedList, linked, null_node, tree_walk, unlink, walk_list
from dpconformal.priors import Prior, Uniform
from dpconformal.pytree import register
from dpconformal.rounds import Rounds
from dpconformal.validation import Scalar, check_int


@register(static=("capacity",))
@dataclass(frozen=True)
class Exact(SortedLearner, DirichletLearner):
    """
    Belief P_t = λ_t P0 + (1 - λ_t) · empirical distribution of the past scores.

    The posterior mean of a Dirichlet process, and a non-linearised Follow-the-Regularised-Leader for
    every level at once. Thresholds never cross.

    With λ_t = 1/√t and a uniform prior on [0, R], regret is O(R√T) for every level on any sequence;
    if the scores are iid, coverage is right up to O(1/√t).

    Parameters
    ----------
    prior : Prior
        P0. Its support must hold every score.
    schedule : Schedule or callable, optional
        λ_t. By default 1/√t, or with a discount the matching ``schedules.discounted(discount)``.
    discount : float, optional
        β in (0, 1): a score k rounds old counts β^k. The memory is about 1/(1 - β) rounds.
    capacity : int, optional
        Scores that a fresh state has room for. It grows by doubling as needed outside ``jit``, and
        :func:`dpconformal.replay` makes room for its rounds. Inside your own ``jit`` or ``vmap`` a full state
        turns to NaN: give a capacity, or make room with ``learner.prepare(state, rounds)``.

    Examples
    --------
    >>> belief = Exact()
    >>> state = belief.observe(belief.init(), 0.3)
    >>> belief.quantile(state, [0.1, 0.5, 0.9]).round(3)
    Array([0.141, 0.3  , 0.859], dtype=float...)
    """

    prior: Prior = Uniform()
    schedule: Any = None
    discount: Scalar | None = None
    capacity: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.capacity is not None:
            object.__setattr__(self, "capacity", check_int("Exact.capacity", self.capacity, 1))

    def _check_hyperparameters(self, seen: Any, rounds: int, dtype: Any) -> None:
        """Check the prior, the schedule and the discount on the rounds to come."""
        check_rounds(self, seen, rounds, dtype)

    def kernel(self, begin: SortedScores, fresh: bool, rounds: Rounds, keep: str) -> tuple[Any, SortedScores] | None:
        """Replay in native loops; None for a schedule whose function closes over a traced value."""
        return None if closes_over_traced(self.schedule) else run_kernel(EXACT, self, begin, fresh, rounds, keep)

    def _dtype(self, state: SortedScores) -> Any:
        return state.values.dtype

    def _mix(self, state: SortedScores, dtype: Any) -> Belief:
        capacity = state.values.shape[-1]
        weights = weights_of(self, state.seen, dtype)
        used = jnp.maximum(state.seen, 0)
        if weights.discount is None:
            cumulative = weights.atom * jnp.arange(capacity + 1, dtype=dtype)
        else:
            age = (used - state.arrivals).astype(dtype)
            mass = jnp.where(jnp.arange(capacity, dtype=used.dtype) < used, weights.atom * weights.discount**age, 0)
            cumulative = jnp.concatenate([jnp.zeros(1, dtype), jnp.cumsum(mass)])
        return Belief(self.prior, weights.prior, state.values, cumulative, used)


@jax.jit(static_argnames=("keep", "epoch"))
def _run_tree(
    learner: Exact, ranked: Ranked, counts: Int[Array, " T"], rounds: Rounds, keep: str, epoch: int | None
) -> Any:
    weights = weights_by_round(learner, counts, ranked.values.dtype)
    masses = masses_before(ranked, counts[0], weights.discount)
    rows = arrivals_by_round(ranked.places, counts, weights, NO_PLACE, epoch)
    blocks = block_and_decays(counts, epoch, weights.discount)
    if keep == "pits":
        walk, told = walk_of_pits(learner.prior, masses, ranked.values, rounds, rows)
        return run_blocks(walk, told, rounds, "all", *blocks)
    walk = tree_walk(learner.prior, masses, ranked.values, rounds.levels)
    return run_blocks(walk, rows, rounds, keep, *blocks)


@jax.jit(static_argnames="keep")
def _run_list(
    learner: Exact,
    nodes: LinkedList,
    insertions: Insertion,
    values: Float[Array, " C"],
    counts: Int[Array, " T"],
    rounds: Rounds,
    keep: str,
) -> Any:
    weights = weights_by_round(learner, counts, values.dtype)
    nothing = jnp.full(1, null_node(values.shape[0]), jnp.int32)
    came = jax.tree.map(lambda column: jnp.concatenate([nothing, column[:-1]]), insertions)
    walk = walk_list(learner.prior, nodes, values, rounds.levels)
    return run_blocks(walk, (came, weights.prior, weights.atom), rounds, keep)


TREE = ranking_kernel(_run_tree)


def _needs_tree(learner: Exact, rounds: Rounds, keep: str) -> bool:
    return learner.discount is not None or rounds.levels.ndim == 2 or keep == "pits"


def _run(
    learner: Exact, begin: SortedScores, ranked: Ranked, counts: Array, rounds: Rounds, keep: str, epoch: int | None
) -> tuple[Any, SortedScores]:
    if _needs_tree(learner, rounds, keep):
        return TREE.run(learner, begin, ranked, counts, rounds, keep, epoch)
    size = ranked.values.shape[0]
    nodes = linked(size, jnp.maximum(begin.seen, 0) + jnp.sum(rounds.observed, dtype=jnp.int32))
    nodes, insertions = unlink(nodes, jnp.minimum(ranked.places, null_node(size)))
    end = SortedScores(counts[-1], ranked.values, ranked.arrivals)
    return _run_list(learner, nodes, insertions, ranked.values, counts[:-1], rounds, keep), end


_linked = jax.jit(linked, static_argnums=0)


def _segments(learner: Exact, begin: SortedScores, ranked: Ranked, rounds: Rounds, keep: str) -> Iterator[Segment]:
    """Cut the rounds into a segment per core, the last one first: scores are taken out of the list from its end."""
    if _needs_tree(learner, rounds, keep):
        yield from TREE.segments(learner, begin, ranked, rounds, keep)
        return
    end, size = state_at_end(begin, ranked, rounds), ranked.values.size
    nodes, null = _linked(size, end.seen), null_node(size)
    places = np.minimum(ranked.places, np.int32(null))
    for piece in reversed(padded_segments(rounds.length, rounds.levels.shape[-1])):
        nodes, insertions = unlink(nodes, pad(places[piece.rounds], piece.padding, null))
        counts, own = take_segment(rounds, piece, begin.seen)
        run = partial(_run_list, learner, nodes, insertions, ranked.values, counts, own, keep)
        yield Segment(piece.rounds, run, end if piece.rounds.stop == rounds.length else None)


EXACT = NativeKernel(rank_scores, _run, _segments)
