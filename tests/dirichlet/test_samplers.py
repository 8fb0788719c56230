"""Samplers of the posterior, against its closed forms: whole distributions, for means alone hide a wrong spread."""

import functools
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

import dpconformal as dpc
from dpconformal.dirichlet import Posterior, future_scores, truncation
from dpconformal.dirichlet.samplers import SAMPLERS, dirichlet, log_gamma

UNIFORM = dpc.priors.Uniform()
SCORES = np.random.default_rng(2).beta(2, 5, 1000)
COUNTS = [0, 1, 60, 1000]
LEVELS = np.array([0.1, 0.5, 0.9])
DRAWS, A, BINS = 2000, 5.0, 64
EDGES = np.arange(1, BINS) / BINS
FAR = 2.2 / np.sqrt(DRAWS)  # Kolmogorov's distance of a right sampler exceeds this once in 8,000 times


@functools.cache
def posterior_of(count):
    return Posterior(UNIFORM, A, SCORES[:count])


@functools.cache
def drawn(method, count, size=None):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return posterior_of(count).sample(jax.random.key(11), DRAWS, method, size)


def distance(sample, cdf):
    """Kolmogorov's distance of a sample to a continuous distribution."""
    return stats.ks_1samp(np.asarray(sample), cdf, method="asymp").statistic


def step_distance(sample, x, probabilities):
    """Kolmogorov's distance at given points, for a distribution with atoms."""
    return np.abs((np.asarray(sample)[:, None] <= x).mean(axis=0) - probabilities).max()


def sizes(method, count):
    """Sticks that leave 1e-4 of the mass over, which no sample of this size can tell; bins that hold the edges."""
    return {"sticks": int(9.2 * (A + count)), "grid": BINS}.get(method)


@pytest.mark.parametrize(
    ("method", "count"),
    [*(("split", count) for count in COUNTS), ("grid", 0), ("grid", 60), ("sticks", 60), ("urn", 60)],
)
def test_cdf_has_its_beta_marginals_and_quantiles_their_posterior(method, count):
    posterior, draws = posterior_of(count), drawn(method, count, sizes(method, count))
    x = EDGES[[6, 19, 35, 50]]
    values, mean = np.asarray(draws.cdf(x)), np.asarray(posterior.mean.cdf(x))
    for column, g in zip(values.T, mean, strict=True):
        assert distance(column, stats.beta((A + count) * g, (A + count) * (1 - g)).cdf) < FAR
    points = EDGES if method == "grid" else np.unique(np.concatenate([EDGES, SCORES[:count]]))
    thresholds = np.asarray(draws.quantile(LEVELS))
    for column, level in zip(thresholds.T, LEVELS, strict=True):
        assert step_distance(column, points, posterior.quantile_cdf(level, points)) < FAR
    # Jointly, too: the covariance of a Dirichlet process between two points.
    wanted = np.minimum.outer(mean, mean) * (1 - np.maximum.outer(mean, mean)) / (A + count + 1)
    error = np.sqrt((wanted**2 + np.outer(np.diag(wanted), np.diag(wanted))) / DRAWS)
    assert (np.abs(np.cov(values.T) - wanted) < 4.5 * error).all()
    assert (np.diff(thresholds, axis=1) >= 0).all()


@pytest.mark.parametrize("count", [1, 60, 1000])
def test_bayesian_bootstrap_is_the_limit_of_no_prior(count):
    draws, scores = drawn("bootstrap", count), SCORES[:count]
    for x in (0.15, 0.3):
        below = int((scores <= x).sum())
        values = np.asarray(draws.cdf(x))
        if 0 < below < count:
            assert distance(values, stats.beta(below, count - below).cdf) < FAR
        else:
            np.testing.assert_allclose(values, below / count, atol=1e-12)
    points = np.sort(scores)[:-1]
    below = np.arange(1, count)
    for level in LEVELS:
        exact = stats.beta.sf(level, below, count - below)
        if count > 1:
            assert step_distance(draws.quantile(level), points, exact) < FAR
    almost = Posterior(UNIFORM, 1e-9, scores).sample(jax.random.key(3), DRAWS, "split", 1)
    assert stats.ks_2samp(np.asarray(almost.quantile(0.5)), np.asarray(draws.quantile(0.5))).pvalue > 1e-4


def test_too_few_sticks_are_detected_by_the_spread_and_not_by_the_mean():
    posterior, x = posterior_of(60), 0.3
    g = float(posterior.mean.cdf(x))
    exact = stats.beta(65 * g, 65 * (1 - g))
    few = drawn("sticks", 60, 65)
    values = np.asarray(few.cdf(x))
    assert abs(values.mean() - g) < 4 * values.std() / np.sqrt(DRAWS)
    assert distance(values, exact.cdf) > 3 * FAR
    points = np.unique(np.concatenate([EDGES, SCORES[:60]]))
    assert step_distance(few.quantile(0.9), points, posterior.quantile_cdf(0.9, points)) > 3 * FAR
    assert truncation(posterior, "sticks", 65) == pytest.approx((65 / 66) ** 65)
    with pytest.warns(UserWarning, match=r"sticks = 65: a mass of 0\.37 is left over .* take more, or method='split'"):
        posterior.sample(jax.random.key(0), 2, "sticks", 65)
    with pytest.warns(UserWarning, match=r"sticks = 5: a mass of 0\.031 is left over"):
        posterior.sample(jax.random.key(0), 2, "split", 5)


def test_truncation_bound_is_the_mass_left_over():
    for a, sticks in ((5.0, 12), (0.5, 3)):
        posterior = Posterior(dpc.priors.Uniform(), a, [0.5])
        keys = jax.random.split(jax.random.key(0), 1000)
        breaks = jax.vmap(lambda key, a=a, k=sticks: jax.random.beta(key, 1.0, a + 1, (k,)))(keys)
        left = np.prod(1 - np.asarray(breaks), axis=1)
        assert abs(left.mean() - truncation(posterior, "sticks", sticks)) < 4 * left.std() / np.sqrt(1000)
    with pytest.raises(ValueError, match="method = 'urn'"):
        truncation(posterior, "urn", 3)
    # The default leaves 1e-6 over, and no more sticks than that takes.
    for count in COUNTS:
        size = drawn("split", count).own_atoms.shape[1]
        assert (
            truncation(posterior_of(count), "split", size) <= 1e-6 < truncation(posterior_of(count), "split", size - 1)
        )


def test_scores_on_the_edges_of_bins_are_below_them():
    """F(x) = P(X ≤ x) counts a score at x, also where x is the edge of a bin: scores of few decimals lie there."""
    scores = [0.5] * 10 + [0.25] * 5 + [0.8125] * 5
    posterior = Posterior(dpc.priors.Uniform(), 5.0, scores)
    x = np.array([0.25, 0.5])
    for size in (None, 16):
        draws = posterior.sample(jax.random.key(5), DRAWS, "grid", size)
        below = np.array([0.25, 0.7])
        error = np.sqrt(below * (1 - below) / 26 / DRAWS)
        np.testing.assert_allclose(np.asarray(draws.cdf(x)).mean(axis=0), below, atol=4 * error.max())
        assert abs(np.mean(np.asarray(draws.quantile(0.5)) <= 0.5) - 0.9805) < 4 * np.sqrt(0.98 * 0.02 / DRAWS)
    learner = dpc.Quantized(16, schedule=dpc.schedules.Dirichlet(5.0))
    binned = Posterior.from_state(learner, dpc.replay(learner, scores, [0.5]).state)
    assert binned.quantile_cdf(0.5, 0.5) == pytest.approx(posterior.quantile_cdf(0.5, 0.5), abs=1e-12)
    assert binned.quantile_cdf(0.5, 0.5) == pytest.approx(0.9805, abs=1e-4)
    with jax.enable_x64(False):  # where edges are rounded, counts stay in their bins
        prior = dpc.priors.Uniform(0.1, 0.7)
        learner = dpc.Quantized(14, prior, dpc.schedules.Dirichlet(5.0))
        run = dpc.replay(learner, np.linspace(0.1, 0.7, 29, dtype=np.float32), [0.5])
        binned = Posterior.from_state(learner, run.state)
        draws = binned.sample(jax.random.key(5), DRAWS, "grid")
        want = np.cumsum(np.asarray(run.state.weights) + 5 / 14) / 34
        found = np.asarray(draws.cdf(draws.atoms)).mean(axis=0)
        np.testing.assert_allclose(found, want, atol=4 * np.sqrt(0.25 / 35 / DRAWS))


def test_grid_is_exact_for_a_quantized_belief():
    learner = dpc.Quantized(bins=16, schedule=dpc.schedules.Dirichlet(A))
    state = dpc.replay(learner, SCORES[:60], [0.5]).state
    posterior = Posterior.from_state(learner, state)
    edges = np.arange(1, 16) / 16
    for size in (None, 8):
        draws = posterior.sample(jax.random.key(5), DRAWS, "grid", size)
        kept = edges if size is None else edges[1::2]
        for level in LEVELS:
            assert step_distance(draws.quantile(level), kept, posterior.quantile_cdf(level, kept)) < FAR
    with pytest.raises(ValueError, match=r"bins = 12: the posterior's 16 bins must be a multiple"):
        posterior.sample(jax.random.key(5), 2, "grid", 12)
    for method in ("split", "sticks", "bootstrap"):  # counts instead of single scores
        draws = posterior.sample(jax.random.key(6), DRAWS, method)
        below = float(posterior.mean.cdf(0.25)) if method != "bootstrap" else float((SCORES[:60] < 0.25).mean())
        total = 60 if method == "bootstrap" else 65
        assert distance(draws.cdf(0.25), stats.beta(total * below, total * (1 - below)).cdf) < FAR


def test_future_scores_are_exchangeable_draws_of_the_predictive():
    future = np.asarray(future_scores(posterior_of(60), jax.random.key(1), DRAWS, 40))
    x = np.array([0.1, 0.3, 0.6])
    g = np.asarray(posterior_of(60).mean.cdf(x))
    for column in (0, 1, 39):  # the predictive is the same for every one of them
        seen = (future[:, column, None] <= x).mean(axis=0)
        assert (np.abs(seen - g) < 4 * np.sqrt(g * (1 - g) / DRAWS)).all()
    # How many of them are at most x is beta-binomial.
    k = np.arange(41)
    for i, share in enumerate(g):
        below = (future <= x[i]).sum(axis=1)
        assert step_distance(below, k, stats.betabinom.cdf(k, 40, 65 * share, 65 * (1 - share))) < FAR
    # Two of them are equal where the later copied, or where both took the same old score.
    chance = 1 / 66 + (65 / 66) * 60 / 65**2
    for pair in ((0, 1), (0, 39)):
        equal = (future[:, pair[0]] == future[:, pair[1]]).mean()
        assert abs(equal - chance) < 4 * np.sqrt(chance / DRAWS)


def test_copies_of_copies_lead_back_to_the_first():
    """Finds chains of copies that are not followed to their end: too many values are different then."""
    future = np.asarray(future_scores(posterior_of(0), jax.random.key(2), 400, 40))
    different = 1 + (np.diff(np.sort(future, axis=1), axis=1) > 0).sum(axis=1)
    new = A / (A + np.arange(40))  # the chance that a score is no copy
    assert abs(different.mean() - new.sum()) < 4 * np.sqrt((new * (1 - new)).sum() / 400)


@pytest.mark.parametrize("method", list(SAMPLERS))
def test_jit_vmap_and_single_precision(method):
    size = None if method == "bootstrap" else 32

    def medians(a, scores, key):
        return Posterior(UNIFORM, a, scores).sample(key, 50, method, size).quantile(0.5)

    keys = jax.random.split(jax.random.key(0), 3)
    scores = SCORES[:5]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # of few sticks, outside jit
        plain = np.stack([medians(1.0, scores, key) for key in keys])
    mapped = jax.jit(jax.vmap(medians, in_axes=(None, None, 0)))(1.0, scores, keys)
    np.testing.assert_allclose(mapped, plain, atol=1e-12)
    swept = jax.vmap(medians, in_axes=(0, 0, None))(jnp.array([1.0, 9.0]), jnp.stack([scores[::-1], scores]), keys[0])
    np.testing.assert_allclose(swept[0], plain[0], atol=1e-12)
    with jax.enable_x64(False):
        draws = posterior_of(60).sample(jax.random.key(0), DRAWS, method, sizes(method, 60))
        values, points = draws.quantile(0.9), EDGES if method == "grid" else np.sort(SCORES[:60])
        assert values.dtype == np.float32
        exact = posterior_of(60).quantile_cdf(0.9, points)
        if method != "bootstrap":
            assert step_distance(values, points.astype(np.float32), exact) < FAR


def test_sizes_must_be_given_where_they_depend_on_traced_values():
    with pytest.raises(ValueError, match="sticks is not given"):
        jax.jit(lambda a: Posterior(UNIFORM, a, SCORES[:5]).sample(jax.random.key(0), 3).mean())(2.0)
    assert np.isnan(
        jax.jit(lambda a: Posterior(UNIFORM, a, []).sample(jax.random.key(0), 3, "split", 9).mean())(-1.0)
    ).all()
    with pytest.raises(ValueError, match=r"posterior\.scores is empty"):
        posterior_of(0).sample(jax.random.key(0), 3, "bootstrap")
    with pytest.raises(ValueError, match="size = 7: the Bayesian bootstrap has none"):
        posterior_of(1).sample(jax.random.key(0), 3, "bootstrap", 7)


def test_draws_are_distributions():
    draws = drawn("split", 60)
    assert (np.asarray(draws.quantile(0.0)) == 0).all()
    assert np.isfinite(np.asarray(draws.quantile(1.0))).all()
    np.testing.assert_allclose(draws.cdf([-1.0, 1.0]), np.tile([0.0, 1.0], (DRAWS, 1)), atol=1e-12)
    mean, exact = np.asarray(draws.mean()), (A * 0.5 + SCORES[:60].sum()) / 65
    assert abs(mean.mean() - exact) < 4 * mean.std() / np.sqrt(DRAWS)
    # The Galois connection of each draw.
    x = np.asarray(draws.quantile(0.37))
    at, before = (np.diag(np.asarray(draws._replace(**_first(draws, 50)).cdf(x[:50] - back))) for back in (0, 1e-9))
    assert (at >= 0.37 - 1e-12).all()
    assert (before < 0.37).all()
    with pytest.raises(ValueError, match=r"levels\[1\] = 1.5"):
        draws.quantile([0.5, 1.5])


def _first(draws, count):
    return {name: getattr(draws, name)[:count] for name in ("cumulative", "own_atoms", "own_cumulative")}


def test_unbounded_priors_never_draw_infinity():
    import numpyro.distributions as dist

    normal = dpc.priors.from_numpyro(dist.Normal(0.0, 1.0))
    for method in ("split", "sticks", "urn"):
        draws = Posterior(normal, 3.0, [-0.5, 2.0]).sample(jax.random.key(0), 500, method)
        assert np.isfinite(np.asarray(draws.mean())).all()
    with pytest.raises(ValueError, match="a grid needs a bounded one"):
        Posterior(normal, 3.0, []).sample(jax.random.key(0), 5, "grid")


@pytest.mark.parametrize("alpha", [1e-3, 0.3, 1.0, 2.5, 300.0])
def test_gamma_variates_have_their_distribution(alpha):
    drawn = np.asarray(log_gamma(jax.random.key(7), jnp.asarray(alpha), (20_000,)))
    exact = stats.loggamma(alpha)
    assert stats.kstest(drawn, exact.cdf).pvalue > 1e-3
    with jax.enable_x64(False):
        single = np.asarray(log_gamma(jax.random.key(7), jnp.asarray(alpha, jnp.float32), (20_000,)))
    assert stats.kstest(single.astype(float), exact.cdf).pvalue > 1e-3


def test_gamma_variates_of_nonsense_are_nan_and_end():
    alpha = jnp.array([2.0, 0.0, -1.0, jnp.nan, jnp.inf])
    assert np.isnan(np.asarray(log_gamma(jax.random.key(0), alpha, (4, 5)))).tolist() == [[False, *[True] * 4]] * 4
    tiny = np.asarray(dirichlet(jax.random.key(0), jnp.full(5, 1e-9), 100))
    np.testing.assert_allclose(tiny.max(axis=1), 1)  # nearly all of the mass in one place, never NaN
    assert set(tiny.argmax(axis=1)) == set(range(5))


@pytest.mark.parametrize("method", list(SAMPLERS))
def test_traced_nonsense_is_nan(method):
    size = None if method == "bootstrap" else 32

    def read(a, scores):
        posterior = Posterior(UNIFORM, a, scores)
        draws = posterior.sample(jax.random.key(0), 3, method, size)
        return jnp.stack([draws.quantile(0.5), draws.cdf(0.5), future_scores(posterior, jax.random.key(0), 3, 1)[:, 0]])

    read, good = jax.jit(read), jnp.array([0.2, 0.4])
    assert np.isfinite(read(1.0, good)).all()
    assert np.isnan(read(-1.0, good)).all()
    assert np.isnan(read(1.0, jnp.array([0.2, 5.0]))).all()


def test_levels_0_and_1_are_the_ends_of_the_support():
    for method in ("split", "grid", "sticks", "urn"):
        draws = Posterior(dpc.priors.Uniform(-1, 2), A, [0.5]).sample(jax.random.key(0), 5, method)
        np.testing.assert_array_equal(draws.quantile([0.0, 1.0]), np.tile([-1.0, 2.0], (5, 1)))
    counted = Posterior(UNIFORM, A, [0.2, 0.5, 0.9], [1, 2, 0]).sample(jax.random.key(0), 5, "bootstrap")
    np.testing.assert_allclose(counted.quantile(1.0), 0.5)
    assert repr(draws) == "Draws(5 distributions)"


def test_what_does_not_fit_or_was_never_seen_is_refused():
    heavy = Posterior(UNIFORM, 1e4, SCORES)
    for method in ("split", "sticks", "urn"):
        with pytest.raises(ValueError, match=r"sticks = [\d,]+ for each of draws = 10,000 do not fit into memory"):
            heavy.sample(jax.random.key(0), 10_000, method)
    assert np.isfinite(heavy.sample(jax.random.key(0), 10, "grid").mean()).all()
    with pytest.raises(ValueError, match="needs a score"):
        Posterior(UNIFORM, A, [0.3, 0.4], [0, 0]).sample(jax.random.key(0), 5, "bootstrap")
