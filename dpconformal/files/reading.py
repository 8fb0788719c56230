"""Read scores from a CSV, Parquet or NumPy file, or from standard input, into memory or onto the disk."""

import contextlib
import functools
import io
import itertools
import json
import os
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from dpconformal.checkpoints.container import bring_to_disk, note, recall, write_whole
from dpconformal.files.formats import Text, array_source, parquet_source, text_source
from dpconformal.files.source import Block, Source, require_one_series

_EVERY = 2.0  # seconds between notes of how far the reading has come
_ROWS = 2**20  # that are sorted into series at a time

Check = Callable[[Source, Block], None]


@dataclass(frozen=True)
class Recorded:
    """Scores of one file, N in all, series by series."""

    source: str  # the file, as errors call it
    names: list[str]  # series, in order of appearance; one without a name, ``""``, if the file holds just one
    values: np.ndarray  # (N,), those of one series after those of another; in memory, or mapped from a disk
    lengths: np.ndarray  # of each series

    @property
    def rounds(self) -> int:
        """Length of the longest series."""
        return int(self.lengths.max())

    @property
    def total(self) -> int:
        """Length of all series together."""
        return len(self.values)

    @property
    def is_single(self) -> bool:
        """Whether the file tells no series apart."""
        return list(self.names) == [""]

    @functools.cached_property
    def scores(self) -> list[np.ndarray]:
        """Return the scores of each series."""
        return self.split(self.values)

    def split(self, rows: np.ndarray) -> list[np.ndarray]:
        """Return the part of each series in an array with a row for each score."""
        ends = np.cumsum(self.lengths).tolist()
        return [rows[start:end] for start, end in itertools.pairwise([0, *ends])]

    def with_rows(self, rows: np.ndarray) -> Iterator[tuple[str, np.ndarray, np.ndarray]]:
        """Yield the name and the scores of each series, and its part of an array with a row for each score."""
        return zip(self.names, self.scores, self.split(rows), strict=True)


def open_scores(
    source: str | os.PathLike[str],
    column: str | None = None,
    batch: str | None = None,
    lone: bool = False,
    stdin: io.BufferedIOBase | None = None,
    copy: Path | None = None,
) -> Source:
    """
    Open a file of scores, to read it in blocks.

    ``source``: A ``.npy`` file with an array of shape (T,) or (series, T); a ``.parquet`` or ``.pq`` file; anything
    else is read as CSV, with or without a header, separated by commas, semicolons or tabs. ``column``: Column of the
    scores: by name, or by number from 1 where there is no header. Not needed if there is only one, or one that is
    called ``score`` or ``scores``. ``lone``: Whether to refuse what seems to hold several series. ``copy``: Where to
    keep what can be read only once; in memory without it.
    """
    path, lone = Path(source), lone and batch is None
    if is_stream(source):
        opened = text_source(_read_once(source, stdin, copy), column, batch, lone)
    elif not path.exists():
        raise ValueError(f"{path} does not exist: check the name, or pass - for standard input")
    elif path.is_dir():
        raise ValueError(f"{path} is a folder: pass a file of scores")
    elif path.stat().st_size == 0:
        raise ValueError(f"{path} is empty: a file of scores has a row for each round")
    elif path.suffix == ".npy":
        return array_source(path, column, batch)
    elif path.suffix in (".parquet", ".pq"):
        opened = parquet_source(path, column, batch, lone)
    else:
        opened = text_source(Text(str(path), lambda: path.open("rb")), column, batch, lone)
    return require_one_series(opened) if lone else opened


def is_stream(source: str | os.PathLike[str]) -> bool:
    """Whether a source can be read only once."""
    path = Path(source)
    return str(source) == "-" or (path.exists() and not path.is_file() and not path.is_dir())


def _read_once(source: str | os.PathLike[str], stdin: io.BufferedIOBase | None, copy: Path | None) -> Text:
    """Keep CSV that can be read only once: an interrupted run need not be given a copy on disk again."""
    given = str(source) == "-"
    name = "standard input" if given else str(source)
    if copy is not None and copy.exists():
        return Text(name, lambda: copy.open("rb"))
    with contextlib.nullcontext(stdin or sys.stdin.buffer) if given else open(source, "rb") as stream:
        if copy is None:
            content = stream.read()
            return Text(name, lambda: io.BytesIO(content))
        part = copy.with_suffix(".part")
        with part.open("wb") as target:
            shutil.copyfileobj(stream, target)
    part.rename(copy)
    return Text(name, lambda: copy.open("rb"))


def read_scores(
    source: str | os.PathLike[str],
    column: str | None = None,
    batch: str | None = None,
    stdin: io.BufferedIOBase | None = None,
    check: Check = lambda source, block: None,
    lone: bool = False,
) -> Recorded:
    """Read scores into memory."""
    return collect(open_scores(source, column, batch, lone, stdin), check)


def collect(source: Source, check: Check = lambda source, block: None) -> Recorded:
    """Bring the blocks of a source together in memory."""
    names, scores, codes = _Names(), [], []
    for block in source:
        check(source, block)
        scores.append(block.scores)
        if block.codes is not None:
            codes.append(names.number(block))
    values = np.concatenate(scores)
    if not codes:
        return Recorded(source.name, [""], values, np.array([values.size]))
    numbers = np.concatenate(codes)
    order = np.argsort(numbers, kind="stable")
    return Recorded(source.name, list(names), values[order], np.bincount(numbers, minlength=len(names)))


def copy_to_disk(source: Source, folder: str | os.PathLike[str], check: Check) -> Recorded:
    """Copy the scores of a source to a folder, or find them there; an interrupted call is carried on with."""
    folder = Path(folder)
    about, arrays = recall(folder / "scores.dpc", "scores") or _copy(source, folder, check)
    names = json.loads((folder / "names.json").read_text(encoding="utf-8")) if about["series"] else [""]
    lengths = arrays["lengths"]
    values = np.memmap(folder / about["file"], "<f8", "r", shape=(int(lengths.sum()),))
    return Recorded(source.name, names, values, lengths)


def _copy(source: Source, folder: Path, check: Check) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Copy scores, and note what was copied; a file of one series is read on from the last note."""
    file, codes_file, journal = folder / "rows.f8", folder / "codes.i4", folder / "reading.dpc"
    where, row = source.start, 0
    found = recall(journal, "reading")
    if found and file.exists() and file.stat().st_size >= 8 * found[0]["rows"]:
        where, row = found[0]["where"], found[0]["rows"]
    names, counts, noted = _Names(), np.zeros(0, np.int64), time.monotonic()
    with file.open("r+b" if file.exists() else "w+b") as rows, codes_file.open("wb") as codes:
        rows.truncate(8 * row)
        rows.seek(8 * row)
        for block in source.blocks(where, row):
            check(source, block)
            rows.write(block.scores.astype("<f8").data)
            row = block.row + block.scores.size
            if block.codes is not None:
                numbers = names.number(block)
                codes.write(numbers.astype("<i4").data)
                counts = np.bincount(numbers, minlength=len(names)) + np.pad(counts, (0, len(names) - counts.size))
            # With several series the reading begins anew: their numbering is in memory only. So is what was seen of
            # other columns.
            elif not block.others and time.monotonic() - noted > _EVERY:
                bring_to_disk(rows)
                note(journal, "reading", {"where": block.after, "rows": row}, {})
                noted = time.monotonic()
        bring_to_disk(rows)
    several = counts.size > 0
    if several:
        write_whole(folder / "names.json", [json.dumps(list(names)).encode()])
        _sort(folder, row, counts)
    about = {"series": several, "file": "scores.f8" if several else file.name}
    arrays = {"lengths": counts if several else np.array([row])}
    note(folder / "scores.dpc", "scores", about, arrays)
    for used in (codes_file, journal, *([file] if several else [])):
        used.unlink(missing_ok=True)
    return about, arrays


def _sort(folder: Path, rows: int, counts: np.ndarray) -> None:
    """Put the scores of each series together, in blocks: a counting sort from one file to another."""
    values, codes = np.memmap(folder / "rows.f8", "<f8", "r"), np.memmap(folder / "codes.i4", "<i4", "r")
    with (folder / "scores.f8").open("w+b") as file:
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


class _Names(dict[str, int]):
    """Series of many blocks under one numbering, in order of appearance."""

    def number(self, block: Block) -> np.ndarray:
        """Return the number of each row's series; series that are new get the next ones."""
        return np.array([self.setdefault(name, len(self)) for name in block.names], np.int32)[block.codes]
