"""Priors on [0, ∞): against SciPy, in beliefs, and in the theorems."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import reference
from scipy import integrate, stats

import dpconformal as dpc
from dpconformal import priors
from dpconformal.theory import moments

N = 401
TWINS = {
    "half_normal": (priors.HalfNormal(1.7), stats.halfnorm(scale=1.7)),
    "exponential": (priors.Exponential(0.3), stats.expon(scale=0.3)),
    "log_normal": (priors.LogNormal(0.4, 0.8), stats.lognorm(0.8, scale=np.exp(0.4))),
    "half_cauchy": (priors.HalfCauchy(2.5), stats.halfcauchy(scale=2.5)),
}


@pytest.fixture(params=TWINS)
def pair(request):
    return TWINS[request.param]


def test_cdf_quantile_and_density_agree_with_scipy(pair):
    ours, twin = pair
    x = np.concatenate([np.linspace(-1, 12, N - 2), [1e6, np.inf]])
    np.testing.assert_allclose(ours.cdf(x), twin.cdf(x), atol=1e-15, rtol=1e-13)
    np.testing.assert_allclose(ours.density(x), twin.pdf(x), atol=1e-300, rtol=1e-12)
    # Through SciPy's tails: its own quantiles lose their digits close to either end.
    low, high = np.geomspace(1e-12, 0.5, N), 1 - np.geomspace(0.5, 1e-12, N)
    np.testing.assert_allclose(twin.cdf(ours.quantile(low)), low, rtol=1e-12)
    np.testing.assert_allclose(twin.sf(ours.quantile(high)), 1 - high, rtol=1e-9, atol=1e-16)
    assert np.array_equal(ours.quantile(np.repeat([0.0, 1.0], N)[: N + 1]), np.repeat([0.0, np.inf], N)[: N + 1])
    assert np.isnan(ours.cdf(np.full(N, np.nan))).all()
    assert np.isnan(ours.density(np.full(N, np.nan))).all()


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_the_quantile_inverts_the_cdf_and_never_falls(pair, dtype):
    ours, _ = pair
    x = np.geomspace(1e-3, 8, N).astype(dtype)
    p = ours.cdf(x)
    back = np.asarray(ours.quantile(p), float)
    assert p.dtype == dtype
    eps = np.finfo(dtype).eps
    conditioning = 40 * eps / np.maximum(np.asarray(ours.density(x), float), 1e-300)
    told = np.asarray(p) < 1  # further out the cdf no longer tells numbers apart
    np.testing.assert_array_less(np.abs(back - x)[told], (40 * eps * x + conditioning)[told])
    around = np.sort(np.concatenate([np.linspace(0, 1, N - 80), 0.4 + np.arange(-40, 40) * np.spacing(0.4)]))
    assert (np.diff(np.asarray(ours.quantile(around))) >= 0).all()


def test_nonsense_is_refused_outside_jit_and_nan_inside(pair):
    ours, _ = pair
    name = type(ours).__name__
    with pytest.raises(ValueError, match=rf"{name}\.scale = -1\.0: must be finite and in \(0, inf\)"):
        type(ours)(scale=-1)
    build = jax.jit(lambda scale: type(ours)(scale=scale).quantile(jnp.array([0.0, 0.5, 1.0])))
    assert np.isnan(build(-1.0)).all()
    slope = jax.grad(lambda scale: type(ours)(scale=scale).quantile(0.9))(1.3)
    step = 1e-6
    up, down = (float(type(ours)(scale=1.3 + s).quantile(0.9)) for s in (step, -step))
    np.testing.assert_allclose(slope, (up - down) / (2 * step), rtol=1e-6)


@pytest.mark.parametrize("discount", [None, 0.95])
def test_beliefs_agree_with_the_oracle(pair, discount):
    ours, twin = pair
    scores = np.random.default_rng(3).standard_exponential(60)
    levels = np.array([0.0, 0.1, 0.5, 0.9, 0.99, 1.0])
    root = np.sqrt(0.05)
    weight = (lambda t: 1 / np.sqrt(t)) if discount is None else (lambda t: root / (0.95 + root))
    expected = reference.belief_thresholds(scores, levels[:-1], twin, (0, 1e6), weight, discount)
    run = dpc.replay(dpc.Exact(ours, discount=discount), scores, levels)
    np.testing.assert_allclose(run.thresholds[:, :-1], expected, rtol=1e-9, atol=1e-9)
    assert np.isposinf(run.thresholds[:, -1]).all()
    scanned = dpc.replay(dpc.Exact(ours, discount=discount), scores, levels, method="scan")
    np.testing.assert_allclose(scanned.thresholds, run.thresholds, rtol=1e-12)


def test_what_the_theorems_know_of_them(pair):
    ours, twin = pair
    x = np.array([-1.0, 0.0, 0.2, 1.5, 7.0])
    np.testing.assert_allclose(moments.cdf(ours, x), twin.cdf(x), atol=1e-15)
    want = [integrate.quad(twin.cdf, 0, max(end, 0), epsabs=1e-13)[0] for end in x]
    np.testing.assert_allclose(moments.cdf_integral(ours, x), want, atol=1e-11)
    assert np.isposinf(moments.cdf_integral(ours, np.inf))
    assert moments.mean(ours) == pytest.approx(twin.mean(), rel=1e-8)
    a, b = np.array([0.0, 0.1, 0.5, -1.0]), np.array([0.3, 4.0, 0.6, 2.0])
    grids = np.linspace(a, b, 2001)
    np.testing.assert_allclose(
        moments.least_density(ours, a, b), np.where(a >= 0, twin.pdf(grids).min(axis=0), 0), rtol=1e-6, atol=1e-12
    )


def test_runs_on_the_half_line_are_certified(pair):
    """Coverage under iid needs no upper end: the belief is never further than λ from the empirical distribution."""
    ours, _ = pair
    scores = np.random.default_rng(4).standard_exponential(400)
    certificate = dpc.theory.certify(dpc.replay(dpc.Exact(ours), scores, [0.5, 0.9]))
    assert certificate.passed, certificate.failures
    verdict = certificate.dataset.verdict
    for check in ("order", "optimality", "regret", "coverage"):
        assert (verdict.sel(check=check) == "pass").all()
    assert np.isfinite(certificate.dataset.high.sel(check="regret")).all()


def test_bins_of_equal_width_need_an_end(pair):
    with pytest.raises(ValueError, match="equal bins need a bounded one"):
        dpc.Quantized(8, pair[0])
