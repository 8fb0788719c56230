"""The paper's experiments and two of our own: functions that return data, with a table and a picture for each."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from dpconformal.display import save_figure
from dpconformal.experiments.drift import drift, plot_drift, tabulate_drift
from dpconformal.experiments.frequentist import frequentist, plot_frequentist, tabulate_frequentist
from dpconformal.experiments.paper import (
    monotonicity,
    plot_monotonicity,
    plot_prior,
    plot_switching,
    prior,
    switching,
    tabulate_monotonicity,
    tabulate_prior,
    tabulate_switching,
)
from dpconformal.experiments.stock import plot_stock, stock, tabulate_stock

if TYPE_CHECKING:
    import pandas as pd
    import xarray as xr
    from matplotlib.figure import Figure

__all__ = [
    "EXPERIMENTS",
    "Experiment",
    "drift",
    "frequentist",
    "monotonicity",
    "plot",
    "prior",
    "save",
    "stock",
    "switching",
    "table",
    "writable",
]


class Experiment(NamedTuple):
    """An experiment: the functions that compute, summarise and draw its data."""

    run: Callable[..., "xr.Dataset"]  # returns the data
    table: Callable[["xr.Dataset"], "pd.DataFrame"]  # summarises them
    plot: Callable[["xr.Dataset"], "Figure"]  # draws them


EXPERIMENTS = {
    "monotonicity": Experiment(monotonicity, tabulate_monotonicity, plot_monotonicity),
    "switching": Experiment(switching, tabulate_switching, plot_switching),
    "stock": Experiment(stock, tabulate_stock, plot_stock),
    "prior": Experiment(prior, tabulate_prior, plot_prior),
    "drift": Experiment(drift, tabulate_drift, plot_drift),
    "frequentist": Experiment(frequentist, tabulate_frequentist, plot_frequentist),
}


def _experiment_of(data: "xr.Dataset") -> Experiment:
    """Return the experiment that made the data."""
    name = getattr(data, "attrs", {}).get("experiment")
    if name not in EXPERIMENTS:
        known = ", ".join(EXPERIMENTS)
        raise ValueError(f"data.attrs['experiment'] = {name!r}: pass what an experiment returned ({known})")
    return EXPERIMENTS[name]


def table(data: "xr.Dataset") -> "pd.DataFrame":
    """
    Summarise an experiment's data.

    Parameters
    ----------
    data : xarray.Dataset
        What an experiment returned, also read back from a file.

    Returns
    -------
    pandas.DataFrame
        Its table.
    """
    return _experiment_of(data).table(data)


def plot(data: "xr.Dataset") -> "Figure":
    """
    Draw an experiment's data.

    Parameters
    ----------
    data : xarray.Dataset
        What an experiment returned, also read back from a file.

    Returns
    -------
    matplotlib Figure
        Its picture.
    """
    return _experiment_of(data).plot(data)


def writable(folder: str | os.PathLike[str]) -> Path:
    """
    Make a folder, if it is not there, and check that files can be written to it.

    Parameters
    ----------
    folder : path
        The folder.

    Returns
    -------
    Path
        The folder; a ValueError is raised if it cannot be made or written to.
    """
    folder = Path(folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ValueError(f"folder = {str(folder)!r} cannot be made: {error}") from error
    if not os.access(folder, os.W_OK):
        raise ValueError(f"folder = {str(folder)!r} cannot be written to: choose another")
    return folder


def save(data: "xr.Dataset", folder: str | os.PathLike[str]) -> list[Path]:
    """
    Write an experiment's picture (PNG), data (NetCDF), table (CSV) and certificate (text) into a folder.

    Parameters
    ----------
    data : xarray.Dataset
        What an experiment returned.
    folder : path
        Made if it does not exist; files of the same names are replaced.

    Returns
    -------
    list of Path
        The files; a ValueError is raised if one cannot be written.
    """
    name = data.attrs["experiment"]
    picture, numbers, summary, text = files = [
        writable(folder) / f"{name}.{end}" for end in ("png", "nc", "csv", "txt")
    ]
    try:
        save_figure(plot(data), picture)
        data.to_netcdf(numbers, engine="scipy")
        table(data).to_csv(summary)
        text.write_text(data.attrs["certificate"] + "\n")
    except OSError as error:
        raise ValueError(f"folder = {str(folder)!r} cannot be written to: {error}") from error
    return files
