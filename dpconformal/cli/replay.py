"""``dpconformal replay``: thresholds for recorded scores."""

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape

import dpconformal as dpc
from dpconformal.cli import options
from dpconformal.cli.methods import make_learners
from dpconformal.cli.series import replay_series
from dpconformal.cli.thresholds import FORMATS, write_thresholds
from dpconformal.experiments.progress import track
from dpconformal.files import staged
from dpconformal.tables import exactly, number, table

_CERTIFIED, _EACH = 1_000_000, 2_000  # rounds times levels that are certified unasked: seconds; a series costs more
_MEASURES = ("coverage", "mean_threshold", "loss", "regret", "longest_miss_run")


def replay(
    scores: options.Source,
    levels: options.Levels = "0.5,0.8,0.9,0.95",
    learner: Annotated[str, typer.Option(help=f"One of {options.LEARNERS}.")] = "exact",
    column: options.Column = None,
    batch: options.Batch = None,
    ends: options.Range = None,
    prior: options.Prior = None,
    bins: options.Bins = None,
    discount: options.Discount = None,
    concentration: options.Concentration = None,
    window: options.Window = None,
    form: Annotated[str, typer.Option("--format", help="Of the thresholds: parquet, csv or netcdf.")] = "parquet",
    report: Annotated[bool, typer.Option(help="Whether to write report.html.")] = True,
    certificate: Annotated[
        bool | None, typer.Option(help="Whether to hold the run to the theorems.", show_default="if it takes seconds")
    ] = None,
    out: Annotated[Path, typer.Option(help="Folder to write to.")] = Path("results/replay"),
) -> None:
    """
    Run a learner over recorded scores: thresholds, summary, certificate and report.

    Each threshold is computed from the scores before its round alone.

    Example: dpconformal replay scores.csv --learner quantized --discount 0.99
    """
    options.use_float64()
    console = Console()
    asked = options.read_levels(levels)
    if form not in FORMATS:
        raise ValueError(f"--format {form}: write one of {', '.join(FORMATS)}")
    said = options.settings(ends, prior, bins, discount, concentration, window)
    if "," in learner:
        raise ValueError(f"--learner {learner}: one at a time; dpconformal compare runs several")
    made = make_learners(learner, asked, said)[learner]
    recorded = options.read(scores, column, batch, {learner: made}, ends)
    with staged(out) as folder:
        runs = replay_series(made, recorded, asked)
        summary = _summary(runs)
        rounds = sum(series.size for series in recorded.scores)
        console.print(_shown(recorded, learner, rounds, summary, len(runs)))
        write_thresholds(runs, asked, folder, form)
        summary.to_csv(folder / "summary.csv", index=False)
        size = (rounds + _EACH * len(runs)) * len(asked)
        console.print(_certify(runs, certificate, size, folder), highlight=False)
        if report:
            title = f"{learner} on {Path(recorded.source).name}"
            named: Any = next(iter(runs.values())) if list(runs) == [""] else runs
            dpc.report(named, folder / "report.html", title=title, progress=True)
        files = sorted(file.name for file in folder.iterdir())
    console.print(f"written to {out}/: {', '.join(files)}", highlight=False, markup=False, soft_wrap=True)


def _summary(runs: dict[str, dpc.Replay]) -> Any:
    """Tabulate every series and level."""
    import pandas as pd

    frames = []
    for name in track(list(runs), "summarising"):
        found = dpc.metrics.summary(runs[name])
        frame = pd.DataFrame({"level": found.level.values} | {m: found[m].values for m in _MEASURES})
        if list(runs) != [""]:
            frame.insert(0, "series", name)
        frames.append(frame)
    return pd.concat(frames, ignore_index=True)


def _shown(recorded: Any, learner: str, rounds: int, summary: Any, count: int) -> Any:
    source = Path(recorded.source).name
    if count == 1:
        heads = ("level", "coverage", "mean threshold", "loss", "regret", "longest miss run")
        rows = [[exactly(row["level"]), *(number(row[m]) for m in _MEASURES)] for _, row in summary.iterrows()]
        return table(f"{learner} on {source}: {rounds:,} rounds", heads, rows, left=0)
    wide = ("level", "coverage", "lowest", "highest", "mean threshold", "loss", "highest regret")
    by_level = summary.groupby("level")
    columns = (
        by_level["coverage"].mean(),
        by_level["coverage"].min(),
        by_level["coverage"].max(),
        by_level["mean_threshold"].mean(),
        by_level["loss"].mean(),
        by_level["regret"].max(),
    )
    rows = [[exactly(level), *(number(column[level]) for column in columns)] for level in by_level.groups]
    return table(f"{learner} on {source}: {count:,} series, {rounds:,} rounds", wide, rows, left=0)


def _certify(runs: dict[str, dpc.Replay], asked: bool | None, size: int, folder: Path) -> str:
    if asked is False or (asked is None and size > _CERTIFIED):
        why = "" if asked is False else " (it would take a while: ask with --certificate)"
        return f"certificate: left out{why}"
    found = {name: dpc.theory.certify(runs[name]) for name in track(list(runs), "certifying")}
    text = "\n\n".join(f"{name}\n{certificate}".strip() for name, certificate in found.items())
    (folder / "certificate.txt").write_text(text + "\n", encoding="utf-8")
    failed = [name for name, certificate in found.items() if not certificate.passed]
    if not failed:
        checks = next(iter(found.values())).dataset
        claimed = [str(c) for c in checks.check.values if (checks.verdict.sel(check=c) != "no claim").any()]
        return f"certificate: [green]passes[/green] ({', '.join(claimed)})"
    where = "" if list(runs) == [""] else f" in {len(failed):,} of {len(found):,} series, first {failed[0]}"
    failures = [line for name in failed for line in found[name].failures]
    only = all(line.startswith("coverage") for line in failures)  # the one line that assumes something of the scores
    hint = "; such scores are not iid: see dpconformal diagnose, and try --discount" if only else ""
    return f"certificate: [red]FAILS[/red]{escape(where)}: {escape(failures[0])}{hint}"
