"""Memory: refuse a replay that cannot fit before anything is allocated, with the size it needs and a way out."""

import contextlib
import math
from pathlib import Path
from typing import Any

import jax
import numpy as np

from dpconformal.learner import fresh_state

SMALL = 2**28  # bytes: what needs less is not checked, so that a short replay pays nothing for it

# Bytes of working memory a score, for learners that keep every one: its rank, the chain and the record of the walk, all
# of which live at once; with a discount the rank alone, since the walk goes by short stretches. Measured as the growth
# of the peak (VmHWM) of fresh processes that replay at one level with keep="summary": 176 bytes a score for 1.2·10⁷
# scores in float64, 146 for 4·10⁶ in float32, of which 12 and 8 are the state. Rounded down, so that what would just
# have fitted is not refused; what does not grow with the scores, below 200 MB, is left out.
WALKED, RANKED = 130, 16


class TooLarge(MemoryError, ValueError):
    """
    What a replay would leave behind does not fit into memory; nothing was allocated.

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
    Tell how much memory this process may still take.

    Returns: Bytes: the least of what the machine has free, what the process's control groups leave it, and what is left
    of its address space (``ulimit -v``). None where none of these is known, as on systems other than Linux.
    """
    found = [_machine(), *_control_groups(), _address_space()]
    return min((size for size in found if size is not None), default=None)


def _machine() -> int | None:
    return _field("/proc/meminfo", "MemAvailable:")


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
        base = Path(root) if not controllers else Path(root) / "memory"
        limit, used = ("memory.max", "memory.current") if not controllers else _VERSION_1
        own = base / path.strip("/")
        # Within a container the path may be that of the host, and only the root be there.
        for folder in {base, own, *(parent for parent in own.parents if base in parent.parents)}:
            with contextlib.suppress(OSError, ValueError):  # "max" is no number: no limit
                found.append(max(int((folder / limit).read_text()) - int((folder / used).read_text()), 0))
    return found


_VERSION_1 = ("memory.limit_in_bytes", "memory.usage_in_bytes")


def _address_space() -> int | None:
    with contextlib.suppress(ImportError, OSError, ValueError):
        import resource

        limit = resource.getrlimit(resource.RLIMIT_AS)[0]
        if limit != resource.RLIM_INFINITY:
            return max(limit - (_field("/proc/self/status", "VmSize:") or 0), 0)
    return None


def check_memory(learner: Any, shape: tuple[int, ...], levels: Any, dtype: Any, keep: str) -> None:
    """Refuse a replay whose result and state cannot fit."""
    size, count, asked = np.dtype(dtype).itemsize, math.prod(shape), 1
    with contextlib.suppress(ValueError, IndexError):  # what is wrong with them is said later
        asked = np.shape(levels)[-1]
    kept = count * (asked + 1) * size if keep == "all" else 0  # a row of thresholds beside each score
    if kept + count * (WALKED + 2 * size) < SMALL:  # a state holds a value and an arrival of each score, at most
        return
    if not shape:
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


def _state_and_work(learner: Any, shape: tuple[int, ...], dtype: Any) -> tuple[float, float]:
    """Estimate bytes of the final state and of working memory from the shapes of a fresh state, without making one."""
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
    for unit in ("bytes", "kB", "MB", "GB", "TB"):
        if size < 1000 or unit == "TB":
            return f"{size:.3g} {unit}" if size < 1000 else f"{size:,.0f} {unit}"
        size /= 1000
    raise AssertionError
