"""
Kill commands at random moments and go on with `--resume`: the results are those of an undisturbed run.

    python tests/reliability/kill_commands.py [--kills 100] [--rounds 1000000] [replay delayed compare experiment]
"""

import argparse
import pathlib
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time

import numpy as np

REPLAY = "replay scores.csv --learner quantized --discount 0.999 --no-report"  # a report would take most of the time
COMMANDS = {
    "replay": REPLAY,
    "delayed": f"{REPLAY} --delay 7",
    "compare": "compare scores.csv --learners quantized,erm,quantized:discount=0.99 --levels 0.5,0.9 --no-errors",
    "experiment": "experiment prior --rounds 2000",
}


def start(words, folder, out):
    """Start a command."""
    command = [sys.executable, "-m", "dpconformal", *words.split(), "--out", out, "--resume"]
    return subprocess.Popen(command, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def contents(folder):
    """Return everything in a folder but times, which are measured."""
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.name != "times.csv"}


def main():
    """Go through the commands: kill until there were enough, and compare whenever a run gets to its end."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=1_000_000)
    parser.add_argument("commands", nargs="*", choices=[*COMMANDS, []], default=["replay"])
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        scores = np.random.default_rng(3).beta(2, 5, asked.rounds)
        np.savetxt(folder / "scores.csv", scores, fmt="%.6f", header="score", comments="")
        for command in asked.commands:
            killed(command, folder, asked.kills)


def killed(command, folder, kills):
    """Kill a command so often."""
    rng, words = random.Random(2), COMMANDS[command]
    begun = time.monotonic()
    assert start(words, folder, f"{command}-whole").wait() == 0
    whole, cut = time.monotonic() - begun, folder / f"{command}-cut"
    want = contents(folder / f"{command}-whole")
    print(f"{command}, undisturbed: {whole:.1f} s, {', '.join(want)}", flush=True)
    done, stages, finished = 0, {}, 0
    while done < kills or cut.exists():
        process, begun = start(words, folder, cut.name), time.monotonic()
        patience = rng.uniform(0.3, 1.0) * whole if done < kills else 1e6
        try:
            code = process.wait(patience)
            assert code == 0, code
            assert contents(cut) == want
            shutil.rmtree(cut)
            whole = min(whole, time.monotonic() - begun)  # the machine may have been busy at first
            finished += 1
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGKILL)
            process.wait()
            done += 1
            stage = stage_of(cut)
            stages[stage] = stages.get(stage, 0) + 1
            if done % 10 == 0:
                print(f"{done} kills, {finished} runs to their end; killed while {stages}", flush=True)
    print(f"{command}: {done} SIGKILLs, {finished} runs that got to their end, all with the same bytes; {stages}")


def stage_of(out):
    """Tell what a killed run was doing."""
    work = next((out / ".unfinished").glob("work-*"), None)
    if work is None:
        return "starting"
    if any(work.glob(".unfinished-*")):
        return "writing"
    return "working" if (work / "scores.dpc").exists() or (work / "steps").exists() else "reading"


if __name__ == "__main__":
    main()
