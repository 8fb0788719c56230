"""``dpconformal replay``: thresholds for recorded scores, with a summary, a certificate and a report."""

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import numpy as np
import typer
from rich.markup import escape
from rich.table import Table

import dpconformal as dpc
from dpconformal.cli import options
from dpconformal.cli.jobs import hyperparameters_of, replay_to_disk, resumable_job, runs_of, tally
from dpconformal.display import track
from dpconformal.display.terminal import Terminal, format_number, table, table_of_series
from dpconformal.files import Recorded, staging_folder
from dpconformal.files.source import arrow
from dpconformal.learner import Learner
from dpconformal.validation import format_level

if TYPE_CHECKING:
    import pandas as pd

FORMATS = ("parquet", "csv", "netcdf")
_ROWS = 2**18  # written at a time
_ARRAYS = 2**27  # numbers of a NetCDF file, which is put together in memory
_CERTIFIED, _EACH = 1_000_000, 2_000  # rounds times levels that are certified unasked: seconds; a series costs more
_REPORTED = 5_000_000  # rounds that a page is made of unasked
_MEASURES = ("coverage", "mean_threshold", "loss", "regret", "longest_miss_run")


@options.expand_groups
def replay(
    *,
    file: options.FileOptions,
    learner: Annotated[str, typer.Option(help=f"One of {options.LEARNERS}.")] = "exact",
    common: options.LearnerOptions,
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
    levels = common.read_levels()
    if form not in FORMATS:
        raise ValueError(f"--format {form}: write one of {', '.join(FORMATS)}")
    made = options.make_learner(learner, levels, common.settings(), "; dpconformal compare runs several")
    job = {"command": "replay", **file.describe(), "--levels": levels, "--learner": repr(made)}
    job |= {"hyperparameters": hyperparameters_of(made)}
    if delay:  # so that what was begun before there was a delay can go on
        job |= {"--delay": delay}
    with resumable_job(out, job, resume) as work:
        recorded = file.read({learner: made}, common.ends, work)
        if form == "netcdf" and (size := len(recorded.names) * recorded.rounds * (len(levels) + 1)) > _ARRAYS:
            raise ValueError(
                f"--format netcdf: {8 * size / 1e9:,.1f} GB would be put together in memory; write --format parquet"
            )
        thresholds, _ = replay_to_disk(made, recorded, levels, work / "run", delay=delay)
        with staging_folder(out, work) as folder:
            summary = _summarise(recorded, thresholds, levels)
            console.print(_summary_table(recorded, learner, summary))
            if form == "netcdf":
                _write_arrays(recorded, thresholds, levels, folder / "thresholds.nc", made)
            else:
                _write_table(recorded, thresholds, levels, folder / f"thresholds.{form}")
            summary.to_csv(folder / "summary.csv", index=False)
            work_to_certify = (recorded.total + _EACH * len(recorded.names)) * len(levels)
            certify = work_to_certify <= _CERTIFIED if certificate is None else certificate
            page = recorded.total <= _REPORTED if report is None else report
            runs = runs_of(made, recorded, levels, thresholds, delay) if certify or page else {}
            if certify:
                console.print(_certify(runs, folder))
            else:
                why = " (it would take a while: ask with --certificate)" if certificate is None else ""
                console.print(f"certificate: left out{why}")
            if page:
                title = f"{learner} on {Path(recorded.source).name}"
                named = runs[""] if recorded.is_single else runs
                dpc.report(named, folder / "report.html", title=title, progress=True)
            elif report is None:
                console.print("report: left out (it would take a while: ask with --report)")
            files = sorted(file.name for file in folder.iterdir())
    console.say(f"written to {out}/: {', '.join(files)}")


def _summarise(recorded: Recorded, thresholds: np.ndarray, levels: list[float]) -> "pd.DataFrame":
    """Tabulate every series and level."""
    import pandas as pd

    frames = []
    for name, series, own in track(list(recorded.with_rows(thresholds)), "summarising"):
        found = tally(series, own, levels)
        frame = pd.DataFrame({"level": levels} | {measure: found[measure] for measure in _MEASURES})
        if not recorded.is_single:
            frame.insert(0, "series", name)
        frames.append(frame)
    return pd.concat(frames, ignore_index=True)


def _summary_table(recorded: Recorded, learner: str, summary: "pd.DataFrame") -> Table:
    title, count = f"{learner} on {Path(recorded.source).name}:", len(recorded.names)
    if count == 1:
        heads = ("level", "coverage", "mean threshold", "loss", "regret", "longest miss run")
        rows = [
            [format_level(row["level"]), *map(format_number, row[list(_MEASURES)])] for _, row in summary.iterrows()
        ]
        return table(f"{title} {recorded.total:,} rounds", heads, rows, left=0)
    over_series = {"coverage": ["mean", "min", "max"], "mean_threshold": "mean", "loss": "mean", "regret": "max"}
    found = summary.groupby("level").agg(over_series)
    title = f"{title} {count:,} series, {recorded.total:,} rounds"
    return table_of_series(title, found.index.to_numpy(), list(found.to_numpy().T))


def _certify(runs: dict[str, dpc.Replay], folder: Path) -> str:
    """Write the certificates of all series to a file, and say whether all pass."""
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


def _write_table(recorded: Recorded, thresholds: np.ndarray, levels: list[float], file: Path) -> None:
    """Write a row for each round, with a column for each level."""
    pa = arrow()
    names, ends = np.array(recorded.names, object), np.cumsum(recorded.lengths)
    begins = ends - recorded.lengths
    with contextlib.ExitStack() as opened:
        for start in range(0, recorded.total, _ROWS):  # a block may end within a series
            rows = np.arange(start, min(start + _ROWS, recorded.total))
            series = np.searchsorted(ends, rows, side="right")
            columns = {} if recorded.is_single else {"series": names[series]}
            columns |= {"round": rows - begins[series] + 1, "score": np.asarray(recorded.values[start : start + _ROWS])}
            own = np.asarray(thresholds[start : start + _ROWS])
            columns |= {f"threshold_{format_level(level)}": own[:, k] for k, level in enumerate(levels)}
            block = pa.table(columns)
            if start == 0:  # the first block tells the types of the columns
                kind = pa.parquet.ParquetWriter if file.suffix == ".parquet" else pa.csv.CSVWriter
                writer = opened.enter_context(kind(file, block.schema))
            writer.write_table(block)


def _write_arrays(
    recorded: Recorded, thresholds: np.ndarray, levels: list[float], file: Path, learner: Learner
) -> None:
    """Write arrays over series, time and level, NaN after the end of a series."""
    import xarray as xr

    shape = len(recorded.names), recorded.rounds
    scores, filled = np.full(shape, np.nan), np.full((*shape, len(levels)), np.nan)
    for k, (_, series, own) in enumerate(recorded.with_rows(thresholds)):
        scores[k, : len(series)], filled[k, : len(series)] = series, own
    data = xr.Dataset(
        {"thresholds": (("series", "time", "level"), filled), "scores": (("series", "time"), scores)},
        {"series": list(recorded.names), "time": np.arange(1, recorded.rounds + 1), "level": levels},
        {"learner": repr(learner)},
    )
    data.to_netcdf(file, engine="scipy")
