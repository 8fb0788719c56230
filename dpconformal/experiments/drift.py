"""How closely do thresholds follow a stream that changes? Discounted beliefs beside four adaptive rivals."""

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from scipy.special import betaincinv

from dpconformal.baselines import ACI, PID, SAOCP, DtACI
from dpconformal.beliefs import Exact
from dpconformal.display import COLOURS, FAINT, INK, panels
from dpconformal.experiments.runs import Folder, add_certificate, as_run, mean_and_error, run_steps, tabulate_seeds
from dpconformal.learner import Learner
from dpconformal.metrics import coverage, coverage_error, regret
from dpconformal.priors import Histogram
from dpconformal.replay import Replay, replay
from dpconformal.validation import check_float, check_int

if TYPE_CHECKING:
    import pandas as pd
    import xarray as xr
    from matplotlib.figure import Figure

STREAMS = {"piecewise": "Scale jumps every few hundred rounds", "slow": "Scale swings slowly"}
DISCOUNTS = (0.9, 0.95, 0.97, 0.99, 0.995, 0.999, 1.0)  # 1 stands for none
RIVALS = ("ACI", "DtACI", "SAOCP", "PID")
TRUTH = "true quantile"
_SHAPE = (2.0, 5.0)  # of the beta distribution whose scale changes
_BINS = 20  # of the priors
_MEASURES = ["regret", "coverage", "coverage_error"]
_CERTIFIED = (("uniform", 0.99), ("learned", 0.97))


def _simulate(stream: str, rounds: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Draw scores and return them with the scale of each, which lies between 0.2 and 1."""
    random, time = np.random.default_rng(seed), np.arange(rounds)
    if stream == "piecewise":
        jumps = np.cumsum(random.integers(200, 501, rounds // 200 + 1))
        scale = random.uniform(0.2, 1, jumps.size + 1)[np.searchsorted(jumps, time, side="right")]
    else:
        scale = 0.6 + 0.4 * np.sin(2 * np.pi * (time / 1500 + random.random()))
    return scale * random.beta(*_SHAPE, rounds), scale


def _methods(level: float, samples: list[np.ndarray]) -> dict[str, tuple[str, float, list[Learner]]]:
    """Name what is compared: its prior, its discount, and a learner for each stream."""
    methods = {}
    learned = [Histogram.from_scores(sample, bins=_BINS) for sample in samples]
    uniform = Histogram(np.linspace(0, 1, _BINS + 1), np.ones(_BINS))  # not Uniform(): one program serves both priors
    for prior, choices in (("uniform", [uniform] * len(samples)), ("learned", learned)):
        for discount in DISCOUNTS:
            learners: list[Learner] = [Exact(choice, discount=discount if discount < 1 else None) for choice in choices]
            methods[f"Exact {discount:g} {prior}"] = prior, discount, learners
    rivals: list[Learner] = [ACI([level]), DtACI([level]), SAOCP([level]), PID([level], window=100)]
    for rival in rivals:
        methods[type(rival).__name__] = "", 1.0, [rival] * len(samples)
    return methods


def drift(
    seeds: int = 20,
    rounds: int = 3000,
    window: int = 250,
    level: float = 0.9,
    progress: bool = True,
    checkpoint: Folder = None,
) -> "xr.Dataset":
    """
    Compare regret in windows, on a stream that jumps and on one that drifts.

    Scores are Beta(2, 5) times a scale that jumps every 200 to 500 rounds, or swings once in 1,500. Ours is the
    discounted belief with the weight of Theorem 6, for several discounts: with a uniform prior, and with one learned
    from another seed of the same stream, a sample that the rivals do not see. The regret of a window is the loss in it
    minus that of the one threshold that would have been best for it; what moves within a window can get below zero.

    Parameters
    ----------
    seeds : int
        Simulated data sets of each stream, at least two; the thresholds of the first are kept.
    rounds, window : int
        T of each, and rounds of a window.
    level : float
        α in (0, 1).
    progress : bool
        Whether to show a progress bar.
    checkpoint : path, optional
        Folder in which finished steps are kept: called again with it, an interrupted experiment goes on.

    Returns
    -------
    xarray.Dataset
        Over (stream, learner, seed): ``regret`` and ``coverage_error``, absolute, as means over windows, and
        ``coverage`` of all rounds. Of the first seed ``thresholds`` (stream, learner, time) and ``scores`` (stream,
        time). Each method has a ``prior`` and a ``discount``, 1 for none. The true quantile of each round is there too:
        what a method would play that knew the scale.

    Examples
    --------
    >>> tabulate_drift(drift(seeds=5))  # doctest: +SKIP
    """
    import xarray as xr

    seeds, rounds, window = check_int("seeds", seeds, 2), check_int("rounds", rounds, 1), check_int("window", window, 1)
    level = check_float("level", level, 0.0, 1.0, open_low=True, open_high=True)
    if window > rounds:
        raise ValueError(f"window = {window}: must not exceed rounds = {rounds}")
    drawn = np.array([[_simulate(stream, rounds, seed) for seed in range(seeds)] for stream in STREAMS])
    scores, scale = jnp.asarray(drawn[:, :, 0]), jnp.asarray(drawn[:, :, 1])  # stream, seed, time
    methods = _methods(level, [_simulate(stream, rounds, seeds)[0] for stream in STREAMS])
    # Hyperparameters are leaves, so that all discounts share a program, and so do the streams.
    follow = jax.jit(lambda learner, scores: replay(learner, scores, [level])[0])
    steps = {name: partial(lambda own: tuple(map(follow, own, scores)), own) for name, (*_, own) in methods.items()}
    about = {"experiment": "drift", "seeds": seeds, "rounds": rounds, "level": level}
    kept = run_steps(steps, about, progress, checkpoint)
    found = {TRUTH: scale[..., None] * float(betaincinv(*_SHAPE, level))}
    found |= {name: jnp.stack(of_streams) for name, of_streams in kept.items()}
    levels = jnp.asarray([level], scores.dtype)
    runs = {name: as_run(thresholds, scores, levels) for name, thresholds in found.items()}
    # Consecutive windows are one more axis of a batch; rounds that are left over at the end are left out.
    whole, shape = rounds // window * window, (len(STREAMS), seeds, -1, window)
    cut = scores[..., :whole].reshape(shape)
    windows = {name: as_run(run.thresholds[:, :, :whole].reshape(*shape, 1), cut, levels) for name, run in runs.items()}

    def each(measure: Callable[[Replay], Any], runs: dict[str, Replay]) -> np.ndarray:
        return np.stack([measure(run)[..., 0] for run in runs.values()], axis=1)

    priors, discounts, _ = zip(("", 1.0, []), *methods.values(), strict=True)
    summary = ("stream", "learner", "seed")
    data = xr.Dataset(
        {
            "regret": (summary, each(regret, windows).mean(axis=-1)),
            "coverage": (summary, each(coverage, runs)),
            "coverage_error": (summary, each(coverage_error, windows).mean(axis=-1)),
            "thresholds": (("stream", "learner", "time"), each(lambda run: run.thresholds[:, 0], runs)),
            "scores": (("stream", "time"), np.asarray(scores[:, 0])),
        },
        {
            "stream": list(STREAMS),
            "learner": list(runs),
            "prior": ("learner", list(priors)),
            "discount": ("learner", list(discounts)),
            "seed": np.arange(seeds),
            "time": np.arange(1, rounds + 1),
        },
        {"experiment": "drift", "level": level, "window": window},
    )
    ours = {}
    for k, stream in enumerate(STREAMS):
        for name in (f"Exact {discount:g} {prior}" for prior, discount in _CERTIFIED):
            ours[f"{name}, {stream}"] = as_run(found[name][k, 0], scores[k, 0], levels, methods[name][-1][k])
    return add_certificate(data, ours)


def tabulate_drift(data: "xr.Dataset") -> "pd.DataFrame":
    """Tabulate regret and coverage by stream and method: means over the seeds, with standard errors."""
    return tabulate_seeds(data[_MEASURES].drop_vars(["prior", "discount"]))


def plot_drift(data: "xr.Dataset") -> "Figure":
    """Draw thresholds of one seed, and regret and coverage error in windows over all; bars are standard errors."""
    figure, axes = panels(3, data.sizes["stream"], 9.0, 9.0, sharey="row", height_ratios=(1.1, 1.1, 1))
    mean, error = mean_and_error(data[_MEASURES].drop_vars(["prior", "discount"]))
    shades = {"uniform": "#eda35f", "learned": COLOURS["Exact"]}
    own = {prior: data.learner.values[data.prior.values == prior] for prior in shades}
    dashed = {"color": INK, "linewidth": 1.1, "linestyle": (0, (4, 2)), "label": TRUTH}
    names = [*(f"β = {discount:g}" for discount in DISCOUNTS[:-1]), "no discount", *RIVALS]
    for column, stream in enumerate(data.stream.values):
        top, drawn = axes[0, column], data.thresholds.sel(stream=stream)
        dots = {"color": FAINT, "markersize": 3, "markeredgewidth": 0, "alpha": 0.35, "rasterized": True}
        top.plot(data.time, data.scores.sel(stream=stream), ".", **dots)
        top.plot(data.time, drawn.sel({"learner": "DtACI"}), color=COLOURS["DtACI"], linewidth=0.9, label="DtACI")
        for prior, shade in shades.items():
            best = int(np.argmin(mean.regret.sel({"stream": stream, "learner": own[prior]}).values))
            label = f"{names[best]}, {prior} prior"
            top.plot(data.time, drawn.sel({"learner": own[prior][best]}), color=shade, linewidth=1.4, label=label)
        top.plot(data.time, drawn.sel({"learner": TRUTH}), **dashed)
        top.legend(frameon=False, fontsize=8, ncols=2, loc="upper center")
        top.set(xlabel="round", ylim=(0, 1.32), yticks=(0, 0.5, 1))
        top.set_title(STREAMS[stream], fontsize=10)
        for ax, what in zip(axes[1:, column], ("regret", "coverage_error"), strict=True):
            value, bar = (part[what].sel(stream=stream) for part in (mean, error))
            for shift, (prior, shade) in zip((-0.08, 0.08), shades.items(), strict=True):
                style = {"marker": "o", "markersize": 4, "color": shade, "linewidth": 1.4}
                place = np.arange(len(DISCOUNTS)) + shift
                heights, bars = (part.sel({"learner": own[prior]}) for part in (value, bar))
                ax.errorbar(place[:-1], heights[:-1], bars[:-1], **style, label=f"ours, {prior} prior")
                ax.errorbar(place[-1], heights[-1], bars[-1], **style)  # no line leads to "no discount"
            for k, name in enumerate(RIVALS, len(DISCOUNTS)):
                height, half = value.sel({"learner": name}), bar.sel({"learner": name})
                ax.errorbar(k, height, half, marker="s", markersize=5, color=COLOURS[name])
            least = float(value.sel({"learner": list(RIVALS)}).min())
            ax.axhline(least, color=FAINT, linewidth=1, linestyle=":", zorder=0, label="best rival")
            ax.axhline(float(value.sel({"learner": TRUTH})), zorder=0, **dashed)
            ax.axvline(len(DISCOUNTS) - 0.5, color=FAINT, linewidth=0.8)
            ax.set_xticks(np.arange(len(names)), names, rotation=60, ha="right", rotation_mode="anchor")
        axes[1, column].tick_params(labelbottom=False)
    axes[1, 0].set_yscale("symlog", linthresh=1.0)  # logarithmic above 1 only, for regret may be negative
    axes[1, 0].set_yticks([-0.5, 0, 0.5, 1, 2, 5, 10], ["-0.5", "0", "0.5", "1", "2", "5", "10"])
    axes[1, 0].set_ylim(float(mean.regret.min()) - 0.15, float(mean.regret.max()) * 1.4)
    axes[1, 0].legend(frameon=False, fontsize=8, loc="upper right", handlelength=1.2, borderaxespad=0.0)
    window, level = data.attrs["window"], data.attrs["level"]
    axes[0, 0].set_ylabel("score")
    axes[1, 0].set_ylabel(f"regret of {window} rounds")
    axes[2, 0].set_ylabel(f"coverage error of {window} rounds")
    figure.suptitle(f"Following a stream that changes: level {level:g}, {data.sizes['seed']} seeds", fontsize=11)
    return figure
