"""
Posterior work beside the obvious NumPy and SciPy for it; ``make bench``.

Prints a table and writes it to docs/posteriors.csv. Both sides take turns in one run, float64; compilation is apart.
"""

import csv
import pathlib

import jax
import numpy as np
from rich.console import Console
from rich.table import Table
from scipy import stats
from timing import finished, side_by_side

import dpconformal as dpc
from dpconformal import diagnostics, dirichlet

TABLE = pathlib.Path(__file__).parents[2] / "docs" / "posteriors.csv"
LEVELS = np.linspace(0.1, 0.9, 9)
A, DRAWS = 5.0, 10_000


def draws_by_numpy(scores, rng):
    """The split form, draw by draw of weights, with a sort of all atoms."""
    found = np.empty((DRAWS, 3))
    for i in range(DRAWS):
        weights = rng.dirichlet(np.concatenate([[A], np.ones(scores.size)]))
        sticks = rng.beta(1, A, 60)
        lengths = sticks * np.concatenate([[1], np.cumprod(1 - sticks)[:-1]])
        atoms, masses = np.concatenate([rng.random(60), scores]), np.concatenate([weights[0] * lengths, weights[1:]])
        order = np.argsort(atoms)
        found[i] = atoms[order][np.minimum(np.searchsorted(np.cumsum(masses[order]), [0.1, 0.5, 0.9]), atoms.size - 1)]
    return found


def credible_by_scipy(scores, rounds):
    """The credible threshold of some rounds: a root in x for each level, of SciPy's Beta distribution."""
    found = []
    for n in rounds:
        seen = np.sort(scores[:n])
        for level in LEVELS:
            low, high = 0.0, 1.0
            for _ in range(50):
                x = (low + high) / 2
                mean = (A * x + np.searchsorted(seen, x, side="right")) / (A + n)
                enough = stats.beta.sf(level, (A + n) * mean, (A + n) * (1 - mean)) >= 0.95
                low, high = (low, x) if enough else (x, high)
            found.append(high)
    return np.array(found)


def sbc_by_numpy(simulations, rng, count=50, bins=64, draws=19):
    """Four PITs, one simulation after the other."""
    centres, base = (np.arange(bins) + 0.5) / bins, np.full(bins, A / bins)
    found = []
    for _ in range(simulations):
        p = rng.dirichlet(base)
        seen = rng.multinomial(count, p)
        posterior = np.cumsum(base + seen)[:-1]
        chance = stats.beta.sf(0.9, posterior, A + count - posterior)
        rank = (rng.dirichlet(base + seen, draws) @ centres < p @ centres).sum()
        found.append((chance[bins // 2], rank))
    return np.array(found)


def main():
    jax.config.update("jax_enable_x64", True)
    rng = np.random.default_rng(0)
    scores, long = rng.beta(2, 5, 1000), rng.beta(2, 5, 100_000)
    posterior = dirichlet.Posterior(dpc.priors.Uniform(), A, scores)
    belief = dpc.Exact(schedule=dpc.schedules.Dirichlet(A))
    some = np.unique(np.geomspace(1, 99_999, 100).astype(int))
    tasks = {
        f"{method}: {DRAWS:,} draws, 1,000 scores": {
            "ours": lambda method=method: posterior.sample(jax.random.key(0), DRAWS, method).quantile([0.1, 0.5, 0.9]),
            "theirs": (lambda: draws_by_numpy(scores, rng)) if method == "split" else None,
        }
        for method in ("split", "grid", "urn", "bootstrap")
    }
    tasks["Credible: 100,000 rounds, 9 levels"] = {
        "ours": lambda: dpc.replay(dpc.Credible(belief), long, LEVELS).thresholds,
        "theirs": lambda: credible_by_scipy(long, some),
        "share": 100_000 / some.size,
    }
    for name, head in (("Corrected", dpc.Corrected(belief)), ("Exact", belief)):
        tasks[f"{name}: 100,000 rounds, 9 levels"] = {
            "ours": lambda head=head: dpc.replay(head, long, LEVELS).thresholds,
            "theirs": None,
        }
    tasks["calibration: 2,000 simulations of 50 scores"] = {
        "ours": lambda: diagnostics.sbc(dpc.priors.Uniform(), A, count=50),
        "theirs": lambda: sbc_by_numpy(2000, rng),
    }
    rows = []
    for name, task in tasks.items():
        both = {side: task[side] for side in ("ours", "theirs") if task[side] is not None}
        found = side_by_side(both, repeats=2)
        ours, theirs = found["ours"], found.get("theirs")
        other = None if theirs is None else theirs.running * task.get("share", 1.0)
        text = ("", "") if other is None else (f"{other:.3g}", f"{other / ours.running:.3g}")
        rows.append([name, f"{ours.compiling:.2f}", f"{ours.running:.3g}", *text])
        print(*rows[-1], flush=True)
    heads = ["task", "compile, s", "run, s", "NumPy and SciPy, s", "times faster"]
    table = Table(*heads, title="Posterior work; Credible by SciPy from a hundred rounds, scaled up")
    for row in rows:
        table.add_row(*row)
    Console(width=120).print(table)
    with TABLE.open("w", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows([heads, *rows])


if __name__ == "__main__":
    main()
    finished()
