"""
Every method on every stream: regret, coverage, width, crossings, CRPS and time; ``make benchmark-methods``.

Prints tables, and writes docs/methods.csv, the tables of docs/methods.md beside it, and docs/images/methods.png. With
``--quick`` streams are short, and everything goes to results/benchmarks/methods. In float64; every seed is fixed, so
that all but the times is the same when run again.
"""

import argparse
import pathlib
import time

import jax
import numpy as np
from method_learners import METHODS
from method_measures import ASKED, measure
from method_picture import draw
from method_streams import BUILDERS, stream
from method_tables import everything, write
from rich.console import Console

import dpconformal as dpc
from dpconformal.display.terminal import table as laid_out

ROOT = pathlib.Path(__file__).parents[2]
OURS = tuple(method.name for method in METHODS if method.ours)


def run(streams, methods=METHODS, repeats=2, say=lambda text: None):
    """Measure every method on every stream; a crossing of one that cannot cross ends the benchmark."""
    results = {}
    for one in streams:
        start = time.perf_counter()
        for method in methods:
            learner = method.make(one.low, one.high, np.asarray(ASKED))
            found = results[one.name, method.name] = measure(one, learner, repeats)
            refuse_crossings(one, method, learner, found)
        say(f"{one.name:18} {one.scores.size:6,} rounds  {time.perf_counter() - start:5.1f} s")
    return results


def refuse_crossings(one, method, learner, found):
    """Thresholds of one belief cannot cross: if they do, nothing else here is worth reading."""
    monotone = {card.name for card in dpc.learners() if card.monotone}
    if found["crossings"] > 0 and (method.ours or type(learner).__name__ in monotone):
        raise AssertionError(
            f"{method.name} on {one.name}: thresholds of different levels CROSS in {found['crossings']:.2%} of the "
            "rounds, which a belief must never do; mend the learner"
        )


def show(console, pages):
    """Print the tables."""
    titles = {
        "winners": "Who wins where; windowed coverage errors in points",
        "losses": "Loss, per cent above the best method of the stream",
        "means": "Means over the streams, in per cent; of regret the largest, of microseconds the median",
        "ranks": "Mean ranks over the streams, 1 is best",
    }
    for name, title in titles.items():
        page = pages[name]
        left = 1 if name != "winners" else 7
        rows = [[str(index), *map(str, row)] for index, row in zip(page.index, page.to_numpy(), strict=True)]
        console.print(laid_out(title, ["", *page.columns], rows, left=left))


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="streams of 200 rounds, for a look")
    parser.add_argument("--out", type=pathlib.Path, help="folder for the tables")
    options = parser.parse_args()
    jax.config.update("jax_enable_x64", True)
    out = options.out or (ROOT / "results" / "benchmarks" / "methods" if options.quick else ROOT / "docs")
    console = Console(width=240)
    begun = time.perf_counter()
    streams = [stream(name, 200 if options.quick else None) for name, *_ in BUILDERS]
    console.print(f"{len(streams)} streams made in {time.perf_counter() - begun:.0f} s", highlight=False)
    results = run(streams, say=lambda text: console.print(text, highlight=False))
    table = everything(results)
    show(console, write(table, streams, OURS, out))
    (out / "images").mkdir(exist_ok=True)
    draw(table, OURS, out / "images" / "methods.png")
    console.print(
        f"None of {', '.join(OURS)} ever crossed. {len(METHODS)} methods in {time.perf_counter() - begun:.0f} s; "
        f"written to {out}/methods*.csv and {out}/images/methods.png",
        highlight=False,
    )


if __name__ == "__main__":
    main()
