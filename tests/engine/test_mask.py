"""Rounds without a score, on purpose: thresholds are given, nothing is observed, and nobody judges them."""

import cases
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import reference
from hypothesis import given
from hypothesis import strategies as st

import dpconformal as dpc

T = 40
LEVELS = cases.LEVELS
RNG = np.random.default_rng(11)
SCORES = RNG.random((2, T))
MASK = RNG.random((2, T)) < 0.3
MASK[0, :3] = MASK[1, -3:] = True  # from the start, and to the end
MASK[1, 10:20] = True
ROWS = RNG.random((T, 3))
HOLED = np.where(MASK, np.nan, SCORES)
NATIVE = ("exact", "exact_discounted", "quantized", "quantized_discounted", "erm", "nexcp")
OFFLINE = {name: cases.ALL[name] for name in NATIVE} | {
    "exact_fast": dpc.Exact(discount=1e-9),  # masses must be shrunk within these rounds
}
HEADS = {
    "credible": dpc.Credible(dpc.Exact(schedule=dpc.schedules.Dirichlet(2.0))),
    "corrected": dpc.Corrected(dpc.Quantized(bins=16)),
}


def same(one, two, tolerance=1e-9):
    for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(two), strict=True):
        if jnp.issubdtype(a.dtype, jax.dtypes.prng_key):
            a, b = jax.random.key_data(a), jax.random.key_data(b)
        np.testing.assert_allclose(np.asarray(a, float), np.asarray(b, float), atol=tolerance, rtol=0)


@pytest.mark.parametrize("name", cases.ALL | HEADS)
def test_masked_replay_is_a_loop_that_skips(name):
    learner = (cases.ALL | HEADS)[name]
    run = dpc.replay(learner, HOLED[0, :12], LEVELS, mask=MASK[0, :12])
    found, state = reference.masked_loop(learner, SCORES[0, :12], LEVELS, MASK[0, :12])
    np.testing.assert_allclose(run.thresholds, found, atol=1e-9)
    if jax.tree.map(jnp.shape, run.state) == jax.tree.map(jnp.shape, state):
        same(run.state, state)


@cases.covering(name=OFFLINE | HEADS, levels=[LEVELS, ROWS])
def test_native_loops_agree_with_the_scan_on_unequal_masks(name, levels):
    learner = (OFFLINE | HEADS)[name]
    run = dpc.replay(learner, HOLED, levels, mask=MASK)
    scan = dpc.replay(learner, HOLED, levels, mask=MASK, method="scan")
    same((run.thresholds, run.state), (scan.thresholds, scan.state))
    total = dpc.replay(learner, HOLED, levels, mask=MASK, keep="summary")
    other = dpc.replay(learner, HOLED, levels, mask=MASK, keep="summary", method="scan")
    np.testing.assert_array_equal(total.rounds, (~MASK).sum(axis=1))
    same((total.covered, total.loss, total.mean_threshold), (other.covered, other.loss, other.mean_threshold))
    same(total.state, scan.state)
    one = dpc.replay(learner, HOLED[1], levels, mask=MASK[1])  # by stretches, not by a batch's loop
    same((one.thresholds, one.state), jax.tree.map(lambda leaf: leaf[1], (scan.thresholds, scan.state)))


@pytest.mark.parametrize("name", ["exact", "quantized_discounted", "ogd"])
def test_carried_states_and_masks(name):
    learner = cases.ALL[name]
    whole = dpc.replay(learner, HOLED, LEVELS, mask=MASK)
    first = dpc.replay(learner, HOLED[:, :17], LEVELS, mask=MASK[:, :17])
    rest = dpc.replay(learner, HOLED[:, 17:], LEVELS, first.state, mask=MASK[:, 17:])
    same(jnp.concatenate([first.thresholds, rest.thresholds], axis=1), whole.thresholds)
    parts = [
        dpc.replay(learner, HOLED[:, here], LEVELS, state, "summary", mask=MASK[:, here])
        for here, state in ((slice(17), None), (slice(17, None), first.state))
    ]
    total = dpc.replay(learner, HOLED, LEVELS, keep="summary", mask=MASK)
    np.testing.assert_array_equal(parts[0].covered + parts[1].covered, total.covered)
    np.testing.assert_array_equal(parts[0].rounds + parts[1].rounds, total.rounds)


@given(st.data())
def test_a_masked_replay_is_the_replay_of_what_is_left(data):
    name = data.draw(
        st.sampled_from(["exact", "exact_discounted", "quantized", "quantized_discounted", "erm", "nexcp"])
    )
    scores = np.array(data.draw(st.lists(st.sampled_from([0.0, 0.1, 0.25, 0.5, 0.9, 1.0]), min_size=T, max_size=T)))
    mask = np.array(data.draw(st.lists(st.booleans(), min_size=T, max_size=T)))
    run = dpc.replay(cases.ALL[name], np.where(mask, np.nan, scores), LEVELS, mask=mask)
    left = dpc.replay(cases.ALL[name], scores[~mask], LEVELS, method="scan")
    np.testing.assert_allclose(run.thresholds[~mask], left.thresholds, atol=1e-9)
    np.testing.assert_allclose(run.observed().thresholds, left.thresholds, atol=1e-9)
    assert np.isnan(np.asarray(run.scores)[mask]).all()
    following = np.asarray(run.thresholds)
    for t in np.flatnonzero(mask[:-1]):  # nothing is learned, so the next round is answered alike
        np.testing.assert_array_equal(following[t], following[t + 1])


@pytest.mark.parametrize("name", ["exact", "exact_discounted", "quantized", "erm", "aci"])
def test_nothing_masked_is_no_mask(name):
    learner, nothing = cases.ALL[name], np.zeros(T, bool)
    run, plain = dpc.replay(learner, SCORES, LEVELS, mask=nothing), dpc.replay(learner, SCORES, LEVELS)
    np.testing.assert_array_equal(run.thresholds, plain.thresholds)
    assert run.mask.shape == SCORES.shape
    assert plain.mask is None
    everything = dpc.replay(learner, np.full(T, np.nan), LEVELS, mask=~nothing)
    np.testing.assert_array_equal(everything.thresholds, np.broadcast_to(everything.thresholds[0], (T, LEVELS.size)))
    np.testing.assert_array_equal(everything.thresholds[0], plain.thresholds[0, 0])
    assert dpc.replay(learner, [], LEVELS, mask=[]).thresholds.shape == (0, LEVELS.size)


def test_everything_masked_has_no_rounds_to_share():
    total = dpc.replay(dpc.Exact(), np.full(3, np.nan), [0.5], keep="summary", mask=np.ones(3, bool))
    assert total.rounds == 0
    assert np.isnan([total.coverage, total.loss]).all()
    assert np.isnan(dpc.metrics.coverage(dpc.replay(dpc.Exact(), [np.nan], [0.5], mask=[True]))).all()


@pytest.mark.parametrize("name", ["exact", "exact_discounted", "ogd"])
def test_inside_jit_vmap_and_grad(name):
    learner = cases.ALL[name]
    expected = dpc.replay(learner, HOLED, LEVELS, mask=MASK).thresholds

    def thresholds(scores, mask):
        return dpc.replay(learner, scores, LEVELS, mask=mask).thresholds

    same(jax.jit(thresholds)(HOLED, MASK), expected)
    same(jax.vmap(thresholds)(HOLED, MASK), expected)
    same(jax.jit(lambda scores: thresholds(scores, MASK))(HOLED), expected)
    same(jax.jit(lambda mask: thresholds(HOLED, mask))(MASK), expected)
    slopes = jax.grad(lambda scores: jnp.where(jnp.isfinite(x := thresholds(scores, MASK[0])), x, 0).sum())(HOLED[0])
    assert np.isfinite(slopes).all()
    assert (np.asarray(slopes)[MASK[0]] == 0).all()
    total = jax.jit(lambda mask: dpc.replay(learner, HOLED, LEVELS, keep="summary", mask=mask).coverage)(MASK)
    same(total, dpc.replay(learner, HOLED, LEVELS, keep="summary", mask=MASK).coverage)


def test_a_bad_score_inside_jit_spoils_what_follows_only_if_it_is_observed():
    bad = jnp.array([0.2, 7.0, 0.4])
    run = jax.jit(lambda scores, mask: dpc.replay(dpc.Exact(), scores, [0.5], mask=mask).thresholds)
    assert np.isfinite(run(bad, jnp.array([False, True, False]))).all()
    assert np.isnan(run(bad, jnp.array([True, False, False]))[2:]).all()


def test_float32_and_integers():
    run = dpc.replay(dpc.Exact(), HOLED.astype(np.float32), LEVELS, mask=MASK)
    assert run.thresholds.dtype == run.scores.dtype == jnp.float32
    same(run.thresholds, dpc.replay(dpc.Exact(), HOLED, LEVELS, mask=MASK).thresholds, 1e-6)
    whole = dpc.replay(dpc.Exact(dpc.priors.Uniform(2, 9)), [3, -1, 5], [0.5], mask=[False, True, False])
    assert np.isnan(whole.scores[1])
    assert whole.thresholds.shape == (3, 1)


@pytest.mark.parametrize(
    ("learner", "context"),
    [
        (dpc.MVP([0.5, 0.9], groups=2, buckets=8), np.stack([np.arange(T) % 2 == 0, np.ones(T, bool)], axis=-1)),
        (dpc.PID([0.5, 0.9], window=8, scorecast=True), np.linspace(0, 0.2, T)),
    ],
    ids=["mvp", "pid"],
)
def test_context_of_a_masked_round_is_for_its_threshold(learner, context):
    run = dpc.replay(learner, HOLED[0], [0.5, 0.9], context=context, mask=MASK[0])
    found, _ = reference.masked_loop(learner, SCORES[0], [0.5, 0.9], MASK[0], jnp.asarray(context))
    np.testing.assert_allclose(run.thresholds, found, atol=1e-9)


@pytest.mark.parametrize(
    ("mask", "message"),
    [
        ([0, 1, 0], "mask has dtype int64: pass booleans"),
        ([0.0, np.nan, 0.0], "mask has dtype float64"),
        ([True, False], r"mask has shape \(2,\): pass one boolean a round, shape \(3,\)"),
        (True, r"mask has shape \(\)"),
        ([[True], [True, False]], "mask cannot be read"),
        (np.ma.masked_array([True, False, True]), "mask is itself a masked array"),
    ],
)
def test_wrong_masks(mask, message):
    with pytest.raises(ValueError, match=message):
        dpc.replay(dpc.Exact(), [0.1, 0.2, 0.3], [0.5], mask=mask)


def test_errors_that_point_to_the_mask():
    with pytest.raises(ValueError, match=r"scores\[2\] = nan.*mask="):
        dpc.replay(dpc.Exact(), [0.1, np.nan, np.nan], [0.5], mask=[False, True, False])
    with pytest.raises(ValueError, match=r"pass scores\.data and mask=scores\.mask"):
        dpc.replay(dpc.Exact(), np.ma.masked_array([0.1, 0.2], [True, False]), [0.5])


RUN = dpc.replay(dpc.Exact(), HOLED, [0.3, 0.9], mask=MASK)
METRICS = [
    dpc.metrics.coverage,
    dpc.metrics.coverage_error,
    dpc.metrics.longest_miss_run,
    dpc.metrics.regret,
    lambda run: dpc.metrics.discounted_regret(run, 0.9),
    dpc.metrics.crossings,
    lambda run: dpc.metrics.summary(run).loss.values,
    lambda run: dpc.metrics.summary(run).mean_threshold.values,
    dpc.theory.path_bound,
    lambda run: dpc.theory.certify(run).dataset.seen.values,
]
BY_ROUND = [
    dpc.metrics.covered,
    dpc.metrics.quantile_loss,
    lambda run: dpc.metrics.rolling_coverage(run, 5),
    lambda run: dpc.metrics.regret(run, running=True),
    lambda run: dpc.metrics.interval_width(run, 0.3, 0.9),
    lambda run: dpc.metrics.interval_score(run, 0.3, 0.9),
    dpc.metrics.pit,
    dpc.metrics.crps,
    lambda run: dpc.diagnostics.coverage_curve(run).coverage.values,
    lambda run: dpc.diagnostics.rolling_band(run, 5).coverage.values,
    lambda run: dpc.diagnostics.miss_dependence(run, 3).ljung_box.values,
    lambda run: dpc.diagnostics.to_datatree(run)["constant_data"]["covered"].values,
]


@pytest.mark.parametrize("metric", METRICS + BY_ROUND)
def test_what_judges_a_run_leaves_masked_rounds_out(metric):
    one = RUN.sequence(0)
    plain = dpc.replay(dpc.Exact(), SCORES[0][~MASK[0]], [0.3, 0.9])
    same(metric(one), metric(plain))
    if metric in METRICS:
        same(metric(RUN), jax.tree.map(lambda *parts: np.stack(parts), *(metric(RUN.sequence(i)) for i in (0, 1))))
    else:
        with pytest.raises(ValueError, match="one sequence at a time"):
            metric(RUN)


def test_rounds_keep_their_numbers():
    one, kept = RUN.sequence(0), np.flatnonzero(~MASK[0]) + 1
    assert dpc.diagnostics.to_datatree(one)["observed_data"]["time"].values.tolist() == kept.tolist()
    assert dpc.diagnostics.rolling_band(one, 5).time.values.tolist() == kept[4:].tolist()
    wrong = one._replace(thresholds=one.thresholds.at[int(kept[7]) - 1, 1].set(0.0))
    assert int(dpc.theory.certify(wrong).dataset["round"].sel(check="order").values.max()) == kept[7]
    assert dpc.theory.certify(one).dataset.attrs["rounds"] == kept.size
    table = dpc.metrics.summary(RUN)
    np.testing.assert_array_equal(table.mask, MASK)


def test_bins_by_rounds_survive_without_the_masked_ones():
    run = dpc.replay(dpc.Quantized(), HOLED[0], [0.3, 0.9], mask=MASK[0])
    left = run.observed()
    again = dpc.replay(run.learner, left.scores, [0.3, 0.9], left.start)
    np.testing.assert_allclose(again.thresholds, left.thresholds, atol=1e-12)
    np.testing.assert_allclose(dpc.metrics.pit(left), dpc.metrics.pit(run), atol=1e-12)
    assert dpc.theory.certify(run).passed


def test_sequences_of_a_batch():
    with pytest.raises(ValueError, match=r"leading axes \(2,\)"):
        RUN.sequence()
    with pytest.raises(ValueError, match=r"index\[0\] = 2"):
        RUN.sequence(2)
    with pytest.raises(ValueError, match=r"run.mask has shape \(3,\)"):
        dpc.metrics.coverage(RUN._replace(mask=np.zeros(3, bool)))
    with pytest.raises(ValueError, match=r"run\.mask is being traced"):
        jax.jit(lambda mask: dpc.metrics.coverage(RUN._replace(mask=mask)))(MASK)


def test_pictures_and_pages(tmp_path):
    one = RUN.sequence(1)
    ax = dpc.plots.thresholds(one)
    assert len(ax.lines[0].get_xdata()) == T
    assert np.isfinite(np.asarray(ax.collections[0].get_offsets())).all(axis=1).sum() == (~MASK[1]).sum()
    ax = dpc.plots.coverage(one, window=5)
    assert ax.lines[0].get_xdata()[-1] == np.flatnonzero(~MASK[1])[-1] + 1
    page = dpc.report(one, tmp_path / "page.html")
    plain = dpc.report(dpc.replay(dpc.Exact(), SCORES[1][~MASK[1]], [0.3, 0.9]), tmp_path / "plain.html")
    assert f'"rounds":{(~MASK[1]).sum()}' in page.read_text().replace(" ", "")
    assert len(page.read_text()) == pytest.approx(len(plain.read_text()), rel=0.01)


def test_sets_for_labels_that_are_missing():
    learner = dpc.Exact(dpc.priors.Uniform(0, 30))
    predictions = np.linspace(0, 1, T)
    labels = predictions + SCORES
    both, holed = np.stack([predictions] * 2), np.where(MASK, np.nan, labels)
    found = dpc.conformalize(learner, dpc.scores.Absolute(), both, holed, [0.5, 0.9], mask=MASK)
    assert found.sets.low.shape == (2, T, 2)
    for i in (0, 1):
        kept = ~MASK[i]
        plain = dpc.conformalize(learner, dpc.scores.Absolute(), predictions[kept], labels[i][kept], [0.5, 0.9])
        np.testing.assert_allclose(found.sets.high[i][kept], plain.sets.high, atol=1e-9)
        np.testing.assert_allclose(found.coverage[i], plain.coverage)
    kept = ~MASK[0]
    signed, wide = dpc.scores.Signed(), dpc.Exact(dpc.priors.Uniform(-9, 9))
    two = dpc.conformalize(
        dpc.Exact(dpc.priors.Uniform(-9, 9)), dpc.scores.Signed(), predictions, holed[0], [0.8], mask=MASK[0]
    )
    plain = dpc.conformalize(wide, signed, predictions[kept], labels[0][kept], [0.8])
    np.testing.assert_allclose(two.coverage, plain.coverage)
    np.testing.assert_array_equal(two.covered, plain.covered)
    vectors = np.stack([labels[0], labels[1]], axis=-1)
    holed = np.where(MASK[0][:, None], np.nan, vectors)
    balls = dpc.conformalize(learner, dpc.scores.Norm(), np.zeros((T, 2)), holed, [0.5], mask=MASK[0])
    plain = dpc.conformalize(learner, dpc.scores.Norm(), np.zeros((kept.sum(), 2)), vectors[kept], [0.5])
    np.testing.assert_allclose(balls.coverage, plain.coverage)
    with pytest.raises(ValueError, match="mask has dtype"):
        dpc.conformalize(learner, dpc.scores.Absolute(), predictions, labels[0], [0.5], mask=np.zeros(T))
    classes = dpc.conformalize(
        dpc.Exact(), dpc.scores.LAC(), np.full((3, 2), 0.5), [0, -1, 1], [0.5], mask=[False, True, False]
    )
    assert classes.coverage.shape == (1,)
