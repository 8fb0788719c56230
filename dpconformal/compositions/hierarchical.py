"""A belief for each group of a tree: the posterior mean of a hierarchical Dirichlet process."""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from dpconformal.beliefs.belief import Belief, check_prior, check_valid_count
from dpconformal.beliefs.quantized import bin_atoms, bin_edges, bin_index, check_rounding
from dpconformal.beliefs.sorted_scores import FIRST_CAPACITY, check_sorted, empty, grow, take_in
from dpconformal.compositions.tree import (
    GroupedCounts,
    GroupedScores,
    Path,
    as_groups,
    as_tree,
    empty_counts,
    empty_scores,
    nodes_of,
    path_of,
    shares_of,
    with_room,
)
from dpconformal.engine.states import advance
from dpconformal.learner import is_valid_score
from dpconformal.priors import Prior, Uniform
from dpconformal.pytree import register
from dpconformal.replay import Replay, Summary, replay
from dpconformal.schedules import Dirichlet, as_schedule, check_weights
from dpconformal.validation import (
    Numbers,
    Scalar,
    as_floats,
    as_levels,
    as_score,
    check_int,
    check_not_batched,
    check_size,
    is_traced,
    raise_at,
)


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
    valid = (state.seen >= 0) & _is_node(learner, node)
    prior = jnp.where(valid, path.prior, jnp.nan)
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
def update_counts(learner: Any, state: GroupedCounts, score: Array, node: Array) -> GroupedCounts:
    """Count a score in its bin, for its node and, as far as it is news, for those above."""
    dtype, bins = score.dtype, state.counts.shape[-1]
    valid = is_valid_score(score, learner.support) & _is_node(learner, node)
    known = jnp.where(valid, score, jnp.asarray(learner.support[0], dtype))
    here = bin_index(known, learner.support, bins, learner.rounding)
    ends = bin_edges(learner.support, bins, dtype)[jnp.stack([here, here + 1])]
    base = jnp.diff(learner.prior.cdf(ends))[0]
    path, way, active, totals = path_to(learner, state.totals, node)
    held = jnp.where(active, state.counts[way, here], 0)
    shares = shares_of(path, held, totals, jnp.sum(active) - 1, base)
    added = jnp.where(active, shares, 0)
    return GroupedCounts(
        advance(state.seen, valid), state.counts.at[way, here].add(added), state.totals.at[way].add(added)
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


State = GroupedScores | GroupedCounts


@register(static=("tree", "bins", "rounding"))
@dataclass(frozen=True)
class Hierarchical:
    """
    A belief for each group of a tree: λ_g · (its parent's belief) + (1 - λ_g) · (the distribution of its own scores).

    To any depth: all, region, store. A group that was never seen has its parent's belief, and a small one leans on it.
    At the top stands the prior. With fixed concentrations, and scores that are all different, this is the
    posterior mean of a hierarchical Dirichlet process. Where scores are equal, or share a bin, the parent is told of
    each with the probability that it is news to it, the expected number of "tables". Thresholds of a group
    never cross.

    Guarantees, for each group without groups below it: if its n scores and the next are exchangeable, the
    coverage probability lies in the bracket of :func:`dpconformal.theory.coverage_bracket` with n and the group's own
    concentration, whatever the other groups are like (ties and bins may raise it above the bracket; neither ties nor
    bins that round up lower it); and the regret is bounded on any sequence, see
    :func:`dpconformal.theory.group_regret_bound`.

    Parameters
    ----------
    tree : int, sequence or mapping
        The groups: how many, all of one family; or the parent of each, -1 for those at the top; or a nested mapping of
        names, such as ``{"north": ["a", "b"], "south": ["c"]}``. Above several at the top stands a root for all. A
        single one at the top is the root.
    prior : Prior
        P0. Its support must hold every score.
    concentrations : number, Schedule or sequence of them
        How much a parent's belief weighs against the scores of a group, in scores: λ = a/(a + n). Or λ itself as a
        schedule, a function of the group's n + 1. One for all, or one for each depth, the root first.
    bins : int, optional
        Bins of equal width over the support, so that memory does not grow: one row of counts a group. None: every score
        is kept.
    rounding : {"up", "nearest"}
        Where the scores of a bin count, as for :class:`dpconformal.Quantized`. Without bins it means nothing.

    See Also
    --------
    dpconformal.MVP : Coverage within groups that may overlap; thresholds of different levels may cross.

    References
    ----------
    Teh, Jordan, Beal and Blei (2006), Hierarchical Dirichlet processes.

    Examples
    --------
    Each round tells its group, by index or by name:

    >>> import dpconformal as dpc
    >>> belief = Hierarchical({"north": ["a", "b"], "south": ["c"]}, concentrations=2.0)
    >>> run = dpc.replay(belief, [0.2, 0.4, 0.9], levels=[0.5], context=["a", "a", "c"])
    >>> [round(float(belief.quantile(run.state, 0.5, context=group)), 3) for group in ("a", "b", "c")]
    [0.4, 0.4, 0.9]
    """

    tree: Any
    prior: Prior = Uniform()
    concentrations: Any = 5.0
    bins: int | None = None
    rounding: str = "up"

    def __post_init__(self) -> None:
        object.__setattr__(self, "tree", as_tree(self.tree))
        check_rounding("Hierarchical.rounding", self.rounding)
        check_prior("Hierarchical", self.prior)
        object.__setattr__(self, "concentrations", _schedules(self.concentrations, nodes_of(self.tree).paths.shape[1]))
        if self.bins is not None:
            object.__setattr__(self, "bins", check_size("Hierarchical.bins", self.bins, 1))
            if not is_traced(self.support) and not np.all(np.isfinite(self.support)):
                raise ValueError(f"Hierarchical.prior has support {self.support}: equal bins need a bounded one")

    @property
    def support(self) -> tuple[Scalar, Scalar]:
        """Ends of the interval that holds every score."""
        return self.prior.support

    def init(self, rounds: int | None = None, dtype: Any = None) -> State:
        """Return the state before any score, with room for ``rounds`` of them."""
        check_not_batched(self)
        dtype, (nodes, depth) = dtype or jnp.result_type(float), nodes_of(self.tree).paths.shape
        rounds = None if rounds is None else check_int("rounds", rounds, 0)
        _check_rounds(self, 0, rounds or 0, dtype)
        if self.bins is not None:
            return empty_counts(nodes, self.bins, dtype)
        return empty_scores(empty(FIRST_CAPACITY if rounds is None else max(rounds, 1), dtype), nodes, depth)

    def prepare(self, state: State, rounds: int) -> State:
        """Make room for more rounds, also in a batch of states."""
        _check(self, state, batched=True)
        check_valid_count(state.seen)
        if not is_traced(state):
            _check_rounds(self, int(np.max(state.seen, initial=0)), rounds, state.totals.dtype)
        return with_room(state, grow(state.scores, rounds)) if isinstance(state, GroupedScores) else state

    def as_context(self, context: Any, shape: tuple[int, ...]) -> Any:
        """Check the groups of a replay: an index or a name a round, shape (T,) or (..., T)."""
        if context is None:
            raise ValueError("context is missing: pass the group of each round, replay(..., context=groups)")
        groups = context if is_traced(context) else jnp.asarray(as_groups(self.tree, context))
        if groups.shape not in (shape, shape[-1:]):
            raise ValueError(f"context has shape {groups.shape}: pass a group a round, {shape}")
        return jnp.broadcast_to(groups, shape)

    def belief(self, state: State, context: Any = None) -> Belief:
        """Return the distribution of the next score of a group; without one, that of the root."""
        _check(self, state)
        return belief_of(self, state, self._one_node(context))

    def quantile(self, state: State, levels: Numbers, context: Any = None) -> Float[Array, "..."]:
        """Predict the threshold of each level, in a round of this group."""
        _check(self, state)
        return quantile_of(self, state, as_levels(levels, state.totals.dtype), self._one_node(context))

    def cdf(self, state: State, x: Numbers, side: str = "right", context: Any = None) -> Float[Array, "..."]:
        """Probability that the next score of a group is at most x; with ``side="left"`` below x."""
        return self.belief(state, context).cdf(as_floats(x), side)

    def observe(self, state: State, score: Numbers, context: Any = None) -> State:
        """Return the state after one more score, of this group."""
        _check(self, state)
        node, score = self._one_node(context), as_score(score, self.support).astype(state.totals.dtype)
        if isinstance(state, GroupedCounts):
            return update_counts(self, state, score, node)
        if not is_traced(state.seen):
            state = with_room(state, grow(state.scores, 1))
        return inserted(self, state, score, node)

    def replay(
        self, scores: Numbers, levels: Numbers, state: State | None = None, keep: str = "all", context: Any = None
    ) -> Replay | Summary:
        """Run over recorded scores: :func:`dpconformal.replay`."""
        return replay(self, scores, levels, state, keep, context=context)

    def node(self, context: Any) -> Array:
        """Return the node of a group, or of many; -2 for what is none, inside ``jit``."""
        nodes = nodes_of(self.tree)
        if context is None:
            return jnp.asarray(nodes.root, jnp.int32)
        if not is_traced(context):
            groups = jnp.asarray(as_groups(self.tree, context))
        elif jnp.issubdtype(context.dtype, jnp.integer):
            groups = jnp.where((context >= -1) & (context < nodes.groups), context, -2).astype(jnp.int32)
        else:
            raise ValueError(f"context has dtype {context.dtype}: pass indices of groups, whole numbers")
        return jnp.where(groups == -1, nodes.root, groups)

    def _one_node(self, context: Any) -> Array:
        node = self.node(context)
        if node.ndim:
            raise ValueError(f"context has shape {node.shape}: pass one group; use replay for many rounds, or jax.vmap")
        return node


def _schedules(given: Any, depth: int) -> tuple[Any, ...]:
    """Make a schedule for each depth out of what the user gave."""
    several = isinstance(given, (tuple, list, np.ndarray)) or (isinstance(given, jax.Array) and given.ndim == 1)
    parts = list(given) if several else [given] * depth
    if len(parts) != depth:
        raise ValueError(
            f"Hierarchical.concentrations has {len(parts)} entries: pass one for all, or one for each of the {depth} "
            "depths of the tree, the root first"
        )
    return tuple(as_schedule(part) if hasattr(part, "weight") or callable(part) else Dirichlet(part) for part in parts)


def _check_rounds(learner: Hierarchical, seen: int, rounds: int, dtype: Any) -> None:
    """Check schedules on the rounds to come, and that totals can be counted in this precision."""
    if is_traced(learner):
        return
    for schedule in learner.concentrations:
        check_weights(schedule, seen + 1, seen + rounds)
    most = 2 ** (jnp.finfo(dtype).nmant + 1)
    if seen + rounds > most:
        raise ValueError(
            f"Hierarchical counts up to {most} scores in {np.dtype(dtype)}, and this makes {seen + rounds}: enable "
            "64-bit JAX (jax_enable_x64)"
        )


def _check(learner: Hierarchical, state: Any, batched: bool = False) -> None:
    check_not_batched(learner)
    wanted = GroupedScores if learner.bins is None else GroupedCounts
    if not isinstance(state, wanted):
        raise ValueError(
            f"state is a {type(state).__name__}: this Hierarchical carries on from a {wanted.__name__}, as in run.state"
        )
    if np.ndim(state.seen) and not batched:
        raise ValueError(
            f"state is a batch of shape {np.shape(state.seen)}: use jax.vmap, after learner.prepare(state, rounds) "
            "where scores are to be observed"
        )
    nodes, depth = nodes_of(learner.tree).paths.shape
    own = (state.totals.shape[-1], state.shares.shape[-1] if isinstance(state, GroupedScores) else depth)
    if own != (nodes, depth):
        raise ValueError(
            f"state is of a tree with {own[0]} nodes and a depth of {own[1]}, and this one has {nodes} and {depth}"
        )
    if is_traced(state):
        return
    totals = np.asarray(state.totals)
    raise_at("state.totals", totals, ~(np.isfinite(totals) & (totals >= 0)), "nothing counts so; carry on elsewhere")
    if isinstance(state, GroupedScores):
        groups = np.asarray(state.groups)
        raise_at("state.groups", groups, (groups < 0) | (groups >= nodes), f"this tree has {nodes} nodes")
    if isinstance(state, GroupedCounts) and state.counts.shape[-1] != learner.bins:
        raise ValueError(f"state has {state.counts.shape[-1]} bins, and this Hierarchical has bins = {learner.bins}")
    if isinstance(state, GroupedScores):
        check_sorted(learner, state.scores, batched=batched)
