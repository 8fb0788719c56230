"""Is the coverage right? Diagnostics of runs, posteriors and fits, with ArviZ."""

from dpconformal.diagnostics.arviz import from_datatree, plot_ecdf_pit, summary, to_datatree
from dpconformal.diagnostics.calibration import (
    Sbc,
    Uniformity,
    credible_pits,
    ecdf_band,
    interval_coverage,
    randomised_pit,
    sbc,
    uniformity,
)
from dpconformal.diagnostics.compare import compare
from dpconformal.diagnostics.coverage import coverage_curve, miss_dependence, rolling_band
from dpconformal.diagnostics.plots import (
    plot_calibration,
    plot_compare,
    plot_coverage,
    plot_martingale,
    plot_posterior,
    plot_rolling,
    plot_sbc,
    plot_uniformity,
)
from dpconformal.martingales.exchangeability import smoothed_ranks

__all__ = [
    "Sbc",
    "Uniformity",
    "compare",
    "coverage_curve",
    "credible_pits",
    "ecdf_band",
    "from_datatree",
    "interval_coverage",
    "miss_dependence",
    "plot_calibration",
    "plot_compare",
    "plot_coverage",
    "plot_ecdf_pit",
    "plot_martingale",
    "plot_posterior",
    "plot_rolling",
    "plot_sbc",
    "plot_uniformity",
    "randomised_pit",
    "rolling_band",
    "sbc",
    "smoothed_ranks",
    "summary",
    "to_datatree",
    "uniformity",
]
