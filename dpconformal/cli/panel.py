"""Who works on a panel: threads of this process, processes of this machine, or a cluster that exists."""

import contextlib
import secrets
import shutil
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Annotated, Any

import typer

import dpconformal as dpc
from dpconformal.checkpoints.container import write_whole
from dpconformal.cli import options
from dpconformal.cli.options import make_learners
from dpconformal.cli.resumable_job import numbers_of, resumable_job
from dpconformal.display.terminal import Terminal, number, table
from dpconformal.engine.kernel import cores
from dpconformal.experiments.runs import track
from dpconformal.panel.layouts import open_arrays
from dpconformal.panel.storing import (
    begin,
    check_free,
    counts_of,
    described,
    dimension_of_time,
    in_chunks,
    is_long,
    open_panel,
    regions_of,
    save_panel,
    write_regions,
)
from dpconformal.validation import format_level

SECONDS = 20  # to wait for a scheduler, and for its first worker
# Whoever reaches a port of Dask's can run code here. Between processes it asks for a certificate that is made for the
# run and is in no file; its pages, which ask for none, are left out.
PRIVATE = {
    "distributed.scheduler.http.routes": [],
    "distributed.worker.http.routes": [],
    # Dask has workers give memory back to the system at once, and ask for it again for the next chunk: a third slower.
    "distributed.nanny.pre-spawn-environ.MALLOC_TRIM_THRESHOLD_": 2**30,
}


@contextlib.contextmanager
def cluster(scheduler: str | None, workers: int | None) -> Iterator[Any]:
    """
    Have Dask work in threads of this process, or connect to a cluster, or start one of processes on this machine.

    Returns: The connection; None: threads, as many as cores, and no port. What was started is stopped in the end.
    """
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
        with processes(workers) as own, Client(own) as client:
            yield client


@contextlib.contextmanager
def processes(workers: int) -> Iterator[Any]:
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


_CHUNK = 2**23  # thresholds of a chunk, about: 64 MB


def panel(
    scores: Annotated[
        str, typer.Argument(metavar="SCORES", help="Folder of Parquet files, Zarr store, or NetCDF file.")
    ],
    id: Annotated[str, typer.Option("--id", help="Column that says which series a row belongs to.")] = "series",
    time: Annotated[str, typer.Option(help="Column of the time; in Zarr and NetCDF, its dimension.")] = "time",
    score: Annotated[str, typer.Option(help="Column of the scores; in Zarr and NetCDF, their variable.")] = "score",
    missing: Annotated[
        bool, typer.Option("--missing", help="In Zarr and NetCDF, NaN is a score that is missing, not an error.")
    ] = False,
    levels: options.Levels = "0.5,0.8,0.9,0.95",
    learner: Annotated[str, typer.Option(help=f"One of {options.LEARNERS}.")] = "exact",
    ends: options.Range = None,
    prior: options.Prior = None,
    bins: options.Bins = None,
    discount: options.Discount = None,
    concentration: options.Concentration = None,
    window: options.Window = None,
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
    asked = options.read_levels(levels)
    said = options.settings(ends, prior, bins, discount, concentration, window)
    if "," in learner:
        raise ValueError(f"--learner {learner}: one at a time")
    if keep not in ("all", "summary"):
        raise ValueError(f"--keep {keep}: write all or summary")
    made = make_learners(learner, asked, said)[learner]
    options.ranges({learner: made}, ends)
    source, out = Path(scores), out.absolute()
    if not source.exists():
        raise ValueError(f"{scores} does not exist")
    if missing and is_long(source):
        raise ValueError("--missing: a score that is missing has no row in a table; leave it out")
    if keep == "summary" and out.suffix not in (".zarr", ".nc"):
        raise ValueError(f"--out {out.name}: a folder of Parquet tables is for thresholds; write .zarr or .nc")
    check_free(out)
    job = {
        "command": "panel",
        "scores": {"name": scores, "files": described(source)},
        "--id, --time, --score": [id, time, score],
        "--missing": missing,
        "--levels": asked,
        "--learner": repr(made),
        "hyperparameters": numbers_of(made),
        "--keep": keep,
    }
    beside = out.with_name(f".{out.name}")  # what is being written is not to be taken for a result
    with resumable_job(beside, job, resume, hidden=True) as work, cluster(scheduler, workers) as client:
        size = max(_CHUNK // len(asked), 1)
        array = _staged(source, id, time, score, size, work, client)
        dim = dimension_of_time(array, time)
        mask = array.isnull() if missing or is_long(source) else None
        result = dpc.replay_panel(array, made, asked, dim=dim, mask=mask, keep=keep)
        place = work / f"panel-{_token(work)}.zarr"
        _written(result, [str(name) for name in array.dims if name != dim], place, client, "replaying")
        stored = open_arrays(place)
        console.print(_shown(stored, learner, source.name, *counts_of(array, dim)))
        _finish(stored, place, out, array if out.suffix == "" else None)
    with contextlib.suppress(OSError):
        beside.rmdir()  # unless something else is in it
    console.print(f"written to {out}", highlight=False, markup=False, soft_wrap=True)


def _staged(source: Path, id: str, time: str, score: str, size: int, work: Path, client: Any) -> Any:
    """Open arrays as they are; of a long table make an array first, which later passes and --resume go back to."""
    if not is_long(source):
        array = open_panel(source, id, time, score, size)
        return array if array.ndim > 1 else array.expand_dims(id)
    place, whole = work / f"scores-{_token(work)}.zarr", work / "scores.whole"
    if not whole.exists():
        array = open_panel(source, id, time, score, size)
        _written(array.to_dataset(name=score), [id], place, client, "reading")
        whole.touch()
    return in_chunks(open_arrays(place)[score], "round", size)


def _written(data: Any, dims: list[str], place: Path, client: Any, what: str) -> None:
    """Write what is not written yet, and note what is."""
    notes, done = place.with_suffix(".done"), []
    if notes.exists():
        done = [line for line in notes.read_text().splitlines(keepends=True) if line.endswith("\n")]
    else:
        begin(data, place)
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


def _token(work: Path) -> str:
    """Return a name of this run's own: a task of an earlier one, on a cluster that lives on, may still write to its."""
    file = work / "token"
    if not file.exists():
        write_whole(file, [secrets.token_hex(8).encode()])
    return file.read_text()


def _finish(stored: Any, place: Path, out: Path, scores: Any) -> None:
    if out.suffix == ".zarr":
        place.rename(out)
        return
    part = place.with_name(f"result{out.suffix}")
    shutil.rmtree(part) if part.is_dir() else part.unlink(missing_ok=True)
    save_panel(stored, part, scores)
    if out.is_dir():
        out.rmdir()  # an empty one
    part.rename(out)


def _shown(stored: Any, learner: str, source: str, series: int, rounds: int) -> Any:
    heads = ("level", "coverage", "lowest", "highest", "mean threshold", "loss", "highest regret")
    over = [name for name in stored["coverage"].dims if name != "level"]
    columns = (
        stored["coverage"].mean(over),
        stored["coverage"].min(over),
        stored["coverage"].max(over),
        stored["mean_threshold"].mean(over),
        stored["loss"].mean(over),
        stored["regret"].max(over),
    )
    import dask

    found = dask.compute(*columns)
    rows = [
        [format_level(level), *(number(float(column[k])) for column in found)]
        for k, level in enumerate(stored["level"].values)
    ]
    return table(f"{learner} on {source}: {series:,} series of up to {rounds:,} rounds", heads, rows, left=0)
