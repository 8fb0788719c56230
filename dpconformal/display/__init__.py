"""What is shown to people: escaped text, progress bars, and the parts that all figures share.

Tables of the terminal are in :mod:`dpconformal.display.terminal`. Matplotlib and rich are imported when they are used.
"""

import os
import unicodedata
from collections.abc import Iterable, Iterator, Sized
from typing import Any, TypeVar

_Step = TypeVar("_Step")

LONGEST = 100  # characters of a name in a picture
INK, FAINT = "#222222", "#9aa0a6"
OURS = "#c2410c"
# One colour a method in every picture; ours is the warm one.
COLOURS = {
    "Exact": OURS,
    "Quantized": OURS,
    "ERM": "#5f6368",
    "OGD": "#1d6fb8",
    "MultiOGD": "#1d6fb8",
    "MVP": "#2e8b57",
    "MultiMVP": "#2e8b57",
    "ACI": "#7b3fa0",
    "DtACI": "#b0569f",
    "SAOCP": "#1a9ba1",
    "PID": "#8a6d1f",
    "SplitConformal": "#9aa0a6",
}
# Unicode categories of characters that a terminal acts on instead of showing them.
_CONTROL = ("Cc", "Cf", "Cs", "Zl", "Zp")


def visible(text: str) -> str:
    r"""Write what a terminal would obey as ``\x1b``: escapes, changes of direction and the like; no ends of lines."""
    if text.isprintable():
        return text
    return "".join(repr(c)[1:-1] if c != "\n" and unicodedata.category(c) in _CONTROL else c for c in text)


def as_label(name: Any) -> str:
    """Write a name for matplotlib, which takes what stands between dollars for a formula."""
    text = visible(str(name)).replace("\n", r"\n")
    return (text if len(text) <= LONGEST else f"{text[: LONGEST - 1]}…").replace("$", r"\$")


def track(steps: Iterable[_Step], what: str, show: bool = True) -> Iterator[_Step]:
    """Go through steps with a progress bar on the error stream; there is none without rich or a terminal."""
    try:
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        from dpconformal.display.terminal import Terminal
    except ImportError:
        show = False
    if not show or not (console := Terminal(stderr=True)).is_terminal:
        yield from steps
        return
    count = len(steps) if isinstance(steps, Sized) else None
    if count == 1:  # a bar would stand still
        with console.status(what):
            yield from steps
        return
    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
    with Progress(*columns, console=console, transient=True) as bar:
        yield from bar.track(steps, total=count, description=what)


def pyplot() -> Any:
    """Import matplotlib, which the package does not depend on."""
    try:
        import matplotlib.pyplot as plt
    except ImportError as error:
        raise ImportError("plots need matplotlib: pip install '.[plots]' in a clone of dpconformal") from error
    return plt


def save_figure(figure: Any, path: str | os.PathLike[str]) -> None:
    """Write a figure to a file, and close it."""
    try:
        figure.savefig(path, dpi=150)
    finally:
        pyplot().close(figure)


def quiet(ax: Any) -> Any:
    """Remove top and right spines, and mute the others."""
    ax.spines[["top", "right"]].set_visible(False)
    ax.spines[["left", "bottom"]].set_color(FAINT)
    ax.tick_params(colors=INK)
    return ax


def panels(rows: int, columns: int, width: float, height: float, **options: Any) -> tuple[Any, Any]:
    """Make a figure of quiet panels."""
    size = {"figsize": (width, height), "layout": "constrained", "squeeze": False}
    figure, axes = pyplot().subplots(rows, columns, **size, **options)
    for ax in axes.flat:
        quiet(ax)
    return figure, axes
