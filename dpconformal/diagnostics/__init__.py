"""Is the coverage right? Diagnostics of runs, posteriors and fits, with ArviZ."""

from dpconformal.diagnostics.compare import compare
from dpconformal.diagnostics.coverage import coverage_curve, rolling_band
from dpconformal.diagnostics.datatree import from_datatree, to_datatree
from dpconformal.diagnostics.dependence import miss_dependence
from dpconformal.diagnostics.mcmc import plot_ecdf_pit, summary
from dpconformal.diagnostics.pictures import plot_coverage, plot_martingale, plot_rolling, plot_uniformity
from dpconformal.diagnostics.studies import Sbc, credible_pits, interval_coverage, sbc
from dpconformal.diagnostics.study_pictures import plot_calibration, plot_compare, plot_posterior, plot_sbc
from dpconformal.diagnostics.uniformity import Uniformity, ecdf_band, randomised_pit, uniformity
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
