"""Are the scores exchangeable, and since when not? Martingales that bet against it, and alarms."""

from dpconformal.martingales.alarm import ChangeAlarm, Watch, Watched, watch
from dpconformal.martingales.binned_ranks import BinnedRanks, RankedBins
from dpconformal.martingales.capital import Capital, Martingale
from dpconformal.martingales.exchangeability import Exchangeability, exchangeability
from dpconformal.martingales.jumpers import Composite, SimpleJumper
from dpconformal.martingales.mixture import Mixture
from dpconformal.martingales.running import Path, run

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
