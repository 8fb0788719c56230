"""The evidence of a hierarchical belief: scores with their groups, and how much of each counts higher up."""

from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from dpconformal.beliefs.sorted_scores import SortedScores
from dpconformal.groups.tree import nodes_of
from dpconformal.validation import beside, check_within, complain_at


class GroupedScores(NamedTuple):
    """Every score seen, and where it counts."""

    # how many scores; -1 once a bad one, a group that is none, or a full buffer was met inside ``jit``
    seen: Int[Array, "*B"]
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
        complain_at("state.groups", groups, ~used & (groups != 0), "beyond state.seen stands 0")
        check_within("state.shares", shares, 0, 1)
        depth, own = np.arange(shares.shape[-1]), levels[groups][..., None]
        wrong = np.where(depth == own, shares != 1, (depth > own) & (shares != 0))
        why = "a score counts 1 for its own node and nothing below it"
        complain_at("state.shares", shares, np.where(used[..., None], wrong, shares != 0), why)
        sequences = np.arange(seen.size).reshape(*seen.shape, 1, 1)
        node = sequences * len(paths) + np.maximum(paths[groups], 0)  # of its own sequence
        added = np.bincount(node.ravel(), shares.ravel(), minlength=seen.size * len(paths))
        check_totals(seen, self.totals, added.reshape(np.shape(self.totals)))

    @property
    def scores(self) -> SortedScores:
        """The scores alone."""
        return SortedScores(self.seen, self.values, self.arrivals)


class GroupedCounts(NamedTuple):
    """Scores in bins, node by node."""

    seen: Int[Array, "*B"]  # how many scores; -1 once a bad one, or a group that is none, was met inside ``jit``
    counts: Float[Array, "*B N K"]  # what counts for each node: whole scores of its own, shares of those from below
    totals: Float[Array, "*B N"]  # their sums

    def check(self, learner: Any) -> None:
        """Refuse what no replay leaves."""
        counts = np.asarray(self.counts, float)
        most = beside(self.seen, counts) * 2.0
        check_within("state.counts", counts, 0, most, "so many scores leave no more")
        check_totals(self.seen, self.totals, counts.sum(axis=-1))
        depth = nodes_of(learner.tree).paths.shape[1]
        held, seen = np.asarray(self.totals, float).sum(axis=-1), np.asarray(self.seen, float)
        why = "the number of scores must be that in state.totals"
        complain_at("state.seen", self.seen, (held < seen * (1 - 1e-3)) | (held > 2 * depth * seen), why)


def check_totals(seen: Any, totals: Any, added: Any) -> None:
    """Refuse totals that are not the sums of what counts for each node, up to the rounding of so many additions."""
    totals = np.asarray(totals)
    slack = (1e-4 + beside(seen, totals) * float(np.finfo(totals.dtype).eps)) * added
    check_within("state.totals", totals, added - slack, added + slack, "it is the sum of what counts for the node")


def with_room(state: GroupedScores, scores: SortedScores) -> GroupedScores:
    """Give evidence the room of its scores, which have grown."""
    more = scores.values.shape[-1] - state.values.shape[-1]
    axes = state.groups.ndim - 1
    groups = jnp.pad(state.groups, [(0, 0)] * axes + [(0, more)])
    shares = jnp.pad(state.shares, [(0, 0)] * axes + [(0, more), (0, 0)])
    return GroupedScores(*scores, groups, shares, state.totals)


class Path(NamedTuple):
    """
    What each node on the way from the root to a group contributes to the group's belief.

    Attributes
    ----------
    weights : Array, shape (depth,)
        λ of each node: how much of its belief is its parent's; 1 beyond the group.
    prior : Array, shape ()
        Share of P0 in the group's belief.
    units : Array, shape (depth,)
        Mass, in the group's belief, of what counts 1 for the node.
    concentrations : Array, shape (depth,)
        The weight of a node's parent, in scores: λ/(1 - λ) times the node's total.
    """

    weights: Float[Array, " D"]  # (depth,)
    prior: Float[Array, ""]  # ()
    units: Float[Array, " D"]  # (depth,)
    concentrations: Float[Array, " D"]  # (depth,)


def path_of(schedules: Any, totals: Float[Array, " D"], active: Array) -> Path:
    """Unroll the recursion: a node's belief is λ times its parent's plus 1 - λ times the distribution of its scores."""
    weights = jnp.stack([schedule.weight(total + 1) for schedule, total in zip(schedules, totals, strict=True)])
    weights = jnp.where(active & (totals > 0), weights, 1)
    after = jnp.concatenate([jnp.cumprod(weights[::-1])[::-1], jnp.ones(1, weights.dtype)])
    some = jnp.where(totals > 0, totals, 1)
    units = after[1:] * (1 - weights) / some
    parts = jnp.where(weights < 1, 1 - weights, 1)
    return Path(weights, after[0], units, weights * totals / parts)


def shares_of(
    path: Path, held: Float[Array, " D"], totals: Float[Array, " D"], level: Array, base: Any
) -> Float[Array, " D"]:
    """
    Tell how much of a new score counts for each node on its way up.

    In a hierarchical Dirichlet process a score that its node has seen before may be a draw from what the node has
    seen, and then its parent learns nothing from it; or a draw from the parent's belief, which has mass β there. With c
    equal scores before, and s = a·β, the chance of the latter is s/(s + c). For c scores with the same β these chances
    add up to s(ψ(s + c) - ψ(s)).
    """
    depth = held.shape[0]
    belief, chances = jnp.asarray(base, held.dtype), []
    for d in range(depth):
        strength = path.concentrations[d] * belief  # of the parent, at this score
        known = held[d] > 0
        chances.append(jnp.where(known, strength / jnp.where(known, strength + held[d], 1), 1))
        own = held[d] / jnp.where(totals[d] > 0, totals[d], 1)
        belief = path.weights[d] * belief + (1 - path.weights[d]) * own
    share, shares = jnp.zeros((), held.dtype), []
    for d in reversed(range(depth)):
        share = jnp.where(level == d, 1, share)
        shares.append(share)
        share = share * chances[d]
    return jnp.stack(shares[::-1])


def empty_counts(nodes: int, bins: int, dtype: Any) -> GroupedCounts:
    """Return counts before any score."""
    return GroupedCounts(jnp.zeros((), jnp.int32), jnp.zeros((nodes, bins), dtype), jnp.zeros(nodes, dtype))


def empty_scores(scores: SortedScores, nodes: int, depth: int) -> GroupedScores:
    """Return evidence before any score, with the room of an empty store."""
    capacity, dtype = scores.values.shape[-1], scores.values.dtype
    groups, shares = jnp.zeros(capacity, jnp.int32), jnp.zeros((capacity, depth), dtype)
    return GroupedScores(*scores, groups, shares, jnp.zeros(nodes, dtype))
