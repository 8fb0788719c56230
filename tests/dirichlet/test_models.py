"""NumPyro models: against closed forms, quadrature and a known truth."""

import warnings
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
from scipy import integrate, stats

from dpconformal.diagnostics import summary
from dpconformal.dirichlet.concentration import (
    ConcentrationModel,
    bin_counts,
    concentration_posterior,
    log_likelihood,
)
from dpconformal.dirichlet.models import Fit, MixtureModel, SticksModel, fit
from dpconformal.dirichlet.posterior import Posterior
from dpconformal.priors import Beta, Histogram, Uniform, from_numpyro

pytestmark = pytest.mark.xdist_group("models")  # one worker, so that what is fitted once is fitted once

SCORES = np.random.default_rng(0).beta(2, 5, 200)
POINTS = np.arange(1, 10) / 10
LEVELS = np.array([0.1, 0.5, 0.9])
BINS = 16


def run(model, **options):
    return fit(model, jax.random.key(4), progress_bar=False, **{"warmup": 300, "draws": 500, "chains": 4} | options)


@pytest.fixture(scope="module")
def sticks():
    return run(SticksModel(Posterior(Uniform(), 5.0, SCORES[:60]), sticks=30))


@pytest.fixture(scope="module")
def concentration():
    return run(ConcentrationModel.from_scores(SCORES, Uniform(), BINS))


@pytest.fixture(scope="module")
def mixture():
    # Scores at both ends of the support are ordinary input.
    return run(
        MixtureModel(np.concatenate([SCORES, [0.0, 1.0]]), components=6), target_accept_prob=0.9, draws=400, chains=2
    )


def belief(x, scores, a):
    """Mean of the Dirichlet process posterior with a uniform prior."""
    return (a * x + np.searchsorted(np.sort(scores), x, side="right")) / (a + scores.size)


def test_sticks_agree_with_the_closed_form(sticks):
    import arviz_stats

    draws = np.asarray(sticks.cdf(POINTS))
    mean = belief(POINTS, SCORES[:60], 5.0)
    for i, x in enumerate(POINTS):
        error = float(arviz_stats.mcse(draws[..., i]))
        assert abs(draws[..., i].mean() - mean[i]) < 4 * error, x
        assert arviz_stats.rhat(draws[..., i]) < 1.01, x
        # Not only the mean: F(x) is Beta, thinned to nearly independent draws.
        thin = draws[:, ::5, i].ravel()
        assert stats.kstest(thin, stats.beta(65 * mean[i], 65 * (1 - mean[i])).cdf).pvalue > 1e-3, x
    wrong = belief(POINTS, SCORES[:60], 20.0)
    assert np.abs(draws.mean(axis=(0, 1)) - wrong).max() > 0.02


def test_threshold_of_the_sticks_is_that_of_the_belief(sticks):
    found = np.asarray(sticks.threshold([0.0, *LEVELS, 1.0]))
    assert found[0] == 0
    assert found[-1] == 1
    spread = np.asarray(sticks.cdf(found[1:-1])).std(axis=(0, 1)) / np.sqrt(500)
    assert (np.abs(belief(found[1:-1], SCORES[:60], 5.0) - LEVELS) < 4 * spread + 1 / 65).all()
    reached = np.asarray(sticks.predictive_cdf(found[1:-1]))
    before = np.asarray(sticks.predictive_cdf(found[1:-1] - 1e-9))
    assert (reached >= LEVELS).all()
    assert (before < LEVELS).all()


def test_quantile_inverts_cdf_of_each_draw(sticks, mixture):
    for found in (sticks, mixture):
        few = found._replace(samples={name: draws[:1, :3] for name, draws in found.samples.items()})
        q = few.quantile([0.0, *LEVELS, 1.0])
        assert (q[..., 0] == 0).all()
        assert (q[..., -1] == 1).all()
        for d in range(3):
            own = few._replace(samples={name: draws[:, d : d + 1] for name, draws in few.samples.items()})
            x = np.asarray(q[0, d, 1:-1])
            assert (np.asarray(own.cdf(x))[0, 0] >= LEVELS - 1e-12).all()
            assert (np.asarray(own.cdf(x - 1e-9))[0, 0] < LEVELS).all()


def test_summary_of_a_fit(sticks, mixture):
    table = summary(sticks, x=POINTS, levels=[0.0, *LEVELS])
    assert list(table.index[:2]) == ["F[0.1]", "F[0.2]"]
    assert (table.filter(like="F[", axis=0).verdict == "good").all()
    assert table.loc["q[0.0]", "verdict"] == "constant"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a divergence or two
        table = summary(mixture, x=POINTS, levels=LEVELS)
    assert (table.r_hat < 1.02).all()


def test_truncation_warns():
    posterior = Posterior(Uniform(), 5.0, SCORES[:60])
    with pytest.warns(UserWarning, match=r"sticks = 10 misplaces 0\.012 .* 24 sticks"):
        SticksModel(posterior, sticks=10)
    SticksModel(posterior, sticks=24)


def test_sticks_without_scores_and_with_scores_never_seen():
    from numpyro import handlers

    prior_only = SticksModel(Posterior(Uniform(), 1.0, []), sticks=20)
    counted = SticksModel(Posterior(Uniform(), 1.0, [0.2, 0.4, 0.6], counts=[3, 0, 1]), sticks=20)
    for model, shares in ((prior_only, None), (counted, 4)):
        with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
            trace = handlers.trace(handlers.seed(model, jax.random.key(0))).get_trace()
        assert ("shares" in trace) == (shares is not None)
        sample = {name: site["value"] for name, site in trace.items()}
        assert float(model.cdf(sample, jnp.array([1.0]))[0]) == 1
        assert float(model.cdf(sample, jnp.array([0.999999]))[0]) == pytest.approx(1, abs=1e-9)
    assert sample["shares"].shape == (4,)
    assert float(sample["shares"][2]) == 0


def test_quadrature_against_adaptive_quadrature():
    counts, masses = bin_counts(SCORES, Uniform(), BINS)
    np.testing.assert_array_equal(counts, np.histogram(SCORES, BINS, (0, 1))[0])

    def log_likelihood_of(a):
        return stats.dirichlet_multinomial(a * masses, 200).logpmf(counts)

    a = np.array([0.1, 3.0, 1e4])
    ours = log_likelihood(a, counts, masses)
    np.testing.assert_allclose(np.diff(ours), np.diff([log_likelihood_of(v) for v in a]), rtol=1e-9)
    top = log_likelihood_of(8.0)
    for hyperprior, density in (
        (None, stats.lognorm(1.5, scale=10).pdf),
        (dist.Gamma(2.0, 0.1), stats.gamma(2, scale=10).pdf),
        (dist.Uniform(2.0, 12.0), stats.uniform(2, 10).pdf),
        (lambda a: -a / 10, stats.expon(scale=10).pdf),
    ):
        found = concentration_posterior(SCORES, Uniform(), BINS, hyperprior)

        def integrated(function, low, high, density=density):
            def height(z):
                a = np.exp(z)
                return function(a) * np.exp(log_likelihood_of(a) - top + z) * density(a)

            return integrate.quad(height, np.log(low), np.log(high), epsabs=0, epsrel=1e-8, limit=200)[0]

        low, high = (2.0, 12.0) if isinstance(hyperprior, dist.Uniform) else (1e-2, 1e3)
        total, first, second, share = (
            integrated(function, low, high)
            for function in (lambda a: 1.0, lambda a: a, lambda a: a * a, lambda a: a / (a + 200))
        )
        assert found.mean == pytest.approx(first / total, rel=1e-5)
        assert found.sd == pytest.approx(np.sqrt(second / total - (first / total) ** 2), rel=1e-4)
        assert found.prior_weight == pytest.approx(share / total, rel=1e-5)
        assert found.cdf(8.0) == pytest.approx(integrated(lambda a: 1.0, low, 8.0) / total, abs=1e-5)
        assert found.cdf(found.quantile(0.3)) == pytest.approx(0.3, abs=1e-9)


def test_nuts_agrees_with_quadrature(concentration):
    import arviz_stats

    draws = np.asarray(concentration.samples["concentration"])
    exact = concentration_posterior(SCORES, Uniform(), BINS)
    assert abs(draws.mean() - exact.mean) < 4 * float(arviz_stats.mcse(draws))
    assert arviz_stats.rhat(draws) < 1.01
    assert abs(draws.mean() - concentration_posterior(SCORES, Beta(2.0, 5.0), BINS).mean) > 1
    edges = np.array([0.25, 0.5])  # there the belief of the bins is that of the scores
    share = exact.prior_weight
    mean = share * edges + (1 - share) * np.searchsorted(np.sort(SCORES), edges, side="right") / 200
    error = [float(arviz_stats.mcse(values)) for values in np.moveaxis(np.asarray(concentration.cdf(edges)), -1, 0)]
    assert (np.abs(np.asarray(concentration.predictive_cdf(edges)) - mean) < 4 * np.array(error)).all()
    # Within a bin the model knows no more than the prior: a threshold is off by less than a bin.
    assert (np.abs(np.asarray(concentration.threshold(LEVELS)) - exact.threshold(LEVELS)) < 1 / BINS).all()


def test_predictive_threshold_of_the_concentration():
    for scores in (SCORES, SCORES[:0], np.array([0.3, 0.3, 0.0, 1.0])):
        found = concentration_posterior(scores, Beta(2.0, 2.0), 4)
        share = found.prior_weight

        def mixed(x, scores=scores, share=share):
            seen = (scores[:, None] <= x).mean(axis=0) if scores.size else 0.0
            return share * stats.beta(2, 2).cdf(x) + (1 - share) * seen

        levels = np.linspace(0.01, 0.99, 50)
        x = found.threshold(levels)
        assert (mixed(x + 1e-9) >= levels).all()
        assert (mixed(x - 1e-9) < levels).all()
        np.testing.assert_array_equal(found.threshold([0.0, 1.0]), [0, 1])


def test_concentration_is_large_for_a_right_prior_and_small_for_a_wrong_one():
    right, wrong = (concentration_posterior(SCORES, prior, BINS) for prior in (Beta(2.0, 5.0), Beta(5.0, 2.0)))
    assert right.mean > 30
    assert wrong.mean < 3
    # Narrow hyperpriors are found, and on an unbounded support there are bins as well.
    narrow = concentration_posterior(SCORES, Uniform(), BINS, dist.Gamma(1e8, 1e7))
    assert narrow.mean == pytest.approx(10, abs=1e-2)
    assert narrow.sd == pytest.approx(1e-3, rel=0.02)
    unbounded = concentration_posterior(SCORES, from_numpyro(dist.Normal(0.3, 0.16)), BINS)
    assert unbounded.mean > 5
    assert np.isfinite(unbounded.threshold(LEVELS)).all()


@pytest.mark.parametrize(
    ("hyperprior", "message"),
    [
        (lambda a: 0 * a, "improper"),
        (lambda a: -np.log(a), "improper"),
        (lambda a: a * np.nan, "no log density"),
        (3.0, "pass a NumPyro distribution"),
        (dist.Uniform(-2.0, -1.0), "positive density"),
    ],
)
def test_bad_hyperpriors(hyperprior, message):
    with pytest.raises(ValueError, match=message):
        concentration_posterior(SCORES, Beta(2.0, 5.0), 4, hyperprior)


def test_mixture_is_smooth_and_close_to_the_truth(mixture):
    truth = stats.beta(2, 5)
    assert np.abs(np.asarray(mixture.predictive_cdf(POINTS)) - truth.cdf(POINTS)).max() < 0.06
    assert (np.abs(truth.cdf(np.asarray(mixture.threshold(LEVELS))) - LEVELS) < 0.06).all()
    fine = np.linspace(0, 1, 501)
    steps = np.diff(np.asarray(mixture.predictive_cdf(fine)))
    assert (steps > 0).all()
    assert steps.max() < 0.01  # an empirical distribution has steps of 1/200 and gaps; density 5 is the most here
    assert np.abs(np.diff(steps)).max() < 5e-4
    empirical = np.diff(np.searchsorted(np.sort(SCORES), fine, side="right") / 200)
    assert np.abs(np.diff(empirical)).max() > 5e-3
    assert int(mixture.diverging.sum()) < 20


def test_mixture_density_is_normalised_on_any_support():
    for prior, low, high in ((Histogram([-1, 0, 3], [1, 2]), -1, 3), (from_numpyro(dist.Normal(0.0, 1.0)), -9, 9)):
        model = MixtureModel([0.2, 0.5], prior, components=2, scale=0.5)
        sites = {"sticks": jnp.array([0.3]), "places": jnp.array([0.05, 0.99]), "scales": jnp.array([0.4, 1.5])}
        sites["locations"] = prior.quantile(sites["places"])

        def log_density(value, sites=sites, model=model):
            shifted = SimpleNamespace(
                **{**vars(model), "scores": jnp.atleast_1d(value)}, _mass_inside=model._mass_inside
            )
            return likelihood(shifted, sites)

        x = np.linspace(low, high, 2001)
        density = np.exp(jax.jit(jax.vmap(log_density))(jnp.asarray(x)))
        cumulative = integrate.cumulative_simpson(density, x=x, initial=0)
        np.testing.assert_allclose(model.cdf(sites, jnp.asarray(x)), cumulative, atol=1e-6)
        slopes = jax.grad(lambda s, sites=sites, model=model: likelihood(model, {**sites, "scales": s}))(
            sites["scales"]
        )
        assert np.isfinite(slopes).all()


def likelihood(model, sites):
    """Log-likelihood that the model states to NumPyro."""
    from numpyro import handlers

    substituted = {name: value for name, value in sites.items() if name != "locations"}
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        stated = handlers.seed(
            handlers.substitute(lambda: MixtureModel.__call__(model), substituted), jax.random.key(0)
        )
        return handlers.trace(stated).get_trace()["likelihood"]["fn"].log_factor


def test_bad_arguments():
    with pytest.raises(ValueError, match="pass a model with cdf"):
        fit(lambda: None, jax.random.key(0))
    with pytest.raises(ValueError, match="draws = 0"):
        fit(MixtureModel([0.5]), jax.random.key(0), draws=0)
    with pytest.raises(ValueError, match=r"scores\[1\] = 2"):
        MixtureModel([0.5, 2.0])
    with pytest.raises(ValueError, match=r"counts\[0\] = 0.5"):
        ConcentrationModel([0.5, 1], [0.5, 0.5])
    with pytest.raises(ValueError, match=r"masses sum to 0\.8"):
        ConcentrationModel([1, 1], [0.4, 0.4])
    with pytest.raises(ValueError, match="NumPyro distribution"):
        ConcentrationModel([1, 1], [0.5, 0.5], hyperprior=lambda a: -a)
    found = Fit(ConcentrationModel([3, 1], [0.5, 0.5]), {"concentration": jnp.ones((1, 2))}, {})
    with pytest.raises(ValueError, match=r"x\[1\] = nan"):
        found.cdf([0.5, np.nan])
    with pytest.raises(ValueError, match=r"levels\[0\] = 90"):
        found.threshold([90])


def test_the_likelihood_of_a_concentration_keeps_its_digits():
    """Far out a difference of log-gammas is noise, in which a chain once got lost at 1e18."""
    from numpyro import handlers

    model = ConcentrationModel.from_scores(SCORES, Uniform(), BINS)
    concentrations = np.array([1e-6, 0.1, 3.0, 1e4, 1e9, 1e18])

    def stated(a):
        with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
            trace = handlers.trace(handlers.substitute(model, {"concentration": a})).get_trace()
        return trace["counts"]["fn"].log_factor

    ours = np.array([stated(jnp.asarray(a)) for a in concentrations])
    counts, masses = bin_counts(SCORES, Uniform(), BINS)
    np.testing.assert_allclose(ours, log_likelihood(concentrations, counts, masses), rtol=1e-9)
    assert ours[-1] == pytest.approx(200 * np.log(1 / BINS), rel=1e-9)
    assert np.isfinite(jax.grad(stated)(jnp.asarray(1e18)))


def test_moments_of_the_concentration_without_scores_are_those_of_the_hyperprior():
    none = SCORES[:0]
    for hyperprior, exact in (
        (dist.Uniform(0.0, 100.0), stats.uniform(0, 100)),
        (dist.Uniform(1.0, 100.0), stats.uniform(1, 99)),
        (dist.Gamma(0.5, 0.05), stats.gamma(0.5, scale=20)),
        (dist.LogNormal(1.0, 0.5), stats.lognorm(0.5, scale=np.e)),
    ):
        found = concentration_posterior(none, Uniform(), 4, hyperprior)
        assert found.mean == pytest.approx(exact.mean(), rel=2e-4)
        assert found.sd == pytest.approx(exact.std(), rel=2e-3)
    heavy = concentration_posterior(none, Uniform(), 4, dist.HalfCauchy(10.0))
    assert heavy.mean == heavy.sd == np.inf
    assert heavy.quantile(0.5) == pytest.approx(10.0, rel=1e-3)
    lighter = concentration_posterior(none, Uniform(), 4, dist.InverseGamma(2.0, 3.0))
    assert lighter.mean == pytest.approx(3.0, rel=1e-3)
    assert lighter.sd == np.inf


def test_a_fit_is_described_not_printed(concentration):
    assert repr(concentration) == "Fit(ConcentrationModel: concentration; 4 chains of 500 draws)"
