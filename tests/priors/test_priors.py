"""Priors against SciPy, their inverses, and what each needs of its parameters."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
from cases import PRIORS, covering
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import truncnorm

import dpconformal as dpc
from dpconformal import priors

N = 401  # one size for all arrays: one compilation for each function
NUMPYRO = {
    "numpyro_beta": priors.from_numpyro(dist.Beta(2.0, 5.0)),  # no icdf there: root finding
    "numpyro_normal": priors.from_numpyro(dist.TruncatedNormal(0.3, 0.2, low=0.0, high=1.0)),
    "numpyro_uniform": priors.from_numpyro(dist.Uniform(-2.0, 3.0)),
}
MORE = {
    "beta_u": priors.Beta(0.5, 0.5),
    "beta_steep": priors.Beta(30, 2, -1, 4),
    "normal_tail": priors.TruncatedNormal(-3.0, 0.7),
    "normal_wide": priors.TruncatedNormal(0, 100, 2, 10),
    "learned": priors.Histogram.from_scores(np.random.default_rng(0).beta(2, 5, 500), bins=20, smoothing=5.0),
    "touching": priors.Mixture([priors.Uniform(0, 0.5), priors.Uniform(0.5, 2)], [0.9, 0.1]),
}
ALL = {name: pair[0] for name, pair in PRIORS.items()} | NUMPYRO | MORE


@pytest.mark.parametrize("name", PRIORS)
def test_cdf_quantile_and_density_agree_with_scipy(name):
    ours, twin = PRIORS[name]
    low, high = map(float, ours.support)
    x = np.linspace(low - 0.5, high + 0.5, N)
    np.testing.assert_allclose(ours.cdf(x), twin.cdf(x), atol=1e-13)
    p = np.linspace(0.001, 0.999, N)
    np.testing.assert_allclose(ours.quantile(p), twin.ppf(p), atol=1e-11 * (high - low))
    if hasattr(twin, "pdf"):
        inside = np.linspace(low, high, N + 2)[1:-1] + 1e-7
        np.testing.assert_allclose(ours.density(inside), twin.pdf(inside), rtol=1e-11)
    assert (np.asarray(ours.density(np.repeat([low - 1, high + 1], N)[:N])) == 0).all()


def test_numpyro_twins_agree_with_ours():
    x, p = np.linspace(-0.2, 1.2, N), np.linspace(0, 1, N)
    for name, twin in (("numpyro_beta", "beta"), ("numpyro_normal", "truncated_normal")):
        theirs, ours = NUMPYRO[name], PRIORS[twin][0]
        np.testing.assert_allclose(theirs.cdf(x), ours.cdf(x), atol=1e-13)
        np.testing.assert_allclose(theirs.quantile(p), ours.quantile(p), atol=1e-9)
        np.testing.assert_allclose(theirs.density(x), ours.density(x), rtol=1e-10, atol=1e-12)


@covering(name=ALL, dtype=[np.float32, np.float64])
def test_quantile_inverts_cdf(name, dtype):
    """Over the whole support, to 1e-10 (1e-6), or as far as the digits of cdf(x) determine x."""
    prior = ALL[name]
    low, high = map(float, prior.support)
    x = np.linspace(low, high, N).astype(dtype)
    p = prior.cdf(x)
    back = prior.quantile(p)
    assert p.dtype == back.dtype == dtype
    density = np.asarray(prior.density(x), float)
    # A cdf value is known to about 20 units in the last place, betainc being the worst.
    conditioning = 40 * np.finfo(dtype).eps / np.where(density > 0, density, np.inf)
    # At an end with vanishing density the inverse is known only as far as the cdf tells values apart.
    lost = (density == 0) | ((p == 1) & (x < high)) | ((p == 0) & (x > low))
    tolerance = (1e-10 if dtype == np.float64 else 1e-6) * (high - low) + conditioning
    error = np.abs(np.asarray(back, float) - x)
    assert (error <= tolerance)[~lost].all()
    assert lost.mean() < 0.25
    assert back[0] == x[0]
    assert back[-1] == x[-1]


@pytest.mark.parametrize("name", ALL)
def test_lower_tail_is_inverted_too(name):
    prior = ALL[name]
    p = np.geomspace(1e-12, 0.5, N)
    np.testing.assert_allclose(prior.cdf(prior.quantile(p)), p, rtol=1e-8, atol=1e-14)


@pytest.mark.parametrize("name", ALL)
def test_monotone_to_the_last_bit(name):
    prior = ALL[name]
    around = 0.4 + np.arange(-40, 40) * np.spacing(0.4)
    p = np.sort(np.concatenate([np.linspace(0, 1, N - 80), around]))
    assert (np.diff(np.asarray(prior.quantile(p))) >= 0).all()
    low, high = map(float, prior.support)
    ends = prior.quantile(p)
    assert (ends[0], ends[-1]) == (low, high)
    x = np.linspace(low - 1, high + 1, N)
    x[[0, 1, -2, -1]] = [low - 1, low, high, high + 1]
    np.testing.assert_array_equal(prior.cdf(x)[np.array([0, 1, -2, -1])], [0, 0, 1, 1])


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_thresholds_of_neighbouring_levels_are_in_order_for_a_prior_without_closed_form(dtype):
    """Finds a replay that orders quantiles only within the chunks of levels that it solves for at a time."""
    levels = dtype(0.4) + np.arange(-40, 40).astype(dtype) * np.spacing(dtype(0.4))
    order = np.random.default_rng(0).permutation(80)  # so that neighbours are solved for in different chunks
    scores = np.random.default_rng(0).beta(2, 5, 20).astype(dtype)
    run = dpc.replay(dpc.Exact(priors.Beta(2, 5)), scores, levels[order])
    assert run.thresholds.dtype == dtype
    assert (np.diff(np.asarray(run.thresholds)[:, np.argsort(order)]) >= 0).all()


@pytest.mark.parametrize("side", [-1, 1])
def test_far_tail_of_a_truncated_normal_keeps_its_digits_in_float32(side):
    """Finds a mass that is a difference of two numbers near 1: it is 0 nine and a half scales away."""
    prior = priors.TruncatedNormal(0.5 + 1.45 * side, 0.1)  # 9.5 scales beyond an end of [0, 1]
    twin = truncnorm((0 - prior.loc) / 0.1, (1 - prior.loc) / 0.1, prior.loc, 0.1)
    near = np.array([0.002, 0.005, 0.01, 0.03, 0.1])
    x = (near if side < 0 else 1 - near).astype(np.float32)
    p = prior.cdf(x)
    assert p.dtype == np.float32
    np.testing.assert_allclose(p, twin.cdf(x), rtol=1e-3)
    np.testing.assert_allclose(prior.density(x), twin.pdf(x), rtol=1e-3)
    np.testing.assert_allclose(prior.quantile(np.float32(0.5)), twin.median(), rtol=1e-4)


@pytest.mark.parametrize("name", ALL)
def test_density_integrates_to_the_cdf(name):
    prior = ALL[name]
    low, high = map(float, prior.support)
    nodes, weights = np.polynomial.legendre.leggauss(40)
    cuts = np.unique(np.concatenate([np.linspace(low, high, 201), np.ravel(getattr(prior, "edges", low))]))
    cuts = cuts[(cuts > low + 0.02 * (high - low)) & (cuts < high - 0.02 * (high - low))]
    left, right = cuts[:-1], cuts[1:]
    x = left[:, None] + (right - left)[:, None] * (nodes + 1) / 2
    mass = np.asarray(prior.density(x)) @ weights * (right - left) / 2
    np.testing.assert_allclose(mass, np.diff(prior.cdf(cuts)), atol=1e-12)


@given(a=st.floats(0.1, 50), b=st.floats(0.1, 50), p=st.floats(1e-6, 1 - 1e-6))
def test_any_beta(a, b, p):
    prior = priors.Beta(a, b)
    x = np.asarray(prior.quantile(np.array([p])))
    # Where the density is infinite, one step of x may be worth more than any tolerance of the cdf.
    neighbours = prior.cdf(np.concatenate([np.nextafter(x, 0), np.nextafter(x, 1)]))
    assert neighbours[0] - 1e-10 <= p <= neighbours[1] + 1e-10


@given(
    masses=st.lists(st.floats(0.01, 10), min_size=4, max_size=4),
    gaps=st.lists(st.floats(0.01, 10), min_size=4, max_size=4),
    p=st.floats(0, 1),
)
def test_any_histogram(masses, gaps, p):
    prior = priors.Histogram(np.concatenate([[0.0], np.cumsum(gaps)]), masses)
    np.testing.assert_allclose(prior.cdf(prior.quantile(p)), p, atol=1e-14)


def test_the_density_of_a_histogram_at_an_inner_edge_is_that_of_the_bin_above():
    """Finds the bin below it."""
    prior = PRIORS["histogram"][0]
    np.testing.assert_allclose(prior.density(prior.edges[:-1]), prior.masses / np.diff(prior.edges), rtol=1e-14)


def test_histogram_from_scores():
    sample = np.array([0.1, 0.1, 0.4, 1.0])
    prior = priors.Histogram.from_scores(sample, bins=2, smoothing=2.0)
    np.testing.assert_allclose(prior.masses, [(3 + 1) / 6, (1 + 1) / 6])
    assert (np.asarray(prior.density(np.linspace(0, 1, 50))) > 0).all()
    nothing = priors.Histogram.from_scores([], bins=4)
    np.testing.assert_allclose(nothing.quantile(np.array([0.25, 0.6])), [0.25, 0.6])
    wide = priors.Histogram.from_scores([5.0], bins=4, low=-10, high=10)
    assert wide.support == (-10, 10)


def test_unbounded_priors_from_numpyro():
    prior = priors.from_numpyro(dist.HalfNormal(2.0))
    assert prior.support == (0.0, np.inf)
    x = np.array([0.0, 0.5, 3.0, 20.0])
    np.testing.assert_allclose(prior.quantile(prior.cdf(x[:3])), x[:3], atol=1e-12)
    assert prior.quantile(1.0) == np.inf
    assert np.asarray(prior.cdf(-1.0)) == 0
    run = dpc.replay(dpc.Exact(prior), x, [0.5, 0.9])
    assert np.isfinite(run.thresholds).all()
    whole_line = priors.from_numpyro(dist.Normal(0.0, 1.0))
    np.testing.assert_allclose(whole_line.quantile(np.array([0.5])), [0.0], atol=1e-15)
    assert whole_line.support == (-np.inf, np.inf)


def test_numpyro_parameters_are_swept():
    def median(scale):
        return priors.from_numpyro(dist.HalfNormal(scale)).quantile(0.5)

    swept = jax.vmap(median)(jnp.array([1.0, 2.0]))
    np.testing.assert_allclose(swept[1], 2 * swept[0], rtol=1e-12)


@pytest.mark.parametrize(
    "make",
    [
        lambda bad: priors.Uniform(0.0, bad),
        lambda bad: priors.Beta(bad, 1.0),
        lambda bad: priors.Beta(1.0, bad),
        lambda bad: priors.Beta(1.0, 1.0, 0.0, bad),
        lambda bad: priors.TruncatedNormal(0.0, bad),
        lambda bad: priors.TruncatedNormal(0.0, 1.0, 0.0, bad),
        lambda bad: priors.TruncatedNormal(50 * bad, 1.0),
        lambda bad: priors.Histogram([0.0, 0.5, 1.0], jnp.stack([bad, 3.0 + 0 * bad])),
        lambda bad: priors.Histogram(jnp.stack([0 * bad, bad, 1 + 0 * bad]), [1.0, 1.0]),
        lambda bad: priors.Mixture([priors.Uniform(), priors.Beta(2, 2)], jnp.stack([bad, 3.0 + 0 * bad])),
        lambda bad: priors.Mixture([priors.Uniform(), priors.Beta(2, bad)], [1.0, 1.0]),
        lambda bad: priors.from_numpyro(dist.HalfNormal(bad)),
        lambda bad: priors.from_numpyro(dist.Beta(bad, 2.0)),
    ],
)
def test_traced_nonsense_is_nan_for_every_level(make):
    state = dpc.replay(dpc.Exact(), [0.1, 0.4, 0.6], [0.5]).state
    levels = jnp.array([0.0, 0.3, 0.9, 1.0])

    def answers(bad):
        prior = make(bad)
        return dpc.Exact(prior).quantile(state, levels), prior.cdf(levels[1:3]), prior.quantile(levels)

    for result in jax.jit(answers)(-1.0):
        assert np.isnan(result).all()


def test_an_unbounded_mixture_answers_level_zero_and_others_at_once():
    mixture = priors.Mixture([priors.from_numpyro(dist.Normal(m, 1.0)) for m in (0.0, 3.0)], [0.5, 0.5])
    low, middle, high = mixture.quantile(np.array([0.0, 0.5, 1.0]))
    assert (low, high) == (-np.inf, np.inf)
    np.testing.assert_allclose(middle, 1.5, atol=1e-12)


def test_poles_of_the_density_are_inverted():
    prior = priors.Beta(0.01, 1.0)  # the cdf is x^0.01
    p = np.array([0.01, 0.1, 0.5, 0.9])
    np.testing.assert_allclose(prior.quantile(p), p**100, rtol=1e-9)


def test_extreme_weights_are_normalised_before_float32_sees_them():
    heavy = priors.Mixture([priors.Uniform(), priors.Uniform()], [1e60, 1e60])
    np.testing.assert_allclose(heavy.quantile(np.float32(0.3)), 0.3, rtol=1e-6)
    light = priors.Histogram([0, 0.5, 1], [1e-60, 1e-60])
    np.testing.assert_allclose(light.quantile(np.float32(0.3)), 0.3, rtol=1e-6)


@pytest.mark.parametrize("name", ALL)
def test_nan_stays_nan_and_nonsense_is_refused(name):
    prior = ALL[name]
    assert np.isnan(prior.cdf(np.nan))
    assert np.isnan(prior.density(np.nan))
    assert np.isnan(jax.jit(prior.quantile)(jnp.array([np.nan, -0.1, 1.5]))).all()
    for bad in ([0.5, 1.5], [-0.1], [np.nan]):
        with pytest.raises(ValueError, match=r"^p\["):
            prior.quantile(bad)
    for method in (prior.cdf, prior.quantile, prior.density):
        with pytest.raises(ValueError, match="must be real numbers"):
            method("a")
