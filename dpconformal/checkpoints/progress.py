"""How far long work has come, in a file: a few words and some arrays."""

import os
from typing import Any

import numpy as np

from dpconformal.checkpoints.atomic import write_whole
from dpconformal.checkpoints.container import pack, unpack


def note(path: str | os.PathLike[str], kind: str, about: dict[str, Any], arrays: dict[str, np.ndarray]) -> None:
    """Write down how far work has come, in the format and with the care of a checkpoint."""
    header = {"kind": kind, "about": about, "names": list(arrays)}
    write_whole(path, pack(header, [np.asarray(array) for array in arrays.values()]), follow=False)


def recall(path: str | os.PathLike[str], kind: str) -> tuple[dict[str, Any], dict[str, np.ndarray]] | None:
    """
    Read what was written down.

    Returns: What it is about, and the arrays; None if there is no such file.
    """
    if not os.path.lexists(path):
        return None
    header, arrays = unpack(path, follow=False)
    match header:
        case {"kind": found, "about": dict(about), "names": list(names)} if found == kind and len(names) == len(arrays):
            return about, dict(zip(map(str, names), arrays, strict=True))
    raise ValueError(f"{os.fspath(path)} is no note of {kind}")
