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
        One sequence or a batch, with the same levels every round. Rounds whose score is missing are not judged.
    groups : array_like, shape (..., T) or (..., T, G), optional
        The group of each round of the run, by index or name; or rows of booleans, for groups that may overlap. Without
        the leading axes of the run, the same for every sequence. By default what the run's learner was told, its
        ``context``.
    names : sequence, optional
        What to call the groups; by default as the learner's tree does, or by their indices. Rounds of no group are a
        group besides, -1 or "(none)".

    Returns
    -------
    xarray.Dataset
        Over ``group`` and ``level``: ``coverage``, ``loss`` and ``threshold``, means over the group's rounds, and
        ``regret``, its total loss less that of the best threshold for the group; over ``group``: ``rounds``. NaN for
        a group without any. A batch has its axes before these: ``batch``, or ``batch_0``, ``batch_1``, ….

    Examples
    --------
    >>> import dpconformal as dpc
    >>> run = dpc.replay(dpc.Hierarchical(["a", "b"]), [0.2, 0.7, 0.1], levels=[0.5], context=["a", "b", "a"])
    >>> found = by_group(run)
    >>> found.rounds.values, found.coverage.sel(level=0.5).values
    (array([2, 1]), array([1., 0.]))
    """
    import xarray as xr

    thresholds = arrays_of(checked_run(run)._replace(mask=None)).thresholds
    batch, rounds = thresholds.shape[:-2], thresholds.shape[-2]
    if np.ndim(run.levels) != 1:
        raise ValueError(f"run.levels has shape {np.shape(run.levels)}: groups are judged at fixed levels, shape (A,)")
    if groups is None and run.context is None:
        raise ValueError("groups is missing: this run was told of none; pass the group of each round")
    members, called = _members(np.asarray(run.context if groups is None else groups), run, groups is None)
    if members.shape[-1] != rounds:
        raise ValueError(f"groups has {members.shape[-1]} rounds, and the run {rounds}")
    if members.shape[1:-1] not in ((), batch):
        raise ValueError(f"groups has leading axes {members.shape[1:-1]}, and the run {batch}: pass the run's, or none")
    if names is not None and len(names) != len(members):
        raise ValueError(f"names has {len(names)} entries, and there are {len(members)} groups")
    judged = np.ones((*batch, rounds), bool) if run.mask is None else ~np.asarray(run.mask)
    if members.ndim == 2:  # the same for every sequence
        members = members.reshape(len(members), *[1] * len(batch), rounds)
    members = members & judged
    shape = (*batch, len(members), thresholds.shape[-1])
    found = {name: np.full(shape, np.nan) for name in ("coverage", "loss", "threshold", "regret")}
    for index in np.ndindex(shape[:-1]):
        place, here = index[:-1], np.flatnonzero(members[index[-1:] + index[:-1]])
        if not here.size:
            continue
        own: Any = np.asarray(run.thresholds)[place][here], np.asarray(run.scores)[place][here]
        part = Replay(own[0], None, own[1], run.levels)
        arrays = arrays_of(part)
        found["coverage"][index] = (arrays.scores <= arrays.thresholds).mean(axis=0)
        found["loss"][index] = np.mean(quantile_loss(part), axis=0)
        found["threshold"][index] = arrays.thresholds.mean(axis=0)
        found["regret"][index] = np.asarray(regret(part))
    axes = ["batch"] if len(batch) == 1 else [f"batch_{i}" for i in range(len(batch))]
    variables: dict[str, Any] = {name: ([*axes, "group", "level"], value) for name, value in found.items()}
    variables["rounds"] = ([*axes, "group"], np.moveaxis(members.sum(axis=-1), 0, -1))
    coords = {"group": list(called if names is None else names), "level": as_written(np.asarray(run.levels))}
    return xr.Dataset(variables, coords, {"learner": repr(run.learner)})


def _members(groups: np.ndarray, run: Replay, own: bool) -> tuple[np.ndarray, Any]:
    """Tell which rounds belong to each group, (G, T) or (G, ..., T), and what groups are called."""
    if groups.dtype == bool and groups.ndim >= 2:
        return np.moveaxis(groups, -1, 0), np.arange(groups.shape[-1])
    if groups.ndim not in (1, np.ndim(run.scores)):
        raise ValueError(f"groups has shape {groups.shape}: pass a group a round, or rows of booleans")
    tree = getattr(run.learner, "tree", None) if own else None
    if tree is None:
        called = np.unique(groups)
        return (groups == called.reshape(-1, *[1] * groups.ndim)), called
    nodes, alone = nodes_of(tree), bool((groups == -1).any())  # rounds of no group
    names = [*nodes.names] + ["(none)"] * alone if nodes.names else [*range(nodes.groups)] + [-1] * alone
    return np.stack([groups == i for i in [*range(nodes.groups)] + [-1] * alone]), names
