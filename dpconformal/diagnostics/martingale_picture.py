"""A picture of bets against exchangeability: capital over time, and when it makes an alarm."""

from typing import Any

import numpy as np

from dpconformal.canvas import FAINT, INK, OURS, as_label, pyplot, quiet
from dpconformal.martingales import Exchangeability, exchangeability

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
