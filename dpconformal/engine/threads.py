"""All cores at work: XLA runs one sequential loop per call, so several calls run in threads."""

import contextlib
import itertools
import os
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import jax
import numpy as np

ALIGNMENT = 64  # bytes: what XLA asks of memory that it is to use as it is
BYTES = 2**24  # results of a block of sequences, at most
_local = threading.local()


@contextlib.contextmanager
def on_one_core() -> Iterator[None]:
    """Leave the other cores alone, for a task of a scheduler that keeps them busy with other tasks."""
    before = getattr(_local, "one", False)
    _local.one = True
    try:
        yield
    finally:
        _local.one = before


def cores() -> int:
    """Count the cores this thread may keep busy: all that the process has, or the one of :func:`on_one_core`."""
    if getattr(_local, "one", False):
        return 1
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def in_threads(tasks: Iterable[Callable[[], Any]]) -> list[Any]:
    """Run tasks side by side, one per core at a time."""
    wide = bool(jax.config.read("jax_enable_x64"))  # may hold for this thread only

    def run(task: Callable[[], Any]) -> Any:
        with jax.enable_x64(wide):
            return task()

    results: list[Any] = []
    waiting: deque[Future[Any]] = deque()
    tasks = iter(tasks)
    ahead = list(itertools.islice(tasks, 2))
    if len(ahead) == 1:
        return [ahead[0]()]
    if cores() == 1:
        return [task() for task in itertools.chain(ahead, tasks)]
    with ThreadPoolExecutor(cores()) as pool:
        for task in itertools.chain(ahead, tasks):
            waiting.append(pool.submit(run, task))
            if len(waiting) > cores():  # what the tasks to come need is made when their turn comes
                results.append(waiting.popleft().result())
        return results + [future.result() for future in waiting]


def aligned(shape: tuple[int, ...], dtype: Any) -> np.ndarray:
    """Allocate an array that JAX can take over without a copy."""
    size = int(np.prod(shape)) * np.dtype(dtype).itemsize
    raw = np.empty(size + ALIGNMENT, np.uint8)
    start = -raw.ctypes.data % ALIGNMENT
    return raw[start : start + size].view(dtype).reshape(shape)


def blocks_of_sequences(count: int, bytes_each: int) -> list[slice]:
    """Divide a batch into blocks of one size, enough of them for every core, small enough for memory."""
    parts = -(-count * bytes_each // BYTES)
    parts = min(-(-max(parts, 1) // cores()) * cores(), count)  # as many for each core
    size = max(-(-count // max(parts, 1)), 1)
    return [slice(start, start + size) for start in range(0, count, size)]


def take_block(tree: Any, block: slice) -> Any:
    """
    Take a block of sequences out of a batch on the host.

    ``block``: Which; where it reaches beyond the end, the last sequence is repeated, so that all blocks have one shape.
    """

    def cut(leaf: Any) -> np.ndarray:
        piece = np.asarray(leaf)[block]
        missing = block.stop - block.start - piece.shape[0]
        return np.concatenate([piece, np.repeat(piece[-1:], missing, axis=0)]) if missing else piece

    return jax.tree.map(cut, tree)
