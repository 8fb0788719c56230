"""The console, which escapes control characters, and tables of 80 columns."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from dpconformal.display import visible
from dpconformal.validation import format_level


class Terminal(Console):
    """The console of all commands, which escapes control characters in everything it prints."""

    def __init__(self, stderr: bool = False) -> None:
        super().__init__(stderr=stderr, emoji=False, highlight=False)  # a name may hold :art:

    def say(self, text: str) -> None:
        """Print a text as it is, on a line as long as it takes."""
        self.print(text, markup=False, soft_wrap=True)

    def render_str(self, text: str, **options: Any) -> Text:
        """Render text with its control characters escaped."""
        return super().render_str(visible(text), **options)


def table(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]], left: int = 1) -> Table:
    """Lay out a table whose first ``left`` columns hold words, and the others numbers; the title has no markup."""
    style: Any = {"box": box.SIMPLE_HEAD, "padding": (0, 0, 0, 1), "pad_edge": False}
    shown = Table(title=escape(title), title_justify="left", title_style="bold", **style)
    for k, heading in enumerate(columns):
        # Words are folded before numbers are cut.
        shown.add_column(heading, justify="left" if k < left else "right", no_wrap=k >= left, overflow="fold")
    for row in rows:
        shown.add_row(*row)
    return shown


def table_of_series(title: str, levels: np.ndarray, columns: Sequence[np.ndarray]) -> Table:
    """Lay out summaries over several series, a row for each level."""
    heads = ("level", "coverage", "lowest", "highest", "mean threshold", "loss", "highest regret")
    rows = [[format_level(level), *(format_number(column[k]) for column in columns)] for k, level in enumerate(levels)]
    return table(title, heads, rows, left=0)


def format_number(value: Any) -> str:
    """Write a number in few characters."""
    value = float(value)
    if not np.isfinite(value):
        return "" if np.isnan(value) else "∞" if value > 0 else "-∞"
    if abs(value) >= 999.5:
        return f"{value:,.0f}"
    if abs(value) < 1e-9:  # rounding, in what is compared here
        return "0"
    return f"{value:.3g}" if abs(value) >= 1e-3 else f"{value:.1e}"
