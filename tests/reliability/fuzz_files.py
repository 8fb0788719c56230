"""Files that are almost right, through every reader: refused by a clear error, or read as another reader does."""

import csv
import hashlib
import io
import json
import pathlib
import struct
import tempfile
import unicodedata

import jax
import numpy as np
import pandas as pd
import pyarrow.parquet as pq
from matplotlib.cbook import is_math_text
from rich.markup import escape

import dpconformal as dpc
from dpconformal.canvas import as_label
from dpconformal.checkpoints.container import pack, unpack
from dpconformal.files import open_scores, tables
from dpconformal.files.recorded import gather
from dpconformal.files.text import Text
from dpconformal.tables import Terminal, table

from .mutations import mutate

STORED = pathlib.Path(__file__).parent.parent / "checkpoints" / "format_1"
_FRAME = pd.DataFrame({"store": ["a", "b", "a", "ü"], "score": [0.25, 0.5, 1e-3, 1.0], "count": [1, 2, 3, 4]})
CSV = {  # with what may be asked of each
    b"score\n0.25\n0.5\n0.125\n": [(None, None)],
    b"store,score\nnorth,0.1\nsouth,0.2\nnorth,0.3\n": [(None, None), ("score", "store")],
    b'note;score\n"two\nlines; ""quoted""";0.25\nx;5e-1\n': [("score", None), ("score", "note")],
    b"\xef\xbb\xbf7\t0.25\r\n8\t0.5\r\n": [("2", None), ("1", None), ("2", "1")],
    b"\n\nscore\n0.25\n\n0.5\n\n": [(None, None)],
    b"day,score\n\n1,0.25\n\n2,0.5\n\n": [("score", None), ("score", "day")],
    b"0.1\n0.2\n0.3": [(None, None)],
    _FRAME.to_csv(index=False).encode(): [("score", None), ("score", "store"), ("count", None)],
}


class Scratch:
    """One file that is written again and again, in memory where the system has such a place."""

    def __init__(self, suffix):
        home = "/dev/shm" if pathlib.Path("/dev/shm").is_dir() else None
        self._folder = tempfile.TemporaryDirectory(dir=home)
        self.path = pathlib.Path(self._folder.name) / f"fuzz{suffix}"

    def holding(self, data):
        """Return the path of a file with this content."""
        self.path.write_bytes(data)
        return self.path


def fuzz_csv(rng):
    """CSV, in one block or cut into small ones: the same; and as Python's own reader has it."""
    seed = rng.choice(list(CSV))
    column, batch = rng.choice(CSV[seed])
    data = mutate(rng, [seed])
    text = Text("fuzz", lambda: io.BytesIO(data))
    whole = gather("fuzz", iter(tables.text_source(text, column, batch)))
    before, tables.BYTES = tables.BYTES, rng.choice((1, 5, 16, 64))
    try:
        cut = gather("fuzz", iter(tables.text_source(text, column, batch)))
    finally:
        tables.BYTES = before
    assert whole.names == cut.names, data
    assert all(map(np.array_equal, whole.scores, cut.scores)), data
    names = text.names()
    source = tables.text_source(text, column, batch)
    place = names.index(source.column.removeprefix("column ")[1:-1])
    lines = io.StringIO(data.decode("utf-8-sig", "replace"), newline="")
    rows = [row for row in csv.reader(lines, delimiter=text.separator) if row]
    while len(rows[0]) == 1 and not rows[0][0].strip() and len(names) > 1:  # first lines of spaces
        del rows[0]
    while len(rows[-1]) == 1 and not rows[-1][0].strip():  # a last line of spaces
        del rows[-1]
    scores = [float(row[place]) for row in rows[int(text.has_header) :]]
    keys = None if batch is None else [row[names.index(batch)] for row in rows[int(text.has_header) :]]
    for name, found in zip(whole.names, whole.scores, strict=True):
        own = scores if keys is None else [s for s, key in zip(scores, keys, strict=True) if key == name]
        assert found.tolist() == own, data


def _npy(array):
    buffer = io.BytesIO()
    np.save(buffer, array)
    return buffer.getvalue()


NPY = [
    _npy(a) for a in (np.array([0.1, 0.5]), np.arange(6.0).reshape(2, 3), np.array([1, 2], ">i4"), np.float32([[1]]))
]
_npy_file = Scratch(".npy")


def fuzz_npy(rng):
    """NumPy files, as NumPy itself loads them."""
    data = mutate(rng, NPY)
    found = gather("fuzz", iter(open_scores(_npy_file.holding(data))))
    want = np.load(io.BytesIO(data), allow_pickle=False)
    np.testing.assert_array_equal(np.stack(found.scores), np.atleast_2d(want).astype(float))


def _parquet(**options):
    buffer = io.BytesIO()
    _FRAME.to_parquet(buffer, index=False, **options)
    return buffer.getvalue()


PARQUET = [_parquet(), _parquet(compression=None), _parquet(row_group_size=1), _parquet(compression="gzip")]
_parquet_file = Scratch(".parquet")


def fuzz_parquet(rng):
    """Parquet files, as Arrow loads them whole."""
    data = mutate(rng, PARQUET)
    column, batch = rng.choice([("score", None), ("score", "store"), ("count", None)])
    path = _parquet_file.holding(data)
    found = gather("fuzz", iter(open_scores(path, column, batch)))
    # Through a reader that has no idea of columns that Arrow might find in the path.
    table = pq.ParquetFile(path).read(columns=[column] + ([batch] if batch else []))
    values = table[column].to_numpy().astype(float)
    keys = None if batch is None else [str(key) for key in table[batch].to_pylist()]
    for name, scores in zip(found.names, found.scores, strict=True):
        own = values if keys is None else values[np.array([key == name for key in keys])]
        np.testing.assert_array_equal(scores, own)


_PARTS = [chr(k) for k in [*range(32), *range(127, 160), 0xAD, 0x200D, *range(0x202A, 0x202F), *range(0x2066, 0x206A)]]
_PARTS += [
    "\x1b[2J",
    "\x1b]0;x\x07",
    "$\\frac{$",
    "$",
    "\\",
    "[/bold]",
    "[red]",
    "[",
    ":art:",
    '"',
    '""',
    ",",
    "\n",
    " ",
]
_PARTS += ["a", "score", "Å", "日", "👍", "\U000e0001", "\ud800", "\u2028"]


def fuzz_names(rng):
    """Names of columns and series: nothing on a terminal acts, nothing in a picture is a formula, and they are kept."""
    column, series = ("".join(rng.choices(_PARTS, k=rng.randint(1, 6))) for _ in range(2))
    terminal = Terminal()
    terminal.file = io.StringIO()
    try:
        if rng.random() < 0.5:
            data = f'{column},score\n"{series}",0.5\n'.encode("utf-8", "surrogatepass")
            found = gather(
                series, iter(tables.text_source(Text(series, lambda: io.BytesIO(data)), "score", column.strip()))
            )
            names = found.names
            assert names == [next(csv.reader(io.StringIO(f'"{series}"', newline="")))[0]], data
        else:
            names = [column, series]
        terminal.print(table(series, [escape(column)], [[escape(name)] for name in names]))
    except ValueError as error:
        terminal.print(str(error), markup=False, highlight=False, soft_wrap=True)
        raise
    finally:
        shown = terminal.file.getvalue()
        assert all(sign == "\n" or unicodedata.category(sign)[0] != "C" for sign in shown), (column, series)
        assert not is_math_text(as_label(column + series))


_SAMPLES = {path.stem: path.read_bytes() for path in sorted(STORED.glob("*.dpc"))}
_checkpoint_file = Scratch(".dpc")


def fuzz_checkpoint(rng):
    """Damaged checkpoints: none is ever read."""
    data = mutate(rng, list(_SAMPLES.values()))
    learner, state = dpc.load(_checkpoint_file.holding(data))
    assert data in _SAMPLES.values(), (learner, state)


_VALUES = [
    None,
    True,
    -1,
    0,
    1,
    2**31,
    2**70,
    0.5,
    -0.0,
    1e308,
    "",
    "linear",
    [],
    {},
    {"float": "inf"},
    {"float": "nan"},
]
_VALUES += [
    {"numpy": 0},
    {"jax": 0},
    {"tuple": [0.5]},
    {"class": "priors.Uniform", "fields": {"low": 0.0, "high": 1.0}},
]
_VALUES += [{"class": "Exact", "fields": {}}, {"class": "priors.Beta", "fields": {"a": 2.0, "b": 3.0}}, "0.5", 16, 3]


def _bend(rng, entry):
    """Change something in a header."""
    if isinstance(entry, dict) and entry and rng.random() < 0.9:
        key = rng.choice(sorted(entry))
        match rng.randrange(8):
            case 0:
                return {name: value for name, value in entry.items() if name != key}
            case 1:
                return entry | {
                    rng.choice(("class", "fields", "numpy", "colour", ".seen", "dtype")): rng.choice(_VALUES)
                }
            case _:
                return entry | {key: _bend(rng, entry[key])}
    if isinstance(entry, list) and entry and rng.random() < 0.8:
        k = rng.randrange(len(entry))
        return [*entry[:k], _bend(rng, entry[k]), *entry[k + 1 :]]
    return rng.choice(_VALUES)


_NUMBERS = [0, 1, -1, 2, 100, np.nan, np.inf, -np.inf, 0.5, 1e300, 5e-324, 2**31 - 1]


def fuzz_sealed(rng):
    """Checkpoints of a stranger who knows the checksum: refused, or a learner that answers and can be saved again."""
    data = rng.choice(list(_SAMPLES.values()))
    header, arrays = unpack(_checkpoint_file.holding(data))
    arrays = [array.copy() for array in arrays]
    if rng.random() < 0.5:
        header = _bend(rng, header)
    else:
        array = arrays[rng.randrange(len(arrays))].reshape(-1)
        with np.errstate(all="ignore"):
            array[rng.randrange(array.size)] = np.array(rng.choice(_NUMBERS)).astype(array.dtype)
    if not isinstance(header, dict):
        return
    data = b"".join(bytes(part) for part in pack(header, arrays))
    if rng.random() < 0.2:
        text = bytearray(json.dumps(header | {"arrays": [_bend(rng, {"dtype": "<f8", "shape": [3, 2]})]}).encode())
        start = struct.pack("<8sIIQ", b"\x89DPC\r\n\x1a\n", 1, len(text), 24 + len(text) + 32 + 64)
        data = start + bytes(text) + bytes(64)
        data += hashlib.sha256(data).digest()
    learner, state = dpc.load(_checkpoint_file.holding(data))
    dpc.save(_checkpoint_file.path, learner, state)
    again = dpc.load(_checkpoint_file.path)
    assert all(
        np.array_equal(a, b, equal_nan=True)
        for a, b in zip(jax.tree.leaves((learner, state)), jax.tree.leaves(tuple(again)), strict=True)
    )


TARGETS = {
    "csv": fuzz_csv,
    "npy": fuzz_npy,
    "parquet": fuzz_parquet,
    "names": fuzz_names,
    "checkpoint": fuzz_checkpoint,
    "checkpoint, sealed": fuzz_sealed,
}
