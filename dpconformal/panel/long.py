"""Long tables, a row for each score: into a panel, and back."""

from typing import TYPE_CHECKING, Any

import numpy as np

from dpconformal.panel.rows import ROUND, Columns, Rows, check_order, checked_rows, named
from dpconformal.validation import exactly

if TYPE_CHECKING:
    import pandas as pd
    import xarray as xr


def from_long(frame: Any, id: str = "series", time: str = "time", score: str = "score") -> "xr.DataArray":
    """
    Make a panel of a long table.

    Parameters
    ----------
    frame : pandas.DataFrame or dask.dataframe.DataFrame
        A row for each score. The rows of a series are in the order of time, and may be anywhere among those of others.
    id, time, score : str
        Its columns: which series, when, and the score.

    Returns
    -------
    xarray.DataArray, shape (series, round)
        Scores of each series, one after the other, and NaN after the end of the shorter ones; series in ascending
        order. The times are a coordinate of the same shape. Of a Dask table it is lazy, after a look at every row:
        for the series, their lengths, and rows to refuse.

    Raises
    ------
    ValueError
        Naming series and time: for a missing id or time, mixed types, a score that is no finite number, a time that
        comes twice or too late.

    See Also
    --------
    replay_panel : to be called with ``dim="round"`` and ``mask=scores.isnull()``.
    to_long : the way back.

    Examples
    --------
    >>> import dpconformal as dpc, pandas as pd
    >>> table = pd.DataFrame({"series": ["B", "A", "B"], "time": [1, 1, 2], "score": [0.5, 0.2, 0.7]})
    >>> scores = dpc.panel.from_long(table)
    >>> scores.values
    array([[0.2, nan],
           [0.5, 0.7]])
    >>> panel = dpc.replay_panel(scores, dpc.Exact(), [0.9], dim="round", mask=scores.isnull())
    >>> dpc.panel.to_long(panel, scores).round(3)
      series  time  score  threshold_0.9
    0      A     1    0.2          0.900
    1      B     1    0.5          0.900
    2      B     2    0.7          0.859
    """
    columns = named(id, time, score)
    if hasattr(frame, "to_delayed"):
        from dpconformal.panel.gathering import gathered

        return gathered(frame.to_delayed(), columns)
    if not hasattr(frame, "columns"):
        raise ValueError(f"frame is a {type(frame).__name__}: pass a pandas or Dask DataFrame")
    names, codes, rows = grouped(checked_rows(frame, columns), columns)
    counts = np.bincount(codes, minlength=len(names))
    scores, times = padded(rows, codes, counts, int(counts.max(initial=0)))
    return labelled(scores, times, names, columns, rows.times.dtype)


def grouped(rows: Rows, columns: Columns) -> tuple[np.ndarray, np.ndarray, Rows]:
    """
    Bring the rows of each series together.

    Returns: Series in ascending order; the number of its series for each row; and the rows, series by series.
    """
    import pandas as pd

    codes, names = pd.factorize(rows.ids, sort=True)
    if (np.diff(codes) < 0).any():
        order = np.argsort(codes, kind="stable")
        codes, rows = codes[order], Rows(*(column[order] for column in rows))
    check_order(rows, codes, columns)
    return np.asarray(names), codes, rows


def padded(rows: Rows, codes: np.ndarray, counts: np.ndarray, rounds: int) -> tuple[np.ndarray, np.ndarray]:
    """Lay series out as rows of one length."""
    place = np.arange(len(codes)) - np.repeat(np.cumsum(counts) - counts, counts)
    scores = np.full((len(counts), rounds), np.nan, rows.scores.dtype)
    dated = rows.times.dtype.kind in "Mm"
    times = np.full(scores.shape, np.array("NaT", rows.times.dtype) if dated else np.nan)
    scores[codes, place], times[codes, place] = rows.scores, rows.times
    return scores, times


def labelled(scores: Any, times: Any, names: np.ndarray, columns: Columns, kind: np.dtype[Any]) -> "xr.DataArray":
    """Put the names of series and times on a panel."""
    import xarray as xr

    dims = (columns.id, ROUND)
    when = xr.Variable(dims, times, {"in_table": str(kind)})
    return xr.DataArray(scores, {columns.id: names, columns.time: when}, dims, name=columns.score)


def to_long(panel: "xr.Dataset", scores: "xr.DataArray") -> "pd.DataFrame":
    """
    Make a long table of a panel: a row for each score, with its thresholds beside it.

    Parameters
    ----------
    panel : xarray.Dataset
        From :func:`replay_panel`, with thresholds.
    scores : xarray.DataArray
        What it was made of. Missing ones get no row.

    Returns
    -------
    pandas.DataFrame
        Columns: the dimensions, series and time first; the score; and ``threshold_0.9`` for each level.

    Raises
    ------
    ValueError
        If there are no thresholds, or the scores are not those of the panel.

    Examples
    --------
    >>> import dpconformal as dpc, xarray as xr
    >>> scores = xr.DataArray([[0.2, 0.9]], {"store": ["A"], "time": [5, 6]}, ["store", "time"], name="residual")
    >>> dpc.panel.to_long(dpc.replay_panel(scores, dpc.Exact(), [0.5]), scores).round(3)
      store  time  residual  threshold_0.5
    0     A     5       0.2          0.500
    1     A     6       0.9          0.293
    """
    import pandas as pd
    import xarray as xr

    if "thresholds" not in panel:
        raise ValueError("panel has no thresholds: replay it with keep='all'")
    thresholds = panel["thresholds"].transpose(..., "level")
    axes = thresholds.dims[:-1]
    try:
        xr.align(thresholds, scores, join="exact", copy=False)
    except ValueError as error:
        raise ValueError(f"scores has other labels than panel, or another order: {error}") from None
    for dim in scores.dims:
        if dim not in axes or scores.sizes[dim] != thresholds.sizes[dim]:
            sizes = f"{dict(scores.sizes)} and panel {dict(thresholds.sizes)}"
            raise ValueError(f"scores has sizes {sizes}: pass the scores that the panel was made of")
    spread = scores.broadcast_like(thresholds.isel(level=0)).transpose(*axes)
    values = np.asarray(spread.values)
    where = np.nonzero(~np.isnan(values))
    table: dict[Any, np.ndarray] = {}
    for dim, index in zip(axes, where, strict=True):
        for name, coordinate in scores.coords.items():  # times that differ from series to series stand for the round
            if dim == ROUND and dim in coordinate.dims and coordinate.ndim > 1:
                at = tuple(where[axes.index(own)] for own in coordinate.dims)
                table[name] = coordinate.values[at].astype(coordinate.attrs.get("in_table", coordinate.dtype))
                break
        else:
            table[dim] = thresholds[dim].values[index]
    table[scores.name or "score"] = values[where]
    found = np.asarray(thresholds.values)[where]
    table |= {f"threshold_{exactly(level)}": found[:, k] for k, level in enumerate(panel["level"].values)}
    return pd.DataFrame(table)
