"""Scores on disk as plain numbers, series by series: read once, then mapped, so that memory does not limit them."""

import json
import os
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import BinaryIO, NamedTuple

import numpy as np

from dpconformal.checkpoints.container import bring_to_disk, write_whole
from dpconformal.checkpoints.journal import note, recall
from dpconformal.files.source import Block, Source

_EVERY = 2.0  # seconds between notes of how far the reading has come
_ROWS = 2**20  # that are sorted into series at a time


class Recorded(NamedTuple):
    """Scores of one file."""

    source: str  # the file, as errors call it
    names: list[str]  # series, in order of appearance; one without a name, ``""``, if the file holds just one
    scores: Sequence[np.ndarray]  # (T_k,) each, in the order of the file; in memory, or mapped from a disk

    @property
    def rounds(self) -> int:
        """Length of the longest series."""
        return max(len(series) for series in self.scores)

    @property
    def total(self) -> int:
        """Length of all series together."""
        return sum(len(series) for series in self.scores)


def spool(source: Source, folder: str | os.PathLike[str], check: Callable[[Source, Block], None]) -> Recorded:
    r"""
    Copy the scores of a file to a folder, or find them there.

    ``folder``: Where to keep them. What an interrupted call with the same source left there is carried on with.
    """
    folder = Path(folder)
    done = recall(folder / "scores.dpc", "scores")
    if done is None:
        _copy(source, folder, check)
        done = recall(folder / "scores.dpc", "scores")
    assert done is not None
    lengths = done[1]["lengths"]
    names = json.loads((folder / "names.json").read_text(encoding="utf-8")) if done[0]["series"] else [""]
    every = np.memmap(folder / done[0]["file"], "<f8", "r", shape=(int(lengths.sum()),))
    ends = np.cumsum(lengths)
    return Recorded(source.name, names, [every[end - n : end] for end, n in zip(ends, lengths, strict=True)])


def _copy(source: Source, folder: Path, check: Callable[[Source, Block], None]) -> None:
    file, journal = folder / "rows.f8", folder / "reading.dpc"
    found = recall(journal, "reading")
    kept = found is not None and file.exists() and file.stat().st_size >= 8 * found[0]["rows"]
    where, row = (found[0]["where"], found[0]["rows"]) if found and kept else (source.start, 0)
    names, counts, noted = Names(), np.zeros(0, np.int64), time.monotonic()
    with _opened(file, 8 * row) as rows, _opened(folder / "codes.i4", 0) as codes:
        for block in source.blocks(where, row):
            check(source, block)
            rows.write(block.scores.astype("<f8").data)
            row = block.row + block.scores.size
            if block.codes is not None:
                numbers = names.codes(block)
                codes.write(numbers.astype("<i4").data)
                counts = np.bincount(numbers, minlength=len(names.all)) + np.pad(
                    counts, (0, len(names.all) - counts.size)
                )
            # With several series the reading begins anew: their numbering is in memory only. So is what was seen of
            # other columns.
            elif not block.others and time.monotonic() - noted > _EVERY:
                bring_to_disk(rows)
                note(journal, "reading", {"where": block.after, "rows": row}, {})
                noted = time.monotonic()
        bring_to_disk(rows)
    several = counts.size > 0
    if several:
        write_whole(folder / "names.json", [json.dumps(names.all).encode()])
        _sort(folder, row, counts)
    about = {"series": several, "file": "scores.f8" if several else file.name}
    note(folder / "scores.dpc", "scores", about, {"lengths": counts if several else np.array([row])})
    for used in (folder / "codes.i4", journal, *([file] if several else [])):
        used.unlink(missing_ok=True)


def _opened(file: Path, size: int) -> BinaryIO:
    """Open a file to write on from a size that it had."""
    opened: BinaryIO = file.open("r+b" if file.exists() else "w+b")
    opened.truncate(size)
    opened.seek(size)
    return opened


def _sort(folder: Path, rows: int, counts: np.ndarray) -> None:
    """Put the scores of each series together, in blocks: a counting sort from one file to another."""
    values, codes = np.memmap(folder / "rows.f8", "<f8", "r"), np.memmap(folder / "codes.i4", "<i4", "r")
    target = folder / "scores.f8"
    with target.open("w+b") as file:
        for start in range(0, rows, _ROWS):  # to run out of disk later, under a mapped file, would end the process
            file.write(bytes(8 * min(_ROWS, rows - start)))
        file.flush()
        mapped = np.memmap(file, "<f8", "r+", shape=(rows,))
        begins = np.cumsum(counts) - counts
        for start in range(0, rows, _ROWS):
            here = slice(start, start + _ROWS)
            order = np.argsort(codes[here], kind="stable")
            own = codes[here][order]
            rank = np.arange(own.size) - np.searchsorted(own, own)  # among those of its series in this block
            mapped[begins[own] + rank] = values[here][order]
            begins += np.bincount(own, minlength=counts.size)
        mapped.flush()


class Names:
    """Series of many blocks under one numbering, in order of appearance."""

    def __init__(self, names: Iterable[str] = ()) -> None:
        self._numbers = {name: k for k, name in enumerate(names)}

    @property
    def all(self) -> list[str]:
        """Names in order."""
        return list(self._numbers)

    def codes(self, block: Block) -> np.ndarray:
        """Return the number of each row's series, and take in series that are new."""
        numbers = [self._numbers.setdefault(name, len(self._numbers)) for name in block.names]
        return np.array(numbers, np.int32)[block.codes]


def gather(source: str, blocks: Iterable[Block]) -> Recorded:
    """Bring the blocks of a file together, in memory."""
    names, scores, codes = Names(), [], []
    for block in blocks:
        scores.append(block.scores)
        if block.codes is not None:
            codes.append(names.codes(block))
    values = np.concatenate(scores)
    if not codes:
        return Recorded(source, [""], [values])
    numbers = np.concatenate(codes)
    order = np.argsort(numbers, kind="stable")
    cuts = np.cumsum(np.bincount(numbers, minlength=len(names.all)))[:-1]
    return Recorded(source, names.all, np.split(values[order], cuts))
