"""The tree of groups: read from what the user gave, and prepared for use."""

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

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
        _add_names(tree, -1, pairs)
        return _checked_tree(tuple(pairs))
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
    return _checked_tree(tuple(entries))


def _add_names(tree: Any, parent: int, pairs: list[tuple[str, int]]) -> None:
    """Append the names of a nested mapping with their parents, each before those below it."""
    if tree is None:
        return
    if isinstance(tree, str):
        tree = [tree]
    for name in tree:
        pairs.append((name, parent))
        if isinstance(tree, Mapping):
            _add_names(tree[name], len(pairs) - 1, pairs)


def _checked_tree(tree: Tree) -> Tree:
    """Check parents and names; return them as plain numbers and text."""
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
                hint = f"such as {', '.join(nodes.names[:3])}" if known else "by its index, for this tree has no names"
                raise ValueError(f"context{_at(index)} = {str(name)!r} is no group: name one of the tree, {hint}")
        return np.array([known[name] for name in array.ravel()], np.int32).reshape(array.shape)
    if array.dtype.kind not in "iu":
        raise ValueError(f"context has dtype {array.dtype}: pass indices of groups, whole numbers, or their names")
    bad = (array < -1) | (array >= nodes.groups)
    if bad.any():
        index = tuple(int(i) for i in np.argwhere(bad)[0])
        raise ValueError(
            f"context{_at(index)} = {array[index]}: groups are numbered from 0 to {nodes.groups - 1}; -1 stands for "
            "none"
        )
    return np.where(array < 0, nodes.root if nodes.root < nodes.groups else -1, array).astype(np.int32)


def _at(index: tuple[int, ...]) -> str:
    return f"[{', '.join(map(str, index))}]" if index else ""
