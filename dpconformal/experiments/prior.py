"""What a good prior buys, and a wrong one costs: scores that jump between 0.5 and 0, four priors and none."""

from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from dpconformal.beliefs import ERM, Exact
from dpconformal.display import FAINT, OURS, panels
from dpconformal.experiments.runs import Folder, add_certificate, as_run, run_steps, thresholds_of
from dpconformal.metrics import regret
from dpconformal.priors import Histogram, Uniform
from dpconformal.streams import alternating
from dpconformal.theory import path_bound
from dpconformal.validation import check_int

if TYPE_CHECKING:
    import pandas as pd
    import xarray as xr

LEVELS = np.arange(1, 20) / 20
_SHOWN = (0.5, 0.7)
_COLOURS = {
    "uniform on [0, 1]": "#1d6fb8",
    "uniform on [0, 0.5]": OURS,
    "learned": "#2e8b57",
    "wrong": "#7b3fa0",
    "none (ERM)": "#5f6368",
}


def prior(rounds: int = 1000, seed: int = 0, progress: bool = True, checkpoint: Folder = None) -> "xr.Dataset":
    """
    Measure the regret on 0.5, 0, 0.5, 0, … under priors that fit it more or less, at many levels.

    The paper compares Uniform(0, 1) with Uniform(0, 0.5), whose first threshold is level/2. Beyond it: a histogram
    learned from 200 scores of a noisy stream of the same kind, and one that expects large scores.

    Parameters
    ----------
    rounds : int
        T.
    seed : int
        Of the sample that a prior is learned from.
    progress : bool
        Whether to show a progress bar.
    checkpoint : path, optional
        Folder in which finished steps are kept: called again with it, an interrupted experiment goes on.

    Returns
    -------
    xarray.Dataset
        ``thresholds`` and ``regret`` (prior, time, level); ``bound`` (prior, level): of the path that the belief took.

    Examples
    --------
    >>> data = prior(rounds=60, progress=False)
    >>> data.thresholds.sel({"prior": "uniform on [0, 0.5]", "level": 0.5}).values[0].round(6).item()
    0.25
    """
    import xarray as xr

    rounds = check_int("rounds", rounds, 2)
    scores = 0.5 - alternating(rounds) / 2
    rng = np.random.default_rng(seed)
    sample = np.clip(rng.choice([0.0, 0.5], 200) + 0.03 * rng.standard_normal(200), 0, 1)
    learners: dict[str, Any] = {
        "uniform on [0, 1]": Exact(Uniform(0, 1)),
        "uniform on [0, 0.5]": Exact(Uniform(0, 0.5)),
        "learned": Exact(Histogram.from_scores(sample, bins=20, smoothing=20)),
        "wrong": Exact(Histogram(edges=[0, 0.7, 1], masses=[1, 9])),
        "none (ERM)": ERM(),
    }
    steps = {name: partial(thresholds_of, learner, scores, LEVELS) for name, learner in learners.items()}
    found = run_steps(steps, {"experiment": "prior", "rounds": rounds, "seed": seed}, progress, checkpoint)
    runs = {name: as_run(found[name][0], scores, LEVELS, learner) for name, learner in learners.items()}
    ours = {name: run for name, run in runs.items() if name != "none (ERM)"}
    bound = [path_bound(run) if name in ours else np.full(LEVELS.size, np.nan) for name, run in runs.items()]
    data = xr.Dataset(
        {
            "thresholds": (("prior", "time", "level"), np.stack([run.thresholds for run in runs.values()])),
            "regret": (("prior", "time", "level"), np.stack([regret(run, running=True) for run in runs.values()])),
            "bound": (("prior", "level"), np.stack(bound)),
        },
        {"prior": list(runs), "time": np.arange(1, rounds + 1), "level": LEVELS},
        {"experiment": "prior"},
    )
    return add_certificate(data, ours)


def tabulate_prior(data: "xr.Dataset") -> "pd.DataFrame":
    """Tabulate the regret of each prior in the end: at four levels, its mean over all, and the mean bound."""
    late = data.regret.isel(time=-1, drop=True)
    table = {f"at {level:g}": late.sel(level=level).to_series() for level in (0.3, 0.5, 0.7, 0.9)}
    table |= {"mean": late.mean("level").to_series(), "bound": data.bound.mean("level").to_series()}
    return late.isel(level=0, drop=True).to_dataframe(name="").iloc[:, :0].assign(**table).loc[data.prior.values]


def plot_prior(data: "xr.Dataset") -> Any:
    """Draw the first 50 thresholds at two levels under each prior, and the regret in the end at all levels."""
    figure, axes = panels(1, 3, 12.0, 3.9)
    start = data.isel(time=slice(0, 50))
    for ax, level in zip(axes[0], _SHOWN, strict=False):
        ax.scatter(start.time, np.tile([0.5, 0.0], 25)[: start.sizes["time"]], s=7, color=FAINT, linewidths=0, zorder=0)
        for i, name in enumerate(data.prior.values):
            # ERM swings between the two scores and would hide the others.
            if name != "none (ERM)":
                ax.plot(start.time, start.thresholds.sel(level=level)[i], color=_COLOURS[name], linewidth=1.6)
        ax.set(xlabel="round", title=f"First thresholds at level {level:g}", ylim=(-0.05, 1.05))
    axes[0, 0].set_ylabel("threshold")
    right = axes[0, 2]
    late = data.regret.isel(time=-1)
    for i, name in enumerate(data.prior.values):
        right.plot(data.level, late[i], color=_COLOURS[name], linewidth=1.7, marker="o", markersize=3, label=name)
    right.set(xlabel="level", ylabel="regret", title=f"Regret after {data.sizes['time']:,} rounds")
    right.set_yscale("symlog", linthresh=0.1)
    right.set_ylim(-0.03, None)
    right.legend(frameon=False, fontsize=8, title="prior", title_fontsize=8, loc="upper right")
    return figure
