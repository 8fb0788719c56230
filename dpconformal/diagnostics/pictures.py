"""Pictures of one run or one set of numbers: uniformity, coverage by level, coverage along the run."""

from typing import Any

import numpy as np

from dpconformal.diagnostics.coverage import coverage_curve, rolling_band
from dpconformal.diagnostics.uniformity import Uniformity, uniformity
from dpconformal.display.figures import FAINT, INK, OURS, as_label, panels, pyplot, quiet
from dpconformal.martingales import Exchangeability, exchangeability
from dpconformal.replay import Replay
from dpconformal.validation import Scalar

BAND = "#e8e2d9"  # what chance allows


def plot_uniformity(pits: Any, prob: Scalar = 0.95, coverage: bool = False, ax: Any = None) -> Any:
    """
    Draw how far the ECDF is from the diagonal, with the band that it should stay in.

    Parameters
    ----------
    pits : array_like or Uniformity
        Numbers in [0, 1]; or what :func:`dpconformal.diagnostics.uniformity.uniformity` found, which has settled
        ``prob`` and ``coverage``.
    prob : float
        Probability that iid uniform numbers stay inside the band.
    coverage : bool
        Whether to draw the coverage of central intervals.
    ax : matplotlib Axes, optional
        Where to draw; a new figure by default.

    Returns
    -------
    matplotlib Axes
        With the picture; grid points outside the band are marked.
    """
    found = pits if isinstance(pits, Uniformity) else uniformity(pits, prob, coverage=coverage)
    ax = _axes(ax, 5.6, 3.4)
    grid, low, high, line = (
        np.concatenate([[0.0], part, [end]])
        for part, end in ((found.grid, 1.0), (found.low, 0.0), (found.high, 0.0), (found.difference, 0.0))
    )
    ax.fill_between(grid, low, high, color=BAND, linewidth=0, label=f"{found.prob:.4g} band")
    ax.axhline(0, color=FAINT, linewidth=0.8)
    ax.plot(grid, line, color=OURS, linewidth=1.5)
    outside = (line < low - 1e-9) | (line > high + 1e-9)
    ax.plot(grid[outside], line[outside], linestyle="", marker="o", markersize=3, color=INK, label="outside")
    what = ("mass of the central interval", "coverage − mass") if found.coverage else ("u", "ECDF − u")
    verdict = "inside the band" if found.inside else f"leaves the band at {found.first_outside:.2g}"
    ax.set(xlabel=what[0], ylabel=what[1], xlim=(0, 1), title=f"{found.size:,} numbers: {verdict}")
    return ax


def plot_coverage(run: Replay, prob: Scalar = 0.95, delta: Scalar = 0.05, ax: Any = None) -> Any:
    """
    Draw by how much the coverage of each level is off, with both bands of its uncertainty.

    Parameters
    ----------
    run : Replay
        One sequence, with the same levels every round.
    prob : float
        Confidence of the intervals of Clopper and Pearson, drawn as bars.
    delta : float
        Probability that iid scores leave the band of the theory, which is shaded, and that of Theorem 3, dashed.
    ax : matplotlib Axes, optional
        Where to draw; a new figure by default.

    Returns
    -------
    matplotlib Axes
        With the picture; levels outside the band of the theory are crosses.
    """
    _one_sequence(run)
    data = coverage_curve(run, prob, delta).sortby("level")
    ax = _axes(ax, 6.4, 3.8)
    level, seen = data.level.values, data.coverage.values
    low, high = (data[name].values - level for name in ("band_low", "band_high"))
    claimed = data.claimed.values
    if claimed.any():
        label = f"theory, iid scores ({1 - data.attrs['delta']:.4g})"
        ax.fill_between(level[claimed], low[claimed], high[claimed], color=BAND, linewidth=0, label=label)
        # A band of few levels is hard to read between them.
        ax.vlines(level[claimed], low[claimed], high[claimed], color="#cfc4b4", linewidth=5 if level.size < 12 else 0)
    bounds = [data[name].values - level for name in ("theorem_low", "theorem_high")]
    if np.isfinite(bounds).all():
        for i, bound in enumerate(bounds):
            name = None if i else f"Theorem 3, the last threshold ({1 - data.attrs['delta']:.4g})"
            ax.plot(level, bound, color=FAINT, linewidth=0.9, linestyle="--", label=name)
    ax.axhline(0, color=FAINT, linewidth=0.8)
    bars = np.stack([seen - data.low.values, data.high.values - seen])
    for passed, marker in ((True, "o"), (False, "X")):
        here = data.passed.values == passed
        if here.any():
            label = f"coverage, Clopper–Pearson ({data.attrs['prob']:.4g})" if passed else "outside the theory's band"
            colour = OURS if passed else INK
            style = {"linestyle": "", "markersize": 5, "linewidth": 1.2, "label": label}
            ax.errorbar(level[here], seen[here] - level[here], bars[:, here], marker=marker, color=colour, **style)
    ax.set(xlabel="level", ylabel="coverage − level", title=f"Coverage over {data.attrs['rounds']:,} rounds")
    _legend_below(ax)
    return ax


def plot_rolling(run: Replay, window: int, prob: Scalar = 0.95) -> Any:
    """
    Draw the coverage along a run, with the band that it leaves nowhere if misses are pure chance.

    Parameters
    ----------
    run : Replay
        One sequence, with the same levels every round.
    window : int
        Rounds that each point averages over.
    prob : float
        Probability that the coverage of a level stays inside its band over the whole run.

    Returns
    -------
    matplotlib Figure
        A panel a level, the highest level on top; rounds outside the band are dark.
    """
    _one_sequence(run)
    data = rolling_band(run, window, prob).sortby("level", ascending=False)
    rows = data.sizes["level"]
    figure, axes = panels(rows, 1, 7.6, 0.9 + 1.5 * rows, sharex=True)
    time = data.time.values
    for i, ax in enumerate(axes[:, 0]):
        here = data.isel(level=i)
        level, seen, low, high = (here[name].values for name in ("level", "coverage", "low", "high"))
        ax.axhspan(low, high, color=BAND, linewidth=0, label=f"all windows ({data.attrs['prob']:.4g})")
        for j, name in enumerate(("pointwise_low", "pointwise_high")):
            ax.axhline(here[name].values, color=FAINT, linewidth=0.8, linestyle=":", label=None if j else "one window")
        ax.axhline(level, color=FAINT, linewidth=0.8)
        ax.plot(time, seen, color=OURS, linewidth=1.2, label="coverage")
        outside = (seen < low - 1e-9) | (seen > high + 1e-9)
        if outside.any():
            ax.plot(time, np.where(outside, seen, np.nan), color=INK, linewidth=2.2, label="outside")
        verdict = "" if here.passed else f": leaves the band in round {time[outside.argmax()]:,}"
        ax.set_title(f"level {float(level):g}{verdict}", fontsize=9.5, loc="left")
    axes[-1, 0].set_xlabel("round")
    figure.supylabel(f"coverage of the last {window:,} rounds", fontsize=10)
    entries = {
        label: handle for ax in axes[:, 0] for handle, label in zip(*ax.get_legend_handles_labels(), strict=True)
    }
    figure.legend(list(entries.values()), list(entries), loc="outside upper center", ncols=4, frameon=False, fontsize=9)
    return figure


def _axes(ax: Any, width: float, height: float) -> Any:
    if ax is None:
        ax = pyplot().figure(figsize=(width, height), layout="constrained").add_subplot()
    return quiet(ax)


def _legend_below(ax: Any) -> None:
    """Put the legend under the axes, where no point can be."""
    ax.legend(loc="upper center", bbox_to_anchor=(0.5, -0.18), ncols=2, frameon=False, fontsize=9)


def _one_sequence(run: Replay) -> None:
    if np.ndim(run.thresholds) != 2 or np.ndim(run.levels) != 1:
        shapes = f"run.thresholds has shape {np.shape(run.thresholds)}, run.levels {np.shape(run.levels)}"
        raise ValueError(f"{shapes}: a picture shows one sequence with fixed levels")


_COLOURS = (OURS, "#1d6fb8", "#2e8b57", "#7b3fa0", "#8a6d1f", "#1a9ba1")


def plot_martingale(found: Any, threshold: Any = 100.0, seed: Any = 0, ax: Any = None) -> Any:
    """
    Draw the capital of one martingale or several over the rounds, and the round of the alarm.

    Parameters
    ----------
    found : array_like, Exchangeability or dict of Exchangeability
        Scores in time order; or what :func:`dpconformal.martingales.exchangeability` found in one sequence, which has
        settled ``threshold`` and ``seed``; or several of these by name, with one threshold.
    threshold : float
        The capital that makes an alarm.
    seed : int
        Of the ranks' smoothing.
    ax : matplotlib Axes, optional
        Where to draw; a new figure by default.

    Returns
    -------
    matplotlib Axes
        With the picture; alarms are points.
    """
    if not isinstance(found, (dict, Exchangeability)):
        found = exchangeability(found, threshold=threshold, seed=seed)
    paths: dict[str, Exchangeability] = found if isinstance(found, dict) else {"capital": found}
    _check(paths)
    alone = len(paths) == 1
    limit = next(iter(paths.values())).threshold
    if ax is None:
        ax = pyplot().figure(figsize=(7.2, 3.6), layout="constrained").add_subplot()
    quiet(ax)
    rounds = max(path.log_capital.size for path in paths.values())
    ax.axhline(0, color=FAINT, linewidth=0.8)
    ax.axhline(np.log10(limit), color=INK, linewidth=0.9, linestyle="--", label=f"alarm at {limit:g}")
    for i, (name, path) in enumerate(paths.items()):
        colour = _COLOURS[i % len(_COLOURS)]
        height = np.concatenate([[0.0], path.log_capital / np.log(10)])  # everyone begins with 1
        ax.plot(np.arange(height.size), height, color=colour, linewidth=1.3, label=as_label(name))
        if path.alarm:
            ax.plot(path.alarm, height[path.alarm], "o", color=colour, markersize=6, markeredgecolor="white", zorder=3)
    ax.set(xlabel="round", ylabel="log10 of the capital", xlim=(0, max(rounds, 1)))
    if alone:
        (path,) = paths.values()
        verdict = f"alarm in round {path.alarm:,}" if path.alarm else "no alarm"
        ax.set_title(f"{rounds:,} bets against exchangeability: {verdict}")
    else:
        ax.set_title(f"{rounds:,} bets against exchangeability")
    ax.legend(frameon=False, fontsize=9)
    return ax


def _check(paths: dict[str, Exchangeability]) -> None:
    if not paths:
        raise ValueError("found is empty: pass at least one Exchangeability")
    limits = {name: path.threshold for name, path in paths.items()}
    if len(set(limits.values())) > 1:
        raise ValueError(f"found has thresholds {limits}: a picture has one")
    for name, path in paths.items():
        if path.log_capital.ndim != 1:
            raise ValueError(
                f"found[{name!r}].log_capital has shape {path.log_capital.shape}: a picture shows one sequence"
            )
