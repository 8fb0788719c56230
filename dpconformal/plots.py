"""Pictures of runs and learners, one function each. Matplotlib is imported when one is drawn."""

from typing import Any

import numpy as np

from dpconformal import metrics, streams
from dpconformal.display import FAINT, panels, pyplot, quiet
from dpconformal.learner import Learner
from dpconformal.metrics.arrays import arrays_of, observed_rounds
from dpconformal.replay import Replay, replay
from dpconformal.validation import Numbers

__all__ = ["behaviour", "coverage", "thresholds"]


def thresholds(run: Replay, ax: Any = None) -> Any:
    """
    Draw the scores as dots and the threshold of each level as a line.

    Parameters
    ----------
    run : Replay
        One sequence, with the same levels every round.
    ax : matplotlib Axes, optional
        Where to draw; a new figure by default.

    Returns
    -------
    matplotlib Axes
        With the picture.
    """
    check_one_sequence(run)
    # A round without a score has thresholds, and no dot: Matplotlib leaves NaN out.
    series, scores, levels = (np.asarray(part, float) for part in (run.thresholds, run.scores, run.levels))
    ax, time = axes_or_new(ax, 8.0, 4.0), np.arange(1, scores.size + 1)
    ax.scatter(time, scores, s=6, color=FAINT, alpha=0.35, linewidths=0, label="scores", rasterized=True)
    heights = []
    for column, colour in zip(series.T, shades(len(levels)), strict=True):
        ax.plot(time, column, color=colour, linewidth=1.6)
        heights.append(np.append(np.nan, column[np.isfinite(column)])[-1])
    _label_lines(ax, scores.size, heights, levels)
    ax.set(xlabel="round", ylabel="score", title="Thresholds by confidence level")
    return ax


def coverage(run: Replay, window: int = 250, ax: Any = None) -> Any:
    """
    Draw the rolling coverage of each level against its target.

    Parameters
    ----------
    run : Replay
        One sequence, with the same levels every round.
    window : int
        Rounds that each point averages over.
    ax : matplotlib Axes, optional
        Where to draw; a new figure by default.

    Returns
    -------
    matplotlib Axes
        With the picture: a solid line a level, its target dashed.
    """
    check_one_sequence(run)
    series, levels = np.asarray(metrics.rolling_coverage(run, window)), np.asarray(run.levels, float)
    ax, time = axes_or_new(ax, 8.0, 4.0), observed_rounds(run)[window - 1 :]
    for column, level, colour in zip(series.T, levels, shades(len(levels)), strict=True):
        ax.hlines(level, time[0], time[-1], color=colour, linewidth=0.8, linestyle=(0, (4, 3)), alpha=0.8)
        ax.plot(time, column, color=colour, linewidth=1.6)
    _label_lines(ax, int(time[-1]), levels, levels)
    ax.set(xlabel="round", ylabel="coverage", title=f"Coverage over the last {window} rounds (target dashed)")
    return ax


def behaviour(learner: Learner, levels: Numbers = (0.5, 0.9), rounds: int = 600, seed: int = 0) -> Any:
    """
    Draw how a learner behaves on iid, alternating and drifting scores.

    Parameters
    ----------
    learner : Learner
        On scores in [0, 1].
    levels : array_like
        Levels to ask for.
    rounds : int
        Rounds of each stream.
    seed : int
        Of the simulated streams, :mod:`dpconformal.streams`.

    Returns
    -------
    matplotlib Figure
        Three panels, each with the scores, the thresholds and the share of scores that they covered.
    """
    named = {
        "iid": streams.iid(rounds, seed),
        "alternating": streams.alternating(rounds),
        "drifting": streams.drifting(rounds, seed),
    }
    figure, axes = panels(1, 3, 11.0, 2.7, sharey=True)
    for ax, (name, scores) in zip(axes[0], named.items(), strict=True):
        run: Any = replay(learner, scores, levels)
        ax.set_ylim(-0.08, 1.12)  # before the labels are placed
        thresholds(run, ax)
        shares = ", ".join(f"{share:.2f}" for share in metrics.coverage(run))
        ax.set(title=f"{name}: covered {shares}", ylabel="score" if name == "iid" else "", ylim=(-0.08, 1.12))
    return figure


def axes_or_new(ax: Any, width: float, height: float) -> Any:
    """Return the axes given, or those of a new figure, without what a picture does not need."""
    if ax is None:
        ax = pyplot().figure(figsize=(width, height), layout="constrained").add_subplot()
    return quiet(ax)


def check_one_sequence(run: Replay) -> None:
    """Check that a picture can show a run."""
    shape = arrays_of(run).thresholds.shape
    if len(shape) != 2 or np.ndim(run.levels) != 1:
        raise ValueError(
            f"run.thresholds has shape {shape}, run.levels {np.shape(run.levels)}: a picture shows one sequence with "
            "fixed levels"
        )


def shades(count: int) -> list[Any]:
    """Return the colours of the levels, light to dark."""
    import matplotlib

    return [matplotlib.colormaps["viridis"](x) for x in np.linspace(0.82, 0.05, max(count, 1))[:count]]


def _label_lines(ax: Any, x: int, heights: Any, levels: np.ndarray) -> None:
    """Write each line's level at its end, pushed apart where lines end close together; none at a height of NaN."""
    low, high = ax.get_ylim()
    step, least = 0.055 * (high - low), -np.inf
    style = {"textcoords": "offset points", "va": "center", "annotation_clip": False}
    lines = zip(heights, levels, shades(len(levels)), strict=True)
    for height, level, colour in sorted((line for line in lines if np.isfinite(line[0])), key=lambda line: line[0]):
        least = max(height, least + step)
        ax.annotate(f"{level:g}", (x, least), (6, 0), color=colour, **style)
