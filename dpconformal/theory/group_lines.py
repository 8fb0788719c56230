"""The lines of a certificate for a run of a hierarchical belief: each group by itself."""

from typing import Any

import numpy as np

from dpconformal.groups import Hierarchical
from dpconformal.groups.tree import nodes_of
from dpconformal.metrics import coverage
from dpconformal.metrics.loss import regret_curve
from dpconformal.metrics.summary import as_written
from dpconformal.replay import Replay
from dpconformal.theory.coverage_line import coverage_if_iid
from dpconformal.theory.groups import bound_by_round, bounded_groups, group_path
from dpconformal.theory.lines import Line, near_enough, no_claim, order, within
from dpconformal.theory.path import rounds_to_nearest
from dpconformal.theory.path_bound import Regret


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
