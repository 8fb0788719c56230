"""Thresholds as a file: Parquet, CSV or NetCDF."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from dpconformal.files import Recorded
from dpconformal.files.columns import arrow
from dpconformal.validation import exactly

FORMATS = ("parquet", "csv", "netcdf")
_ROWS = 2**18  # written at a time
_ARRAYS = 2**27  # numbers of a NetCDF file, which is put together in memory


def write_thresholds(
    recorded: Recorded, thresholds: np.ndarray, levels: list[float], folder: Path, form: str, learner: Any
) -> Path:
    """
    Write the thresholds of all series.

    ``form``: A row for each round with a column for each level; or arrays over series, time and level, NaN after the
    end of a series.
    """
    if form == "netcdf":
        return _write_arrays(recorded, thresholds, levels, folder / "thresholds.nc", learner)
    pa, file = arrow(), folder / f"thresholds.{form}"
    tables = (pa.table(columns) for columns in _columns(recorded, thresholds, levels))
    first = next(tables)
    with (pa.parquet.ParquetWriter if form == "parquet" else pa.csv.CSVWriter)(file, first.schema) as writer:
        writer.write_table(first)
        for table in tables:
            writer.write_table(table)
    return file


def check_form(form: str, recorded: Recorded, levels: int) -> None:
    """Refuse a format that cannot hold the result."""
    size = len(recorded.names) * recorded.rounds * (levels + 1)
    if form == "netcdf" and size > _ARRAYS:
        raise ValueError(
            f"--format netcdf: {8 * size / 1e9:,.1f} GB would be put together in memory; write --format parquet"
        )


def _columns(recorded: Recorded, thresholds: np.ndarray, levels: list[float]) -> Iterator[dict[str, Any]]:
    named, row = list(recorded.names) != [""], 0
    waiting: list[dict[str, Any]] = []
    count = 0
    for name, series in zip(recorded.names, recorded.scores, strict=True):
        for start in range(0, len(series), _ROWS):
            here = slice(start, min(start + _ROWS, len(series)))
            size = here.stop - here.start
            columns: dict[str, Any] = {"series": np.repeat([name], size)} if named else {}
            columns |= {"round": np.arange(here.start + 1, here.stop + 1), "score": np.asarray(series[here])}
            own = np.asarray(thresholds[row + here.start : row + here.stop])
            columns |= {f"threshold_{exactly(level)}": own[:, k] for k, level in enumerate(levels)}
            waiting.append(columns)
            count += size
            if count >= _ROWS:  # short series go together
                yield _together(waiting)
                waiting, count = [], 0
        row += len(series)
    if waiting:
        yield _together(waiting)


def _together(parts: list[dict[str, Any]]) -> dict[str, Any]:
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def _write_arrays(recorded: Recorded, thresholds: np.ndarray, levels: list[float], file: Path, learner: Any) -> Path:
    import xarray as xr

    shape, row = (len(recorded.names), recorded.rounds), 0
    scores, filled = np.full(shape, np.nan), np.full((*shape, len(levels)), np.nan)
    for k, series in enumerate(recorded.scores):
        scores[k, : len(series)] = series
        filled[k, : len(series)] = thresholds[row : row + len(series)]
        row += len(series)
    data = xr.Dataset(
        {"thresholds": (("series", "time", "level"), filled), "scores": (("series", "time"), scores)},
        {"series": list(recorded.names), "time": np.arange(1, recorded.rounds + 1), "level": levels},
        {"learner": repr(learner)},
    )
    data.to_netcdf(file, engine="scipy")
    return file
