"""The command line: its commands, and how a mistake ends."""

import typer
from rich.console import Console
from rich.text import Text

from dpconformal.cli.compare import compare
from dpconformal.cli.demo import demo
from dpconformal.cli.diagnose import diagnose
from dpconformal.cli.experiment import experiment
from dpconformal.cli.panel import panel
from dpconformal.cli.replay import replay
from dpconformal.cli.stopping import stopped_at_once

app = typer.Typer(
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
app.add_typer(experiment, name="experiment")


def main() -> None:
    """Run the command line; errors in what the user gave end with code 2 and one line."""
    try:
        with stopped_at_once("stopped"):
            app()
    except (ValueError, ImportError, OSError, MemoryError) as error:
        said = str(error) or "out of memory"
        Console(stderr=True).print(Text.assemble(("error: ", "red"), said), soft_wrap=True)
        raise SystemExit(2) from None


if __name__ == "__main__":
    main()
