"""From measurements to tables: everything, means, ranks, losses beside the best, and who wins where."""

import numpy as np
import pandas as pd
from method_measures import BY_LEVEL, LEVELS, OVERALL

# Smaller is better. Width is not among them: sets that are small because they miss are no better. Nor is the mean
# regret of windows: on one stream it is the total loss less the same constant for all, and ranks as the regret does.
RANKED = (
    "regret",
    "worst window",
    "coverage error",
    "windowed coverage error",
    "CRPS",
    "crossings",
    "microseconds",
)
_PER_LEVEL = tuple(name for name in BY_LEVEL if name not in ("loss", "coverage error"))  # which follow from the rest


def everything(results):
    """A row for each stream, method and level, with "all" for the mean over levels; by (stream, method) measures."""
    rows = []
    for (stream, method), found in results.items():
        for k, level in enumerate(LEVELS):
            figures = {name: found[name][k] for name in _PER_LEVEL}
            rows.append({"stream": stream, "method": method, "level": f"{level:g}"} | figures)
        means = {name: float(np.mean(found[name])) for name in BY_LEVEL if name != "coverage"}
        overall = {name: found[name] for name in OVERALL}
        rows.append({"stream": stream, "method": method, "level": "all"} | means | overall)
    names = [*BY_LEVEL, *OVERALL]
    return pd.DataFrame(rows, columns=["stream", "method", "level", *names])


def by_cell(table, name):
    """One measure over all levels: methods down, streams across, in the order in which they were run."""
    mean = table[table.level == "all"]
    wide = mean.pivot_table(index="method", columns="stream", values=name, sort=False)
    return wide.loc[mean.method.unique(), mean.stream.unique()]


def relative(table, name="loss"):
    """By how many per cent each method exceeds the best on the stream."""
    wide = by_cell(table, name)
    return 100 * (wide / wide.min(axis=0) - 1)


def ranks(table):
    """Mean rank over the streams, 1 for the best; equal ones share their ranks. Sorted by regret."""
    found = {name: by_cell(table, name).round(10).rank(axis=0).mean(axis=1) for name in RANKED}
    return pd.DataFrame(found).sort_values("regret", kind="stable")


def largest_regret(table, streams):
    """The largest regret of any level on any stream, in units of the support, over √T: what a bound must hold."""
    rounds = table.stream.map({s.name: s.scores.size for s in streams})
    return (table.regret / np.sqrt(rounds))[table.level != "all"].groupby(table.method).max()


def means(table, streams):
    """Means over the streams, in units that can be averaged; the worst stream for loss and regret."""
    above = relative(table)
    share = {"coverage error": "coverage error", "windowed coverage error": "windowed coverage error"}
    share |= {"mean width": "width", "rounds that cross": "crossings", "thresholds outside": "outside"}
    found = {"loss above the best": above.mean(axis=1), "on the worst stream": above.max(axis=1)}
    found |= {"largest regret / √T": largest_regret(table, streams)}
    found |= {"CRPS above the best": relative(table, "CRPS").mean(axis=1)}
    found |= {title: 100 * by_cell(table, name).mean(axis=1) for title, name in share.items()}
    found |= {"microseconds a round": by_cell(table, "microseconds").median(axis=1)}
    return pd.DataFrame(found).loc[ranks(table).index]


def winners(table, ours, streams):
    """For each stream, the least loss and the least windowed coverage error: of all, and of ours."""
    above, errors = relative(table), 100 * by_cell(table, "windowed coverage error")
    best = above.loc[list(ours)]
    mine = errors.loc[list(ours)]
    found = {
        "rounds": {s.name: f"{s.scores.size:,}" for s in streams},
        "least loss": above.idxmin(),
        "least loss of ours": best.idxmin(),
        "above by": best.min().map("{:.1f} %".format),
        "steadiest coverage": errors.idxmin() + errors.min().map(" ({:.1f})".format),
        "steadiest of ours": mine.idxmin() + mine.min().map(" ({:.1f})".format),
    }
    return pd.DataFrame(found, index=[s.name for s in streams])


def described(streams):
    """What each stream is."""
    rows = {s.name: (s.kind, f"[{s.low:g}, {s.high:g}]", f"{s.scores.size:,}", s.about) for s in streams}
    return pd.DataFrame.from_dict(rows, orient="index", columns=["kind", "support", "rounds", "scores"])


def write(table, streams, ours, folder):
    """Write methods.csv, with all figures, and the tables of the page."""
    folder.mkdir(parents=True, exist_ok=True)
    table.to_csv(folder / "methods.csv", index=False, float_format="%.4g", lineterminator="\n")
    pages = {
        "streams": described(streams),
        "ranks": ranks(table).map("{:.1f}".format),
        "means": means(table, streams).map("{:.1f}".format),
        "losses": relative(table).map("{:.0f}".format),
        "winners": winners(table, ours, streams),
    }
    for name, page in pages.items():
        head = "stream" if name in ("streams", "winners") else "method"
        page.rename_axis(index=head, columns=None).to_csv(folder / f"methods_{name}.csv", lineterminator="\n")
    return pages
