"""Are the scores exchangeable, and since when not? Martingales that bet against it, and alarms."""

from dpconformal.martingales.capital import Capital, Composite, Martingale, Mixture, Path, SimpleJumper, run
from dpconformal.martingales.exchangeability import (
    BinnedRanks,
    ChangeAlarm,
    Exchangeability,
    RankedBins,
    Watch,
    Watched,
    exchangeability,
    watch,
)

__all__ = [
    "BinnedRanks",
    "Capital",
    "ChangeAlarm",
    "Composite",
    "Exchangeability",
    "Martingale",
    "Mixture",
    "Path",
    "RankedBins",
    "SimpleJumper",
    "Watch",
    "Watched",
    "exchangeability",
    "run",
    "watch",
]
