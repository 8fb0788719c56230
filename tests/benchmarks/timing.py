"""
Time and memory, measured alike for everything.

What was measured is kept: with ``--resume`` an interrupted benchmark goes on after the last measurement.
"""

import functools
import itertools
import json
import pathlib
import shutil
import subprocess
import sys
import time
from typing import NamedTuple

import jax
import numpy as np

import dpconformal as dpc
from dpconformal.checkpoints.container import Journal


class Timing(NamedTuple):
    """Seconds of the first call beyond a further one, and of the best of three further ones."""

    compiling: float
    running: float


_FOLDER = pathlib.Path("results/benchmarks") / pathlib.Path(sys.argv[0]).stem
_numbers = itertools.count(1)


@functools.cache
def _journal():
    if "--resume" not in sys.argv:
        finished()
    options = sorted(word for word in sys.argv[1:] if word != "--resume")
    return Journal(_FOLDER, {"options": options, "jax": jax.__version__, "dpconformal": dpc.__version__})


def finished():
    """Forget what was measured: the benchmark has come to its end."""
    shutil.rmtree(_FOLDER, ignore_errors=True)


def kept(name, measure):
    """Measure, unless that was done before the benchmark was interrupted; measurements come in the same order."""
    return _journal().once(f"{next(_numbers)} {name}", lambda: (np.asarray(measure()),))[0]


def timed(function, repeats=3):
    """Run once to compile, then take the best."""
    return Timing(*kept("time", lambda: clocked(function, repeats)).tolist())


def clocked(function, repeats):
    """Run once to compile, then take the best; nothing is kept."""
    seconds = []
    for _ in range(repeats + 1):
        start = time.perf_counter()
        jax.block_until_ready(function())
        seconds.append(time.perf_counter() - start)
    running = min(seconds[1:]) if repeats else seconds[0]
    return Timing(max(seconds[0] - running, 0.0) if repeats else 0.0, running)


def side_by_side(functions, repeats=3):
    """Take turns, so that what else the machine does falls on all of them."""
    found = kept(f"times of {', '.join(functions)}", lambda: _side_by_side(functions, repeats))
    return {name: Timing(*row) for name, row in zip(functions, found.tolist(), strict=True)}


def _side_by_side(functions, repeats):
    first = {name: clocked(function, 0).running for name, function in functions.items()}
    best = dict.fromkeys(functions, float("inf"))
    for _ in range(repeats):
        for name, function in functions.items():
            best[name] = min(best[name], clocked(function, 0).running)
    return [(max(first[name] - best[name], 0.0), best[name]) for name in functions]


PEAK = """
import json, os, sys, threading, time
import jax, numpy as np
jax.config.update("jax_enable_x64", True)
import dpconformal as dpc
job = json.loads(sys.argv[1])
learner = eval(job["learner"], {"dpc": dpc})
levels = np.linspace(0.1, 0.9, job["levels"])
scores = np.random.default_rng(0).random(job["rounds"])
dpc.replay(learner, scores[:2000], levels, keep=job["keep"])
used = lambda: int(open("/proc/self/statm").read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20
before, seen, done = used(), [], threading.Event()
def watch():
    while not done.wait(0.002):
        seen.append(used())
watcher = threading.Thread(target=watch)
watcher.start()
run = dpc.replay(learner, scores, levels, keep=job["keep"])
jax.block_until_ready(run.state)
seen.append(used())
done.set()
watcher.join()
print(json.dumps(max(seen) - before))
"""


def peak_megabytes(learner, rounds, levels, keep="all"):
    """Memory that a replay adds at its peak to a process that holds the scores: input, output and work."""
    job = json.dumps({"learner": learner, "rounds": rounds, "levels": levels, "keep": keep})

    def measure():
        done = subprocess.run([sys.executable, "-c", PEAK, job], capture_output=True, text=True, check=True)
        return json.loads(done.stdout)

    return float(kept("memory", measure))
