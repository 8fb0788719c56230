"""
Speed of a replay as ratios within one run: `make bench`.

Each belief is timed beside naive NumPy in the style of published notebooks, which bisects the regularised cdf over all
past scores every round. Compilation and running are timed apart; the best of three runs counts.
"""

import time

import jax
import numpy as np
from rich.console import Console
from rich.table import Table

import dpconformal as dpc

LEVELS = np.linspace(0.1, 0.9, 9)
NAIVE_ROUNDS = 1000


def naive(scores, levels, discount=None):
    """One cdf evaluation costs O(n), and a bisection needs about fifty."""
    thresholds = np.empty((scores.size, levels.size))
    for t in range(1, scores.size + 1):
        past = scores[: t - 1]
        if discount is None:
            weight, shares = t**-0.5, np.full(past.size, (1 - t**-0.5) / max(past.size, 1))
        else:
            root = np.sqrt(1 - discount)
            weight = root / (discount + root)
            shares = (1 - weight) * (1 - discount) * discount ** np.arange(past.size - 1, -1, -1)
            weight += (1 - weight) * discount**past.size
        for a, level in enumerate(levels):
            low, high = 0.0, 1.0
            while high - low > 1e-12:
                middle = (low + high) / 2
                if weight * middle + np.dot(shares, past <= middle) >= level:
                    high = middle
                else:
                    low = middle
            thresholds[t - 1, a] = high
    return thresholds


def timed(learner, scores):
    """Seconds of the first call and of the best of three further ones."""
    seconds = []
    for _ in range(4):
        start = time.perf_counter()
        jax.block_until_ready(dpc.replay(learner, scores, LEVELS))
        seconds.append(time.perf_counter() - start)
    return max(seconds[0] - min(seconds[1:]), 0.0), min(seconds[1:])


def main():
    jax.config.update("jax_enable_x64", True)
    rng = np.random.default_rng(0)
    console, table = Console(), Table(title=f"Replay, {LEVELS.size} levels, float64, generic scan")
    for heading in ("learner", "rounds", "compile s", "run s", "µs/round", f"naive at {NAIVE_ROUNDS} / ours"):
        table.add_column(heading, justify="left" if heading == "learner" else "right")
    for name, learner, discount in (
        ("Exact", dpc.Exact(), None),
        ("Exact, discount", dpc.Exact(discount=0.99), 0.99),
        ("Quantized 256", dpc.Quantized(256), None),
        ("Quantized 256, discount", dpc.Quantized(256, discount=0.99), 0.99),
        ("ERM", dpc.ERM(), None),
    ):
        scores = rng.random(NAIVE_ROUNDS)
        start = time.perf_counter()
        slow = naive(scores, LEVELS, discount)
        naive_seconds = time.perf_counter() - start
        for rounds in (NAIVE_ROUNDS, 10 * NAIVE_ROUNDS):
            compiling, running = timed(learner, rng.random(rounds))
            ratio = f"{naive_seconds / running:,.0f} ×" if rounds == NAIVE_ROUNDS else ""
            table.add_row(
                name, f"{rounds:,}", f"{compiling:.2f}", f"{running:.4f}", f"{1e6 * running / rounds:.2f}", ratio
            )
        if name.startswith("Exact"):
            np.testing.assert_allclose(dpc.replay(learner, scores, LEVELS).thresholds, slow, atol=1e-9)
    console.print(table)


if __name__ == "__main__":
    main()
