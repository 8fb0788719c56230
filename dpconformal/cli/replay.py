"""Thresholds as a file: Parquet, CSV or NetCDF."""

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from rich.markup import escape

import dpconformal as dpc
from dpconformal.cli import options
from dpconformal.cli.options import make_learners
from dpconformal.cli.resumable_job import identity, numbers_of, resumable_job
from dpconformal.cli.work_units import replay_to_disk, runs_of, tally
from dpconformal.display.terminal import Terminal, number, table
from dpconformal.experiments.runs import track
from dpconformal.files import Recorded, staged
from dpconformal.files.source import arrow
from dpconformal.validation import format_level

FORMATS = ("parquet", "csv", "netcdf")
_ROWS = 2**18  # written at a time
_ARRAYS = 2**27  # numbers of a NetCDF file, which is put together in memory


def write_thresholds(
    recorded: Recorded, thresholds: np.ndarray, levels: list[float], folder: Path, form: str, learner: Any
) -> Path:
    """
    Write the thresholds of all series.

    ``form``: A row for each round with a column for each level; or arrays over series, time and level, NaN after the
    end of a series.
    """
    if form == "netcdf":
        return _write_arrays(recorded, thresholds, levels, folder / "thresholds.nc", learner)
    pa, file = arrow(), folder / f"thresholds.{form}"
    tables = (pa.table(columns) for columns in _columns(recorded, thresholds, levels))
    first = next(tables)
    with (pa.parquet.ParquetWriter if form == "parquet" else pa.csv.CSVWriter)(file, first.schema) as writer:
        writer.write_table(first)
        for table in tables:
            writer.write_table(table)
    return file


def check_form(form: str, recorded: Recorded, levels: int) -> None:
    """Refuse a format that cannot hold the result."""
    size = len(recorded.names) * recorded.rounds * (levels + 1)
    if form == "netcdf" and size > _ARRAYS:
        raise ValueError(
            f"--format netcdf: {8 * size / 1e9:,.1f} GB would be put together in memory; write --format parquet"
        )


def _columns(recorded: Recorded, thresholds: np.ndarray, levels: list[float]) -> Iterator[dict[str, Any]]:
    named, row = list(recorded.names) != [""], 0
    waiting: list[dict[str, Any]] = []
    count = 0
    for name, series in zip(recorded.names, recorded.scores, strict=True):
        for start in range(0, len(series), _ROWS):
            here = slice(start, min(start + _ROWS, len(series)))
            size = here.stop - here.start
            columns: dict[str, Any] = {"series": np.repeat([name], size)} if named else {}
            columns |= {"round": np.arange(here.start + 1, here.stop + 1), "score": np.asarray(series[here])}
            own = np.asarray(thresholds[row + here.start : row + here.stop])
            columns |= {f"threshold_{format_level(level)}": own[:, k] for k, level in enumerate(levels)}
            waiting.append(columns)
            count += size
            if count >= _ROWS:  # short series go together
                yield _together(waiting)
                waiting, count = [], 0
        row += len(series)
    if waiting:
        yield _together(waiting)


def _together(parts: list[dict[str, Any]]) -> dict[str, Any]:
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def _write_arrays(recorded: Recorded, thresholds: np.ndarray, levels: list[float], file: Path, learner: Any) -> Path:
    import xarray as xr

    shape, row = (len(recorded.names), recorded.rounds), 0
    scores, filled = np.full(shape, np.nan), np.full((*shape, len(levels)), np.nan)
    for k, series in enumerate(recorded.scores):
        scores[k, : len(series)] = series
        filled[k, : len(series)] = thresholds[row : row + len(series)]
        row += len(series)
    data = xr.Dataset(
        {"thresholds": (("series", "time", "level"), filled), "scores": (("series", "time"), scores)},
        {"series": list(recorded.names), "time": np.arange(1, recorded.rounds + 1), "level": levels},
        {"learner": repr(learner)},
    )
    data.to_netcdf(file, engine="scipy")
    return file


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
    with resumable_job(out, job, resume) as work:
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
        rows = [[format_level(row["level"]), *(number(row[m]) for m in _MEASURES)] for _, row in summary.iterrows()]
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
    rows = [[format_level(level), *(number(column[level]) for column in columns)] for level in by_level.groups]
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
