"""Pictures of runs and learners, one function each. Matplotlib is imported when one is drawn."""

from typing import Any

import numpy as np

from dpconformal import metrics, streams
from dpconformal.display.figures import FAINT, panels, pyplot, quiet
from dpconformal.learner import Learner
from dpconformal.metrics import rolling_coverage
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
    ax = axes_or_new(ax, 8.0, 4.0)
    time = np.arange(1, scores.size + 1)
    ax.scatter(time, scores, s=6, color=FAINT, alpha=0.35, linewidths=0, label="scores", rasterized=True)
    labels = []
    for column, level, colour in zip(series.T, levels, shades(len(levels)), strict=True):
        ax.plot(time, column, color=colour, linewidth=1.6)
        finite = column[np.isfinite(column)]
        labels.append((finite[-1] if finite.size else np.nan, f"{level:g}", colour))
    _label_lines(ax, time[-1] if time.size else 0, labels)
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
    series, levels = np.asarray(rolling_coverage(run, window)), np.asarray(run.levels, float)
    ax = axes_or_new(ax, 8.0, 4.0)
    time = observed_rounds(run)[window - 1 :]
    labels = []
    for column, level, colour in zip(series.T, levels, shades(len(levels)), strict=True):
        ax.hlines(level, time[0], time[-1], color=colour, linewidth=0.8, linestyle=(0, (4, 3)), alpha=0.8)
        ax.plot(time, column, color=colour, linewidth=1.6)
        labels.append((level, f"{level:g}", colour))
    _label_lines(ax, time[-1], labels)
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
        ax.set_ylim(-0.08, 1.12)
        thresholds(run, ax)
        shares = ", ".join(f"{share:.2f}" for share in metrics.coverage(run))
        ax.set(title=f"{name}: covered {shares}", ylabel="score" if name == "iid" else "")
        ax.set_ylim(-0.08, 1.12)
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


def _label_lines(ax: Any, x: Any, labels: list[tuple[float, str, Any]]) -> None:
    """Write each line's level at its end, pushed apart where lines end close together."""
    low, high = ax.get_ylim()
    step, height = 0.055 * (high - low), -np.inf
    style = {"textcoords": "offset points", "va": "center", "annotation_clip": False}
    for y, text, colour in sorted((label for label in labels if np.isfinite(label[0])), key=lambda label: label[0]):
        height = max(y, height + step)
        ax.annotate(text, (x, height), (6, 0), color=colour, **style)
