"""Progress bars for work that takes more than a moment."""

from collections.abc import Iterable, Iterator, Sized
from typing import Any


def track(steps: Iterable[Any], what: str, show: bool = True) -> Iterator[Any]:
    """
    Go through steps with a progress bar on the terminal's error stream.

    ``show``: Whether to show a bar; there is none without rich, or where the output is no terminal.
    """
    try:
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        from dpconformal.tables import Terminal
    except ImportError:
        show = False
    if not show or not (console := Terminal(stderr=True)).is_terminal:
        yield from steps
        return
    if isinstance(steps, Sized) and len(steps) == 1:  # a bar would stand still
        with console.status(what):
            yield from steps
        return
    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
    with Progress(*columns, console=console, transient=True) as bar:
        yield from bar.track(steps, total=len(steps) if isinstance(steps, Sized) else None, description=what)
