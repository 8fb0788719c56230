"""Where does a prior help, and where does it hurt? Iid scores, empirical quantiles beside Dirichlet-process beliefs."""

from typing import TYPE_CHECKING, Any

import numpy as np
from scipy.special import betaincinv

from dpconformal.beliefs import ERM, Exact, SplitConformal
from dpconformal.display import COLOURS, INK, panels
from dpconformal.experiments.runs import Folder, add_certificate, as_run, mean_and_error, run_batches, tabulate_seeds
from dpconformal.learner import Learner
from dpconformal.priors import Beta, Histogram, Uniform
from dpconformal.replay import replay
from dpconformal.schedules import Dirichlet, InverseSqrt
from dpconformal.theory import concentration, coverage_bracket, excess_risk_bound, moments, regularizer
from dpconformal.validation import check_float, check_int

if TYPE_CHECKING:
    import pandas as pd
    import xarray as xr
    from matplotlib.figure import Figure

TRUTH = Beta(2.0, 5.0)
SCHEDULES = {**{f"a = {a:g}": Dirichlet(a) for a in (1.0, 5.0, 20.0)}, "1/√t": InverseSqrt()}
METHODS = ("ERM", "SplitConformal", *SCHEDULES)
COUNTS = (5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000)
_DELTA = 0.05  # of Theorem 4
_GRID = (np.arange(20) + 0.5) / 20  # midpoints, for the integral over all levels that the CRPS is
_MEASURES = ["coverage", "excess_risk", "excess_crps"]


def _priors() -> dict[str, Histogram]:
    """Make the priors: the good one is nearly the truth, the wrong one its mirror image, each with some uniform."""
    edges = np.linspace(0, 1, 41)
    masses = 0.95 * np.diff(moments.cdf(TRUTH, edges)) + 0.05 / 40
    # Not Uniform(): one program serves all three.
    choices = {"good": masses, "uniform": np.ones(40), "wrong": masses[::-1]}
    return {name: Histogram(edges, choice) for name, choice in choices.items()}


def frequentist(
    seeds: int = 200,
    level: float = 0.9,
    counts: Any = COUNTS,
    progress: bool = True,
    checkpoint: Folder = None,
) -> "xr.Dataset":
    """
    Compare what empirical and Bayesian thresholds cost after n iid scores, with a good and a wrong prior.

    Scores are Beta(2, 5), so that coverage and risk of a threshold are known exactly: only the scores seen are random.
    The prior weighs as much as a scores, or 1/√t of all. ERM and split conformal have no prior.

    Parameters
    ----------
    seeds : int
        Simulated data sets, at least two.
    level : float
        α in (0, 1), of coverage and excess risk.
    counts : sequence of int
        Numbers of scores n, increasing.
    progress : bool
        Whether to show a progress bar.
    checkpoint : path, optional
        Folder in which finished steps are kept: called again with it, an interrupted experiment goes on.

    Returns
    -------
    xarray.Dataset
        Over (prior, learner, count, seed): ``coverage``, the probability to cover the next score; ``excess_risk``, the
        expected loss beyond that of the best threshold; ``excess_crps``, the same for all levels, from twenty of them;
        there is none for split conformal, for which it is infinite. ``bound`` (prior, learner, count) is what Theorem 4
        allows for the risk in 95 of 100 data sets; ``bracket_low`` and ``bracket_high`` (learner, count) are what a
        concentration allows for the mean coverage, whatever the prior.

    Examples
    --------
    >>> tabulate_frequentist(frequentist(seeds=20, counts=[5, 50, 500]))  # doctest: +SKIP
    """
    import xarray as xr

    seeds, level = check_int("seeds", seeds, 2), check_float("level", level, 0.0, 1.0, open_low=True, open_high=True)
    counts = [check_int(f"counts[{i}]", count, 1) for i, count in enumerate(counts)]
    if not counts or counts != sorted(set(counts)):
        raise ValueError(f"counts = {counts}: pass at least one number of scores, in increasing order")
    scores = np.stack([np.random.default_rng(seed).beta(TRUTH.a, TRUTH.b, counts[-1] + 1) for seed in range(seeds)])
    levels, choices = np.append(_GRID, level), _priors()
    learners: dict[tuple[str, str], Learner] = {("", "ERM"): ERM(), ("", "SplitConformal"): SplitConformal()}
    learners |= {(p, s): Exact(prior, schedule) for p, prior in choices.items() for s, schedule in SCHEDULES.items()}

    def step(key: tuple[str, str], here: np.ndarray) -> tuple[Any, Any]:
        thresholds = np.asarray(replay(learners[key], scores[here], levels)[0])
        return thresholds[:, counts], thresholds[0]

    about = {"experiment": "frequentist", "seeds": seeds, "level": level, "counts": counts}
    kept = run_batches(step, learners, seeds, about, progress, checkpoint)
    found = {key: np.concatenate([part for part, _ in parts], dtype=float)[:seeds] for key, parts in kept.items()}
    runs = {
        f"Exact, {name}": as_run(kept["uniform", name][0][1], scores[0], levels, Exact(Uniform(), schedule))
        for name, schedule in SCHEDULES.items()
    }
    of_all = [[found[prior if name in SCHEDULES else "", name] for name in METHODS] for prior in choices]
    thresholds: Any = np.array(of_all).swapaxes(2, 3)  # prior, learner, count, seed, level

    best = betaincinv(TRUTH.a, TRUTH.b, levels)
    finite = np.isfinite(thresholds)
    risk = regularizer(np.where(finite, thresholds, best), levels, TRUTH) - regularizer(best, levels, TRUTH)
    risk = np.where(finite, np.maximum(risk, 0), np.inf)
    crps = 2 * risk[..., :-1].mean(axis=-1)
    crps[:, METHODS.index("SplitConformal")] = np.nan
    bound, bracket = (np.full((n, len(METHODS), len(counts)), np.nan) for n in (len(choices), 2))
    rounds = np.array(counts) + 1
    for name, schedule in SCHEDULES.items():
        k = METHODS.index(name)
        bracket[:, k] = coverage_bracket(level, counts, concentration(rounds, schedule))
        bound[:, k] = [excess_risk_bound(rounds, level, _DELTA, prior, schedule) for prior in choices.values()]
    every = ("prior", "learner", "count", "seed")
    data = xr.Dataset(
        {
            "coverage": (every, moments.cdf(TRUTH, thresholds[..., -1])),
            "excess_risk": (every, risk[..., -1]),
            "excess_crps": (every, crps),
            "bound": (every[:3], bound),
            "bracket_low": (every[1:3], bracket[0]),
            "bracket_high": (every[1:3], bracket[1]),
        },
        {"prior": list(choices), "learner": list(METHODS), "count": counts, "seed": np.arange(seeds)},
        {"experiment": "frequentist", "level": level, "delta": _DELTA},
    )
    return add_certificate(data, runs)


def tabulate_frequentist(data: "xr.Dataset") -> "pd.DataFrame":
    """Tabulate means over the seeds by prior, method and n, the bound of Theorem 4, and how many seeds exceed it."""
    above = (data.excess_risk > data.bound).mean("seed").where(data.bound.notnull())
    return tabulate_seeds(data[_MEASURES], bound=data.bound, **{"above bound": above})


def plot_frequentist(data: "xr.Dataset") -> "Figure":
    """Draw coverage, excess risk and excess CRPS against n, with standard errors; a column a prior."""
    figure, axes = panels(3, data.sizes["prior"], 9.0, 8.6, sharex=True, sharey="row")
    counts, level, band = data["count"].values, data.attrs["level"], "a = 5"
    colours = dict(zip(SCHEDULES, ("#f2b04c", "#e2761b", COLOURS["Exact"], "#4a1508"), strict=True))
    styles: dict[str, dict[str, Any]] = {name: {"color": colours[name], "marker": "o"} for name in SCHEDULES}
    styles["1/√t"]["marker"] = "D"
    styles["ERM"] = {"color": COLOURS["ERM"], "marker": "s"}
    styles["SplitConformal"] = {"color": "#b9d2ea", "marker": "", "linewidth": 5, "zorder": 1}  # a = 1 lies on it
    mean, error = mean_and_error(data[_MEASURES])
    slope = {"textcoords": "offset points", "ha": "center", "fontsize": 8}
    titles = ("Good prior: helps while n is small", "Uniform prior", "Wrong prior: hurts until n ≫ a")
    for column, prior in enumerate(data.prior.values):
        for ax, what in zip(axes[:, column], mean.data_vars, strict=True):
            for name in METHODS:
                value, bar = (part[what].sel({"prior": prior, "learner": name}).values for part in (mean, error))
                style = {"markersize": 3.5, "linewidth": 1.3, **styles[name]}
                ax.errorbar(counts, value, bar, **style, label=name if ax is axes[0, 0] else None)
            ax.set(xscale="log", yscale="linear" if what == "coverage" else "log")
        above, middle, below = axes[:, column]
        ends = (data[name].sel({"learner": band}) for name in ("bracket_low", "bracket_high"))
        above.fill_between(counts, *ends, color=colours[band], alpha=0.16, linewidth=0, label=f"any prior with {band}")
        above.axhline(level, color=INK, linewidth=0.8, zorder=0)
        bound = data.bound.sel({"prior": prior, "learner": "1/√t"}).values
        middle.plot(counts, bound, color=INK, linestyle="--", linewidth=1.2, label="Theorem 4, 1/√t")
        half, least = counts.size // 2, mean.excess_risk.sel({"prior": prior, "learner": "ERM"}).values
        middle.annotate("slope −1/2", (counts[half], bound[half]), (12, 6), **slope)
        middle.annotate("slope −1", (counts[half], least[half]), (-22, -20), **slope)
        above.set_title(titles[column], fontsize=10)
        below.set_xlabel("scores seen, n")
    ticks = [n for n in (1, 10, 100, 1000, 10_000, 100_000) if counts[0] <= n <= counts[-1]]
    axes[0, 0].set_xticks(ticks, [f"{n:,}" for n in ticks])
    axes[0, 0].set(ylabel="coverage", ylim=(max(level - 0.15, 0), min(level + 0.15, 1.01)))
    axes[1, 0].set_ylabel(f"excess risk at level {level:g}")
    axes[2, 0].set_ylabel("excess CRPS")
    entries = [entry for ax in axes[:2, 0] for entry in zip(*ax.get_legend_handles_labels(), strict=True)]
    order = {label: handle for handle, label in entries}
    names = [*METHODS, f"any prior with {band}", "Theorem 4, 1/√t"]
    figure.suptitle(f"After n iid scores: means and standard errors of {data.sizes['seed']} data sets", fontsize=11)
    figure.legend([order[name] for name in names], names, loc="outside lower center", ncols=4, frameon=False)
    return figure
