"""Studies over many data sets: simulation-based calibration, credible intervals, learners compared; and pictures."""

import warnings

import jax
import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np
import pytest
import reference
from scipy import stats

import dpconformal as dpc
from dpconformal import diagnostics
from dpconformal.diagnostics import compare, credible_pits, interval_coverage, sbc, summary, to_datatree, uniformity
from dpconformal.diagnostics.compare import jackknife_error, leave_out_blocks
from dpconformal.dirichlet import Posterior

mpl.use("Agg")
UNIFORM, BETA = dpc.priors.Uniform(), dpc.priors.Beta(2, 5)
SCORES = np.random.default_rng(0).beta(2, 5, 300)
EXACT, ERM = dpc.Exact(schedule=dpc.schedules.Dirichlet(5.0)), dpc.ERM()


@pytest.fixture(autouse=True)
def _close_figures():
    yield
    plt.close("all")


# Simulation-based calibration


@pytest.fixture(scope="module")
def right():
    return sbc(UNIFORM, 5.0, count=50, simulations=2000)


@pytest.mark.core
def test_sbc_passes_for_the_right_model(right):
    assert right.passed
    assert set(right.pits) == {"cdf", "quantile", "mean", "next"}
    for name, pits in right.pits.items():
        assert pits.shape == (2000,)
        assert stats.kstest(pits, "uniform").pvalue > 1e-3, name
    assert all(found.inside for found in sbc(dpc.priors.Beta(2, 3), 0.7, 3, 1000, bins=16).uniformity(0.999).values())


@pytest.mark.parametrize(
    ("count", "options"),
    [
        (50, {"fit_concentration": 20.0}),
        (20, {"fit_concentration": 0.3}),
        (400, {"schedule": dpc.schedules.InverseSqrt()}),
    ],
)
def test_sbc_fails_for_the_wrong_concentration_and_for_a_schedule(count, options):
    wrong = sbc(UNIFORM, 5.0, count=count, simulations=2000, **options)
    assert not wrong.passed
    if wrong.fitted > 5:  # too heavy a prior moves everything; too light a one only widens
        found = wrong.uniformity(0.99)
        assert not found["cdf"].inside
        assert not found["quantile"].inside
    assert wrong.fitted == pytest.approx(options.get("fit_concentration", np.sqrt(401) + 1))


def test_sbc_without_scores_is_the_prior_and_a_right_schedule_is_right():
    assert sbc(UNIFORM, 5.0, count=0, simulations=500, bins=16).passed
    same = sbc(UNIFORM, 5.0, count=20, simulations=500, bins=16, schedule=dpc.schedules.Dirichlet(5.0))
    assert same.fitted == pytest.approx(5.0)
    assert same.passed


def test_sbc_of_a_small_concentration_whose_masses_are_tiny():
    for a in (0.1, 0.5):
        assert sbc(UNIFORM, a, count=20).passed


def test_sbc_through_the_public_posterior():
    """The same calibration by way of Posterior itself: its closed forms and its draws."""
    rng, a, bins, data = np.random.default_rng(3), 4.0, 32, 400
    found = {"cdf": [], "quantile": [], "mean": []}
    for i in range(data):
        p = rng.dirichlet(np.full(bins, a / bins))
        scores = (rng.choice(bins, 30, p=p) + rng.random(30)) / bins
        posterior, steps = Posterior(UNIFORM, a, scores), np.append(0, np.cumsum(p))
        place = min(np.searchsorted(steps[1:], 0.9), bins - 1)
        at, before = posterior.quantile_cdf(0.9, (place + np.array([1, 0])) / bins)
        found["quantile"].append(before + rng.random() * (at - before))
        marginal = posterior.cdf_marginal(0.25)
        found["cdf"].append(stats.beta.cdf(steps[8], float(marginal.concentration1), float(marginal.concentration0)))
        draws = posterior.sample(jax.random.key(i), 19, "grid", bins).mean()
        found["mean"].append(((np.asarray(draws) < p @ (np.arange(bins) + 1) / bins).sum() + rng.random()) / 20)
    for name, pits in found.items():
        assert uniformity(pits, 0.997).inside, name


def test_sbc_raises_no_more_false_alarms_than_it_says():
    failures = sum(not sbc(UNIFORM, 3.0, 10, 200, bins=8, draws=5, seed=seed).passed for seed in range(100))
    assert failures <= 5  # one in a hundred is expected at most


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"bins": 1}, "bins = 1"),
        ({"level": 1.0}, "level = 1.0"),
        ({"fit_concentration": 0.0}, "fit_concentration = 0.0"),
        ({"fit_concentration": 2.0, "schedule": dpc.schedules.InverseSqrt()}, "both say how to fit"),
        ({"prior": dpc.priors.TruncatedNormal(0.5, 1e-3)}, r"prior's mass of bin\[0\] = 0"),
        ({"point": 3.0}, "point = 3"),
        ({"concentration": 0.01}, "concentration = 0.01: F at the point would be 0 or 1"),
    ],
)
def test_bad_calibrations(options, message):
    with pytest.raises(ValueError, match=message):
        sbc(**({"prior": UNIFORM, "concentration": 5.0, "count": 10, "simulations": 5} | options))


# Credible intervals under an arbitrary truth


@pytest.mark.core
def test_fixed_concentration_is_calibrated_in_the_end_and_one_over_root_t_is_not():
    for schedule, count, low, high in (
        (dpc.schedules.Dirichlet(5.0), 5000, 0.88, 0.92),
        (dpc.schedules.Dirichlet(5.0), 500, 0.88, 0.92),
        (dpc.schedules.InverseSqrt(), 500, 0.62, 0.68),
        (dpc.schedules.InverseSqrt(), 5000, 0.61, 0.67),
        (dpc.schedules.InverseSqrt(), 500_000, 0.6, 0.68),  # and it does not mend
    ):
        pits = credible_pits(BETA, UNIFORM, schedule, count, level=0.9, datasets=20_000)
        assert low <= interval_coverage(pits, 0.9) <= high, (schedule, count)
    right = credible_pits(BETA, BETA, dpc.schedules.InverseSqrt(), 5000, datasets=20_000)
    assert interval_coverage(right, 0.9) > 0.88  # unless the prior is the truth


def test_credible_pits_are_those_of_posteriors_of_drawn_scores():
    rng, quantile = np.random.default_rng(1), stats.beta(2, 5).ppf(0.9)
    covered, pits = [], []
    for _ in range(300):
        posterior = Posterior(UNIFORM, 5.0, rng.beta(2, 5, 5000))
        pits.append(posterior.quantile_cdf(0.9, quantile))
        low, high = posterior.quantile_interval(0.9, mass=0.9) if len(pits) <= 100 else (np.nan, np.nan)
        covered.append(low <= quantile <= high)
    fast = credible_pits(BETA, UNIFORM, dpc.schedules.Dirichlet(5.0), 5000, datasets=20_000)
    assert stats.ks_2samp(pits, fast).pvalue > 1e-3
    # An interval holds the quantile if its probability is central, but for its atoms.
    central = np.abs(2 * np.array(pits[:100]) - 1) <= 0.9
    assert np.mean(central == np.array(covered[:100])) > 0.97


def test_interval_coverage_counts():
    pits = np.random.default_rng(2).random(500)
    masses = np.array([0.1, 0.5, 0.9])
    expected = [np.mean((pits >= (1 - m) / 2) & (pits <= (1 + m) / 2)) for m in masses]
    np.testing.assert_allclose(interval_coverage(pits, masses), expected, atol=1e-12)
    with pytest.raises(ValueError, match=r"masses = 1\.5"):
        interval_coverage(pits, 1.5)
    with pytest.raises(ValueError, match="no posterior to check"):
        credible_pits(BETA, UNIFORM, dpc.schedules.Constant(1.0), 5)


# Learners compared


@pytest.fixture(scope="module")
def compared():
    learners = {"DP": EXACT, "ERM": ERM, "split": dpc.SplitConformal(), "OGD": dpc.OGD([0.5, 0.9])}
    return compare(learners, lambda rng, rounds: rng.beta(2, 5, rounds), datasets=60, rounds=80, levels=[0.5, 0.9])


def test_compare_means_and_errors(compared):
    run = dpc.replay(EXACT, np.random.default_rng(np.random.SeedSequence(0).spawn(60)[7]).beta(2, 5, 80), [0.5, 0.9])
    here = compared.sel(learner="DP", dataset=7)
    np.testing.assert_allclose(here.coverage, dpc.metrics.coverage(run))
    np.testing.assert_allclose(here.loss, np.mean(dpc.metrics.quantile_loss(run), axis=0))
    np.testing.assert_allclose(here.width, np.mean(run.thresholds, axis=0))
    np.testing.assert_allclose(here.crps, np.mean(dpc.metrics.crps(run)), rtol=0.01)  # from 32 levels
    values = compared.coverage.sel(learner="ERM", level=0.9).values
    assert float(compared.coverage_mean.sel(learner="ERM", level=0.9)) == pytest.approx(values.mean())
    assert float(compared.coverage_se.sel(learner="ERM", level=0.9)) == pytest.approx(values.std(ddof=1) / np.sqrt(60))
    gain = compared.loss.sel(learner="ERM", level=0.9) - compared.loss.sel(learner="DP", level=0.9)
    assert float(compared.loss_gain.sel(learner="ERM", level=0.9)) == pytest.approx(float(gain.mean()))
    # The same data sets: differences are known far better than levels.
    assert (compared.loss_gain_se.sel(learner="ERM") < compared.loss_se.sel(learner="ERM")).all()


def test_compare_leaves_out_what_is_not_defined(compared):
    assert compared.crps_mean.sel(learner="OGD").isnull()
    assert compared.crps_mean.sel(learner="split").isnull()
    assert compared.width_mean.sel(learner="split", level=0.9).isnull()  # infinite in the first rounds
    assert compared.crps_mean.sel(learner=["DP", "ERM"]).notnull().all()


def test_compare_on_recorded_scores_with_a_burn_in_and_by_class_name():
    found = compare([EXACT, ERM], SCORES, datasets=53, rounds=60, levels=[0.9], burn_in=20, seed=3)
    assert found.learner.values.tolist() == ["Exact", "ERM"]
    assert found.sizes["dataset"] == 53  # more than one block, the last one not full
    assert found.coverage.notnull().all()
    two = compare([dpc.Exact(), EXACT], SCORES, datasets=2, rounds=10, levels=[0.9])
    assert "Dirichlet" in two.learner.values[1]


def test_errors_on_a_record_are_those_of_another_record():
    """Errors over random orders of one record covered the simulator's value in 13 % of records, not 95 %."""
    learners = {"DP": EXACT, "OGD": dpc.OGD([0.5, 0.9])}
    draw, size = lambda rng, rounds: rng.beta(2, 5, rounds), {"rounds": 80, "levels": [0.5, 0.9]}
    truth = compare(learners, draw, datasets=1000, seed=1, **size)
    records = [compare(learners, draw(np.random.default_rng(r), 80), datasets=10, seed=r, **size) for r in range(25)]
    for name in ("coverage", "width", "loss", "crps", "width_gain", "loss_gain"):
        value = name if name.endswith("gain") else f"{name}_mean"
        off = np.stack([np.abs(one[value] - truth[value]) / one[f"{name}_se"] for one in records])
        defined = np.isfinite(off).all(axis=0)
        assert defined.any()
        assert (off <= 2)[:, defined].mean() > 0.85, name  # 25 records: 0.95 is expected, with an error of 0.04


def test_more_data_sets_do_not_make_a_record_longer():
    few, many = (compare([EXACT], SCORES[:80], datasets=n, rounds=80, levels=[0.5, 0.9]) for n in (50, 500))
    assert (many.loss_se > 0.8 * few.loss_se).all()  # over data sets alone it would be 0.3
    assert few.attrs["record"] == 80
    simulated = compare([EXACT], lambda rng, n: rng.beta(2, 5, n), datasets=50, rounds=80, levels=[0.5, 0.9])
    assert simulated.attrs["record"] == 0


@pytest.mark.parametrize("count", [2, 3, 19, 20, 41, 415])
def test_blocks_are_left_out_one_by_one(count):
    rows = leave_out_blocks(count)
    length = count - rows.shape[1]
    assert len(rows) == min(count, count // length)
    out = np.stack([np.setdiff1d(np.arange(count), row) for row in rows])
    np.testing.assert_array_equal(out.ravel(), np.arange(len(rows) * length))


def test_the_jackknife_of_a_mean_is_its_error_and_two_hold_the_truth_as_often_as_two_of_a_normal():
    numbers = np.random.default_rng(0).random((4000, 41))
    found = jackknife_error(numbers[:, leave_out_blocks(41)].mean(axis=-1), 41, 39)
    factor = stats.t.ppf(stats.norm.cdf(2), 19) / 2
    np.testing.assert_allclose(found[:3], [factor * np.sqrt(reference.jackknife_variance(x, 2)) for x in numbers[:3]])
    assert np.mean(found**2) == pytest.approx(factor**2 / 12 / 41, rel=0.03)
    inside = np.mean(np.abs(numbers.mean(axis=1) - 0.5) <= 2 * found)
    assert inside == pytest.approx(0.9545, abs=4 * np.sqrt(0.045 / 4000))


def test_bad_comparisons():
    simulator = lambda rng, rounds: rng.random(rounds)  # noqa: E731
    for given, message in (
        (([], simulator), "learners is empty"),
        (([ERM, ERM], simulator), "two are the same"),
        ((ERM, simulator), "pass a dict of learners"),
        (([ERM], lambda rng, rounds: rng.random(3)), r"simulator returned shape \(3,\): expected \(500,\)"),
        (([ERM], SCORES), r"simulator has shape \(300,\): pass a function, or at least rounds = 500"),
        (([ERM], lambda rng, rounds: np.full(rounds, 2.0)), r"scores\[0, 0\] = 2.0"),
    ):
        with pytest.raises(ValueError, match=message):
            compare(*given, datasets=2)
    with pytest.raises(ValueError, match="burn_in = 500"):
        compare([ERM], simulator, burn_in=500)
    with pytest.raises(ValueError, match=r"levels\[0\] = 90"):
        compare([ERM], simulator, levels=[90])
    with pytest.raises(ValueError, match=r"simulator has shape \(1,\): pass a function, or at least two scores"):
        compare([ERM], [0.5], rounds=1)


# Chains


def test_summary_warns_of_chains_that_disagree_of_few_draws_and_of_divergences():
    rng = np.random.default_rng(4)
    good = {"mu": rng.normal(size=(4, 500)), "fixed": np.ones((4, 500))}
    table = summary(to_datatree({"posterior": good}))
    assert table.verdict.to_dict() == {"mu": "good", "fixed": "constant"}
    third = summary(to_datatree({"posterior": {"third": np.full((4, 500), 0.3)}}))
    assert third.verdict.tolist() == ["constant"]  # although the sd of 0.3 is 1e-16
    apart = rng.normal(size=(4, 500)) + np.arange(4)[:, None]
    with pytest.warns(UserWarning, match=r"mu = .*: r_hat .* is above 1.01.*the chains disagree"):
        table = summary(to_datatree({"posterior": {"mu": apart}}))
    assert "r_hat" in table.loc["mu", "verdict"]
    with pytest.warns(UserWarning, match="ess_bulk .* is below 400; .*run longer chains"):
        summary(to_datatree({"posterior": {"mu": rng.normal(size=(4, 50))}}))
    diverging = np.zeros((4, 500), bool)
    diverging[0, 3] = True
    with pytest.warns(UserWarning, match="diverging = 1 of 2000 draws"):
        summary(to_datatree({"posterior": good, "sample_stats": {"diverging": diverging}}))
    with pytest.raises(ValueError, match=r"names\[0\] = 'nu': the posterior has mu, fixed"):
        summary(to_datatree({"posterior": good}), names=["nu"])
    with pytest.raises(ValueError, match="a summary needs posterior"):
        summary(to_datatree({"prior": good}))
    draws = Posterior(UNIFORM, 5.0, SCORES).sample(jax.random.key(0), 1000)
    assert (summary(draws, x=[0.3], levels=[0.5]).verdict == "good").all()
    assert list(summary(draws, x=[0.3], levels=[0.5]).index) == ["F[0.3]", "q[0.5]"]


# Pictures


def test_pictures_draw_what_was_computed(right, compared):
    u = np.random.default_rng(5).random(500)
    found = uniformity(u**2)
    ax = diagnostics.plot_uniformity(found)
    np.testing.assert_allclose(ax.lines[1].get_ydata()[1:-1], found.difference)
    assert "leaves the band at 0.0" in ax.get_title()
    assert "inside the band" in diagnostics.plot_uniformity(u).get_title()
    assert diagnostics.plot_uniformity(u, coverage=True).get_ylabel() == "coverage − mass"

    run = dpc.replay(dpc.Exact(), SCORES, [0.5, 0.9])
    curve = diagnostics.coverage_curve(run)
    ax = diagnostics.plot_coverage(run)
    drawn = ax.containers[0].lines[0].get_ydata()
    np.testing.assert_allclose(drawn, curve.coverage - curve.level)
    figure = diagnostics.plot_rolling(run, 50)
    assert [ax.get_title(loc="left")[:9] for ax in figure.axes] == ["level 0.9", "level 0.5"]
    np.testing.assert_allclose(
        next(line for line in figure.axes[0].lines if line.get_label() == "coverage").get_ydata(),
        dpc.metrics.rolling_coverage(run, 50)[:, 1],
    )

    figure = diagnostics.plot_sbc(right)
    assert [ax.get_title() for ax in figure.axes] == ["distribution function", "threshold", "mean", "next score"]
    wrong = diagnostics.plot_sbc(sbc(UNIFORM, 5.0, 50, 2000, fit_concentration=20.0))
    assert "✗" in wrong.axes[0].get_title()
    figure = diagnostics.plot_compare(compared)
    assert len(figure.axes) == 4
    assert [label.get_text() for label in figure.axes[0].get_yticklabels()] == ["DP", "ERM", "split", "OGD"]
    ax = diagnostics.plot_calibration({"fixed": u, "drifting": u**2})
    assert [text.get_text() for text in ax.get_legend().get_texts()] == ["calibrated", "fixed", "drifting"]
    for picture in plt.get_fignums():
        plt.figure(picture).canvas.draw()


def test_pictures_refuse_what_they_cannot_show(compared):
    many = dpc.replay(dpc.Exact(), np.full((2, 5), 0.5), [0.5])
    for draw in (diagnostics.plot_coverage, lambda run: diagnostics.plot_rolling(run, 2)):
        with pytest.raises(ValueError, match="one sequence with fixed levels"):
            draw(many)
    with pytest.raises(ValueError, match="not what compare returned"):
        diagnostics.plot_compare(diagnostics.coverage_curve(dpc.replay(dpc.Exact(), SCORES, [0.5])))
    with pytest.raises(ValueError, match="pits is empty"):
        diagnostics.plot_calibration({})


@pytest.mark.core
def test_arviz_draws_the_same_pits(right):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # ArviZ's own
        diagnostics.plot_ecdf_pit(right, coverage=True)
        panels = {ax.get_title(): ax for ax in plt.gcf().axes if ax.get_title()}
        assert set(panels) == {"cdf", "quantile", "mean", "next"}
        for name, ax in panels.items():
            # The curve is our own: the largest distance to the diagonal is that of the same numbers.
            heights = np.concatenate([np.asarray(line.get_ydata(), float) for line in ax.lines])
            ours = uniformity(right.pits[name], points=999, coverage=True).difference
            assert np.nanmax(np.abs(heights)) == pytest.approx(np.abs(ours).max(), abs=0.01)
        diagnostics.plot_ecdf_pit(np.random.default_rng(0).random(100))
    with pytest.raises(ValueError, match=r"mean\[1\] = 1.5"):
        diagnostics.plot_ecdf_pit({"mean": [0.2, 1.5]})
    with pytest.raises(ValueError, match=r"pits have unequal lengths, \{'a': 2, 'b': 1\}"):
        diagnostics.plot_ecdf_pit({"a": [0.2, 0.5], "b": [0.1]})
