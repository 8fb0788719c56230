"""The posterior of a Dirichlet process in closed form, against counting, SciPy's Beta distribution and bisection."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import reference
from cases import LEVELS, PRIORS, sequences
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

import dpconformal as dpc
from dpconformal.dirichlet import Posterior

INNER = LEVELS[1:-1]
UNIFORM = dpc.priors.Uniform()
SCORES = sequences(60)["skewed"]


# Compiled once for each prior and number of scores.
read_mean = jax.jit(lambda posterior, x: (posterior.mean.cdf(x), posterior.mean.quantile(jnp.asarray(LEVELS))))
read_belief = jax.jit(lambda learner, state, x: (learner.cdf(state, x), learner.quantile(state, jnp.asarray(LEVELS))))


@pytest.mark.parametrize("name", [pytest.param("uniform", marks=pytest.mark.core), "beta_wide", "histogram"])
def test_mean_is_the_belief_of_exact(name):
    prior, twin = PRIORS[name]
    low, high = (float(end) for end in prior.support)
    learner = dpc.Exact(prior, dpc.schedules.Dirichlet(2.5))
    for sequence, scores in sequences(30, low, high).items():
        x = np.concatenate([np.linspace(low - 1, high + 1, 57), scores])
        for count in (0, 30):
            state = dpc.replay(learner, scores[:count], [0.5]).state
            posterior = Posterior(prior, 2.5, scores[:count])
            (cdf, quantile), (cdf_there, quantile_there) = read_mean(posterior, x), read_belief(learner, state, x)
            np.testing.assert_allclose(cdf, cdf_there, rtol=0, atol=1e-12)
            np.testing.assert_allclose(quantile, quantile_there, rtol=0, atol=1e-12 * (high - low), err_msg=sequence)
        np.testing.assert_allclose(cdf, reference.dp_mean(x, twin.cdf, 2.5, scores), rtol=0, atol=1e-9)


@pytest.mark.parametrize("name", ["uniform", "beta_wide", "histogram"])
def test_closed_forms_against_counting_and_scipy(name):
    prior, twin = PRIORS[name]
    low, high = (float(end) for end in prior.support)
    for scores in sequences(25, low, high).values():
        for a in (0.3, 40.0):
            posterior = Posterior(prior, a, scores)
            inside = np.linspace(low, high, 13)[1:-1]
            marginal, mean = posterior.cdf_marginal(inside), reference.dp_mean(inside, twin.cdf, a, scores)
            total = a + len(scores)
            np.testing.assert_allclose(marginal.concentration1, total * mean, rtol=1e-9)
            np.testing.assert_allclose(marginal.concentration0, total * (1 - mean), rtol=1e-9, atol=1e-12)
            x = np.concatenate([inside, scores, [low - 1, low, high, high + 1]])
            ours = posterior.quantile_cdf(LEVELS[:, None], x)
            for row, level in zip(ours, LEVELS, strict=True):
                oracle = reference.dp_quantile_cdf(level, x, twin.cdf, a, scores)
                np.testing.assert_allclose(row, oracle, rtol=0, atol=1e-9)


@pytest.mark.core
@pytest.mark.parametrize("sequence", ["uniform", "tied", "alternating", "constant", "sorted", "lowest"])
def test_thresholds_of_given_confidence_against_bisection_in_x(sequence):
    scores = sequences(20)[sequence]
    for count in (0, 1, 20):
        posterior = Posterior(UNIFORM, 1.5, scores[:count])
        answers = {confidence: posterior.quantile_icdf(LEVELS, confidence) for confidence in (0.05, 0.5, 0.95)}
        for confidence, ours in answers.items():
            oracle = reference.credible_threshold(LEVELS, confidence, stats.uniform.cdf, 1.5, scores[:count], 0.0, 1.0)
            np.testing.assert_allclose(ours, oracle, rtol=0, atol=1e-9)
        np.testing.assert_array_equal(posterior.credible_threshold(LEVELS, 0.95), answers[0.95])
        np.testing.assert_array_equal(posterior.quantile_median(LEVELS), answers[0.5])
        for end, wanted in zip(posterior.quantile_interval(LEVELS, mass=0.9), (0.05, 0.95), strict=True):
            np.testing.assert_allclose(end, answers[wanted], rtol=0, atol=1e-12)
        assert (np.diff(list(answers.values()), axis=0) >= 0).all()
        assert (np.diff(list(answers.values()), axis=1) >= 0).all()


@given(
    a=st.floats(1e-6, 1e6),
    count=st.integers(0, 40),
    level=st.floats(1e-9, 1 - 1e-9),
    probability=st.floats(1e-6, 1 - 1e-6),
    kind=st.sampled_from(sorted(sequences(2))),
)
def test_quantile_icdf_inverts_quantile_cdf_in_the_sense_of_galois(a, count, level, probability, kind):
    posterior = Posterior(UNIFORM, a, sequences(40)[kind][:count])
    x = posterior.quantile_icdf(level, probability)
    assert 0 <= x <= 1
    # A few hundred ulps to either side of x the posterior passes the probability; by how much it may have moved in
    # between is what a steep posterior, that of a very small concentration, allows.
    slack = 1e-6 if a + count > 1e-3 else 1e-2
    assert posterior.quantile_cdf(level, min(x + 1e-13, 1.0)) >= probability - 2e-6 * min(probability, 1 - probability)
    if x > 1e-12:
        assert posterior.quantile_cdf(level * (1 + 1e-12), x - 1e-13) <= probability + slack


def test_float64_whatever_the_setting():
    scores = np.random.default_rng(0).beta(2, 5, 100_000)
    x = 0.51
    level = float(np.mean(scores <= x))
    posterior = Posterior(UNIFORM, 5.0, scores)
    exact = reference.dp_quantile_cdf(level, np.array([x]), stats.uniform.cdf, 5.0, scores)[0]
    with jax.enable_x64(False):
        again = Posterior(UNIFORM, 5.0, scores)
        assert again.quantile_cdf(level, x) == pytest.approx(exact, abs=1e-9)
        np.testing.assert_array_equal(again.quantile_interval(0.9), posterior.quantile_interval(0.9))
        assert again.mean.cdf(x).dtype == np.float32
    assert posterior.quantile_cdf(level, x) == pytest.approx(exact, abs=1e-9)


@pytest.mark.parametrize("inside_jit", [False, True])
def test_quantiles_of_the_mean_in_float32_are_those_of_float64(inside_jit):
    """A level less the mass below it was off by 1e-7, and a prior of small weight and density made 6e-4 of that."""
    prior, scores = dpc.priors.Histogram([0.0, 0.1, 0.6, 1.0], [3.0, 0.05, 2.0]), np.array([0.05, 0.7, 0.9], np.float32)
    scores = np.repeat(scores, 40)  # the gaps between them are wide

    def quantiles(a, scores, levels):
        return Posterior(prior, a, scores).mean.quantile(levels)

    for a in (0.1, 5.0):
        levels = ((40 + a * np.linspace(0.595, 0.603, 9)) / (a + 120)).astype(np.float32)  # where the prior is thin
        with jax.enable_x64(False):
            found = np.asarray((jax.jit(quantiles) if inside_jit else quantiles)(a, scores, levels), float)
        expected = quantiles(a, scores.astype(float), levels.astype(float))
        assert np.all((expected > 0.1) & (expected < 0.6))
        np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5)


def test_from_the_state_of_a_belief():
    levels = [0.5, 0.9]
    exact = dpc.Exact(schedule=dpc.schedules.Dirichlet(4.0))
    run = dpc.replay(exact, SCORES, levels)
    posterior = Posterior.from_state(exact, run.state)
    np.testing.assert_array_equal(posterior.scores, np.sort(SCORES))
    np.testing.assert_array_equal(
        posterior.quantile_interval(0.9), Posterior(UNIFORM, 4.0, SCORES).quantile_interval(0.9)
    )
    quantized = dpc.Quantized(bins=16, schedule=dpc.schedules.Dirichlet(4.0))
    run = dpc.replay(quantized, SCORES, levels)
    binned = Posterior.from_state(quantized, run.state)
    assert binned.bins == 16
    assert float(binned.total) == 64
    x = np.linspace(0, 1, 101)
    np.testing.assert_allclose(binned.mean.cdf(x), quantized.cdf(run.state, x), atol=1e-12)
    np.testing.assert_allclose(binned.mean.quantile(LEVELS), quantized.quantile(run.state, LEVELS), atol=1e-12)
    # At the edges of the bins it says what the scores themselves say.
    edges = np.arange(1, 16) / 16
    np.testing.assert_allclose(
        binned.quantile_cdf(0.9, edges), Posterior(UNIFORM, 4.0, SCORES).quantile_cdf(0.9, edges)
    )
    empty = Posterior.from_state(exact, exact.init())
    assert empty.scores.size == 0


def test_counts_stand_for_repeated_scores():
    values, counts = np.array([0.7, 0.2, 0.9]), np.array([3, 0, 2])
    counted, repeated = Posterior(UNIFORM, 2.0, values, counts), Posterior(UNIFORM, 2.0, np.repeat(values, counts))
    x = np.linspace(0.05, 0.95, 19)
    assert float(counted.total) == 7
    np.testing.assert_allclose(counted.mean.cdf(x), repeated.mean.cdf(x), atol=1e-15)
    np.testing.assert_allclose(counted.quantile_cdf(0.5, x), repeated.quantile_cdf(0.5, x), atol=1e-15)
    np.testing.assert_allclose(counted.quantile_icdf(INNER, 0.3), repeated.quantile_icdf(INNER, 0.3), atol=1e-15)
    np.testing.assert_allclose(counted.cdf_marginal(x).mean, repeated.cdf_marginal(x).mean, atol=1e-15)


def test_shapes_broadcast_and_scalars_stay_scalars():
    posterior = Posterior(UNIFORM, 5.0, SCORES)
    assert np.shape(posterior.quantile_cdf(0.9, 0.5)) == ()
    assert posterior.quantile_cdf(INNER[:, None], [0.2, 0.5]).shape == (6, 2)
    assert posterior.quantile_icdf(INNER[:, None], [0.2, 0.5]).shape == (6, 2)
    low, high = posterior.quantile_interval([0.5, 0.9])
    assert low.shape == high.shape == (2,)
    assert posterior.cdf_marginal([[0.2, 0.5]]).batch_shape == (1, 2)


def test_unbounded_priors_have_posteriors_too():
    import numpyro.distributions as dist

    normal = dpc.priors.from_numpyro(dist.Normal(0.0, 1.0))
    posterior = Posterior(normal, 3.0, [-2.0, 0.5, 4.0])
    x = np.array([-3.0, 0.0, 0.5, 5.0])
    oracle = reference.dp_quantile_cdf(0.5, x, stats.norm.cdf, 3.0, [-2.0, 0.5, 4.0])
    np.testing.assert_allclose(posterior.quantile_cdf(0.5, x), oracle, atol=1e-9)
    median = posterior.quantile_median(0.5)
    assert posterior.quantile_cdf(0.5, median) >= 0.5 - 1e-9


def test_mean_inside_jit_and_vmap():
    def thresholds(a, scores):
        return Posterior(UNIFORM, a, scores).mean.quantile(jnp.asarray(INNER))

    plain = thresholds(5.0, SCORES)
    np.testing.assert_allclose(jax.jit(thresholds)(5.0, SCORES), plain, atol=1e-14)
    swept = jax.vmap(thresholds, in_axes=(0, None))(jnp.array([1.0, 5.0]), SCORES)
    np.testing.assert_allclose(swept[1], plain, atol=1e-14)
    assert np.isnan(jax.jit(thresholds)(-1.0, SCORES)).all()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Posterior(UNIFORM, 0.0, []), r"Posterior.concentration = 0.0"),
        (lambda: Posterior(UNIFORM, np.nan, []), r"Posterior.concentration = nan"),
        (lambda: Posterior(UNIFORM, 1.0, [0.2, 1.5]), r"scores\[1\] = 1.5: outside the support"),
        (lambda: Posterior(UNIFORM, 1.0, [0.2, np.nan]), r"scores\[1\] = nan"),
        (lambda: Posterior(UNIFORM, 1.0, [[0.2, 0.3]]), r"scores has shape \(1, 2\)"),
        (lambda: Posterior(UNIFORM, 1.0, [0.2], [1, 2]), r"counts has shape \(2,\) and scores \(1,\)"),
        (lambda: Posterior(UNIFORM, 1.0, [0.2, 0.3], [1, -2]), r"counts\[1\] = -2"),
        (lambda: Posterior(UNIFORM, 1.0, [0.2], bins=0), r"Posterior.bins = 0"),
        (lambda: Posterior(UNIFORM, 1.0, [0.2]).cdf_marginal([0.5, 1.0]), r"x\[1\] = 1.0: F\(x\) is 0 or 1 for cert"),
        (lambda: Posterior(UNIFORM, 1.0, [0.2]).quantile_cdf(90, 0.5), "level = 90"),
        (lambda: Posterior(UNIFORM, 1.0, [0.2]).quantile_icdf(0.9, [0.5, 1.0]), r"probability\[1\] = 1.0"),
        (lambda: Posterior(UNIFORM, 1.0, [0.2]).quantile_interval(0.9, mass=0.0), r"mass = 0.0"),
        (lambda: Posterior(UNIFORM, 1.0, [0.2]).credible_threshold(0.9, 1.0), r"confidence = 1.0"),
        (lambda: Posterior(UNIFORM, 1.0, [0.2]).sample(jax.random.key(0), 3, "nuts"), "method = 'nuts': pass one of"),
        (lambda: Posterior(UNIFORM, 1.0, [0.2]).sample(jax.random.key(0), 0), "draws = 0"),
        (lambda: Posterior.from_state(dpc.Exact(), dpc.Exact().init()), "schedules.Dirichlet"),
        (lambda: Posterior.from_state(dpc.ERM(), dpc.ERM().init()), "belongs to Exact or Quantized"),
    ],
)
def test_bad_input(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_no_posterior_of_a_discounted_spoilt_or_batched_state():
    fading = dpc.Exact(schedule=dpc.schedules.Dirichlet(2.0), discount=0.9)
    with pytest.raises(ValueError, match="a discounted belief is no posterior"):
        Posterior.from_state(fading, fading.init())
    learner = dpc.Exact(schedule=dpc.schedules.Dirichlet(2.0))
    with pytest.raises(ValueError, match="state is a batch"):
        Posterior.from_state(learner, dpc.replay(learner, np.full((2, 3), 0.5), [0.5]).state)
    spoilt = jax.jit(learner.observe)(learner.init(), np.nan)
    with pytest.raises(ValueError, match="a bad score or a full buffer"):
        Posterior.from_state(learner, spoilt)
    with pytest.raises(ValueError, match="call from_state outside jit"):
        jax.jit(lambda state: Posterior.from_state(learner, state).mean.cdf(0.5))(learner.init())
    with pytest.raises(ValueError, match="inside jit there is no closed form"):
        jax.jit(lambda scores: Posterior(UNIFORM, 1.0, scores).quantile_cdf(0.5, 0.5))(SCORES)


def test_a_score_and_its_rounded_twin_are_one_number():
    """In single precision a run's state holds float32(0.3), and a user asks for 0.3."""
    with jax.enable_x64(False):
        learner = dpc.Exact(schedule=dpc.schedules.Dirichlet(1.0))
        state = dpc.replay(learner, [0.3] * 5 + [0.7] * 2, [0.5]).state
        posterior = Posterior.from_state(learner, state)
        exact = reference.dp_quantile_cdf(0.5, np.array([0.3]), stats.uniform.cdf, 1.0, [0.3] * 5 + [0.7] * 2)[0]
        assert posterior.quantile_cdf(0.5, 0.3) == pytest.approx(exact, abs=1e-6)
        doubles = Posterior(UNIFORM, 1.0, [0.7] * 5 + [0.9] * 2)
        threshold = doubles.mean.quantile(0.5)
        assert doubles.quantile_cdf(0.5, threshold) == pytest.approx(doubles.quantile_cdf(0.5, 0.7), abs=1e-6)


@pytest.mark.parametrize("rounding", ["up", "nearest"])
def test_thresholds_of_bins_are_those_of_the_head(rounding):
    learner = dpc.Quantized(10, schedule=dpc.schedules.Dirichlet(5.0), rounding=rounding)
    state = dpc.replay(learner, dpc.streams.iid(200), [0.9]).state
    posterior = Posterior.from_state(learner, state)
    found = posterior.credible_threshold([0.5, 0.9], 0.95)
    np.testing.assert_allclose(found, dpc.Credible(learner, 0.95).quantile(state, [0.5, 0.9]), atol=1e-12)
    low, high = posterior.quantile_interval([0.5, 0.9], mass=0.9)
    np.testing.assert_array_equal(high, found)
    whole = Posterior(UNIFORM, 5.0, dpc.streams.iid(200))
    assert (whole.quantile_cdf([0.5, 0.9], found) >= 0.95).all()
    assert (whole.quantile_cdf([0.5, 0.9], low) <= 0.05).all()


def test_traced_nonsense_is_nan_and_never_a_plausible_number():
    def read(a, scores):
        mean = Posterior(UNIFORM, a, scores).mean
        return jnp.stack([mean.quantile(0.5), mean.cdf(0.5), Posterior(UNIFORM, a, scores).cdf_marginal(0.5).mean])

    read = jax.jit(read)
    good = jnp.array([0.2, 0.4])
    assert np.isfinite(read(1.0, good)).all()
    for a, scores in ((-1.0, good), (np.nan, good), (1.0, jnp.array([0.2, np.nan])), (1.0, jnp.array([0.2, 5.0]))):
        assert np.isnan(read(a, scores)).all()
    bad_counts = jax.jit(lambda counts: Posterior(UNIFORM, 1.0, good, counts).mean.cdf(0.5))(jnp.array([1.0, -1.0]))
    assert np.isnan(bad_counts)


def test_one_posterior_at_a_time():
    with pytest.raises(ValueError, match=r"Posterior.concentration has shape \(2,\): pass one number; use jax.vmap"):
        Posterior(UNIFORM, [1.0, 2.0], [0.3])
    with pytest.raises(ValueError, match=r"use jax\.vmap"):
        Posterior(dpc.priors.Uniform([0.0, 0.0], [1.0, 2.0]), 1.0, [0.3])
    with pytest.raises(ValueError, match=r"Posterior.concentration = 1e-40: .*method='bootstrap'"):
        Posterior(UNIFORM, 1e-40, [0.3])
