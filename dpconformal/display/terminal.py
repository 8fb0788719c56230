"""What is shown in a terminal: tables of 80 columns, and text that is shown and never obeyed."""

from collections.abc import Sequence
from typing import Any

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from dpconformal.display import visible


class Terminal(Console):
    """The console of all commands: text goes to the terminal through here, and no character of it is obeyed."""

    def __init__(self, stderr: bool = False) -> None:
        super().__init__(stderr=stderr, emoji=False)  # a name may hold :art:

    def render_str(self, text: str, **options: Any) -> Text:
        """Render text of whatever origin."""
        return super().render_str(visible(text), **options)


def table(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]], left: int = 1) -> Table:
    """
    Lay out a table.

    Parameters
    ----------
    title : str
        Above it; as it is, without markup.
    columns : sequence of str
        Headings.
    rows : sequence of sequence of str
        Cells.
    left : int
        Columns from the left that hold words; the others are numbers, to the right.

    Returns
    -------
    rich.table.Table
        To be printed.
    """
    shown = Table(
        box=box.SIMPLE_HEAD,
        title=escape(title),
        title_justify="left",
        title_style="bold",
        padding=(0, 0, 0, 1),
        pad_edge=False,
    )
    for k, heading in enumerate(columns):
        # Words are folded before numbers are cut.
        shown.add_column(heading, justify="left" if k < left else "right", no_wrap=k >= left, overflow="fold")
    for row in rows:
        shown.add_row(*row)
    return shown


def number(value: Any) -> str:
    """Write a number in few characters."""
    value = float(value)
    if value != value:
        return ""
    if value in (float("inf"), float("-inf")):
        return "∞" if value > 0 else "-∞"
    if abs(value) >= 999.5:
        return f"{value:,.0f}"
    if abs(value) < 1e-9:  # rounding, in what is compared here
        return "0"
    return f"{value:.3g}" if abs(value) >= 1e-3 else f"{value:.1e}"
