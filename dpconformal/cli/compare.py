"""Standard errors of the measures of a learner on recorded series, as if other such series were recorded."""

import time
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

import dpconformal as dpc
from dpconformal.checkpoints.journal import note, recall
from dpconformal.cli import options
from dpconformal.cli.options import make_learners
from dpconformal.cli.pictures import draw_comparison
from dpconformal.cli.resumable_job import identity, numbers_of, resumable_job
from dpconformal.cli.work_units import NUMBERS, plan, replay_to_disk, replayed, tally
from dpconformal.diagnostics.compare import jackknife_error, leave_out_blocks
from dpconformal.display.figures import pyplot
from dpconformal.display.terminal import Terminal, number, table
from dpconformal.experiments.runs import track
from dpconformal.files import Recorded, staged
from dpconformal.validation import format_level

MEASURES = ("coverage", "loss", "mean_threshold")


def record_errors(learner: Any, recorded: Recorded, levels: list[float]) -> dict[str, np.ndarray]:
    """
    Replay each series without each of its blocks, and take the variance of the measures from that.

    Returns: For each measure the standard errors of its mean over the series, level by level, and then that of the mean
    over all levels. NaN if a series has one score only, or if a threshold is infinite. Coverage counts rounds, and its
    error is at least one of them: a learner that steers it may have the same without any of the blocks.
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
    count = len(recorded.scores)
    least = {"coverage": 1.0}
    return {
        name: np.sqrt(_variance(np.array(values), recorded, len(levels), least.get(name, 0.0))) / count
        for name, values in found.items()
    }


def _variance(values: np.ndarray, recorded: Recorded, levels: int, least: float) -> np.ndarray:
    """Add up the variances of the series, taken to be independent; none is below that of ``least`` over its rounds."""
    total, at = np.zeros(levels + 1), 0
    for series in recorded.scores:
        if len(series) < 2:
            return np.full(levels + 1, np.nan)
        blocks, kept = leave_out_blocks(len(series)).shape
        error = jackknife_error(values[at : at + blocks].T, len(series), kept)
        total = total + np.maximum(error, least / len(series)) ** 2
        at += blocks
    return total


_ERRORS = 50_000  # rounds of all series, up to which errors are computed unasked: they take 20 to 40 more replays
_LONG = 10.0  # seconds: what takes longer is not run again for the time without compiling


def compare(
    scores: options.Source,
    learners: Annotated[
        str,
        typer.Option(help=f"Any of {options.LEARNERS}; with settings of its own as in exact:discount=0.99."),
    ] = "exact,quantized,erm,ogd,aci,mvp,saocp",
    levels: options.Levels = "0.5,0.8,0.9,0.95",
    column: options.Column = None,
    batch: options.Batch = None,
    one_series: options.OneSeries = False,
    ends: options.Range = None,
    prior: options.Prior = None,
    bins: options.Bins = None,
    discount: options.Discount = None,
    concentration: options.Concentration = None,
    window: options.Window = None,
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
    asked = options.read_levels(levels)
    if shown is not None and shown not in asked:
        raise ValueError(f"--level {shown:g}: must be one of --levels {levels}")
    level = min(asked, key=lambda a: abs(a - 0.9)) if shown is None else shown
    said = options.settings(ends, prior, bins, discount, concentration, window)
    made = make_learners(learners, asked, said)
    job = {
        "command": "compare",
        "scores": identity(scores),
        "--column": column,
        "--batch": batch,
        "--levels": asked,
        "--learners": {name: repr(learner) for name, learner in made.items()},
        "hyperparameters": numbers_of(made),
    }
    with resumable_job(out, job, resume) as work:
        recorded = options.read_to_disk(scores, column, batch, made, ends, one_series, work)
        runs, seconds = {}, {}
        for k, name in enumerate(track(list(made), "comparing")):
            runs[name], seconds[name] = _timed(made[name], recorded, asked, work / str(k))
        with staged(out, work) as folder:
            frame = measured(runs, recorded, asked)
            if errors or (errors is None and recorded.total <= _ERRORS):
                frame = _with_errors(frame, made, recorded, asked)
            console.print(_shown(frame, seconds, recorded, asked, level))
            frame.to_csv(folder / "compare.csv", index=False)
            # By themselves: everything else is the same whenever it is computed.
            _times(seconds).to_csv(folder / "times.csv", index=False)
            figure = draw_comparison(runs, recorded, frame, asked, level)
            figure.savefig(folder / "compare.png", dpi=150)
            pyplot().close(figure)
            files = sorted(file.name for file in folder.iterdir())
    console.print(
        "[bold]loss[/bold]: mean quantile loss over all levels and rounds, the lower the better; ∞ where a threshold "
        "was infinite. [bold]width[/bold]: mean threshold. [bold]cross[/bold]: rounds in which a higher level got a "
        "smaller threshold. [bold]ms[/bold]: time of a compiled replay.",
        highlight=False,
    )
    if "loss se" in frame:
        console.print(
            "[bold]±[/bold]: standard error, if another such record were made; blocks of this one are left out for it.",
            highlight=False,
        )
    elif errors is None:
        console.print(f"No standard errors beyond {_ERRORS:,} rounds: ask with --errors.", highlight=False)
    console.print(f"written to {out}/: {', '.join(files)}", highlight=False, markup=False, soft_wrap=True)


def _timed(learner: Any, recorded: Recorded, levels: list[float], folder: Path) -> tuple[np.ndarray, float]:
    """Run, and once more for the time without compiling, unless that takes long."""
    thresholds, seconds = replay_to_disk(learner, recorded, levels, folder, show=False)
    known = recall(folder / "time.dpc", "time")
    if known is not None:
        return thresholds, float(known[0]["seconds"])
    if seconds <= _LONG:
        start = time.perf_counter()
        for _ in replayed(learner, recorded, levels, plan(learner, recorded, len(levels))):
            pass
        seconds = min(seconds, time.perf_counter() - start)
    note(folder / "time.dpc", "time", {"seconds": seconds}, {})
    return thresholds, seconds


def measured(runs: dict[str, np.ndarray], recorded: Recorded, levels: list[float]) -> Any:
    """Measure learners."""
    import pandas as pd

    rows = []
    for name in track(list(runs), "measuring"):
        row: dict[str, Any] = {"learner": name}
        found, at = [], 0
        for series in recorded.scores:
            found.append(tally(series, runs[name][at : at + len(series)], levels))
            at += len(series)
        for measure in ("coverage", "loss", "mean_threshold", "regret"):
            values = np.mean([one[measure] for one in found], axis=0)
            row |= {f"{measure} {format_level(level)}": value for level, value in zip(levels, values, strict=True)}
        row["loss"] = np.mean([one["loss"] for one in found], axis=0).mean()
        row["crossings"] = sum(int(one["crossing_rounds"]) for one in found)
        rows.append(row)
    return pd.DataFrame(rows)


def _with_errors(frame: Any, made: dict[str, Any], recorded: Recorded, levels: list[float]) -> Any:
    """Add columns with the standard errors of coverage, loss and mean threshold; their names end with "se"."""
    import pandas as pd

    rows = []
    for name in track(list(made), "errors"):
        found = record_errors(made[name], recorded, levels)
        row = {f"{m} {format_level(a)} se": found[m][k] for m in MEASURES for k, a in enumerate(levels)}
        rows.append(row | {"loss se": found["loss"][-1]})
    return pd.concat([frame, pd.DataFrame(rows)], axis=1)


def _times(seconds: dict[str, float]) -> Any:
    import pandas as pd

    return pd.DataFrame({"learner": list(seconds), "seconds": list(seconds.values())})


def _shown(frame: Any, seconds: dict[str, float], recorded: Recorded, levels: list[float], level: float) -> Any:
    few = levels if len(levels) <= 4 else sorted({levels[0], level, levels[-1]})
    heads = ["coverage at", *map(format_level, few), "loss", f"width {format_level(level)}", "cross", "ms"]
    best = frame["loss"].min()
    rows = []
    for _, row in frame.iterrows():
        loss = f"[bold]{number(row['loss'])}[/bold]" if row["loss"] == best else number(row["loss"])
        rows.append(
            [
                row["learner"],
                *(f"{row[f'coverage {format_level(a)}']:.3f}" for a in few),
                loss,
                number(row[f"mean_threshold {format_level(level)}"]),
                f"{row['crossings']:,}",
                f"{1e3 * seconds[row['learner']]:,.0f}",
            ]
        )
        if "loss se" in frame:
            coverage = [row[f"coverage {format_level(a)} se"] for a in few]
            others = [row["loss se"], row[f"mean_threshold {format_level(level)} se"]]
            shown = [f"{x:.3f}" if np.isfinite(x) else "" for x in coverage] + [number(x) for x in others]
            rows.append(["  ±", *shown, "", ""])
    series = f"{len(recorded.names):,} series, " if len(recorded.names) > 1 else ""
    return table(f"{Path(recorded.source).name}: {series}{recorded.total:,} rounds", heads, rows)
