"""The regret of each group of a hierarchical belief, bounded by the path of the run through the tree of groups."""

from typing import TYPE_CHECKING, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from dpconformal.compositions import Hierarchical
from dpconformal.compositions.hierarchical import path_to
from dpconformal.compositions.tree import nodes_of
from dpconformal.learner import State
from dpconformal.metrics.loss import read_again
from dpconformal.metrics.summary import as_written, by_group
from dpconformal.runs import Replay, not_at_once
from dpconformal.theory import moments
from dpconformal.theory.bounds import bin_cost, steepest
from dpconformal.theory.ftrl import strong_convexity
from dpconformal.theory.path import sequences

if TYPE_CHECKING:
    import xarray as xr


class GroupPath(NamedTuple):
    """The belief of each round's group, given by the nodes from the root of the tree to the group."""

    nodes: np.ndarray  # (T,), the group
    weights: np.ndarray  # (T, depth), λ of each node on the way; 1 beyond the group
    totals: np.ndarray  # (T, depth), what counted for each node, before the round
    reached: np.ndarray  # (T, A), the group's cdf at its threshold
    below: np.ndarray  # (T, A), the same without the threshold's own mass


def group_regret_bound(run: Replay) -> "xr.Dataset":
    """
    Bound the regret of every group of a run, whatever the scores.

    For the n-th round of a group let λ_n be its weight and h_n = λ_n (n - 1)/(1 - λ_n), κ_n the prior's share of its
    parent's belief, and v_n a bound on what that belief has moved by its next round, in total variation. On a support
    of width R, with a prior whose density is μ/R at least and c = max(α, 1 - α), the regret after N rounds is at most
    cR [1 + h_N + Σ min(1, c/(2 h_n κ_n μ)) + Σ (h_n v_n + (h_n - h_{n+1})⁺)], where the first sum is over n from 2 to N
    and the second to N - 1; with K bins RN/K more, or RN/(2K) if they round to the nearest. It is O(R√N) if
    λ_n = 1/√n, the ancestors' weights do not vanish, and the group has a steady share of their rounds.

    Parameters
    ----------
    run : Replay
        Of a :class:`dpconformal.Hierarchical` on a bounded support, from a fresh start, without a delay; one sequence
        or a batch, with the same levels every round. Rounds whose score is missing are not judged.

    Returns
    -------
    xarray.Dataset
        ``regret`` and ``bound`` over ``group`` and ``level``, ``rounds`` over ``group``, for groups without groups
        below them; with ``batch`` axes before them for a batch. NaN for a group without rounds.

    Examples
    --------
    >>> import dpconformal as dpc
    >>> weights = dpc.schedules.Constant(0.2), dpc.schedules.InverseSqrt()
    >>> belief = dpc.Hierarchical(["a", "b"], concentrations=weights)
    >>> run = dpc.replay(belief, dpc.streams.alternating(400), levels=[0.5], context=["a", "b"] * 200)
    >>> found = group_regret_bound(run)
    >>> bool((found.regret < found.bound).all())
    True
    """
    import xarray as xr

    if not isinstance(run.learner, Hierarchical):
        raise ValueError(f"run.learner is {type(run.learner).__name__}: the bound is for runs of a Hierarchical")
    found = by_group(run)
    groups = bounded_groups(run)
    if not groups:
        raise ValueError("run has no bound: it must have a fresh start, a bounded support, and no delay")
    found, levels, ends = found.isel(group=groups), as_written(np.asarray(run.levels)), []
    for _, sequence in sequences(run, observed=False):
        path = group_path(sequence)
        for group in groups:
            curve = group_bound_by_round(run.learner, path, group, levels)
            ends.append(curve[-1] if len(curve) else np.full(levels.size, np.nan))
    bound = xr.DataArray(np.reshape(ends, found.regret.shape), found.regret.coords, found.regret.dims)
    return xr.Dataset({"regret": found.regret, "bound": bound, "rounds": found.rounds})


def group_bound_by_round(learner: Hierarchical, path: GroupPath, group: int, levels: np.ndarray) -> np.ndarray:
    """Bound the regret of a group at every horizon: the terms of :func:`group_regret_bound`."""
    here, depth = np.flatnonzero(path.nodes == group), int(nodes_of(learner.tree).levels[group])
    low, high = moments.support(learner.prior)
    steep, width, count = steepest(levels), high - low, np.arange(here.size)
    above, weight = path.weights[here, :depth], group_concentration(path.weights[here, depth])
    with np.errstate(divide="ignore", invalid="ignore"):
        curved = weight * above.prod(axis=1) * float(strong_convexity(learner.prior)) * width
        swings = steep * np.minimum(1, steep / (2 * curved[:, None]))  # in the first round everything
        moved = _movement(above, path.totals[here, :depth])
        drifts = weight[:-1] * moved + np.maximum(weight[:-1] - weight[1:], 0)
        drifts = np.concatenate([np.zeros(min(here.size, 1)), np.where(count[:-1] > 0, drifts, 0.0)])
        bound = width * (steep * (weight + np.cumsum(drifts))[:, None] + np.cumsum(swings, axis=0))
    if learner.bins is not None:
        bound += bin_cost(width, learner.bins, learner.rounding) * (count + 1)[:, None]
    return np.where(np.isnan(bound), np.inf, bound)  # with a weight of 1 a group never learns


def _movement(weights: np.ndarray, totals: np.ndarray) -> np.ndarray:
    """Bound by how much the parent's belief has changed from each round of a group to its next, in total variation."""
    moved = np.zeros(max(len(weights) - 1, 0))
    for d in range(weights.shape[1]):
        old, new = weights[:-1, d], weights[1:, d]
        fresh = np.where(totals[1:, d] > 0, 1 - totals[:-1, d] / np.where(totals[1:, d] > 0, totals[1:, d], 1), 0)
        moved = np.abs(old - new) + np.minimum(old, new) * moved + (1 - np.maximum(old, new)) * fresh
    return np.minimum(moved, 1)


def group_concentration(weights: np.ndarray) -> np.ndarray:
    """Compute the concentration of a group in each of its rounds, h_n = λ_n (n - 1)/(1 - λ_n), in scores."""
    count = np.arange(weights.size)
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(count > 0, weights * count / (1 - weights), 0.0)


def bounded_groups(run: Replay) -> list[int]:
    """List the groups without groups below them, if the run had a fresh start on a bounded support, and no delay."""
    nodes = nodes_of(run.learner.tree)
    above = set(nodes.paths[np.arange(len(nodes.levels)), np.maximum(nodes.levels - 1, 0)][nodes.levels > 0].tolist())
    if run.start is not None or not_at_once(run) or not np.isfinite(moments.support(run.learner.prior)).all():
        return []
    return [group for group in range(nodes.groups) if group not in above]


def group_path(run: Replay) -> GroupPath:
    """Go through a run of a hierarchical belief again, to see the belief of each round's group."""
    with jax.enable_x64(np.asarray(run.scores).dtype == np.float64):
        thresholds = jnp.asarray(run.thresholds)
        found = np.asarray(read_again(run, _read_group, thresholds), float)
    depth, levels = nodes_of(run.learner.tree).paths.shape[1], thresholds.shape[-1]
    parts = np.split(found, [depth, 2 * depth, 2 * depth + levels], axis=-1)
    nodes = np.asarray(run.context)
    return GroupPath(nodes if run.mask is None else nodes[~np.asarray(run.mask)], *parts)


# Not inside group_path: a function that is new in each call would be compiled in each call.
def _read_group(learner: Hierarchical, state: State, _: Array, thresholds: Array, context: Array) -> Array:
    belief, path = learner.belief(state, context), path_to(learner, state.totals, learner.node(context))
    return jnp.concatenate([path.weights, path.totals, belief.cdf(thresholds), belief.cdf(thresholds, side="left")])
