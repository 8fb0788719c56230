"""The paper's experiments on simulated scores: levels that cross, scores that jump, good and bad priors."""

from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from dpconformal.baselines import MVP, OGD, MultiMVP, MultiOGD
from dpconformal.beliefs import ERM, Exact, Quantized
from dpconformal.display import COLOURS, FAINT, OURS, panels
from dpconformal.experiments.runs import (
    Folder,
    add_certificate,
    as_run,
    replay_learners,
    replay_seeds,
    run_batches,
    run_steps,
)
from dpconformal.learner import Learner
from dpconformal.metrics import regret
from dpconformal.priors import Histogram, Uniform
from dpconformal.replay import replay
from dpconformal.streams import alternating
from dpconformal.theory import path_bound, quantized_regret_bound
from dpconformal.validation import check_int

if TYPE_CHECKING:
    import pandas as pd
    import xarray as xr
    from matplotlib.figure import Figure

_PAIRS = ((0.5, 0.55), (0.3, 0.35))  # of levels that may cross
_SWITCHING = (0.5, 0.7)  # levels on scores that jump
_BUCKETS = 50  # of MVP
_PRIOR_LEVELS = np.arange(1, 20) / 20
_PRIOR_COLOURS = {
    "uniform on [0, 1]": "#1d6fb8",
    "uniform on [0, 0.5]": OURS,
    "learned": "#2e8b57",
    "wrong": "#7b3fa0",
    "none (ERM)": "#5f6368",
}


def monotonicity(seeds: int = 1000, rounds: int = 50, progress: bool = True, checkpoint: Folder = None) -> "xr.Dataset":
    """
    Count how often a higher level gets a smaller threshold, on iid uniform scores.

    The paper's first experiment (Section 2), which shows one seed; here that seed beside the counts over many.

    Parameters
    ----------
    seeds, rounds : int
        Simulated data sets, and T of each.
    progress : bool
        Whether to show a progress bar.
    checkpoint : path, optional
        Folder in which finished steps are kept: called again with it, an interrupted experiment goes on.

    Returns
    -------
    xarray.Dataset
        ``crossings`` (learner, pair, seed): rounds in which the pair crosses. ``thresholds`` (learner, time, level) and
        ``scores`` (time) of one seed, in the attribute ``shown``: the first in which the pairs of both MultiOGD and
        MultiMVP cross, where there is one.

    Examples
    --------
    >>> data = monotonicity(seeds=6, progress=False)
    >>> int(data.crossings.sel(learner="Exact").sum())
    0
    """
    import xarray as xr

    seeds, rounds, levels = check_int("seeds", seeds, 1), check_int("rounds", rounds, 1), np.array(_PAIRS).ravel()
    scores = np.stack([np.random.default_rng(seed).random(rounds) for seed in range(seeds)])
    grid = np.linspace(0, 1, 50)

    def compile_replay(learner: Learner) -> Any:
        return jax.jit(lambda scores, seeds: replay(learner, scores, levels)[0])

    # MultiMVP tosses coins, so that each data set has a learner with a seed of its own.
    multi_mvp = jax.jit(jax.vmap(lambda row, seed: replay(MultiMVP(grid, seed=seed), row, levels)[0]))
    methods = {"MultiOGD": compile_replay(MultiOGD(grid)), "MultiMVP": multi_mvp}
    methods |= {"ERM": compile_replay(ERM()), "Exact": compile_replay(Exact())}

    def step(name: str, here: np.ndarray) -> tuple[Any]:
        return (methods[name](jnp.asarray(scores[here]), jnp.asarray(here, jnp.int32)),)

    about = {"experiment": "monotonicity", "seeds": seeds, "rounds": rounds}
    kept = run_batches(step, methods, seeds, about, progress, checkpoint)
    batches = [np.concatenate([part for (part,) in parts], dtype=float)[:seeds] for parts in kept.values()]
    found = np.stack(batches)  # learner, seed, round, level
    pairs = found.reshape(*found.shape[:-1], len(_PAIRS), 2)
    crossings = (pairs[..., 0] > pairs[..., 1]).sum(axis=2).swapaxes(1, 2)  # learner, pair, seed
    seed = int(np.argmax((crossings[:2] > 0).all(axis=(0, 1))))  # of both MultiOGD and MultiMVP
    data = xr.Dataset(
        {
            "thresholds": (("learner", "time", "level"), found[:, seed]),
            "crossings": (("learner", "pair", "seed"), crossings),
            "scores": ("time", scores[seed]),
        },
        {
            "learner": list(methods),
            "time": np.arange(1, rounds + 1),
            "level": levels,
            "pair": [f"{low:g} and {high:g}" for low, high in _PAIRS],
            "seed": np.arange(seeds),
        },
        {"experiment": "monotonicity", "shown": seed},
    )
    return add_certificate(data, {"Exact": as_run(found[-1, seed], scores[seed], levels, Exact())})


def tabulate_monotonicity(data: "xr.Dataset") -> "pd.DataFrame":
    """Tabulate by method and pair the share of data sets with a crossing, and of rounds that cross."""
    any_crossing = (data.crossings > 0).mean("seed").rename("data sets with a crossing")
    share = (data.crossings.mean("seed") / data.sizes["time"]).rename("share of rounds that cross")
    return any_crossing.to_dataset().merge(share).to_dataframe()


def plot_monotonicity(data: "xr.Dataset") -> "Figure":
    """Draw the thresholds of each pair by each method, and how often they cross over all seeds."""
    figure, axes = panels(len(_PAIRS), data.sizes["learner"], 12.0, 5.2, sharex=True, sharey="row")
    share = (data.crossings > 0).mean("seed")
    for row, (low, high) in enumerate(_PAIRS):
        for column, method in enumerate(data.learner.values):
            ax = axes[row, column]
            below, above = (data.thresholds.sel({"learner": method}).isel(level=2 * row + k).values for k in (0, 1))
            ax.plot(data.time, below, color="#1d6fb8", linewidth=1.6, label=f"level {low:g}")
            ax.plot(data.time, above, color="#e8833a", linewidth=1.6, label=f"level {high:g}")
            ax.fill_between(data.time, below, above, where=below > above, color="#d62728", alpha=0.35, linewidth=0)
            crossing = float(share.isel(pair=row, learner=column))
            ax.set_title(f"{method}: {crossing:.0%} of seeds cross", fontsize=10)
            if column == 0:
                ax.set_ylabel("threshold")
                ax.legend(frameon=False, fontsize=9)
            if row == len(_PAIRS) - 1:
                ax.set_xlabel("round")
    figure.suptitle(
        f"Seed {data.attrs['shown']} of {data.sizes['seed']:,}; red: the higher level has the smaller threshold"
    )
    return figure


def switching(rounds: int = 10_000, seeds: int = 20, progress: bool = True, checkpoint: Folder = None) -> "xr.Dataset":
    """
    Measure the regret of five methods on scores that jump: 1, 0, 1, 0 and so on.

    The paper's experiment on switching data (Section 5): OGD from 0.5 with rate 1/√t, MVP with 50 buckets and the rate
    of its authors' code, ERM, and Quantized with ⌈√T⌉ bins, as Theorem 5 asks; beside it Exact.

    Parameters
    ----------
    rounds, seeds : int
        T, and runs of MVP, which tosses coins; its regret is their mean.
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

    def mvp_regret() -> tuple[Any]:
        found = replay_seeds(MVP(_SWITCHING, buckets=_BUCKETS, eta=eta), scores, _SWITCHING, seeds)
        return (
            regret(as_run(found, jnp.broadcast_to(jnp.asarray(scores), (seeds, rounds)), _SWITCHING), running=True),
        )

    about = {"experiment": "switching", "rounds": rounds, "seeds": seeds}
    ((mvp,),) = run_steps({"MVP": mvp_regret}, about, progress, checkpoint).values()
    learners: dict[str, Learner] = {"OGD": OGD(_SWITCHING, initial=0.5), "ERM": ERM()}
    learners |= {"Quantized": Quantized(bins, rounding="nearest"), "Exact": Exact()}
    runs = replay_learners(learners, scores, _SWITCHING, about, progress, checkpoint)
    curves = {name: regret(run, running=True) for name, run in runs.items()} | {"MVP": mvp.mean(axis=0)}
    methods = ["OGD", "MVP", "ERM", "Quantized", "Exact"]
    time, stacked = np.arange(1, rounds + 1), np.stack([curves[name] for name in methods])
    bound = quantized_regret_bound(time[:, None], np.array(_SWITCHING), bins, 1.0, "nearest")
    data = xr.Dataset(
        {
            "regret": (("learner", "time", "level"), stacked),
            "mvp": (("seed", "time", "level"), mvp),
            "slope": (("learner", "level"), _slopes(time, stacked)),
            "bound": (("time", "level"), bound),
            "warmup": (("seed", "level"), _warmup(mvp)),
        },
        {"learner": methods, "time": time, "level": list(_SWITCHING), "seed": np.arange(seeds)},
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
    for learner, level in np.ndindex(slopes.shape):
        if np.all((curve := curves[learner, late, level]) > 0):
            slopes[learner, level] = np.polyfit(np.log(time[late]), np.log(curve), 1)[0]
    return slopes


def tabulate_switching(data: "xr.Dataset") -> "pd.DataFrame":
    """Summarise regret and slope."""
    late = data.regret.isel(time=-1, drop=True).rename("regret")
    bound = data.bound.isel(time=-1, drop=True).where(data.learner == "Quantized").rename("bound")
    warmup = data.warmup.median("seed").where(data.learner == "MVP").rename("warm-up")
    table = late.to_dataset().merge(bound).merge(data.slope).merge(warmup).to_dataframe()
    return table.reorder_levels(["level", "learner"]).sort_index()[["regret", "bound", "slope", "warm-up"]]


def plot_switching(data: "xr.Dataset") -> "Figure":
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


def prior(rounds: int = 1000, seed: int = 0, progress: bool = True, checkpoint: Folder = None) -> "xr.Dataset":
    """
    Measure the regret on 0.5, 0, 0.5, 0, … under priors that fit it more or less, at many levels.

    The paper compares Uniform(0, 1) with Uniform(0, 0.5), whose first threshold is level/2. Beyond it: a histogram
    learned from 200 scores of a noisy stream of the same kind, and one that expects large scores.

    Parameters
    ----------
    rounds, seed : int
        T, and the seed of the sample that a prior is learned from.
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
    learners: dict[str, Learner] = {
        "uniform on [0, 1]": Exact(Uniform(0, 1)),
        "uniform on [0, 0.5]": Exact(Uniform(0, 0.5)),
        "learned": Exact(Histogram.from_scores(sample, bins=20, smoothing=20)),
        "wrong": Exact(Histogram(edges=[0, 0.7, 1], masses=[1, 9])),
        "none (ERM)": ERM(),
    }
    about = {"experiment": "prior", "rounds": rounds, "seed": seed}
    runs = replay_learners(learners, scores, _PRIOR_LEVELS, about, progress, checkpoint)
    ours = {name: run for name, run in runs.items() if name != "none (ERM)"}
    bound = [path_bound(run) if name in ours else np.full(_PRIOR_LEVELS.size, np.nan) for name, run in runs.items()]
    data = xr.Dataset(
        {
            "thresholds": (("prior", "time", "level"), np.stack([run.thresholds for run in runs.values()])),
            "regret": (("prior", "time", "level"), np.stack([regret(run, running=True) for run in runs.values()])),
            "bound": (("prior", "level"), np.stack(bound)),
        },
        {"prior": list(runs), "time": np.arange(1, rounds + 1), "level": _PRIOR_LEVELS},
        {"experiment": "prior"},
    )
    return add_certificate(data, ours)


def tabulate_prior(data: "xr.Dataset") -> "pd.DataFrame":
    """Tabulate the regret of each prior in the end: at four levels, its mean over all, and the mean bound."""
    late = data.regret.isel(time=-1, drop=True)
    table = {f"at {level:g}": late.sel(level=level).to_series() for level in (0.3, 0.5, 0.7, 0.9)}
    table |= {"mean": late.mean("level").to_series(), "bound": data.bound.mean("level").to_series()}
    return late.isel(level=0, drop=True).to_dataframe(name="").iloc[:, :0].assign(**table).loc[data.prior.values]


def plot_prior(data: "xr.Dataset") -> "Figure":
    """Draw the first 50 thresholds at two levels under each prior, and the regret in the end at all levels."""
    figure, axes = panels(1, 3, 12.0, 3.9)
    start = data.isel(time=slice(0, 50))
    for ax, level in zip(axes[0], (0.5, 0.7), strict=False):
        ax.scatter(start.time, np.tile([0.5, 0.0], 25)[: start.sizes["time"]], s=7, color=FAINT, linewidths=0, zorder=0)
        for i, name in enumerate(data.prior.values):
            # ERM swings between the two scores and would hide the others.
            if name != "none (ERM)":
                ax.plot(start.time, start.thresholds.sel(level=level)[i], color=_PRIOR_COLOURS[name], linewidth=1.6)
        ax.set(xlabel="round", title=f"First thresholds at level {level:g}", ylim=(-0.05, 1.05))
    axes[0, 0].set_ylabel("threshold")
    right = axes[0, 2]
    late = data.regret.isel(time=-1)
    for i, name in enumerate(data.prior.values):
        right.plot(data.level, late[i], color=_PRIOR_COLOURS[name], linewidth=1.7, marker="o", markersize=3, label=name)
    right.set(xlabel="level", ylabel="regret", title=f"Regret after {data.sizes['time']:,} rounds")
    right.set_yscale("symlog", linthresh=0.1)
    right.set_ylim(-0.03, None)
    right.legend(frameon=False, fontsize=8, title="prior", title_fontsize=8, loc="upper right")
    return figure
