"""What a hierarchical belief computes: the belief of a node from all above it, and where a score counts."""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array

from dpconformal.beliefs.belief import Belief
from dpconformal.beliefs.bins import bin_atoms, bin_edges, bin_index
from dpconformal.beliefs.sorted_scores import take_in
from dpconformal.counting import advance
from dpconformal.groups.evidence import GroupedCounts, GroupedScores, Path, path_of, shares_of
from dpconformal.groups.tree import nodes_of
from dpconformal.learner import usable


def path_to(learner: Any, totals: Array, node: Array) -> tuple[Path, Array, Array, Array]:
    """
    Follow the way from the root to a node.

    Returns: Weights on the way; its nodes, which of them are there, and their totals, all of shape (depth,).
    """
    nodes = nodes_of(learner.tree)
    known = jnp.clip(node, 0, len(nodes.levels) - 1)
    way = jnp.asarray(nodes.paths, jnp.int32)[known]
    active, way = way >= 0, jnp.maximum(way, 0)
    held = jnp.where(active, totals[way], 0)
    return path_of(learner.concentrations, held, active), way, active, held


def _is_node(learner: Any, node: Array) -> Array:
    return (node >= 0) & (node < len(nodes_of(learner.tree).levels))


@jax.jit
def belief_of(learner: Any, state: GroupedScores | GroupedCounts, node: Array) -> Belief:
    """Mix what every node on the way has seen into the belief of a node; NaN for what is no node."""
    dtype = state.totals.dtype
    path, way, active, _ = path_to(learner, state.totals, node)
    fine = (state.seen >= 0) & _is_node(learner, node)
    prior = jnp.where(fine, path.prior, jnp.nan)
    if isinstance(state, GroupedCounts):
        mass = path.units @ jnp.where(active[:, None], state.counts[way], 0)
        bins = state.counts.shape[-1]
        atoms, used = bin_atoms(learner.support, bins, dtype, learner.rounding), jnp.asarray(bins, jnp.int32)
    else:
        ways = jnp.asarray(nodes_of(learner.tree).paths, jnp.int32)[state.groups]
        counts = jnp.where((ways == way[None]) & active[None], state.shares, 0) @ path.units
        used = jnp.maximum(state.seen, 0)
        mass = jnp.where(state.arrivals > 0, counts[jnp.maximum(state.arrivals - 1, 0)], 0)
        atoms = state.values
    cumulative = jnp.concatenate([jnp.zeros(1, dtype), jnp.cumsum(mass)])
    return Belief(learner.prior, prior, atoms, cumulative, used)


@jax.jit
def quantile_of(learner: Any, state: GroupedScores | GroupedCounts, levels: Array, node: Array) -> Array:
    """Find the thresholds of a node."""
    return belief_of(learner, state, node).quantile(levels)


@jax.jit
def counted(learner: Any, state: GroupedCounts, score: Array, node: Array) -> GroupedCounts:
    """Count a score in its bin, for its node and, as far as it is news, for those above."""
    dtype, bins = score.dtype, state.counts.shape[-1]
    fine = usable(score, learner.support) & _is_node(learner, node)
    known = jnp.where(fine, score, jnp.asarray(learner.support[0], dtype))
    here = bin_index(known, learner.support, bins, learner.rounding)
    ends = bin_edges(learner.support, bins, dtype)[jnp.stack([here, here + 1])]
    base = jnp.diff(learner.prior.cdf(ends))[0]
    path, way, active, totals = path_to(learner, state.totals, node)
    held = jnp.where(active, state.counts[way, here], 0)
    shares = shares_of(path, held, totals, jnp.sum(active) - 1, base)
    added = jnp.where(active, shares, 0)
    return GroupedCounts(
        advance(state.seen, fine), state.counts.at[way, here].add(added), state.totals.at[way].add(added)
    )


@jax.jit
def inserted(learner: Any, state: GroupedScores, score: Array, node: Array) -> GroupedScores:
    """Keep a score, with how much of it counts for each node on its way."""
    path, way, active, totals = path_to(learner, state.totals, node)
    ways = jnp.asarray(nodes_of(learner.tree).paths, jnp.int32)[state.groups]
    equal = (
        jnp.zeros(state.groups.shape, bool)
        .at[jnp.maximum(state.arrivals - 1, 0)]
        .max((state.values == score) & (state.arrivals > 0))
    )
    held = jnp.sum(jnp.where((ways == way[None]) & active[None] & equal[:, None], state.shares, 0), axis=0)
    shares = shares_of(path, held, totals, jnp.sum(active) - 1, 0)
    after = take_in(state.scores, score, learner.support)
    seen = jnp.where(_is_node(learner, node), after.seen, -1)
    slot = jnp.arange(state.groups.shape[0], dtype=jnp.int32) == state.seen
    return GroupedScores(
        seen,
        after.values,
        after.arrivals,
        jnp.where(slot, node, state.groups),
        jnp.where(slot[:, None], shares, state.shares),
        state.totals.at[way].add(jnp.where(active, shares, 0)),
    )
