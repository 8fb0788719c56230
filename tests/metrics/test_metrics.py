"""Metrics against definitions written out."""

import importlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import reference
import xarray as xr
from cases import PRIORS, covering, sequences
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

import dpconformal as dpc
from dpconformal import metrics
from dpconformal.engine.walks import running_order_statistic
from dpconformal.metrics.arrays import arrays_of

LEVELS = np.array([0.1, 0.5, 0.9])
RUN = dpc.replay(dpc.Exact(), sequences(50)["skewed"], LEVELS)
BATCH = dpc.replay(dpc.Exact(), np.random.default_rng(1).random((2, 3, 40)), LEVELS)
VARYING = dpc.replay(dpc.Exact(), sequences(50)["uniform"], np.random.default_rng(2).random((50, 3)))
SPLIT = dpc.replay(dpc.SplitConformal(), sequences(50)["uniform"], np.array([0.5, 0.9, 1.0]))


def columns(run):
    """Every (thresholds, scores, levels) column of a run, with its index."""
    levels = np.broadcast_to(run.levels, run.thresholds.shape[-2:])
    for index in np.ndindex(run.thresholds.shape[:-2]):
        for a in range(run.thresholds.shape[-1]):
            yield (
                (*index, a),
                np.asarray(run.thresholds)[index][:, a],
                np.asarray(run.scores)[index],
                levels[:, a],
            )


def test_quantile_loss_is_the_formula():
    thresholds, scores, levels = np.random.default_rng(0).random((3, 100))
    expected = reference.quantile_loss(thresholds, scores, levels)
    np.testing.assert_allclose(metrics.quantile_loss(thresholds, scores, levels), expected, atol=1e-16)
    np.testing.assert_allclose(metrics.quantile_loss([0.5], 0, 1), [0])
    loss = metrics.quantile_loss(BATCH)
    for index, r, s, a in columns(BATCH):
        np.testing.assert_allclose(loss[index[:-1]][:, index[-1]], reference.quantile_loss(r, s, a), atol=1e-16)


def test_infinite_thresholds_cost_infinitely_much_unless_the_level_is_one():
    np.testing.assert_array_equal(metrics.quantile_loss(np.inf, 0.5, np.array([0.0, 0.9, 1.0])), [np.inf, np.inf, 0])
    table = metrics.summary(SPLIT)
    assert table.loss.sel(level=0.9) == np.inf
    assert table.loss.sel(level=1.0) == 0
    assert (table.coverage.sel(level=1.0) == 1).all()


@pytest.mark.parametrize("run", [RUN, BATCH, VARYING], ids=["single", "batch", "varying"])
def test_regret_against_every_fixed_threshold(run):
    total, curve = metrics.regret(run), metrics.regret(run, running=True)
    assert curve.shape == run.thresholds.shape
    for index, r, s, a in columns(run):
        incurred = reference.quantile_loss(r, s, a).sum()
        np.testing.assert_allclose(total[index], incurred - reference.best_total_loss(s, a), atol=1e-12)
        for n in (1, 2, 3, 20, len(s)):
            partial = reference.quantile_loss(r[:n], s[:n], a[:n]).sum() - reference.best_total_loss(s[:n], a[:n])
            np.testing.assert_allclose(curve[(*index[:-1], n - 1, index[-1])], partial, atol=1e-12)


@given(
    scores=st.lists(st.floats(0, 1) | st.sampled_from([0.0, 0.5, 1.0]), min_size=15, max_size=15),
    levels=st.lists(st.floats(0, 1), min_size=15, max_size=15),
)
def test_running_regret_of_any_sequence(scores, levels):
    scores, levels = np.array(scores), np.array(levels)
    run = dpc.Replay(np.full((15, 1), 0.5), None, scores, levels[:, None])
    curve = metrics.regret(run, running=True)[:, 0]
    for n in range(1, 16):
        incurred = reference.quantile_loss(0.5, scores[:n], levels[:n]).sum()
        np.testing.assert_allclose(
            curve[n - 1], incurred - reference.best_total_loss(scores[:n], levels[:n]), atol=1e-11
        )
    np.testing.assert_allclose(metrics.regret(run), curve[-1:], atol=1e-11)


@pytest.mark.parametrize("run", [RUN, BATCH, VARYING], ids=["single", "batch", "varying"])
def test_discounted_regret_against_every_fixed_threshold(run):
    for beta in (0.5, 0.97):
        total = metrics.discounted_regret(run, beta)
        for index, r, s, a in columns(run):
            weights = beta ** np.arange(len(s) - 1, -1, -1)
            incurred = (weights * reference.quantile_loss(r, s, a)).sum()
            np.testing.assert_allclose(total[index], incurred - reference.best_total_loss(s, a, weights), atol=1e-12)


@given(
    scores=st.lists(st.integers(0, 6), min_size=30, max_size=30),
    steps=st.lists(st.booleans(), min_size=29, max_size=29),
)
def test_running_order_statistics(scores, steps):
    scores = np.array(scores, float)
    ranks = np.cumsum([1, *steps])
    actual = running_order_statistic(jnp.asarray(scores), jnp.asarray(ranks[:, None], jnp.int32))[:, 0]
    expected = [np.sort(scores[: n + 1])[ranks[n] - 1] for n in range(30)]
    np.testing.assert_array_equal(actual, expected)


@pytest.mark.parametrize("run", [RUN, BATCH, VARYING, SPLIT], ids=["single", "batch", "varying", "split"])
def test_coverage_metrics(run):
    rolling = metrics.rolling_coverage(run, 7)
    for index, r, s, a in columns(run):
        hits = s <= r
        np.testing.assert_allclose(metrics.coverage(run)[index], hits.mean())
        np.testing.assert_allclose(metrics.coverage_error(run)[index], abs(hits.mean() - a.mean()), atol=1e-15)
        expected = [hits[i : i + 7].mean() for i in range(len(s) - 6)]
        np.testing.assert_allclose(rolling[index[:-1]][:, index[-1]], expected)
        longest = max(len(piece) for piece in "".join("." if hit else "x" for hit in hits).split("."))
        assert metrics.longest_miss_run(run)[index] == longest


def test_crossings_are_counted_by_round_pair_and_level():
    levels = np.array([0.9, 0.1, 0.5, 0.5])
    thresholds = np.array(
        [
            [0.9, 0.1, 0.5, 0.6],  # none: equal levels may differ
            [0.4, 0.1, 0.5, 0.3],  # 0.9 below one of the 0.5
            [0.1, 0.9, 0.5, 0.5],  # all but the equal ones: 5 pairs
        ]
    )
    run = dpc.Replay(thresholds, None, np.zeros(3), levels)
    found = metrics.crossings(run)
    assert (found.rounds, found.pairs) == (2, 6)
    assert found.by_level.tolist() == [2, 1, 2, 1]
    batch = metrics.crossings(run._replace(thresholds=np.stack([thresholds, thresholds * 0]), scores=np.zeros((2, 3))))
    assert batch.rounds.tolist() == [2, 0]
    assert batch.by_level.tolist() == [[2, 1, 2, 1], [0, 0, 0, 0]]
    per_round = metrics.crossings(run._replace(levels=np.tile(levels, (3, 1))))
    assert (per_round.rounds, per_round.pairs) == (2, 6)


@given(st.lists(st.lists(st.floats(0, 1), min_size=4, max_size=4), min_size=3, max_size=3))
def test_crossings_of_any_thresholds(rows):
    thresholds, levels = np.array(rows), np.array([0.2, 0.8, 0.4, 0.6])
    found = metrics.crossings(dpc.Replay(thresholds, None, np.zeros(3), levels))
    pairs = [(t, i, j) for t in range(3) for i in range(4) for j in range(4)
             if levels[i] < levels[j] and thresholds[t, i] > thresholds[t, j]]  # fmt: skip
    assert found.pairs == len(pairs)
    assert found.rounds == len({t for t, _, _ in pairs})
    expected = [len({t for t, i, j in pairs if a in (i, j)}) for a in range(4)]
    assert found.by_level.tolist() == expected


def test_intervals():
    run = dpc.replay(dpc.Exact(), sequences(40)["uniform"], [0.05, 0.5, 0.95])
    low, high, s = np.asarray(run.thresholds)[:, 0], np.asarray(run.thresholds)[:, 2], np.asarray(run.scores)
    np.testing.assert_allclose(metrics.interval_width(run, 0.05, 0.95), high - low)
    fine = 2 / 0.1 * (np.maximum(low - s, 0) + np.maximum(s - high, 0))
    np.testing.assert_allclose(metrics.interval_score(run, 0.05, 0.95), high - low + fine)
    # Finds the fine below the interval taken above it.
    middle = np.asarray(run.thresholds)[:, 1]
    uneven = np.maximum(low - s, 0) / 0.05 + np.maximum(s - middle, 0) / 0.5
    np.testing.assert_allclose(metrics.interval_score(run, 0.05, 0.5), middle - low + uneven)
    with pytest.raises(ValueError, match=r"upper = 0.9: not one of the run's levels"):
        metrics.interval_width(run, 0.05, 0.9)
    with pytest.raises(ValueError, match="0 < lower < upper < 1"):
        metrics.interval_score(run, 0.95, 0.05)
    with pytest.raises(ValueError, match="change by round"):
        metrics.interval_width(VARYING, 0.05, 0.9)


@covering(prior=["uniform", "truncated_normal", "histogram"], discount=[None, 0.9])
def test_crps_and_pit_against_the_written_out_belief(prior, discount):
    ours, twin = PRIORS[prior]
    scores = sequences(25)["tied"]
    run = dpc.replay(dpc.Exact(ours, discount=discount), scores, [0.5])
    root = np.sqrt(0.1)
    shares = reference.shares_of_past(
        25, (lambda t: t**-0.5) if discount is None else (lambda t: root / (0.9 + root)), discount
    )
    crps, pit = metrics.crps(run, points=4000), metrics.pit(run)
    randomised = metrics.pit(run, jax.random.key(0))
    for t in (0, 1, 5, 24):

        def cdf(x, t=t):
            return reference.belief_cdf(
                np.array([[x]]), twin.cdf, scores, (shares[0][t : t + 1], shares[1][t : t + 1])
            )[0, 0]

        points = np.concatenate([scores, getattr(ours, "edges", [])])
        expected = reference.crps(cdf, 0.0, 1.0, scores[t], points)
        np.testing.assert_allclose(crps[t], expected, atol=2e-6)
        np.testing.assert_allclose(pit[t], cdf(scores[t]), atol=1e-13)
        assert cdf(scores[t] - 1e-12) - 1e-9 <= randomised[t] <= pit[t]


def test_crps_error_falls_with_the_square_of_the_points():
    run = dpc.replay(dpc.Exact(), sequences(30)["uniform"], [0.5])
    best = np.asarray(metrics.crps(run, points=20_000))
    errors = [np.abs(np.asarray(metrics.crps(run, points=n)) - best).mean() for n in (50, 800)]
    assert np.log(errors[0] / errors[1]) / np.log(16) > 1.5


def test_pit_of_a_correct_belief_is_uniform():
    """A strong prior that is the truth, so that every belief is nearly the truth."""
    learner = dpc.Exact(dpc.priors.Beta(2, 5), dpc.schedules.Dirichlet(1e9))
    scores = np.random.default_rng(4).beta(2, 5, 800)
    values = np.asarray(metrics.pit(dpc.replay(learner, scores, [0.5])))
    assert stats.kstest(values, "uniform").pvalue > 0.01
    wrong = np.asarray(metrics.pit(dpc.replay(dpc.Exact(schedule=dpc.schedules.Dirichlet(1e9)), scores, [0.5])))
    assert stats.kstest(wrong, "uniform").pvalue < 1e-6


def test_randomised_pit_of_a_discrete_truth_is_uniform():
    """Alternating 0 and 1: every score sits on an atom of the empirical distribution."""
    run = dpc.replay(dpc.ERM(), np.tile([0.0, 1.0], 400), [0.5])
    values = np.asarray(metrics.pit(run, jax.random.key(1)))
    counts = np.histogram(values, bins=5, range=(0, 1))[0]
    assert stats.chisquare(counts).pvalue > 0.001
    assert stats.chisquare(np.histogram(metrics.pit(run), bins=5, range=(0, 1))[0]).pvalue < 1e-6


def test_nan_thresholds_do_not_become_coverage_inside_jit():
    bad = jax.jit(lambda s: metrics.coverage(dpc.replay(dpc.Exact(), s, LEVELS)))(np.array([0.1, 7.0, 0.2, 0.3]))
    assert np.isnan(bad).all()
    run = jax.jit(lambda s: dpc.replay(dpc.Exact(), s, LEVELS))(np.array([0.1, 7.0, 0.2, 0.3]))
    with pytest.raises(ValueError, match=r"run.thresholds\[2, 0\] = nan"):
        metrics.summary(run)


def test_a_run_that_came_out_of_vmap_reads_like_a_batch():
    """With as many sequences as rounds, so that shapes alone could not tell the axes apart."""
    scores, levels = np.random.default_rng(3).random((6, 6)), np.random.default_rng(4).random((6, 3))
    each = [dpc.replay(dpc.Exact(), s, a) for s, a in zip(scores, levels, strict=True)]
    mapped = jax.vmap(lambda s, a: dpc.replay(dpc.Exact(), s, a))(scores, levels)
    for metric in (metrics.coverage_error, metrics.regret, lambda r: metrics.crossings(r).pairs):
        np.testing.assert_allclose(metric(mapped), [metric(run) for run in each], atol=1e-12)
    assert metrics.summary(mapped).levels.dims == ("batch", "level")
    shared = jax.vmap(lambda s: dpc.replay(dpc.Exact(), s, LEVELS))(scores)
    batch = dpc.replay(dpc.Exact(), scores, LEVELS)
    np.testing.assert_allclose(metrics.regret(shared), metrics.regret(batch), atol=1e-12)
    changing = dpc.replay(dpc.Exact(), scores, levels)  # (T, A), and B = T
    assert changing.levels.shape == (6, 6, 3)
    np.testing.assert_allclose(metrics.regret(changing)[2], metrics.regret(dpc.replay(dpc.Exact(), scores[2], levels)))
    assert metrics.summary(changing).mean_level.dims == ("batch", "level")


def test_discounted_regret_of_a_traced_discount():
    plain = RUN._replace(learner=None)
    for run in (plain, jax.tree.map(np.asarray, plain)):
        result = jax.vmap(lambda b, run=run: metrics.discounted_regret(run, b))(jnp.array([0.5, 0.9, 1.5]))
        np.testing.assert_allclose(result[1], metrics.discounted_regret(plain, 0.9), atol=1e-12)
        assert np.isnan(result[2]).all()


def test_pit_and_crps_go_on_from_where_the_run_began():
    scores = sequences(40)["uniform"]
    for learner in (dpc.Exact(), dpc.Quantized(8), dpc.ERM(), dpc.SplitConformal()):
        whole = dpc.replay(learner, scores, [0.5])
        second = dpc.replay(learner, scores[15:], [0.5], state=dpc.replay(learner, scores[:15], [0.5]).state)
        np.testing.assert_allclose(metrics.pit(second), metrics.pit(whole)[15:], atol=1e-13)
        if not isinstance(learner, dpc.SplitConformal):
            np.testing.assert_allclose(metrics.crps(second), metrics.crps(whole)[15:], atol=1e-13)


def test_pit_of_batches():
    alone = metrics.pit(dpc.replay(dpc.Exact(), BATCH.scores[1, 2], LEVELS))
    np.testing.assert_allclose(metrics.pit(BATCH)[1, 2], alone, atol=1e-14)


def test_summary_is_a_labelled_dataset():
    table = metrics.summary(RUN)
    assert dict(table.sizes) == {"level": 3, "time": 50}
    assert table.level.values.tolist() == [0.1, 0.5, 0.9]
    np.testing.assert_allclose(table.coverage, metrics.coverage(RUN))
    np.testing.assert_allclose(table.regret, metrics.regret(RUN))
    np.testing.assert_allclose(table.loss, metrics.quantile_loss(RUN).mean(axis=0))
    assert (table.crossings == 0).all()
    assert "Exact" in table.attrs["learner"]
    frame = table.drop_dims("time").to_dataframe()
    assert frame.index.name == "level"
    batch = metrics.summary(BATCH)
    assert batch.regret.dims == ("batch_0", "batch_1", "level")
    assert batch.thresholds.dims == ("batch_0", "batch_1", "time", "level")
    assert metrics.summary(dpc.replay(dpc.Exact(), np.zeros((4, 5)), LEVELS)).coverage.dims == (
        "batch",
        "level",
    )


def test_a_summary_in_blocks_is_that_of_the_whole(monkeypatch):
    """Finds a stretch of misses that ends with its block."""
    missed = (np.arange(50) >= 17) & (np.arange(50) < 33)
    run = RUN._replace(thresholds=np.where(missed[:, None], -1.0, RUN.thresholds))
    whole = metrics.summary(run)
    assert (whole.longest_miss_run >= 16).all()
    monkeypatch.setattr(importlib.import_module("dpconformal.metrics.summary"), "BLOCK", 3 * 7)  # of 7 rounds
    xr.testing.assert_allclose(metrics.summary(run), whole)


def test_summary_of_levels_that_change():
    table = metrics.summary(VARYING)
    np.testing.assert_allclose(table.mean_level, np.asarray(VARYING.levels).mean(axis=0))
    assert table.levels.dims == ("time", "level")
    assert "level" not in table.coords


def test_levels_read_as_written_in_float32():
    run = dpc.replay(dpc.Exact(), sequences(20)["uniform"].astype(np.float32), [0.1, 0.9, 0.95])
    assert metrics.summary(run).level.values.tolist() == [0.1, 0.9, 0.95]


def test_empty_runs_have_empty_metrics():
    run = dpc.replay(dpc.Exact(), [], LEVELS)
    assert np.isnan(metrics.coverage(run)).all()
    assert (metrics.regret(run) == 0).all()
    assert metrics.regret(run, running=True).shape == (0, 3)
    assert (metrics.discounted_regret(run, 0.9) == 0).all()
    assert (metrics.longest_miss_run(run) == 0).all()
    assert metrics.crossings(run).rounds == 0
    assert metrics.summary(run).sizes["time"] == 0
    assert metrics.pit(run).shape == metrics.crps(run).shape == (0,)


@pytest.mark.parametrize("run", [RUN, BATCH, VARYING], ids=["single", "batch", "varying"])
def test_metrics_work_inside_jit(run):
    for metric in (
        metrics.quantile_loss,
        metrics.regret,
        metrics.coverage,
        metrics.coverage_error,
        metrics.longest_miss_run,
        lambda r: metrics.discounted_regret(r, 0.9),
        lambda r: metrics.rolling_coverage(r, 5),
        metrics.covered,
    ):
        plain = run._replace(learner=None)
        np.testing.assert_allclose(jax.jit(metric)(plain), metric(plain), atol=1e-12)


def test_what_needs_the_host_says_so_inside_jit():
    with pytest.raises(ValueError, match="outside jit"):
        jax.jit(lambda r: metrics.regret(r, running=True))(RUN)
    with pytest.raises(ValueError, match="outside jit"):
        jax.jit(lambda r: metrics.crossings(r).rounds)(RUN)


def test_float32_runs_are_summed_in_float64():
    rng = np.random.default_rng(0)
    scores = rng.random(200_000).astype(np.float32)
    run = dpc.Replay(np.full((200_000, 1), np.float32(0.5)), None, scores, np.array([0.5], np.float32))
    exact = np.abs(scores.astype(float) - 0.5).sum() / 2
    np.testing.assert_allclose(metrics.quantile_loss(run).sum(), exact, rtol=1e-13)
    final = metrics.regret(run, running=True)[-1]
    np.testing.assert_allclose(final, metrics.regret(run), atol=1e-7)


def test_totals_of_the_generic_scan_lose_nothing_in_float32():
    """Finds a plain sum in the place of the compensated one, and what it lost added with the wrong sign or never."""
    learner = dpc.Quantized(4, schedule=dpc.schedules.Constant(1.0))  # the prior's quantiles, whatever the scores
    scores, levels = np.zeros(3000, np.float32), np.array([0.1, 0.7], np.float32)
    total = dpc.replay(learner, scores, levels, keep="summary", method="scan")
    thresholds = np.asarray(dpc.replay(learner, scores[:1], levels).thresholds[0], float)
    np.testing.assert_allclose(total.total_threshold, 3000 * thresholds, rtol=1e-9)
    np.testing.assert_allclose(total.total_loss, 3000 * (1 - levels.astype(float)) * thresholds, rtol=2e-7)
    # Added up one by one the same numbers are off by far more.
    plain = np.cumsum(np.full(3000, np.float32(thresholds[0])), dtype=np.float32)[-1]
    assert abs(plain / (3000 * thresholds[0]) - 1) > 1e-6


def test_means_and_shares_do_not_overflow_where_sums_do():
    """Finds a mean threshold that is an infinite sum over T, and a coverage that asks for the sum of the losses."""
    most = np.finfo(float).max
    run = dpc.Replay(np.full((8, 1), most), None, np.full(8, most), np.array([0.5]))
    table = metrics.summary(run)
    np.testing.assert_allclose([table.mean_threshold.item(), table.loss.item()], [most, 0.0])
    np.testing.assert_allclose(metrics.by_group(run, np.arange(8) % 2).threshold, most)
    far = run._replace(thresholds=run.thresholds / 2, scores=np.zeros(8))
    assert metrics.coverage(far) == metrics.coverage_error(far) * 2 == 1
    with pytest.raises(ValueError, match="losses that add up to more than float64 holds"):
        metrics.regret(far)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: arrays_of(np.zeros((3, 2))), "run is a ndarray"),
        (lambda: metrics.coverage(dpc.Replay(np.zeros(3), None, np.zeros(3), LEVELS)), r"shape \(3,\)"),
        (lambda: metrics.coverage(RUN._replace(levels=np.zeros(5))), r"run.levels has shape \(5,\)"),
        (lambda: metrics.coverage(RUN._replace(levels=np.full(3, 90))), r"run.levels\[0\] = 90.0"),
        (lambda: metrics.coverage(RUN._replace(thresholds=RUN.thresholds.at[7, 1].set(np.nan))), r"\[7, 1\] = nan"),
        (lambda: metrics.quantile_loss(0.5, 0.3, 90), "level = 90"),
        (lambda: metrics.interval_width(RUN, 0.9, 0.1), "upper = 0.1: must exceed lower = 0.9"),
        (lambda: metrics.rolling_coverage(RUN, 0), "window = 0"),
        (lambda: metrics.rolling_coverage(RUN, 51), "only 50 rounds"),
        (lambda: metrics.discounted_regret(RUN, 1.0), "discount = 1.0"),
        (lambda: metrics.crps(RUN, points=0), "points = 0"),
        (lambda: metrics.pit(RUN._replace(learner=None)), "run.learner is None"),
        (lambda: metrics.quantile_loss("a", 0.5, 0.5), "threshold must be real numbers"),
        (lambda: metrics.quantile_loss(0.5), "score and level are needed"),
    ],
)
def test_bad_input(call, message):
    with pytest.raises(ValueError, match=message):
        call()
