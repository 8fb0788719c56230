"""
Kill `dpconformal panel` at random moments: with --resume the results are, byte by byte, those of an undisturbed run.

    python tests/reliability/kill_panel.py [KILLS] [SERIES] [MORE WORDS, such as --workers 2]
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
import xarray as xr

COMMAND = [sys.executable, "-m", "dpconformal", "panel", "scores.zarr", "--levels", "0.5,0.8,0.9", "--resume"]


def start(folder, out, words):
    """Start the command, in a group of its own: its workers end with it."""
    command = [*COMMAND, "--out", out, *words]
    return subprocess.Popen(command, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def contents(store):
    """Return everything in a store."""
    return {str(path.relative_to(store)): path.read_bytes() for path in store.rglob("*") if path.is_file()}


def main(kills, series, words):
    """Kill until there were enough, and compare whenever a run gets to its end."""
    rng = random.Random(2)
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        values = np.random.default_rng(3).beta(2, 5, (series, 500))
        scores = xr.DataArray(values, dims=["series", "time"], name="score").chunk(series=max(series // 32, 1))
        scores.to_dataset().to_zarr(folder / "scores.zarr", zarr_format=2)
        begun = time.monotonic()
        assert start(folder, "whole.zarr", words).wait() == 0
        whole = time.monotonic() - begun
        want = contents(folder / "whole.zarr")
        print(f"undisturbed: {whole:.1f} s, {len(want)} files", flush=True)
        done, stages, finished = 0, {}, 0
        while done < kills or (folder / ".cut.zarr").exists():
            process = start(folder, "cut.zarr", words)
            patience = rng.uniform(0.3, 1.0) * whole if done < kills else 1e6
            try:
                code = process.wait(patience)
                assert code == 0, code
                assert contents(folder / "cut.zarr") == want
                shutil.rmtree(folder / "cut.zarr")
                finished += 1
            except subprocess.TimeoutExpired:
                process.send_signal(signal.SIGKILL)
                process.wait()
                done += 1
                stage = stage_of(folder / ".cut.zarr")
                stages[stage] = stages.get(stage, 0) + 1
        print(f"{done} SIGKILLs, {finished} runs that got to their end, all with the same bytes; killed while {stages}")


def stage_of(beside):
    """Tell what a killed run was doing."""
    notes = next(beside.glob(".unfinished/work-*/panel-*.done"), None)
    if notes is None:
        return "starting"
    return "replaying" if notes.read_text() else "beginning"


if __name__ == "__main__":
    asked = sys.argv[1:] + ["20", "20000"][len(sys.argv) - 1 :]
    main(int(asked[0]), int(asked[1]), asked[2:])
