"""Thresholds as a file: Parquet, CSV or NetCDF."""

from pathlib import Path
from typing import Any

import numpy as np

import dpconformal as dpc
from dpconformal.files.reading import arrow
from dpconformal.tables import exactly

FORMATS = ("parquet", "csv", "netcdf")


def write_thresholds(runs: dict[str, dpc.Replay], levels: list[float], folder: Path, form: str) -> Path:
    """
    Write the thresholds of all series.

    Parameters
    ----------
    runs : dict
        Runs by series.
    levels : list of float
        Levels.
    folder : Path
        Where.
    form : {"parquet", "csv", "netcdf"}
        A row for each round with a column for each level; or arrays over series, time and level, NaN after the end of a
        series.

    Returns
    -------
    Path
        The file.
    """
    if form == "netcdf":
        return _write_arrays(runs, levels, folder / "thresholds.nc")
    pa = arrow()
    columns: dict[str, Any] = {}
    if list(runs) != [""]:
        columns["series"] = np.repeat(list(runs), [run.scores.shape[0] for run in runs.values()])
    columns["round"] = np.concatenate([np.arange(1, run.scores.shape[0] + 1) for run in runs.values()])
    columns["score"] = np.concatenate([np.asarray(run.scores) for run in runs.values()])
    for k, level in enumerate(levels):
        columns[f"threshold_{exactly(level)}"] = np.concatenate(
            [np.asarray(run.thresholds)[:, k] for run in runs.values()]
        )
    table = pa.table(columns)
    file = folder / f"thresholds.{form}"
    if form == "parquet":
        pa.parquet.write_table(table, file)
    else:
        pa.csv.write_csv(table, file)
    return file


def _write_arrays(runs: dict[str, dpc.Replay], levels: list[float], file: Path) -> Path:
    import xarray as xr

    longest = max(run.scores.shape[0] for run in runs.values())

    def filled(values: Any) -> np.ndarray:
        values = np.asarray(values, float)
        return np.pad(values, [(0, longest - len(values))] + [(0, 0)] * (values.ndim - 1), constant_values=np.nan)

    data = xr.Dataset(
        {
            "thresholds": (("series", "time", "level"), np.stack([filled(run.thresholds) for run in runs.values()])),
            "scores": (("series", "time"), np.stack([filled(run.scores) for run in runs.values()])),
        },
        {"series": list(runs), "time": np.arange(1, longest + 1), "level": levels},
        {"learner": repr(next(iter(runs.values())).learner)},
    )
    data.to_netcdf(file, engine="scipy")
    return file
