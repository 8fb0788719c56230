"""Read scores from a CSV, Parquet or NumPy file, or from standard input."""

import io
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np

from dpconformal.files.recorded import Recorded, group
from dpconformal.files.text import Text


def read_scores(
    source: str | os.PathLike[str], column: str | None = None, batch: str | None = None, stdin: Any = None
) -> Recorded:
    """
    Read scores.

    Parameters
    ----------
    source : path or "-"
        A ``.npy`` file with an array of shape (T,) or (series, T); a ``.parquet`` or ``.pq`` file; anything else is
        read as CSV, with or without a header, separated by commas, semicolons or tabs. ``"-"`` is CSV from standard
        input.
    column : str, optional
        Column of the scores: by name, or by number from 1 where there is no header. Not needed if there is only one,
        or one that is called ``score`` or ``scores``.
    batch : str, optional
        Column that says which series a row belongs to.
    stdin : binary file, optional
        In the place of standard input.

    Returns
    -------
    Recorded
        The scores, by series.

    Raises
    ------
    ValueError
        Naming file, line, column and value, and what to do.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     np.save(f"{folder}/a.npy", [0.25, 0.5])
    ...     read_scores(f"{folder}/a.npy").scores
    [array([0.25, 0.5 ])]
    """
    if str(source) == "-":
        content = (stdin or sys.stdin.buffer).read()
        return _from_text(Text("standard input", lambda: io.BytesIO(content)), column, batch)
    path = Path(source)
    if not path.exists():
        raise ValueError(f"{path} does not exist: check the name, or pass - for standard input")
    if path.is_dir():
        raise ValueError(f"{path} is a folder: pass a file of scores")
    if not path.is_file():  # a pipe, which can be read only once
        content = path.read_bytes()
        return _from_text(Text(str(path), lambda: io.BytesIO(content)), column, batch)
    if path.stat().st_size == 0:
        raise ValueError(f"{path} is empty: a file of scores has a row for each round")
    if path.suffix == ".npy":
        return _from_numpy(path, column, batch)
    if path.suffix in (".parquet", ".pq"):
        return _from_parquet(path, column, batch)
    return _from_text(Text(str(path), lambda: path.open("rb")), column, batch)


def _from_text(text: Text, column: str | None, batch: str | None) -> Recorded:
    pa = arrow()
    names = text.names()
    score = choose_column(text.source, names, column, batch)
    series = None if batch is None else _named(text.source, names, batch, "--batch")
    _apart(score, series)
    # In a file of one column an empty line may be a score that is missing.
    strict = len(names) == 1 and text.has_gap()
    try:
        with text.open() as data:
            table = pa.csv.read_csv(
                data,
                pa.csv.ReadOptions(
                    column_names=names, skip_rows=text.blank, skip_rows_after_names=int(text.has_header)
                ),
                pa.csv.ParseOptions(delimiter=text.separator, newlines_in_values=True, ignore_empty_lines=not strict),
                pa.csv.ConvertOptions(
                    column_types={score: pa.float64()} | ({series: pa.string()} if series else {}),
                    include_columns=[score] if series is None else [score, series],
                    null_values=[],
                ),
            )
    except (pa.ArrowException, UnicodeDecodeError) as error:
        text.explain(score, series)  # finds the line
        raise ValueError(f"{text.source} cannot be read as CSV: {error}") from None
    values = table[score].to_numpy()
    if not values.size:
        raise ValueError(f"{text.source} has a header and no rows: a file of scores has a row for each round")
    keys = None if series is None else table[series].to_pylist()
    if not np.isfinite(values).all() or (keys is not None and not all(key.strip() for key in keys)):
        text.explain(score, series)
        _all_finite(text.source, f"column {score!r}", values, _row)
    return Recorded(text.source, f"column {score!r}", *group(keys, values), text.place)


def _from_parquet(path: Path, column: str | None, batch: str | None) -> Recorded:
    pa = arrow()
    try:
        file = pa.parquet.ParquetFile(path)
        names = file.schema_arrow.names
        score = choose_column(str(path), names, column, batch)
        wanted = [score] if batch is None else [score, _named(str(path), names, batch, "--batch")]
        _apart(score, batch)
        twice = next((name for name in wanted if names.count(name) > 1), None)
        if twice is not None:
            raise ValueError(f"{path}: two columns are called {twice!r}; rename one")
        table = file.read(columns=wanted)
    except (pa.ArrowException, OSError) as error:
        raise ValueError(f"{path} cannot be read as Parquet: {error}") from None
    kind = table[score].type
    if not (pa.types.is_floating(kind) or pa.types.is_integer(kind)):
        raise ValueError(f"{path}, column {score!r} holds {kind}, not numbers: convert it or choose another column")
    values = table[score].to_numpy().astype(float)
    _all_finite(str(path), f"column {score!r}", values, _row)
    if not values.size:
        raise ValueError(f"{path} has no rows: a file of scores has a row for each round")
    keys = None
    if batch is not None:
        kind = table[batch].type
        if pa.types.is_nested(kind) or pa.types.is_binary(kind):
            raise ValueError(f"{path}, column {batch!r} holds {kind}, not names of series: choose another column")
        keys = [None if key is None or key != key or not str(key).strip() else key for key in table[batch].to_pylist()]
        if None in keys:
            raise ValueError(f"{path}, {_row(keys.index(None))}, column {batch!r}: no series; fill it in")
    return Recorded(str(path), f"column {score!r}", *group(keys, values), _row)


def _from_numpy(path: Path, column: str | None, batch: str | None) -> Recorded:
    for name, value in (("--column", column), ("--batch", batch)):
        if value is not None:
            raise ValueError(f"{name} {value}: {path} is an array without columns; leave {name} out")
    try:
        array = np.load(path, allow_pickle=False)
    except (ValueError, OSError, EOFError) as error:
        raise ValueError(f"{path} cannot be read as a NumPy file: {error}") from None
    if not isinstance(array, np.ndarray):
        array.close()
        raise ValueError(f"{path} is an archive of arrays: save one of them by itself, with numpy.save")
    if array.dtype.kind not in "fiu" or array.ndim not in (1, 2):
        raise ValueError(
            f"{path} holds {array.dtype} of shape {array.shape}: must be numbers of shape (T,) or (series, T)"
        )
    if not array.size:
        raise ValueError(f"{path} holds no scores: its shape is {array.shape}")
    length = array.shape[-1]

    def place(row: int) -> str:
        return f"index [{row // length}, {row % length}]" if array.ndim == 2 else f"index [{row}]"

    values = array.astype(float).reshape(-1, length)
    _all_finite(str(path), "array", values.ravel(), place)
    names = [""] if array.ndim == 1 else [str(k) for k in range(len(values))]
    rows = list(np.arange(values.size).reshape(values.shape))
    return Recorded(str(path), "array", names, list(values), rows, place)


def arrow() -> Any:
    """
    Import Arrow, which reads and writes tables.

    Returns
    -------
    module
        ``pyarrow`` with its ``csv`` and ``parquet``.

    Raises
    ------
    ImportError
        Saying how to install it.
    """
    try:
        import pyarrow
        import pyarrow.csv
        import pyarrow.parquet
    except ImportError as error:
        raise ImportError("tables of scores need pyarrow: pip install 'dpconformal[cli]'") from error
    return pyarrow


def choose_column(source: str, names: list[str], column: str | None, batch: str | None) -> str:
    """
    Find the column of the scores.

    Parameters
    ----------
    source : str
        The file, for errors.
    names : list of str
        Its columns.
    column : str, optional
        What the user asked for.
    batch : str, optional
        The column of the series, which cannot be meant.

    Returns
    -------
    str
        The column.

    Raises
    ------
    ValueError
        If there is no such column, or several that may be meant.

    Examples
    --------
    >>> choose_column("a.csv", ["day", "Score"], None, None)
    'Score'
    """
    if column is not None:
        return _named(source, names, column, "--column")
    others = [name for name in names if name != batch]
    if not others:
        raise ValueError(f"--batch {batch} is the only column of {source}: the scores need one of their own")
    called = [name for name in others if name.strip().lower() in ("score", "scores")]
    for candidates in (others, called):
        if len(candidates) == 1:
            return candidates[0]
    raise ValueError(f"{source} has the columns {', '.join(names)}: say which holds the scores with --column NAME")


def _named(source: str, names: list[str], wanted: str, option: str) -> str:
    if wanted in names:
        return wanted
    import difflib

    close = difflib.get_close_matches(wanted, names, 1)
    hint = f"did you mean {close[0]}?" if close else f"it has {', '.join(names)}"
    raise ValueError(f"{option} {wanted}: {source} has no such column; {hint}")


def _apart(score: str, batch: str | None) -> None:
    if score == batch:
        raise ValueError(f"--batch {batch} is the column of the scores: name another, or leave it out")


def _row(row: int) -> str:
    return f"row {row + 1:,}"


def _all_finite(source: str, column: str, values: np.ndarray, place: Any) -> None:
    bad = np.flatnonzero(~np.isfinite(values))
    if bad.size:
        more = f" ({bad.size - 1:,} more like it)" if bad.size > 1 else ""
        raise ValueError(
            f"{source}, {place(int(bad[0]))}, {column}: {values[bad[0]]} is no score{more}; "
            "drop the round or fill it in on purpose"
        )
