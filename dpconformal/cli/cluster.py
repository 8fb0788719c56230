"""Who works on a panel: a cluster that exists, or the cores of this machine."""

import contextlib
from collections.abc import Iterator
from typing import Any

from dpconformal.offline.workers import cores

SECONDS = 20  # to wait for a scheduler, and for its first worker


@contextlib.contextmanager
def cluster(scheduler: str | None, workers: int | None) -> Iterator[Any]:
    """
    Connect to a cluster, or start one of processes on this machine.

    Parameters
    ----------
    scheduler : str, optional
        Address of a Dask scheduler, such as ``tcp://10.0.0.1:8786``.
    workers : int, optional
        Processes to start; as many as there are cores by default.

    Yields
    ------
    distributed.Client
        The connection; what was started is stopped in the end.

    Raises
    ------
    ValueError
        If nobody answers at the address, or both are given.
    ImportError
        With what to install.
    """
    try:
        import dask
        from distributed import Client, LocalCluster
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
        return
    # Dask has workers give memory back to the system at once, and ask for it again for the next chunk: a third slower.
    keep_memory = {"distributed.nanny.pre-spawn-environ.MALLOC_TRIM_THRESHOLD_": 2**30}
    with (
        dask.config.set(keep_memory),
        LocalCluster(  # one task a process: a task keeps one core busy
            n_workers=cores() if workers is None else workers,
            threads_per_worker=1,
            dashboard_address="127.0.0.1:0",
            silence_logs=50,
        ) as own,
        Client(own) as client,
    ):
        yield client
