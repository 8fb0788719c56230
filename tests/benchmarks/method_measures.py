"""
What a method is worth on a stream, measured alike for all.

A threshold beyond the support covers what the support's end covers, and every score lies within: for loss and width it
counts as that end, which spares a method the cost of +∞ and of overshooting. How often that happens is measured too.
Coverage and crossings are those of the thresholds as they were given.
"""

import jax
import numpy as np
from timing import clocked

import dpconformal as dpc

LEVELS = (0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.99)
MIDDLES = tuple(round(0.05 + 0.1 * k, 2) for k in range(10))  # for the CRPS, by the midpoint rule
ASKED = tuple(sorted({*LEVELS, *MIDDLES}))
WINDOWS = 20

# What is measured for each level; the mean over levels is what tables show.
BY_LEVEL = (
    "loss",  # mean quantile loss, in units of the support
    "regret",  # total loss less that of the best fixed threshold, in units of the support
    "windowed regret",  # the same within each of 20 windows, against the best threshold of that window: mean
    "worst window",  # and maximum
    "coverage",
    "coverage error",  # distance of coverage and level
    "windowed coverage error",  # the same within each window: mean
    "width",  # mean threshold, as a share of the support
    "outside",  # share of thresholds beyond the support
)
OVERALL = (
    "crossings",  # share of rounds in which two of the levels were out of order
    "CRPS",  # twice the mean quantile loss at 0.05, 0.15, …, 0.95, in units of the support
    "microseconds",  # a round, all levels, compiled
    "compiling",  # seconds of the first call beyond a further one
)


def measure(stream, learner, repeats=2):
    """Replay and judge; return a dict of numbers, and of arrays over LEVELS."""

    def replayed():
        return dpc.replay(learner, stream.scores, ASKED).thresholds

    compiling, running = clocked(replayed, repeats)
    judged = judge(stream, np.asarray(jax.device_get(replayed())))
    return judged | {"microseconds": 1e6 * running / stream.scores.size, "compiling": compiling}


def judge(stream, thresholds):
    """Judge thresholds of shape (T, levels of ASKED)."""
    low, width = stream.low, stream.high - stream.low
    scores, inside = (stream.scores - low) / width, (np.clip(thresholds, low, stream.high) - low) / width
    mine, middles = ([ASKED.index(level) for level in levels] for levels in (LEVELS, MIDDLES))
    given = _run(thresholds[:, mine], stream.scores, LEVELS)
    run, whole = _run(inside[:, mine], scores, LEVELS), _run(inside[:, middles], scores, MIDDLES)
    windows = np.array_split(np.arange(scores.size), WINDOWS)
    within = np.stack([dpc.metrics.regret(_part(run, rounds)) for rounds in windows])
    misses = np.stack([dpc.metrics.coverage_error(_part(given, rounds)) for rounds in windows])
    return {
        "loss": dpc.metrics.quantile_loss(run).mean(axis=0),
        "regret": dpc.metrics.regret(run),
        "windowed regret": within.mean(axis=0),
        "worst window": within.max(axis=0),
        "coverage": dpc.metrics.coverage(given),
        "coverage error": dpc.metrics.coverage_error(given),
        "windowed coverage error": misses.mean(axis=0),
        "width": run.thresholds.mean(axis=0),
        "outside": np.mean((given.thresholds < low) | (given.thresholds > stream.high), axis=0),
        "crossings": float(dpc.metrics.crossings(given).rounds) / scores.size,
        "CRPS": 2 * float(dpc.metrics.quantile_loss(whole).mean()),
    }


def _run(thresholds, scores, levels):
    return dpc.Replay(thresholds, None, scores, np.asarray(levels))


def _part(run, rounds):
    return run._replace(thresholds=run.thresholds[rounds], scores=run.scores[rounds])
