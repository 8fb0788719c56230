"""``dpconformal compare``: several learners over the same scores, as a table and a picture."""

import itertools
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import jax.numpy as jnp
import numpy as np
import typer
from rich.table import Table

import dpconformal as dpc
from dpconformal.checkpoints.container import note, recall
from dpconformal.cli import options
from dpconformal.cli.jobs import (
    NUMBERS,
    hyperparameters_of,
    plan,
    replay_passes,
    replay_to_disk,
    resumable_job,
    tally,
)
from dpconformal.diagnostics.compare import jackknife_error, leave_out_blocks
from dpconformal.display import COLOURS, FAINT, INK, as_label, panels, save_figure, track
from dpconformal.display.terminal import Terminal, format_number, table
from dpconformal.files import Recorded, staging_folder
from dpconformal.learner import Learner
from dpconformal.validation import format_level

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

MEASURES = ("coverage", "loss", "mean_threshold")  # those with a standard error
_ERRORS = 50_000  # rounds of all series, up to which errors are computed unasked: they take 20 to 40 more replays
_LONG = 10.0  # seconds: what takes longer is not run again for the time without compiling
_SPARE = ("#e0a100", "#d1495b", "#0b7a75", "#4b3f72", "#7fb800", "#8d5524", "#3d5a80")  # in none of our pictures
_DRAWN = 2**22  # rounds over time, at most; the latest


@options.expand_groups
def compare(
    *,
    file: options.FileOptions,
    learners: Annotated[
        str,
        typer.Option(help=f"Any of {options.LEARNERS}; with settings of its own as in exact:discount=0.99."),
    ] = "exact,quantized,erm,ogd,aci,mvp,saocp",
    common: options.LearnerOptions,
    shown: Annotated[
        float | None, typer.Option("--level", help="Level of the pictures.", show_default="the one nearest to 0.9")
    ] = None,
    errors: Annotated[
        bool | None,
        typer.Option(
            "--errors/--no-errors",
            help="Standard errors, of another such record; they take 20 to 40 more replays of each learner.",
            show_default=f"up to {_ERRORS:,} rounds",
        ),
    ] = None,
    resume: options.Resume = False,
    out: Annotated[Path, typer.Option(help="Folder to write to.")] = Path("results/compare"),
) -> None:
    """
    Run several learners over the same scores: coverage, loss, crossings and time, as a table and a picture.

    What was interrupted goes on with --resume.

    Example: dpconformal compare scores.csv --learners exact,exact:discount=0.99,aci,saocp
    """
    options.use_float64()
    console = Terminal()
    levels = common.read_levels()
    if shown is not None and shown not in levels:
        raise ValueError(f"--level {shown:g}: must be one of --levels {common.levels}")
    level = min(levels, key=lambda a: abs(a - 0.9)) if shown is None else shown
    made = options.make_learners(learners, levels, common.settings())
    job = {"command": "compare", **file.describe(), "--levels": levels}
    job |= {"--learners": {name: repr(learner) for name, learner in made.items()}}
    job |= {"hyperparameters": hyperparameters_of(made)}
    with resumable_job(out, job, resume) as work:
        recorded = file.read(made, common.ends, work)
        runs, seconds = {}, {}
        for k, name in enumerate(track(list(made), "comparing")):
            runs[name], seconds[name] = _replay_timed(made[name], recorded, levels, work / str(k))
        with staging_folder(out, work) as folder:
            frame = measure_runs(runs, recorded, levels)
            if errors or (errors is None and recorded.total <= _ERRORS):
                frame = _add_errors(frame, made, recorded, levels)
            console.print(_comparison_table(frame, seconds, recorded, levels, level))
            frame.to_csv(folder / "compare.csv", index=False)
            # By themselves: everything else is the same whenever it is computed.
            frame[["learner"]].assign(seconds=list(seconds.values())).to_csv(folder / "times.csv", index=False)
            save_figure(draw_comparison(runs, recorded, frame, levels, level), folder / "compare.png")
            files = sorted(file.name for file in folder.iterdir())
    console.print(
        "[bold]loss[/bold]: mean quantile loss over all levels and rounds, the lower the better; ∞ where a threshold "
        "was infinite. [bold]width[/bold]: mean threshold. [bold]cross[/bold]: rounds in which a higher level got a "
        "smaller threshold. [bold]ms[/bold]: time of a compiled replay."
    )
    if "loss se" in frame:
        console.print(
            "[bold]±[/bold]: standard error, if another such record were made; blocks of this one are left out for it."
        )
    elif errors is None:
        console.print(f"No standard errors beyond {_ERRORS:,} rounds: ask with --errors.")
    console.say(f"written to {out}/: {', '.join(files)}")


def _replay_timed(learner: Learner, recorded: Recorded, levels: list[float], folder: Path) -> tuple[np.ndarray, float]:
    """Run, and once more for the time without compiling, unless that takes long."""
    thresholds, seconds = replay_to_disk(learner, recorded, levels, folder, show=False)
    known = recall(folder / "time.dpc", "time")
    if known is not None:
        return thresholds, float(known[0]["seconds"])
    if seconds <= _LONG:
        start = time.perf_counter()
        for _ in replay_passes(learner, recorded, levels, plan(learner, recorded, len(levels))):
            pass
        seconds = min(seconds, time.perf_counter() - start)
    note(folder / "time.dpc", "time", {"seconds": seconds}, {})
    return thresholds, seconds


def measure_runs(runs: dict[str, np.ndarray], recorded: Recorded, levels: list[float]) -> "pd.DataFrame":
    """Tabulate coverage, loss, mean threshold and regret of each learner, means over the series, and crossings."""
    import pandas as pd

    rows = []
    for name in track(list(runs), "measuring"):
        row: dict[str, Any] = {"learner": name}
        found = [tally(series, own, levels) for _, series, own in recorded.with_rows(runs[name])]
        for measure in (*MEASURES, "regret"):
            values = np.mean([one[measure] for one in found], axis=0)
            row |= {f"{measure} {format_level(level)}": value for level, value in zip(levels, values, strict=True)}
        row["loss"] = np.mean([one["loss"] for one in found], axis=0).mean()
        row["crossings"] = sum(int(one["crossing_rounds"]) for one in found)
        rows.append(row)
    return pd.DataFrame(rows)


def _add_errors(
    frame: "pd.DataFrame", made: dict[str, Learner], recorded: Recorded, levels: list[float]
) -> "pd.DataFrame":
    """Add columns with the standard errors of coverage, loss and mean threshold; their names end with "se"."""
    import pandas as pd

    rows = []
    for name in track(list(made), "errors"):
        found = standard_errors(made[name], recorded, levels)
        row = {f"{m} {format_level(a)} se": error for m in MEASURES for a, error in zip(levels, found[m], strict=False)}
        rows.append(row | {"loss se": found["loss"][-1]})
    return pd.concat([frame, pd.DataFrame(rows)], axis=1)


def _comparison_table(
    frame: "pd.DataFrame", seconds: dict[str, float], recorded: Recorded, levels: list[float], level: float
) -> Table:
    few = levels if len(levels) <= 4 else sorted({levels[0], level, levels[-1]})
    heads = ["coverage at", *map(format_level, few), "loss", f"width {format_level(level)}", "cross", "ms"]
    best = frame["loss"].min()
    rows, width = [], f"mean_threshold {format_level(level)}"
    for _, row in frame.iterrows():
        coverage = [f"{row[f'coverage {format_level(a)}']:.3f}" for a in few]
        loss = f"[bold]{format_number(row['loss'])}[/bold]" if row["loss"] == best else format_number(row["loss"])
        others = [format_number(row[width]), f"{row['crossings']:,}", f"{1e3 * seconds[row['learner']]:,.0f}"]
        rows.append([row["learner"], *coverage, loss, *others])
        if "loss se" in frame:
            errors = [row[f"coverage {format_level(a)} se"] for a in few]
            shown = [f"{error:.3f}" if np.isfinite(error) else "" for error in errors]
            rows.append(["  ±", *shown, format_number(row["loss se"]), format_number(row[f"{width} se"]), "", ""])
    series = f"{len(recorded.names):,} series, " if len(recorded.names) > 1 else ""
    return table(f"{Path(recorded.source).name}: {series}{recorded.total:,} rounds", heads, rows)


def standard_errors(learner: Learner, recorded: Recorded, levels: list[float]) -> dict[str, np.ndarray]:
    """
    Estimate the standard errors of the :data:`MEASURES` by a block jackknife, as if other such series were recorded.

    Each series is replayed without each of its blocks. Returns: For each measure the errors of its mean over the
    series, level by level, and then that of the mean over all levels. NaN if a series has one score only, or if a
    threshold is infinite. Coverage counts rounds, and its error is at least one of them: a learner that steers it may
    have the same without any of the blocks.
    """
    rows = [(series, kept) for series in recorded.scores if len(series) > 1 for kept in leave_out_blocks(len(series))]
    longest = max((kept.size for _, kept in rows), default=1)
    size = max(1, min(len(rows), NUMBERS // (longest * len(levels))))
    found: dict[str, list[np.ndarray]] = {name: [] for name in MEASURES}
    for begin in range(0, len(rows), size):
        part = [np.asarray(series, float)[kept] for series, kept in rows[begin : begin + size]]
        # Filled up with its last score, and with its last row: one program for all. No threshold before changes.
        filled = np.stack([np.pad(row, (0, longest - row.size), mode="edge") for row in part])
        filled = np.pad(filled, ((0, size - len(part)), (0, 0)), mode="edge")
        run: Any = dpc.replay(learner, filled, levels)
        thresholds = np.asarray(run.thresholds)
        for row, own in zip(part, thresholds, strict=False):
            measured = tally(row, own[: row.size], levels)
            for name in MEASURES:
                found[name].append(np.append(measured[name], measured[name].mean()))
    if recorded.lengths.min() < 2:
        return {name: np.full(len(levels) + 1, np.nan) for name in MEASURES}
    variances = {name: np.zeros(len(levels) + 1) for name in MEASURES}  # of sums over independent series
    at = 0
    for length in recorded.lengths.tolist():
        blocks, kept = leave_out_blocks(length).shape
        for name in MEASURES:
            error = jackknife_error(np.array(found[name][at : at + blocks]).T, length, kept)
            variances[name] += np.maximum(error, (name == "coverage") / length) ** 2
        at += blocks
    return {name: np.sqrt(variance) / len(recorded.names) for name, variance in variances.items()}


def draw_comparison(
    runs: dict[str, np.ndarray], recorded: Recorded, measured: "pd.DataFrame", levels: list[float], level: float
) -> "Figure":
    """
    Draw thresholds and rolling coverage of every learner at one level, and coverage less level at all levels.

    Over time the first series is drawn; the others count in the coverage.
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
