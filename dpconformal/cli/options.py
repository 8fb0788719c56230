"""Options that commands share: the file of scores, levels, learners by name, priors."""

import difflib
import functools
import inspect
import math
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import jax
import typer

import dpconformal as dpc
from dpconformal.display import track
from dpconformal.files import Recorded, copy_to_disk, open_scores, read_scores
from dpconformal.files.reading import is_stream
from dpconformal.files.source import Block, Source
from dpconformal.learner import Learner, support_of
from dpconformal.priors import Prior

Resume = Annotated[
    bool, typer.Option("--resume", help="Go on with an interrupted run of the same command, from its last checkpoint.")
]


def use_float64() -> None:
    """Turn on 64-bit JAX: files hold float64, and the process of a command is ours."""
    jax.config.update("jax_enable_x64", True)


@dataclass(frozen=True)
class FileOptions:
    """Options of commands that read one file of scores."""

    scores: Annotated[
        str,
        typer.Argument(metavar="SCORES", help="CSV, .parquet or .npy file of scores; - for CSV from standard input."),
    ]
    column: Annotated[str | None, typer.Option(help="Column of the scores.", show_default=False)] = None
    batch: Annotated[
        str | None, typer.Option(help="Column that says which series a row belongs to.", show_default=False)
    ] = None
    one_series: Annotated[
        bool, typer.Option("--one-series", help="It is one series, in time order, whatever its other columns say.")
    ] = False

    def describe(self) -> dict[str, Any]:
        """Describe the file for the record of a job; by its size and time a change to it is noticed."""
        source: dict[str, Any] = {"name": self.scores}
        if not is_stream(self.scores) and Path(self.scores).exists():
            found = os.stat(self.scores)
            source |= {"bytes": found.st_size, "changed": found.st_mtime_ns}
        return {"scores": source, "--column": self.column, "--batch": self.batch}

    def read(self, learners: dict[str, Learner], ends: str | None, folder: Path) -> Recorded:
        """Read scores in blocks, check that they lie in the learners' ranges, and keep them on disk."""
        ranges = check_ranges(learners, ends)
        if self.one_series and self.batch is not None:
            raise ValueError(f"--one-series and --batch {self.batch} exclude each other: leave one out")

        def check(opened: Source, block: Block) -> None:
            for name, (low, high) in ranges.items():
                remedy = f"that is the range of {name}: widen it with --range LOW,HIGH, or rescale the scores"
                opened.check_range(block, low, high, remedy)

        lone = not self.one_series
        for name in track([self.scores], "reading"):
            opened = open_scores(name, self.column, self.batch, lone=lone, copy=folder / "input.csv")
            recorded = copy_to_disk(opened, folder, check)
        return recorded


@dataclass(frozen=True)
class LearnerOptions:
    """Options of commands that run learners: levels, and settings that hold for all learners."""

    levels: Annotated[str, typer.Option(help="Confidence levels, with commas between them.")] = "0.5,0.8,0.9,0.95"
    ends: Annotated[
        str | None, typer.Option("--range", help="Ends of the interval that holds every score.", show_default="0,1")
    ] = None
    prior: Annotated[
        str | None,
        typer.Option(
            help="What is believed before any score: uniform, beta:A,B, half-cauchy:SCALE, "
            "histogram:FILE of old scores …",
            show_default="uniform on the range",
        ),
    ] = None
    bins: Annotated[int | None, typer.Option(help="Bins of quantized beliefs.", show_default="256")] = None
    discount: Annotated[
        float | None, typer.Option(help="Of old scores, such as 0.99: a memory of 100 rounds.", show_default="none")
    ] = None
    concentration: Annotated[
        float | None, typer.Option(help="Weight of the prior in scores, the same for ever.", show_default="grows as √t")
    ] = None
    window: Annotated[int | None, typer.Option(help="Rounds of methods with a window.", show_default="100")] = None

    def read_levels(self) -> list[float]:
        """Read confidence levels."""
        levels = set()
        for part in self.levels.split(","):
            try:
                level = float(part)
            except ValueError:
                raise ValueError(
                    f"--levels {self.levels}: {part.strip()!r} is no number; 90 % is 0.9, as in --levels 0.5,0.9"
                ) from None
            if not 0 <= level <= 1:
                raise ValueError(f"--levels {self.levels}: {part.strip()} is no confidence level; 90 % is 0.9")
            levels.add(level)
        return sorted(levels)

    def settings(self) -> "Settings":
        """Collect the settings of all learners."""
        low, high = read_range("0,1" if self.ends is None else self.ends)
        prior = None if self.prior is None else make_prior(self.prior, low, high)
        return Settings(low, high, prior, self.bins, self.window, self.discount, self.concentration)


def expand_groups(command: Callable[..., None]) -> Callable[..., None]:
    """
    Replace each group of options among a command's parameters by the options themselves.

    Typer reads options off the signature of a function, and knows no groups.
    """
    parameters: list[inspect.Parameter] = []
    groups: dict[str, tuple[type, list[str]]] = {}
    for parameter in inspect.signature(command).parameters.values():
        if (group := parameter.annotation) in (FileOptions, LearnerOptions):
            groups[parameter.name] = group, list(inspect.signature(group).parameters)
            parameters += inspect.signature(group).parameters.values()
        else:
            parameters.append(parameter)

    @functools.wraps(command)
    def expanded(**given: Any) -> None:
        made = {name: group(**{key: given.pop(key) for key in keys}) for name, (group, keys) in groups.items()}
        command(**given, **made)

    keyword_only = [parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY) for parameter in parameters]
    vars(expanded)["__signature__"] = inspect.Signature(keyword_only)
    expanded.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return expanded


def read_range(text: str) -> tuple[float, float]:
    """Read the range of scores."""
    try:
        low, high = (float(part) for part in text.split(","))
    except ValueError:
        raise ValueError(f"--range {text}: write two numbers, such as --range 0,50") from None
    if not (math.isfinite(low) and math.isfinite(high) and low < high):
        raise ValueError(f"--range {text}: must be finite and ascending; for scores without an end see --prior")
    return low, high


def check_ranges(learners: dict[str, Learner], ends: str | None) -> dict[str, tuple[float, float]]:
    """Return the range that each learner allows; refuse a --range that none of them uses."""
    supports = {name: support_of(learner) for name, learner in learners.items()}
    ranges = {name: (float(low), float(high)) for name, (low, high) in supports.items()}
    if ends is not None and read_range(ends) not in ranges.values():
        raise ValueError(
            f"--range {ends} means nothing beside this --prior, which has a range of its own: leave it out"
        )
    return ranges


class Settings(NamedTuple):
    """Settings of a learner; None where the user gave none."""

    low: float = 0.0  # range of the scores
    high: float = 1.0
    prior: Prior | None = None  # P0; uniform on the range by default
    bins: int | None = None
    window: int | None = None
    discount: float | None = None  # β
    concentration: float | None = None  # of a Dirichlet schedule in the place of 1/√t
    rate: float | None = None  # of the steps of ACI, SF-OGD and PID

    def prior_or_uniform(self) -> Prior:
        """Return the prior that was asked for, or else the uniform one on the range."""
        return dpc.priors.Uniform(self.low, self.high) if self.prior is None else self.prior


class Kind(NamedTuple):
    """A learner that can be asked for by name."""

    learner: Callable[..., Learner]
    takes: tuple[str, ...] = ()  # fields of Settings; a learner without a prior takes the range
    follows_levels: bool = False  # whether it follows each level by itself, and has to know them

    def make(self, levels: Sequence[float], settings: Settings) -> Learner:
        """Make the learner; what was not given is left to its own default."""
        named = {name: value for name in self.takes if (value := getattr(settings, name)) is not None}
        if "prior" in self.takes:
            named["prior"] = settings.prior_or_uniform()
        else:
            named |= {"low": settings.low, "high": settings.high}
        if "concentration" in named:
            named["schedule"] = dpc.schedules.Dirichlet(named.pop("concentration"))
        return self.learner(levels, **named) if self.follows_levels else self.learner(**named)


KINDS = {
    "exact": Kind(dpc.Exact, ("prior", "discount", "concentration")),
    "quantized": Kind(functools.partial(dpc.Quantized, bins=256), ("prior", "bins", "discount", "concentration")),
    "auto": Kind(dpc.auto, ("prior", "bins")),
    "erm": Kind(dpc.ERM, ("prior",)),
    "sliding-erm": Kind(dpc.SlidingERM, ("prior", "window")),
    "discounted-erm": Kind(dpc.DiscountedERM, ("prior", "discount")),
    "split": Kind(dpc.SplitConformal),
    "nexcp": Kind(dpc.NExCP, ("discount",)),
    "ogd": Kind(dpc.OGD, follows_levels=True),
    "sfogd": Kind(dpc.SFOGD, ("rate",), follows_levels=True),
    "saocp": Kind(dpc.SAOCP, follows_levels=True),
    "aci": Kind(dpc.ACI, ("window", "rate"), follows_levels=True),
    "dtaci": Kind(dpc.DtACI, ("window",), follows_levels=True),
    "agaci": Kind(dpc.AgACI, ("window",), follows_levels=True),
    "pid": Kind(dpc.PID, ("window", "rate"), follows_levels=True),
    "mvp": Kind(dpc.MVP, follows_levels=True),
}
# Settings that a learner may be given in its name, as in exact:discount=0.99.
_NUMBERS: dict[str, Callable[[str], float]] = {
    "bins": int,
    "window": int,
    "discount": float,
    "concentration": float,
    "rate": float,
}
LEARNERS = ", ".join(KINDS)


def make_learner(spec: str, levels: Sequence[float], settings: Settings, instead: str = "") -> Learner:
    """Make the one learner of a command."""
    if "," in spec:
        raise ValueError(f"--learner {spec}: one at a time{instead}")
    (learner,) = make_learners(spec, levels, settings).values()
    return learner


def make_learners(specs: str, levels: Sequence[float], settings: Settings) -> dict[str, Learner]:
    """Make learners by name, with settings of their own as in ``exact:discount=0.99``."""
    learners: dict[str, Learner] = {}
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
        if name in ("quantized", "auto") and not math.isfinite(float(mine.prior_or_uniform().support[1])):
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


_PRIORS: dict[str, tuple[int, Callable[..., Prior]]] = {
    "uniform": (0, lambda low, high: dpc.priors.Uniform(low, high)),
    "beta": (2, lambda low, high, a, b: dpc.priors.Beta(a, b, low, high)),
    "truncated-normal": (2, lambda low, high, loc, scale: dpc.priors.TruncatedNormal(loc, scale, low, high)),
    "half-normal": (1, lambda low, high, scale: dpc.priors.HalfNormal(scale)),
    "exponential": (1, lambda low, high, scale: dpc.priors.Exponential(scale)),
    "log-normal": (2, lambda low, high, loc, scale: dpc.priors.LogNormal(loc, scale)),
    "half-cauchy": (1, lambda low, high, scale: dpc.priors.HalfCauchy(scale)),
}


def make_prior(text: str, low: float, high: float) -> Prior:
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
