"""``dpconformal panel``: a learner over every series of a panel, in threads, in processes, or on a cluster."""

import contextlib
import secrets
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import typer

import dpconformal as dpc
from dpconformal.checkpoints.container import write_whole
from dpconformal.cli import options
from dpconformal.cli.jobs import hyperparameters_of, resumable_job
from dpconformal.display import track
from dpconformal.display.terminal import Terminal, table_of_series
from dpconformal.engine.machine import cores
from dpconformal.panel.layouts import open_arrays
from dpconformal.panel.storing import (
    check_free,
    counts_of,
    create_store,
    describe_files,
    dimension_of_time,
    is_long,
    open_panel,
    rechunk,
    regions_of,
    save_panel,
    write_regions,
)

if TYPE_CHECKING:
    import xarray as xr
    from distributed import Client, LocalCluster

_CHUNK = 2**23  # thresholds of a chunk, about: 64 MB
SECONDS = 20  # to wait for a scheduler, and for its first worker
# Whoever reaches a port of Dask's can run code here. Between processes it asks for a certificate that is made for the
# run and is in no file; its pages, which ask for none, are left out.
PRIVATE = {
    "distributed.scheduler.http.routes": [],
    "distributed.worker.http.routes": [],
    # Dask has workers give memory back to the system at once, and ask for it again for the next chunk: a third slower.
    "distributed.nanny.pre-spawn-environ.MALLOC_TRIM_THRESHOLD_": 2**30,
}


@options.expand_groups
def panel(
    *,
    scores: Annotated[
        str, typer.Argument(metavar="SCORES", help="Folder of Parquet files, Zarr store, or NetCDF file.")
    ],
    id: Annotated[str, typer.Option("--id", help="Column that says which series a row belongs to.")] = "series",
    time: Annotated[str, typer.Option(help="Column of the time; in Zarr and NetCDF, its dimension.")] = "time",
    score: Annotated[str, typer.Option(help="Column of the scores; in Zarr and NetCDF, their variable.")] = "score",
    missing: Annotated[
        bool, typer.Option("--missing", help="In Zarr and NetCDF, NaN is a score that is missing, not an error.")
    ] = False,
    learner: Annotated[str, typer.Option(help=f"One of {options.LEARNERS}.")] = "exact",
    common: options.LearnerOptions,
    keep: Annotated[str, typer.Option(help="all: thresholds and metrics; summary: metrics only.")] = "all",
    scheduler: Annotated[
        str | None, typer.Option(help="Address of a Dask scheduler.", show_default="none: this machine")
    ] = None,
    workers: Annotated[int | None, typer.Option(help="Processes to start.", show_default="threads, one a core")] = None,
    resume: options.Resume = False,
    out: Annotated[Path, typer.Option(help="What to write: .zarr, .nc, or a folder for Parquet.")] = Path("panel.zarr"),
) -> None:
    """
    Run a learner over every series of a panel, chunk by chunk, in threads, processes or on many machines.

    A worker process that dies is replaced by another; a run that is interrupted goes on with --resume. On several
    machines, SCORES and --out must be places that all of them see. Whoever reaches the scheduler can run code as you.

    Example: dpconformal panel scores/ --id store --time day --score residual --levels 0.5,0.9 --out panel.zarr
    """
    options.use_float64()
    console = Terminal()
    levels, settings = common.read_levels(), common.settings()
    if keep not in ("all", "summary"):
        raise ValueError(f"--keep {keep}: write all or summary")
    made = options.make_learner(learner, levels, settings)
    options.check_ranges({learner: made}, common.ends)
    source, out = Path(scores), out.absolute()
    if not source.exists():
        raise ValueError(f"{scores} does not exist")
    if missing and is_long(source):
        raise ValueError("--missing: a score that is missing has no row in a table; leave it out")
    if keep == "summary" and out.suffix not in (".zarr", ".nc"):
        raise ValueError(f"--out {out.name}: a folder of Parquet tables is for thresholds; write .zarr or .nc")
    check_free(out)
    job: dict[str, Any] = {"command": "panel", "scores": {"name": scores, "files": describe_files(source)}}
    job |= {"--id, --time, --score": [id, time, score], "--missing": missing, "--levels": levels}
    job |= {"--learner": repr(made), "hyperparameters": hyperparameters_of(made), "--keep": keep}
    beside = out.with_name(f".{out.name}")  # what is being written is not to be taken for a result
    with resumable_job(beside, job, resume, hidden=True) as work, cluster(scheduler, workers) as client:
        size = max(_CHUNK // len(levels), 1)
        array = _open_arrays(source, id, time, score, size, work, client)
        dim = dimension_of_time(array, time)
        mask = array.isnull() if missing or is_long(source) else None
        result = dpc.replay_panel(array, made, levels, dim=dim, mask=mask, keep=keep)
        place = work / f"panel-{_name_of_run(work)}.zarr"
        _write_missing_chunks(result, [str(name) for name in array.dims if name != dim], place, client, "replaying")
        stored = open_arrays(place)
        series, rounds = counts_of(array, dim)
        title = f"{learner} on {source.name}: {series:,} series of up to {rounds:,} rounds"
        console.print(table_of_series(title, stored["level"].values, _summarise_series(stored)))
        _move_result(stored, place, out, array if out.suffix == "" else None)
    with contextlib.suppress(OSError):
        beside.rmdir()  # unless something else is in it
    console.say(f"written to {out}")


def _summarise_series(stored: "xr.Dataset") -> Sequence[np.ndarray]:
    """Summarise each level over all series: the columns of :func:`table_of_series`, each (A,)."""
    import dask

    coverage, over = stored["coverage"], [name for name in stored["coverage"].dims if name != "level"]
    means = [stored[name].mean(over) for name in ("mean_threshold", "loss")]
    columns = (coverage.mean(over), coverage.min(over), coverage.max(over), *means, stored["regret"].max(over))
    return [column.values for column in dask.compute(*columns)]


def _open_arrays(
    source: Path, id: str, time: str, score: str, size: int, work: Path, client: "Client | None"
) -> "xr.DataArray":
    """Open arrays as they are; of a long table make an array first, which later passes and --resume go back to."""
    if not is_long(source):
        array = open_panel(source, id, time, score, size)
        return array if array.ndim > 1 else array.expand_dims(id)
    place, whole = work / f"scores-{_name_of_run(work)}.zarr", work / "scores.whole"
    if not whole.exists():
        array = open_panel(source, id, time, score, size)
        _write_missing_chunks(array.to_dataset(name=score), [id], place, client, "reading")
        whole.touch()
    return rechunk(open_arrays(place)[score], "round", size)


def _write_missing_chunks(data: "xr.Dataset", dims: list[str], place: Path, client: "Client | None", what: str) -> None:
    """Write the chunks that are not in the store yet, and note each that is."""
    notes, done = place.with_suffix(".done"), []
    if notes.exists():
        done = [line for line in notes.read_text().splitlines(keepends=True) if line.endswith("\n")]
    else:
        create_store(data, place)
    write_whole(notes, ["".join(done).encode()])  # without half a line
    regions = dict(enumerate(regions_of(data, dims)))
    left = {number: region for number, region in regions.items() if f"{number}\n" not in done}
    with notes.open("a") as file:
        bar: Any = track(range(len(left)), what)
        next(bar, None)  # it shows

        def written(number: int) -> None:
            file.write(f"{number}\n")
            file.flush()
            next(bar, None)

        with contextlib.closing(bar):
            write_regions(data, place, left, client, written)


def _name_of_run(work: Path) -> str:
    """Return a name of this run's own: a task of an earlier one, on a cluster that lives on, may still write to its."""
    file = work / "token"
    if not file.exists():
        write_whole(file, [secrets.token_hex(8).encode()])
    return file.read_text()


def _move_result(stored: "xr.Dataset", place: Path, out: Path, scores: "xr.DataArray | None") -> None:
    """Move the finished store, or a copy in the format that was asked for, to its place."""
    if out.suffix == ".zarr":
        place.rename(out)
        return
    part = place.with_name(f"result{out.suffix}")
    shutil.rmtree(part) if part.is_dir() else part.unlink(missing_ok=True)
    save_panel(stored, part, scores)
    if out.is_dir():
        out.rmdir()  # an empty one
    part.rename(out)


@contextlib.contextmanager
def cluster(scheduler: str | None, workers: int | None) -> Iterator["Client | None"]:
    """Connect to a cluster, or start one of processes on this machine; without either, use threads and yield None."""
    try:
        import dask
        from distributed import Client
    except ImportError as error:
        raise ImportError("panels need Dask: pip install '.[panel]' in a clone of dpconformal") from error
    if scheduler is not None and workers is not None:
        raise ValueError(f"--workers {workers} means nothing beside --scheduler {scheduler}: leave one out")
    if workers is not None and workers < 1:
        raise ValueError(f"--workers {workers}: at least 1")
    if scheduler is not None:
        try:
            client = Client(scheduler, timeout=SECONDS, set_as_default=True)
            client.wait_for_workers(1, timeout=SECONDS)
        except (OSError, ValueError) as error:
            raise ValueError(
                f"--scheduler {scheduler}: no scheduler with a worker answers within {SECONDS} s ({error or 'timeout'})"
            ) from None
        with client:
            yield client
    elif workers is None:
        with ThreadPoolExecutor(cores()) as pool, dask.config.set(scheduler="threads", pool=pool):
            yield None
    else:
        with local_cluster(workers) as own, Client(own) as client:
            yield client


@contextlib.contextmanager
def local_cluster(workers: int) -> Iterator["LocalCluster"]:
    """Start a cluster of processes on this machine, which lets in nobody but its own clients."""
    import dask
    from distributed import LocalCluster, Security

    try:
        security = Security.temporary()
    except ImportError as error:
        raise ImportError(
            "--workers needs the package cryptography: pip install '.[panel]' in a clone of dpconformal"
        ) from error
    with (
        dask.config.set(PRIVATE),
        tempfile.TemporaryDirectory() as folder,  # of this user alone: what workers spill to it, they unpickle
        LocalCluster(
            n_workers=workers,
            threads_per_worker=1,  # a task keeps one core busy
            host="127.0.0.1",
            security=security,
            local_directory=folder,
            dashboard_address="127.0.0.1:0",
            scheduler_kwargs={"dashboard": False},
            silence_logs=50,
        ) as own,
    ):
        yield own
