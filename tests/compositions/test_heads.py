"""Prediction heads: credible and corrected thresholds, against bisection, theory and simulation."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import reference
from cases import LEVELS, sequences
from scipy import stats

import dpconformal as dpc
from dpconformal.compositions.heads import credible_level, credible_levels, exceedance
from dpconformal.dirichlet import Posterior

Dirichlet = dpc.schedules.Dirichlet
HEADS = {
    "credible": dpc.Credible(dpc.Exact(schedule=Dirichlet(3.0)), 0.9),
    "corrected": dpc.Corrected(dpc.Exact(schedule=Dirichlet(3.0))),
    "corrected_sqrt": dpc.Corrected(),
    "credible_bins": dpc.Credible(dpc.Quantized(16, schedule=Dirichlet(3.0)), 0.9),
    "corrected_bins": dpc.Corrected(dpc.Quantized(16)),
}
every = pytest.mark.parametrize("name", list(HEADS))
each_kind = pytest.mark.parametrize("name", ["credible", "corrected_sqrt", "credible_bins"])
T = 40
SCORES = np.random.default_rng(3).beta(2, 3, T)


def thresholds(learner, scores=SCORES, levels=LEVELS, **options):
    return np.asarray(dpc.replay(learner, scores, levels, **options).thresholds)


@pytest.mark.core
@pytest.mark.parametrize("sequence", ["uniform", "tied", "alternating", "constant", "sorted", "extreme"])
def test_credible_threshold_of_every_round_is_that_of_bisection(sequence):
    scores = sequences(T)[sequence]
    found = thresholds(HEADS["credible"], scores)
    for t in (0, 1, 2, 7, T - 1):
        oracle = reference.credible_threshold(LEVELS, 0.9, stats.uniform.cdf, 3.0, scores[:t], 0.0, 1.0)
        np.testing.assert_allclose(found[t], oracle, rtol=0, atol=1e-9)
        np.testing.assert_allclose(
            found[t], Posterior(dpc.priors.Uniform(), 3.0, scores[:t]).credible_threshold(LEVELS, 0.9)
        )


@pytest.mark.core
def test_corrected_threshold_of_every_round_is_the_belief_at_the_corrected_level():
    for head, weight in ((HEADS["corrected"], lambda n: 3.0), (HEADS["corrected_sqrt"], lambda n: np.sqrt(n + 1) + 1)):
        found = thresholds(head)
        for t in range(1, T):
            asked = dpc.theory.corrected_level(LEVELS, t, weight(t))
            state = dpc.replay(head.learner, SCORES[:t], LEVELS).state if t in (1, 2, 20, T - 1) else None
            if state is not None:
                expected = np.where(LEVELS == 0, 0, head.learner.quantile(state, asked))
                np.testing.assert_allclose(found[t], expected, rtol=0, atol=1e-12)
                assert (dpc.theory.coverage_bracket(asked, t, weight(t))[0] >= LEVELS - 1e-12).all()
        np.testing.assert_array_equal(found[0], np.where(LEVELS == 0, 0, 1))  # nothing is known yet


@every
def test_the_ways_to_replay_agree(name):
    head = HEADS[name]
    whole = dpc.replay(head, SCORES, LEVELS)
    np.testing.assert_allclose(thresholds(head, method="scan"), whole.thresholds, rtol=0, atol=1e-12)
    state = head.init()
    for t, score in enumerate(SCORES[:5]):
        np.testing.assert_allclose(head.quantile(state, LEVELS), whole.thresholds[t], rtol=0, atol=1e-12)
        state = head.observe(state, float(score))
    carried_on = dpc.replay(head, SCORES[5:], LEVELS, state=state)
    np.testing.assert_allclose(carried_on.thresholds, whole.thresholds[5:], rtol=0, atol=1e-12)
    assert int(carried_on.state.seen) == T
    batch = np.stack([SCORES, SCORES[::-1]])
    many = dpc.replay(head, batch, LEVELS)
    np.testing.assert_allclose(many.thresholds[0], whole.thresholds, rtol=0, atol=1e-12)
    again = dpc.replay(head, batch[:, :5], LEVELS, state=many.state)
    np.testing.assert_allclose(
        again.thresholds[1], thresholds(head, np.append(batch[1], batch[1, :5]))[T:], rtol=0, atol=1e-12
    )
    jitted = jax.jit(lambda head, scores: dpc.replay(head, scores, LEVELS).thresholds)
    np.testing.assert_allclose(jitted(head, SCORES), whole.thresholds, rtol=0, atol=1e-12)
    np.testing.assert_allclose(jax.vmap(jitted, (None, 0))(head, batch), many.thresholds, rtol=0, atol=1e-12)
    summary = dpc.replay(head, SCORES, LEVELS, keep="summary")
    np.testing.assert_array_equal(summary.covered, (SCORES[:, None] <= np.asarray(whole.thresholds)).sum(axis=0))
    losses = np.asarray(dpc.metrics.quantile_loss(whole))
    np.testing.assert_allclose(summary.total_loss, losses.sum(axis=0), rtol=0, atol=1e-12)
    by_round = np.random.default_rng(8).random((T, 3))
    changing = thresholds(head, levels=by_round)
    for t in (0, 1, 17, T - 1):
        np.testing.assert_allclose(changing[t], thresholds(head, levels=by_round[t])[t], rtol=0, atol=1e-12)


@each_kind
def test_never_cross_nor_look_ahead_and_stay_in_the_support(name):
    close = 0.5 + np.arange(-2, 3) * np.spacing(0.5)
    levels = np.unique(np.concatenate([np.linspace(0, 1, 40), close, np.nextafter([0, 1], 0.5)]))
    for sequence in ("uniform", "tied", "alternating", "extreme", "constant"):
        scores = sequences(T)[sequence]
        found = thresholds(HEADS[name], scores, levels)
        assert (np.diff(found, axis=1) >= 0).all(), sequence
        assert ((found >= 0) & (found <= 1)).all()
        changed = np.concatenate([scores[:20], 1 - scores[20:]])
        np.testing.assert_array_equal(thresholds(HEADS[name], changed, levels)[:21], found[:21])


@each_kind
def test_single_precision_bad_scores_and_gradients(name):
    head = HEADS[name]
    with jax.enable_x64(False):
        run = dpc.replay(head, SCORES, LEVELS)
        assert run.thresholds.dtype == head.quantile(run.state, [0.5]).dtype == np.float32
        if "bins" not in name:  # there a rounded score changes its bin
            np.testing.assert_allclose(run.thresholds, thresholds(head).astype(np.float32), atol=2e-5)
    spoilt = SCORES.copy()
    spoilt[10] = np.nan
    result = np.asarray(jax.jit(lambda scores: dpc.replay(head, scores, LEVELS).thresholds)(spoilt))
    assert not np.isnan(result[:11]).any()
    assert np.isnan(result[11:]).all()
    slopes = jax.grad(lambda scores: jnp.sum(dpc.replay(head, scores, [0.3, 0.9]).thresholds))(jnp.asarray(SCORES))
    assert np.isfinite(slopes).all()


def test_a_head_and_its_belief_sweep_under_vmap():
    def last(a, confidence):
        head = dpc.Credible(dpc.Exact(schedule=Dirichlet(a)), confidence)
        return dpc.replay(head, SCORES, [0.9]).thresholds[-1, 0]

    swept = jax.vmap(last)(jnp.array([1.0, 8.0]), jnp.array([0.5, 0.95]))
    for found, a, confidence in zip(swept, (1.0, 8.0), (0.5, 0.95), strict=True):
        expected = Posterior(dpc.priors.Uniform(), a, SCORES[:-1]).credible_threshold(0.9, confidence)
        assert float(found) == pytest.approx(float(expected), abs=1e-9)


def test_finite_sample_bracket_and_correction_at_both_ends_for_hostile_priors():
    """Priors with all their mass at one end or the other attain both ends; the correction holds under either."""
    data, n, a, level = 4000, 100, 5.0, 0.9
    scores = np.random.default_rng(5).uniform(0.001, 0.999, (data, n))
    following = np.random.default_rng(6).uniform(0.001, 0.999, data)
    error = np.sqrt(level * (1 - level) / data)
    low, high = dpc.theory.coverage_bracket(level, n, a)
    assert (round(float(low), 4), round(float(high), 4)) == (0.8911, 0.9406)
    asked = dpc.theory.corrected_level(level, n, a)
    ends = {}
    for side, masses in (("low", [1.0, 1e-9]), ("high", [1e-9, 1.0])):
        edges = [0.0, 0.0005, 1.0] if side == "low" else [0.0, 0.9995, 1.0]
        prior = dpc.priors.Histogram(edges, masses)
        learner = dpc.Exact(prior, Dirichlet(a))
        state = dpc.replay(learner, scores, [level]).state
        for kind, reader in (("plain", learner), ("corrected", dpc.Corrected(learner))):
            found = jax.vmap(lambda s, reader=reader: reader.quantile(s, jnp.array(level)))(state)
            ends[kind, side] = float(np.mean(following <= np.asarray(found)))
    assert ends["plain", "low"] == pytest.approx(low, abs=3.5 * error)
    assert ends["plain", "high"] == pytest.approx(high, abs=3.5 * error)
    assert ends["plain", "low"] < level  # without the correction a hostile prior undercovers
    lowest, highest = dpc.theory.coverage_bracket(asked, n, a)
    assert lowest >= level
    assert ends["corrected", "low"] == pytest.approx(lowest, abs=3.5 * error)
    assert ends["corrected", "high"] == pytest.approx(highest, abs=3.5 * error)


def test_corrected_covers_in_every_round_whatever_the_prior():
    hostile = dpc.priors.Histogram([0.0, 0.001, 1.0], [1.0, 1e-9])
    scores = np.random.default_rng(9).uniform(0.002, 1, (2000, 60))
    for learner in (dpc.Exact(hostile), dpc.Quantized(20, hostile, Dirichlet(2.0))):
        run = dpc.replay(dpc.Corrected(learner), scores, [0.5, 0.8, 0.9])
        covered = np.asarray(scores[..., None] <= run.thresholds).mean(axis=0)
        levels = np.array([0.5, 0.8, 0.9])
        assert (covered >= levels - 4 * np.sqrt(levels * (1 - levels) / 2000)).all()
        plain = dpc.replay(learner, scores, levels)
        assert (np.asarray(scores[..., None] <= plain.thresholds)[:, 1:].mean(axis=(0, 1)) < levels).all()


def test_credible_threshold_keeps_its_promise_under_the_prior():
    """F from the prior on bins, scores from F: then F(r) ≥ level with at least the probability promised."""
    rng, bins, a, n, data = np.random.default_rng(1), 32, 8.0, 50, 3000
    masses = rng.dirichlet(np.full(bins, a / bins), data)
    places = (rng.random((data, n, 1)) > np.cumsum(masses, axis=1)[:, None, :-1]).sum(axis=2)
    scores = (places + rng.random((data, n))) / bins
    learner = dpc.Quantized(bins, schedule=Dirichlet(a))
    state = dpc.replay(learner, scores, [0.9]).state
    for confidence in (0.5, 0.9):
        head = dpc.Credible(learner, confidence)
        found = np.asarray(jax.vmap(lambda s, head=head: head.quantile(s, jnp.array(0.9)))(state))
        reached = np.floor(found * bins + 1e-9).astype(int)  # whole bins up to the threshold
        covers = np.concatenate([np.zeros((data, 1)), np.cumsum(masses, axis=1)], axis=1)
        error = 3 * np.sqrt(confidence * (1 - confidence) / data)
        for back, promised in ((0, True), (1, False)):  # the smallest such threshold: a bin lower the promise is broken
            share = np.mean(covers[np.arange(data), reached - back] >= 0.9 - 1e-12)
            assert share >= confidence - error if promised else share < confidence + error


def test_credible_tends_to_the_plain_threshold_at_rate_one_over_root_n():
    gaps = [credible_level(0.9, 0.95, float(m)) - 0.9 for m in (10**3, 10**5, 10**7)]
    for gap, m in zip(gaps, (10**3, 10**5, 10**7), strict=True):
        assert gap * np.sqrt(m) == pytest.approx(1.645 * 0.3, rel=0.06)


def test_credible_levels_of_many_rounds_are_those_of_one():
    levels = np.array([0.0, 1e-6, 0.1, 0.5, 0.9, 0.999, 1.0])
    for first, confidence in ((0.3, 0.95), (5.0, 0.5), (1e4, 0.01)):
        totals = first + np.arange(20_000.0)
        some = np.unique(np.geomspace(1, 20_000, 40).astype(int)) - 1
        many = credible_levels(levels, confidence, totals)[some]
        np.testing.assert_allclose(many, credible_level(levels, confidence, totals[some, None]), rtol=0, atol=1e-11)
    g = credible_level(levels[1:-1], 0.95, 123.0)
    np.testing.assert_allclose(exceedance(levels[1:-1], g, 123.0), 0.95, atol=1e-9)
    assert np.isnan(credible_level(0.5, 1.5, 10.0))
    assert np.isnan(credible_level(0.5, 0.5, -1.0))


def test_certificates_hold_heads_to_what_they_ask_for():
    scores = np.random.default_rng(0).beta(2, 5, 600)
    for name in ("credible_bins", "corrected", "corrected_sqrt", "credible"):
        run = dpc.replay(HEADS[name], scores, [0.5, 0.9])
        assert dpc.theory.certify(run).passed
        resumed = dpc.replay(HEADS[name], scores, [0.5, 0.9], state=run.state)
        assert dpc.theory.certify(resumed).passed
    low = run._replace(thresholds=run.thresholds * 0.7)
    assert not dpc.theory.certify(low).passed


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: dpc.Credible(dpc.Exact()), "posterior probabilities belong to a fixed concentration"),
        (lambda: dpc.Credible(confidence=1.0), r"Credible.confidence = 1.0"),
        (lambda: dpc.Credible(dpc.ERM()), r"Credible.learner = ERM\(.*\): pass a belief"),
        (lambda: dpc.Corrected(dpc.OGD([0.9])), "Corrected.learner = OGD"),
        (lambda: dpc.Corrected(dpc.Exact(discount=0.9)), "leave the discount out"),
        (lambda: dpc.replay(dpc.Corrected(), [0.2, 1.5], [0.9]), r"scores\[1\] = 1.5: outside the support"),
        (lambda: dpc.Corrected().quantile(dpc.Corrected().init(), [90]), r"levels\[0\] = 90"),
    ],
)
def test_bad_input(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_a_level_that_asks_for_every_score_is_the_upper_end_in_any_precision():
    """0.99 of 99 scores and the next one: rounding must not decide between the largest score and the end."""
    scores = np.random.default_rng(4).beta(2, 5, 99)
    head = dpc.Corrected(dpc.Exact(dpc.priors.Beta(2, 5), Dirichlet(3.0)))
    for x64 in (True, False):
        with jax.enable_x64(x64):
            state = dpc.replay(head, scores, [0.5]).state
            assert float(head.quantile(state, 0.99)) == 1.0
            both = (
                dpc.replay(head, [*scores, 0.5], [0.99], method=method).thresholds[-1] for method in ("auto", "scan")
            )
            assert [float(x[0]) for x in both] == [1.0, 1.0]


def test_batches_of_heads_and_of_states_need_vmap():
    with pytest.raises(ValueError, match=r"confidence has shape \(2,\): to sweep a hyperparameter, use jax.vmap"):
        dpc.replay(dpc.Credible(confidence=[0.9, 0.95]), SCORES, [0.5])
    for head in (HEADS["credible"], HEADS["corrected"]):
        states = dpc.replay(head, np.stack([SCORES, SCORES]), [0.5]).state
        with pytest.raises(ValueError, match=r"state is a batch of shape \(2,\): use jax.vmap"):
            head.quantile(states, [0.5])
