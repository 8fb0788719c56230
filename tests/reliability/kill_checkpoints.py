"""
Kill a process a thousand times while it writes checkpoints: every file loads, the newest acknowledged one is there.

    python tests/reliability/kill_checkpoints.py [KILLS]
"""

import json
import os
import pathlib
import random
import signal
import struct
import subprocess
import sys
import tempfile
import time

import jax
import numpy as np

import dpconformal as dpc
from dpconformal.beliefs.sorted_scores import SortedScores

LEARNER = dpc.SplitConformal()


def state(number):
    """A state that tells which checkpoint it is of; from a kilobyte to four megabytes."""
    size = (100, 10_000, 300_000)[number % 3]
    values = np.full(size, np.inf)
    values[0] = number / 2**30
    arrivals = np.zeros(size, np.int32)
    arrivals[0] = 1
    return SortedScores(np.int32(1), values, arrivals)


def write_for_ever(path, first, pipe):
    """Save one checkpoint after the other, and say so after each."""
    for number in range(first, first + 10_000):
        dpc.save(path, LEARNER, state(number))
        os.write(pipe, struct.pack("<I", number))


def load_on_demand(folder):
    """Load every file of the folder for each line of input, and say which checkpoints they are."""
    for _ in sys.stdin:
        found = {name: int(dpc.load(f"{folder}/{name}").state.values[0] * 2**30) for name in os.listdir(folder)}
        print(json.dumps(found), flush=True)


def main(kills):
    """Kill, look, and go on."""
    rng = random.Random(1)
    acknowledged = written = files = between = 0
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "belief.dpc"
        # In a process of its own: one that has loaded an array has threads, and must not fork.
        reader = [sys.executable, __file__, "--load", folder]
        loader = subprocess.Popen(reader, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        dpc.save(path, LEARNER, state(0))
        for kill in range(kills):
            reading, writing = os.pipe()
            child = os.fork()
            if child == 0:
                os.close(reading)
                write_for_ever(path, written + 1, writing)
                os._exit(1)
            os.close(writing)
            time.sleep(rng.expovariate(1 / 0.06))
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            told = b""
            while part := os.read(reading, 2**16):
                told += part
            os.close(reading)
            acknowledged = struct.unpack_from("<I", told, len(told) - 4)[0] if told else acknowledged
            loader.stdin.write("look\n")
            loader.stdin.flush()
            found = json.loads(loader.stdout.readline())
            assert found["belief.dpc"] >= acknowledged, (kill, found, acknowledged)
            files += len(found)
            between += ".belief.dpc.new" in found
            written = max([acknowledged, *found.values()])
            if kill % 100 == 99:
                print(f"{kill + 1:,} kills, {written:,} checkpoints, {files:,} files loaded", flush=True)
        loader.stdin.close()
        loader.wait()
    print(f"{kills:,} SIGKILLs over {written:,} acknowledged checkpoints: {files:,} files, all of them load")
    print(f"killed between naming a file and putting it in place: {between} times; acknowledged and lost: 0")


if __name__ == "__main__":
    jax.config.update("jax_enable_x64", True)
    if sys.argv[1:2] == ["--load"]:
        load_on_demand(sys.argv[2])
    else:
        main(int(sys.argv[1]) if len(sys.argv) > 1 else 1000)
