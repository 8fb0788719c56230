"""Tables of a run: level by level, and group by group."""

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from dpconformal.compositions.tree import Tree, nodes_of
from dpconformal.engine.totals import sum_totals, totals_of
from dpconformal.metrics.arrays import arrays_of, batch_axes, by_sequence, check_finite, checked_run, mean_levels
from dpconformal.metrics.coverage import find_crossings, rounds_since_hit
from dpconformal.metrics.loss import best_threshold
from dpconformal.replay import Replay

if TYPE_CHECKING:
    import xarray as xr

BLOCK = 2**20  # thresholds that are measured at a time


def summary(run: Replay) -> "xr.Dataset":
    """
    Summarise a run: coverage, loss, regret and crossings of each level.

    Parameters
    ----------
    run : Replay

    Returns
    -------
    xarray.Dataset
        Variables over ``level`` (and ``batch`` axes): ``coverage``, ``coverage_error``, ``loss`` (mean quantile loss),
        ``regret``, ``longest_miss_run``, ``crossings`` (rounds in which the level crosses another) and
        ``mean_threshold``. The run's own ``thresholds`` and ``scores`` come along over ``time``, with the ``mask``
        where there is one. ``summary(run).drop_dims("time").to_dataframe()`` is a table.

    Examples
    --------
    >>> import dpconformal as dpc
    >>> table = summary(dpc.replay(dpc.Exact(), [0.2, 0.9, 0.4], levels=[0.5, 0.9]))
    >>> float(table.coverage.sel(level=0.5).round(3))
    0.667
    """
    import xarray as xr  # with pandas half of the package's import time, and needed only here

    per_level = _measure_sequence(run)
    level, _ = per_level.pop("mean_level"), per_level.pop("crossing_rounds")
    thresholds = np.asarray(run.thresholds)
    batch = batch_axes(run)
    variables = {name: ([*batch, "level"], value) for name, value in per_level.items()}
    variables["thresholds"] = ([*batch, "time", "level"], thresholds)
    variables["scores"] = ([*batch, "time"], np.asarray(run.scores))
    if run.mask is not None:
        variables["mask"] = ([*batch, "time"], np.asarray(run.mask))
    coords = {"time": np.arange(1, thresholds.shape[-2] + 1)}
    if np.ndim(run.levels) == 1:
        coords["level"] = as_written(np.asarray(run.levels))
    elif np.ndim(run.levels) == thresholds.ndim:
        variables["levels"] = ([*batch, "time", "level"], np.asarray(run.levels))
        variables["mean_level"] = ([*batch, "level"], level)
    else:
        variables["levels"] = ([*batch, "level"], np.asarray(run.levels))
    return xr.Dataset(variables, coords, attrs={"learner": repr(run.learner)})


@by_sequence
def _measure_sequence(run: Replay) -> dict[str, np.ndarray]:
    arrays = arrays_of(run)
    _, thresholds, scores, levels = arrays
    least = best_threshold(np, scores[..., 0], levels)[1]
    found, level = measure(thresholds, scores[..., 0], levels, least), mean_levels(arrays)
    check_finite(found["loss"] + least, thresholds)
    return found | {"coverage_error": np.abs(found["coverage"] - level), "mean_level": level}


def measure(thresholds: np.ndarray, scores: np.ndarray, levels: Any, least: np.ndarray) -> dict[str, np.ndarray]:
    """
    Measure thresholds, (..., T, A), a block of rounds at a time: they need not fit into memory.

    The levels are (A,) or (..., T or 1, A); ``least`` is the total loss of the best fixed thresholds, (..., A). Returns
    what :func:`summary` has of each level, and ``crossing_rounds``, in which a higher level got a smaller threshold.
    """
    *batch, rounds, size = thresholds.shape
    levels = np.asarray(levels, float)
    levels = levels if levels.ndim > 1 else levels[None]
    length = max(BLOCK // max(math.prod(batch) * size, 1), 1)
    totals, mean = [], np.zeros((*batch, size))
    since, longest = np.zeros((*batch, 1, size), np.int32), np.zeros((*batch, size), np.int32)
    crossings, crossing_rounds = np.zeros((*batch, size), int), np.zeros(batch, int)
    with np.errstate(invalid="ignore", over="ignore", divide="ignore"):  # ∞ - ∞, where a threshold is infinite
        for start in range(0, max(rounds, 1), length):
            here = slice(start, start + length)
            threshold, score = np.asarray(thresholds[..., here, :], float), np.asarray(scores[..., here], float)
            asked = levels if levels.shape[-2] == 1 else levels[..., here, :]
            totals.append(totals_of(threshold, score, asked))
            part = totals[-1].threshold.high / rounds
            # A mean does not overflow where its sum does.
            mean += part if np.isfinite(part).all() else np.sum(threshold / rounds, axis=-2)
            since = rounds_since_hit(np, score[..., None] <= threshold, since[..., -1:, :])
            longest = np.maximum(longest, since.max(axis=-2, initial=0))
            pairs, involved = find_crossings(threshold, asked)
            if pairs.any():
                crossings = crossings + involved.sum(axis=-2)
                crossing_rounds = crossing_rounds + (pairs > 0).sum(axis=-1)
        covered, loss, _ = sum_totals(totals)
        return {
            "coverage": covered / rounds,
            "loss": loss.high / rounds,
            "regret": loss.high - least,
            "longest_miss_run": longest,
            "crossings": crossings,
            "mean_threshold": mean if rounds else np.full(mean.shape, np.nan),
            "crossing_rounds": crossing_rounds,
        }


def as_written(levels: np.ndarray) -> np.ndarray:
    """Return levels as a person writes them: 0.9, also where float32 holds 0.89999998."""
    return np.array([float(np.format_float_positional(level, unique=True)) for level in levels])


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

    _, thresholds, scores, _ = arrays_of(checked_run(run)._replace(mask=None))
    batch, rounds = thresholds.shape[:-2], thresholds.shape[-2]
    if np.ndim(run.levels) != 1:
        raise ValueError(f"run.levels has shape {np.shape(run.levels)}: groups are judged at fixed levels, shape (A,)")
    if groups is None and run.context is None:
        raise ValueError("groups is missing: this run was told of none; pass the group of each round")
    members, called = _find_members(np.asarray(run.context if groups is None else groups), run, groups is None)
    if members.shape[-1] != rounds:
        raise ValueError(f"groups has {members.shape[-1]} rounds, and the run {rounds}")
    if members.shape[1:-1] not in ((), batch):
        raise ValueError(f"groups has leading axes {members.shape[1:-1]}, and the run {batch}: pass the run's, or none")
    if names is not None and len(names) != len(members):
        raise ValueError(f"names has {len(names)} entries, and there are {len(members)} groups")
    observed = np.ones((*batch, rounds), bool) if run.mask is None else ~np.asarray(run.mask)
    if members.ndim == 2:  # the same for every sequence
        members = members.reshape(len(members), *[1] * len(batch), rounds)
    members = members & observed
    shape = (*batch, len(members), thresholds.shape[-1])
    found = {name: np.full(shape, np.nan) for name in ("coverage", "loss", "threshold", "regret")}
    for index in np.ndindex(shape[:-1]):
        place, here = index[:-1], np.flatnonzero(members[index[-1:] + index[:-1]])
        if not here.size:
            continue
        own = thresholds[place][here], scores[..., 0][place][here], np.asarray(run.levels, float)
        measures = measure(*own, best_threshold(np, own[1], own[2][None])[1])
        for name, values in found.items():
            values[index] = measures["mean_threshold" if name == "threshold" else name]
    axes = batch_axes(run)
    variables: dict[str, Any] = {name: ([*axes, "group", "level"], value) for name, value in found.items()}
    variables["rounds"] = ([*axes, "group"], np.moveaxis(members.sum(axis=-1), 0, -1))
    coords = {"group": list(called if names is None else names), "level": as_written(np.asarray(run.levels))}
    return xr.Dataset(variables, coords, {"learner": repr(run.learner)})


def _find_members(groups: np.ndarray, run: Replay, own: bool) -> tuple[np.ndarray, Any]:
    """Find which rounds belong to each group, (G, T) or (G, ..., T), and what groups are called."""
    if groups.dtype == bool and groups.ndim >= 2:
        return np.moveaxis(groups, -1, 0), np.arange(groups.shape[-1])
    if groups.ndim not in (1, np.ndim(run.scores)):
        raise ValueError(f"groups has shape {groups.shape}: pass a group a round, or rows of booleans")
    tree = getattr(run.learner, "tree", None) if own else None
    if tree is None:
        called = np.unique(groups)
        return (groups == called.reshape(-1, *[1] * groups.ndim)), called
    names_by_group = groups_of(tree, groups)
    return np.stack([groups == i for i in names_by_group]), list(names_by_group.values())


def groups_of(tree: Tree, context: Any) -> dict[int, str | int]:
    """Name the groups of a tree, or number them, and add -1 if there are rounds of no group."""
    nodes = nodes_of(tree)
    found: dict[int, str | int] = dict(enumerate(nodes.names or range(nodes.groups)))
    return found | ({-1: "(none)" if nodes.names else -1} if (np.asarray(context) == -1).any() else {})
