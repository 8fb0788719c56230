"""``dpconformal experiment NAME``: the paper's experiments, and ours."""

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from dpconformal import experiments
from dpconformal.cli import options
from dpconformal.cli.resumable_job import resumable_job
from dpconformal.display.terminal import Terminal, format_number, table
from dpconformal.files import staging_folder

experiment = typer.Typer(
    help="Run one of the paper's experiments, or of ours; write picture, data and table.", no_args_is_help=True
)

_TITLES = {"stock": "stock: coverage at each level", "prior": "prior: regret at each level"}
Out = Annotated[Path | None, typer.Option(help="Folder to write to.  [default: results/NAME]", show_default=False)]


def _cells(frame: Any) -> dict[str, list[str]]:
    """Format a table: a standard error follows its number, and a label that repeats is left blank."""
    columns: dict[str, list[str]] = {}
    for name in frame.columns:
        values = list(frame[name])
        if not isinstance(values[0], float):
            again = [i > 0 and values[i] == values[i - 1] for i in range(len(values))]
            repeats = not columns and frame[name].dtype.kind not in "iu"
            columns[name] = ["" if repeats and same else str(v) for v, same in zip(values, again, strict=True)]
        elif not name.endswith(" se"):
            error = frame[f"{name} se"] if f"{name} se" in frame else [None] * len(values)
            columns[name] = [
                format_number(v) + (f" ±{e:.1g}" if e and v == v else "") for v, e in zip(values, error, strict=True)
            ]
    return columns


def _run(
    name: str,
    out: Path | None,
    resume: bool,
    given: dict[str, Any],
    rows: Callable[[Any], Any] = lambda frame: frame,
) -> None:
    """Run an experiment, print its table or some rows of it, and write its files."""
    console = Terminal()
    folder = out or Path("results") / name
    job = {"command": f"experiment {name}"} | {f"--{key.replace('_', '-')}": value for key, value in given.items()}
    with resumable_job(folder, job, resume) as work:
        data = getattr(experiments, name)(**given, checkpoint=work / "steps")
        whole = experiments.table(data).reset_index()
        frame = rows(whole)
        cells = _cells(frame)
        words = next((k for k, name in enumerate(cells) if frame[name].dtype.kind in "fiu"), len(cells))
        console.print(table(_TITLES.get(name, name), list(cells), list(zip(*cells.values(), strict=True)), words))
        if len(frame) < len(whole):
            console.print(f"an excerpt of the {len(whole)} rows in {name}.csv")
        with staging_folder(folder, work) as stage:
            files = [file.name for file in experiments.save(data, stage)]
    verdict = "[green]passes[/green]" if data.attrs["certified"] else "[red]FAILS[/red]"
    console.print(f"certificate of our own runs: {verdict}")
    console.print(f"written to {folder}/: {', '.join(files)}", highlight=False, markup=False)


@experiment.command()
def monotonicity(
    seeds: Annotated[int, typer.Option(help="Simulated data sets.")] = 1000,
    rounds: Annotated[int, typer.Option(help="Rounds of each.")] = 50,
    resume: options.Resume = False,
    out: Out = None,
) -> None:
    """Count crossings of two levels on iid scores: MultiOGD, MultiMVP, ERM and ours."""
    _run("monotonicity", out, resume, {"seeds": seeds, "rounds": rounds})


@experiment.command()
def switching(
    rounds: Annotated[int, typer.Option(help="Rounds.")] = 10_000,
    seeds: Annotated[int, typer.Option(help="Runs of MVP, which tosses coins.")] = 20,
    resume: options.Resume = False,
    out: Out = None,
) -> None:
    """Measure regret on scores that jump between 1 and 0: OGD, MVP, ERM and ours."""
    _run("switching", out, resume, {"rounds": rounds, "seeds": seeds})


@experiment.command()
def prior(
    rounds: Annotated[int, typer.Option(help="Rounds.")] = 1000,
    seed: Annotated[int, typer.Option(min=0, help="Of the sample that a prior is learned from.")] = 0,
    resume: options.Resume = False,
    out: Out = None,
) -> None:
    """Compare priors: what a good one buys, and a wrong one costs."""
    _run("prior", out, resume, {"rounds": rounds, "seed": seed})


@experiment.command()
def stock(
    prices: Annotated[str, typer.Option(help="sp500, nasdaq, or a CSV file of prices with a Date column.")] = "sp500",
    column: Annotated[str | None, typer.Option(help="Which price: Open of a file, Adj Close of an index.")] = None,
    start: Annotated[str | None, typer.Option(help="First day, such as 2000-01-04.")] = None,
    end: Annotated[str | None, typer.Option(help="Last day.")] = None,
    refit_every: Annotated[int, typer.Option(help="Days between fits of the model; 1 takes over a minute.")] = 1,
    level: Annotated[float, typer.Option(help="Level of the picture: 0.5, 0.8, 0.9, 0.95 or 0.99.")] = 0.9,
    seeds: Annotated[int, typer.Option(help="Runs of MVP.")] = 20,
    cache: Annotated[bool, typer.Option(help="Keep the fitted scores on disk for the next time.")] = True,
    resume: options.Resume = False,
    out: Out = None,
) -> None:
    """Bound the errors of a GARCH forecast of volatility: ACI, MVP, ERM and ours."""
    given = {"source": prices, "column": column, "start": start, "end": end, "refit_every": refit_every}
    _run("stock", out, resume, given | {"level": level, "seeds": seeds, "cache": None if cache else False})


@experiment.command()
def drift(
    seeds: Annotated[int, typer.Option(help="Simulated data sets of each stream.")] = 20,
    rounds: Annotated[int, typer.Option(help="Rounds of each.")] = 3000,
    window: Annotated[int, typer.Option(help="Rounds of a window.")] = 250,
    level: Annotated[float, typer.Option(help="Confidence level.")] = 0.9,
    resume: options.Resume = False,
    out: Out = None,
) -> None:
    """Follow streams that change: discounted beliefs, ACI, DtACI, SAOCP and PID."""
    _run("drift", out, resume, {"seeds": seeds, "rounds": rounds, "window": window, "level": level})


@experiment.command()
def frequentist(
    seeds: Annotated[int, typer.Option(help="Simulated data sets.")] = 200,
    level: Annotated[float, typer.Option(help="Confidence level.")] = 0.9,
    resume: options.Resume = False,
    out: Out = None,
) -> None:
    """Compare ERM, split conformal and Dirichlet-process beliefs on 5 to 5,000 iid scores, under three priors."""
    _run("frequentist", out, resume, {"seeds": seeds, "level": level}, _by_count)


def _by_count(frame: Any) -> Any:
    """Put the results for 10 and 1,000 scores side by side."""
    frame = frame[frame["count"].isin([10, 1000])]
    wide = frame.pivot(index=["prior", "learner"], columns="count", values=["coverage", "excess risk"])
    brief = {"coverage": "cover", "excess risk": "risk"}
    wide.columns = [f"{brief[name]} {count}" for name, count in wide.columns]
    return wide.loc[frame[["prior", "learner"]].drop_duplicates().itertuples(index=False, name=None)].reset_index()
