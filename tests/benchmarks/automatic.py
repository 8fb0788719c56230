"""
What not choosing costs: dpc.auto beside the best fixed discount in hindsight; ``make benchmark-auto``.

Writes the tables of docs/automatic.md. In float64; every seed is fixed, so that all but the times is the same when run
again. With ``--quick`` streams are short, and everything goes to results/benchmarks/automatic.
"""

import argparse
import pathlib
import time
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
from method_measures import LEVELS
from method_streams import BUILDERS, stream
from timing import clocked

import dpconformal as dpc
from dpconformal.compositions.stacks import vmap_learners

ROOT = pathlib.Path(__file__).parents[2]
MEMORIES = tuple(4 * 2**k for k in range(11))  # 4, 8, …, 4096 rounds
POINTS = 2048  # cells of the support in which a CRPS is summed up: eight for each of 256 bins
FINE = 1024  # cells of the support where beliefs are searched against
TRIED = (0.0, 0.02, 0.15, 0.3, 0.45, 0.55, 0.7, 0.85, 0.98, 1.0)  # scores that the search may play
DIRICHLET, CONSTANT = dpc.schedules.Dirichlet, dpc.schedules.Constant


def fixed(low, high, light):
    """Beliefs of one memory each, by name: with the default weight of the prior, or with that of one score."""
    prior = dpc.priors.Uniform(low, high)
    found = {"all": dpc.Quantized(256, prior, DIRICHLET(1.0) if light else None)}
    for m in MEMORIES:
        found[f"{m}"] = dpc.Quantized(256, prior, CONSTANT(1 / (m + 1)) if light else None, discount=1 - 1 / m)
    return found


def loss(learner, scores):
    """Mean quantile loss, over rounds and LEVELS."""
    return float(np.mean(dpc.metrics.quantile_loss(dpc.replay(learner, scores, LEVELS))))


def beside_the_best(one):
    """The loss of auto over that of the best fixed memory, and which that was: default priors, then light ones."""
    mine, found = loss(dpc.auto(one.low, one.high), one.scores), {}
    for kind in ("default", "light"):
        losses = {name: loss(belief, one.scores) for name, belief in fixed(one.low, one.high, kind == "light").items()}
        best = min(losses, key=losses.get)
        found |= {f"best memory, {kind} prior": best, f"auto / best, {kind} prior": mine / losses[best]}
    return found


def costs(cdfs, scores, low, high, points):
    """CRPS of cdfs (..., P), given in the middles of P equal cells, at scores (S,): (..., S)."""
    starts = low + (high - low) * jnp.linspace(0, 1, points, endpoint=False)
    below = jnp.clip((scores[:, None] - starts[None]) * points / (high - low), 0, 1)  # a score may part its cell
    below = below.reshape((1,) * (cdfs.ndim - 1) + below.shape)
    lost = below * cdfs[..., None, :] ** 2 + (1 - below) * (1 - cdfs[..., None, :]) ** 2
    return (high - low) * lost.mean(axis=-1)


def all_cdfs(mixture, state, points):
    """Read the cdf of the mixture, then those of its beliefs, in the middles of equal cells: (1 + N, P)."""
    low, high = mixture.support
    x = low + (high - low) * (jnp.linspace(0, 1, points, endpoint=False) + 0.5 / points)
    own = vmap_learners(mixture.learners, state.learners, lambda belief, own: belief.cdf(own, x), None)
    return jnp.concatenate([mixture.cdf(state, x)[None], *own])


@partial(jax.jit, static_argnames="points")
def crps_by_round(mixture, state, scores, points=POINTS):
    """CRPS of the mixture and of each belief in it, round by round: (T, 1 + N)."""

    def play(state, score):
        lost = costs(all_cdfs(mixture, state, points), score[None], *mixture.support, points)[:, 0]
        return mixture.observe(state, score), lost

    return jax.lax.scan(play, state, scores)[1]


def crps_regret(mixture, scores):
    """The largest regret of the mixture at any round, against the belief that was best by then; and the last."""
    totals = np.cumsum(crps_by_round(mixture, mixture.init(), jnp.asarray(scores)), axis=0)
    regret = totals[:, 0] - totals[:, 1:].min(axis=1)
    return {"largest CRPS regret": float(regret.max()), "at the end": float(regret[-1]), "bound": bound(mixture)}


def bound(mixture):
    low, high = mixture.support
    return np.log(len(mixture.learners)) * (high - low) / 2


@partial(jax.jit, static_argnames=("rounds", "points"))
def search(mixture, state, target, rounds, points=FINE):
    """
    Play in each round the score of TRIED that hurts the mixture most, in comparison with one belief.

    ``target`` is its place; -1 stands for the belief that is best by then. Returns the regret by round, (rounds,).
    """
    tried = jnp.asarray(TRIED)

    def play(carried, _):
        state, totals = carried
        lost = totals[:, None] + costs(all_cdfs(mixture, state, points), tried, *mixture.support, points)
        against = jnp.where(target < 0, lost[1:].min(axis=0), lost[1:][jnp.maximum(target, 0)])
        worst = jnp.argmax(lost[0] - against)
        totals = lost[:, worst]
        return (mixture.observe(state, tried[worst]), totals), totals[0] - totals[1:].min()

    start = (state, jnp.zeros(1 + len(mixture.learners)))
    return jax.lax.scan(play, start, None, length=rounds)[1]


def victims():
    """Sets of beliefs to search against, few and many, alike and unlike."""

    def forgetting(*discounts, bins=16):
        return [dpc.Quantized(bins, schedule=CONSTANT(1e-3), discount=discount) for discount in discounts]

    priors = (dpc.priors.Beta(1, 20), dpc.priors.Beta(20, 1), dpc.priors.Uniform())
    return {
        "two discounts": forgetting(0.3, 0.9),
        "three discounts": forgetting(0.3, 0.6, 0.9),
        "nearly the last score, or all": [
            *forgetting(0.01),
            dpc.Quantized(16, schedule=DIRICHLET(0.01)),
        ],
        "three priors that stay": [dpc.Quantized(16, prior, CONSTANT(0.999)) for prior in priors],
        "two opposite priors that stay": [dpc.Quantized(16, prior, CONSTANT(0.999)) for prior in priors[:2]],
        "default discounts": [dpc.Quantized(16, discount=discount) for discount in (None, 0.9, 0.97, 0.99)],
        "those of auto": dpc.auto(bins=32).learners,
    }


def searched(beliefs, rounds):
    """The largest regret that any search found, at any round: with as many cells as by default, and with many."""
    targets, found = jnp.arange(-1, len(beliefs)), {"beliefs": len(beliefs)}
    for cells in (None, FINE):
        mixture = dpc.Aggregate(beliefs, cells=cells)
        state = mixture.init()
        regrets = jax.lax.map(lambda target, m=mixture, s=state: search(m, s, target, rounds), targets)
        found |= {f"largest CRPS regret, {cells or 'default'} cells": float(regrets.max())}
    return found | {"default cells": dpc.Aggregate(beliefs).init().log_weights.shape[1], "bound": bound(mixture)}


def times(rounds, repeats=3):
    """Microseconds a round of compiled replays at the seven levels."""
    scores = np.random.default_rng(0).beta(2, 5, rounds)
    learners = {
        "Quantized(256)": (dpc.Quantized(256), "auto"),
        "Quantized(256), round by round": (dpc.Quantized(256), "scan"),
        "Quantized(256, discount=0.99), round by round": (dpc.Quantized(256, discount=0.99), "scan"),
        "auto(bins=64)": (dpc.auto(bins=64), "scan"),
        "auto()": (dpc.auto(), "scan"),
    }
    found = {}
    for name, (learner, method) in learners.items():
        replayed = partial(dpc.replay, learner, scores, LEVELS, method=method)
        found[name] = 1e6 * clocked(lambda replayed=replayed: replayed().thresholds, repeats).running / rounds
    return pd.DataFrame({"microseconds a round": found})


def tables(streams, rounds=400, say=print):
    """Return the tables of the page, by name."""
    rows = {}
    for one in streams:
        start = time.perf_counter()
        rows[one.name] = beside_the_best(one) | crps_regret(dpc.auto(one.low, one.high, fixed_share=0), one.scores)
        for name in ("largest CRPS regret", "at the end", "bound"):
            rows[one.name][name] /= one.high - one.low  # in units of the support, so that rows can be compared
        say(f"{one.name:18} {time.perf_counter() - start:5.1f} s  {rows[one.name]}")
    hurt = {}
    for name, beliefs in victims().items():
        hurt[name] = searched(beliefs, rounds)
        say(f"{name:30} {hurt[name]}")
    return {
        "streams": pd.DataFrame.from_dict(rows, orient="index").rename_axis("stream"),
        "searched": pd.DataFrame.from_dict(hurt, orient="index").rename_axis("beliefs mixed"),
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="streams of 200 rounds, for a look")
    options = parser.parse_args()
    jax.config.update("jax_enable_x64", True)
    out = ROOT / "results" / "benchmarks" / "automatic" if options.quick else ROOT / "docs"
    out.mkdir(parents=True, exist_ok=True)
    say = partial(print, flush=True)
    found = tables([stream(name, 200 if options.quick else None) for name, *_ in BUILDERS], say=say)
    found["times"] = times(2000).rename_axis("learner")
    formats = {"streams": "%.3f", "searched": "%.3f", "times": "%.1f"}
    for name, table in found.items():
        table.to_csv(out / f"automatic_{name}.csv", float_format=formats[name], lineterminator="\n")
        say(f"\n{table.to_string(float_format=formats[name].__mod__)}")


if __name__ == "__main__":
    main()
