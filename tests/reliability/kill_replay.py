"""
Kill `dpconformal replay` over a million scores a hundred times: the results are those of an undisturbed run.

    python tests/reliability/kill_replay.py [KILLS] [ROUNDS]
"""

import pathlib
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time

import numpy as np

COMMAND = [sys.executable, "-m", "dpconformal", "replay", "scores.csv", "--learner", "quantized", "--discount", "0.999"]
COMMAND += ["--no-report"]  # which would take most of the time; its bytes are those of the thresholds


def start(folder, out):
    """Start the command."""
    command = [*COMMAND, "--out", out, "--resume"]
    return subprocess.Popen(command, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def contents(folder):
    """Return everything in a folder."""
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def main(kills, rounds):
    """Kill until there were enough, and compare whenever a run gets to its end."""
    rng = random.Random(2)
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        np.savetxt(
            folder / "scores.csv", np.random.default_rng(3).beta(2, 5, rounds), fmt="%.6f", header="score", comments=""
        )
        begun = time.monotonic()
        assert start(folder, "whole").wait() == 0
        whole = time.monotonic() - begun
        want = contents(folder / "whole")
        print(f"undisturbed: {whole:.1f} s, {', '.join(want)}", flush=True)
        done, stages, finished = 0, {}, 0
        while done < kills or (folder / "cut").exists():
            process = start(folder, "cut")
            patience = rng.uniform(0.3, 1.0) * whole if done < kills else 1e6
            try:
                code = process.wait(patience)
                assert code == 0, code
                assert contents(folder / "cut") == want
                shutil.rmtree(folder / "cut")
                finished += 1
            except subprocess.TimeoutExpired:
                process.send_signal(signal.SIGKILL)
                process.wait()
                done += 1
                stage = stage_of(folder / "cut")
                stages[stage] = stages.get(stage, 0) + 1
                if done % 10 == 0:
                    print(f"{done} kills, {finished} runs to their end; killed while {stages}", flush=True)
    print(f"{done} SIGKILLs, {finished} runs that got to their end, all with the same bytes; killed while {stages}")


def stage_of(out):
    """Tell what a killed run was doing."""
    work = next((out / ".unfinished").glob("work-*"), None)
    if work is None:
        return "starting"
    if not (work / "scores.dpc").exists():
        return "reading"
    if any(work.glob(".unfinished-*")):
        return "writing"
    return "replaying"


if __name__ == "__main__":
    main(*(int(word) for word in (sys.argv[1:] + ["100", "1000000"][len(sys.argv) - 1 :])))
