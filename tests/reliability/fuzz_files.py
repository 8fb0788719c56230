"""Files that are almost right, through every reader: refused by a clear error, or read as another reader does."""

import csv
import hashlib
import io
import json
import pathlib
import re
import resource
import struct
import tempfile
import time
import unicodedata
import warnings

import jax
import numpy as np
import pandas as pd
import pyarrow.parquet as pq
from matplotlib.cbook import is_math_text
from rich.markup import escape

import dpconformal as dpc
from dpconformal.checkpoints.container import pack, unpack
from dpconformal.display import as_label
from dpconformal.display.terminal import Terminal, table
from dpconformal.files import formats, open_scores
from dpconformal.files.formats import Text
from dpconformal.files.reading import collect

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
    whole = collect(formats.text_source(text, column, batch))
    before, formats.BYTES = formats.BYTES, rng.choice((1, 5, 16, 64))
    try:
        cut = collect(formats.text_source(text, column, batch))
    finally:
        formats.BYTES = before
    assert whole.names == cut.names, data
    assert all(map(np.array_equal, whole.scores, cut.scores)), data
    names = text.names()
    source = formats.text_source(text, column, batch)
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
    found = collect(open_scores(_npy_file.holding(data)))
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
    found = collect(open_scores(path, column, batch))
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
            found = collect(formats.text_source(Text(series, lambda: io.BytesIO(data)), "score", column.strip()))
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


# Numbers that a header can have anywhere, and what is large about them.
_HUGE = [10**7, 2**28, 2**31, 2**62, 10**4000, 1e308, {"tuple": [2**28, 2**28]}, {"tuple": list(range(-1, 8999))}]
_HUGE += [{"tuple": [{"numpy": 0}] * 1000}, {"tuple": [-1] * 20_000}]
MOST_SECONDS, MOST_BYTES = 5.0, 2**27


def _numbers(entry, way=()):
    """Ways to every number of a record, and to every list."""
    if isinstance(entry, dict):
        return [found for key, part in entry.items() for found in _numbers(part, (*way, key))]
    if isinstance(entry, list):
        return [way, *(found for k, part in enumerate(entry) for found in _numbers(part, (*way, k)))]
    return [way] if entry is None or isinstance(entry, (int, float)) else []


def _replaced(entry, way, new):
    """Put something else at the end of a way."""
    if not way:
        return new(entry)
    entry = entry.copy()
    entry[way[0]] = _replaced(entry[way[0]], way[1:], new)
    return entry


def _load(path, about=""):
    """Load a file; a refusal must name it, and what it is about."""
    try:
        return dpc.load(path)
    except ValueError as error:
        if not re.match(f"{re.escape(str(path))} .*({about})", str(error), re.DOTALL):
            raise AssertionError(error) from error
        raise


def fuzz_amplified(rng):
    """Headers in which one number is huge, or one list long: no more time or memory than the file warrants."""
    header, arrays = unpack(_checkpoint_file.holding(rng.choice(list(_SAMPLES.values()))))
    if rng.random() < 0.5:
        header["state"] = None
    way = rng.choice([(), *_numbers(header["learner"])])
    times, huge = rng.choice((2, 20, 2000)), rng.choice(_HUGE)

    def larger(found):
        if isinstance(found, list) and rng.random() < 0.7:
            return found * times
        if rng.random() < 0.2:  # deeper, and deeper
            for _ in range(times):
                found = {"tuple": [found]}
            return found
        return huge

    try:
        path = _checkpoint_file.holding(
            b"".join(bytes(part) for part in pack(_replaced(header, ("learner", *way), larger), arrays))
        )
    except RecursionError:  # of the one who would write it
        return
    start, before = time.process_time(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    try:
        _load(path)
    finally:
        size = path.stat().st_size
        assert time.process_time() - start < MOST_SECONDS, (way, size)
        assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < (MOST_BYTES + 64 * size) / 1024, (
            way,
            size,
        )


_ENTRIES = [np.nan, np.inf, -np.inf, 1e308, -1e308, -1, 1e9, 2**31 - 1, 2**62, 3.7]
# Learners that answer +inf by design, and those whose thresholds may leave the support.
_UNBOUNDED = {dpc.SplitConformal, dpc.NExCP}


def fuzz_state(rng):
    """States with one entry of one field replaced: refused with the field's name, or thresholds as good as any."""
    name = rng.choice(sorted(_SAMPLES))
    header, arrays = unpack(_checkpoint_file.holding(_SAMPLES[name]))
    field, k = rng.choice(sorted(header["state"].items()))
    arrays[k] = arrays[k].copy()
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        arrays[k].reshape(-1)[rng.randrange(arrays[k].size)] = np.array(rng.choice(_ENTRIES)).astype(arrays[k].dtype)
    path = _checkpoint_file.holding(b"".join(bytes(part) for part in pack(header, arrays)))
    learner, state = _load(path, "state|PID of before")
    low, high = (float(end) for end in getattr(learner, "support", (-np.inf, np.inf)))
    answers = np.asarray(
        jax.vmap(lambda one: _asked(learner, one))(state) if state.seen.ndim else _asked(learner, state)
    )
    assert not np.isnan(answers).any(), (name, field, answers)
    answers = answers[np.isfinite(answers)] if type(learner) in _UNBOUNDED else answers
    assert (np.abs(answers) < 1e6).all(), (name, field, answers)
    if not isinstance(learner, (dpc.OGD, dpc.SFOGD, dpc.SAOCP, dpc.PID)):
        assert ((answers >= low) & (answers <= high)).all(), (name, field, answers)


@jax.jit
def _asked(learner, state):
    return learner.quantile(state, getattr(learner, "levels", np.array([0.1, 0.5, 0.9])))


TARGETS = {
    "csv": fuzz_csv,
    "npy": fuzz_npy,
    "parquet": fuzz_parquet,
    "names": fuzz_names,
    "checkpoint": fuzz_checkpoint,
    "checkpoint, sealed": fuzz_sealed,
    "checkpoint, header": fuzz_amplified,
    "checkpoint, state": fuzz_state,
}
