"""
What a replay takes of the machine: cores, memory, and a place on disk for compiled programs.

A replay that cannot fit is refused before anything is allocated, with the size that it needs and a way out.
"""

import contextlib
import itertools
import math
import os
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax.experimental.compilation_cache import compilation_cache as jax_cache

from dpconformal.learner import Learner, fresh_state

ALIGNMENT = 64  # bytes: what XLA asks of memory that it is to use as it is
BYTES = 2**24  # results of a block of sequences, at most
SMALL = 2**28  # bytes: what needs less is not checked, so that a short replay pays nothing for it

# Bytes of working memory a score, for learners that keep every one: its rank, the linked list and the record of the
# walk, all of which live at once; with a discount the rank alone, since the walk goes by segments. Measured as the
# growth of the peak (VmHWM) of fresh processes that replay at one level with keep="summary": 176 bytes a score for
# 1.2·10⁷ scores in float64, 146 for 4·10⁶ in float32, of which 12 and 8 are the state. Rounded down, so that what would
# just have fitted is not refused; what does not grow with the scores, below 200 MB, is left out.
WALKED, RANKED = 130, 16

_local = threading.local()  # `one`: whether this thread is to keep to one core


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


def allocate_aligned(shape: tuple[int, ...], dtype: Any) -> np.ndarray:
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


class TooLarge(MemoryError, ValueError):
    """
    The results of a replay do not fit into memory; nothing was allocated.

    Examples
    --------
    >>> import numpy as np, dpconformal as dpc
    >>> scores = np.broadcast_to(0.5, 10**13)  # one number, repeated: it takes no memory itself
    >>> try:
    ...     dpc.replay(dpc.Quantized(bins=100), scores, levels=[0.9])
    ... except dpc.TooLarge as error:
    ...     print("keep='summary'" in str(error))
    True
    """


def available() -> int | None:
    """
    Return how many bytes this process may still take, None where that is not known, as on systems other than Linux.

    It is the least of what the machine has free, what the process's control groups leave it, and what is left of its
    address space (``ulimit -v``).
    """
    found = [_field("/proc/meminfo", "MemAvailable:"), *_control_groups(), _address_space()]
    return min((size for size in found if size is not None), default=None)


def _field(path: str, name: str) -> int | None:
    """Read a line such as ``MemAvailable: 1024 kB``."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        for line in Path(path).read_text().splitlines():
            if line.startswith(name):
                return int(line.split()[1]) * 1024
    return None


def _control_groups(root: str = "/sys/fs/cgroup", listing: str = "/proc/self/cgroup") -> list[int | None]:
    """Read what the limits of both versions leave, of the process's own group and of those above it."""
    found: list[int | None] = []
    lines: list[str] = []
    with contextlib.suppress(OSError):
        lines = Path(listing).read_text().splitlines()
    for line in lines:
        _, controllers, path = [*line.split(":", 2), "", ""][:3]
        if controllers and "memory" not in controllers.split(","):
            continue
        base = Path(root) / "memory" if controllers else Path(root)
        # The first version of control groups names the controllers of a group, and has files of other names.
        first_version = ("memory.limit_in_bytes", "memory.usage_in_bytes")
        limit, used = first_version if controllers else ("memory.max", "memory.current")
        own = base / path.strip("/")
        # Within a container the path may be that of the host, and only the root be there.
        for folder in {base, own, *(parent for parent in own.parents if base in parent.parents)}:
            with contextlib.suppress(OSError, ValueError):  # "max" is no number: no limit
                found.append(max(int((folder / limit).read_text()) - int((folder / used).read_text()), 0))
    return found


def _address_space() -> int | None:
    """Return what is left of the process's address space; None where it has no limit."""
    with contextlib.suppress(ImportError, OSError, ValueError):
        import resource

        limit = resource.getrlimit(resource.RLIMIT_AS)[0]
        if limit != resource.RLIM_INFINITY:
            return max(limit - (_field("/proc/self/status", "VmSize:") or 0), 0)
    return None


def check_memory(learner: Learner, shape: tuple[int, ...], levels: Any, dtype: Any, keep: str) -> None:
    """Refuse a replay whose result and state cannot fit."""
    size, count, asked = np.dtype(dtype).itemsize, math.prod(shape), 1
    with contextlib.suppress(ValueError, IndexError):  # what is wrong with them is said later
        asked = np.shape(levels)[-1]
    kept = count * (asked + 1) * size if keep == "all" else 0  # a row of thresholds beside each score
    # A state holds a value and an arrival of each score, at most.
    if not shape or kept + count * (WALKED + 2 * size) < SMALL:
        return
    state, work = _state_and_work(learner, shape, dtype)
    needed = int(kept + state + work)
    room = available() if needed >= SMALL else None
    if room is None or needed <= room:
        return
    sizes = f"{in_units(needed)} are needed, and {in_units(room)} are free"
    if state + work > room:
        way = "pass dpconformal.Quantized, whose state does not grow, with keep='summary'; or replay fewer scores"
        raise TooLarge(f"scores has shape {shape}: the state of {type(learner).__name__} cannot fit; {sizes}; {way}")
    way = (
        "pass keep='summary' for totals alone, or replay in blocks, each carrying on from the state of the one before "
        "(replay(learner, block, levels, state=run.state))"
    )
    raise TooLarge(f"scores has shape {shape}, with {asked} levels a round: the thresholds cannot fit; {sizes}; {way}")


def _state_and_work(learner: Learner, shape: tuple[int, ...], dtype: Any) -> tuple[float, float]:
    """Estimate the bytes of the final state and of working memory."""
    sequences, rounds = math.prod(shape[:-1]), shape[-1]

    def bytes_of(length: int) -> int:
        leaves = jax.tree.leaves(jax.eval_shape(lambda: fresh_state(learner, length, dtype)))
        return sum(math.prod(leaf.shape) * getattr(leaf.dtype, "itemsize", 8) for leaf in leaves)

    few = min(rounds, 2**20)  # a learner may refuse to be made for all of them
    growth = bytes_of(few) - bytes_of(0)
    remembers = growth >= few * np.dtype(dtype).itemsize  # a value a round, at least
    state = float((growth * rounds / few if remembers else bytes_of(rounds)) * sequences)
    each = WALKED if getattr(learner, "discount", None) is None else RANKED
    return state, float(each * rounds) if remembers else 0.0


def in_units(size: int | float) -> str:
    """Write a number of bytes to be read."""
    for unit in ("bytes", "kB", "MB", "GB"):
        if size < 1000:
            return f"{size:.3g} {unit}"
        size /= 1000
    return f"{size:.3g} TB" if size < 1000 else f"{size:,.0f} TB"


def compilation_cache(directory: str | os.PathLike[str] | None = None) -> Path:
    """
    Keep compiled programs on disk, so that later processes need not compile them again.

    Nothing in this package calls it for you: it sets JAX's own options, for every program of the process.

    Parameters
    ----------
    directory : path, optional
        Where to keep them; made if it does not exist. By default ``dpconformal`` under ``$XDG_CACHE_HOME``, or under
        ``~/.cache``. Whoever can write there can make your process run code: choose a directory of your own.

    Returns
    -------
    Path
        The directory.

    Raises
    ------
    ValueError
        If it cannot be written to.

    Examples
    --------
    >>> import tempfile
    >>> compilation_cache(tempfile.mkdtemp()).is_dir()  # doctest: +SKIP
    True
    """
    root = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    path = (Path(directory) if directory is not None else root / "dpconformal").expanduser()
    try:
        path.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError as error:
        raise ValueError(f"directory = {str(path)!r} cannot be made: {error}") from error
    if not os.access(path, os.W_OK):
        raise ValueError(f"directory = {str(path)!r} cannot be written to: choose another")
    jax.config.update("jax_compilation_cache_dir", str(path))
    # Ours are small programs and many: keep them all.
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
    jax_cache.reset_cache()  # JAX looks at the directory once, at its first compilation
    return path
