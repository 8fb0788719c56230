"""Metrics of a run: loss, regret, coverage, crossings, calibration."""

from dpconformal.metrics.coverage import (
    Crossings,
    coverage,
    coverage_error,
    covered,
    crossings,
    interval_score,
    interval_width,
    longest_miss_run,
    rolling_coverage,
)
from dpconformal.metrics.loss import crps, discounted_regret, pit, quantile_loss, regret
from dpconformal.metrics.summary import by_group, summary

__all__ = [
    "Crossings",
    "by_group",
    "coverage",
    "coverage_error",
    "covered",
    "crossings",
    "crps",
    "discounted_regret",
    "interval_score",
    "interval_width",
    "longest_miss_run",
    "pit",
    "quantile_loss",
    "regret",
    "rolling_coverage",
    "summary",
]
