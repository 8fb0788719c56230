"""Replay: gradients that mean something, growth, hyperparameter sweeps, resuming across dtypes."""

import dataclasses
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import LEVELS, PRIORS

import dpconformal as dpc
from dpconformal.pytree import register
from dpconformal.rounds import padded_length

SCORES = np.random.default_rng(11).beta(2, 5, 60)


def test_sweep_over_concentrations():
    concentrations = jnp.array([0.5, 2.0, 10.0])
    swept = jax.vmap(lambda a: dpc.replay(dpc.Exact(schedule=dpc.schedules.Dirichlet(a)), SCORES, LEVELS).thresholds)(
        concentrations
    )
    for a, result in zip(concentrations, swept, strict=True):
        learner = dpc.Exact(schedule=dpc.schedules.Dirichlet(float(a)))
        np.testing.assert_allclose(result, dpc.replay(learner, SCORES, LEVELS).thresholds, atol=1e-14)


def test_sweep_over_a_learner_whose_leaves_are_arrays():
    many = dpc.Exact(prior=dpc.priors.Uniform(0.0, 1.0), discount=jnp.array([0.8, 0.9, 0.99]))
    axes = jax.tree.map(lambda leaf: 0 if jnp.ndim(leaf) else None, many)
    swept = jax.vmap(lambda one: dpc.replay(one, SCORES, LEVELS).thresholds, in_axes=(axes,))(many)
    for beta, result in zip([0.8, 0.9, 0.99], swept, strict=True):
        alone = dpc.replay(dpc.Exact(discount=beta), SCORES, LEVELS).thresholds
        np.testing.assert_allclose(result, alone, atol=1e-13)


@pytest.mark.parametrize("bins", [None, 12])
def test_sweep_over_discount_follows_its_own_schedule(bins):
    def run(beta):
        learner = dpc.Exact(discount=beta) if bins is None else dpc.Quantized(bins, discount=beta)
        return dpc.replay(learner, SCORES, LEVELS).thresholds

    swept = jax.vmap(run)(jnp.array([0.7, 0.95]))
    np.testing.assert_allclose(swept[1], run(0.95), atol=1e-13)


def test_sweep_over_prior_parameters():
    def run(a, b):
        return dpc.replay(dpc.Exact(dpc.priors.Beta(a, b)), SCORES[:20], [0.5, 0.9]).thresholds

    swept = jax.vmap(run)(jnp.array([1.0, 2.0]), jnp.array([1.0, 5.0]))
    uniform = dpc.replay(dpc.Exact(), SCORES[:20], [0.5, 0.9]).thresholds
    np.testing.assert_allclose(swept[0], uniform, atol=1e-9)  # Beta(1, 1) is uniform
    np.testing.assert_allclose(swept[1], run(2.0, 5.0), atol=1e-12)


def test_gradient_by_hyperparameters_agrees_with_finite_differences():
    scores = SCORES[:15]

    def loss(schedule_parameter, width, discount):
        prior = dpc.priors.Uniform(0.0, width)
        plain = dpc.Exact(prior, dpc.schedules.Dirichlet(schedule_parameter))
        forgetful = dpc.Exact(prior, discount=discount)
        return sum(
            jnp.sum(jnp.sin(dpc.replay(learner, scores, [0.35, 0.85]).thresholds)) for learner in (plain, forgetful)
        )

    point = (2.0, 1.3, 0.9)
    gradient = jax.grad(loss, argnums=(0, 1, 2))(*point)
    for i in range(3):
        step = 1e-6
        ahead, behind = ([x + sign * step * (k == i) for k, x in enumerate(point)] for sign in (1, -1))
        np.testing.assert_allclose(gradient[i], (loss(*ahead) - loss(*behind)) / (2 * step), rtol=1e-5)


@pytest.mark.parametrize("prior", ["beta", "truncated_normal", "histogram", "mixture"])
def test_gradient_by_level_is_one_over_the_density(prior):
    ours = PRIORS[prior][0]
    learner = dpc.Exact(ours)
    state = learner.observe(learner.init(), 0.9)
    level = 0.2  # below the atom at 0.9, so the threshold moves with the prior's share alone
    slope = jax.grad(lambda p: learner.quantile(state, p[None])[0])(jnp.asarray(level))
    threshold = learner.quantile(state, [level])[0]
    expected = 1 / (2**-0.5 * ours.density(threshold))
    np.testing.assert_allclose(slope, expected, rtol=1e-6)


def test_capacity_at_least_doubles_outside_jit():
    learner = dpc.Exact(capacity=2)
    state = learner.init()
    rooms = []
    for score in SCORES[:9]:
        state = learner.observe(state, score)
        rooms.append(state.values.shape[0])
    assert rooms == [2, 2, 64, 64, 64, 64, 64, 64, 64]
    np.testing.assert_allclose(state.values[:9], np.sort(SCORES[:9]))


def test_replay_has_room_for_its_rounds_in_one_of_few_sizes():
    run = dpc.replay(dpc.Exact(), SCORES, LEVELS)
    room = padded_length(SCORES.size)
    assert run.state.values.shape == (room,)
    further = dpc.replay(dpc.Exact(), np.full(room - SCORES.size + 1, 0.5), LEVELS, state=run.state)
    assert further.state.values.shape[0] == 2 * room


def test_a_full_state_inside_jit_turns_to_nan():
    learner = dpc.Exact(capacity=2)

    @jax.jit
    def fill(state):
        for score in (0.1, 0.2, 0.3):
            state = learner.observe(state, score)
        return state

    state = fill(learner.init())
    assert int(state.seen) == -1
    assert np.isnan(learner.quantile(state, [0.0, 0.5, 1.0])).all()
    assert np.isnan(learner.cdf(state, 0.5))


def test_resuming_inside_jit_makes_room():
    learner = dpc.Exact()
    first = dpc.replay(learner, SCORES[:30], LEVELS)
    second = jax.jit(lambda state, s: dpc.replay(learner, s, LEVELS, state=state))(first.state, SCORES[30:])
    whole = dpc.replay(learner, SCORES, LEVELS)
    np.testing.assert_allclose(second.thresholds, whole.thresholds[30:], atol=1e-14)


def test_batches_resume():
    batch = np.random.default_rng(2).random((3, 20))
    for learner in (dpc.Exact(), dpc.Quantized(8, discount=0.9), dpc.ERM()):
        first = dpc.replay(learner, batch[:, :7], LEVELS)
        second = dpc.replay(learner, batch[:, 7:], LEVELS, state=first.state)
        whole = dpc.replay(learner, batch, LEVELS)
        joined = np.concatenate([first.thresholds, second.thresholds], axis=1)
        np.testing.assert_allclose(joined, whole.thresholds, atol=1e-12)


def test_resuming_in_another_dtype_widens_and_loses_nothing():
    single = dpc.replay(dpc.Exact(), SCORES[:10].astype(np.float32), LEVELS)
    run = dpc.replay(dpc.Exact(), SCORES[10:], LEVELS, state=single.state)
    assert run.thresholds.dtype == run.state.values.dtype == np.float64
    double = dpc.replay(dpc.Exact(), SCORES[:10], LEVELS)
    run = dpc.replay(dpc.Exact(), SCORES[10:].astype(np.float32), LEVELS, state=double.state)
    assert run.state.values.dtype == np.float64


def test_half_precision_is_widened():
    run = dpc.replay(dpc.Exact(), SCORES.astype(np.float16), LEVELS)
    assert run.thresholds.dtype == np.float32


def test_one_state_serves_every_hyperparameter():
    """The state of an exact belief is pure evidence."""
    state = dpc.replay(dpc.Exact(), SCORES, LEVELS).state
    for learner in (dpc.Exact(schedule=dpc.schedules.Dirichlet(4.0)), dpc.Exact(discount=0.9)):
        own = dpc.replay(learner, SCORES, LEVELS).state
        np.testing.assert_allclose(learner.quantile(state, LEVELS), learner.quantile(own, LEVELS), atol=1e-15)


def test_bins_default_to_the_root_of_the_rounds():
    for rounds, bins in ((0, 1), (1, 1), (2, 2), (4, 2), (5, 3), (100, 10), (101, 11)):
        assert dpc.replay(dpc.Quantized(), np.full(rounds, 0.5), [0.5]).state.weights.shape == (bins,)
    run = dpc.replay(dpc.Quantized(), SCORES, LEVELS)
    further = dpc.Quantized().observe(run.state, 0.5)
    assert further.weights.shape == run.state.weights.shape


def test_integer_counts_do_not_stop_growing_in_float32():
    learner = dpc.Quantized(bins=2)
    state = learner.init()._replace(seen=jnp.asarray(2**24, jnp.int32), weights=jnp.array([2**24, 0], jnp.int32))
    state = learner.observe(state, jnp.asarray(0.1, jnp.float32))
    assert state.weights.tolist() == [2**24 + 1, 0]


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_scores_on_edges_are_binned_to_the_bit(dtype):
    levels = np.array([0.5, 0.9], dtype)
    for low, high, bins in ((0.0, 1.0, 100), (-1.0, 4.0, 10), (-3.0, 7.0, 50), (0.1, 0.7, 7)):
        prior, ends = dpc.priors.Uniform(low, high), np.array([low, high], dtype)
        k, width = np.arange(bins, dtype=dtype), ends[1] - ends[0]
        # Where nothing but the division rounds, an edge is the decimal that is meant.
        first = (ends[0] * bins + k * width) / dtype(bins) if low.is_integer() else ends[0] + k * width / dtype(bins)
        edges = np.append(first, ends[1]).astype(dtype)
        tiny = np.finfo(dtype).tiny
        above, below = (np.where(edges == 0, s * tiny, np.nextafter(edges, dtype(s * np.inf))) for s in (1, -1))
        nearest, up = (dpc.Quantized(bins, prior, rounding=rounding) for rounding in ("nearest", "up"))
        assert dpc.replay(nearest, edges, levels).state.weights.tolist() == [1] * (bins - 1) + [2]
        assert dpc.replay(nearest, below[1:], levels).state.weights.tolist() == [1] * bins
        assert dpc.replay(up, edges, levels).state.weights.tolist() == [2] + [1] * (bins - 1)
        assert dpc.replay(up, above[:-1], levels).state.weights.tolist() == [1] * bins
        # A threshold that was learned from an edge covers the edge, in every program.
        for method in ("auto", "scan"):
            scores = np.tile(edges[[bins // 3, -1]], 20)
            run = dpc.replay(up, scores, levels, method=method)
            assert np.isin(np.asarray(run.thresholds)[8:, 1], edges).all()
            assert (scores[8:] <= np.asarray(run.thresholds)[8:, 1]).all()


def test_run_is_a_pytree_and_names_its_learner():
    run = dpc.replay(dpc.Exact(), SCORES, LEVELS)
    assert run.learner == dpc.Exact()
    assert run.start is None
    again = jax.jit(lambda r: r)(run)
    np.testing.assert_array_equal(again.thresholds, run.thresholds)
    assert dataclasses.is_dataclass(run.learner)


def test_the_smallest_learner_there_can_be():
    """As the protocol says: init, quantile, observe, and nothing else."""

    @jax.tree_util.register_static
    class Half:
        def init(self):
            return (jnp.zeros((), jnp.int32),)

        def quantile(self, state, levels):
            return jnp.full(levels.shape, 0.5, levels.dtype)

        def observe(self, state, score):
            return (state[0] + 1,)

    run = dpc.replay(Half(), [0.2, 17.0, -4.0], [0.9])
    assert run.thresholds.tolist() == [[0.5], [0.5], [0.5]]
    assert dpc.replay(Half(), [0.1], [0.9], state=run.state).state[0] == 4


def test_a_learner_of_ones_own_has_three_methods():
    """That of docs/getting_started.md: in a batch, late, in totals, and differentiated by its number."""

    class Mean(NamedTuple):
        seen: jax.Array  # ()
        mean: jax.Array  # ()

    @register()
    @dataclasses.dataclass(frozen=True)
    class Exponential:
        first: float = 1.0

        def init(self):
            return Mean(jnp.zeros(()), jnp.asarray(self.first))

        def quantile(self, state, levels):
            return -state.mean * jnp.log1p(-levels)

        def observe(self, state, score):
            seen = state.seen + 1
            return Mean(seen, state.mean + (score - state.mean) / seen)

    scores, levels = np.random.default_rng(0).exponential(size=(2, 30)), np.array([0.5, 0.9])
    means = np.concatenate([np.full((2, 1), 3.0), np.cumsum(scores, axis=1) / np.arange(1, 31)], axis=1)
    want = -means[:, :-1, None] * np.log1p(-levels)
    run = dpc.replay(Exponential(3.0), scores, levels)
    np.testing.assert_allclose(run.thresholds, want, rtol=1e-12)
    late = dpc.replay(Exponential(3.0), scores, levels, delay=2)
    np.testing.assert_allclose(late.thresholds[:, 2:], want[:, :-2], rtol=1e-12)
    totals = dpc.replay(Exponential(3.0), scores, levels, keep="summary")
    np.testing.assert_allclose(totals.total_threshold, want.sum(axis=1), rtol=1e-12)
    slope = jax.grad(lambda first: dpc.replay(Exponential(first), scores[0], levels).thresholds.sum())(3.0)
    assert slope == pytest.approx(-np.log1p(-levels).sum())  # after one score the first mean is forgotten


def test_capacity_is_kept_by_replay():
    learner = dpc.Exact(capacity=100)
    run = dpc.replay(learner, SCORES, LEVELS)
    assert run.state.values.shape == (100,)
    assert jax.jit(learner.observe)(run.state, 0.3).seen == SCORES.size + 1


def test_merging_states_of_two_precisions_widens():
    for learner in (dpc.Exact(), dpc.Quantized(4, discount=0.9)):
        single, double = (dpc.replay(learner, SCORES.astype(d), LEVELS).state for d in (np.float32, np.float64))
        assert learner.quantile(learner.merge(single, double), LEVELS).dtype == np.float64


def test_numpy_scalars_do_not_compile_anew(monkeypatch):
    traces = []
    original = dpc.OGD.observe
    monkeypatch.setattr(dpc.OGD, "observe", lambda *a: traces.append(1) or original(*a))
    for ends in ({"low": 0, "high": 1}, {}, {"low": np.float64(0), "high": np.float32(1)}):
        dpc.replay(dpc.OGD([0.5], **ends), np.full(177, 0.5), [0.5])
    assert len(traces) == 1


def test_a_learner_of_the_users_own_runs_too():
    class Last:
        """Predicts the last score, whatever the level."""

        support = (0.0, 1.0)

        def init(self, rounds=None, dtype=None):
            return (jnp.zeros((), dtype),)

        def quantile(self, state, levels):
            return jnp.full(levels.shape, state[0])

        def observe(self, state, score):
            return (score,)

    jax.tree_util.register_static(Last)
    run = dpc.replay(Last(), SCORES, [0.5])
    np.testing.assert_array_equal(run.thresholds[1:, 0], SCORES[:-1])
    assert dpc.metrics.coverage(run).shape == (1,)
    onwards = dpc.replay(Last(), SCORES, [0.5], state=run.state)
    assert onwards.thresholds[0, 0] == SCORES[-1]
    with pytest.raises(ValueError, match="Last has no cdf"):
        dpc.metrics.pit(run)


@pytest.mark.parametrize("learner", [dpc.SlidingERM(window=100), dpc.ERM(), dpc.SplitConformal()], ids=repr)
def test_a_batch_by_scan_finds_the_ranks_that_one_sequence_finds(learner):
    """Where level times rounds is a whole number, a division that rounds otherwise would be one rank off."""
    scores = np.random.default_rng(5).beta(2, 5, 200)
    levels = np.arange(1, 100) / 100
    alone = dpc.replay(learner, scores, levels, method="scan").thresholds
    batch = dpc.replay(learner, np.stack([scores, scores]), levels, method="scan").thresholds
    np.testing.assert_array_equal(batch[0], alone)
    for t in (20, 50, 100):
        want = np.sort(scores[:t])
        for k, level in enumerate(levels):
            rank = next(r for r in range(t + 2) if r / (t + isinstance(learner, dpc.SplitConformal)) >= level)
            assert batch[1, t, k] == (want[rank - 1] if rank <= t else np.inf)
