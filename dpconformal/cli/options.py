"""Options that commands share: levels, learners by name, priors, and the file of scores."""

import difflib
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import jax
import typer

import dpconformal as dpc
from dpconformal import priors
from dpconformal.display import track
from dpconformal.files import Recorded, copy_to_disk, open_scores, read_scores
from dpconformal.files.source import Block
from dpconformal.files.source import Source as Opened
from dpconformal.learner import Learner

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


def use_float64() -> None:
    """Turn on 64-bit JAX: files hold float64, and the process of a command is ours."""
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


class Settings(NamedTuple):
    """Settings of a learner; None where the user gave none."""

    low: float = 0.0  # range of the scores
    high: float = 1.0
    prior: priors.Prior | None = None  # P0; uniform on the range by default
    bins: int | None = None
    window: int | None = None
    discount: float | None = None  # β
    concentration: float | None = None  # of a Dirichlet schedule in the place of 1/√t
    rate: float | None = None  # of the steps of ACI, SF-OGD and PID


class Kind(NamedTuple):
    """A learner that can be asked for by name: the settings it takes, and how it is made of levels and settings."""

    takes: tuple[str, ...]
    make: Callable[[Sequence[float], Settings], Learner]


def _prior(s: Settings) -> priors.Prior:
    return dpc.priors.Uniform(s.low, s.high) if s.prior is None else s.prior


def _schedule(s: Settings) -> dpc.schedules.Dirichlet | None:
    return None if s.concentration is None else dpc.schedules.Dirichlet(s.concentration)


def _given(**named: Any) -> dict[str, Any]:
    return {name: value for name, value in named.items() if value is not None}


def _grid(learner: type, *takes: str) -> Kind:
    def make(levels: Sequence[float], s: Settings) -> Learner:
        return learner(levels, low=s.low, high=s.high, **_given(**{name: getattr(s, name) for name in takes}))

    return Kind(takes, make)


KINDS = {
    "exact": Kind(("prior", "discount", "concentration"), lambda _, s: dpc.Exact(_prior(s), _schedule(s), s.discount)),
    "quantized": Kind(
        ("prior", "bins", "discount", "concentration"),
        lambda _, s: dpc.Quantized(256 if s.bins is None else s.bins, _prior(s), _schedule(s), s.discount),
    ),
    "auto": Kind(("prior", "bins"), lambda _, s: dpc.auto(prior=_prior(s), **_given(bins=s.bins))),
    "erm": Kind(("prior",), lambda _, s: dpc.ERM(_prior(s))),
    "sliding-erm": Kind(("prior", "window"), lambda _, s: dpc.SlidingERM(**_given(window=s.window), prior=_prior(s))),
    "discounted-erm": Kind(
        ("prior", "discount"), lambda _, s: dpc.DiscountedERM(**_given(discount=s.discount), prior=_prior(s))
    ),
    "split": Kind((), lambda _, s: dpc.SplitConformal(s.low, s.high)),
    "nexcp": Kind(("discount",), lambda _, s: dpc.NExCP(**_given(discount=s.discount), low=s.low, high=s.high)),
    "ogd": _grid(dpc.OGD),
    "sfogd": _grid(dpc.SFOGD, "rate"),
    "saocp": _grid(dpc.SAOCP),
    "aci": _grid(dpc.ACI, "window", "rate"),
    "dtaci": _grid(dpc.DtACI, "window"),
    "agaci": _grid(dpc.AgACI, "window"),
    "pid": _grid(dpc.PID, "window", "rate"),
    "mvp": _grid(dpc.MVP),
}
_NUMBERS: dict[str, Callable[[str], float]] = {
    **dict.fromkeys(("bins", "window"), int),
    **dict.fromkeys(("discount", "concentration", "rate"), float),
}
LEARNERS = ", ".join(KINDS)


def settings(
    ends: str | None,
    prior: str | None,
    bins: int | None,
    discount: float | None,
    concentration: float | None,
    window: int | None,
) -> Settings:
    """Collect the settings of all learners from the options."""
    low, high = read_range("0,1" if ends is None else ends)
    belief = None if prior is None else make_prior(prior, low, high)
    return Settings(low, high, belief, bins, window, discount, concentration)


def make_learner(spec: str, levels: Sequence[float], settings: Settings, instead: str = "") -> Any:
    """Make the one learner of a command."""
    if "," in spec:
        raise ValueError(f"--learner {spec}: one at a time{instead}")
    (learner,) = make_learners(spec, levels, settings).values()
    return learner


def make_learners(specs: str, levels: Sequence[float], settings: Settings) -> dict[str, Any]:
    """Make learners by name, with settings of their own as in ``exact:discount=0.99``."""
    learners: dict[str, Any] = {}
    taken: set[str] = {"low", "high"}
    for spec in (part.strip() for part in specs.split(",")):
        name, *own = spec.split(":")
        if name not in KINDS:
            close = difflib.get_close_matches(name.lower(), KINDS, 1)
            hint = f"did you mean {close[0]}?" if close else f"the learners are {', '.join(KINDS)}"
            raise ValueError(f"learner {name!r} is not known: {hint}")
        if spec in learners:
            raise ValueError(f"learner {spec!r} is asked for twice")
        kind = KINDS[name]
        taken |= set(kind.takes)
        mine = settings._replace(**dict(_setting(name, part) for part in own))
        if name in ("quantized", "auto") and not math.isfinite(float(_prior(mine).support[1])):
            raise ValueError(f"{name} needs a prior with an end, for its bins: give another --prior, or leave it out")
        learners[spec] = kind.make(levels, mine)
    for field, value in zip(Settings._fields, settings, strict=True):
        if value is not None and field not in taken:
            raise ValueError(f"--{field} means nothing to {', '.join(learners)}: leave it out")
    return learners


def _setting(name: str, text: str) -> tuple[str, Any]:
    key, _, value = text.partition("=")
    allowed = [key for key in KINDS[name].takes if key in _NUMBERS]
    if key not in allowed:
        takes = f"takes {', '.join(allowed)}" if allowed else "takes none"
        raise ValueError(f"{name}:{text}: {name} has no such setting; it {takes}, as in {name}:KEY=VALUE")
    try:
        return key, _NUMBERS[key](value)
    except ValueError:
        raise ValueError(f"{name}:{text}: {value!r} is no number; write {name}:{key}=VALUE") from None


_PRIORS: dict[str, tuple[int, Callable[..., priors.Prior]]] = {
    "uniform": (0, lambda low, high: dpc.priors.Uniform(low, high)),
    "beta": (2, lambda low, high, a, b: dpc.priors.Beta(a, b, low, high)),
    "truncated-normal": (2, lambda low, high, loc, scale: dpc.priors.TruncatedNormal(loc, scale, low, high)),
    "half-normal": (1, lambda low, high, scale: dpc.priors.HalfNormal(scale)),
    "exponential": (1, lambda low, high, scale: dpc.priors.Exponential(scale)),
    "log-normal": (2, lambda low, high, loc, scale: dpc.priors.LogNormal(loc, scale)),
    "half-cauchy": (1, lambda low, high, scale: dpc.priors.HalfCauchy(scale)),
}


def make_prior(text: str, low: float, high: float) -> priors.Prior:
    """Make a prior of its name and numbers, such as ``"beta:2,5"``, or of a file of scores: ``"histogram:FILE"``."""
    name, _, rest = text.partition(":")
    if name == "histogram" and rest:
        scores = read_scores(rest, check=lambda source, block: source.check_range(block, low, high, "widen --range"))
        return dpc.priors.Histogram.from_scores(scores.values, low=low, high=high)
    wanted, make = _PRIORS.get(name, (-1, None))
    try:
        numbers = [float(part) for part in rest.split(",")] if rest else []
    except ValueError:
        numbers = []
    if make is None or len(numbers) != wanted:
        known = ", ".join(f"{n}{':' if k else ''}{','.join('XY'[:k])}" for n, (k, _) in _PRIORS.items())
        raise ValueError(f"--prior {text}: write one of {known}, histogram:FILE, with numbers for X and Y")
    return make(low, high, *numbers)


def check_ranges(learners: dict[str, Any], ends: str | None) -> dict[str, tuple[float, float]]:
    """Return the range that each learner allows; refuse one that was given for nothing."""
    supports = {name: (float(learner.support[0]), float(learner.support[1])) for name, learner in learners.items()}
    if ends is not None and read_range(ends) not in supports.values():
        raise ValueError(
            f"--range {ends} means nothing beside this --prior, which has a range of its own: leave it out"
        )
    return supports


def read(
    source: str,
    column: str | None,
    batch: str | None,
    learners: dict[str, Any],
    ends: str | None,
    one_series: bool,
    folder: Path,
) -> Recorded:
    """Read scores in blocks, check that they lie in the learners' ranges, and keep them on disk."""
    ranges = check_ranges(learners, ends)
    if one_series and batch is not None:
        raise ValueError(f"--one-series and --batch {batch} exclude each other: leave one out")

    def check(opened: Opened, block: Block) -> None:
        for name, (low, high) in ranges.items():
            remedy = f"that is the range of {name}: widen it with --range LOW,HIGH, or rescale the scores"
            opened.check_range(block, low, high, remedy)

    for _ in track([source], "reading"):
        opened = open_scores(source, column, batch, lone=not one_series, copy=folder / "input.csv")
        recorded = copy_to_disk(opened, folder, check)
    return recorded
