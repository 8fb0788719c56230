"""Notes of how far long work has come, and results of its steps, so that an interrupted run repeats none."""

import hashlib
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from dpconformal.checkpoints.container import pack, unpack, write_whole


class Journal:
    """A folder with the results of steps; ``about`` is what they depend on, and steps of other work are refused."""

    def __init__(self, folder: str | os.PathLike[str] | None, about: dict[str, Any]) -> None:
        self.folder = None if folder is None else Path(folder)
        self.about = json.loads(json.dumps(about))
        if self.folder is not None:
            self.folder.mkdir(parents=True, exist_ok=True)

    def once(self, name: str, work: Callable[..., tuple[Any, ...]], *given: Any) -> tuple[np.ndarray, ...]:
        """Do a step, or recall its result."""
        if self.folder is None:
            return tuple(np.asarray(part) for part in work(*given))
        file = self.folder / f"step-{hashlib.sha256(name.encode()).hexdigest()[:16]}.dpc"
        about, kept = {"name": name, "of": self.about}, recall(file, "step")
        if kept is None:
            parts = {str(k): np.asarray(part) for k, part in enumerate(work(*given))}
            note(file, "step", about, parts)
            return tuple(parts.values())
        if kept[0] != about:
            raise ValueError(
                f"{file} is a step of other work, {kept[0].get('of')} in the place of {self.about}: choose another "
                "folder"
            )
        return tuple(kept[1].values())


def note(path: str | os.PathLike[str], kind: str, about: dict[str, Any], arrays: dict[str, np.ndarray]) -> None:
    """Write a note of how far work has come, in the format of a checkpoint."""
    header = {"kind": kind, "about": about, "names": list(arrays)}
    write_whole(path, pack(header, [np.asarray(array) for array in arrays.values()]), follow=False)


def recall(path: str | os.PathLike[str], kind: str) -> tuple[dict[str, Any], dict[str, np.ndarray]] | None:
    """Read a note and its arrays; None if there is no such file."""
    if not os.path.lexists(path):
        return None
    header, arrays = unpack(path, follow=False)
    match header:
        case {"kind": found, "about": dict(about), "names": list(names)} if found == kind and len(names) == len(arrays):
            return about, dict(zip(map(str, names), arrays, strict=True))
    raise ValueError(f"{os.fspath(path)} is no note of {kind}")
