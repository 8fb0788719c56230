"""Do thresholds of two levels cross? Iid scores, four methods, two pairs of levels."""

from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from dpconformal.baselines import MultiMVP, MultiOGD
from dpconformal.beliefs import ERM, Exact
from dpconformal.display import panels
from dpconformal.experiments.runs import Folder, add_certificate, run_batches
from dpconformal.replay import replay
from dpconformal.validation import check_int

if TYPE_CHECKING:
    import pandas as pd
    import xarray as xr

PAIRS = ((0.5, 0.55), (0.3, 0.35))
_LEVELS = np.array(PAIRS).ravel()


def monotonicity(seeds: int = 1000, rounds: int = 50, progress: bool = True, checkpoint: Folder = None) -> "xr.Dataset":
    """
    Count how often a higher level gets a smaller threshold, on iid uniform scores.

    The paper's first experiment (Section 2), which shows one seed; here that seed beside the counts over many.

    Parameters
    ----------
    seeds : int
        Simulated data sets.
    rounds : int
        T of each.
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

    seeds, rounds = check_int("seeds", seeds, 1), check_int("rounds", rounds, 1)
    scores = np.stack([np.random.default_rng(seed).random(rounds) for seed in range(seeds)])
    grid = np.linspace(0, 1, 50)

    def plain(learner: Any) -> Any:
        return jax.jit(lambda scores, keys: replay(learner, scores, _LEVELS).thresholds)  # type: ignore[union-attr]

    def multivalid(scores: Any, keys: Any) -> Any:
        one = lambda row, key: replay(MultiMVP(grid, seed=key), row, _LEVELS).thresholds  # type: ignore[union-attr]  # noqa: E731
        return jax.vmap(one)(scores, keys)

    ogd, mvp = plain(MultiOGD(grid)), jax.jit(multivalid)
    methods = {"MultiOGD": ogd, "MultiMVP": mvp, "ERM": plain(ERM()), "Exact": plain(Exact())}

    def step(name: str, here: np.ndarray) -> tuple[Any]:
        return (methods[name](jnp.asarray(scores[here]), jnp.asarray(here, jnp.int32)),)

    about = {"experiment": "monotonicity", "seeds": seeds, "rounds": rounds}
    kept = run_batches(step, methods, seeds, about, progress, checkpoint)
    found = {name: np.concatenate([part for (part,) in parts], dtype=float)[:seeds] for name, parts in kept.items()}
    pairs = {name: thresholds.reshape(seeds, rounds, len(PAIRS), 2) for name, thresholds in found.items()}
    crossings = {name: (pair[..., 0] > pair[..., 1]).sum(axis=1).T for name, pair in pairs.items()}
    seed = int(np.argmax(np.all([crossings[name] > 0 for name in ("MultiOGD", "MultiMVP")], axis=(0, 1))))
    run = replay(Exact(), scores[seed], _LEVELS)
    data = xr.Dataset(
        {
            "thresholds": (("learner", "time", "level"), np.stack([thresholds[seed] for thresholds in found.values()])),
            "crossings": (("learner", "pair", "seed"), np.stack(list(crossings.values()))),
            "scores": ("time", scores[seed]),
        },
        {
            "learner": list(methods),
            "time": np.arange(1, rounds + 1),
            "level": _LEVELS,
            "pair": [f"{low:g} and {high:g}" for low, high in PAIRS],
            "seed": np.arange(seeds),
        },
        {"experiment": "monotonicity", "shown": seed},
    )
    return add_certificate(data, {"Exact": run})  # type: ignore[dict-item]


def tabulate_monotonicity(data: "xr.Dataset") -> "pd.DataFrame":
    """Tabulate by method and pair the share of data sets with a crossing, and of rounds that cross."""
    any_crossing = (data.crossings > 0).mean("seed").rename("data sets with a crossing")
    share = (data.crossings.mean("seed") / data.sizes["time"]).rename("share of rounds that cross")
    return any_crossing.to_dataset().merge(share).to_dataframe()


def plot_monotonicity(data: "xr.Dataset") -> Any:
    """Draw the thresholds of each pair by each method, and how often they cross over all seeds."""
    figure, axes = panels(len(PAIRS), data.sizes["learner"], 12.0, 5.2, sharex=True, sharey="row")
    share = (data.crossings > 0).mean("seed")
    for row, (low, high) in enumerate(PAIRS):
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
            if row == len(PAIRS) - 1:
                ax.set_xlabel("round")
    figure.suptitle(
        f"Seed {data.attrs['shown']} of {data.sizes['seed']:,}; red: the higher level has the smaller threshold"
    )
    return figure
