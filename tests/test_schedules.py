"""Schedules: the weights, and what a callable may be."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import dpconformal as dpc
from dpconformal import schedules

T = np.arange(1, 200)


@pytest.mark.parametrize(
    ("schedule", "expected"),
    [
        (schedules.InverseSqrt(), 1 / np.sqrt(T)),
        (schedules.Dirichlet(2.5), 2.5 / (2.5 + T - 1)),
        (schedules.Constant(0.3), np.where(T > 1, 0.3, 1.0)),
        (schedules.Constant(weight=0.3), np.where(T > 1, 0.3, 1.0)),
        (schedules.discounted(0.99), np.where(T > 1, 0.1 / 1.09, 1.0)),
        (schedules.as_schedule(lambda t: t**-0.25), T**-0.25),
    ],
)
def test_weights(schedule, expected):
    np.testing.assert_allclose(schedule.weight(T), expected, rtol=1e-14)
    assert float(schedule.weight(1)) == 1.0
    assert schedule.weight(jnp.asarray(7.0, jnp.float32)).dtype == np.float32


def test_dirichlet_weight_is_the_share_of_the_prior_in_the_posterior_mean():
    """Concentration a, n scores: the posterior mean of the cdf at x is (a P0(x) + #{scores ≤ x})/(a + n)."""
    scores = np.random.default_rng(0).random(30)
    learner = dpc.Exact(schedule=schedules.Dirichlet(4.0))
    state = dpc.replay(learner, scores, [0.5]).state
    x = np.linspace(0, 1, 11)
    counts = (scores[:, None] <= x).sum(axis=0)
    np.testing.assert_allclose(learner.cdf(state, x), (4.0 * x + counts) / 34, rtol=1e-13)


def test_inverse_sqrt_is_a_growing_concentration():
    """1/√t is the weight of a Dirichlet process with concentration √t + 1."""
    np.testing.assert_allclose(
        schedules.InverseSqrt().weight(T)[1:],
        schedules.Dirichlet(np.sqrt(T[1:]) + 1).weight(T[1:]),
        rtol=1e-14,
    )


def test_an_object_with_weight_will_do():
    class Halving:
        def weight(self, t):
            return 2.0 ** (1 - t)

    jax.tree_util.register_static(Halving)
    ours = dpc.replay(dpc.Exact(schedule=lambda t: 2.0 ** (1 - t)), [0.1, 0.2, 0.3], [0.5])
    theirs = dpc.replay(dpc.Exact(schedule=Halving()), [0.1, 0.2, 0.3], [0.5])
    np.testing.assert_array_equal(ours.thresholds, theirs.thresholds)


def test_a_constant_function_and_a_traced_one():
    run = dpc.replay(dpc.Exact(schedule=lambda t: 0.5), [0.1, 0.2, 0.3], [0.5])
    expected = dpc.replay(dpc.Exact(schedule=schedules.Constant(0.5)), [0.1, 0.2, 0.3], [0.5])
    np.testing.assert_array_equal(run.thresholds, expected.thresholds)
    swept = jax.vmap(lambda p: dpc.replay(dpc.Exact(schedule=lambda t: t**-p), [0.1, 0.2], [0.5]).thresholds)
    np.testing.assert_allclose(
        swept(jnp.array([0.5]))[0], dpc.replay(dpc.Exact(), [0.1, 0.2], [0.5]).thresholds, atol=1e-14
    )


@pytest.mark.parametrize(
    "make",
    [
        schedules.Dirichlet,
        schedules.Constant,
        lambda bad: lambda t: bad * t,
    ],
)
def test_traced_nonsense_is_nan(make):
    def run(bad):
        return dpc.replay(dpc.Exact(schedule=make(bad)), [0.1, 0.2, 0.3], [0.5]).thresholds

    assert np.isnan(jax.jit(run)(-1.0)[1:]).all()


def test_a_traced_discount_outside_its_range_is_nan():
    for learner in (lambda b: dpc.Exact(discount=b), lambda b: dpc.Quantized(4, discount=b)):
        run = jax.jit(lambda b, learner=learner: dpc.replay(learner(b), [0.1, 0.2, 0.3], [0.5]).thresholds)
        assert np.isnan(run(1.5)[1:]).all()
        assert np.isfinite(run(0.5)).all()


def test_a_bad_callable_is_named_before_anything_runs():
    with pytest.raises(ValueError, match=r"round t = 4 the weight 0.0: it must lie in \(0, 1\]"):
        dpc.replay(dpc.Exact(schedule=lambda t: jnp.where(t < 4, 0.5, 0.0)), np.full(9, 0.5), [0.5])
    learner = dpc.Quantized(4, schedule=lambda t: 2.0 - t / 4)
    with pytest.raises(ValueError, match=r"round t = 2 the weight 1.5"):
        dpc.replay(learner, np.full(3, 0.5), [0.5])
    fading = dpc.Exact(schedule=lambda t: 1.0 - (t - 1) / 10)
    run = dpc.replay(fading, np.full(10, 0.5), [0.5])
    with pytest.raises(ValueError, match=r"round t = 11 the weight 0\.0"):
        dpc.replay(fading, np.full(1, 0.5), [0.5], state=run.state)
