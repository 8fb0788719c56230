"""
Two hundred groups of 5 to 5,000 scores: a hierarchical belief beside one for all, one for each, and multivalid ones.

    python tests/benchmarks/groups.py [--groups 200] [--seed 0]

Prints a table in Markdown: what is in docs/groups.md.
"""

import argparse
import time
from typing import Any, NamedTuple

import jax
import numpy as np

import dpconformal as dpc

LEVELS = np.array([0.5, 0.8, 0.9, 0.95, 0.99])
BINS = 200
SIZES = ((5, 15), (16, 50), (51, 200), (201, 1000), (1001, 5000))


class Population(NamedTuple):
    """Scores in time order, the group of each, and each group's distribution Beta(a, b)."""

    scores: np.ndarray  # (T,)
    groups: np.ndarray  # (T,)
    shapes: np.ndarray  # (G, 2)


def population(groups: int = 200, seed: int = 0, least: int = 5, most: int = 5000) -> Population:
    """Draw groups of log-uniform sizes, whose scores are Beta with means about 0.35, in random order of arrival."""
    rng = np.random.default_rng(seed)
    sizes = np.exp(rng.uniform(np.log(least), np.log(most + 1), groups)).astype(int)
    sizes[:2] = least, most
    mean, strength = rng.beta(8, 15, groups), np.exp(rng.normal(2.3, 0.4, groups))
    shapes = np.stack([mean * strength, (1 - mean) * strength], axis=1)
    order = rng.permutation(np.repeat(np.arange(groups), sizes))
    return Population(rng.beta(*shapes[order].T), order, shapes)


def apart(learner: Any, data: Population) -> np.ndarray:
    """Replay each group by itself, in one batch of padded sequences; thresholds in order of arrival."""
    sizes = np.bincount(data.groups)
    scores = np.full((sizes.size, sizes.max()), 0.5)
    place = np.empty(data.groups.size, int)
    for g in range(sizes.size):
        here = np.flatnonzero(data.groups == g)
        scores[g, : here.size], place[here] = data.scores[here], np.arange(here.size)
    mask = np.arange(sizes.max()) >= sizes[:, None]
    found = np.asarray(dpc.replay(learner, scores, LEVELS, mask=mask).thresholds)
    return found[data.groups, place]


def methods(count: int) -> dict[str, Any]:
    """What is compared: thresholds from a population."""
    fixed, one, root = dpc.schedules.Dirichlet(10.0), dpc.schedules.Dirichlet(1.0), dpc.schedules.InverseSqrt()

    def grouped(**options: Any) -> Any:
        learner = dpc.Hierarchical(count, bins=BINS, **options)
        return lambda data: dpc.replay(learner, data.scores, LEVELS, context=data.groups).thresholds

    def pooled(learner: Any) -> Any:
        return lambda data: dpc.replay(learner, data.scores, LEVELS).thresholds

    def multivalid(data: Population) -> Any:
        rows = data.groups[:, None] == np.arange(count)
        return dpc.replay(dpc.MVP(LEVELS, groups=count), data.scores, LEVELS, context=rows).thresholds

    return {
        "Hierarchical, a = 3": grouped(concentrations=3.0),
        "Hierarchical, a = 5 (default)": grouped(),
        "Hierarchical, a = 10": grouped(concentrations=10.0),
        "Hierarchical, a = 30": grouped(concentrations=30.0),
        "Hierarchical, 1/√n below 0.1": grouped(concentrations=(dpc.schedules.Constant(0.1), root)),
        "one belief for all, a = 10": pooled(dpc.Quantized(BINS, schedule=fixed)),
        "one belief for all, 1/√t": pooled(dpc.Quantized(BINS)),
        "a belief for each, a = 10": lambda data: apart(dpc.Quantized(BINS, schedule=fixed), data),
        "a belief for each, a = 1": lambda data: apart(dpc.Quantized(BINS, schedule=one), data),
        "a belief for each, 1/√n": lambda data: apart(dpc.Quantized(BINS), data),
        "split for each (Mondrian)": lambda data: np.minimum(apart(dpc.SplitConformal(), data), 1.0),
        "MVP with groups": multivalid,
    }


def main() -> None:
    """Run all methods, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--groups", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--most", type=int, default=5000, help="scores of the largest group")
    parser.add_argument("--only", default="", help="methods whose names contain this")
    given = parser.parse_args()
    jax.config.update("jax_enable_x64", True)
    data = population(given.groups, given.seed, most=given.most)
    sizes = np.bincount(data.groups)
    print(f"{given.groups} groups, {data.scores.size:,} scores, levels {', '.join(f'{x:g}' for x in LEVELS)}\n")
    heads = [f"{a:,}–{b:,}" for a, b in SIZES]
    columns = ["method", "mean loss", *(f"n {head}" for head in heads), "coverage error", "regret", "crossings", "s"]
    print(f"| {' | '.join(columns)} |")
    print("| --- |" + " ---: |" * (len(heads) + 5))
    for name, method in methods(given.groups).items():
        if given.only not in name:
            continue
        begin = time.perf_counter()
        thresholds = jax.block_until_ready(method(data))
        spent = time.perf_counter() - begin
        run = dpc.Replay(thresholds, None, data.scores, LEVELS)
        found = dpc.metrics.by_group(run, data.groups)
        loss, off = found.loss.mean("level").values, abs(found.coverage - found.level).mean("level").values
        inside = [(sizes >= a) & (sizes <= b) for a, b in SIZES]
        cells = [1e3 * loss[here].mean() if here.any() else np.nan for here in inside]
        crossings = int(np.any(np.diff(np.asarray(thresholds), axis=1) < 0, axis=1).sum())
        parts = [f"{1e3 * loss.mean():.2f}", *(f"{cell:.2f}" for cell in cells), f"{off.mean():.3f}"]
        regret = found.regret.mean("level").values.mean()
        print(f"| {name} | " + " | ".join(parts) + f" | {regret:.3f} | {crossings:,} | {spent:.0f} |", flush=True)
    learner = dpc.Hierarchical(given.groups, bins=BINS)
    found = dpc.theory.certify(dpc.replay(learner, data.scores, LEVELS, context=data.groups)).dataset
    print("\nCertificate of the default, lines that fail, of one a group and level:")
    for check in ("order", "optimality", "regret", "coverage"):
        verdict = found.verdict.sel(check=check).values
        print(f"{check}: {(verdict == 'FAIL').sum()} of {verdict.size}")


if __name__ == "__main__":
    main()
