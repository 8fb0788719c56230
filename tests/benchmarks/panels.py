"""
Panels beside a plain replay: time, cores, memory, and workers.

Each way runs in a process of its own, for its peak of memory. ``python tests/benchmarks/panels.py [SERIES]``; what it
printed is in docs/panels.md.
"""

import contextlib
import json
import pathlib
import resource
import shutil
import subprocess
import sys
import tempfile
import time

ROUNDS, LEVELS = 500, 9


def scores(series):
    import numpy as np

    return np.random.default_rng(0).random((series, ROUNDS))


def learner_of(name):
    import numpy as np

    import dpconformal as dpc

    levels = np.linspace(0.1, 0.9, LEVELS)
    return {"exact": dpc.Exact(), "quantized": dpc.Quantized(64, discount=0.99), "aci": dpc.ACI(levels)}[name], levels


def timed(work, times=2):
    """Take the better of two runs: memory that a virtual machine never used before costs seconds a GB."""
    best = None
    for _ in range(times):
        result = None  # the memory of the run before is there again
        start, before = time.perf_counter(), _cpu()
        result = work()
        found = time.perf_counter() - start, _cpu() - before
        best = found if best is None else min(best, found)
    return result, *best


def _cpu():
    both = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in both)


def checksum(array):
    import numpy as np

    return float(np.asarray(array)[::997].sum())


def plain(name, series, _):
    """Replay everything at once."""
    import jax

    import dpconformal as dpc

    learner, levels = learner_of(name)
    values = scores(series)
    run, wall, cpu = timed(lambda: jax.block_until_ready(dpc.replay(learner, values, levels)))
    return wall, cpu, checksum(run.thresholds)


def memory(name, series, chunk):
    """Replay a panel in memory, whole; or chunk by chunk, into an array that is there."""
    import dask.array as da
    import numpy as np
    import xarray as xr

    import dpconformal as dpc

    learner, levels = learner_of(name)
    panel = xr.DataArray(scores(series), dims=["series", "time"])
    if not chunk:
        result, wall, cpu = timed(lambda: dpc.replay_panel(panel, learner, levels).thresholds.values)
        return wall, cpu, checksum(result)
    lazy, target = panel.chunk(series=chunk), np.zeros((series, ROUNDS, LEVELS))

    def work():
        found = dpc.replay_panel(lazy, learner, levels)
        metrics = [found[name].data for name in ("coverage", "loss", "regret", "mean_threshold", "rounds")]
        rest = [np.empty(metric.shape) for metric in metrics]
        da.store([found.thresholds.data, *metrics], [target, *rest], lock=False)

    _, wall, cpu = timed(work)
    return wall, cpu, checksum(target)


def disk(name, series, chunk):
    """Replay from Zarr to Zarr, in the threads of one process."""
    import dpconformal as dpc

    learner, levels = learner_of(name)
    with tempfile.TemporaryDirectory() as folder:
        panel = _stored(series, chunk, folder)
        _ = dpc.replay_panel(panel[:chunk], learner, levels).compute()
        base = _peak()
        result = dpc.replay_panel(panel, learner, levels)
        _, wall, cpu = timed(lambda: dpc.panel.save_panel(result, f"{folder}/panel.zarr"), 1)
        peak = _peak()
        return wall, cpu, _sum_of(folder), peak - base, 0, peak


def summary(name, series, chunk):
    """Replay from Zarr, and keep metrics only."""
    import dpconformal as dpc

    learner, levels = learner_of(name)
    with tempfile.TemporaryDirectory() as folder:
        panel = _stored(series, chunk, folder)
        _ = dpc.replay_panel(panel[:chunk], learner, levels, keep="summary").compute()
        found, wall, cpu = timed(lambda: dpc.replay_panel(panel, learner, levels, keep="summary").compute())
        return wall, cpu, float(found.coverage.mean())


def workers(name, series, chunk, count):
    """Replay from Zarr to Zarr, by processes of a cluster; each has compiled before."""
    import dpconformal as dpc
    from dpconformal.cli.panel import cluster
    from dpconformal.panel.storing import create_store, regions_of, write_regions

    learner, levels = learner_of(name)
    with (
        tempfile.TemporaryDirectory() as folder,
        contextlib.nullcontext(_stored(series, chunk, folder)) as panel,
        cluster(None, count) as client,
    ):
        result = dpc.replay_panel(panel, learner, levels)
        path = pathlib.Path(folder, "panel.zarr")

        def everything():
            create_store(result, path)
            done: list[int] = []
            write_regions(result, path, dict(enumerate(regions_of(result, ["series"]))), client, done.append)
            return done

        client.run(compiled, name, chunk)
        _, wall, _ = timed(everything, 1)
        return wall, float("nan"), _sum_of(folder)


def compiled(name, chunk):
    """Replay one chunk in this process."""
    import dask
    import jax
    import xarray as xr

    import dpconformal as dpc

    with dask.config.set(scheduler="synchronous"), jax.enable_x64(True):
        learner, levels = learner_of(name)
        panel = xr.DataArray(scores(chunk), dims=["series", "time"]).chunk(series=chunk)
        dpc.replay_panel(panel, learner, levels).compute()


def stream(_, scores_in_all, chunk):
    """Fit a belief to one long stream."""
    import dask.array as da

    import dpconformal as dpc

    numbers = da.random.default_rng(0).random(scores_in_all, chunks=chunk)
    dpc.fit_belief(numbers[:chunk])
    base = _peak()
    state, wall, cpu = timed(lambda: dpc.fit_belief(numbers), 1)
    _, drawing, _ = timed(lambda: numbers.max().compute(), 1)
    return wall, cpu, int(state.seen), _peak() - base, drawing


def _stored(series, chunk, folder):
    import xarray as xr

    import dpconformal as dpc

    array = xr.DataArray(scores(series), dims=["series", "time"], name="score")
    array.chunk(series=chunk).to_zarr(f"{folder}/scores.zarr", zarr_format=2)
    opened = dpc.panel.open_panel(f"{folder}/scores.zarr")
    return opened.chunk(series=chunk)


def _sum_of(folder):
    import xarray as xr

    return checksum(xr.open_zarr(f"{folder}/panel.zarr").thresholds.values)


def _peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def main():
    """Run every way, and print a table."""
    series = int(sys.argv[1]) if len(sys.argv) > 1 else 100_000
    ways = [
        ("plain", 0),
        ("memory", 0),
        ("memory", 2500),
        ("disk", 1000),
        ("disk", 2500),
        ("disk", 5000),
        ("summary", 2500),
    ]
    for name in ("exact", "quantized", "aci"):
        reference = None
        for way, chunk in ways[:3] if name == "aci" else ways:
            found = _apart(way, name, series, chunk)
            reference = reference or found
            ratio = found["wall"] / reference["wall"]
            same = found["result"] == reference["result"] if way != "summary" else "-"
            rate = series * ROUNDS / found["wall"] / 1e6
            busy = found["cpu"] / found["wall"]
            peak = found.get("work", found["peak"])
            print(
                f"{name:10} {way:8} chunk {chunk:5}: {found['wall']:6.1f} s, {rate:5.1f} M/s, {ratio:4.2f} × plain, "
                f"{busy:4.2f} cores, peak {found['peak']:7,.0f} MB (work {peak:6,.0f}), same: {same}",
                flush=True,
            )
    for name in ("exact", "quantized"):
        for count in (1, 2, 4):
            found = _apart("workers", name, series, 2500, count)
            rate = series * ROUNDS / found["wall"] / 1e6
            print(f"{name:10} workers {count}: {found['wall']:6.1f} s, {rate:5.1f} M/s", flush=True)
    for size in (10**7, 10**8, 10**9):
        found = _apart("stream", "quantized", size, 5_000_000)
        print(
            f"stream of {size:.0e}: {found['wall']:.1f} s, of which drawing the numbers {found['extra']:.1f} s; "
            f"peak {found['peak']:,.0f} MB (work {found['work']:,.0f})",
            flush=True,
        )


def _apart(*given):
    command = [sys.executable, __file__, "--one", *map(str, given)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(done.stderr[-3000:])
    return json.loads(done.stdout.splitlines()[-1])


def one(way, name, *numbers):
    """Run one way in this process."""
    import jax

    jax.config.update("jax_enable_x64", True)
    wall, cpu, result, *rest = globals()[way](name, *map(int, numbers))
    extra = dict(zip(("work", "extra", "peak"), rest, strict=False))
    print(json.dumps({"wall": wall, "cpu": cpu, "result": result, "peak": _peak(), **extra}))


if __name__ == "__main__":
    if sys.argv[1:2] == ["--one"]:
        one(*sys.argv[2:])
    else:
        main()
        shutil.rmtree("dask-worker-space", ignore_errors=True)
