"""The tree of groups, and the scores seen with their groups."""

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from dpconformal.beliefs.sorted_scores import SortedScores
from dpconformal.validation import add_trailing_axes, check_within, raise_at

# Either the parent of each group, or its name and its parent; -1 for those at the top.
Tree = tuple[Any, ...]


class Nodes(NamedTuple):
    """A tree, ready for use."""

    paths: np.ndarray  # (nodes, depth), the nodes from the root to each node, both included; then -1
    levels: np.ndarray  # (nodes,), how many steps each node is away from the root
    root: int  # the root: a group if there is one at the top alone; otherwise the node after the last group
    groups: int  # how many groups there are
    names: tuple[str, ...]  # of the groups; empty if they have none


def as_tree(tree: Any) -> Tree:
    """
    Read a tree of groups.

    ``tree``: How many groups there are, all of one family; or the parent of each group, -1 for none; or a nested
    mapping of names, whose innermost values are lists of names (or a name, or None for a group without any); or pairs
    of a name and the index of a parent.
    """
    if isinstance(tree, (int, np.integer)) and not isinstance(tree, bool):
        if tree < 1:
            raise ValueError(f"tree = {tree}: there must be one group at least")
        return (-1,) * int(tree)
    if isinstance(tree, Mapping):
        pairs: list[tuple[str, int]] = []
        _walk(tree, -1, pairs)
        return _checked(tuple(pairs))
    if isinstance(tree, np.ndarray):
        tree = tree.tolist()
    if not isinstance(tree, Sequence) or isinstance(tree, str):
        raise ValueError(
            f"tree = {tree!r}: pass the number of groups, the parent of each group, or a nested mapping of names"
        )
    if tree and all(isinstance(entry, str) for entry in tree):
        tree = [(name, -1) for name in tree]
    entries = []
    for entry in tree:
        named = isinstance(entry, (tuple, list)) and len(entry) == 2
        parent = entry[1] if named else entry
        parent = -1 if parent is None else parent
        entries.append((entry[0], parent) if named else parent)
    return _checked(tuple(entries))


def _walk(tree: Any, parent: int, pairs: list[tuple[str, int]]) -> None:
    if tree is None:
        return
    if isinstance(tree, str):
        tree = [tree]
    for name in tree:
        pairs.append((name, parent))
        if isinstance(tree, Mapping):
            _walk(tree[name], len(pairs) - 1, pairs)


def _checked(tree: Tree) -> Tree:
    if not tree:
        raise ValueError("tree is empty: there must be one group at least")
    named = isinstance(tree[0], tuple)
    names: set[Any] = set()
    entries: list[Any] = []
    for i, entry in enumerate(tree):
        if isinstance(entry, tuple) != named:
            raise ValueError(f"tree[{i}] = {entry!r}: either all groups have names, or none")
        name, parent = entry if named else (None, entry)
        if named and (not isinstance(name, str) or name in names):
            raise ValueError(f"tree[{i}] has the name {name!r}: names are text, each once")
        if named:
            names.add(name)
        if isinstance(parent, bool) or not isinstance(parent, (int, np.integer)) or not -1 <= parent < len(tree):
            raise ValueError(f"tree[{i}] has the parent {parent!r}: pass the index of a group, or -1 for none")
        entries.append((name, int(parent)) if named else int(parent))
    _steps_up(_parents(tuple(entries)))
    return tuple(entries)


def _parents(tree: Tree) -> list[int]:
    """Return the parent of each group."""
    return [entry[1] if isinstance(entry, tuple) else entry for entry in tree]


def _steps_up(parents: list[int]) -> list[int]:
    """Count the steps from each group up to one without a parent; refuse a group that is above itself."""
    unknown, passed = -1, -2
    steps = [unknown] * len(parents)
    for start in range(len(parents)):
        way, here = [], start
        while here >= 0 and steps[here] == unknown:  # no further than to what is known, so that long ways cost no more
            steps[here] = passed
            way.append(here)
            here = parents[here]
        if here >= 0 and steps[here] == passed:
            raise ValueError(f"tree[{here}] is its own ancestor: the way up must end with a parent of -1")
        above = steps[here] if here >= 0 else -1
        for node in reversed(way):
            above += 1
            steps[node] = above
    return steps


def size_of(tree: Tree) -> tuple[int, int]:
    """Return how many nodes a tree has, its root included, and its depth: the shape of its paths."""
    parents = _parents(tree)
    apart = parents.count(-1) != 1  # the root is no group
    return len(parents) + apart, max(_steps_up(parents)) + 1 + apart


@lru_cache(maxsize=64)
def nodes_of(tree: Tree) -> Nodes:
    """Prepare a tree for use."""
    groups, (nodes, depth) = len(tree), size_of(tree)
    parents = _parents(tree)
    root = parents.index(-1) if nodes == groups else groups
    parents = [root if parent == -1 and i != root else parent for i, parent in enumerate(parents)]
    above = np.array(parents + [-1] * (nodes - groups), np.int32)
    levels = np.array(_steps_up(above.tolist()))
    paths = np.full((nodes, depth), -1, np.int32)
    below = here = np.arange(nodes, dtype=np.int32)
    while below.size:  # one step up, of all that are not yet at the root
        paths[below, levels[here]] = here
        here = above[here]
        below, here = below[here >= 0], here[here >= 0]
    names = tuple(entry[0] for entry in tree) if isinstance(tree[0], tuple) else ()
    return Nodes(paths, levels, root, groups, names)


def as_groups(tree: Tree, groups: Any) -> np.ndarray:
    """
    Read which group each round belongs to.

    ``groups``: Indices or names of groups; -1 for a round that belongs to none, which is answered by the root. Returns:
    Indices of groups, of the same shape; -1 for none, or the root's where that is a group.
    """
    nodes, array = nodes_of(tree), np.asarray(groups)
    if array.dtype.kind in "UTO":
        known = {name: i for i, name in enumerate(nodes.names)}
        for index, name in np.ndenumerate(array):
            if name not in known:
                place = f"[{', '.join(map(str, index))}]" if index else ""
                hint = f"such as {', '.join(nodes.names[:3])}" if known else "by its index, for this tree has no names"
                raise ValueError(f"context{place} = {str(name)!r} is no group: name one of the tree, {hint}")
        return np.array([known[name] for name in array.ravel()], np.int32).reshape(array.shape)
    if array.dtype.kind not in "iu":
        raise ValueError(f"context has dtype {array.dtype}: pass indices of groups, whole numbers, or their names")
    bad = (array < -1) | (array >= nodes.groups)
    if bad.any():
        index = tuple(int(i) for i in np.argwhere(bad)[0])
        place = f"[{', '.join(map(str, index))}]" if index else ""
        raise ValueError(
            f"context{place} = {array[index]}: groups are numbered from 0 to {nodes.groups - 1}; -1 stands for none"
        )
    return np.where(array < 0, nodes.root if nodes.root < nodes.groups else -1, array).astype(np.int32)


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
        raise_at("state.groups", groups, ~used & (groups != 0), "beyond state.seen stands 0")
        check_within("state.shares", shares, 0, 1)
        depth, own = np.arange(shares.shape[-1]), levels[groups][..., None]
        wrong = np.where(depth == own, shares != 1, (depth > own) & (shares != 0))
        why = "a score counts 1 for its own node and nothing below it"
        raise_at("state.shares", shares, np.where(used[..., None], wrong, shares != 0), why)
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
        most = add_trailing_axes(self.seen, counts) * 2.0
        check_within("state.counts", counts, 0, most, "so many scores leave no more")
        check_totals(self.seen, self.totals, counts.sum(axis=-1))
        depth = nodes_of(learner.tree).paths.shape[1]
        held, seen = np.asarray(self.totals, float).sum(axis=-1), np.asarray(self.seen, float)
        why = "the number of scores must be that in state.totals"
        raise_at("state.seen", self.seen, (held < seen * (1 - 1e-3)) | (held > 2 * depth * seen), why)


def check_totals(seen: Any, totals: Any, added: Any) -> None:
    """Refuse totals that are not the sums of what counts for each node, up to the rounding of so many additions."""
    totals = np.asarray(totals)
    slack = (1e-4 + add_trailing_axes(seen, totals) * float(np.finfo(totals.dtype).eps)) * added
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
