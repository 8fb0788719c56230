"""
Every learner on the same streams: time, coverage, loss and crossings; ``make bench``.

Prints a table and writes it to docs/baselines.csv. Compilation and running are timed apart, the best of three runs
counts, float64.
"""

import csv
import pathlib
import sys

import jax
import numpy as np
from rich.console import Console
from rich.table import Table
from timing import finished, timed

import dpconformal as dpc
from dpconformal import streams

TABLE = pathlib.Path(__file__).parents[2] / "docs" / "baselines.csv"
LEVELS = np.linspace(0.1, 0.9, 9)
LEARNERS = {
    "Exact": dpc.Exact(),
    "Exact, discount 0.99": dpc.Exact(discount=0.99),
    "Exact, discount 0.99, prior's weight 0.01": dpc.Exact(schedule=dpc.schedules.Constant(0.01), discount=0.99),
    "Quantized, 256 bins": dpc.Quantized(256),
    "Quantized, 256 bins, discount 0.99": dpc.Quantized(256, discount=0.99),
    "ERM": dpc.ERM(),
    "SlidingERM, window 100": dpc.SlidingERM(100),
    "DiscountedERM, discount 0.99": dpc.DiscountedERM(0.99),
    "SplitConformal": dpc.SplitConformal(),
    "NExCP, discount 0.99": dpc.NExCP(0.99),
    "OGD": dpc.OGD(LEVELS),
    "OGD, constant rate 0.05": dpc.OGD(LEVELS, rate=0.05),
    "OGD, decaying rate": dpc.OGD(LEVELS, rate=dpc.rates.decaying(0.1)),
    "MultiOGD, 50 levels": dpc.MultiOGD(np.linspace(0, 1, 50)),
    "SFOGD": dpc.SFOGD(LEVELS),
    "SAOCP": dpc.SAOCP(LEVELS),
    "ACI, window 100": dpc.ACI(LEVELS),
    "DtACI, window 100, 8 rates": dpc.DtACI(LEVELS),
    "AgACI, window 100, 8 rates": dpc.AgACI(LEVELS),
    "PID, P alone": dpc.PID(LEVELS, integral=0, window=None, initial=LEVELS),
    "PID, P and I": dpc.PID(LEVELS, integral=1, window=None, initial=LEVELS),
    "PID, P and I, window 100": dpc.PID(LEVELS),
    "MVP, 50 buckets": dpc.MVP(LEVELS),
    "MVP, 50 buckets, 3 groups": dpc.MVP(LEVELS, groups=3),
    "MultiMVP, 50 levels": dpc.MultiMVP(np.linspace(0, 1, 50)),
}
HEADS = ["learner", "seconds", "crossing, iid", "crossing, drifting", "covered, iid", "covered, drifting"]
HEADS += ["loss, iid", "loss, drifting"]


def main():
    jax.config.update("jax_enable_x64", True)
    long = 20_000 if "--quick" in sys.argv else 100_000
    short = {"iid": streams.iid(20_000), "drifting": streams.drifting(20_000)}
    rows = []
    for name, learner in LEARNERS.items():
        groups = np.random.default_rng(0).random((long, 3)) < [1, 0.5, 0.2] if "groups" in name else None

        def replayed(scores, own=learner, groups=groups):
            return dpc.replay(own, scores, LEVELS, context=None if groups is None else groups[: len(scores)])

        compiling, running = timed(lambda replayed=replayed: replayed(streams.iid(long)).thresholds)
        found = {}
        for stream, scores in short.items():
            run = replayed(scores)
            loss = np.asarray(dpc.metrics.quantile_loss(run))[200:]  # split conformal has none to show at first
            found[stream] = (
                dpc.metrics.crossings(run).rounds / scores.size,
                np.asarray(dpc.metrics.coverage(run))[-1],
                loss.mean(),
            )
        rows.append([name, running, *np.array([found["iid"], found["drifting"]]).T.ravel()])
        print(f"{name:36} compile {compiling:5.2f} s  run {running:6.3f} s", flush=True)
    table = Table(*HEADS, title=f"{long:,} rounds (time), 20,000 rounds (the rest), 9 levels")
    text = [[name, *(f"{x:.3f}" for x in figures[:5]), *(f"{x:.4f}" for x in figures[5:])] for name, *figures in rows]
    for row in text:
        table.add_row(*row)
    Console(width=200).print(table)
    slow = [name for name, running, *_ in rows if running > 1]
    print(f"slower than 1 s: {', '.join(slow) or 'none'}")
    with TABLE.open("w", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows([HEADS, *text])


if __name__ == "__main__":
    main()
    finished()
