"""The command ``dpconformal``: its commands, the experiments among them, and how errors are shown."""

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

from dpconformal import experiments
from dpconformal.cli import options
from dpconformal.cli.compare import compare
from dpconformal.cli.demo import demo
from dpconformal.cli.diagnose import diagnose
from dpconformal.cli.jobs import exit_on_interrupt, resumable_job
from dpconformal.cli.panel import panel
from dpconformal.cli.replay import replay
from dpconformal.display import visible
from dpconformal.display.terminal import Terminal, format_number, table
from dpconformal.files import staging_folder

if TYPE_CHECKING:
    import pandas as pd


@contextlib.contextmanager
def _visible_complaints() -> Iterator[None]:
    """Escape control characters in errors that typer prints by itself."""
    try:
        yield
    except Exception as error:
        if isinstance(message := getattr(error, "message", None), str):
            error.message = visible(message)  # type: ignore[attr-defined]
        raise


class _Commands(TyperGroup):
    """The group of all commands; control characters in errors are escaped."""

    def make_context(self, *given: Any, **named: Any) -> Any:
        """Parse the arguments up to the name of the command."""
        with _visible_complaints():
            return super().make_context(*given, **named)

    def invoke(self, ctx: Any) -> Any:
        """Parse the arguments of the command, and run it."""
        with _visible_complaints():
            return super().invoke(ctx)


app = typer.Typer(
    cls=_Commands,
    help="Confidence sets you can trust, from a stream of scores.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="rich",
)
app.command()(replay)
app.command()(panel)
app.command()(compare)
app.command()(diagnose)
app.command()(demo)
experiment = typer.Typer(
    help="Run one of the paper's experiments, or of ours; write picture, data and table.", no_args_is_help=True
)
app.add_typer(experiment, name="experiment")


def main() -> None:
    """Run the command line; errors in what the user gave end with code 2 and one line."""
    try:
        with exit_on_interrupt("stopped"):
            app()
    except (ValueError, ImportError, OSError, MemoryError) as error:
        terminal = Terminal(stderr=True)
        terminal.print("[red]error:[/red]", end=" ")
        terminal.say(str(error) or "out of memory")
        raise SystemExit(2) from None


_TITLES = {"stock": "stock: coverage at each level", "prior": "prior: regret at each level"}
_Out = Annotated[Path | None, typer.Option(help="Folder to write to.", show_default="results/NAME")]


def _format_cells(frame: "pd.DataFrame") -> dict[str, list[str]]:
    """Format a table: a standard error follows its number, and a label that repeats is left blank."""
    columns: dict[str, list[str]] = {}
    for name in frame.columns:
        values = list(frame[name])
        if not isinstance(values[0], float):
            blank = not columns and frame[name].dtype.kind not in "iu"
            columns[name] = ["" if blank and i and v == values[i - 1] else str(v) for i, v in enumerate(values)]
        elif not name.endswith(" se"):
            errors = frame[f"{name} se"] if f"{name} se" in frame else [0.0] * len(values)
            pairs = zip(values, errors, strict=True)
            columns[name] = [format_number(v) + (f" ±{e:.1g}" if e and v == v else "") for v, e in pairs]
    return columns


def _run(
    name: str,
    out: Path | None,
    resume: bool,
    given: dict[str, Any],
    excerpt: Callable[["pd.DataFrame"], "pd.DataFrame"] = lambda frame: frame,
) -> None:
    """Run an experiment, print its table or an excerpt, and write its files."""
    console, folder = Terminal(), out or Path("results") / name
    job = {"command": f"experiment {name}"} | {f"--{key.replace('_', '-')}": value for key, value in given.items()}
    with resumable_job(folder, job, resume) as work:
        data = getattr(experiments, name)(**given, checkpoint=work / "steps")
        whole = experiments.table(data).reset_index()
        frame = excerpt(whole)
        cells = _format_cells(frame)
        words = next((k for k, name in enumerate(cells) if frame[name].dtype.kind in "fiu"), len(cells))
        console.print(table(_TITLES.get(name, name), list(cells), list(zip(*cells.values(), strict=True)), words))
        if len(frame) < len(whole):
            console.print(f"an excerpt of the {len(whole)} rows in {name}.csv")
        with staging_folder(folder, work) as stage:
            files = [file.name for file in experiments.save(data, stage)]
    verdict = "[green]passes[/green]" if data.attrs["certified"] else "[red]FAILS[/red]"
    console.print(f"certificate of our own runs: {verdict}")
    console.say(f"written to {folder}/: {', '.join(files)}")


@experiment.command()
def monotonicity(
    seeds: Annotated[int, typer.Option(help="Simulated data sets.")] = 1000,
    rounds: Annotated[int, typer.Option(help="Rounds of each.")] = 50,
    resume: options.Resume = False,
    out: _Out = None,
) -> None:
    """Count crossings of two levels on iid scores: MultiOGD, MultiMVP, ERM and ours."""
    _run("monotonicity", out, resume, {"seeds": seeds, "rounds": rounds})


@experiment.command()
def switching(
    rounds: Annotated[int, typer.Option(help="Rounds.")] = 10_000,
    seeds: Annotated[int, typer.Option(help="Runs of MVP, which tosses coins.")] = 20,
    resume: options.Resume = False,
    out: _Out = None,
) -> None:
    """Measure regret on scores that jump between 1 and 0: OGD, MVP, ERM and ours."""
    _run("switching", out, resume, {"rounds": rounds, "seeds": seeds})


@experiment.command()
def prior(
    rounds: Annotated[int, typer.Option(help="Rounds.")] = 1000,
    seed: Annotated[int, typer.Option(min=0, help="Of the sample that a prior is learned from.")] = 0,
    resume: options.Resume = False,
    out: _Out = None,
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
    out: _Out = None,
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
    out: _Out = None,
) -> None:
    """Follow streams that change: discounted beliefs, ACI, DtACI, SAOCP and PID."""
    _run("drift", out, resume, {"seeds": seeds, "rounds": rounds, "window": window, "level": level})


@experiment.command()
def frequentist(
    seeds: Annotated[int, typer.Option(help="Simulated data sets.")] = 200,
    level: Annotated[float, typer.Option(help="Confidence level.")] = 0.9,
    resume: options.Resume = False,
    out: _Out = None,
) -> None:
    """Compare ERM, split conformal and Dirichlet-process beliefs on 5 to 5,000 iid scores, under three priors."""
    _run("frequentist", out, resume, {"seeds": seeds, "level": level}, _by_count)


def _by_count(frame: "pd.DataFrame") -> "pd.DataFrame":
    """Put the results for 10 and 1,000 scores side by side."""
    frame = frame[frame["count"].isin([10, 1000])]
    wide = frame.pivot(index=["prior", "learner"], columns="count", values=["coverage", "excess risk"])
    brief = {"coverage": "cover", "excess risk": "risk"}
    wide.columns = [f"{brief[name]} {count}" for name, count in wide.columns]
    return wide.loc[frame[["prior", "learner"]].drop_duplicates().itertuples(index=False, name=None)].reset_index()
