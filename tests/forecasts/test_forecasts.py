"""Forecasts of the next score beside naive sums, their distributions beside SciPy's."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import reference
from cases import LEVELS, sequences
from scipy import stats

import dpconformal as dpc
from dpconformal.forecasts import AutoRegression, Given, LocalLevel, Seasonal
from dpconformal.forecasts.distributions import LocationScale, Quantiles

SCORES = sequences() | {
    "outliers": np.where(np.arange(120) % 17 == 16, 1e4, 1.0) * sequences()["uniform"],
    "far away": 1e6 + sequences()["uniform"],
    "walk": np.cumsum(sequences()["uniform"] - 0.5),
}
NAMES = ["uniform", "tied", "alternating", "drifting", "outliers", "far away", "walk"]


@pytest.mark.parametrize(
    ("order", "shape", "low", "high"),
    [
        (0, "cauchy", -math.inf, math.inf),
        (1, "normal", -math.inf, math.inf),
        (2, "cauchy", -math.inf, math.inf),
        (2, "student_t", -math.inf, math.inf),
        (3, "cauchy", -10.0, 1e7),
        (1, "student_t", -10.0, math.inf),
    ],
)
def test_an_autoregression_is_that_of_the_sums(order, shape, low, high):
    """Finds a wrong sum, lag, ridge, first scale, limit of outliers, or conditioning on the support."""
    learner = AutoRegression(order, memory=30, scale_memory=10, shape=shape, low=low, high=high)
    for name in NAMES:
        scores = SCORES[name]
        expected = reference.forecast_thresholds(
            scores, LEVELS, lambda z: reference.autoregression(z, order, 30), 10, shape, low, high
        )
        found = np.asarray(dpc.replay(learner, scores, LEVELS).thresholds)
        size = np.abs(scores).max() * (10 if shape == "student_t" else 1)  # SciPy's quantile next to the median
        np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-9 * size, err_msg=name)


def test_logarithms_are_regressed_for_a_log_normal_shape():
    scores = np.exp(SCORES["walk"])
    found = dpc.replay(AutoRegression(1, 30, 10, "log_normal"), scores, LEVELS)
    expected = reference.forecast_thresholds(
        scores, LEVELS, lambda z: reference.autoregression(z, 1, 30), 10, "log_normal", 0.0
    )
    np.testing.assert_allclose(found.thresholds, expected, rtol=1e-9)
    with pytest.raises(ValueError, match=r"scores\[1\] = 0.0: outside the support"):
        dpc.replay(AutoRegression(shape="log_normal"), [1.0, 0.0], [0.5])


@pytest.mark.parametrize("memory", [1, 8])
def test_a_local_level_is_a_discounted_mean(memory):
    for name in NAMES:
        found = dpc.replay(LocalLevel(memory, 10), SCORES[name], LEVELS).thresholds
        mean = (lambda z: z[-1]) if memory == 1 else (lambda z: reference.discounted_mean(z, memory))
        expected = reference.forecast_thresholds(SCORES[name], LEVELS, mean, 10, "cauchy")
        np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-9 * np.abs(SCORES[name]).max())


def test_a_season_is_a_mean_for_each_place_whatever_is_missing():
    """Finds a season that shifts with gaps or delays, and a place that learns from another."""
    places = np.array([0, 1, 2, 0, 2, 1, 1, 0, 2, 2] * 12)
    scores, mask = SCORES["walk"], np.arange(120) % 7 == 3

    def mean_of(z, at, place):
        own = [value for value, where in zip(z, at, strict=True) if where == place]
        if own:
            return reference.discounted_mean(np.array(own), 5)
        sums = [
            (np.sum(w * v), np.sum(w))
            for p in set(at)
            for v in [np.array([value for value, where in zip(z, at, strict=True) if where == p])]
            for w in [0.8 ** np.arange(len(v) - 1, -1, -1.0)]
        ]
        return sum(total for total, _ in sums) / sum(mass for _, mass in sums)

    learner = Seasonal(3, memory=5, scale_memory=10)
    run = dpc.replay(learner, scores, LEVELS, context=places, mask=mask)
    rows = np.asarray(run.thresholds)[~mask]
    seen = places[~mask]
    expected = reference.forecast_thresholds(
        scores[~mask], LEVELS, lambda z: mean_of(z, seen[: len(z)], seen[len(z)]), 10, "cauchy"
    )
    np.testing.assert_allclose(rows, expected, rtol=1e-9, atol=1e-9)
    with pytest.raises(ValueError, match=r"context\[0\] = 3: must be from 0 to 2"):
        dpc.replay(learner, [1.0], [0.5], context=[3])
    with pytest.raises(ValueError, match="context is missing"):
        dpc.replay(learner, [1.0], [0.5])


def test_given_forecasts_are_answered_as_they_are():
    rows = np.stack([SCORES["walk"], 0.1 + SCORES["uniform"]], axis=-1)
    run = dpc.replay(Given(shape="normal"), SCORES["walk"], LEVELS, context=rows)
    np.testing.assert_allclose(run.thresholds, stats.norm.ppf(LEVELS[None], *rows.T[..., None]), atol=1e-9)
    asked = np.array([0.1, 0.25, 0.6, 0.9])
    knots = rows[:, :1] + rows[:, 1:] * stats.norm.ppf(asked)
    run = dpc.replay(Given(levels=asked), SCORES["walk"], asked, context=knots)
    np.testing.assert_allclose(run.thresholds, knots, atol=1e-12)
    with pytest.raises(ValueError, match=r"context\[0, 1\] = 0.0: a scale is above 0"):
        dpc.replay(Given(), [0.0], [0.5], context=[[1.0, 0.0]])
    with pytest.raises(ValueError, match=r"context\[0, 2\] = 1.0: the quantiles of a round must ascend"):
        dpc.replay(Given(levels=(0.1, 0.5, 0.9)), [0.0], [0.5], context=[[0.0, 1.0, 1.0]])
    with pytest.raises(ValueError, match="two levels or more"):
        Given(levels=[0.5])


@pytest.mark.parametrize("shape", ["cauchy", "student_t", "normal", "log_normal"])
@pytest.mark.parametrize(("low", "high"), [(-math.inf, math.inf), (0.2, 3.0)])
def test_distributions_are_scipys(shape, low, high):
    twin = stats.lognorm(0.7, scale=math.exp(0.3)) if shape == "log_normal" else None
    twin = twin or {"cauchy": stats.cauchy, "student_t": stats.t(4.0), "normal": stats.norm}[shape]
    place, scale = (0.0, 1.0) if shape == "log_normal" else (0.3, 0.7)
    x = np.linspace(0.21, 2.9, 40)
    z = (x - place) / scale
    low = max(low, 0.0) if shape == "log_normal" else low
    below, upto = twin.cdf((np.array([low, high]) - place) / scale)
    ours = LocationScale(*(jnp.asarray(v) for v in (0.3, 0.7, 4.0, low, high)), shape)
    cdf = (twin.cdf(z) - below) / (upto - below)
    np.testing.assert_allclose(ours.cdf(jnp.asarray(x)), cdf, atol=1e-12)
    np.testing.assert_allclose(ours.quantile(jnp.asarray(cdf)), x, rtol=1e-9)
    np.testing.assert_allclose(ours.density(jnp.asarray(x)), twin.pdf(z) / scale / (upto - below), rtol=1e-10)
    if low == -math.inf:  # digits of the lower tail
        np.testing.assert_allclose(
            ours.quantile(jnp.array([1e-9, 1e-12])), place + scale * twin.ppf([1e-9, 1e-12]), rtol=1e-9
        )


def test_quantiles_are_interpolated_and_their_tails_decay():
    levels, knots = np.array([0.1, 0.4, 0.9]), np.array([-1.0, 0.5, 2.0])
    ours = Quantiles(jnp.asarray(levels), jnp.asarray(knots))
    x = np.linspace(-1, 2, 31)
    np.testing.assert_allclose(ours.cdf(jnp.asarray(x)), np.interp(x, knots, levels), atol=1e-15)
    p = np.linspace(0.001, 0.999, 50)
    np.testing.assert_allclose(ours.cdf(ours.quantile(jnp.asarray(p))), p, atol=1e-14)
    assert float(ours.cdf(jnp.asarray(-2.0))) == pytest.approx(0.1 * math.exp(-0.2 / 0.1))
    assert float(ours.cdf(jnp.asarray(3.0))) == pytest.approx(1 - 0.1 * math.exp(-(0.5 / 1.5) / 0.1))
    numeric = jax.vmap(jax.grad(lambda x: ours.cdf(x)))(jnp.array([-3.0, 0.0, 1.0, 4.0]))
    np.testing.assert_allclose(ours.density(jnp.array([-3.0, 0.0, 1.0, 4.0])), numeric, rtol=1e-12)


def test_bad_hyperparameters_are_refused_by_name():
    for wrong, message in [
        (lambda: AutoRegression(-1), "AutoRegression.order = -1"),
        (lambda: AutoRegression(65), "at most 64"),
        (lambda: AutoRegression(memory=0.5), "AutoRegression.memory = 0.5"),
        (lambda: LocalLevel(scale_memory=math.nan), "LocalLevel.scale_memory = nan"),
        (lambda: LocalLevel(shape="laplace"), "LocalLevel.shape = 'laplace'"),
        (lambda: Seasonal(0), "Seasonal.period = 0"),
        (lambda: AutoRegression(low=1.0, high=1.0), "AutoRegression.high = 1.0: must exceed"),
        (lambda: AutoRegression(shape="log_normal", low=-1.0), "a log-normal score is positive"),
        (lambda: AutoRegression(df=7.0), r"AutoRegression\.df = 7\.0: only shape='student_t' has degrees of freedom"),
        (lambda: Given(levels=[0.1, 0.9], shape="normal"), r"Given\.shape, low, high = 'normal'.*leave these out"),
    ]:
        with pytest.raises(ValueError, match=message):
            wrong()


def test_derivatives_pass_infinite_ends():
    """Finds a NaN that an end at infinity, or level 0 or 1, puts into the derivative of every other threshold."""
    scores = jnp.asarray(SCORES["walk"][:40])

    def total(memory):
        found = dpc.replay(dpc.Recalibrated(LocalLevel(memory), dpc.Exact()), scores, LEVELS).thresholds
        return jnp.sum(found[:, 1:-1])

    numeric = (total(8 + 1e-6) - total(8 - 1e-6)) / 2e-6
    np.testing.assert_allclose(jax.grad(total)(8.0), numeric, rtol=1e-4)


def test_one_huge_score_spoils_little():
    """A mean of squares that it dominates for long would."""
    scores = np.random.default_rng(3).standard_normal(400)
    plain = dpc.replay(AutoRegression(), scores, [0.5, 0.9])
    scores[200] = 1e8
    spoilt = dpc.replay(AutoRegression(), scores, [0.5, 0.9])
    assert np.abs(np.asarray(spoilt.thresholds - plain.thresholds))[201:].max() < 20
    assert np.abs(np.asarray(spoilt.thresholds - plain.thresholds))[300:].max() < 1
