"""Diagnostics of one stream or run: ranks, uniformity, bands, coverage, dependence of misses, trees of arrays."""

import itertools
import subprocess
import sys

import jax
import numpy as np
import pytest
import xarray as xr
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

import dpconformal as dpc
from dpconformal.diagnostics import (
    coverage_curve,
    ecdf_band,
    from_datatree,
    miss_dependence,
    randomised_pit,
    rolling_band,
    smoothed_ranks,
    to_datatree,
    uniformity,
)
from dpconformal.diagnostics.calibration import band_level, simultaneous_coverage
from dpconformal.diagnostics.coverage import window_band
from dpconformal.dirichlet import Posterior
from dpconformal.martingales.exchangeability import arrival_ranks

SCORES = np.random.default_rng(0).beta(2, 5, 600)
LEVELS = [0.5, 0.8, 0.9]


@pytest.fixture(scope="module")
def run():
    return dpc.replay(dpc.Exact(), SCORES, LEVELS)


# Ranks and PITs


@pytest.mark.core
@given(st.lists(st.integers(0, 6), max_size=60))
def test_arrival_ranks_by_bits_are_those_by_counting(values):
    values = np.array(values, float)
    less, equal = arrival_ranks(values)
    for t, value in enumerate(values):
        assert less[t] == (values[:t] < value).sum()
        assert equal[t] == (values[:t] == value).sum()


def test_ranks_of_batches_infinities_and_long_sequences():
    rng = np.random.default_rng(1)
    batch = rng.normal(size=(2, 3, 100))
    less, _ = arrival_ranks(batch)
    np.testing.assert_array_equal(less[1, 2], arrival_ranks(batch[1, 2])[0])
    assert arrival_ranks([np.inf, -np.inf, 0.0])[0].tolist() == [0, 0, 1]
    assert arrival_ranks([])[0].shape == (0,)
    values = rng.random(200_000)
    less, _ = arrival_ranks(values)
    for t in (0, 1, 77_777, 199_999):
        assert less[t] == (values[:t] < values[t]).sum()
    with pytest.raises(ValueError, match=r"scores\[1\] = nan"):
        smoothed_ranks([0.1, np.nan])
    with pytest.raises(ValueError, match=r"shape \(\)"):
        smoothed_ranks(0.5)


def test_smoothed_ranks_are_exactly_uniform_under_exchangeability_whatever_the_distribution():
    rng = np.random.default_rng(2)
    for stream in (rng.beta(2, 5, 5000), rng.integers(0, 3, 5000), rng.standard_cauchy(5000), np.zeros(5000)):
        ranks = smoothed_ranks(stream, seed=3)
        assert uniformity(ranks, 0.99).inside
        assert abs(np.corrcoef(ranks[1:], ranks[:-1])[0, 1]) < 4 / np.sqrt(5000)  # independent along the stream
    drift = rng.normal(size=5000) + np.linspace(0, 1, 5000)
    assert not uniformity(smoothed_ranks(drift), 0.99).inside
    np.testing.assert_array_equal(smoothed_ranks(drift, seed=7), smoothed_ranks(drift, np.random.default_rng(7)))


def test_randomised_pit_is_that_of_the_metrics_and_near_uniform(run):
    pit = randomised_pit(run, seed=4)
    np.testing.assert_array_equal(pit, np.asarray(dpc.metrics.pit(run, jax.random.key(4))))
    assert ((pit >= 0) & (pit <= 1)).all()
    known = dpc.replay(dpc.Exact(dpc.priors.Beta(2, 5), dpc.schedules.Dirichlet(1e6)), SCORES, [0.5])
    assert uniformity(randomised_pit(known)).inside
    wrong = dpc.replay(dpc.Exact(dpc.priors.Beta(5, 2), dpc.schedules.Dirichlet(1e6)), SCORES, [0.5])
    assert not uniformity(randomised_pit(wrong)).inside


# Bands


def naive_simultaneous_coverage(count, low, high, simulations=20_000):
    u = np.random.default_rng(0).random((simulations, count))
    points = np.arange(1, len(low) + 1) / (len(low) + 1)
    below = (u[:, :, None] <= points).sum(axis=1)
    return ((below >= low) & (below <= high)).all(axis=1).mean()


@pytest.mark.parametrize(("count", "points"), [(1, 3), (7, 4), (50, 9), (120, 20)])
def test_simultaneous_coverage_against_simulation(count, points):
    grid = np.arange(1, points + 1) / (points + 1)
    low, high = (stats.binom.ppf(tail, count, grid).astype(int) for tail in (0.03, 0.97))
    exact = simultaneous_coverage(count, low, high)
    assert naive_simultaneous_coverage(count, low, high) == pytest.approx(exact, abs=4 * 0.5 / np.sqrt(20_000))


@pytest.mark.parametrize("count", [10, 300, 20_000])
def test_a_band_holds_with_the_probability_it_says(count):
    level, together = band_level(count, 0.9, 99)
    assert 0.9 <= together < 0.93
    grid, low, high = ecdf_band(count, 0.9)
    assert grid.shape == low.shape == high.shape == (99,)
    np.testing.assert_allclose(low + high[::-1], 1, atol=1.5 / count)  # symmetric, but for the side an interval ends on
    each = stats.binom.cdf(np.rint(high * count), count, grid) - stats.binom.cdf(np.rint(low * count) - 1, count, grid)
    assert (each >= 1 - level - 1e-9).all()
    if count == 300:
        flat = np.random.default_rng(5).random((2000, count))
        share = np.mean([uniformity(u, 0.9).inside for u in flat])
        assert share == pytest.approx(together, abs=4 * np.sqrt(0.09 / 2000))


def test_uniformity_says_where_and_how():
    u = np.random.default_rng(6).random(2000)
    found = uniformity(u)
    assert found.inside
    assert np.isnan(found.first_outside)
    assert found.p_value == pytest.approx(stats.kstest(u, "uniform").pvalue, rel=1e-6)
    np.testing.assert_allclose(found.difference, [(u <= g).mean() - g for g in found.grid], atol=1e-12)
    narrow = uniformity(0.1 + 0.8 * u)
    assert not narrow.inside
    assert narrow.first_outside == pytest.approx(0.01, abs=0.03)
    # Too narrow a posterior shows in the coverage of its central intervals, a shift of it does not.
    assert not uniformity(np.where(u < 0.5, u / 2, (1 + u) / 2), coverage=True).inside
    central = uniformity(u, coverage=True)
    assert central.coverage
    assert central.inside
    for bad, message in (([0.5, 1.5], r"pits\[1\] = 1.5"), ([np.nan], r"pits\[0\] = nan"), ([], "pits is empty")):
        with pytest.raises(ValueError, match=message):
            uniformity(bad)


@pytest.mark.parametrize(("chance", "window", "rounds"), [(0.9, 50, 500), (0.5, 20, 400), (0.99, 100, 1000)])
def test_rolling_bands_hold_over_a_whole_run(chance, window, rounds):
    low, high = window_band(chance, window, rounds, 0.9)
    coins = np.random.default_rng(7).random((4000, rounds)) < chance
    sums = np.cumsum(np.pad(coins, ((0, 0), (1, 0))), axis=1)
    counts = sums[:, window:] - sums[:, :-window]
    stays = ((counts >= low) & (counts <= high)).all(axis=1).mean()
    assert stays >= 0.9 - 4 * np.sqrt(0.09 / 4000)
    for tighter in (counts > low, counts < high):  # no wider than it has to be, on either side
        assert tighter.all(axis=1).mean() < 0.95 + 4 * np.sqrt(0.0475 / 4000)


def test_one_window_is_a_binomial_interval():
    assert window_band(0.9, 100, 100, 0.95) == (
        100 - stats.binom.isf(0.025, 100, 0.1),
        stats.binom.isf(0.025, 100, 0.9),
    )
    assert window_band(1.0, 10, 100) == (10, 10)
    assert window_band(0.0, 10, 100) == (0, 0)
    with pytest.raises(ValueError, match="window = 11: there are only 10 rounds"):
        window_band(0.5, 11, 10)


# Coverage of a run


def test_coverage_curve_has_both_bands(run):
    curve = coverage_curve(run)
    covered = (SCORES[:, None] <= np.asarray(run.thresholds)).sum(axis=0)
    for i, level in enumerate(LEVELS):
        here = curve.sel(level=level)
        interval = stats.binomtest(int(covered[i]), 600).proportion_ci(0.95, method="exact")
        assert float(here.low) == pytest.approx(interval.low, abs=1e-9)
        assert float(here.high) == pytest.approx(interval.high, abs=1e-9)
        assert float(here.coverage) == covered[i] / 600
    line = dpc.theory.certify(run, delta=0.05).dataset.sel(check="coverage")
    np.testing.assert_allclose(curve.band_low, line.low)
    np.testing.assert_allclose(curve.band_high, line.high)
    assert curve.passed.all()
    assert curve.claimed.all()
    bounds = dpc.theory.coverage_bound(600, np.array(LEVELS), 0.05)
    np.testing.assert_allclose([curve.theorem_low, curve.theorem_high], bounds)
    later = coverage_curve(dpc.replay(dpc.Exact(), SCORES[:50], LEVELS, state=run.state))
    np.testing.assert_allclose(later.theorem_low, dpc.theory.coverage_bound(650, np.array(LEVELS), 0.05)[0])
    off = coverage_curve(run._replace(thresholds=run.thresholds * 0.8))
    assert not off.passed.any()


def test_coverage_curve_of_batches_extremes_and_discounts():
    batch = dpc.replay(dpc.Exact(), np.stack([SCORES[:50], SCORES[50:100]]), [0.0, 0.9, 1.0])
    curve = coverage_curve(batch)
    assert curve.coverage.dims == ("batch", "level")
    assert (curve.low.sel(level=0.0) == 0).all()
    assert (curve.high.sel(level=1.0) == 1).all()
    fading = coverage_curve(dpc.replay(dpc.Exact(discount=0.9), SCORES[:100], LEVELS))
    assert not fading.claimed.any()
    assert fading.band_low.isnull().all()
    assert fading.theorem_low.isnull().all()
    assert fading.passed.all()
    credible = dpc.replay(dpc.Credible(confidence=0.9), SCORES, LEVELS)
    assert coverage_curve(credible).passed.all()


def test_rolling_band_of_a_run():
    good = dpc.Exact(dpc.priors.Beta(2, 5))
    run = dpc.replay(good, SCORES, LEVELS)
    data = rolling_band(run, 100)
    np.testing.assert_allclose(data.coverage, dpc.metrics.rolling_coverage(run, 100))
    assert data.time.values[0] == 100
    for level in LEVELS:
        low, high = window_band(level, 100, 600)
        assert (float(data.low.sel(level=level)), float(data.high.sel(level=level))) == (low / 100, high / 100)
        low, high = window_band(level, 100, 100)
        assert float(data.pointwise_low.sel(level=level)) == low / 100
    assert (data.low <= data.pointwise_low).all()
    assert data.passed.all()
    jump = np.concatenate([SCORES[:300], 0.6 + 0.4 * SCORES[300:]])
    assert not rolling_band(dpc.replay(good, jump, LEVELS), 100).passed.any()
    with pytest.raises(ValueError, match="a band needs the same levels"):
        rolling_band(dpc.replay(dpc.Exact(), SCORES[:5], np.full((5, 1), 0.5)), 2)


# Dependence of misses


def christoffersen(missed, chance):
    """The likelihood ratios, written out by transition counts and SciPy's binomial."""
    n = np.zeros((2, 2))
    for before, after in itertools.pairwise(missed):
        n[int(before), int(after)] += 1
    share = n[:, 1].sum() / n.sum()
    rows = [n[i, 1] / n[i].sum() for i in (0, 1)]
    free = sum(stats.binom.logpmf(n[i, 1], n[i].sum(), rows[i]) for i in (0, 1))
    tied = sum(stats.binom.logpmf(n[i, 1], n[i].sum(), share) for i in (0, 1))
    size = len(missed)
    overall = stats.binom.logpmf(missed.sum(), size, missed.mean()) - stats.binom.logpmf(missed.sum(), size, chance)
    return 2 * (free - tied), 2 * overall


def test_miss_dependence_against_the_written_out_tests(run):
    found = miss_dependence(run, lags=5)
    missed = SCORES[:, None] > np.asarray(run.thresholds)
    for i, level in enumerate(LEVELS):
        here = found.sel(level=level)
        independence, overall = christoffersen(missed[:, i], 1 - level)
        assert float(here.independence) == pytest.approx(independence, abs=1e-9)
        assert float(here.unconditional) == pytest.approx(overall, abs=1e-9)
        assert float(here.independence_p) == pytest.approx(stats.chi2.sf(independence, 1), abs=1e-9)
        # Finds the first round counted in the test of both, and one degree of freedom in the place of two.
        both = independence + christoffersen(missed[1:, i], 1 - level)[1]
        assert float(here.conditional) == pytest.approx(both, abs=1e-9)
        assert float(here.conditional_p) == pytest.approx(stats.chi2.sf(both, 2), abs=1e-9)
        centred = missed[:, i] - missed[:, i].mean()
        acf = [(centred[k:] * centred[:-k]).sum() / (centred**2).sum() for k in range(1, 6)]
        np.testing.assert_allclose(here.autocorrelation, acf, atol=1e-12)
        box = 600 * 602 * sum(r * r / (600 - k) for k, r in enumerate(acf, 1))
        assert float(here.ljung_box) == pytest.approx(box, rel=1e-9)
        assert int(here.misses) == missed[:, i].sum()


def test_clustered_misses_are_found_and_independent_ones_pass():
    rng = np.random.default_rng(8)
    many = dpc.replay(dpc.Exact(dpc.priors.Uniform(), dpc.schedules.Dirichlet(1e9)), rng.random((200, 500)), [0.8])
    found = miss_dependence(many, lags=5)
    for test in ("unconditional", "independence", "conditional", "ljung_box"):
        rejected = float((found[f"{test}_p"] < 0.05).mean())
        assert rejected < 0.05 + 4 * np.sqrt(0.05 * 0.95 / 200) + 0.02  # the distribution is that of many misses
    clustered = np.repeat(rng.random(100), 5)
    found = miss_dependence(dpc.replay(dpc.Exact(), clustered, [0.8]), lags=5)
    assert found.independence_p.item() < 1e-6
    assert found.ljung_box_p.item() < 1e-6
    never = miss_dependence(dpc.replay(dpc.Exact(), SCORES[:20], [1.0]), lags=2)
    assert np.isnan(never.independence.item())
    assert never.unconditional.item() == 0
    with pytest.raises(ValueError, match="lags = 20: the run has only 20 rounds"):
        miss_dependence(dpc.replay(dpc.Exact(), SCORES[:20], [0.5]), lags=20)


def test_a_learning_belief_fails_the_test_of_a_constant_chance_and_passes_its_own_band():
    """On iid scores ``unconditional_p`` rejects most runs of a learning belief, as its docstring says."""
    scores = np.random.default_rng(0).beta(2, 5, (200, 500))
    run = dpc.replay(dpc.Exact(), scores, [0.9])
    found = miss_dependence(run, lags=5)
    rejected = {test: float((found[f"{test}_p"] < 0.05).mean()) for test in ("unconditional", "conditional")}
    assert rejected["unconditional"] == pytest.approx(0.67, abs=4 * np.sqrt(0.67 * 0.33 / 200))
    assert rejected["conditional"] > 0.3
    for test in ("independence", "ljung_box"):
        assert (found[f"{test}_p"] < 0.05).mean() < 0.05 + 4 * np.sqrt(0.05 * 0.95 / 200)
    assert coverage_curve(run).passed.mean() > 0.95


# Trees


@pytest.mark.core
@pytest.mark.parametrize("store", ["netcdf", "zarr"])
def test_runs_survive_being_stored(run, store, tmp_path):
    batch = dpc.replay(dpc.Quantized(8), np.stack([SCORES[:9], SCORES[9:18]]), np.full((9, 2), 0.5))
    for name, each in (("one", run), ("many", batch)):
        tree = to_datatree(each)
        if store == "netcdf":
            tree.to_netcdf(tmp_path / f"{name}.nc", engine="h5netcdf")
            again = xr.open_datatree(tmp_path / f"{name}.nc", engine="h5netcdf").load()
        else:
            tree.to_zarr(tmp_path / f"{name}.zarr", consolidated=False)
            again = xr.open_datatree(tmp_path / f"{name}.zarr", engine="zarr", consolidated=False).load()
        assert again.equals(tree)
        back = from_datatree(again)
        for field in ("thresholds", "scores", "levels"):
            np.testing.assert_array_equal(getattr(back, field), getattr(each, field))
        np.testing.assert_array_equal(dpc.metrics.coverage(back), dpc.metrics.coverage(each))


def test_names_of_a_run(run):
    tree = to_datatree(run)
    assert tree["observed_data"]["score"].dims == ("time",)
    assert tree["constant_data"]["threshold"].dims == ("time", "level")
    assert float(tree["constant_data"]["threshold"].sel(time=600, level=0.9)) == float(run.thresholds[-1, 2])
    assert "Exact" in tree.attrs["learner"]
    many = to_datatree(dpc.replay(dpc.Exact(), np.full((2, 3, 4), 0.5), [0.5]))
    assert many["constant_data"]["covered"].dims == ("batch_0", "batch_1", "time", "level")
    assert to_datatree(dpc.replay(dpc.Exact(), [], [0.5]))["observed_data"]["score"].size == 0


def test_draws_are_a_posterior_that_arviz_accepts(tmp_path):
    import arviz_stats

    posterior = Posterior(dpc.priors.Uniform(), 5.0, SCORES[:60])
    draws = posterior.sample(jax.random.key(0), 1000)
    tree = to_datatree(draws, x=[0.2, 0.5], levels=[0.5, 0.9])
    assert tree["posterior"]["F"].dims == ("chain", "draw", "x")
    assert tree["posterior"]["q"].sel(level=0.9).shape == (1, 1000)
    table = arviz_stats.summary(tree, var_names=["F"], round_to="none")
    assert table.loc["F[0.5]", "mean"] == pytest.approx(float(posterior.mean.cdf(0.5)), abs=0.01)
    tree.to_netcdf(tmp_path / "draws.nc", engine="h5netcdf")
    assert xr.open_datatree(tmp_path / "draws.nc", engine="h5netcdf").load().equals(tree)
    assert to_datatree(draws)["posterior"]["F"].sizes["x"] == 9
    own = to_datatree({"posterior": {"mu": np.zeros((2, 5))}})
    assert own["posterior"]["mu"].dims == ("chain", "draw")


def test_what_is_no_run_is_refused(run):
    with pytest.raises(ValueError, match="data is a float: pass a Replay, draws, a Fit or a dict"):
        to_datatree(1.0)
    with pytest.raises(ValueError, match="x is given"):
        to_datatree(run, x=[0.5])
    with pytest.raises(ValueError, match="tree has no observed_data/score"):
        from_datatree(to_datatree({"posterior": {"mu": np.zeros((2, 5))}}))
    with pytest.raises(ValueError, match="keep='all'"):
        to_datatree(dpc.replay(dpc.Exact(), SCORES, LEVELS, keep="summary"))


def test_no_band_is_claimed_for_a_learner_that_has_none(run):
    stored = coverage_curve(from_datatree(to_datatree(run)))  # which learner it was is not stored
    assert not stored.claimed.any()
    assert stored.passed.all()
    assert not coverage_curve(dpc.replay(dpc.ERM(), SCORES, LEVELS)).claimed.any()
    with pytest.raises(ValueError, match="data is a Uniform with one distribution"):
        to_datatree(dpc.priors.Uniform())


def test_coordinates_are_levels_as_written_whatever_the_precision():
    with jax.enable_x64(False):
        tree = to_datatree(dpc.replay(dpc.Exact(), SCORES[:5], [0.9]))
    assert tree["constant_data"]["threshold"].sel(level=0.9).size == 5


def test_without_arviz_plots_there_is_a_clear_error(monkeypatch):
    monkeypatch.setitem(sys.modules, "arviz_plots", None)
    with pytest.raises(ImportError, match=r"this plot needs arviz_plots: pip install '\.\[plots\]'"):
        dpc.diagnostics.plot_ecdf_pit([0.2, 0.6])


def test_arviz_leaves_numpyro_whole():
    """Found with ArviZ 1.x, which puts a lazy NumPyro in its place: its parts were executed twice."""
    code = """
import numpy as np, dpconformal as dpc
dpc.diagnostics.to_datatree({"posterior": {"mu": np.zeros((2, 5))}})
import numpyro.distributions as dist
import numpyro
print(hasattr(dist, "distribution"), numpyro.distributions is dist)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["True", "True"]
