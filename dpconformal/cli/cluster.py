"""Who works on a panel: threads of this process, processes of this machine, or a cluster that exists."""

import contextlib
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from dpconformal.engine.threads import cores

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
