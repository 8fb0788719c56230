"""Options that commands share, and how their text is read."""

import math
import shutil
import sys
from pathlib import Path
from typing import Annotated, Any

import jax
import typer

from dpconformal.cli.methods import KINDS, Settings, make_prior
from dpconformal.experiments.progress import track
from dpconformal.files import Recorded, open_scores, read_scores, spool
from dpconformal.files.reading import is_stream
from dpconformal.files.source import Block
from dpconformal.files.source import Source as Opened
from dpconformal.files.tables import text_source
from dpconformal.files.text import Text

Source = Annotated[
    str, typer.Argument(metavar="SCORES", help="CSV, .parquet or .npy file of scores; - for CSV from standard input.")
]
Levels = Annotated[str, typer.Option(help="Confidence levels, with commas between them.")]
Column = Annotated[str | None, typer.Option(help="Column of the scores.", show_default=False)]
Batch = Annotated[str | None, typer.Option(help="Column that says which series a row belongs to.", show_default=False)]
OneSeries = Annotated[
    bool, typer.Option("--one-series", help="It is one series, in time order, whatever its other columns say.")
]
Range = Annotated[
    str | None, typer.Option("--range", help="Ends of the interval that holds every score.", show_default="0,1")
]
Prior = Annotated[
    str | None,
    typer.Option(
        help="What is believed before any score: uniform, beta:A,B, half-cauchy:SCALE, histogram:FILE of old scores …",
        show_default="uniform on the range",
    ),
]
Bins = Annotated[int | None, typer.Option(help="Bins of quantized beliefs.", show_default="256")]
Discount = Annotated[
    float | None, typer.Option(help="Of old scores, such as 0.99: a memory of 100 rounds.", show_default="none")
]
Concentration = Annotated[
    float | None, typer.Option(help="Weight of the prior in scores, the same for ever.", show_default="grows as √t")
]
Window = Annotated[int | None, typer.Option(help="Rounds of methods with a window.", show_default="100")]
Resume = Annotated[
    bool, typer.Option("--resume", help="Go on with an interrupted run of the same command, from its last checkpoint.")
]
LEARNERS = ", ".join(KINDS)


def use_float64() -> None:
    """Compute in float64, which files hold; for a process that is ours, as that of a command is."""
    jax.config.update("jax_enable_x64", True)


def read_levels(text: str) -> list[float]:
    """Read confidence levels."""
    levels = []
    for part in text.split(","):
        try:
            level = float(part)
        except ValueError:
            raise ValueError(
                f"--levels {text}: {part.strip()!r} is no number; 90 % is 0.9, as in --levels 0.5,0.9"
            ) from None
        if not 0 <= level <= 1:
            raise ValueError(f"--levels {text}: {part.strip()} is no confidence level; 90 % is 0.9")
        levels.append(level)
    return sorted(set(levels))


def read_range(text: str) -> tuple[float, float]:
    """Read the range of scores."""
    try:
        low, high = (float(part) for part in text.split(","))
    except ValueError:
        raise ValueError(f"--range {text}: write two numbers, such as --range 0,50") from None
    if not (math.isfinite(low) and math.isfinite(high) and low < high):
        raise ValueError(f"--range {text}: must be finite and ascending; for scores without an end see --prior")
    return low, high


def settings(
    ends: str | None,
    prior: str | None,
    bins: int | None,
    discount: float | None,
    concentration: float | None,
    window: int | None,
) -> Settings:
    """Gather what was said of the learners."""
    low, high = read_range("0,1" if ends is None else ends)
    belief = None if prior is None else make_prior(prior, low, high)
    return Settings(low, high, belief, bins, window, discount, concentration)


def ranges(learners: dict[str, Any], ends: str | None) -> dict[str, tuple[float, float]]:
    """Find the ranges that learners allow."""
    supports = {name: tuple(map(float, learner.support)) for name, learner in learners.items()}
    if ends is not None and read_range(ends) not in supports.values():
        raise ValueError(
            f"--range {ends} means nothing beside this --prior, which has a range of its own: leave it out"
        )
    return supports  # type: ignore[return-value]


def read(
    source: str, column: str | None, batch: str | None, learners: dict[str, Any], ends: str | None, one_series: bool
) -> Recorded:
    """Read scores into memory and hold them to the supports of the learners."""
    allowed = ranges(learners, ends)
    check, lone = _within(allowed), _is_lone(batch, one_series)
    (recorded,) = (read_scores(file, column, batch, check=check, lone=lone) for file in track([source], "reading"))
    return recorded


def read_to_disk(
    source: str,
    column: str | None,
    batch: str | None,
    learners: dict[str, Any],
    ends: str | None,
    one_series: bool,
    folder: Path,
) -> Recorded:
    """Read scores in blocks, hold them to the supports of the learners, and keep them on disk."""
    allowed = ranges(learners, ends)

    lone = _is_lone(batch, one_series)

    def kept(file: str) -> Recorded:
        opened = (
            _copied(file, column, batch, lone, folder) if is_stream(file) else open_scores(file, column, batch, lone)
        )
        return spool(opened, folder, _within(allowed))

    (recorded,) = (kept(file) for file in track([source], "reading"))
    return recorded


def _within(allowed: dict[str, tuple[float, float]]) -> Any:
    def check(source: Opened, block: Block) -> None:
        for name, (low, high) in allowed.items():
            remedy = f"that is the range of {name}: widen it with --range LOW,HIGH, or rescale the scores"
            source.check_range(block, low, high, remedy)

    return check


def _is_lone(batch: str | None, one_series: bool) -> bool:
    """Whether a file has to look like one series, for the user does not say how many it holds."""
    if one_series and batch is not None:
        raise ValueError(f"--one-series and --batch {batch} exclude each other: leave one out")
    return not one_series and batch is None


def _copied(source: str, column: str | None, batch: str | None, lone: bool, folder: Path) -> Opened:
    """Keep what can be read only once, so that an interrupted run need not be given it again."""
    copy, part = folder / "input.csv", folder / "input.part"
    if not copy.exists():
        with part.open("wb") as target:
            if source == "-":
                shutil.copyfileobj(sys.stdin.buffer, target)
            else:
                with open(source, "rb") as stream:
                    shutil.copyfileobj(stream, target)
        part.rename(copy)
    name = "standard input" if source == "-" else source
    return text_source(Text(name, lambda: copy.open("rb")), column, batch, lone)
