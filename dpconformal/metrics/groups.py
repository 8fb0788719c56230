"""A run group by group: what holds on the whole may not hold for each."""

from typing import TYPE_CHECKING, Any

import numpy as np

from dpconformal.groups.tree import nodes_of
from dpconformal.metrics.arrays import arrays_of, checked_run
from dpconformal.metrics.loss import quantile_loss, regret
from dpconformal.metrics.summary import as_written
from dpconformal.replay import Replay

if TYPE_CHECKING:
    import xarray as xr


def by_group(run: Replay, groups: Any = None, names: Any = None) -> "xr.Dataset":
    """
    Judge each group by its own rounds.

    Parameters
    ----------
    run : Replay
        One sequence, with the same levels every round.
    groups : array_like, shape (T,) or (T, G), optional
        The group of each round, by index or name; or rows of booleans, for groups that may overlap. By default what
        the run's learner was told, its ``context``.
    names : sequence, optional
        What to call the groups; by default as the learner's tree does, or by their indices. Rounds of no group are a
        group besides, -1 or "(none)".

    Returns
    -------
    xarray.Dataset
        Over ``group`` and ``level``: ``coverage``, ``loss`` and ``threshold``, means over the group's rounds, and
        ``regret``, its total loss less that of the best threshold for the group; over ``group``: ``rounds``. NaN for
        a group without any.

    Examples
    --------
    >>> import dpconformal as dpc
    >>> run = dpc.replay(dpc.Hierarchical(["a", "b"]), [0.2, 0.7, 0.1], levels=[0.5], context=["a", "b", "a"])
    >>> found = by_group(run)
    >>> found.rounds.values, found.coverage.sel(level=0.5).values
    (array([2, 1]), array([1., 0.]))
    """
    import xarray as xr

    thresholds = arrays_of(checked_run(run)).thresholds
    if thresholds.ndim != 2 or np.ndim(run.levels) != 1:
        shapes = f"run.thresholds has shape {np.shape(run.thresholds)}, run.levels {np.shape(run.levels)}"
        raise ValueError(f"{shapes}: groups are judged for one sequence with fixed levels")
    if groups is None and run.context is None:
        raise ValueError("groups is missing: this run was told of none; pass the group of each round")
    members, called = _members(np.asarray(run.context if groups is None else groups), run, groups is None)
    if len(members[0]) != thresholds.shape[0]:
        raise ValueError(f"groups has {len(members[0])} rounds, and the run {thresholds.shape[0]}")
    if names is not None and len(names) != len(members):
        raise ValueError(f"names has {len(names)} entries, and there are {len(members)} groups")
    judged = np.ones(thresholds.shape[0], bool) if run.mask is None else ~np.asarray(run.mask)
    found: dict[str, list[Any]] = {name: [] for name in ("coverage", "loss", "threshold", "regret")}
    counts = []
    nothing = np.full(thresholds.shape[1], np.nan)
    for member in members:
        here = np.flatnonzero(member & judged)
        counts.append(here.size)
        part = Replay(np.asarray(run.thresholds)[here], None, np.asarray(run.scores)[here], run.levels)  # type: ignore
        arrays = arrays_of(part)
        found["coverage"].append((arrays.scores <= arrays.thresholds).mean(axis=0) if here.size else nothing)
        found["loss"].append(np.mean(quantile_loss(part), axis=0) if here.size else nothing)
        found["threshold"].append(arrays.thresholds.mean(axis=0) if here.size else nothing)
        found["regret"].append(np.asarray(regret(part)) if here.size else nothing)
    variables: dict[str, Any] = {name: (["group", "level"], np.array(value)) for name, value in found.items()}
    variables["rounds"] = (["group"], np.array(counts))
    coords = {"group": list(called if names is None else names), "level": as_written(np.asarray(run.levels))}
    return xr.Dataset(variables, coords, {"learner": repr(run.learner)})


def _members(groups: np.ndarray, run: Replay, own: bool) -> tuple[list[np.ndarray], Any]:
    """Tell which rounds belong to each group, and what groups are called."""
    if groups.ndim == 2 and groups.dtype == bool:
        return list(groups.T), np.arange(groups.shape[1])
    if groups.ndim != 1:
        raise ValueError(f"groups has shape {groups.shape}: pass a group a round, or rows of booleans")
    tree = getattr(run.learner, "tree", None) if own else None
    if tree is None:
        found = np.unique(groups)
        return [groups == name for name in found], found
    nodes, alone = nodes_of(tree), bool((groups == -1).any())  # rounds of no group
    called = [*nodes.names] + ["(none)"] * alone if nodes.names else [*range(nodes.groups)] + [-1] * alone
    return [groups == i for i in [*range(nodes.groups)] + [-1] * alone], called
