"""The stock experiment: prices from files, GARCH scores and their cache, the data, the picture."""

import datetime
import errno
import io
import sys

import matplotlib
import numpy as np
import pandas as pd
import pytest
import xarray as xr
from arch import arch_model

import dpconformal as dpc
from dpconformal.checkpoints import container as atomic
from dpconformal.experiments import prices as garch
from dpconformal.experiments.prices import garch_scores, read_prices
from dpconformal.experiments.stock import LEVELS, plot_stock, stock, tabulate_stock

pytestmark = pytest.mark.xdist_group("experiment_stock")  # one worker, so that what is fitted once is fitted once

matplotlib.use("Agg")
DAYS = pd.bdate_range("2019-11-01", periods=140)


def _prices(days=140):
    returns = np.random.default_rng(0).standard_t(4, days) / 100
    return np.round(50 * np.exp(np.cumsum(returns)), 4)


def _file(path, dates, prices=None, header="Date,Open,Close"):
    prices = _prices(len(dates)) if prices is None else prices
    lines = [f"{date},{price},1.5" for date, price in zip(dates, prices, strict=True)]
    path.write_text("\n".join([header, *lines]))
    return path


@pytest.fixture
def ascending(tmp_path):
    return _file(tmp_path / "ascending.csv", DAYS.strftime("%Y-%m-%d"))


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("stock")
    file = _file(folder / "prices.csv", DAYS.strftime("%Y-%m-%d"))
    return stock(file, refit_every=20, seeds=3, progress=False, cache=folder)


FORMATS = ("%m/%d/%y", "%d/%m/%Y", "%Y%m%d", "%d-%b-%Y", "%Y-%m-%d 00:00:00-05:00")


@pytest.mark.parametrize("form", FORMATS)
def test_prices_read_the_same_in_any_layout(tmp_path, ascending, form):
    expected = read_prices(ascending)
    np.testing.assert_array_equal(expected.to_numpy(), _prices())
    assert list(expected.index) == list(DAYS)
    newest_first = _file(tmp_path / "other.csv", DAYS[::-1].strftime(form), _prices()[::-1], "Date, Open, Close")
    newest_first.write_text(newest_first.read_text().replace(",", ", ") + "\n\n")
    pd.testing.assert_series_equal(read_prices(newest_first), expected)
    some = read_prices(str(newest_first), "open", datetime.date(2019, 11, 4), "2019-12-02").rename("Open")
    pd.testing.assert_series_equal(some, expected.iloc[1:22])


def test_indices_come_with_arch():
    for name in ("sp500", "nasdaq"):
        prices = read_prices(name, "Adj Close")
        assert prices.size == 5031
        assert str(prices.index[0])[:10] == "1999-01-04"
    with pytest.raises(ValueError, match=r"sp500, column 'Opne': there is no such column; it has.* Open, High"):
        read_prices("sp500", "Opne")


ROWS = [f"2020-01-{day:02d},{day},1.5" for day in range(1, 21)]


def _with(line, text):
    """Return a file's text in which one line is replaced; the header is line 1."""
    rows = ["Date,Open,Close", *ROWS]
    rows[line - 1] = text
    return "\n".join(rows)


@pytest.mark.parametrize(
    ("text", "options", "message"),
    [
        ("", {}, r"bad.csv is empty: expected a header"),
        ("Date,Open", {}, r"bad.csv: 0 prices, and at least 12 are needed; add days"),
        ("\n".join(["Date,Open,Close", *ROWS[:11]]), {}, r"11 prices, and at least 12 are needed"),
        (_with(1, "Day,Open,Close"), {}, r"column 'Date': there is no such column; .* Day, Open, Close"),
        (_with(1, "Date,Open,open"), {}, r"column 'Open': there are 2 columns of that name"),
        (_with(1, "Date;Open;Close"), {}, r"column 'Date': .* separated by commas, Date;Open;Close"),
        (_with(4, "2020-01-03,abc,1"), {}, r"bad.csv, line 4, column 'Open' = 'abc': a price is a positive number"),
        (_with(4, "2020-01-03,,1"), {}, r"line 4, column 'Open' = '': a price is"),
        (_with(4, "2020-01-03,nan,1"), {}, r"line 4, column 'Open' = 'nan': a price is"),
        (_with(4, "2020-01-03,inf,1"), {}, r"line 4, column 'Open' = 'inf': a price is"),
        (_with(4, "2020-01-03,1_0,1"), {}, r"line 4, column 'Open' = '1_0': a price is"),
        (_with(4, "2020-01-03,0.0,1"), {}, r"line 4, column 'Open' = '0.0': a price is"),
        (_with(4, "2020-01-03,-1,1"), {"column": "Close", "start": "2020-01-05"}, None),
        (_with(4, "2020-01-03,1,234,1"), {}, r"line 4: 4 values below a header of 3; .* without thousands separators"),
        (_with(4, "2020-02-30,3,1"), {}, r"line 4, column 'Date' = '2020-02-30': not a date; .* like the others, %Y-"),
        (_with(4, ",,"), {}, r"line 4, column 'Date' = '': not a date"),
        (_with(4, "2020-01-08,3,1"), {}, r"line 9, column 'Date' = 2020-01-08: also on line 4; keep one price a day"),
        (
            _with(2, "x,1,1").replace("2020-", "x"),
            {},
            r"line 2, column 'Date' = 'x': not a date; write it as 2020-12-31",
        ),
        (_with(4, '2020-01-03,"3,1'), {}, r"cannot be read as a CSV file: unexpected end of data"),
        (_with(4, ROWS[2]), {"column": "Shut"}, r"column 'Shut': there is no such column; .* Date, Open, Close"),
        (_with(4, ROWS[2]), {"column": 1}, r"column = 1: pass the name"),
        (_with(4, ROWS[2]), {"start": "2021-01-01"}, r"0 prices from 2021-01-01 to the last day.* run from 2020-01-01"),
        (_with(4, ROWS[2]), {"end": "1970-01-01"}, r"0 prices from the first day to 1970-01-01, and at least 12"),
        (_with(4, ROWS[2]), {"start": "2020-01-04", "end": "2020-01-03"}, r"is after end = 2020-01-03: exchange them"),
        (_with(4, ROWS[2]), {"start": "01/04/20"}, r"start = '01/04/20': pass a date such as '2000-01-04'"),
        (_with(4, ROWS[2]), {"end": 2020}, r"end = 2020: pass a date"),
    ],
)
def test_bad_files_are_refused_with_line_and_value(tmp_path, text, options, message):
    file = tmp_path / "bad.csv"
    file.write_text(text)
    read = read_prices.__wrapped__ if options.get("column") == 1 else read_prices  # past the check of annotations
    if message is None:
        assert read(file, **options).size == 16
        return
    with pytest.raises(ValueError, match=message):
        read(file, **options)


def test_dates_that_can_be_misread_are_refused(tmp_path):
    early = [f"{month:02d}/{day:02d}/20" for month in (3, 4) for day in range(1, 11)]
    with pytest.raises(ValueError, match=r"'03/01/20': all dates can be read as %m/%d/%y and as %d/%m/%y"):
        read_prices(_file(tmp_path / "a.csv", early))
    old = [f"03/{day:02d}/55" for day in range(1, 21)]
    with pytest.raises(ValueError, match=r"line 2, .* '03/01/55': lies in the future as it stands; .* four digits"):
        read_prices(_file(tmp_path / "b.csv", old))


@pytest.mark.parametrize("source", ["sp5000", "a/b.csv", ".", None, 3])
def test_unknown_sources_are_refused(source):
    with pytest.raises(
        ValueError, match=r"source = .*(no such file; .* 'sp500', 'nasdaq'|cannot be read as a CSV file)"
    ):
        read_prices(source)


def test_binary_files_are_refused(tmp_path):
    (tmp_path / "x.csv").write_bytes(b"\xff\xfe\x00\x01")
    with pytest.raises(ValueError, match="cannot be read as a CSV file"):
        read_prices(tmp_path / "x.csv")


def _naive(prices, every, lookback):
    """Score by the definition: a forecast from the latest estimate on the latest returns."""
    returns = 100 * np.diff(prices) / prices[:-1]
    returns = np.array([returns[0], *returns])
    scores, parameters = [0.0] * 10, None
    for t in range(10, len(returns)):
        model = arch_model(returns[max(0, t - lookback) : t], vol="GARCH", p=1, q=1, rescale=False)
        result = model.fit(disp="off", show_warning=False) if (t - 10) % every == 0 else model.fix(parameters)
        parameters = result.params
        error = abs(returns[t] ** 2 - result.forecast(horizon=1).variance.iloc[-1, 0])
        scores.append(error / (1 + error))
    return np.array(scores)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("every", [1, 7])
def test_scores_equal_a_naive_loop(every):
    prices = _prices(40)
    found = garch_scores(pd.Series(prices), lookback=25, refit_every=every, progress=False, cache=False)
    np.testing.assert_array_equal(found, _naive(prices, every, 25))
    assert (found >= 0).all()
    assert (found < 1).all()


def test_scores_are_cached_and_damaged_caches_recomputed(tmp_path, monkeypatch):
    prices = _prices(14)
    first = garch_scores(prices, progress=False, cache=tmp_path / "new")
    (file,) = (tmp_path / "new").iterdir()

    def no_fit(*_, **__):
        raise AssertionError("fitted again")

    monkeypatch.setattr("arch.arch_model", no_fit)
    np.testing.assert_array_equal(garch_scores(prices, progress=False, cache=str(tmp_path / "new")), first)
    others = ({"refit_every": 2}, {"lookback": 50}, {"warmup": 11})
    for options in others:
        with pytest.raises(AssertionError, match="fitted again"):
            garch_scores(prices, progress=False, cache=tmp_path / "new", **options)
    with pytest.raises(AssertionError, match="fitted again"):
        garch_scores(prices + 1, progress=False, cache=tmp_path / "new")
    monkeypatch.undo()
    whole = file.read_bytes()
    flipped = bytearray(whole)
    flipped[-60] ^= 1
    for content in (b"", whole[:-8], whole[10:], b"PK\x03\x04", bytes(flipped), _saved(first)):
        file.write_bytes(content)
        np.testing.assert_array_equal(garch_scores(prices, progress=False, cache=tmp_path / "new"), first)
        assert file.read_bytes() == whole
    assert list(file.parent.iterdir()) == [file]


def _saved(array):
    buffer = io.BytesIO()
    np.save(buffer, array, allow_pickle=True)
    return buffer.getvalue()


def test_default_cache_follows_the_environment(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    garch_scores(_prices(12), progress=False)
    assert len(list((tmp_path / "dpconformal" / "garch").glob("*.dpc"))) == 1
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert garch._cache_file(None, _prices(12), ()).parent == tmp_path / "home" / ".cache" / "dpconformal" / "garch"


def test_a_cache_that_cannot_be_kept_is_told(tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    with pytest.raises(ValueError, match=r"cache = .*file'.*pass another folder, or False"):
        garch_scores(_prices(12), progress=False, cache=tmp_path / "file")
    with pytest.raises(ValueError, match="cache = 3: pass a folder"):
        garch_scores(_prices(12), progress=False, cache=3)
    with monkeypatch.context() as patch:
        patch.setattr(garch.os, "access", lambda *_: False)
        with pytest.raises(ValueError, match="it cannot be written to"):
            garch_scores(_prices(12), progress=False, cache=tmp_path)

    def full(*_):
        raise OSError(errno.ENOSPC, "no space left")

    monkeypatch.setattr(atomic, "bring_to_disk", full)
    with pytest.warns(UserWarning, match="not kept: .*no space left"):
        assert garch_scores(_prices(12), progress=False, cache=tmp_path / "full").size == 12
    assert not list((tmp_path / "full").iterdir())


@pytest.mark.parametrize(
    ("prices", "options", "message"),
    [
        (_prices(11), {}, r"prices has shape \(11,\): pass a sequence of at least warmup \+ 2 = 12"),
        (_prices(12)[None], {}, r"prices has shape \(1, 12\)"),
        (np.append(_prices(12), -1.0), {}, r"prices\[12\] = -1.0: must be positive and finite"),
        (np.append(_prices(12), np.nan), {}, r"prices\[12\] = nan"),
        (["a"] * 12, {}, r"prices must be real numbers"),
        (_prices(12), {"refit_every": 0}, r"refit_every = 0: must be a whole number, at least 1"),
        (_prices(12), {"lookback": 1}, r"lookback = 1"),
        (_prices(12), {"warmup": 1}, r"warmup = 1"),
        (np.append(_prices(12), 1e300), {}, r"prices\[12\] = 1e\+300: the forecast variance"),
    ],
)
@pytest.mark.filterwarnings("ignore:overflow")
def test_bad_arguments_are_named(prices, options, message):
    with pytest.raises(ValueError, match=message):
        garch_scores(prices, progress=False, cache=False, **options)


def test_a_price_that_stands_still_is_ordinary_input():
    scores = garch_scores(np.append(np.full(13, 7.0), 7.07), progress=False, cache=False)
    np.testing.assert_allclose(scores, [0.0] * 13 + [0.5], atol=1e-9)


@pytest.mark.parametrize("missing", ["arch", "pandas"])
def test_missing_packages_are_named_with_the_remedy(missing, monkeypatch):
    for name in [name for name in sys.modules if name.split(".")[0] == "arch"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, missing, None)
    with pytest.raises(ImportError, match=r"pip install '\.\[experiments\]'"):
        read_prices("sp500")
    if missing == "arch":
        with pytest.raises(ImportError, match=r"pip install '\.\[experiments\]'"):
            garch_scores(_prices(12), progress=False, cache=False)


def test_coverage_and_loss_equal_a_recount(data):
    assert data.attrs["source"] == "prices.csv"
    assert data.attrs["certified"] == 1
    assert data.attrs["certificate"].startswith("Quantized\n")
    assert list(data.date.values.astype("datetime64[D]")) == list(DAYS.to_numpy().astype("datetime64[D]"))
    np.testing.assert_array_equal(data.level, LEVELS)
    for method in ("ACI", "MVP", "ERM", "Quantized"):
        thresholds = data.thresholds.sel({"learner": method}).values
        scores = data.scores.values[:, None]
        gap = scores - thresholds
        losses = np.where(gap > 0, np.array(LEVELS) * gap, (np.array(LEVELS) - 1) * gap)
        cumulated = data.cumulative_loss.sel({"learner": method})
        np.testing.assert_allclose(cumulated, np.cumsum(losses, axis=0), rtol=1e-10, atol=1e-12)
        coverage, sd = (values.sel({"learner": method}).values for values in (data.coverage, data.coverage_sd))
        if method != "MVP":
            np.testing.assert_array_equal(coverage, np.mean(gap <= 0, axis=0))
            assert not sd.any()


def test_coverage_of_mvp_is_the_mean_over_seeds(data):
    scores, eta = data.scores.values, np.sqrt(np.log(80) / 140)
    learners = [dpc.MVP(LEVELS, buckets=40, eta=eta, normalize=False, seed=seed) for seed in range(3)]
    thresholds = [np.asarray(dpc.replay(learner, scores, LEVELS).thresholds) for learner in learners]
    np.testing.assert_allclose(data.thresholds.sel({"learner": "MVP"}), thresholds[0])
    covered = [np.mean(scores[:, None] <= found, axis=0) for found in thresholds]
    np.testing.assert_allclose(data.coverage.sel({"learner": "MVP"}), np.mean(covered, axis=0))
    np.testing.assert_allclose(data.coverage_sd.sel({"learner": "MVP"}), np.std(covered, axis=0), atol=1e-12)
    assert np.std(covered, axis=0).any()


def test_data_survive_a_file(data, tmp_path):
    data.to_netcdf(tmp_path / "stock.nc", engine="scipy")
    with xr.open_dataset(tmp_path / "stock.nc", engine="scipy") as back:
        xr.testing.assert_equal(back.load(), data)
        pd.testing.assert_frame_equal(tabulate_stock(back), tabulate_stock(data))
        assert back.attrs["level"] == 0.9


def test_the_table_has_a_row_for_each_method(data):
    table = tabulate_stock(data)
    assert list(table.index) == ["ACI", "MVP", "ERM", "Quantized"]
    assert list(table.columns) == [*(f"{level:g}" for level in LEVELS), "loss at 0.9"]
    assert table.loc["ERM", "0.95"] == float(data.coverage.sel({"learner": "ERM", "level": 0.95}))
    mean = float(data.cumulative_loss.sel({"learner": "ACI", "level": 0.9})[-1]) / 140
    assert table.loc["ACI", "loss at 0.9"] == pytest.approx(mean)


def test_the_picture_is_drawn(data, tmp_path):
    figure = plot_stock(data)
    above, below, beside = figure.axes
    assert len(above.lines) == 3
    assert not below.lines[0].get_ydata().any()  # ACI
    assert len(beside.containers) == 4
    figure.savefig(tmp_path / "stock.png", dpi=50)
    matplotlib.pyplot.close(figure)


def test_the_level_must_be_one_of_those_run():
    with pytest.raises(ValueError, match=r"level = 0.7: pass one of 0.5, 0.8, 0.9, 0.95, 0.99"):
        stock(level=0.7)
    with pytest.raises(ValueError, match="seeds = 0"):
        stock(seeds=0)
