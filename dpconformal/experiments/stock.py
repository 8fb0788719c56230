"""How large will tomorrow's forecast error be? Volatility of a stock or an index, four methods, five levels."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from dpconformal.baselines import ACI, MVP
from dpconformal.beliefs import ERM, Quantized
from dpconformal.display import COLOURS, FAINT, as_label, panels
from dpconformal.experiments.prices import BUNDLED, garch_scores, read_prices
from dpconformal.experiments.runs import Folder, add_certificate, as_run, replay_seeds
from dpconformal.metrics import coverage, quantile_loss
from dpconformal.replay import replay
from dpconformal.validation import check_float, check_int

if TYPE_CHECKING:
    import pandas as pd
    import xarray as xr
    from matplotlib.figure import Figure

LEVELS = (0.5, 0.8, 0.9, 0.95, 0.99)
_BUCKETS = 40  # of MVP, and bins of ours
_WINDOW = 100  # of ACI, and 1/(1 - β²) of ours


def stock(
    source: Any = "sp500",
    column: str | None = None,
    start: Any = None,
    end: Any = None,
    refit_every: int = 1,
    level: float = 0.9,
    seeds: int = 20,
    progress: bool = True,
    cache: Any = None,
    checkpoint: Folder = None,
) -> "xr.Dataset":
    """
    Bound the error of a GARCH(1, 1) volatility forecast, day by day, on prices of a stock or an index.

    The paper's stock experiment (Section 5), with its settings of the methods, at five levels instead of one.

    Parameters
    ----------
    source : {"sp500", "nasdaq"} or path
        Prices, see :func:`dpconformal.experiments.prices.read_prices`.
    column : str, optional
        Which price; by default ``Open`` of a file, as in the paper, and ``Adj Close`` of an index.
    start, end : str or date, optional
        First and last day, both included.
    refit_every : int
        Days from one fit of the forecasting model to the next. The paper has 1; more is faster.
    level : float
        One of ``LEVELS``, for the picture and the losses in the table.
    seeds : int
        Runs of MVP, which tosses coins.
    progress : bool
        Whether to show a progress bar.
    cache : path or False, optional
        Folder for scores, see :func:`dpconformal.experiments.prices.garch_scores`.
    checkpoint : path, optional
        Folder in which finished steps are kept: called again with it, an interrupted experiment goes on.

    Returns
    -------
    xarray.Dataset
        ``scores`` (time); ``thresholds`` and ``cumulative_loss`` (learner, time, level), of MVP in its first run;
        ``coverage`` and ``coverage_sd`` (learner, level), mean and standard deviation over the runs. The day of each
        score is the coordinate ``date``.

    Examples
    --------
    >>> tabulate_stock(stock("nasdaq", refit_every=20))  # doctest: +SKIP
    """
    import xarray as xr

    seeds, level = check_int("seeds", seeds, 1), check_float("level", level, 0.0, 1.0)
    if level not in LEVELS:
        raise ValueError(f"level = {level:g}: pass one of {', '.join(map(str, LEVELS))}")
    column = BUNDLED.get(str(source), "Open") if column is None else column
    prices = read_prices(source, column, start, end)
    scores = garch_scores(
        prices.to_numpy(), refit_every=refit_every, progress=progress, cache=cache, checkpoint=checkpoint
    )
    ours: Any = replay(Quantized(bins=_BUCKETS, discount=np.sqrt(1 - 1 / _WINDOW), rounding="nearest"), scores, LEVELS)
    eta = np.sqrt(np.log(2 * _BUCKETS) / scores.size)
    mvp = replay_seeds(MVP(LEVELS, buckets=_BUCKETS, eta=eta, normalize=False), ours.scores, ours.levels, seeds)
    mvp_coverage = (np.asarray(ours.scores)[:, None] <= np.asarray(mvp)).mean(axis=1)  # seed, level
    runs: dict[str, Any] = {
        "ACI": replay(ACI(LEVELS, rate=0.005, window=_WINDOW), scores, LEVELS),
        "MVP": as_run(mvp[0], ours.scores, ours.levels),
        "ERM": replay(ERM(), scores, LEVELS),
        "Quantized": ours,
    }
    found = {name: coverage(run) for name, run in runs.items()} | {"MVP": mvp_coverage.mean(axis=0)}
    spread = {name: np.zeros(len(LEVELS)) for name in runs} | {"MVP": mvp_coverage.std(axis=0)}
    series, summary = ("learner", "time", "level"), ("learner", "level")
    data = xr.Dataset(
        {
            "scores": ("time", np.asarray(ours.scores)),  # in the dtype of the thresholds, so that ties stay ties
            "thresholds": (series, np.stack([run.thresholds for run in runs.values()])),
            "cumulative_loss": (series, np.stack([np.cumsum(quantile_loss(run), axis=0) for run in runs.values()])),
            "coverage": (summary, np.stack([found[name] for name in runs])),
            "coverage_sd": (summary, np.stack([spread[name] for name in runs])),
        },
        {
            "learner": list(runs),
            "time": np.arange(1, scores.size + 1),
            "date": ("time", prices.index.to_numpy()),
            "level": np.array(LEVELS),
        },
        {"experiment": "stock", "source": Path(source).name, "column": column, "level": level},
    )
    return add_certificate(data.assign_attrs(refit_every=refit_every, seeds=seeds), {"Quantized": ours})


def tabulate_stock(data: "xr.Dataset") -> "pd.DataFrame":
    """Tabulate the coverage of each method under each level, and its mean loss at the level of the picture."""
    level = data.attrs["level"]
    table = data.coverage.to_pandas().rename(columns=lambda wanted: f"{wanted:g}", index=str)
    last = data.cumulative_loss.sel(level=level).isel(time=-1) / data.sizes["time"]
    return table.rename_axis(columns=None).assign(**{f"loss at {level:g}": last.values})


def plot_stock(data: "xr.Dataset") -> "Figure":
    """Draw the thresholds over the scores, the loss compared with ACI, and how far coverage is from each level."""
    level, days = data.attrs["level"], data.date.values
    names = {name: f"{name} (ours)" if name == "Quantized" else name for name in data.learner.values}
    figure, axes = panels(2, 2, 8.0, 6.4, height_ratios=(1.2, 1))
    from matplotlib.dates import AutoDateLocator, ConciseDateFormatter  # panels says how to install it

    axes[0, 1].remove()
    above, below, beside = axes[0, 0], axes[1, 0], axes[1, 1]
    above.set_subplotspec(above.get_gridspec()[0, :])
    for ax in (above, below):
        locator = AutoDateLocator(minticks=3, maxticks=7)
        ax.xaxis.set_major_locator(locator)
        ax.xaxis.set_major_formatter(ConciseDateFormatter(locator))

    size = np.clip(20_000 / days.size, 4, 14)
    above.scatter(days, data.scores, s=size, color=FAINT, alpha=0.35, linewidths=0, rasterized=True)
    for name, width in (("MVP", 1.0), ("ACI", 1.0), ("Quantized", 1.6)):
        above.plot(days, data.thresholds.sel({"learner": name, "level": level}), color=COLOURS[name], linewidth=width)
    # Volatile stocks have most scores close to one, and there the thresholds are.
    above.set(ylabel="score", ylim=(float(data.scores.quantile(0.1)) - 0.02, 1.02))
    above.set_title(f"Thresholds at level {level:g} over the highest 90% of the scores", loc="left", fontsize=10)

    loss = data.cumulative_loss.sel(level=level)
    for name, label in names.items():  # ACI is the line at zero
        extra = loss.sel({"learner": name}) - loss.sel({"learner": "ACI"})
        below.plot(days, extra, color=COLOURS[name], linewidth=1.5, label=label)
    below.set_title(f"Cumulative loss minus that of ACI, level {level:g}", loc="left", fontsize=10)

    place = np.arange(data.sizes["level"])
    beside.axhline(0, color=FAINT, linewidth=0.8, zorder=0)
    for shift, name in zip((-0.24, -0.08, 0.08, 0.24), names, strict=True):
        mean, sd = (values.sel({"learner": name}) for values in (data.coverage, data.coverage_sd))
        beside.errorbar(place + shift, mean - data.level, sd, fmt="o", markersize=4.5, color=COLOURS[name])
    beside.set(xlabel="level", xticks=place, xticklabels=[f"{value:g}" for value in data.level.values])
    beside.set_title("Coverage minus level", loc="left", fontsize=10)

    first, last = (np.datetime_as_string(day, "D") for day in days[[0, -1]])
    figure.suptitle(f"Error of a volatility forecast: {as_label(data.attrs['source'])}, {first} to {last}", fontsize=11)
    figure.legend(loc="outside lower center", ncols=len(names), frameon=False)
    return figure
