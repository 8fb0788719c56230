"""
Certificates for runs: what the theorems promise, beside what happened.

:func:`certify` asks for five checks of each sequence, or of each group of it, and tabulates them; the checks follow,
and last the counts of independent events that the check of coverage needs.
"""

from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from scipy import special

from dpconformal import metrics
from dpconformal.beliefs import Quantized
from dpconformal.compositions import Head, Hierarchical, Recalibrated
from dpconformal.compositions.tree import nodes_of
from dpconformal.metrics.arrays import arrays_of, batch_axes, checked_run
from dpconformal.metrics.coverage import find_crossings
from dpconformal.metrics.loss import regret_curve
from dpconformal.metrics.summary import as_written, groups_of
from dpconformal.priors import Prior
from dpconformal.rounds import round_counts
from dpconformal.runs import Replay, not_at_once
from dpconformal.theory import moments
from dpconformal.theory.bounds import rank_bracket
from dpconformal.theory.ftrl import concentration
from dpconformal.theory.groups import bounded_groups, group_bound_by_round, group_concentration, group_path
from dpconformal.theory.path import (
    Path,
    Regret,
    bins_of,
    discounted_regret,
    optimality_gap,
    path_of,
    regret_and_bound,
    rounds_to_nearest,
    sequences,
    tied_rounds,
)
from dpconformal.validation import Scalar, check_scalar, is_traced

if TYPE_CHECKING:
    import xarray as xr

CHECKS = ("order", "optimality", "regret", "discounted regret", "coverage")


@dataclass(frozen=True)
class Certificate:
    """
    Result of :func:`certify`. Prints as a table.

    Attributes
    ----------
    dataset : xarray.Dataset
        Over ``check`` and ``level`` (and ``batch`` axes): ``seen``, what the run did; ``low`` and ``high``, what is
        allowed; ``verdict``, "pass", "FAIL" or "no claim"; ``round``, the first round by which the check has failed,
        0 if it passes. Where levels change by round, or differ between sequences, ``level`` counts them.
    """

    dataset: "xr.Dataset"

    @property
    def passed(self) -> bool:
        """Whether no line fails."""
        return not bool((self.dataset.verdict == "FAIL").any())

    @property
    def failures(self) -> list[str]:
        """Failures and where they are, a sentence each."""
        table, found = self.dataset, []
        for index in np.argwhere(table.verdict.values == "FAIL"):
            place = dict(zip(table.verdict.dims, index, strict=True))
            here = table.isel(place)
            batch = "".join(
                f"{dim} {here[dim].item() if dim in table.coords else place[dim]}, " for dim in _batch_axes(table)
            )
            check, (seen, low, high) = here.check.item(), (float(here[name]) for name in ("seen", "low", "high"))
            wrong = f"exceeds {high:.4g}" if seen > high or not low > -np.inf else f"is below {low:.4g}"
            since = _since(check, int(here["round"]))
            found.append(f"{batch}{check}, level {_level(here)}: {seen:.4g} {wrong}{since}")
        return found

    def __repr__(self) -> str:
        table = self.dataset
        size = int(np.prod([table.sizes[dim] for dim in _batch_axes(table)]))
        claimed = [check for check in table.check.values if (table.verdict.sel(check=check) != "no claim").any()]
        rows = [row for check in claimed for row in _rows(table, check)]
        widths = [max(len(row[k]) for row in (_HEAD, *rows)) for k in range(5)]
        what = "groups" if "group" in table.dims else "sequences"
        head = f"{table.attrs['rounds']:,} rounds" + (f", {size:,} {what}" if size > 1 else "")
        ruled, layout = "─" * (sum(widths) + 8), (str.ljust, str.rjust, str.rjust, str.rjust, str.ljust)
        first, *body = (
            "  ".join(put(cell, w) for put, cell, w in zip(layout, row, widths, strict=True)).rstrip()
            for row in (_HEAD, *rows)
        )
        failures = self.failures
        last = [f"{len(failures)} of the lines FAIL:", *failures[:10]] if failures else ["all lines pass"]
        if quiet := [check for check in table.check.values if check not in claimed]:
            last.append(f"no claim for this learner: {', '.join(quiet)}")
        return "\n".join([table.attrs["learner"], head, ruled, first, ruled, *body, ruled, *last])

    def _repr_html_(self) -> str:
        return f"<pre>{escape(repr(self))}</pre>"


_HEAD = ("check", "level", "seen", "allowed", "verdict")


def _batch_axes(table: "xr.Dataset") -> list[Any]:
    return [dim for dim in table.verdict.dims if dim not in ("check", "level")]


def _rows(table: "xr.Dataset", check: str) -> list[tuple[str, ...]]:
    """Write the lines of a check, one a level."""
    rows: list[tuple[str, ...]] = []
    for i in range(table.sizes["level"]):
        here = table.sel(check=check).isel(level=i)
        verdicts = here.verdict.values.ravel()
        failed = int((verdicts == "FAIL").sum())
        # Of a batch the sequence that is closest to its limit, or furthest beyond it: most of what is allowed is used.
        values = [here[name].values.ravel() for name in ("seen", "low", "high", "round")]
        least = np.where(np.isfinite(values[1]), values[1], 0)
        with np.errstate(divide="ignore", invalid="ignore"):
            used = np.abs(values[0] - (least + values[2]) / 2) / ((values[2] - least) / 2)
        tight = int(np.argmax(np.nan_to_num(used, nan=0.0) + 10 * (verdicts == "FAIL")))
        seen, low, high, first = (part[tight] for part in values)
        allowed = f"≤ {high:.4g}" if not low > 0 else f"{low:.4f} … {high:.4f}"
        verdict = verdicts[0] if verdicts.size == 1 else (f"FAIL in {failed:,}" if failed else "pass")
        where = _since(check, int(first)) if failed else ""
        rows.append((check if i == 0 else "", _level(here), f"{seen:.4g}", allowed, verdict + where))
    return rows


def _level(here: "xr.Dataset") -> str:
    """Write a level; where sequences have levels of their own, its place."""
    own = np.unique(here["levels"].values) if "levels" in here else np.atleast_1d(here.level.values)
    return f"{own[0]:g}" if own.size == 1 and not here.attrs["changing"] else f"#{int(here.level)}"


def _since(check: str, first: int) -> str:
    """Name the round from which a check fails; coverage is one number for all rounds."""
    return "" if check == "coverage" else f" from round {first:,} on"


def certify(run: Any, delta: Scalar = 0.01) -> Certificate:
    """
    Check a run against every theorem that speaks of it.

    * **order**: no higher level ever has a smaller threshold.
    * **optimality**: every threshold minimises the regularised loss of its round (Theorem 1, Theorem 6), counted anew
      from the scores; that of a head at the level that it asks its belief for. This is what a single wrong threshold
      fails.
    * **regret**: at no horizon above its bound on this path (Theorems 2 and 5, and that for
      :class:`dpconformal.Corrected`; :func:`path_bound`), whatever the data.
    * **discounted regret**: the same with a discount (Theorem 6), at horizons that together see every round.
    * **coverage**: within the band that each level, by itself, leaves with probability δ at most if the scores are iid.
      A failure says that they are not, or that the thresholds are wrong.

    A run of :class:`dpconformal.Hierarchical` is judged group by group, each by its own rounds, against the bounds for
    a group (:func:`group_regret_bound`). That any group leaves its band of coverage has probability δ at most, for each
    level. That a threshold is the right quantile is checked with the learner's own belief.

    Where scores became known late, a threshold is held to the scores that were known, and the regret of an undiscounted
    belief with a uniform prior and a fresh start to :func:`delayed_regret_bound`; nothing is claimed of coverage.

    Parameters
    ----------
    run : Replay
        One sequence or a batch, from a fresh or an earlier state. Where levels change by round nothing is claimed of
        regret. A learner that is neither :class:`dpconformal.Exact`, :class:`dpconformal.Quantized` nor a head on one
        of them is held to the regret and coverage that ``Exact()`` guarantees on the same support. Rounds whose score
        is missing are not judged.
    delta : float
        δ in (0, 1), for each level.

    Returns
    -------
    Certificate
        Prints as a table; ``passed``, ``failures`` and ``dataset``.

    Examples
    --------
    >>> import dpconformal as dpc
    >>> run = dpc.replay(dpc.Exact(), dpc.streams.iid(500), levels=[0.5, 0.9])
    >>> dpc.theory.certify(run).passed
    True
    >>> wrong = run._replace(thresholds=run.thresholds.at[321, 1].set(0.1))
    >>> print("; ".join(dpc.theory.certify(wrong).failures))  # doctest: +ELLIPSIS
    order, level 0.5: 1 exceeds 0 from round 322 on; ...
    """
    import xarray as xr

    delta, run = float(check_scalar("delta", delta, 0.0, 1.0, open_low=True, open_high=True)), checked_run(run)
    if not is_traced(run.levels) and np.ndim(run.levels) == np.ndim(run.thresholds) > 1 and np.size(run.levels):
        rows: Any = np.reshape(np.asarray(run.levels), (-1, np.shape(run.levels)[-1]))
        if (rows == rows[0]).all():  # levels that only seem to change are written once
            run = run._replace(levels=rows[0])
    if run.weights is not None:
        raise ValueError("run.weights: certificates are for scores that count alike; replay without weights")
    shape = np.shape(run.thresholds)
    changing = np.ndim(run.levels) == len(shape)
    axes, lead, coords = batch_axes(run), shape[:-2], dict[str, Any](check=list(CHECKS), level=np.arange(shape[-1]))
    by_group = isinstance(run.learner, Hierarchical) and run.context is not None and not not_at_once(run)
    groups = groups_of(run.learner.tree, run.context) if by_group else {}
    found: list[list[Check]] = []  # of each sequence, or of each group of each sequence
    for index, whole in sequences(run, observed=False, changing=True):
        parts = checks_by_group(whole, delta, list(groups)) if by_group else [checks_of(whole, delta)]
        # As the user counts rounds, those without a score among them.
        here = np.arange(shape[-2]) if run.mask is None else np.flatnonzero(~np.asarray(run.mask)[index])
        rounds = np.concatenate([[0], here + 1])
        found += [[check._replace(round=rounds[check.round]) for check in checks] for checks in parts]
    if by_group:
        coords["group"] = list(groups.values())
        axes, lead = [*axes, "group"], (*lead, len(coords["group"]))
    stacked = {}
    for name in Check._fields:
        values = np.array([[getattr(check, name) for check in checks] for checks in found])
        stacked[name] = values.reshape(*lead, len(CHECKS), 1 if name == "claimed" else shape[-1])
    claimed = stacked.pop("claimed").astype(bool)  # which depends on the delay
    verdict = np.where(~claimed, "no claim", np.where(stacked["round"] > 0, "FAIL", "pass"))
    variables: dict[str, Any] = {name: ([*axes, "check", "level"], value) for name, value in stacked.items()}
    variables["verdict"] = ([*axes, "check", "level"], verdict)
    if np.ndim(run.levels) == 1:
        coords["level"] = as_written(np.asarray(run.levels))
    elif not changing:
        variables["levels"] = ([*axes[: len(shape) - 2], "level"], np.asarray(run.levels))
    longest = int(np.max(round_counts(run.mask, shape[-2]), initial=0))
    attrs = {"learner": repr(run.learner), "rounds": longest, "delta": delta}
    return Certificate(xr.Dataset(variables, coords, attrs | {"changing": int(changing)}))


class Check(NamedTuple):
    """A check, level by level."""

    seen: np.ndarray  # (A,), what the run did
    low: np.ndarray  # (A,), what is allowed, rounding included; NaN where nothing is claimed
    high: np.ndarray  # (A,)
    round: np.ndarray  # (A,), the first, from 1 at the start of the run, by which the check has failed; 0 if it passes
    claimed: bool = True  # whether anything is claimed for this learner


def checks_of(whole: Replay, delta: float) -> tuple[Check, ...]:
    """Check order, optimality, regret, discounted regret and coverage of one sequence, masked rounds and all."""
    run, path = whole.observed(), path_of(whole)
    order, optimality = order_check(run), optimality_check(run, path)
    regret = regret_check(run, regret_and_bound(whole, path))
    discounted = no_claim(run) if not_at_once(whole) else discounted_check(run, path)
    found = order, optimality, regret, discounted, coverage_check(whole, path, delta)
    # What is proved of groups is not proved of all rounds together, and what is proved of PITs not of scores.
    if isinstance(whole.learner, (Hierarchical, Recalibrated)):
        return (order, *(no_claim(check.seen) for check in found[1:]))
    return found


def no_claim(seen: np.ndarray | Replay) -> Check:
    """Return a check that shows what was seen, nothing of a run, and claims nothing."""
    seen = seen if isinstance(seen, np.ndarray) else np.full(seen.thresholds.shape[-1], np.nan)
    nothing = np.full(seen.shape, np.nan)
    return Check(seen, nothing, nothing, np.zeros(seen.shape, int), False)


def order_check(run: Replay) -> Check:
    """Check that no higher level has a smaller threshold: rounds in which a level crosses another."""
    arrays = arrays_of(run)
    involved = find_crossings(arrays.thresholds, arrays.levels)[1]
    nothing = np.zeros(involved.shape[-1])
    return Check(involved.sum(axis=0).astype(float), nothing, nothing, _first_failure(involved))


def _first_failure(failed: np.ndarray) -> np.ndarray:
    if not failed.shape[0]:
        return np.zeros(failed.shape[1], int)
    return np.where(failed.any(axis=0), failed.argmax(axis=0) + 1, 0)


def optimality_check(run: Replay, path: Path | None) -> Check:
    """Check that each threshold minimises the regularised loss of its round (Theorems 1 and 6), up to rounding."""
    if path is None:
        return no_claim(run)
    return gap_check(run, optimality_gap(path, precision(run)), path.learner.prior)


def gap_check(run: Replay, gap: np.ndarray, prior: Prior) -> Check:
    """Hold the gaps between levels and what the thresholds reach, (N, A), to what rounding may do."""
    allowed = max(1e-9, 256 * precision(run))
    if np.asarray(run.thresholds).dtype == np.float32 and not getattr(prior, "closed_form", False):
        # How well the prior's cdf is known in single precision: a beta with large shapes is a hard one.
        x = np.asarray(prior.quantile(np.linspace(0.01, 0.99, 99, dtype=np.float32)), np.float32)
        allowed += 4 * float(np.max(np.abs(np.asarray(prior.cdf(x), float) - moments.cdf(prior, x))))
    gap = np.abs(gap)
    high = np.full(gap.shape[1], allowed)
    return Check(gap.max(axis=0, initial=0), np.zeros(gap.shape[1]), high, _first_failure(~(gap <= high)))


def precision(run: Replay) -> float:
    """Return the rounding unit of the thresholds."""
    dtype = np.asarray(run.thresholds).dtype
    return float(np.finfo(dtype if np.issubdtype(dtype, np.floating) else float).eps)


def regret_check(run: Replay, found: Regret | None, memory: float = np.inf) -> Check:
    """Hold the regret to its bound, plus the rounding of one threshold a round of memory; without a bound show it."""
    if found is None:
        curve = regret_curve(run.thresholds, run.scores, run.levels)[0]
        return no_claim(curve[-1] if len(curve) else np.zeros(curve.shape[1]))
    sizes = np.abs(np.concatenate([np.ravel(run.scores), np.ravel(run.thresholds)]).astype(float))
    scale = float(np.max(sizes, initial=0, where=np.isfinite(sizes)))
    bound = found.bound + 2 * precision(run) * scale * np.minimum(found.horizons, memory)[:, None]
    late = ~(found.regret <= bound)
    where = np.where(late.any(axis=0), found.horizons[late.argmax(axis=0)], 0)
    # What is shown is the end of the run, or where the bound is exceeded most.
    excess = np.where(late, np.nan_to_num(found.regret - bound, nan=-1e300), -np.inf)
    shown = np.where(where > 0, excess.argmax(axis=0), found.horizons.size - 1)
    columns = np.arange(shown.size)
    return Check(found.regret[shown, columns], np.full(shown.size, -np.inf), bound[shown, columns], where)


def discounted_check(run: Replay, path: Path | None) -> Check:
    """Check the discounted regret against its bound, at horizons that together see every round (Theorem 6)."""
    rounds = run.scores.shape[0]
    if path is None or path.discount == 1 or not rounds or path.levels.ndim == 2:
        return no_claim(run)
    memory = max(int(1 / (1 - path.discount)), 1)
    horizons = np.unique(np.append(np.arange(memory, rounds, memory), rounds))
    return regret_check(run, discounted_regret(path, horizons), 1 / (1 - path.discount))


def coverage_check(whole: Replay, path: Path | None, delta: float) -> Check:
    """
    Check the coverage of one sequence; a head is held to what it asks its belief for.

    Without a path the run is held to what Exact guarantees. No claim with a delay or a discount, nor for bins that
    round to the nearest: scores that count at the centre of their bin may lie above it, unless a head raises the
    thresholds.
    """
    run = whole.observed()
    promised = path is None or (path.discount == 1 and (path.head is not None or not rounds_to_nearest(run.learner)))
    if not np.size(run.scores) or not promised or not_at_once(whole):
        return no_claim(metrics.coverage(run))
    if path is None:
        rounds, schedule, asked = np.arange(1.0, run.scores.shape[0] + 1), None, np.asarray(run.levels, float)
    else:
        rounds, schedule, asked = path.rounds, path.learner.schedule, path.asked
    belief = run.learner.learner if isinstance(run.learner, Head) else run.learner
    bins = bins_of(run) if isinstance(belief, Quantized) else None
    return coverage_if_iid(run, asked, rounds - 1, np.asarray(concentration(rounds, schedule)), bins, delta)


def coverage_if_iid(
    run: Replay, asked: np.ndarray, count: np.ndarray, weight: np.ndarray, bins: int | None, delta: float
) -> Check:
    """
    Hold a coverage to the band that iid scores leave with probability ``delta`` at most, level by level.

    The belief was asked for levels, (A,) or (T, A), knew a ``count`` of scores in each round, and had a concentration
    of ``weight``.
    """
    # Under exchangeability the ranks of the scores at their arrival are independent. A threshold lies between two order
    # statistics of known ranks (coverage_bracket), so the number of covered rounds lies between two sums of independent
    # coins, whose quantiles are the band.
    thresholds, scores = np.asarray(run.thresholds), np.asarray(run.scores)
    rounding, seen = 4 * precision(run), metrics.coverage(run)
    # Ties raise the upper end, by the covered rounds whose score counts at the threshold or above it.
    ties = tied_rounds(run.learner, bins, scores, thresholds).mean(axis=0)
    low, high = np.empty((2, seen.size))
    for i, level in enumerate(np.broadcast_to(asked, thresholds.shape).T):
        least = rank_bracket(np.maximum(level - rounding, 0), count, weight)[0] / (count + 1)
        most = rank_bracket(np.minimum(level + rounding, 1), count, weight)[1] / (count + 1)
        low[i] = lower_count(least, delta / 2) / scores.size
        high[i] = min(upper_count(most, delta / 2) / scores.size + ties[i], 1)
    return Check(seen, low, high, np.where((seen >= low) & (seen <= high), 0, scores.size))


def checks_by_group(whole: Replay, delta: float, groups: list[int]) -> list[tuple[Check, ...]]:
    """
    Check order, optimality, regret, discounted regret and coverage of some groups.

    Nothing is claimed of groups without rounds, nothing of the regret and coverage of groups with groups below them,
    and nothing of the regret at levels that change by round.
    """
    run, path, bounded, learner = whole.observed(), group_path(whole), bounded_groups(whole), whole.learner
    changing = np.ndim(run.levels) == 2
    levels = np.asarray(run.levels, float) if changing else as_written(np.asarray(run.levels))
    gap = np.maximum(np.maximum(levels - path.reached, path.below - levels), 0)
    gap = np.where(np.isnan(path.reached), np.inf, gap)
    found: list[tuple[Check, ...]] = []
    for group in groups:
        here = np.flatnonzero(path.nodes == group)
        nothing = no_claim(run)
        if not here.size:
            found.append((nothing,) * 5)
            continue
        own = run._replace(mask=path.nodes != group).observed()
        of_regret, of_coverage = None, no_claim(metrics.coverage(own))
        if group in bounded and not changing:
            curve = regret_curve(own.thresholds, own.scores, own.levels)[0]
            of_regret = Regret(np.arange(1, here.size + 1), curve, group_bound_by_round(learner, path, group, levels))
        if group in bounded and not rounds_to_nearest(learner):
            # The concentration of the group itself: the bracket asks nothing of the parent's belief.
            weight = group_concentration(path.weights[here, nodes_of(learner.tree).levels[group]])
            asked, count = levels[here] if changing else levels, np.arange(here.size)
            of_coverage = coverage_if_iid(own, asked, count, weight, learner.bins, delta / len(bounded))
        optimality = gap_check(own, gap[here], learner.prior)
        checks = order_check(own), optimality, regret_check(own, of_regret), nothing, of_coverage
        rounds = np.concatenate([[0], here + 1])  # as the run counts them
        found.append(tuple(check._replace(round=rounds[check.round]) for check in checks))
    return found


EXACT_COUNTS = 2**14  # events up to which the distribution of their count is computed; Chernoff bounds it beyond


def upper_count(chances: np.ndarray, tail: float) -> int:
    """Return the least number that a count of events exceeds with probability ``tail`` at most, or one above it."""
    rounds = chances.size
    if rounds <= EXACT_COUNTS:
        at_least = np.cumsum(_distribution(chances)[::-1])[::-1]  # P(count ≥ k)
        return int(np.searchsorted(-at_least, -tail - 1e-12)) - 1
    # P(count ≥ K'(θ)) ≤ exp(K(θ) - θ K'(θ)), K being the logarithm of the moment generating function.
    inner = chances[(chances > 0) & (chances < 1)]
    certain = int((chances >= 1).sum())
    small, large = 0.0, 50.0
    for _ in range(60):
        theta = (small + large) / 2
        tilted = special.expit(theta + special.logit(inner))
        rate = theta * tilted.sum() - np.log1p(inner * np.expm1(theta)).sum()
        small, large = (theta, large) if rate < -np.log(tail) else (small, theta)
    return min(certain + int(np.ceil(tilted.sum())), rounds)


def lower_count(chances: np.ndarray, tail: float) -> int:
    """Return a number that the count of events falls below with probability ``tail`` at most."""
    return chances.size - upper_count(1 - chances, tail)


def _distribution(chances: np.ndarray) -> np.ndarray:
    """P(count = k): distributions of halves, convolved pairwise by FFT."""
    rows = np.stack([1 - chances, chances], axis=1)
    while rows.shape[0] > 1:
        if rows.shape[0] % 2:
            rows = np.concatenate([rows, np.eye(1, rows.shape[1])])  # a coin that never shows heads
        size = 2 * rows.shape[1] - 1
        points = 1 << (size - 1).bit_length()
        spectrum = np.fft.rfft(rows, points, axis=1)
        rows = np.maximum(np.fft.irfft(spectrum[::2] * spectrum[1::2], points, axis=1)[:, :size], 0)
    return rows[0] if rows.size else np.ones(1)
