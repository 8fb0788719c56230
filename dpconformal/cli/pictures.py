"""Pictures that the commands write."""

import itertools
from typing import Any

import jax.numpy as jnp
import numpy as np

import dpconformal as dpc
from dpconformal.display.figures import COLOURS, FAINT, INK, as_label, panels
from dpconformal.files import Recorded
from dpconformal.validation import format_level

_SPARE = ("#e0a100", "#d1495b", "#0b7a75", "#4b3f72", "#7fb800", "#8d5524", "#3d5a80")  # in none of our pictures


_DRAWN = 2**22  # rounds over time, at most; the latest


def draw_comparison(
    runs: dict[str, np.ndarray], recorded: Recorded, measured: Any, levels: list[float], level: float
) -> Any:
    """
    Draw thresholds and rolling coverage of every learner at one level, and coverage less level at all levels.

    ``runs``: Thresholds of each learner; those of the first series are drawn over time, the others count in the
    coverage.
    """
    figure, axes = panels(3, 1, 9.0, 9.0, height_ratios=[1, 1, 0.9])
    k = int(np.argmin(np.abs(np.asarray(levels) - level)))
    end = len(recorded.scores[0])
    drawn = slice(max(0, end - _DRAWN), end)
    scores = np.asarray(recorded.scores[0][drawn])
    rounds = scores.size
    window = max(1, min(rounds, max(50, rounds // 20)))
    time = np.arange(drawn.start + 1, end + 1)
    thin = max(1, rounds // 4000)
    height = float(np.ptp(scores)) or 1.0
    colours = _colours(list(runs))
    above, middle, below = axes[:, 0]
    above.scatter(time[::thin], scores[::thin], s=4, color=FAINT, alpha=0.4, linewidths=0)
    for name, thresholds in runs.items():
        own = np.asarray(thresholds[drawn, k])
        line = own[::thin]
        # Restless lines go thin and behind calm ones, which they would hide.
        restless = float(np.abs(np.diff(np.where(np.isfinite(line), line, 0))).sum())
        style = {"color": colours[name], "linewidth": 1.4, "label": as_label(name), "zorder": 3 + 1 / (1 + restless)}
        if colours[name] in _SPARE:  # a variant, which may lie upon what it varies
            style |= {"linestyle": (0, (5, 2)), "zorder": 5}
        above.plot(time[::thin], line, **style | {"linewidth": 0.6 if restless > 50 * height else 1.4})
        run = dpc.Replay(jnp.asarray(own[:, None]), None, jnp.asarray(scores), jnp.asarray([level]))
        rolling = np.asarray(dpc.metrics.rolling_coverage(run, window))[:, 0]
        middle.plot(time[window - 1 :][::thin], rolling[::thin], **style)
        row = measured[measured["learner"] == name].iloc[0]
        gap = [row[f"coverage {format_level(a)}"] - a for a in levels]
        below.plot(levels, gap, marker="o", markersize=4, **style)
    middle.axhline(level, color=INK, linewidth=0.8, linestyle=(0, (4, 3)))
    below.axhline(0, color=INK, linewidth=0.8, linestyle=(0, (4, 3)))
    which = "" if len(recorded.names) == 1 else f" of series {as_label(recorded.names[0])}"
    above.set(title=f"Thresholds of level {level:g}{which}, scores in grey", ylabel="score")
    middle.set(
        title=f"Coverage over the last {window:,} rounds{which} (target dashed)", xlabel="round", ylabel="coverage"
    )
    below.set(title="Coverage less level", xlabel="level", ylabel="difference")
    above.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0), frameon=False)
    return figure


def _colours(names: list[str]) -> dict[str, str]:
    """Give each learner the colour that it has in all our pictures, and variants of one colours of their own."""
    usual = {name.lower(): colour for name, colour in COLOURS.items()} | {"split": COLOURS["SplitConformal"]}
    chosen: dict[str, str] = {}
    for name in sorted(names, key=lambda name: ":" in name):
        colour = usual.get(name.split(":")[0], "")
        if colour and colour not in chosen.values():
            chosen[name] = colour
    spare = itertools.cycle(_SPARE)
    return chosen | {name: next(spare) for name in names if name not in chosen}
