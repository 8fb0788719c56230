"""``dpconformal demo``: what ``make demo`` runs."""

from pathlib import Path
from typing import Annotated

import typer

from dpconformal.demo import run_demo


def demo(
    cache: Annotated[
        bool, typer.Option(help="Keep compiled programs in ~/.cache/dpconformal, so that the next run starts faster.")
    ] = False,
    out: Annotated[Path, typer.Option(help="Folder to write to.")] = Path("results/demo"),
) -> None:
    """Show confidence sets for tomorrow's return of the S&P 500, and how learners compare on it."""
    run_demo(out, cache)
