"""Scores that jump between 1 and 0: regret of following the leader, and of following it on a leash."""

from functools import partial
from typing import TYPE_CHECKING, Any

import jax.numpy as jnp
import numpy as np

from dpconformal.baselines import MVP, OGD
from dpconformal.beliefs import ERM, Exact, Quantized
from dpconformal.display import COLOURS, FAINT, panels
from dpconformal.experiments.runs import Folder, add_certificate, as_run, replay_seeds, run_steps, thresholds_of
from dpconformal.metrics import regret
from dpconformal.streams import alternating
from dpconformal.theory import quantized_regret_bound
from dpconformal.validation import check_int

if TYPE_CHECKING:
    import pandas as pd
    import xarray as xr

_LEVELS = (0.5, 0.7)
_BUCKETS = 50  # of MVP


def switching(rounds: int = 10_000, seeds: int = 20, progress: bool = True, checkpoint: Folder = None) -> "xr.Dataset":
    """
    Measure the regret of five methods on scores that jump: 1, 0, 1, 0 and so on.

    The paper's experiment on switching data (Section 5): OGD from 0.5 with rate 1/√t, MVP with 50 buckets and the rate
    of its authors' code, ERM, and Quantized with ⌈√T⌉ bins, as Theorem 5 asks; beside it Exact.

    Parameters
    ----------
    rounds : int
        T.
    seeds : int
        Runs of MVP, which tosses coins; its regret is their mean.
    progress : bool
        Whether to show a progress bar.
    checkpoint : path, optional
        Folder in which finished steps are kept: called again with it, an interrupted experiment goes on.

    Returns
    -------
    xarray.Dataset
        ``regret`` (learner, time, level), each round against the best threshold so far; ``mvp`` (seed, time, level),
        the same for each run of MVP; ``bound`` (time, level) for Quantized; ``slope`` (learner, level): of log regret
        by log time over the last nine tenths of the rounds, NaN where the regret does not stay positive;
        ``warmup`` (seed, level): rounds after which MVP's regret grows less than a tenth as fast as at first.

    Examples
    --------
    >>> data = switching(rounds=2000, seeds=2, progress=False)
    >>> data.slope.sel(learner="ERM", level=0.5).round(1).item()
    1.0
    """
    import xarray as xr

    rounds, seeds = check_int("rounds", rounds, 200), check_int("seeds", seeds, 1)
    scores = 1 - alternating(rounds)
    bins = int(np.ceil(np.sqrt(rounds)))
    eta = np.sqrt(np.log(_BUCKETS) / (2 * 2.12 * _BUCKETS))  # as in the code of MVP's authors
    methods: dict[str, Any] = {
        "OGD": OGD(_LEVELS, initial=0.5),
        "MVP": MVP(_LEVELS, buckets=_BUCKETS, eta=eta),
        "ERM": ERM(),
        "Quantized": Quantized(bins, rounding="nearest"),
        "Exact": Exact(),
    }

    def mvp_regret() -> tuple[Any]:
        found = replay_seeds(methods["MVP"], scores, _LEVELS, seeds)
        return (regret(as_run(found, jnp.broadcast_to(jnp.asarray(scores), (seeds, rounds)), _LEVELS), running=True),)

    steps: dict[str, Any] = {
        name: partial(thresholds_of, learner, scores, _LEVELS) for name, learner in methods.items()
    }
    steps["MVP"] = mvp_regret
    found = run_steps(steps, {"experiment": "switching", "rounds": rounds, "seeds": seeds}, progress, checkpoint)
    (mvp,) = found.pop("MVP")
    runs = {name: as_run(thresholds, scores, _LEVELS, methods[name]) for name, (thresholds,) in found.items()}
    curves = {name: regret(run, running=True) for name, run in runs.items()} | {"MVP": mvp.mean(axis=0)}
    time, stacked = np.arange(1, rounds + 1), np.stack([curves[name] for name in methods])
    bound = quantized_regret_bound(time[:, None], np.array(_LEVELS), bins, 1.0, "nearest")
    data = xr.Dataset(
        {
            "regret": (("learner", "time", "level"), stacked),
            "mvp": (("seed", "time", "level"), mvp),
            "slope": (("learner", "level"), _slopes(time, stacked)),
            "bound": (("time", "level"), bound),
            "warmup": (("seed", "level"), _warmup(mvp)),
        },
        {"learner": list(methods), "time": time, "level": list(_LEVELS), "seed": np.arange(seeds)},
        {"experiment": "switching"},
    )
    return add_certificate(data, {name: runs[name] for name in ("Quantized", "Exact")})


def _warmup(curves: np.ndarray, window: int = 50) -> np.ndarray:
    """Find after how many rounds a regret grows by less than a tenth of what it grew by at first."""
    growth = curves[:, window:] - curves[:, :-window]
    slow = growth < 0.1 * np.maximum(growth[:, :1], 1e-3)
    return np.where(slow.any(axis=1), slow.argmax(axis=1), curves.shape[1])


def _slopes(time: np.ndarray, curves: np.ndarray) -> np.ndarray:
    """Fit lines to log regret by log time, over the last nine tenths of the rounds."""
    late = (time >= time[-1] / 10) & (time % 2 == 0)  # every second round: between the two values the regret saws
    slopes = np.full((curves.shape[0], curves.shape[2]), np.nan)
    for index in np.ndindex(slopes.shape):
        curve = curves[index[0], late, index[1]]
        if np.all(curve > 0):
            slopes[index] = np.polyfit(np.log(time[late]), np.log(curve), 1)[0]
    return slopes


def tabulate_switching(data: "xr.Dataset") -> "pd.DataFrame":
    """Summarise regret and slope."""
    late = data.regret.isel(time=-1, drop=True).rename("regret")
    bound = data.bound.isel(time=-1, drop=True).where(data.learner == "Quantized").rename("bound")
    warmup = data.warmup.median("seed").where(data.learner == "MVP").rename("warm-up")
    table = late.to_dataset().merge(bound).merge(data.slope).merge(warmup).to_dataframe()
    return table.reorder_levels(["level", "learner"]).sort_index()[["regret", "bound", "slope", "warm-up"]]


def plot_switching(data: "xr.Dataset") -> Any:
    """Draw the regret of each method on logarithmic axes."""
    figure, axes = panels(1, data.sizes["level"], 10.0, 3.9, sharex=True, sharey=True)
    even = data.isel(time=slice(1, None, 2))
    for column, ax in enumerate(axes[0]):
        here = even.isel(level=column)
        for i, method in enumerate(data.learner.values):
            curve = here.regret.isel(learner=i).values
            slope = float(data.slope.isel(learner=i, level=column))
            what = f"slope {slope:.2f}" if curve[-1] > 5e-2 and np.isfinite(slope) else "no regret"
            if method == "MVP":
                ax.plot(here.time, np.maximum(here.mvp.T, 1e-9), color=COLOURS["MVP"], linewidth=0.4, alpha=0.5)
            style = (0, (1, 1)) if method == "Exact" else "-"
            shown = np.where(curve > 0, curve, np.nan)
            ax.plot(here.time, shown, color=COLOURS[method], linewidth=1.7, linestyle=style, label=f"{method} ({what})")
        dashed = {"color": COLOURS["Quantized"], "linewidth": 1, "linestyle": (0, (4, 3))}
        ax.plot(here.time, here.bound, **dashed, label="bound of ours")
        ax.plot(here.time, 0.25 * here.time, color=FAINT, linewidth=0.8, linestyle=":", label="T/4")
        ax.set(xscale="log", yscale="log", xlabel="round", title=f"level {float(here.level):g}", ylim=(5e-2, None))
        ax.legend(frameon=False, fontsize=8, loc="upper left")
    axes[0, 0].set_ylabel("regret")
    figure.suptitle(f"Regret on 1, 0, 1, 0, …  (thin: {data.sizes['seed']} runs of MVP)", fontsize=11)
    return figure
