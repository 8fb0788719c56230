"""The paper's experiments and two of our own: functions that return data, with a table and a picture for each."""

from dpconformal.experiments.drift import drift
from dpconformal.experiments.frequentist import frequentist
from dpconformal.experiments.monotonicity import monotonicity
from dpconformal.experiments.prior import prior
from dpconformal.experiments.registry import EXPERIMENTS, Experiment, plot, save, table, writable
from dpconformal.experiments.stock import stock
from dpconformal.experiments.switching import switching

__all__ = [
    "EXPERIMENTS",
    "Experiment",
    "drift",
    "frequentist",
    "monotonicity",
    "plot",
    "prior",
    "save",
    "stock",
    "switching",
    "table",
    "writable",
]
