"""``dpconformal replay``: thresholds for recorded scores."""

from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from rich.markup import escape

import dpconformal as dpc
from dpconformal.cli import options
from dpconformal.cli.methods import make_learners
from dpconformal.cli.series import replay_to_disk, runs_of
from dpconformal.cli.tallies import tally
from dpconformal.cli.thresholds import FORMATS, check_form, write_thresholds
from dpconformal.cli.unfinished import identity, numbers_of, unfinished
from dpconformal.experiments.progress import track
from dpconformal.files import Recorded, staged
from dpconformal.tables import Terminal, number, table
from dpconformal.validation import exactly

_CERTIFIED, _EACH = 1_000_000, 2_000  # rounds times levels that are certified unasked: seconds; a series costs more
_REPORTED = 5_000_000  # rounds that a page is made of unasked
_MEASURES = ("coverage", "mean_threshold", "loss", "regret", "longest_miss_run")


def replay(
    scores: options.Source,
    levels: options.Levels = "0.5,0.8,0.9,0.95",
    learner: Annotated[str, typer.Option(help=f"One of {options.LEARNERS}.")] = "exact",
    column: options.Column = None,
    batch: options.Batch = None,
    one_series: options.OneSeries = False,
    ends: options.Range = None,
    prior: options.Prior = None,
    bins: options.Bins = None,
    discount: options.Discount = None,
    concentration: options.Concentration = None,
    window: options.Window = None,
    delay: Annotated[int, typer.Option(min=0, help="How many rounds late each score becomes known.")] = 0,
    form: Annotated[str, typer.Option("--format", help="Of the thresholds: parquet, csv or netcdf.")] = "parquet",
    report: Annotated[
        bool | None, typer.Option(help="Whether to write report.html.", show_default="up to 5 million rounds")
    ] = None,
    certificate: Annotated[
        bool | None, typer.Option(help="Whether to hold the run to the theorems.", show_default="if it takes seconds")
    ] = None,
    resume: options.Resume = False,
    out: Annotated[Path, typer.Option(help="Folder to write to.")] = Path("results/replay"),
) -> None:
    """
    Run a learner over recorded scores: thresholds, summary, certificate and report.

    Each threshold is computed from the scores before its round alone. Scores are read in blocks, and long runs are
    saved as they go: what was interrupted goes on with --resume.

    Example: dpconformal replay scores.csv --learner quantized --discount 0.99
    """
    options.use_float64()
    console = Terminal()
    asked = options.read_levels(levels)
    if form not in FORMATS:
        raise ValueError(f"--format {form}: write one of {', '.join(FORMATS)}")
    said = options.settings(ends, prior, bins, discount, concentration, window)
    if "," in learner:
        raise ValueError(f"--learner {learner}: one at a time; dpconformal compare runs several")
    made = make_learners(learner, asked, said)[learner]
    job = {
        "command": "replay",
        "scores": identity(scores),
        "--column": column,
        "--batch": batch,
        "--levels": asked,
        "--learner": repr(made),
        "hyperparameters": numbers_of(made),
        **({"--delay": delay} if delay else {}),  # what was begun before there was a delay can go on
    }
    with unfinished(out, job, resume) as work:
        recorded = options.read_to_disk(scores, column, batch, {learner: made}, ends, one_series, work)
        check_form(form, recorded, len(asked))
        thresholds, _ = replay_to_disk(made, recorded, asked, work / "run", delay=delay)
        with staged(out, work) as folder:
            summary = _summary(recorded, thresholds, asked)
            console.print(_shown(recorded, learner, summary))
            write_thresholds(recorded, thresholds, asked, folder, form, made)
            summary.to_csv(folder / "summary.csv", index=False)
            size = (recorded.total + _EACH * len(recorded.names)) * len(asked)
            certify = size <= _CERTIFIED if certificate is None else certificate
            page = recorded.total <= _REPORTED if report is None else report
            runs = runs_of(made, recorded, asked, thresholds, delay) if certify or page else {}
            if certify:
                console.print(_certify(runs, folder), highlight=False)
            else:
                why = " (it would take a while: ask with --certificate)" if certificate is None else ""
                console.print(f"certificate: left out{why}", highlight=False)
            if page:
                title = f"{learner} on {Path(recorded.source).name}"
                named: Any = next(iter(runs.values())) if list(runs) == [""] else runs
                dpc.report(named, folder / "report.html", title=title, progress=True)
            elif report is None:
                console.print("report: left out (it would take a while: ask with --report)", highlight=False)
            files = sorted(file.name for file in folder.iterdir())
    console.print(f"written to {out}/: {', '.join(files)}", highlight=False, markup=False, soft_wrap=True)


def _summary(recorded: Recorded, thresholds: np.ndarray, levels: list[float]) -> Any:
    """Tabulate every series and level."""
    import pandas as pd

    frames, row = [], 0
    for name, series in track(list(zip(recorded.names, recorded.scores, strict=True)), "summarising"):
        found = tally(series, thresholds[row : row + len(series)], levels)
        frame = pd.DataFrame({"level": levels} | {measure: found[measure] for measure in _MEASURES})
        if list(recorded.names) != [""]:
            frame.insert(0, "series", name)
        frames.append(frame)
        row += len(series)
    return pd.concat(frames, ignore_index=True)


def _shown(recorded: Recorded, learner: str, summary: Any) -> Any:
    source, count, rounds = Path(recorded.source).name, len(recorded.names), recorded.total
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


def _certify(runs: dict[str, dpc.Replay], folder: Path) -> str:
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
