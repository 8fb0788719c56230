"""The drift experiment: simulated streams, regret in windows against a recount, the table, the picture."""

import importlib

import matplotlib
import numpy as np
import pandas as pd
import pytest
import scipy.stats
import xarray as xr

from dpconformal.experiments.drift import DISCOUNTS, RIVALS, STREAMS, TRUTH, drift, plot_drift, tabulate_drift

pytestmark = pytest.mark.xdist_group("experiment_drift")  # one worker, so that what is fitted once is fitted once

module = importlib.import_module("dpconformal.experiments.drift")  # the package has a function of this name

matplotlib.use("Agg")
ROUNDS, WINDOW, LEVEL = 130, 40, 0.8  # ten rounds are left over


@pytest.fixture(scope="module")
def data():
    return drift(seeds=2, rounds=ROUNDS, window=WINDOW, level=LEVEL, progress=False)


def _loss(thresholds, scores):
    return np.where(scores > thresholds, LEVEL * (scores - thresholds), (1 - LEVEL) * (thresholds - scores))


def _recount(thresholds, scores):
    """Regret and absolute coverage error as means over the whole windows, by the definitions."""
    found = []
    for start in range(0, len(scores) - WINDOW + 1, WINDOW):
        mine, theirs = thresholds[start : start + WINDOW], scores[start : start + WINDOW]
        best = min(_loss(fixed, theirs).sum() for fixed in theirs)
        found.append((_loss(mine, theirs).sum() - best, abs(np.mean(theirs <= mine) - LEVEL)))
    assert len(found) == 3
    return np.mean(found, axis=0)


def test_regret_and_coverage_equal_a_recount(data):
    for stream in STREAMS:
        scores = data.scores.sel(stream=stream).values
        for method in data.learner.values:
            here = data.sel({"stream": stream, "learner": method, "seed": 0})
            thresholds = here.thresholds.values
            np.testing.assert_allclose((here.regret, here.coverage_error), _recount(thresholds, scores), atol=1e-12)
            assert float(here.coverage) == np.mean(scores <= thresholds)


def test_methods_and_their_settings(data):
    names = [f"Exact {discount:g} {prior}" for prior in ("uniform", "learned") for discount in DISCOUNTS]
    assert list(data.learner.values) == [TRUTH, *names, *RIVALS]
    assert data.discount.sel({"learner": "Exact 0.97 learned"}) == 0.97
    assert list(data.prior.sel({"learner": ["ACI", "Exact 1 uniform"]}).values) == ["", "uniform"]
    assert data.attrs["certified"] == 1
    for learner in ("uniform", "learned"):
        assert f" {learner}, piecewise" in data.attrs["certificate"]
        assert f" {learner}, slow" in data.attrs["certificate"]


def test_thresholds_are_quantiles_of_the_discounted_belief(data):
    grid, discount = np.linspace(0, 1, 100_001), 0.97
    for stream in STREAMS:
        scores = data.scores.sel(stream=stream).values
        np.testing.assert_array_equal(scores, module._simulate(stream, ROUNDS, 0)[0])
        reference = module._simulate(stream, ROUNDS, 2)[0]  # the seed after the last
        masses = (np.histogram(reference, 20, (0, 1))[0] + 1 / 20) / (ROUNDS + 1)
        prior = np.interp(grid, np.linspace(0, 1, 21), np.append(0, np.cumsum(masses)))
        weight = np.sqrt(1 - discount) / (discount + np.sqrt(1 - discount))
        shown = data.thresholds.sel({"stream": stream, "learner": "Exact 0.97 learned"}).values
        for n in (0, 1, 60, ROUNDS - 1):
            faded = discount ** np.arange(n - 1, -1, -1.0)
            recent = np.array([faded[scores[:n] <= x].sum() for x in grid[::1000]])
            order = np.argsort(scores[:n])
            total = np.append(0, np.cumsum(faded[order]))[np.searchsorted(scores[:n][order], grid, side="right")]
            np.testing.assert_allclose(total[::1000], recent, atol=1e-12)
            belief = weight * prior + (1 - weight) * (discount**n * prior + (1 - discount) * total)
            assert shown[n] == pytest.approx(grid[np.argmax(belief >= LEVEL - 1e-12)], abs=2e-5)


def test_the_true_quantile_is_exceeded_as_often_as_it_should():
    for stream in STREAMS:
        scores, scale = module._simulate(stream, 20_000, 3)
        assert scale.min() >= 0.2 - 1e-12
        assert scale.max() <= 1
        assert scores.min() >= 0
        assert np.mean(scores <= scale * scipy.stats.beta(2, 5).ppf(0.9)) == pytest.approx(0.9, abs=0.01)
    changes = np.flatnonzero(np.diff(module._simulate("piecewise", 20_000, 3)[1])) + 1
    assert np.diff(changes).min() >= 200
    assert np.diff(changes).max() <= 500


def test_true_quantiles_are_kept(data):
    for stream in STREAMS:
        expected = module._simulate(stream, ROUNDS, 0)[1] * scipy.stats.beta(2, 5).ppf(LEVEL)
        np.testing.assert_allclose(data.thresholds.sel({"stream": stream, "learner": TRUTH}), expected, rtol=1e-10)


def test_the_table_has_means_and_standard_errors(data):
    table = tabulate_drift(data)
    assert list(table.columns) == [
        f"{name}{end}" for name in ("regret", "coverage", "coverage error") for end in ("", " se")
    ]
    assert len(table) == data.sizes["stream"] * data.sizes["learner"]
    values = data.regret.sel({"stream": "slow", "learner": "PID"}).values
    row = table.loc[("slow", "PID")]
    np.testing.assert_allclose(row[["regret", "regret se"]], [values.mean(), values.std(ddof=1) / np.sqrt(2)])


def test_data_survive_a_file(data, tmp_path):
    data.to_netcdf(tmp_path / "drift.nc", engine="scipy")
    with xr.open_dataset(tmp_path / "drift.nc", engine="scipy") as back:
        xr.testing.assert_equal(back.load(), data)
        pd.testing.assert_frame_equal(tabulate_drift(back), tabulate_drift(data), check_index_type=False)
        assert back.attrs["experiment"] == "drift"
        assert back.attrs["certificate"] == data.attrs["certificate"]


def test_the_picture_is_drawn(data, tmp_path):
    figure = plot_drift(data)
    assert len(figure.axes) == 6
    for ax in figure.axes[2:]:  # two lines and two points of ours, and the rivals
        assert len(ax.containers) == 4 + len(RIVALS)
    figure.savefig(tmp_path / "drift.png", dpi=40)
    matplotlib.pyplot.close(figure)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"seeds": 1}, "seeds = 1: must be a whole number, at least 2"),
        ({"rounds": 0}, "rounds = 0"),
        ({"window": 0}, "window = 0"),
        ({"window": 51, "rounds": 50}, "window = 51: must not exceed rounds = 50"),
        ({"level": 1.0}, "level = 1.0"),
        ({"level": float("nan")}, "level = nan"),
    ],
)
def test_bad_arguments_are_named(options, message):
    with pytest.raises(ValueError, match=message):
        drift(**options)
