"""The command line: ``dpconformal experiment NAME``."""

from pathlib import Path
from typing import Annotated, Any

import typer
from rich import box
from rich.console import Console
from rich.table import Table

from dpconformal import experiments

app = typer.Typer(help=__doc__, no_args_is_help=True, add_completion=False, rich_markup_mode="rich")
experiment = typer.Typer(
    help="Run one of the paper's experiments, or of ours; write picture, data and table.", no_args_is_help=True
)
app.add_typer(experiment, name="experiment")

Out = Annotated[Path | None, typer.Option(help="Folder to write to.  [default: results/NAME]", show_default=False)]


def _cell(value: Any) -> str:
    if not isinstance(value, float):
        return str(value)
    return "" if value != value else f"{value:.3g}"  # NaN: nothing to say


def _finish(data: Any, out: Path | None) -> None:
    """Print the table, write the files, say where they are."""
    console = Console()
    name = data.attrs["experiment"]
    frame = experiments.table(data).reset_index()
    shown = Table(box=box.SIMPLE_HEAD, title=name, title_justify="left", title_style="bold")
    for column in frame.columns:
        numeric = frame[column].dtype.kind in "fiu"
        shown.add_column(str(column), justify="right" if numeric else "left")
    for row in frame.itertuples(index=False):
        shown.add_row(*(_cell(value) for value in row))
    console.print(shown)
    files = experiments.save(data, out or Path("results") / name)
    verdict = "[green]passes[/green]" if data.attrs["certified"] else "[red]FAILS[/red]"
    console.print(f"certificate of our own runs: {verdict}")
    console.print(f"written to {files[0].parent}/: {', '.join(file.name for file in files)}", highlight=False)


@experiment.command()
def monotonicity(
    seeds: Annotated[int, typer.Option(help="Simulated data sets.")] = 1000,
    rounds: Annotated[int, typer.Option(help="Rounds of each.")] = 50,
    out: Out = None,
) -> None:
    """Do thresholds of two levels cross? Iid scores; MultiOGD, MultiMVP, ERM and ours."""
    _finish(experiments.monotonicity(seeds, rounds), out)


@experiment.command()
def switching(
    rounds: Annotated[int, typer.Option(help="Rounds.")] = 10_000,
    seeds: Annotated[int, typer.Option(help="Runs of MVP, which tosses coins.")] = 20,
    out: Out = None,
) -> None:
    """Scores that jump between 1 and 0: regret of OGD, MVP, ERM and ours."""
    _finish(experiments.switching(rounds, seeds), out)


@experiment.command()
def prior(
    rounds: Annotated[int, typer.Option(help="Rounds.")] = 1000,
    seed: Annotated[int, typer.Option(help="Of the sample that a prior is learned from.")] = 0,
    out: Out = None,
) -> None:
    """Compare priors: what a good one buys, and a wrong one costs."""
    _finish(experiments.prior(rounds, seed), out)


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
    out: Out = None,
) -> None:
    """Errors of a GARCH forecast of volatility: ACI, MVP, ERM and ours."""
    data = experiments.stock(prices, column, start, end, refit_every, level, seeds, cache=None if cache else False)
    _finish(data, out)


def main() -> None:
    """Run the command line; errors in what the user gave end with code 2 and one line."""
    try:
        app()
    except (ValueError, ImportError) as error:
        Console(stderr=True).print(f"[red]error:[/red] {error}", highlight=False)
        raise SystemExit(2) from None


if __name__ == "__main__":
    main()
