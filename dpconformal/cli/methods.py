"""Learners by name, from the options of a command."""

import difflib
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import dpconformal as dpc
from dpconformal.files import read_scores


class Settings(NamedTuple):
    """What a user may say of a learner; None where nothing was said."""

    low: float = 0.0  # range of the scores
    high: float = 1.0
    prior: Any = None  # uniform on the range by default
    bins: int | None = None
    window: int | None = None
    discount: float | None = None
    concentration: float | None = None  # of a Dirichlet schedule, in the place of 1/√t
    rate: float | None = None  # of the steps of ACI, SF-OGD and PID


class Kind(NamedTuple):
    """A learner that can be asked for by name: the settings it takes, and how it is made of levels and settings."""

    takes: tuple[str, ...]
    make: Callable[[Any, Settings], Any]


def _prior(s: Settings) -> Any:
    return dpc.priors.Uniform(s.low, s.high) if s.prior is None else s.prior


def _schedule(s: Settings) -> Any:
    return None if s.concentration is None else dpc.schedules.Dirichlet(s.concentration)


def _given(**named: Any) -> dict[str, Any]:
    return {name: value for name, value in named.items() if value is not None}


def _grid(learner: Any, *takes: str) -> Kind:
    def make(levels: Any, s: Settings) -> Any:
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
_NUMBERS: dict[str, Callable[[str], Any]] = {
    "bins": int,
    "window": int,
    "discount": float,
    "concentration": float,
    "rate": float,
}


def make_learners(specs: str, levels: Sequence[float], settings: Settings) -> dict[str, Any]:
    """Make learners."""
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


_PRIORS: dict[str, tuple[int, Callable[..., Any]]] = {
    "uniform": (0, lambda low, high: dpc.priors.Uniform(low, high)),
    "beta": (2, lambda low, high, a, b: dpc.priors.Beta(a, b, low, high)),
    "truncated-normal": (2, lambda low, high, loc, scale: dpc.priors.TruncatedNormal(loc, scale, low, high)),
    "half-normal": (1, lambda low, high, scale: dpc.priors.HalfNormal(scale)),
    "exponential": (1, lambda low, high, scale: dpc.priors.Exponential(scale)),
    "log-normal": (2, lambda low, high, loc, scale: dpc.priors.LogNormal(loc, scale)),
    "half-cauchy": (1, lambda low, high, scale: dpc.priors.HalfCauchy(scale)),
}


def make_prior(text: str, low: float, high: float) -> Any:
    """
    Make a prior.

    ``text``: Its name and numbers, such as ``"beta:2,5"`` or ``"half-cauchy:0.5"``; or ``"histogram:FILE"``, learned
    from the scores of a file.
    """
    name, _, rest = text.partition(":")
    if name == "histogram" and rest:
        scores = read_scores(rest, check=lambda source, block: source.check_range(block, low, high, "widen --range"))
        return dpc.priors.Histogram.from_scores([x for series in scores.scores for x in series], low=low, high=high)
    wanted, make = _PRIORS.get(name, (-1, None))
    try:
        numbers = [float(part) for part in rest.split(",")] if rest else []
    except ValueError:
        numbers = []
    if make is None or len(numbers) != wanted:
        known = ", ".join(f"{n}{':' if k else ''}{','.join('XY'[:k])}" for n, (k, _) in _PRIORS.items())
        raise ValueError(f"--prior {text}: write one of {known}, histogram:FILE, with numbers for X and Y")
    return make(low, high, *numbers)
