"""
Speed of replays, as ratios within one run: ``make bench``.

Prints a table of every job and a list of what is claimed of it; writes docs/benchmarks.csv and
docs/images/benchmarks.png. Compilation and running are timed apart, the best of three runs counts, float64.
"""

import csv
import pathlib
import sys
from typing import NamedTuple

import jax
import kernels
import naive
import numpy as np
from rich.console import Console
from rich.table import Table
from rivals import RIVALS
from timing import finished, peak_megabytes, side_by_side, timed

import dpconformal as dpc

DOCS = pathlib.Path(__file__).parents[2] / "docs"
LEVELS = {count: np.linspace(0.1, 0.9, count) if count > 1 else np.array([0.9]) for count in (1, 9, 99)}
QUICK = "--quick" in sys.argv


class Row(NamedTuple):
    """One line of the table."""

    job: str
    method: str
    rounds: int
    levels: int
    bins: str
    batch: int
    compile_s: float
    run_s: float
    ns_per_query: float
    peak_mb: str
    note: str


class Book:
    """Rows and claims as they come in, printed at once."""

    def __init__(self):
        self.rows, self.claims, self.console = [], [], Console(width=220)

    def note(self, job, method, rounds, levels, timing, *, bins="", batch=1, peak="", note=""):
        queries = rounds * levels * batch
        nanoseconds = 1e9 * timing.running / queries
        row = Row(job, method, rounds, levels, str(bins), batch, *timing, nanoseconds, peak, note)
        self.rows.append(row)
        self.console.print(
            f"{job:26} {method:26} T={rounds:<11,} A={levels:<3} B={batch:<5} "
            f"compile {timing.compiling:6.2f} s  run {timing.running:9.4f} s  {nanoseconds:11,.1f} ns  {peak:>6} {note}"
        )

    def claim(self, what, ratio, limit, at_most=True):
        fine = ratio <= limit if at_most else ratio >= limit
        self.claims.append((what, ratio, f"{'≤' if at_most else '≥'} {limit:g}", "reached" if fine else "NOT REACHED"))


def scores_of(*shape):
    """Uniform scores; the pointers' walks hardly depend on the distribution."""
    return np.random.default_rng(0).random(shape)


def exact(book):
    """Exact beliefs beside a compiled kernel."""
    seconds = {}
    for rounds in (10**3, 10**4, 10**5, 10**6) if QUICK else (10**3, 10**4, 10**5, 10**6, 10**7):
        for count, levels in LEVELS.items():
            if rounds * count > 10**8:
                continue
            scores, discounted = scores_of(rounds), dpc.Exact(discount=0.99)
            jobs = {
                "dpconformal": lambda s=scores, a=levels: dpc.replay(dpc.Exact(), s, a),
                "numba": lambda s=scores, a=levels: kernels.exact(s, a),
            }
            if rounds * count <= 10**7 and rounds <= 10**6:
                jobs["dpconformal, discount"] = lambda s=scores, a=levels, d=discounted: dpc.replay(d, s, a)
            for method, timing in side_by_side(jobs).items():
                peak = ""
                if method == "dpconformal" and count == 9 and rounds >= 10**5:
                    peak = f"{peak_megabytes('dpc.Exact()', rounds, 9):.0f}"
                book.note("exact", method, rounds, count, timing, peak=peak)
                seconds[method, rounds, count] = timing.running
    for rounds in (10**5, 10**6):
        ratio = seconds["dpconformal", rounds, 9] / seconds["numba", rounds, 9]
        book.claim(f"exact, 9 levels, T = {rounds:,}: time / compiled kernel", ratio, 2.0)
        ratio = seconds["dpconformal, discount", rounds, 9] / seconds["dpconformal", rounds, 9]
        book.claim(f"exact, 9 levels, T = {rounds:,}: discounted / undiscounted", ratio, 1.5)
    book.claim("exact: time(10⁶) / time(10⁵)", seconds["dpconformal", 10**6, 9] / seconds["dpconformal", 10**5, 9], 13)
    peaks = {row.rounds: float(row.peak_mb) for row in book.rows if row.job == "exact" and row.peak_mb}
    largest = max(peaks)
    book.claim(
        f"exact: peak memory({largest:,}) / peak memory({largest // 10:,})", peaks[largest] / peaks[largest // 10], 11
    )


def quantized(book):
    """Quantized beliefs beside a compiled kernel, and a summary of very many scores."""
    seconds = {}
    for rounds in (10**4, 10**5, 10**6):
        for bins in (50, 256, 1000):
            for count, levels in LEVELS.items():
                if rounds * count > 10**7:
                    continue
                plain, discounted, scores = dpc.Quantized(bins), dpc.Quantized(bins, discount=0.99), scores_of(rounds)
                jobs = {
                    "dpconformal": lambda p=plain, s=scores, a=levels: dpc.replay(p, s, a),
                    "numba": lambda b=bins, s=scores, a=levels: kernels.quantized(s, a, b),
                    "dpconformal, discount": lambda d=discounted, s=scores, a=levels: dpc.replay(d, s, a),
                }
                for method, timing in side_by_side(jobs).items():
                    book.note("quantized", method, rounds, count, timing, bins=bins)
                    seconds[method, rounds, bins, count] = timing.running
    million = {key[0]: value for key, value in seconds.items() if key[1:] == (10**6, 256, 9)}
    book.claim("quantized 256, 9 levels, T = 10⁶: time / compiled kernel", million["dpconformal"] / million["numba"], 3)
    ratio = million["dpconformal, discount"] / million["dpconformal"]
    book.claim("quantized 256, 9 levels, T = 10⁶: discounted / undiscounted", ratio, 1.5)
    growth = million["dpconformal"] / seconds["dpconformal", 10**5, 256, 9]
    book.claim("quantized: time(10⁶) / time(10⁵)", growth, 11)
    for rounds in (10**6, 10**7) if QUICK else (10**6, 10**7, 10**8):
        scores = scores_of(rounds)
        learner = dpc.Quantized(256)
        timing = timed(lambda s=scores, one=learner: dpc.replay(one, s, LEVELS[9], keep="summary").covered, 1)
        peak = peak_megabytes("dpc.Quantized(256)", rounds, 9, "summary")
        book.note("quantized, summary", "dpconformal", rounds, 9, timing, bins=256, peak=f"{peak:.0f}")


def batches(book):
    """Many sequences at once."""
    seconds = {}
    for batch in (1, 64, 1024):
        scores = scores_of(batch, 2000)
        jobs = {
            "dpconformal": lambda s=scores: dpc.replay(dpc.Exact(), s, LEVELS[9]),
            "numba, one after the other": lambda s=scores: kernels.exact_batch(s, LEVELS[9]),
        }
        for method, timing in side_by_side(jobs).items():
            book.note("batch, exact", method, 2000, 9, timing, batch=batch)
            seconds[method, batch] = timing.running
        learner = dpc.Quantized(256)
        timing = timed(lambda s=scores, one=learner: dpc.replay(one, s, LEVELS[9]))
        book.note("batch, quantized", "dpconformal", 2000, 9, timing, bins=256, batch=batch)
    ratio = seconds["dpconformal", 1024] / seconds["numba, one after the other", 1024]
    book.claim("batch 1024 × 2000, 9 levels: time / compiled kernel on one core", ratio, 1.0)


def others(book):
    """Naive code and other packages, with one level and with nine."""
    rounds, levels = (1000, LEVELS[9]) if QUICK else (5000, LEVELS[9])
    scores = scores_of(rounds)
    ours = timed(lambda: dpc.replay(dpc.Exact(), scores, levels))
    book.note("naive", "dpconformal", rounds, 9, ours)
    slow = timed(lambda: naive.bisection(scores, levels), 0)
    book.note("naive", "NumPy, bisection", rounds, 9, slow, note="O(n) an evaluation")
    np.testing.assert_allclose(
        naive.bisection(scores[:300], levels), dpc.replay(dpc.Exact(), scores[:300], levels).thresholds, atol=1e-9
    )
    book.note("naive", "np.quantile", rounds, 9, timed(lambda: naive.empirical(scores, levels), 0), note="no prior")
    book.claim(f"exact, 9 levels, T = {rounds:,}: naive bisection / time", slow.running / ours.running, 1000, False)
    per_query = {}
    for name, (function, rounds, cannot) in RIVALS.items():
        scores = scores_of(rounds)
        for count in (1, 9):
            jobs = {
                "dpconformal": lambda s=scores, a=LEVELS[count]: dpc.replay(dpc.Exact(), s, a),
                name: lambda f=function, s=scores, a=LEVELS[count]: f(s, a),
            }
            timings = side_by_side(jobs, 3 if rounds > 2000 else 1)
            for method, timing in timings.items():
                book.note(
                    f"beside {name}", method, rounds, count, timing, note="" if method == "dpconformal" else cannot
                )
            per_query[name, count] = timings[name].running / timings["dpconformal"].running
    for name in ("crepes online", "river P²"):
        for count in (1, 9):
            book.claim(f"{name}, {count} level(s): its time / ours", per_query[name, count], 1, False)


def compiling(book):
    """First calls in a process that has compiled nothing yet for this length."""
    for name, learner in (
        ("Exact", dpc.Exact()),
        ("Exact, discount", dpc.Exact(discount=0.99)),
        ("Quantized", dpc.Quantized(256)),
        ("Quantized, discount", dpc.Quantized(256, discount=0.99)),
        ("Exact, Beta prior", dpc.Exact(dpc.priors.Beta(2, 5))),
    ):
        jax.clear_caches()
        timing = timed(lambda one=learner: dpc.replay(one, scores_of(4321), LEVELS[9]))
        book.note("first call", name, 4321, 9, timing)
        if "Beta" not in name:
            book.claim(f"first call of {name}: seconds of compilation", timing.compiling, 1.0)


def picture(rows, path):
    """Time against length, ours and the kernel's, and the other packages as points."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, (left, right) = plt.subplots(1, 2, figsize=(11, 4.2), width_ratios=(1.15, 1), constrained_layout=True)
    styles = (
        ("exact", "dpconformal", "Exact", "C0", "o-"),
        ("exact", "dpconformal, discount", "Exact, discount 0.99", "C0", "o:"),
        ("exact", "numba", "Numba kernel, one core", "0.45", "s--"),
        ("quantized", "dpconformal", "Quantized, 256 bins", "C1", "o-"),
    )
    for job, method, label, colour, style in styles:
        chosen = [r for r in rows if r.job == job and r.method == method and r.levels == 9 and r.bins in ("", "256")]
        left.loglog([r.rounds for r in chosen], [r.run_s for r in chosen], style, color=colour, label=label, ms=4)
    chosen = [r for r in rows if r.job == "quantized, summary"]
    left.loglog(
        [r.rounds for r in chosen], [r.run_s for r in chosen], "^-", color="C2", label="Quantized, summary", ms=4
    )
    left.set(xlabel="rounds", ylabel="seconds", title="Replay of 9 levels")
    left.legend(frameon=False, fontsize=8)
    bars = [("dpconformal Exact", next(r for r in rows if r.job.startswith("beside crepes") and r.levels == 9))]
    bars += [(name, next(r for r in rows if r.method == name and r.levels == 9)) for name in RIVALS]
    bars += [("naive bisection", next(r for r in rows if r.method == "NumPy, bisection"))]
    bars.sort(key=lambda bar: -bar[1].ns_per_query)
    colours = ["C0" if name.startswith("dpconformal") else "0.7" for name, _ in bars]
    right.barh(
        [f"{name}\n(T = {row.rounds:,})" for name, row in bars], [r.ns_per_query for _, r in bars], color=colours
    )
    right.set_xscale("log")
    right.set(xlabel="nanoseconds a round and level", title="Beside other packages, 9 levels")
    right.tick_params(axis="y", labelsize=8)
    for axes in (left, right):
        axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=150)


def main():
    jax.config.update("jax_enable_x64", True)
    book = Book()
    for part in (exact, quantized, batches, others, compiling):
        part(book)
    table = Table(title="What is claimed")
    for heading in ("claim", "ratio", "wanted", ""):
        table.add_column(heading, justify="right" if heading == "ratio" else "left")
    for what, ratio, wanted, verdict in book.claims:
        table.add_row(what, f"{ratio:,.2f}", wanted, verdict)
    book.console.print(table)
    if QUICK:
        return
    with (DOCS / "benchmarks.csv").open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(Row._fields)
        for row in book.rows:
            writer.writerow([f"{value:.6g}" if isinstance(value, float) else value for value in row])
    picture(book.rows, DOCS / "images" / "benchmarks.png")


if __name__ == "__main__":
    main()
    finished()
