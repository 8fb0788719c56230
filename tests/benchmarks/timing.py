"""Time and memory, measured alike for everything."""

import json
import subprocess
import sys
import time
from typing import NamedTuple

import jax


class Timing(NamedTuple):
    """Seconds of the first call beyond a further one, and of the best of three further ones."""

    compiling: float
    running: float


def timed(function, repeats=3):
    """Run once to compile, then take the best."""
    seconds = []
    for _ in range(repeats + 1):
        start = time.perf_counter()
        jax.block_until_ready(function())
        seconds.append(time.perf_counter() - start)
    running = min(seconds[1:]) if repeats else seconds[0]
    return Timing(max(seconds[0] - running, 0.0) if repeats else 0.0, running)


def side_by_side(functions, repeats=3):
    """Take turns, so that what else the machine does falls on all of them."""
    first = {name: timed(function, 0).running for name, function in functions.items()}
    best = dict.fromkeys(functions, float("inf"))
    for _ in range(repeats):
        for name, function in functions.items():
            best[name] = min(best[name], timed(function, 0).running)
    return {name: Timing(max(first[name] - best[name], 0.0), best[name]) for name in functions}


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
    done = subprocess.run([sys.executable, "-c", PEAK, job], capture_output=True, text=True, check=True)
    return json.loads(done.stdout)
