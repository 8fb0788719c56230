"""The regulariser, the regularised leader, the concentration: Theorem 1 seen from its other side."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
import reference
from cases import PRIORS, sequences
from hypothesis import given
from hypothesis import strategies as st

import dpconformal as dpc
from dpconformal import theory
from dpconformal.priors import Beta, Histogram, Mixture, TruncatedNormal, Uniform, from_numpyro
from dpconformal.theory import certificate, moments

LEVELS = np.array([0.0, 0.1, 0.5, 0.83, 1.0])
EDGES = [0.1, 0.15, 0.6]


@pytest.mark.core
@pytest.mark.parametrize("name", PRIORS)
def test_regularizer_is_the_expected_loss(name):
    prior, twin = PRIORS[name]
    low, high = prior.support
    breaks = EDGES if name == "histogram" else ()
    for r in low + (high - low) * np.array([-0.3, 0.0, 0.07, 0.4, 0.93, 1.0, 1.2]):
        for level in LEVELS:
            want = reference.regularizer(r, level, twin, low, high, breaks)
            # The oracle's own quadrature is what limits this where the density has a pole.
            assert theory.regularizer(r, level, prior) == pytest.approx(want, abs=1e-7 if name == "beta_wide" else 1e-9)


@pytest.mark.parametrize("name", PRIORS)
def test_its_slope_is_the_cdf_minus_the_level_and_it_is_least_at_the_quantile(name):
    prior, twin = PRIORS[name]
    low, high = prior.support
    r = np.linspace(low, high, 13)[1:-1]
    step = 1e-6 * (high - low)
    slope = (theory.regularizer(r + step, 0.3, prior) - theory.regularizer(r - step, 0.3, prior)) / (2 * step)
    np.testing.assert_allclose(slope, twin.cdf(r) - 0.3, atol=1e-5)
    excess = theory.excess_regularizer(np.linspace(low, high, 101)[:, None], LEVELS, prior)
    assert np.all(excess >= 0)
    best = np.asarray(prior.quantile(LEVELS))
    np.testing.assert_allclose(theory.excess_regularizer(best, LEVELS, prior), 0, atol=1e-14)


@pytest.mark.core
def test_uniform_prior_gives_the_quadratic_of_the_theorem():
    R, r, level = 4.0, np.linspace(0, 4, 9)[:, None], LEVELS
    want = r**2 / (2 * R) - level * r + level * R / 2
    np.testing.assert_allclose(theory.regularizer(r, level, Uniform(0, R)), want, atol=1e-14)
    assert theory.strong_convexity(Uniform(0, R)) == 1 / R


@pytest.mark.core
@pytest.mark.parametrize("name", PRIORS)
def test_strong_convexity_is_the_least_density(name):
    prior, twin = PRIORS[name]
    low, high = prior.support
    rng = np.random.default_rng(0)
    a, b = np.sort(low + (high - low) * rng.random((2, 40)), axis=0)
    found = theory.strong_convexity(prior, a, b)
    dense = np.array([np.min(twin.pdf(np.linspace(x, y, 4001))) for x, y in zip(a, b, strict=True)])
    assert np.all(found <= dense * (1 + 1e-9))
    if name != "mixture":  # there the sum of the components' least densities, a lower bound
        np.testing.assert_allclose(found, dense, rtol=2e-3)
    assert theory.strong_convexity(prior) <= dense.min()


@pytest.mark.parametrize(
    ("distribution", "twin"),
    [
        (dist.Beta(2.0, 3.0), reference.scipy_prior("beta", 2, 3, 0, 1)),
        (dist.HalfNormal(1.0), reference.stats.halfnorm()),
        (dist.Normal(1.0, 2.0), reference.stats.norm(1, 2)),
    ],
)
def test_priors_of_unknown_make_are_integrated(distribution, twin):
    prior = from_numpyro(distribution)
    low, high = (np.clip(end, -30, 30) for end in twin.support())
    for r in twin.ppf([0.05, 0.5, 0.99]):
        want = reference.regularizer(r, 0.8, twin, low, high)
        assert theory.regularizer(r, 0.8, prior) == pytest.approx(want, abs=1e-9)
    a, b = twin.ppf([0.2, 0.6])
    least = np.min(twin.pdf(np.linspace(a, b, 1001)))
    assert theory.strong_convexity(prior, a, b) == pytest.approx(least, rel=1e-2)


def test_a_prior_without_a_mean_still_has_an_excess():
    prior = from_numpyro(dist.HalfCauchy(1.0))
    assert theory.regularizer(1.0, 0.5, prior) == np.inf
    # ∫ from the median 1 to 2 of (2/π) arctan(x) - 1/2
    want = reference.integrate.quad(lambda x: 2 / np.pi * np.arctan(x) - 0.5, 1, 2)[0]
    assert theory.excess_regularizer(2.0, 0.5, prior) == pytest.approx(want, abs=1e-10)
    assert theory.excess_regularizer(2.0, 1.0, prior) == np.inf
    assert theory.strong_convexity(prior) == 0


@pytest.mark.core
def test_concentration():
    t = np.arange(1, 50)
    np.testing.assert_allclose(theory.concentration(t), np.sqrt(t) + 1, rtol=1e-15)
    lam = 1 / np.sqrt(t[1:])
    np.testing.assert_allclose(theory.concentration(t[1:]), lam * (t[1:] - 1) / (1 - lam), rtol=1e-12)
    np.testing.assert_array_equal(theory.concentration(t, dpc.schedules.Dirichlet(3.5)), 3.5)
    np.testing.assert_allclose(theory.concentration(t[1:], lambda t: 1 / t), 1, rtol=1e-12)
    assert theory.concentration(5, dpc.schedules.Constant(1.0)) == np.inf
    assert theory.concentration(1, dpc.schedules.Constant(0.5)) == theory.concentration(2, dpc.schedules.Constant(0.5))
    with pytest.raises(ValueError, match=r"t\[1\] = 0.0: rounds are counted from 1"):
        theory.concentration([3, 0])


@pytest.mark.core
def test_concentrations_of_other_schedules():
    """Finds κ = √(1 + h) for √(1 + 2h), h_1 in the place of h_2, and λt/(1 - λ) for λ(t - 1)/(1 - λ)."""
    t = np.array([1.0, 2.0, 9.0, 100.0])
    np.testing.assert_allclose(theory.concentration(t, dpc.schedules.ForDelay(4)), [6.0, 3 + 3 * 2**0.5, 12.0, 33.0])
    lam = 3 / (3 + np.sqrt(t[1:]) - 1)
    np.testing.assert_allclose(lam * (t[1:] - 1) / (1 - lam), theory.concentration(t[1:], dpc.schedules.ForDelay(4)))
    np.testing.assert_allclose(theory.concentration(t, dpc.schedules.Constant(0.2)), [0.25, 0.25, 2.0, 24.75])


def test_the_objective_is_the_sum_of_its_terms():
    """Finds h of another round than the coming one, weights that fade from the wrong end, and λ for λ/(1 - λ)."""
    scores, r, level = np.array([0.2, 0.9, 0.6]), 0.4, 0.3
    psi, losses = r**2 / 2 - level * r + level / 2, np.array([0.7 * 0.2, 0.3 * 0.5, 0.3 * 0.2])
    assert theory.ftrl_objective(r, scores, level) == pytest.approx(3 * psi + losses.sum())  # h_4 = √4 + 1
    found = theory.ftrl_objective(r, scores, level, schedule=dpc.schedules.Constant(0.2), discount=0.9)
    weight = (0.2 / 0.8 + 0.9**3) / (1 - 0.9)
    assert found == pytest.approx(weight * psi + 0.9 ** np.array([2, 1, 0]) @ losses)


SCHEDULES = {
    "inverse_sqrt": {},
    "dirichlet": {"schedule": dpc.schedules.Dirichlet(3.0)},
    "discounted": {"discount": 0.9},
    "constant": {"schedule": dpc.schedules.Constant(0.3)},
    "discounted_callable": {"discount": 0.95, "schedule": lambda t: 1 / (1 + jnp.log(t))},
}
# Every schedule with the uniform prior, and each other prior with one of them.
PAIRS = [(p, s) for i, p in enumerate(PRIORS) for j, s in enumerate(SCHEDULES) if i == 0 or (i + j) % 5 == 1]


@pytest.mark.parametrize(("name", "kind"), PAIRS)
def test_the_regularised_leader_is_the_quantile(name, kind):
    """Theorem 1, and the first half of Theorem 6: over 400 draws in all."""
    prior, options = PRIORS[name][0], SCHEDULES[kind]
    rng = np.random.default_rng(len(name) + len(kind))
    cases = list(sequences(40, *prior.support).values())
    levels = np.append(rng.random(4), [0.0, 1.0])
    drawn = np.stack([cases[i] for i in rng.integers(len(cases), size=6)])
    thresholds = np.asarray(dpc.replay(dpc.Exact(prior, **options), drawn, levels).thresholds)
    for i, n in enumerate(rng.integers(0, 40, 6)):
        found = theory.ftrl_threshold(drawn[i, :n], levels, prior, options.get("schedule"), options.get("discount"))
        np.testing.assert_allclose(found, thresholds[i, n], atol=1e-9, rtol=1e-12)
        objective = functools.partial(theory.ftrl_objective, scores=drawn[i, :n], prior=prior, **options)
        low, high = prior.support
        grid = np.linspace(low, high, 201)
        for level, r in zip(levels, found, strict=True):
            assert objective(r, level=level) <= objective(grid, level=level).min() + 1e-9


def test_the_regularised_leader_under_priors_of_unknown_make():
    scores = np.abs(np.random.default_rng(0).standard_normal(12))
    for distribution in (dist.HalfNormal(1.0), dist.Normal(0.5, 2.0)):
        prior = from_numpyro(distribution)
        thresholds = dpc.replay(dpc.Exact(prior), scores, [0.2, 0.9]).thresholds
        found = theory.ftrl_threshold(scores[:-1], [0.2, 0.9], prior)
        np.testing.assert_allclose(found, thresholds[-1], atol=1e-9)


def test_a_schedule_that_keeps_the_prior_is_the_prior():
    assert theory.ftrl_threshold([0.1, 0.2], 0.3, schedule=dpc.schedules.Constant(1.0)) == pytest.approx(0.3)
    assert theory.ftrl_threshold([], 0.3) == pytest.approx(0.3)


@pytest.mark.parametrize(
    ("call", "complaint"),
    [
        (lambda: theory.ftrl_threshold([[0.1]], 0.5), r"scores has shape \(1, 1\)"),
        (lambda: theory.ftrl_threshold([0.1, np.nan], 0.5), r"scores\[1\] = nan"),
        (lambda: theory.ftrl_threshold([0.1], 1.5), "level = 1.5"),
        (lambda: theory.ftrl_threshold([0.1], 0.5, discount=1.0), "discount = 1.0"),
        (lambda: theory.regularizer(0.1, [0.5, -1]), r"level\[1\] = -1"),
        (lambda: theory.strong_convexity(Uniform(), 0.6, 0.2), "low = 0.6: must not exceed high"),
        (lambda: theory.excess_risk_bound(5, 0.5, prior=from_numpyro(dist.HalfNormal(1.0))), "on a bounded one only"),
        (lambda: theory.regret_bound(2.5, 0.5), "rounds = 2.5"),
        (lambda: theory.regularizer(0.5, 0.5, None), "regularizer.prior = None"),
        (lambda: theory.ftrl_threshold([], 0.5, "x"), "ftrl_threshold.prior = 'x'"),
        (lambda: theory.concentration(5, lambda t: 2.0 * t / t), "a weight must lie in"),
        (lambda: theory.strong_convexity(Uniform(), np.nan), "low = nan"),
        (lambda: theory.quantized_regret_bound(10, 0.5, 0), "bins = 0"),
        (lambda: theory.discounted_regret_bound(5, 0.5, 1.0), "discount = 1.0"),
        (lambda: theory.coverage_bound(5, 0.5, delta=0.0), "delta = 0.0"),
        (lambda: theory.coverage_bracket(0.5, -1, 2), "count = -1"),
        (lambda: theory.hardest_sequence(dpc.Exact(from_numpyro(dist.HalfNormal(1.0))), 0.5), "needs a bounded one"),
    ],
)
def test_bad_arguments_are_named(call, complaint):
    with pytest.raises(ValueError, match=complaint):
        call()


@given(st.lists(st.floats(0, 1), max_size=40), st.sampled_from([0.3, 0.02, 1e-5]))
def test_counts_of_independent_events(chances, tail):
    chances = np.array(chances)
    exact = reference.count_distribution(chances)
    np.testing.assert_allclose(certificate._distribution(chances)[: exact.size], exact, atol=1e-14)
    most, least = certificate.upper_count(chances, tail), certificate.lower_count(chances, tail)
    assert exact[most + 1 :].sum() <= tail + 1e-9
    assert exact[:least].sum() <= tail + 1e-9
    assert most < 0 or exact[most:].sum() > tail - 1e-9  # no smaller number will do
    assert least > chances.size or exact[: least + 1].sum() > tail - 1e-9


def test_many_events_fall_back_on_a_bound_that_is_not_much_wider():
    """Finds events that are certain left out of the count: there are more of them than the bound is wide."""
    chances = np.append(np.full(20_000, 0.3), [1.0] * 700 + [0.0] * 500)
    most, least = certificate.upper_count(chances, 0.01), certificate.lower_count(chances, 0.01)
    exact = reference.stats.binom(20_000, 0.3)
    assert exact.isf(0.01) + 700 <= most <= exact.isf(0.01) + 700 + 80
    assert exact.ppf(0.01) + 700 - 80 <= least <= exact.ppf(0.01) + 700


@given(st.integers(1, 20), st.integers(0, 10**6))
def test_least_between_is_a_minimum(size, seed):
    rng = np.random.default_rng(seed)
    edges, values = np.arange(size + 1.0), rng.random(size)
    a, b = np.sort(rng.integers(0, 4 * size + 1, (2, 20)) / 4, axis=0)
    found = moments._least_between(edges, values, a, b)
    for x, y, least in zip(a, b, found, strict=True):
        touched = [values[k] for k in range(size) if k < y and k + 1 > x]
        if touched:
            assert least == min(touched)


def test_theory_is_in_float64_whatever_jax_is():
    with jax.enable_x64(False):
        assert theory.concentration(10**9, lambda t: 1 / jnp.sqrt(t)) == pytest.approx(np.sqrt(1e9) + 1, rel=1e-12)
        prior = Mixture([Beta(2, 5), TruncatedNormal(0.3, 0.2), Histogram([0, 0.5, 1], [1, 3])], [1, 2, 3])
        fine = moments.cdf_integral(prior, np.array([0.3, 0.3 + 1e-10]))
        assert np.diff(fine)[0] == pytest.approx(1e-10 * moments.cdf(prior, 0.3), rel=1e-4)
