"""
A belief for each group of a tree: the posterior mean of a hierarchical Dirichlet process.

From top to bottom: the evidence, either every score or counts in bins; how the nodes on the way to a group make its
belief; how much a new score counts for each of them; and the learner.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from dpconformal.beliefs.belief import Belief, check_prior, check_valid_count
from dpconformal.beliefs.quantized import bin_atoms, bin_edges, bin_index, check_rounding
from dpconformal.beliefs.sorted_scores import FIRST_CAPACITY, SortedScores, check_sorted, empty, grow, take_in
from dpconformal.compositions.tree import as_groups, as_tree, nodes_of
from dpconformal.engine.states import advance
from dpconformal.learner import State, is_valid_score
from dpconformal.priors import Prior, Uniform
from dpconformal.pytree import register
from dpconformal.replay import Replay, Summary, replay
from dpconformal.schedules import Dirichlet, as_schedule, check_weights
from dpconformal.validation import (
    Numbers,
    Scalar,
    add_trailing_axes,
    as_floats,
    as_levels,
    as_score,
    check_int,
    check_not_batched,
    check_size,
    check_within,
    is_traced,
    raise_at,
)


class GroupedScores(NamedTuple):
    """Every score seen, and where it counts."""

    seen: Int[Array, "*B"]  # scores; -1 once a bad one, a group that is none, or a full buffer was met inside jit
    values: Float[Array, "*B C"]  # as in :class:`dpconformal.beliefs.sorted_scores.SortedScores`
    arrivals: Int[Array, "*B C"]  # (capacity,)
    groups: Int[Array, "*B C"]  # the node of each score, by arrival
    # how much of each score counts for its ancestor at each depth, by arrival: 1 where scores are all different
    shares: Float[Array, "*B C D"]
    totals: Float[Array, "*B N"]  # what counts for each node, in all

    def check(self, learner: Any) -> None:
        """Refuse what no replay leaves: a score counts 1 for its own node, and no more for those above."""
        self.scores.check(learner)
        paths, levels = nodes_of(learner.tree).paths, nodes_of(learner.tree).levels
        seen, groups, shares = np.asarray(self.seen), np.asarray(self.groups), np.asarray(self.shares)
        used = np.arange(groups.shape[-1]) < seen[..., None]
        raise_at("state.groups", groups, ~used & (groups != 0), "beyond state.seen stands 0")
        check_within("state.shares", shares, 0, 1)
        depth, own = np.arange(shares.shape[-1]), levels[groups][..., None]
        wrong = np.where(depth == own, shares != 1, (depth > own) & (shares != 0))
        why = "a score counts 1 for its own node and nothing below it"
        raise_at("state.shares", shares, np.where(used[..., None], wrong, shares != 0), why)
        sequences = np.arange(seen.size).reshape(*seen.shape, 1, 1)
        node = sequences * len(paths) + np.maximum(paths[groups], 0)  # of its own sequence
        added = np.bincount(node.ravel(), shares.ravel(), minlength=seen.size * len(paths))
        _check_totals(seen, self.totals, added.reshape(np.shape(self.totals)))

    @property
    def scores(self) -> SortedScores:
        """The scores alone."""
        return SortedScores(self.seen, self.values, self.arrivals)

    def with_room(self, rounds: int) -> "GroupedScores":
        """Return the same evidence with room for more rounds."""
        scores, axes = grow(self.scores, rounds), self.groups.ndim - 1
        more = scores.values.shape[-1] - self.values.shape[-1]
        groups = jnp.pad(self.groups, [(0, 0)] * axes + [(0, more)])
        return GroupedScores(*scores, groups, jnp.pad(self.shares, [(0, 0)] * axes + [(0, more), (0, 0)]), self.totals)


class GroupedCounts(NamedTuple):
    """Scores in bins, node by node."""

    seen: Int[Array, "*B"]  # how many scores; -1 once a bad one, or a group that is none, was met inside ``jit``
    counts: Float[Array, "*B N K"]  # what counts for each node: whole scores of its own, shares of those from below
    totals: Float[Array, "*B N"]  # their sums

    def check(self, learner: Any) -> None:
        """Refuse what no replay leaves."""
        counts = np.asarray(self.counts, float)
        most = add_trailing_axes(self.seen, counts) * 2.0
        check_within("state.counts", counts, 0, most, "so many scores leave no more")
        _check_totals(self.seen, self.totals, counts.sum(axis=-1))
        depth = nodes_of(learner.tree).paths.shape[1]
        held, seen = np.asarray(self.totals, float).sum(axis=-1), np.asarray(self.seen, float)
        why = "the number of scores must be that in state.totals"
        raise_at("state.seen", self.seen, (held < seen * (1 - 1e-3)) | (held > 2 * depth * seen), why)


def _check_totals(seen: Any, totals: Any, added: Any) -> None:
    """Refuse totals that are not the sums of what counts for each node, up to the rounding of so many additions."""
    totals = np.asarray(totals)
    slack = (1e-4 + add_trailing_axes(seen, totals) * float(np.finfo(totals.dtype).eps)) * added
    check_within("state.totals", totals, added - slack, added + slack, "it is the sum of what counts for the node")


GroupState = GroupedScores | GroupedCounts


class Path(NamedTuple):
    """The way from the root to a group, and what each node on it contributes to the group's belief."""

    nodes: Int[Array, " D"]  # 0 beyond the group
    active: Bool[Array, " D"]  # False beyond the group
    totals: Float[Array, " D"]  # what counts for each node, in all
    weights: Float[Array, " D"]  # λ of each node: how much of its belief is its parent's; 1 beyond the group
    prior: Float[Array, ""]  # the share of P0 in the group's belief
    units: Float[Array, " D"]  # the mass, in the group's belief, of what counts 1 for the node
    concentrations: Float[Array, " D"]  # the weight of a node's parent, in scores: λ/(1 - λ) times the node's total


def path_to(learner: "Hierarchical", totals: Float[Array, " N"], node: Int[Array, ""]) -> Path:
    """Unroll the recursion: a node's belief is λ times its parent's plus 1 - λ times the distribution of its scores."""
    nodes = nodes_of(learner.tree)
    way = jnp.asarray(nodes.paths, jnp.int32)[jnp.clip(node, 0, len(nodes.levels) - 1)]
    active, way = way >= 0, jnp.maximum(way, 0)
    totals = jnp.where(active, totals[way], 0)
    schedules = zip(learner.concentrations, totals, strict=True)
    weights = jnp.stack([schedule.weight(total + 1) for schedule, total in schedules])
    weights = jnp.where(active & (totals > 0), weights, 1)
    after = jnp.concatenate([jnp.cumprod(weights[::-1])[::-1], jnp.ones(1, weights.dtype)])
    some = jnp.where(totals > 0, totals, 1)
    units = after[1:] * (1 - weights) / some
    parts = jnp.where(weights < 1, 1 - weights, 1)
    return Path(way, active, totals, weights, after[0], units, weights * totals / parts)


def _new_counts(path: Path, held: Float[Array, " D"], base: Any) -> Float[Array, " D"]:
    """
    Compute how much of a new score counts for each node on its way up, of which ``held`` have been equal to it.

    In a hierarchical Dirichlet process a score that its node has seen before may be a draw from what the node has
    seen, and then its parent learns nothing from it; or a draw from the parent's belief, which has mass β there. With c
    equal scores before, and s = a·β, the chance of the latter is s/(s + c). For c scores with the same β these chances
    add up to s(ψ(s + c) - ψ(s)). ``base``: The mass of P0 there.
    """
    depth, level = held.shape[0], jnp.sum(path.active) - 1
    belief, chances = jnp.asarray(base, held.dtype), []
    for d in range(depth):
        strength = path.concentrations[d] * belief  # of the parent, at this score
        known = held[d] > 0
        chances.append(jnp.where(known, strength / jnp.where(known, strength + held[d], 1), 1))
        own = held[d] / jnp.where(path.totals[d] > 0, path.totals[d], 1)
        belief = path.weights[d] * belief + (1 - path.weights[d]) * own
    share, shares = jnp.zeros((), held.dtype), []
    for d in reversed(range(depth)):
        share = jnp.where(level == d, 1, share)
        shares.append(share)
        share = share * chances[d]
    return jnp.stack(shares[::-1])


def _is_node(learner: "Hierarchical", node: Int[Array, ""]) -> Bool[Array, ""]:
    return (node >= 0) & (node < len(nodes_of(learner.tree).levels))


def _counting(learner: "Hierarchical", state: GroupedScores, path: Path) -> Float[Array, "C D"]:
    """Return how much of each score counts for each node of a path."""
    ways = jnp.asarray(nodes_of(learner.tree).paths, jnp.int32)[state.groups]
    return jnp.where((ways == path.nodes[None]) & path.active[None], state.shares, 0)


@jax.jit
def _belief(learner: "Hierarchical", state: GroupState, node: Int[Array, ""]) -> Belief:
    """Mix what every node on the way has seen into the belief of a node; NaN for what is no node."""
    dtype, path = state.totals.dtype, path_to(learner, state.totals, node)
    prior = jnp.where((state.seen >= 0) & _is_node(learner, node), path.prior, jnp.nan)
    if isinstance(state, GroupedCounts):
        mass = path.units @ jnp.where(path.active[:, None], state.counts[path.nodes], 0)
        bins = state.counts.shape[-1]
        atoms, used = bin_atoms(learner.support, bins, dtype, learner.rounding), jnp.asarray(bins, jnp.int32)
    else:
        counts = _counting(learner, state, path) @ path.units
        mass = jnp.where(state.arrivals > 0, counts[jnp.maximum(state.arrivals - 1, 0)], 0)
        atoms, used = state.values, jnp.maximum(state.seen, 0)
    cumulative = jnp.concatenate([jnp.zeros(1, dtype), jnp.cumsum(mass)])
    return Belief(learner.prior, prior, atoms, cumulative, used)


@jax.jit
def _quantile(learner: "Hierarchical", state: GroupState, levels: Array, node: Int[Array, ""]) -> Array:
    return _belief(learner, state, node).quantile(levels)


@jax.jit
def _update_counts(
    learner: "Hierarchical", state: GroupedCounts, score: Float[Array, ""], node: Int[Array, ""]
) -> GroupedCounts:
    """Count a score in its bin, for its node and, as far as it is news, for those above."""
    dtype, bins = score.dtype, state.counts.shape[-1]
    valid = is_valid_score(score, learner.support) & _is_node(learner, node)
    known = jnp.where(valid, score, jnp.asarray(learner.support[0], dtype))
    here = bin_index(known, learner.support, bins, learner.rounding)
    ends = bin_edges(learner.support, bins, dtype)[jnp.stack([here, here + 1])]
    path = path_to(learner, state.totals, node)
    way, active = path.nodes, path.active
    held = jnp.where(active, state.counts[way, here], 0)
    added = jnp.where(active, _new_counts(path, held, jnp.diff(learner.prior.cdf(ends))[0]), 0)
    return GroupedCounts(
        advance(state.seen, valid), state.counts.at[way, here].add(added), state.totals.at[way].add(added)
    )


@jax.jit
def _insert(
    learner: "Hierarchical", state: GroupedScores, score: Float[Array, ""], node: Int[Array, ""]
) -> GroupedScores:
    """Keep a score, with how much of it counts for each node on its way."""
    path = path_to(learner, state.totals, node)
    equal = (
        jnp.zeros(state.groups.shape, bool)
        .at[jnp.maximum(state.arrivals - 1, 0)]
        .max((state.values == score) & (state.arrivals > 0))
    )
    held = jnp.sum(jnp.where(equal[:, None], _counting(learner, state, path), 0), axis=0)
    shares = _new_counts(path, held, 0)
    after = take_in(state.scores, score, learner.support)
    slot = jnp.arange(state.groups.shape[0], dtype=jnp.int32) == state.seen
    return GroupedScores(
        jnp.where(_is_node(learner, node), after.seen, -1),
        after.values,
        after.arrivals,
        jnp.where(slot, node, state.groups),
        jnp.where(slot[:, None], shares, state.shares),
        state.totals.at[path.nodes].add(jnp.where(path.active, shares, 0)),
    )


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

    def init(self, rounds: int | None = None, dtype: Any = None) -> GroupState:
        """Return the state before any score, with room for ``rounds`` of them."""
        check_not_batched(self)
        dtype, (nodes, depth) = dtype or jnp.result_type(float), nodes_of(self.tree).paths.shape
        rounds = None if rounds is None else check_int("rounds", rounds, 0)
        _check_rounds(self, 0, rounds or 0, dtype)
        totals = jnp.zeros(nodes, dtype)
        if self.bins is not None:
            return GroupedCounts(jnp.zeros((), jnp.int32), jnp.zeros((nodes, self.bins), dtype), totals)
        scores = empty(FIRST_CAPACITY if rounds is None else max(rounds, 1), dtype)
        capacity = scores.values.shape[-1]
        return GroupedScores(*scores, jnp.zeros(capacity, jnp.int32), jnp.zeros((capacity, depth), dtype), totals)

    def prepare(self, state: State, rounds: int) -> GroupState:
        """Make room for more rounds, also in a batch of states."""
        _check(self, state, batched=True)
        check_valid_count(state.seen)
        if not is_traced(state):
            _check_rounds(self, int(np.max(state.seen, initial=0)), rounds, state.totals.dtype)
        return state.with_room(rounds) if isinstance(state, GroupedScores) else state

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
        return _belief(self, state, self._one_node(context))

    def quantile(self, state: State, levels: Numbers, context: Any = None) -> Float[Array, "..."]:
        """Predict the threshold of each level, in a round of this group."""
        _check(self, state)
        return _quantile(self, state, as_levels(levels, state.totals.dtype), self._one_node(context))

    def cdf(self, state: State, x: Numbers, side: str = "right", context: Any = None) -> Float[Array, "..."]:
        """Probability that the next score of a group is at most x; with ``side="left"`` below x."""
        return self.belief(state, context).cdf(as_floats(x), side)

    def observe(self, state: State, score: Numbers, context: Any = None) -> GroupState:
        """Return the state after one more score, of this group."""
        _check(self, state)
        node, score = self._one_node(context), as_score(score, self.support).astype(state.totals.dtype)
        if isinstance(state, GroupedCounts):
            return _update_counts(self, state, score, node)
        if not is_traced(state.seen):
            state = state.with_room(1)
        return _insert(self, state, score, node)

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
        check_sorted(learner, state.scores, batched=batched)
    elif state.counts.shape[-1] != learner.bins:
        raise ValueError(f"state has {state.counts.shape[-1]} bins, and this Hierarchical has bins = {learner.bins}")
