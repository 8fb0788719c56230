"""Are the scores exchangeable, and since when not? Martingales that bet against it, and alarms."""

from dpconformal.martingales.alarm import BinnedRanks, ChangeAlarm, RankedBins, Watch, Watched, watch
from dpconformal.martingales.capital import Capital, Composite, Martingale, Mixture, SimpleJumper
from dpconformal.martingales.exchangeability import Exchangeability, Path, exchangeability, run

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
