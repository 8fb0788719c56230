"""Panels as long tables and files: there and back, and what is refused on the way."""

import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
import xarray as xr
from integration.long_tables import COLUMNS, parquet, table

import dpconformal as dpc
from dpconformal.panel import long
from dpconformal.panel import storing as opening
from dpconformal.panel.long import series_of_a_chunk


@pytest.fixture(autouse=True)
def small(monkeypatch):
    """Let even small panels have several chunks."""
    monkeypatch.setattr(long, "SMALLEST", 1)
    monkeypatch.setattr(long, "CHUNKS", 4)


@pytest.mark.parametrize("day_by_day", [True, False])
def test_a_long_table_there_and_back(day_by_day):
    frame = table(day_by_day=day_by_day)
    scores = dpc.panel.from_long(frame, **COLUMNS)
    assert scores.dims == ("store", "round")
    for store, own in frame.groupby("store"):
        row = scores.sel(store=store)
        np.testing.assert_array_equal(row.values[: len(own)], own.residual)
        np.testing.assert_array_equal(row.day.values[: len(own)], own.day)
        assert np.isnan(row.values[len(own) :]).all()
        assert np.isnat(row.day.values[len(own) :]).all()
    panel = dpc.replay_panel(scores, dpc.Exact(), [0.5, 0.9], dim="round", mask=scores.isnull())
    back = dpc.panel.to_long(panel, scores)
    assert list(back) == ["store", "day", "residual", "threshold_0.5", "threshold_0.9"]
    expected = frame.sort_values(["store", "day"], ignore_index=True)
    pd.testing.assert_frame_equal(back[list(frame)], expected, check_dtype=False)
    own = expected[expected.store == "s07"]
    alone = dpc.replay(dpc.Exact(), own.residual.to_numpy(), [0.5, 0.9]).thresholds
    np.testing.assert_allclose(back.loc[own.index, ["threshold_0.5", "threshold_0.9"]], alone, atol=1e-12)


@pytest.mark.parametrize("day_by_day", [True, False])
@pytest.mark.parametrize("parts", [1, 5])
def test_a_dask_table_is_the_same_panel(day_by_day, parts):
    frame = table(day_by_day=day_by_day)
    lazy = dpc.panel.from_long(dd.from_pandas(frame, npartitions=parts, sort=False), **COLUMNS)
    assert len(lazy.chunks[0]) == 4
    xr.testing.assert_identical(lazy.compute(), dpc.panel.from_long(frame, **COLUMNS))


@pytest.mark.parametrize("kind", [int, np.int16, "category", "string"])
def test_kinds_of_names_and_of_times(kind):
    frame = table(5).assign(day=lambda f: f.day.dt.day)
    frame["store"] = frame.store.str[1:].astype(kind)
    scores = dpc.panel.from_long(frame, **COLUMNS)
    panel = dpc.replay_panel(scores, dpc.Exact(), [0.5], dim="round", mask=scores.isnull())
    back = dpc.panel.to_long(panel, scores)
    assert back.day.dtype.kind == "i"
    assert back.store.nunique() == 5
    assert len(back) == len(frame)


def test_a_sweep_as_a_long_table():
    scores = dpc.panel.from_long(table(5), **COLUMNS)
    rates = xr.DataArray([0.8, 0.9], dims="discount")
    panel = dpc.replay_panel(scores, dpc.Exact(), [0.5], dim="round", mask=scores.isnull(), discount=rates)
    back = dpc.panel.to_long(panel, scores)
    assert list(back) == ["store", "discount", "day", "residual", "threshold_0.5"]
    assert len(back) == 2 * int(scores.count())


def test_a_panel_of_shared_times_as_a_long_table():
    values = xr.DataArray([[0.1, np.nan], [0.3, 0.4]], {"store": ["A", "B"], "time": [5, 6]}, ["store", "time"])
    panel = dpc.replay_panel(values, dpc.Exact(), [0.5], mask=values.isnull())
    back = dpc.panel.to_long(panel, values)
    assert back[["store", "time", "score"]].values.tolist() == [["A", 5, 0.1], ["B", 5, 0.3], ["B", 6, 0.4]]
    with pytest.raises(ValueError, match="panel has no thresholds: replay it with keep='all'"):
        dpc.panel.to_long(panel.drop_vars("thresholds"), values)
    with pytest.raises(ValueError, match="scores has other labels than panel"):
        dpc.panel.to_long(panel, values.isel(store=[0]))


def spoilt(column, row, value):
    frame = table(5)
    frame[column] = frame[column].astype(object)
    frame.loc[row, column] = value
    return frame


_SWAPPED = table(5)
_SWAPPED.loc[[0, 5], "day"] = _SWAPPED.loc[[5, 0], "day"].to_numpy()
_TWICE = table(5)
_TWICE.loc[5, "day"] = _TWICE.loc[0, "day"]
_HOLED = table(5)
_HOLED.loc[7, "residual"] = np.nan
_ENDLESS = table(5)
_ENDLESS.loc[7, "residual"] = np.inf
AT = r"residual at store='s02', day=2024-01-02 is "
BAD = {
    "missing id": (spoilt("store", 7, None), r"store is missing in row 7, day=2024-01-02: say which series"),
    "mixed ids": (spoilt("store", 7, 12), r"store has mixed types, such as 's00' in row 0 and 12 in row 7"),
    "missing time": (spoilt("day", 7, None), r"day is missing in row 7, store='s02': a score needs a time"),
    "mixed times": (spoilt("day", 7, "2024-01-02"), r"day has mixed types, such as .* and '2024-01-02' in row 7"),
    "text times": (table(5).astype({"day": str}), r"day has dtype .*: convert it, with pandas.to_datetime"),
    "text score": (spoilt("residual", 7, "lots"), AT + "'lots': no finite number"),
    "text scores": (table(5).astype({"residual": str}), r"residual at store='s.*', .* text in a column of dtype"),
    "nan": (_HOLED, AT + "nan: no finite number; a score that is missing has no row"),
    "infinite": (_ENDLESS, AT + "inf: no finite number"),
    "unsorted": (
        _SWAPPED,
        r"store='s00' is not in order: day=2024-01-01 comes after 2024-01-02; sort the table by day",
    ),
    "twice": (_TWICE, r"store='s00' has two scores at day=2024-01-01: leave one out"),
    "no column": (table(5).drop(columns="day"), r"time = 'day': .* has columns 'store', 'residual'"),
    "time zone": (table(5).assign(day=lambda f: f.day.dt.tz_localize("UTC")), r"day has a time zone.*tz_localize"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_tables_are_refused_by_series_and_time(name):
    frame, message = BAD[name]
    with pytest.raises(ValueError, match=message):
        dpc.panel.from_long(frame, **COLUMNS)


# Parquet has one type a column.
@pytest.mark.parametrize("name", [name for name in BAD if not name.startswith(("mixed", "text score"))])
def test_bad_files_are_refused_by_series_and_time(name, tmp_path):
    frame, message = BAD[name]
    with pytest.raises(ValueError, match=message):
        dpc.panel.open_panel(parquet(frame, tmp_path / "scores"), **COLUMNS).compute()


def test_one_nan_in_the_table_of_many_series():
    number = np.repeat(np.arange(100_000), 2)
    frame = pd.DataFrame({"series": number, "time": np.tile([1, 2], 100_000), "score": 0.5})
    frame.loc[2 * 77_777 + 1, "score"] = np.nan
    with pytest.raises(ValueError, match="score at series=77777, time=2 is nan"):
        dpc.panel.from_long(frame)


def test_a_series_out_of_range_is_named_by_its_own_time():
    frame = table(5)
    frame.loc[7, "residual"] = 1.5
    scores = dpc.panel.from_long(frame, **COLUMNS)
    with pytest.raises(ValueError, match=r"scores at store='s02', day=2024-01-02 is 1\.5: outside the support"):
        dpc.replay_panel(scores, dpc.Exact(), [0.5], dim="round", mask=scores.isnull())


def test_files_of_rows(tmp_path, monkeypatch):
    monkeypatch.setattr(opening, "ROWS", 10)
    frame = table()
    folder = parquet(frame, tmp_path / "scores", 1)
    frame.to_parquet(folder / "000.parquet", index=False, row_group_size=9)
    (folder / "_metadata.txt").write_text("not a table")
    lazy = dpc.panel.open_panel(folder, **COLUMNS)
    expected = dpc.panel.from_long(frame, **COLUMNS)
    xr.testing.assert_equal(lazy.compute(), expected)
    xr.testing.assert_equal(dpc.panel.open_panel(folder / "000.parquet", **COLUMNS).compute(), expected)


@pytest.mark.parametrize("suffix", [".zarr", ".nc"])
@pytest.mark.parametrize("chunked", [True, False])
def test_arrays_on_disk(suffix, chunked, tmp_path):
    scores = dpc.panel.from_long(table(), **COLUMNS)
    file = tmp_path / f"scores{suffix}"
    scores.to_zarr(file, zarr_format=2) if suffix == ".zarr" else scores.to_netcdf(file, engine="h5netcdf")
    opened = dpc.panel.open_panel(file, time="round", score="residual")
    assert opened.chunks is not None
    xr.testing.assert_equal(dpc.panel.open_panel(file, score="residual"), opened)  # its times are called round
    given = opened if chunked else scores
    panel = dpc.replay_panel(given, dpc.Exact(), [0.5, 0.9], dim="round", mask=given.isnull())
    dpc.panel.save_panel(panel, tmp_path / f"out/panel{suffix}")
    stored = (
        xr.open_zarr(tmp_path / "out/panel.zarr") if suffix == ".zarr" else xr.open_dataset(tmp_path / "out/panel.nc")
    )
    alone = dpc.replay_panel(scores, dpc.Exact(), [0.5, 0.9], dim="round", mask=scores.isnull())
    for name in alone.data_vars:
        np.testing.assert_array_equal(stored[name].values, alone[name].values)
    np.testing.assert_array_equal(stored.day.values, alone.day.values)
    assert [str(name) for name in stored.store.values] == alone.store.values.tolist()
    with pytest.raises(ValueError, match="exists: remove it, or choose another place"):
        dpc.panel.save_panel(panel, tmp_path / f"out/panel{suffix}")


@pytest.mark.parametrize("chunked", [True, False])
def test_a_folder_of_tables(chunked, tmp_path):
    whole = dpc.panel.from_long(table(), **COLUMNS)
    scores = whole.chunk(store=6) if chunked else whole
    panel = dpc.replay_panel(scores, dpc.Exact(), [0.5], dim="round", mask=scores.isnull())
    with pytest.raises(ValueError, match="scores is missing"):
        dpc.panel.save_panel(panel, tmp_path / "tables")
    dpc.panel.save_panel(panel, tmp_path / "tables", scores)
    files = sorted((tmp_path / "tables").glob("part-*.parquet"))
    assert len(files) == (4 if chunked else 1)
    rows = pd.concat([pd.read_parquet(file) for file in files], ignore_index=True)
    pd.testing.assert_frame_equal(rows, dpc.panel.to_long(panel.compute(), whole), check_dtype=False)
    metrics = pd.read_parquet(tmp_path / "tables/_metrics.parquet")
    assert len(metrics) == whole.sizes["store"]
    np.testing.assert_array_equal(metrics.coverage, panel.coverage.values[:, 0])


def test_series_without_names_are_numbered_as_a_whole(tmp_path):
    scores = xr.DataArray(np.random.default_rng(0).random((5, 4)), dims=["series", "time"]).chunk(series=2)
    dpc.panel.save_panel(dpc.replay_panel(scores, dpc.Exact(), [0.5]), tmp_path / "tables", scores)
    rows = pd.read_parquet(tmp_path / "tables")
    assert rows.series.tolist() == np.repeat(np.arange(5), 4).tolist()
    assert pd.read_parquet(tmp_path / "tables/_metrics.parquet").series.tolist() == [0, 1, 2, 3, 4]


def test_parts_are_read_in_the_order_of_their_numbers(tmp_path):
    (tmp_path / ".hidden").mkdir()
    table(3).to_parquet(tmp_path / ".hidden/x.parquet")
    for number in range(12):
        frame = pd.DataFrame({"series": ["A"], "time": [number], "score": [number / 12]})
        frame.to_parquet(tmp_path / f"part.{number}.parquet")
    pd.DataFrame({"series": [], "time": [], "score": []}).to_parquet(tmp_path / "part.12.parquet")
    scores = dpc.panel.open_panel(tmp_path).compute()
    assert scores.time.values.ravel().tolist() == list(range(12))
    frame = pd.DataFrame({"series": ["B"], "time": pd.to_datetime(["2024-01-01"]), "score": [0.5]})
    frame.to_parquet(tmp_path / "part.13.parquet")
    with pytest.raises(ValueError, match="numbers here and dates there, such as those of series 'A' and 'B'"):
        dpc.panel.open_panel(tmp_path)


def test_times_are_compared_and_not_subtracted():
    frame = pd.DataFrame({"series": 1, "time": np.array([3, 1, 2], np.uint16), "score": 0.5})
    with pytest.raises(ValueError, match="time=1 comes after 3"):
        dpc.panel.from_long(frame)
    dpc.panel.from_long(pd.DataFrame({"series": 1, "time": np.array([-100, 100], np.int8), "score": 0.5}))


def test_scores_of_another_order_are_not_those_of_the_panel():
    scores = dpc.panel.from_long(table(5), **COLUMNS)
    panel = dpc.replay_panel(scores, dpc.Exact(), [0.5], dim="round", mask=scores.isnull())
    with pytest.raises(ValueError, match="scores has other labels than panel, or another order"):
        dpc.panel.to_long(panel.isel(store=[1, 0, 2, 3, 4]), scores)


@pytest.mark.parametrize("sizes", [(2, 3, 4), (4, 5), (4, 4, 1)])
def test_chunks_of_many_sizes_are_saved(sizes, tmp_path):
    scores = dpc.panel.from_long(table(9), **COLUMNS).chunk(store=sizes)
    panel = dpc.replay_panel(scores, dpc.Exact(), [0.5], dim="round", mask=scores.isnull())
    dpc.panel.save_panel(panel, tmp_path / "panel.zarr")
    np.testing.assert_array_equal(xr.open_zarr(tmp_path / "panel.zarr").thresholds, panel.thresholds)


def test_what_is_no_panel_on_disk(tmp_path):
    (tmp_path / "empty").mkdir()
    (tmp_path / "a.txt").write_text("a")
    (tmp_path / "b.parquet").write_text("b")
    xr.Dataset({"x": ("time", [0.5])}).to_netcdf(tmp_path / "c.nc", engine="h5netcdf")
    for name, message in {
        "nothing": "does not exist",
        "empty": "a folder without Parquet files",
        "a.txt": "of no kind that is known: pass a Zarr store",
        "b.parquet": "is no Parquet file",
        "c.nc": "'score' is no variable of .*: it has 'x'",
    }.items():
        with pytest.raises(ValueError, match=message):
            dpc.panel.open_panel(tmp_path / name)
    with pytest.raises(ValueError, match=r"'day' is no dimension of x in .*: it has 'time'"):
        dpc.panel.open_panel(tmp_path / "c.nc", score="x", time="day")
    for bad in ({"id": "round"}, {"time": "level"}):
        with pytest.raises(ValueError, match="a panel has something else of this name"):
            dpc.panel.from_long(table(5), **(COLUMNS | bad))
    with pytest.raises(ValueError, match="name three columns"):
        dpc.panel.from_long(table(5), id="store", time="store", score="residual")
    with pytest.raises(ValueError, match="frame is a list"):
        dpc.panel.from_long([1])


def test_chunks_are_neither_too_large_nor_too_few(monkeypatch):
    monkeypatch.undo()
    assert series_of_a_chunk(10**6, 10**3, 2**20) == 2**20 // 1000
    assert series_of_a_chunk(3200, 500, 2**20) == 100
    assert series_of_a_chunk(10, 5, 2**20) == 10
    assert series_of_a_chunk(10, 10**8, 2**20) == 1
    assert series_of_a_chunk(0, 0, 2**20) == 1
