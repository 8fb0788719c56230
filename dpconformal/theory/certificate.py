"""A certificate for a run: what the theorems promise, beside what happened."""

from dataclasses import dataclass
from html import escape
from typing import Any

import numpy as np

from dpconformal.compositions import Hierarchical
from dpconformal.metrics.arrays import batch_axes, checked_run
from dpconformal.metrics.summary import as_written
from dpconformal.replay import Replay
from dpconformal.rounds import round_counts
from dpconformal.runs import not_at_once
from dpconformal.theory.checks import Check, checks_of
from dpconformal.theory.groups import checks_by_group, group_names, groups_of
from dpconformal.theory.path import sequences
from dpconformal.validation import Scalar, check_scalar, is_traced

CHECKS = ("order", "optimality", "regret", "discounted regret", "coverage")


@dataclass(frozen=True)
class Certificate:
    """
    What :func:`certify` found. Prints as a table.

    Attributes
    ----------
    dataset : xarray.Dataset
        Over ``check`` and ``level`` (and ``batch`` axes): ``seen``, what the run did; ``low`` and ``high``, what is
        allowed; ``verdict``, "pass", "FAIL" or "no claim"; ``round``, the first round by which the check has failed,
        0 if it passes. Where levels change by round, or differ between sequences, ``level`` counts them.
    """

    dataset: Any

    @property
    def passed(self) -> bool:
        """Whether no line fails."""
        return not bool((self.dataset.verdict == "FAIL").any())

    @property
    def failures(self) -> list[str]:
        """What failed and where, a sentence each."""
        table, found = self.dataset, []
        for index in np.argwhere(table.verdict.values == "FAIL"):
            here = table.isel(dict(zip(table.verdict.dims, index, strict=True)))
            batch = "".join(
                f"{dim} {here[dim].item() if dim in table.coords else int(i)}, "
                for dim, i in zip(table.verdict.dims, index, strict=True)
                if dim in _batch_axes(table)
            )
            seen, low, high = (float(here[name]) for name in ("seen", "low", "high"))
            wrong = f"exceeds {high:.4g}" if seen > high or not low > -np.inf else f"is below {low:.4g}"
            what = f"{batch}{here.check.item()}, level {_level(here)}"
            found.append(f"{what}: {seen:.4g} {wrong}{_since(here.check.item(), int(here['round']))}")
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


def _batch_axes(table: Any) -> list[str]:
    return [dim for dim in table.verdict.dims if dim not in ("check", "level")]


def _rows(table: Any, check: str) -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = []
    for i in range(table.sizes["level"]):
        here = table.sel(check=check).isel(level=i)
        verdicts = here.verdict.values.ravel()
        failed = int((verdicts == "FAIL").sum())
        # Of a batch the sequence that is closest to its limit, or furthest beyond it.
        tight = int(np.argmax(_used(here).ravel()))
        seen, low, high = (float(here[name].values.ravel()[tight]) for name in ("seen", "low", "high"))
        allowed = f"≤ {high:.4g}" if not low > 0 else f"{low:.4f} … {high:.4f}"
        first = int(here["round"].values.ravel()[tight])
        verdict = verdicts[0] if verdicts.size == 1 else (f"FAIL in {failed:,}" if failed else "pass")
        where = _since(check, first) if failed else ""
        rows.append((check if i == 0 else "", _level(here), f"{seen:.4g}", allowed, verdict + where))
    return rows


def _level(here: Any) -> str:
    """Write a level; where sequences have levels of their own, its place."""
    own = np.unique(here["levels"].values) if "levels" in here else np.atleast_1d(here.level.values)
    return f"{own[0]:g}" if own.size == 1 and not here.attrs["changing"] else f"#{int(here.level)}"


def _since(check: str, first: int) -> str:
    """Say from when on a check fails; coverage is one number for all rounds."""
    return "" if check == "coverage" else f" from round {first:,} on"


def _used(here: Any) -> Any:
    """How much of what is allowed was used up: above 1 is too much."""
    seen, low, high = (np.asarray(here[name].values, float) for name in ("seen", "low", "high"))
    low = np.where(np.isfinite(low), low, 0)
    with np.errstate(divide="ignore", invalid="ignore"):
        used = np.abs(seen - (low + high) / 2) / ((high - low) / 2)
    return np.asarray(np.nan_to_num(used, nan=0.0) + 10 * (here.verdict.values == "FAIL"))


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

    delta = float(check_scalar("delta", delta, 0.0, 1.0, open_low=True, open_high=True))
    run = _with_fixed_levels(checked_run(run))
    if run.weights is not None:
        raise ValueError("run.weights: certificates are for scores that count alike; replay without weights")
    shape = np.shape(run.thresholds)
    changing = np.ndim(run.levels) == len(shape)
    axes, lead, coords = batch_axes(run), shape[:-2], dict[str, Any](check=list(CHECKS), level=np.arange(shape[-1]))
    by_group = isinstance(run.learner, Hierarchical) and run.context is not None and not not_at_once(run)
    found: list[list[Check]] = []  # of each sequence, or of each group of each sequence
    for index, whole in sequences(run, observed=False, changing=True):
        parts = checks_by_group(whole, delta, groups_of(run)) if by_group else [checks_of(whole, delta)]
        # As the user counts rounds, those without a score among them.
        here = np.arange(shape[-2]) if run.mask is None else np.flatnonzero(~np.asarray(run.mask)[index])
        rounds = np.concatenate([[0], here + 1])
        found += [[check._replace(round=rounds[check.round]) for check in checks] for checks in parts]
    if by_group:
        coords["group"] = group_names(run)
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


def _with_fixed_levels(run: Replay) -> Replay:
    """Write levels that are the same in every round and sequence once, not in each of them."""
    if is_traced(run.levels) or not np.ndim(run.levels) == np.ndim(run.thresholds) > 1 or not np.size(run.levels):
        return run
    rows: Any = np.reshape(np.asarray(run.levels), (-1, np.shape(run.levels)[-1]))
    return run._replace(levels=rows[0]) if (rows == rows[0]).all() else run
