"""A page about a run: its template filled with the numbers of each series, and the learner in plain words."""

import html
import json
import os
import re
from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np

from dpconformal.checkpoints.container import write_whole
from dpconformal.compositions import Head
from dpconformal.learner import Learner
from dpconformal.metrics.arrays import arrays_of
from dpconformal.metrics.summary import as_written
from dpconformal.replay import Replay
from dpconformal.report.series import LONGEST, blocks_of, levels_of, series_of, steps_for
from dpconformal.runs import not_at_once

MOST_SERIES = 12
MOST_CODE = 400  # characters of a learner in code
# In this order: each uses what stands in those before it.
SCRIPTS = ["data", "svg", "axes", "thresholds", "coverage", "rolling", "regret", "pit", "table", "controls", "page"]


def report(
    run: Replay | Mapping[str, Replay],
    path: str | os.PathLike[str],
    *,
    title: str = "How good were the thresholds?",
    progress: bool = False,
) -> Path:
    """
    Write a page about a run: one HTML file that needs nothing else, with a slider over the confidence levels.

    Thresholds over time, coverage against level and over time, regret beside its bound, a histogram of PITs, and a
    table with the verdict of :func:`dpconformal.theory.certify`. A belief answers every level, so it is replayed at
    up to 1,001 of them, and every position of the slider is a level that was computed; a method that follows each level
    by itself has a slider over the levels that it was asked for.

    Parameters
    ----------
    run : Replay or mapping of str to Replay
        One sequence with the same levels every round; or several by name, of the same learner and levels, of which the
        page shows the first 12. Rounds whose score is missing are left out, and those that remain are counted from 1.
    path : path
        Where to write the file. One that is there is replaced, but only by a complete one.
    title : str
        Of the page.
    progress : bool
        Whether to show a progress bar on the terminal.

    Returns
    -------
    Path
        Of the file.

    Raises
    ------
    ValueError
        For a batch, levels that change by round, runs without rounds, series that do not belong together, and a path
        that cannot be written to. Then there is no file, or the one that was there before.

    Notes
    -----
    Seconds for a few thousand rounds. Beyond 200,000 rounds the certificate and the bound are left out. The file stays
    below 1.5 MB for one series, and below 5 MB for twelve: the longer and the more, the coarser the grid of levels.

    Examples
    --------
    >>> import tempfile
    >>> import dpconformal as dpc
    >>> run = dpc.replay(dpc.Exact(), dpc.streams.iid(100), levels=[0.5, 0.9])
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     page = report(run, f"{folder}/report.html", title="A hundred scores")
    ...     print(page.name, "A hundred scores" in page.read_text(encoding="utf-8"))
    report.html True
    """
    if not isinstance(title, str):
        raise ValueError(f"title = {title!r}: pass text")
    runs, target = _checked_runs(run), _checked_path(path)
    shown = dict(list(runs.items())[:MOST_SERIES])
    first = next(iter(shown.values()))
    learner = first.learner
    code = "" if learner is None else " ".join(repr(learner).split())
    steps = steps_for(learner, [blocks_of(len(one.observed().scores)) for one in shown.values()])
    levels, asked, _ = levels_of(first, steps)
    data = {
        "levels": levels.tolist(),
        "asked": asked.tolist(),
        "steps": steps,
        "learner": in_words(learner),
        "code": code if len(code) <= MOST_CODE else code[: MOST_CODE - 1] + "…",
        "named": learner is not None,
        "head": isinstance(learner, Head),
        "longest": LONGEST,
        "omitted": list(runs)[MOST_SERIES:],
        "series": [series_of(name, one, steps, progress) for name, one in shown.items()],
    }
    write_whole(target, [_fill_template(title, data).encode()], follow=False)
    return target


def _checked_runs(run: Any) -> dict[str, Replay]:
    """Return the runs by name; refuse those that one page cannot show."""
    several = isinstance(run, Mapping)
    runs = dict(run) if several else {"": run}
    if not runs:
        raise ValueError("run is an empty mapping: pass at least one series, {name: Replay}")
    for name, one in runs.items():
        if several and not isinstance(name, str):
            raise ValueError(f"run has the key {name!r}: a series is named by text")
        which = f"run[{name!r}]" if several else "run"
        if not isinstance(one, Replay):
            raise ValueError(f"{which} is a {type(one).__name__}: pass what replay returned with keep='all'")
        arrays = arrays_of(one)
        if arrays.xp is not np:
            raise ValueError(f"{which} is being traced: write a report outside jit")
        if not not_at_once(one):
            runs[name] = one = one.observed()  # with a delay each picture leaves them out for itself
        if arrays.thresholds.ndim > 2:
            raise ValueError(
                f"{which}.thresholds has shape {arrays.thresholds.shape}, a batch: pass a mapping, one Replay a series"
            )
        if np.ndim(one.levels) != 1:
            raise ValueError(
                f"{which}.levels has shape {np.shape(one.levels)}, they change by round: a report needs fixed levels"
            )
        if 0 in arrays.thresholds.shape:
            raise ValueError(f"{which}.thresholds has shape {arrays.thresholds.shape}: there is nothing to report")
    first_name, first = next(iter(runs.items()))
    for name, one in runs.items():
        if not np.array_equal(as_written(np.asarray(one.levels)), as_written(np.asarray(first.levels))):
            raise ValueError(f"run[{name!r}].levels differ from those of run[{first_name!r}]: ask all for the same")
        if repr(one.learner) != repr(first.learner):
            raise ValueError(
                f"run[{name!r}].learner differs from that of run[{first_name!r}]: a page shows one learner"
            )
    return runs


def _checked_path(path: str | os.PathLike[str]) -> Path:
    """Refuse a path that cannot be written to, before the work."""
    target = Path(path)
    if target.is_dir():
        raise ValueError(f"path = {str(target)!r} is a folder: name a file in it, such as report.html")
    if not target.parent.is_dir():
        raise ValueError(f"path = {str(target)!r}: there is no folder {str(target.parent)!r}")
    if not os.access(target.parent, os.W_OK):
        raise ValueError(f"path = {str(target)!r}: the folder cannot be written to")
    return target


def _fill_template(title: str, data: dict[str, Any]) -> str:
    """Fill the template in one pass: a value is not searched for placeholders."""
    # No HTML parser takes this JSON for an end of the script that holds it. A lone surrogate in the title, which no
    # file can hold, becomes a question mark.
    held = json.dumps(data, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    held = held.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
    title = html.escape(title.encode("utf-8", "replace").decode("utf-8"), quote=True)
    pictures = resources.files("dpconformal.report") / "pictures"

    def text(name: str) -> str:
        return (pictures / name).read_text(encoding="utf-8")

    scripts = "\n".join(text(f"{name}.js") for name in SCRIPTS)
    parts = {"title": title, "style": text("page.css"), "data": held, "script": scripts}
    return re.sub(r"\{\{(\w+)\}\}", lambda place: parts[place[1]], text("page.html"))


_KINDS = {
    "Exact": "A belief about the next score: a prior guess, mixed with every score seen so far",
    "Quantized": "A belief about the next score: a prior guess, mixed with the scores seen so far in {bins} bins",
    "Aggregate": "Several beliefs about the next score, mixed by how well each has done so far",
    "Hierarchical": "A belief for each group: that of its parent, mixed with the group's own scores",
    "ERM": "The empirical distribution of all scores so far",
    "SlidingERM": "The empirical distribution of the last {window} scores",
    "DiscountedERM": "The empirical distribution of all scores so far, older ones counting less",
    "SplitConformal": "Split conformal prediction: the empirical distribution of all scores so far, rounded upwards",
    "NExCP": "Weighted conformal prediction: recent scores count more, rounded upwards",
    "OGD": "Online gradient descent: each threshold moves up after a miss and down after a hit",
    "MultiOGD": "Online gradient descent on a grid of levels: the nearest level of the grid answers",
    "SFOGD": "Scale-free online gradient descent: each threshold moves up after a miss and down after a hit",
    "SAOCP": "Strongly adaptive online conformal prediction: many gradient methods of different ages, mixed",
    "ACI": "Adaptive conformal inference: the level that is asked of recent scores is adjusted after every round",
    "DtACI": "Dynamically tuned adaptive conformal inference: several adjustment rates, mixed",
    "AgACI": "Aggregated adaptive conformal inference: several adjustment rates, mixed",
    "PID": "Conformal PID control: thresholds are steered by past misses",
    "MVP": "Multivalid prediction: thresholds are chosen among buckets, so that each of them covers as it should",
    "MultiMVP": "Multivalid prediction on a grid of levels: the nearest level of the grid answers",
    "Credible": "A credible bound on the threshold",
    "Corrected": "A threshold with a correction for small samples",
}


def in_words(learner: Learner | None) -> str:
    """Describe a learner in a sentence."""
    if learner is None:
        return "Thresholds of a method that the run does not name"
    name = type(learner).__name__
    if name not in _KINDS:
        return name
    sizes = {key: getattr(learner, key, None) for key in ("bins", "window")}
    words = _KINDS[name].format(**{key: "as many as √(rounds)" if n is None else n for key, n in sizes.items()})
    if (discount := getattr(learner, "discount", None)) is not None:
        lost = f"{1 - float(discount):.3g}"
        words += f". Each round takes {lost} of their weight from all earlier scores, so the past fades"
    words += f" ({name})"
    if isinstance(learner, Head):
        inner = in_words(learner.learner)
        words += f", from this belief: {inner[0].lower()}{inner[1:]}"
    return words
