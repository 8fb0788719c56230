"""``dpconformal compare``: learners side by side on recorded scores."""

import time
from pathlib import Path
from typing import Annotated, Any

import jax
import numpy as np
import typer
from rich.console import Console

import dpconformal as dpc
from dpconformal.canvas import pyplot
from dpconformal.cli import options
from dpconformal.cli.methods import make_learners
from dpconformal.cli.pictures import draw_comparison
from dpconformal.cli.series import mean_over_series, replay_series
from dpconformal.experiments.progress import track
from dpconformal.files import Recorded, staged
from dpconformal.tables import exactly, number, table


def compare(
    scores: options.Source,
    learners: Annotated[
        str,
        typer.Option(help=f"Any of {options.LEARNERS}; with settings of its own as in exact:discount=0.99."),
    ] = "exact,quantized,erm,ogd,aci,mvp,saocp",
    levels: options.Levels = "0.5,0.8,0.9,0.95",
    column: options.Column = None,
    batch: options.Batch = None,
    ends: options.Range = None,
    prior: options.Prior = None,
    bins: options.Bins = None,
    discount: options.Discount = None,
    concentration: options.Concentration = None,
    window: options.Window = None,
    shown: Annotated[
        float | None, typer.Option("--level", help="Level of the pictures.", show_default="the one nearest to 0.9")
    ] = None,
    out: Annotated[Path, typer.Option(help="Folder to write to.")] = Path("results/compare"),
) -> None:
    """
    Run several learners over the same scores: coverage, loss, crossings and time, as a table and a picture.

    Example: dpconformal compare scores.csv --learners exact,exact:discount=0.99,aci,saocp
    """
    options.use_float64()
    console = Console()
    asked = options.read_levels(levels)
    if shown is not None and shown not in asked:
        raise ValueError(f"--level {shown:g}: must be one of --levels {levels}")
    level = min(asked, key=lambda a: abs(a - 0.9)) if shown is None else shown
    said = options.settings(ends, prior, bins, discount, concentration, window)
    made = make_learners(learners, asked, said)
    recorded = options.read(scores, column, batch, made, ends)
    with staged(out) as folder:
        runs, seconds = {}, {}
        for name in track(list(made), "comparing"):
            runs[name], seconds[name] = _timed(made[name], recorded, asked)
        frame = _table(runs, seconds, asked)
        console.print(_shown(frame, recorded, asked, level))
        frame.to_csv(folder / "compare.csv", index=False)
        figure = draw_comparison(runs, level)
        figure.savefig(folder / "compare.png", dpi=150)
        pyplot().close(figure)
        files = sorted(file.name for file in folder.iterdir())
    console.print(
        "[bold]loss[/bold]: mean quantile loss over all levels and rounds, the lower the better; ∞ where a threshold "
        "was infinite. [bold]width[/bold]: mean threshold. [bold]cross[/bold]: rounds in which a higher level got a "
        "smaller threshold. [bold]ms[/bold]: time of a compiled replay.",
        highlight=False,
    )
    console.print(f"written to {out}/: {', '.join(files)}", highlight=False, markup=False, soft_wrap=True)


def _timed(learner: Any, recorded: Recorded, levels: list[float]) -> tuple[dict[str, dpc.Replay], float]:
    """Run, and once more for the time without compiling, unless that takes long."""
    seconds = np.inf
    for _ in range(2):
        start = time.perf_counter()
        runs = replay_series(learner, recorded, levels, show=False)
        jax.block_until_ready([run.thresholds for run in runs.values()])
        seconds = min(seconds, time.perf_counter() - start)
        if seconds > 10:
            break
    return runs, seconds


def _table(runs: dict[str, dict[str, dpc.Replay]], seconds: dict[str, float], levels: list[float]) -> Any:
    import pandas as pd

    rows = []
    for name, series in runs.items():
        row: dict[str, Any] = {"learner": name}
        measures = mean_over_series(series, ("coverage", "loss", "mean_threshold", "regret"))
        for measure, values in measures.items():
            row |= {f"{measure} {exactly(level)}": value for level, value in zip(levels, values, strict=True)}
        row["loss"] = measures["loss"].mean()
        row["crossings"] = sum(int(dpc.metrics.crossings(run).rounds) for run in series.values())
        row["seconds"] = seconds[name]
        rows.append(row)
    return pd.DataFrame(rows)


def _shown(frame: Any, recorded: Recorded, levels: list[float], level: float) -> Any:
    few = levels if len(levels) <= 4 else sorted({levels[0], level, levels[-1]})
    heads = ["coverage at", *map(exactly, few), "loss", f"width {exactly(level)}", "cross", "ms"]
    best = frame["loss"].min()
    rows = []
    for _, row in frame.iterrows():
        loss = f"[bold]{number(row['loss'])}[/bold]" if row["loss"] == best else number(row["loss"])
        rows.append(
            [
                row["learner"],
                *(f"{row[f'coverage {exactly(a)}']:.3f}" for a in few),
                loss,
                number(row[f"mean_threshold {exactly(level)}"]),
                f"{row['crossings']:,}",
                f"{1e3 * row['seconds']:,.0f}",
            ]
        )
    rounds = sum(series.size for series in recorded.scores)
    series = f"{len(recorded.names):,} series, " if len(recorded.names) > 1 else ""
    return table(f"{Path(recorded.source).name}: {series}{rounds:,} rounds", heads, rows)
