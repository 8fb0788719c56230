"""The experiment on iid scores: coverage and risk against SciPy, bounds, the table, the picture."""

import importlib

import matplotlib
import numpy as np
import pandas as pd
import pytest
import xarray as xr
from cases import covering
from scipy import integrate, stats

import dpconformal as dpc
from dpconformal.experiments import runs
from dpconformal.experiments.frequentist import (
    METHODS,
    SCHEDULES,
    frequentist,
    plot_frequentist,
    tabulate_frequentist,
)

pytestmark = pytest.mark.xdist_group("experiment_frequentist")  # one worker, so that what is fitted once is fitted once

module = importlib.import_module("dpconformal.experiments.frequentist")  # the package has a function of this name

matplotlib.use("Agg")
COUNTS, LEVEL = [3, 12, 60], 0.8
TRUTH = stats.beta(2, 5)


@pytest.fixture(scope="module")
def data():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(runs, "BATCH", 4)  # two batches, the second filled up
        return frequentist(seeds=6, level=LEVEL, counts=COUNTS, progress=False)


def _scores(seed):
    return np.random.default_rng(seed).beta(2, 5, COUNTS[-1] + 1)


def _risk(threshold, level):
    """Expected loss by quadrature."""
    below = integrate.quad(lambda s: (threshold - s) * TRUTH.pdf(s), 0, threshold)[0]
    return (1 - level) * below + level * integrate.quad(lambda s: (s - threshold) * TRUTH.pdf(s), threshold, 1)[0]


def _prior_cdf(prior, x):
    edges = np.linspace(0, 1, 41)
    rises = np.diff(0.95 * TRUTH.cdf(edges) + 0.05 * edges)
    return np.interp(x, edges, np.append(0, np.cumsum(rises[::-1] if prior == "wrong" else rises)))


def _threshold(prior, method, seed, count, level):
    """The threshold after so many scores, by the definitions."""
    past = np.sort(_scores(seed)[:count])
    if method in ("ERM", "SplitConformal"):
        extra = 1 if method == "SplitConformal" else 0
        rank = int(np.ceil(level * (count + extra) - 1e-9))
        return past[rank - 1] if rank <= count else np.inf
    weight = 1 / np.sqrt(count + 1) if method == "1/√t" else float(method[4:]) / (float(method[4:]) + count)
    grid = np.linspace(0, 1, 200_001)
    belief = weight * _prior_cdf(prior, grid) + (1 - weight) * np.searchsorted(past, grid, side="right") / count
    return grid[np.argmax(belief >= level - 1e-12)]


@covering(method=METHODS, prior=["good", "wrong"])
def test_coverage_and_risk_equal_a_recount(data, prior, method):
    for seed, count in ((0, 3), (5, 60)):
        here = data.sel({"prior": prior, "learner": method, "seed": seed, "count": count})
        threshold = _threshold(prior, method, seed, count, LEVEL)
        assert float(here.coverage) == pytest.approx(TRUTH.cdf(threshold), abs=2e-5)
        if np.isinf(threshold):
            assert here.excess_risk == np.inf
        else:
            excess = _risk(threshold, LEVEL) - _risk(TRUTH.ppf(LEVEL), LEVEL)
            assert float(here.excess_risk) == pytest.approx(excess, abs=5e-6)


def test_excess_crps_is_the_distance_to_the_truth(data):
    """∫ (F - G)² for a belief F and the truth G, up to what twenty levels leave out."""
    grid = np.linspace(0, 1, 20_001)
    for prior in ("good", "wrong"):
        exact = []
        for seed in range(6):
            counted = np.searchsorted(np.sort(_scores(seed)[:60]), grid, side="right")
            belief = (20 * _prior_cdf(prior, grid) + counted) / 80
            exact.append(integrate.trapezoid((belief - TRUTH.cdf(grid)) ** 2, grid))
        found = data.excess_crps.sel({"prior": prior, "learner": "a = 20", "count": 60})
        assert float(found.mean()) == pytest.approx(np.mean(exact), rel=0.1)
    assert np.isnan(data.excess_crps.sel({"learner": "SplitConformal"})).all()


def test_risk_is_within_theorem_4_and_coverage_within_the_bracket(data):
    ours = data.sel({"learner": list(SCHEDULES)})
    assert (ours.excess_risk <= ours.bound).all()
    spread = 5 * ours.coverage.std("seed", ddof=1) / np.sqrt(6) + 1e-9
    assert (ours.coverage.mean("seed") >= ours.bracket_low - spread).all()
    assert (ours.coverage.mean("seed") <= ours.bracket_high + spread).all()
    bound = dpc.theory.excess_risk_bound(61, LEVEL, 0.05, schedule=SCHEDULES["a = 5"])
    assert float(ours.bound.sel({"prior": "uniform", "learner": "a = 5", "count": 60})) == pytest.approx(bound)
    assert data.bound.sel({"learner": ["ERM", "SplitConformal"]}).isnull().all()
    assert data.attrs["certified"] == 1


def test_a_good_prior_helps_and_a_wrong_one_hurts(data):
    risk = data.excess_crps.sel({"learner": "a = 20", "count": 3}).mean("seed")
    erm = data.excess_crps.sel({"learner": "ERM", "prior": "good", "count": 3}).mean("seed")
    assert risk.sel(prior="good") < erm < risk.sel(prior="wrong")


def test_methods_without_a_prior_are_the_same_for_each(data):
    plain = data[["coverage", "excess_risk"]].sel({"learner": ["ERM", "SplitConformal"]})
    for prior in ("uniform", "wrong"):
        xr.testing.assert_equal(plain.sel(prior=prior, drop=True), plain.sel(prior="good", drop=True))


def test_the_table_has_means_and_standard_errors(data):
    table = tabulate_frequentist(data)
    assert table.index.names == ["prior", "learner", "count"]
    assert list(table.columns[-2:]) == ["bound", "above bound"]
    row = table.loc[("wrong", "1/√t", 12)]
    values = data.excess_risk.sel({"prior": "wrong", "learner": "1/√t", "count": 12}).values
    np.testing.assert_allclose(row[["excess risk", "excess risk se"]], [values.mean(), values.std(ddof=1) / np.sqrt(6)])
    assert row["above bound"] == 0
    split = table.loc[("good", "SplitConformal", 3)]
    assert split["coverage"] == 1
    assert split[["excess risk", "excess crps", "bound", "above bound"]].isna().all()


def test_data_survive_a_file(data, tmp_path):
    data.to_netcdf(tmp_path / "frequentist.nc", engine="scipy")
    with xr.open_dataset(tmp_path / "frequentist.nc", engine="scipy") as back:
        xr.testing.assert_equal(back.load(), data)
        pd.testing.assert_frame_equal(tabulate_frequentist(back), tabulate_frequentist(data), check_index_type=False)
        assert back.attrs["certificate"] == data.attrs["certificate"]


def test_the_picture_is_drawn(data, tmp_path):
    figure = plot_frequentist(data)
    assert len(figure.axes) == 9
    assert all(len(ax.containers) == len(METHODS) for ax in figure.axes)
    figure.savefig(tmp_path / "frequentist.png", dpi=40)
    matplotlib.pyplot.close(figure)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"seeds": 1}, "seeds = 1: must be a whole number, at least 2"),
        ({"level": 0.0}, "level = 0.0"),
        ({"level": float("nan")}, "level = nan"),
        ({"counts": []}, r"counts = \[\]: pass at least one"),
        ({"counts": [5, 0]}, r"counts\[1\] = 0"),
        ({"counts": [5, 5]}, r"counts = \[5, 5\]: .* in increasing order"),
        ({"counts": (10, 5)}, "in increasing order"),
        ({"counts": [2.5]}, r"counts\[0\] = 2.5"),
    ],
)
def test_bad_arguments_are_named(options, message):
    with pytest.raises(ValueError, match=message):
        frequentist(**options)
