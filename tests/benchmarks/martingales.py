"""
How rare false alarms are, and how late true ones come: the tables of docs/exchangeability.md; a few minutes.

Of the test of exchangeability: the share of 10,000 iid sequences of 1,000 rounds that ever reach a threshold, and the
median round of the alarm on sequences that change. Of the change alarm: rounds between false alarms, and its delays.
"""

import itertools

import jax
import jax.numpy as jnp
import numpy as np

from dpconformal.diagnostics import smoothed_ranks
from dpconformal.martingales import BinnedRanks, ChangeAlarm, Composite, Mixture, SimpleJumper, run, watch

MARTINGALES = {
    "Composite()": Composite(),
    "Composite(spread=False)": Composite(spread=False),
    "SimpleJumper()": SimpleJumper(),
    "SimpleJumper(spread=True)": SimpleJumper(spread=True),
    "SimpleJumper(0.1)": SimpleJumper(0.1),
    "Mixture()": Mixture(),
}
ROUNDS, CHANGE, THRESHOLDS = 1000, 500, (20, 100, 1000)
ABRUPT = ("shift 0.5", "shift 1", "spread 1.5", "spread 2", "scale 1.5")


def changing(kind, count, rng):
    """Normal scores that are not iid; of the abrupt kinds, since round CHANGE."""
    time = np.arange(ROUNDS)
    late, normal = time >= CHANGE, rng.normal(size=(count, ROUNDS))
    name, _, size = kind.partition(" ")
    size = float(size or 0)
    return {
        "shift": lambda: normal + size * late,
        "spread": lambda: normal * np.where(late, size, 1),
        "scale": lambda: np.abs(normal) * np.where(late, size, 1),
        "slow": lambda: normal + size * time / ROUNDS,
        "seasonal": lambda: normal + size * np.sin(2 * np.pi * time / 250),
        "iid": lambda: normal,
    }[name]()


def first_round(reached):
    """First round of each sequence, infinite if there is none."""
    return np.where(reached.any(-1), reached.argmax(-1) + 1.0, np.inf)


def delay(kind, rounds):
    """Median rounds from the change, or from the start, and the share of sequences that had an alarm."""
    if kind in ABRUPT:
        rounds = rounds[rounds > CHANGE] - CHANGE  # what was false before is no detection
    middle = np.median(rounds)
    return f"{middle:.0f}" if np.isfinite(middle) else f"({np.isfinite(rounds).mean():.0%})"


def table(heads, rows):
    """Print a table of Markdown."""
    print("| " + " | ".join(heads) + " |\n| " + " | ".join(["---"] * len(heads)) + " |")
    for row in rows:
        print("| " + " | ".join(row) + " |", flush=True)
    print()


def ever_reached(kinds):
    """The test of exchangeability."""
    fair = smoothed_ranks(changing("iid", 10_000, np.random.default_rng(0)))
    streams = {kind: smoothed_ranks(changing(kind, 1000, np.random.default_rng(1))) for kind in kinds}
    rows = []
    for name, martingale in MARTINGALES.items():
        most = np.concatenate([run(martingale, part).log_capital.max(axis=-1) for part in np.split(fair, 10)])
        false = [f"{np.mean(most >= np.log(limit)):.4f}" for limit in THRESHOLDS]
        paths = (np.asarray(run(martingale, p).log_capital) for p in streams.values())
        late = [delay(kind, first_round(path >= np.log(100))) for kind, path in zip(streams, paths, strict=True)]
        rows.append([f"`{name}`", *false, *late])
    table(["martingale", *(f"false at {limit}" for limit in THRESHOLDS), *kinds], rows)


def again_and_again(kinds, count=500):
    """The change alarm."""
    ranks = BinnedRanks(256, -12.0, 12.0)
    streams = {kind: changing(kind, count, np.random.default_rng(2)) for kind in kinds}
    fair = np.random.default_rng(3).normal(size=(count, 10_000))
    rows = []
    for name, martingale in MARTINGALES.items():
        alarm = ChangeAlarm(martingale, 1000.0, ranks)
        state = jax.vmap(lambda seed, alarm=alarm: alarm.init(seed=seed))(jnp.arange(count))
        rate = np.asarray(watch(alarm, fair, state).alarm).mean()
        rung = {kind: first_round(np.asarray(watch(alarm, scores, state).alarm)) for kind, scores in streams.items()}
        before = np.mean([(rung[kind] <= CHANGE).mean() for kind in ABRUPT])
        late = [delay(kind, rounds) for kind, rounds in rung.items()]
        rows.append([f"`{name}`", f"{1 / rate:,.0f}" if rate else "none", f"{before:.2f}", *late])
    table(["martingale", "rounds a false alarm", "false in the first 500 rounds", *kinds], rows)


def one_gambler(kinds, count=500):
    """The statistic by the growth of one gambler, R = (R + 1)·M/M before, on the same streams: to compare with."""
    rows = []
    for name in ("Composite()", "SimpleJumper()", "Mixture()"):
        late, before = [], []
        for kind in kinds:
            ranks = smoothed_ranks(changing(kind, count, np.random.default_rng(2)))
            growth = np.diff(np.asarray(run(MARTINGALES[name], ranks).log_capital), axis=-1, prepend=0.0)
            begin = np.full(count, -np.inf)
            paths = itertools.accumulate(growth.T, lambda r, g: np.logaddexp(r, 0.0) + g, initial=begin)
            rounds = first_round(np.stack(list(paths)[1:], axis=-1) >= np.log(1000))
            late.append(delay(kind, rounds))
            before.append((rounds <= CHANGE).mean() if kind in ABRUPT else np.nan)
        rows.append([f"`{name}`, one gambler", "", f"{np.nanmean(before):.2f}", *late])
    table(["martingale", "", "false in the first 500 rounds", *kinds], rows)


if __name__ == "__main__":
    jax.config.update("jax_enable_x64", True)
    kinds = [*ABRUPT, "slow 1", "seasonal 0.5"]
    ever_reached(kinds)
    again_and_again(kinds)
    one_gambler(kinds)
