"""What a hierarchical belief promises each group: its regret on any sequence, its coverage if its scores are iid."""

from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from dpconformal.compositions import Hierarchical
from dpconformal.compositions.hierarchical import path_to
from dpconformal.compositions.tree import nodes_of
from dpconformal.metrics import coverage
from dpconformal.metrics.calibration import read_again
from dpconformal.metrics.loss import regret_curve
from dpconformal.metrics.summary import as_written, by_group
from dpconformal.replay import Replay
from dpconformal.theory import moments
from dpconformal.theory.checks import Line, coverage_if_iid, near_enough, no_claim, order, within
from dpconformal.theory.path import Regret, rounds_to_nearest, sequences
from dpconformal.theory.regret import bin_cost
from dpconformal.theory.regularizer import strong_convexity

if TYPE_CHECKING:
    import xarray as xr


class GroupPath(NamedTuple):
    """What a run was made of in each round, from the root of the tree to the round's group."""

    nodes: np.ndarray  # (T,), the group
    weights: np.ndarray  # (T, depth), λ of each node on the way; 1 beyond the group
    totals: np.ndarray  # (T, depth), what counted for each node, before the round
    reached: np.ndarray  # (T, A), the group's cdf at its threshold
    below: np.ndarray  # (T, A), the same without the threshold's own mass


def group_path(run: Replay) -> GroupPath:
    """Go through a run of a hierarchical belief again."""
    with jax.enable_x64(np.asarray(run.scores).dtype == np.float64):
        thresholds = jnp.asarray(run.thresholds)
        found = np.asarray(read_again(run, _trace, thresholds), float)
    depth, levels = nodes_of(run.learner.tree).paths.shape[1], thresholds.shape[-1]
    parts = np.split(found, [depth, 2 * depth, 2 * depth + levels], axis=-1)
    nodes = np.asarray(run.context)
    return GroupPath(nodes if run.mask is None else nodes[~np.asarray(run.mask)], *parts)


def _trace(learner: Hierarchical, state: Any, score: Any, thresholds: Any, context: Any) -> Any:
    del score
    belief, (path, _, _, totals) = learner.belief(state, context), path_to(learner, state.totals, learner.node(context))
    ends = belief.cdf(thresholds), belief.cdf(thresholds, side="left")
    return jnp.concatenate([path.weights, totals, *ends])


def bound_by_round(learner: Hierarchical, path: GroupPath, group: int, levels: np.ndarray) -> np.ndarray:
    """Bound the regret of a group at every horizon."""
    here = np.flatnonzero(path.nodes == group)
    depth = int(nodes_of(learner.tree).levels[group])
    low, high = moments.support(learner.prior)
    steep, width = np.maximum(levels, 1 - levels), high - low
    own, above = path.weights[here, depth], path.weights[here, :depth]
    count = np.arange(here.size)
    with np.errstate(divide="ignore", invalid="ignore"):
        regularised = np.where(count > 0, own * count / (1 - own), 0.0)  # h, in scores
        curved = regularised * above.prod(axis=1) * float(strong_convexity(learner.prior)) * width
        unstable = np.minimum(1, steep / (2 * curved[:, None]))  # in the first round everything
        moved = _movement(above, path.totals[here, :depth])
        drifted = regularised[:-1] * moved + np.maximum(regularised[:-1] - regularised[1:], 0)
        drifted = np.concatenate([[0.0], np.where(count[:-1] > 0, drifted, 0.0)]) if here.size else np.zeros(0)
        bound = steep * width * (regularised + np.cumsum(drifted))[:, None] + width * np.cumsum(
            steep * unstable, axis=0
        )
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


def bounded_groups(run: Replay) -> list[int]:
    """List the groups without groups below them, if the run had a fresh start on a bounded support, and no delay."""
    nodes = nodes_of(run.learner.tree)
    above = set(nodes.paths[np.arange(len(nodes.levels)), np.maximum(nodes.levels - 1, 0)][nodes.levels > 0].tolist())
    late = run.delay is None or np.any(np.asarray(run.delay))
    if run.start is not None or late or not np.isfinite(moments.support(run.learner.prior)).all():
        return []
    return [group for group in range(nodes.groups) if group not in above]


def group_regret_bound(run: Replay) -> "xr.Dataset":
    """
    Bound the regret of every group of a run, whatever the scores.

    For the n-th round of a group let λ_n be its weight and h_n = λ_n (n - 1)/(1 - λ_n), κ_n the prior's share of its
    parent's belief, and v_n a bound on what that belief has moved by its next round, in total variation. On a
    support of width R, with a prior whose density is μ/R at least and c = max(α, 1 - α), the regret after N rounds
    is at most cR [1 + h_N + Σ min(1, c/(2 h_n κ_n μ)) + Σ (h_n v_n + (h_n - h_{n+1})⁺)], where the first sum is over n
    from 2 to N and the second to N - 1; with K bins RN/K more, or RN/(2K)
    if they round to the nearest. It is O(R√N) if λ_n = 1/√n, the ancestors' weights
    do not vanish, and the group has a steady share of their rounds.

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
            curve = bound_by_round(run.learner, path, group, levels)
            ends.append(curve[-1] if len(curve) else np.full(levels.size, np.nan))
    bound = xr.DataArray(np.reshape(ends, found.regret.shape), found.regret.coords, found.regret.dims)
    return xr.Dataset({"regret": found.regret, "bound": bound, "rounds": found.rounds})


def judged_by_group(run: Any) -> bool:
    """Tell whether a run has groups to be judged by."""
    return isinstance(run.learner, Hierarchical) and run.context is not None


def groups_of(run: Replay) -> list[int]:
    """List the groups of a run's tree; then -1, if there are rounds of none."""
    groups = list(range(nodes_of(run.learner.tree).groups))
    return groups + [-1] * bool((np.asarray(run.context) == -1).any())


def group_names(run: Replay) -> list[Any]:
    """Name the groups of a run, or number them."""
    names, groups = nodes_of(run.learner.tree).names, groups_of(run)
    return [(names[group] if group >= 0 else "(none)") if names else group for group in groups]


def checks(whole: Replay, delta: float, groups: list[int]) -> list[tuple[Line, ...]]:
    """
    Check order, optimality, regret, discounted regret and coverage of each group.

    Nothing is claimed of groups without rounds, nothing of the regret and coverage of
    groups with groups below them, and nothing of the regret at levels that change by round.
    """
    run, path, bounded = whole.observed(), group_path(whole), bounded_groups(whole)
    changing = np.ndim(run.levels) == 2
    levels = _levels(run)
    gap = np.maximum(np.maximum(levels - path.reached, path.below - levels), 0)
    gap = np.where(np.isnan(path.reached), np.inf, gap)
    found: list[tuple[Line, ...]] = []
    for group in groups:
        here = np.flatnonzero(path.nodes == group)
        rows: Any = np.asarray(run.thresholds)[here], np.asarray(run.scores)[here]
        own = run._replace(thresholds=rows[0], scores=rows[1], context=None, mask=None)
        own = own._replace(levels=np.asarray(run.levels)[here]) if changing else own  # type: ignore[arg-type]
        nothing = no_claim(np.full(levels.shape[-1], np.nan))
        if not here.size:
            found.append((nothing,) * 5)
            continue
        curve = regret_curve(own.thresholds, own.scores, own.levels)[0]
        regret, cover = no_claim(curve[-1]), no_claim(coverage(own))
        if group in bounded and not changing:
            bound = bound_by_round(run.learner, path, group, levels)
            regret = within(own, Regret(np.arange(1, here.size + 1), curve, bound), float(here.size))
        if group in bounded and not rounds_to_nearest(run.learner):
            depth, count = int(nodes_of(run.learner.tree).levels[group]), np.arange(here.size)
            weight = path.weights[here, depth]  # of the group; the bracket asks nothing of the parent's belief
            with np.errstate(divide="ignore", invalid="ignore"):
                strength = np.where(count > 0, weight * count / (1 - weight), 0.0)
            cover = coverage_if_iid(own, _levels(own), count, strength, run.learner.bins, delta / len(bounded))
        lines = order(own), near_enough(own, gap[here], run.learner.prior), regret, nothing, cover
        rounds = np.concatenate([[0], here + 1])  # as the run counts them
        found.append(tuple(line._replace(round=rounds[line.round]) for line in lines))
    return found


def _levels(run: Replay) -> np.ndarray:
    """Return the levels in float64, (A,) or (T, A)."""
    levels = np.asarray(run.levels)
    return as_written(levels) if levels.ndim == 1 else levels.astype(float)
