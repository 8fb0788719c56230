"""The commands of the command line, and how errors are shown."""

import contextlib
from collections.abc import Iterator
from typing import Any

import typer
from typer.core import TyperGroup

from dpconformal.cli.compare import compare
from dpconformal.cli.demo import demo
from dpconformal.cli.diagnose import diagnose
from dpconformal.cli.experiment import experiment
from dpconformal.cli.panel import panel
from dpconformal.cli.replay import replay
from dpconformal.cli.resumable_job import stopped_at_once
from dpconformal.display import visible
from dpconformal.display.terminal import Terminal


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
    """The group of all commands, whose errors obey no control character."""

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
app.add_typer(experiment, name="experiment")


def main() -> None:
    """Run the command line; errors in what the user gave end with code 2 and one line."""
    try:
        with stopped_at_once("stopped"):
            app()
    except (ValueError, ImportError, OSError, MemoryError) as error:
        terminal = Terminal(stderr=True)
        terminal.print("[red]error:[/red]", end=" ")
        terminal.say(str(error) or "out of memory")
        raise SystemExit(2) from None
