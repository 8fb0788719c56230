"""The lines of a certificate: each check of one sequence, for all its levels."""

from typing import Any, NamedTuple

import numpy as np

from dpconformal.learner import support_of
from dpconformal.metrics.arrays import arrays_of
from dpconformal.metrics.loss import regret_curve
from dpconformal.metrics.order import crossed
from dpconformal.replay import Replay
from dpconformal.theory import moments
from dpconformal.theory.optimality import optimality_gap
from dpconformal.theory.path import Path
from dpconformal.theory.path_bound import Regret, discounted_regret, has_regret_bound, running_regret
from dpconformal.theory.regret import regret_bound


class Line(NamedTuple):
    """A check, level by level."""

    seen: np.ndarray  # (A,), what the run did
    low: np.ndarray  # (A,), what is allowed, rounding included; NaN where nothing is claimed
    high: np.ndarray  # (A,)
    round: np.ndarray  # (A,), the first, from 1 at the start of the run, by which the check has failed; 0 if it passes
    claimed: bool = True  # whether anything is claimed for this learner


def order(run: Replay) -> Line:
    """Check that no higher level has a smaller threshold: rounds in which a level crosses another."""
    arrays = arrays_of(run)
    involved = crossed(arrays.thresholds, arrays.levels)[1]
    nothing = np.zeros(involved.shape[-1])
    return Line(involved.sum(axis=0).astype(float), nothing, nothing, _first(involved))


def optimality(run: Replay, path: Path | None) -> Line:
    """Check that each threshold minimises the regularised loss of its round (Theorems 1 and 6), up to rounding."""
    if path is None:
        return no_claim(np.full(run.thresholds.shape[-1], np.nan))
    return near_enough(run, optimality_gap(path, precision(run)), path.learner.prior)


def near_enough(run: Replay, gap: np.ndarray, prior: Any) -> Line:
    """Hold what thresholds miss of their level, (N, A), to what rounding may do."""
    allowed = np.full(gap.shape[1], max(1e-9, 256 * precision(run)) + 4 * _cdf_error(run, prior))
    gap = np.abs(gap)
    return Line(gap.max(axis=0, initial=0), np.zeros(gap.shape[1]), allowed, _first(~(gap <= allowed)))


def precision(run: Replay) -> float:
    """Return the rounding unit of the thresholds."""
    dtype = np.asarray(run.thresholds).dtype
    return float(np.finfo(dtype if np.issubdtype(dtype, np.floating) else float).eps)


def _cdf_error(run: Replay, prior: Any) -> float:
    """Measure how well the prior's cdf is known in the precision of the run: a beta with large shapes is a hard one."""
    dtype = np.asarray(run.thresholds).dtype
    if dtype != np.float32 or getattr(prior, "closed_form", False):
        return 0.0
    x = np.asarray(prior.quantile(np.linspace(0.01, 0.99, 99, dtype=np.float32)), np.float32)
    return float(np.max(np.abs(np.asarray(prior.cdf(x), float) - moments.cdf(prior, x))))


def regret(run: Replay, path: Path | None) -> Line:
    """Check the regret of one sequence against its bound, at every horizon."""
    found = regret_and_bound(run, path)
    if found is not None:
        return within(run, found, float(np.size(run.scores)))
    curve = regret_curve(run.thresholds, run.scores, run.levels)[0]
    return no_claim(curve[-1] if len(curve) else np.zeros(curve.shape[1]))


def regret_and_bound(run: Replay, path: Path | None) -> Regret | None:
    """
    Compute the regret of one sequence and its bound at every horizon (Theorems 2 and 5, and that for ``Corrected``).

    Without a path the bound is what Exact with a uniform prior guarantees. None with a discount, for heads without a
    bound, and for levels that change by round.
    """
    levels, rounds = np.asarray(run.levels, float), np.arange(1, np.size(run.scores) + 1)
    unproved = path is not None and (path.discount != 1 or not has_regret_bound(path))
    if not rounds.size or unproved or levels.ndim == 2:
        return None
    if path is not None:
        return running_regret(path)
    curve = regret_curve(run.thresholds, run.scores, run.levels)[0]
    return Regret(rounds, curve, regret_bound(rounds[:, None], levels, width_of(run)))


def width_of(run: Replay) -> float:
    """Measure the support of a learner, or the scores where it has none."""
    low, high = support_of(run.learner)
    width = float(high) - float(low)
    return width if np.isfinite(width) else float(np.ptp(np.asarray(run.scores, float))) or 1.0


def fading_regret(run: Replay, path: Path | None) -> Line:
    """Check the discounted regret against its bound, at horizons that together see every round (Theorem 6)."""
    rounds = run.scores.shape[0]
    if path is None or path.discount == 1 or not rounds or path.levels.ndim == 2:
        return no_claim(np.full(run.thresholds.shape[-1], np.nan))
    memory = max(int(1 / (1 - path.discount)), 1)
    horizons = np.unique(np.append(np.arange(memory, rounds, memory), rounds))
    return within(run, discounted_regret(path, horizons), 1 / (1 - path.discount))


def within(run: Replay, found: Regret, memory: float) -> Line:
    """Compare regret and bound; each round within memory may be off by the rounding of its threshold."""
    sizes = np.abs(np.concatenate([np.ravel(run.scores), np.ravel(run.thresholds)]).astype(float))
    scale = float(np.max(sizes, initial=0, where=np.isfinite(sizes)))
    slack = 2 * precision(run) * scale * np.minimum(found.horizons, memory)[:, None]
    bound = found.bound + slack
    late = ~(found.regret <= bound)
    where = np.where(late.any(axis=0), found.horizons[late.argmax(axis=0)], 0)
    # What is shown is the end of the run, or where the bound is exceeded most.
    excess = np.where(late, np.nan_to_num(found.regret - bound, nan=-1e300), -np.inf)
    shown = np.where(where > 0, excess.argmax(axis=0), found.horizons.size - 1)
    columns = np.arange(shown.size)
    return Line(found.regret[shown, columns], np.full(shown.size, -np.inf), bound[shown, columns], where)


def _first(wrong: Any) -> np.ndarray:
    if not wrong.shape[0]:
        return np.zeros(wrong.shape[1], int)
    return np.where(wrong.any(axis=0), wrong.argmax(axis=0) + 1, 0)


def no_claim(seen: np.ndarray) -> Line:
    """Return a line that shows what was seen and claims nothing."""
    nothing = np.full(seen.shape, np.nan)
    return Line(seen, nothing, nothing, np.zeros(seen.shape, int), False)
