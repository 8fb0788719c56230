"""Draw the pictures of the theory page, one for each theorem: part of `make pictures`."""

import pathlib

import jax
import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np

import dpconformal as dpc
from dpconformal import theory
from dpconformal.display import COLOURS, FAINT, INK, OURS, panels

jax.config.update("jax_enable_x64", True)
HERE = pathlib.Path(__file__).parent / "images"
DASHED = {"color": INK, "linewidth": 1.2, "linestyle": (0, (4, 3))}
RNG = np.random.default_rng(0)


def save(figure, name):
    figure.savefig(HERE / f"theorem_{name}.png", dpi=110)
    plt.close(figure)


def leader():
    """Theorem 1: the quantile of the belief is where the regularised objective is least."""
    figure, axes = panels(1, 2, 9.0, 3.2)
    left, right = axes[0]
    scores, level = np.array([0.15, 0.3, 0.35, 0.6, 0.62, 0.8]), 0.7
    learner = dpc.Exact()
    state = learner.init()
    for score in scores:
        state = learner.observe(state, score)
    r = np.linspace(0, 1, 2001)
    threshold = float(learner.quantile(state, [level])[0])
    left.plot(r, learner.cdf(state, r), color=OURS)
    left.hlines(level, 0, threshold, **DASHED)
    left.vlines(threshold, 0, level, **DASHED)
    left.plot(scores, np.zeros_like(scores), "|", color=INK, markersize=12)
    left.set(xlabel="score", ylabel="P(X ≤ x)", title=f"The belief, and its {level:g}-quantile {threshold:.3f}")
    objective = np.asarray(theory.ftrl_objective(r, scores, level))
    right.plot(r, objective, color=OURS)
    right.axvline(threshold, **DASHED)
    best = float(r[np.argmin(objective)])
    right.set(xlabel="threshold r", ylabel="h ψ(r) + Σ losses", title=f"The objective, least at {best:.3f}")
    save(figure, "1")


def regret():
    """Theorem 2: regret stays below its bound on any sequence."""
    figure, axes = panels(1, 2, 9.0, 3.2, sharey=True)
    rounds = 2000
    time = np.arange(1, rounds + 1)
    streams = {
        "alternating": dpc.streams.alternating(rounds),
        "fair coins": RNG.integers(0, 2, rounds).astype(float),
        "blocks of 50": (time // 50 % 2).astype(float),
        "iid uniform": RNG.random(rounds),
    }
    colours = (OURS, COLOURS["ACI"], COLOURS["OGD"], COLOURS["MVP"])
    for ax, level in zip(axes[0], (0.5, 0.9), strict=True):
        for colour, (name, scores) in zip(colours, streams.items(), strict=True):
            run = dpc.replay(dpc.Exact(), scores, [level])
            ax.plot(time, dpc.metrics.regret(run, running=True)[:, 0], color=colour, linewidth=1.3, label=name)
        ax.plot(time, theory.regret_bound(time, level), **DASHED, label="bound, for any sequence")
        ax.set(xlabel="rounds", title=f"Level {level:g}", ylabel="regret" if level == 0.5 else "")
    axes[0, 1].legend(frameon=False, fontsize="small")
    save(figure, "2")


def coverage():
    """Theorem 3: how likely the threshold of round t is to cover, given the past, over 500 data sets."""
    figure, axes = panels(1, 2, 9.0, 3.2)
    rounds, datasets = 400, 500
    scores = RNG.random((datasets, rounds))  # uniform: a threshold covers with probability r
    time = np.arange(2, rounds + 1)
    for ax, level in zip(axes[0], (0.5, 0.9), strict=True):
        learner = dpc.Exact(dpc.priors.Beta(2, 5))  # a wrong prior
        covered = np.asarray(dpc.replay(learner, scores, [level]).thresholds)[:, 1:, 0]
        low, high = theory.coverage_bound(time, level, delta=0.05)
        ax.fill_between(time, *np.quantile(covered, [0.025, 0.975], axis=0), color=OURS, alpha=0.3, linewidth=0)
        ax.plot(time, covered.mean(axis=0), color=OURS, label="mean and 95 % of data sets")
        ax.plot(time, np.maximum(low, 0), **DASHED, label="bounds for 95 %")
        ax.plot(time, np.minimum(high, 1), **DASHED)
        ax.axhline(level, color=FAINT, linewidth=0.8)
        ax.set(xlabel="round t", title=f"Level {level:g}, prior Beta(2, 5), scores uniform", ylim=(-0.02, 1.02))
    axes[0, 0].set_ylabel("P(covered | past)")
    axes[0, 0].legend(frameon=False, fontsize="small", loc="upper right")
    save(figure, "3")


def risk():
    """Theorem 4: how much more a threshold costs on average than the best one."""
    figure, axes = panels(1, 1, 6.5, 3.2)
    ax, level, datasets = axes[0, 0], 0.9, 400
    time = np.unique(np.geomspace(4, 4000, 24).astype(int))
    scores = RNG.random((datasets, int(time[-1])))
    for name, prior in {"uniform prior": dpc.priors.Uniform(), "prior Beta(2, 5)": dpc.priors.Beta(2, 5)}.items():
        r = np.asarray(dpc.replay(dpc.Exact(prior), scores, [level]).thresholds)[:, time - 1, 0]
        excess = (r - level) ** 2 / 2  # the risk of r under uniform scores, minus that of the best
        colour = OURS if "uniform" in name else COLOURS["ACI"]
        ax.loglog(time, excess.mean(axis=0), color=colour, label=f"{name}, mean of {datasets} data sets")
        bound = [theory.excess_risk_bound(int(t), level, 0.05, prior) for t in time]
        ax.loglog(time, bound, color=colour, linestyle=(0, (4, 3)), label=f"{name}, bound for 95 %")
    ax.set(xlabel="round t", ylabel="excess risk", title=f"Level {level:g}, scores uniform")
    ax.legend(frameon=False, fontsize="small", loc="lower left")
    save(figure, "4")


def quantized():
    """Theorem 5: what bins cost."""
    figure, axes = panels(1, 1, 6.5, 3.2)
    ax, rounds, level = axes[0, 0], 4000, 0.5
    bins = np.unique(np.geomspace(2, 512, 17).astype(int))
    streams = {"alternating": dpc.streams.alternating(rounds), "iid Beta(2, 5)": RNG.beta(2, 5, rounds)}
    for colour, (name, scores) in zip((OURS, COLOURS["OGD"]), streams.items(), strict=True):
        found = [float(dpc.metrics.regret(dpc.replay(dpc.Quantized(int(k)), scores, [level]))[0]) for k in bins]
        ax.loglog(bins, found, color=colour, marker="o", markersize=3, label=name)
        exact = float(dpc.metrics.regret(dpc.replay(dpc.Exact(), scores, [level]))[0])
        ax.axhline(exact, color=colour, linewidth=0.8, linestyle=":", label=f"{name}, without bins")
    bound = [theory.quantized_regret_bound(rounds, level, int(k)) for k in bins]
    ax.loglog(bins, bound, **DASHED, label="bound, for any sequence")
    ax.axvline(np.ceil(np.sqrt(rounds)), color=FAINT, linewidth=0.8)
    ax.annotate("√T bins", (np.ceil(np.sqrt(rounds)), ax.get_ylim()[1]), (4, -10), textcoords="offset points")
    ax.set(xlabel="bins", ylabel=f"regret after {rounds:,} rounds", title=f"Level {level:g}")
    ax.legend(frameon=False, fontsize="small", loc="center left", bbox_to_anchor=(1.0, 0.5))
    save(figure, "5")


def discounted():
    """Theorem 6: discounted regret by the length of the memory."""
    figure, axes = panels(1, 1, 6.5, 3.2)
    ax, rounds, level = axes[0, 0], 3000, 0.5
    memory = np.geomspace(5, 300, 9)
    coins = RNG.integers(0, 2, (40, rounds)).astype(float)
    seen = []
    for length in memory:
        beta = 1 - 1 / length
        run = dpc.replay(dpc.Exact(discount=beta), coins, [level])
        seen.append(np.asarray(dpc.metrics.discounted_regret(run, beta))[:, 0].mean())
    beta = 1 - 1 / memory
    ax.loglog(memory, theory.discounted_regret_bound(rounds, level, beta), **DASHED, label="bound, for any sequence")
    ax.loglog(memory, seen, color=OURS, marker="o", markersize=3, label="fair coins, mean of 40 runs")
    lower = theory.discounted_lower_bound(rounds, level, beta)
    ax.loglog(memory, lower, color=INK, linewidth=1.2, linestyle=":", label="what an adversary can force on any method")
    ax.set(xlabel="memory 1/(1 − β), rounds", ylabel="discounted regret", title=f"Level {level:g}")
    ax.legend(frameon=False, fontsize="small", loc="upper left")
    save(figure, "6")


def bracket():
    """Finite samples: coverage probability lies in the bracket for any prior, and extreme priors attain its ends."""
    figure, axes = panels(1, 1, 6.5, 3.2)
    ax, count, weight, datasets = axes[0, 0], 40, 5.0, 3000
    levels = np.linspace(0.021, 0.9813, 193)  # none a multiple of 1/(n + a), where rounding decides
    scores = RNG.random((datasets, count + 1))
    low, high = theory.coverage_bracket(levels, count, weight)
    ax.fill_between(
        levels, low - levels, high - levels, color=FAINT, alpha=0.35, linewidth=0, label="bracket, any prior"
    )
    priors = {
        "prior at the top": dpc.priors.Beta(400, 1),
        "uniform": dpc.priors.Uniform(),
        "at the bottom": dpc.priors.Beta(1, 400),
    }
    for colour, (name, prior) in zip((COLOURS["ACI"], OURS, COLOURS["OGD"]), priors.items(), strict=True):
        learner = dpc.Exact(prior, dpc.schedules.Dirichlet(weight))
        last = np.asarray(dpc.replay(learner, scores, levels).thresholds)[:, -1]
        ax.plot(levels, last.mean(axis=0) - levels, color=colour, linewidth=1.3, label=name)
    ax.axhline(0, **DASHED)
    ax.set(
        xlabel="level",
        ylabel="coverage − level",
        title=f"{count} iid scores, concentration {weight:g}, {datasets:,} data sets",
    )
    ax.legend(frameon=False, fontsize="small", loc="center left", bbox_to_anchor=(1.0, 0.5))
    save(figure, "bracket")


for draw in (leader, regret, coverage, risk, quantized, discounted, bracket):
    draw()
