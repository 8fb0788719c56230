"""Every faster way agrees with the generic scan: kernels, threads, batches, blocks, tracing, summaries."""

import contextlib
import os
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import reference
from cases import LEVELS, sequences
from hypothesis import given
from hypothesis import strategies as st

import dpconformal as dpc
from dpconformal.beliefs import quantized, sorted_scores
from dpconformal.engine import kernel, machine, pointer_loop

RNG = np.random.default_rng(5)
SWINGING = dpc.schedules.Custom(lambda t: jnp.where(t % 2 == 0, 0.9, 0.02))  # every pointer jumps every round
VARIANTS = {
    "exact": dpc.Exact(),
    "exact swinging": dpc.Exact(schedule=SWINGING),
    "exact heavy prior": dpc.Exact(dpc.priors.TruncatedNormal(0.3, 0.2), dpc.schedules.Constant(0.7)),
    "exact light prior": dpc.Exact(schedule=dpc.schedules.Constant(1e-9)),
    "exact discounted": dpc.Exact(discount=0.95),
    "exact forgetful": dpc.Exact(discount=0.05),
    "exact slow": dpc.Exact(discount=1 - 1e-9, schedule=dpc.schedules.Constant(0.01)),
    "quantized": dpc.Quantized(20),
    "quantized swinging": dpc.Quantized(300, schedule=SWINGING),
    "quantized discounted": dpc.Quantized(50, discount=0.95),
    "quantized forgetful": dpc.Quantized(50, discount=0.05),
}


@contextlib.contextmanager
def small_work(monkeypatch, block=32, count=3):
    """Blocks and stretches of a few rounds, and several cores, so that short sequences meet every boundary."""
    with monkeypatch.context() as patch:
        for module in (pointer_loop, kernel, sorted_scores):
            patch.setattr(module, "BLOCK", block)
        patch.setattr(quantized, "LONGEST", 2 * block)
        patch.setattr(machine, "cores", lambda: count)
        patch.setattr(kernel, "cores", lambda: count)
        jax.clear_caches()
        yield
    jax.clear_caches()


def both(learner, scores, levels=LEVELS, atol=1e-10, **options):
    fast = dpc.replay(learner, scores, levels, **options)
    scan = dpc.replay(learner, scores, levels, method="scan", **options)
    np.testing.assert_allclose(fast.thresholds, scan.thresholds, rtol=0, atol=atol)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-12, atol=1e-300), fast.state, scan.state)
    assert [(leaf.shape, leaf.dtype) for leaf in fast.state] == [(leaf.shape, leaf.dtype) for leaf in scan.state]
    return fast


@pytest.mark.core
@pytest.mark.parametrize("name", VARIANTS)
def test_agrees_with_the_scan_on_every_sequence(name):
    # Between atoms a threshold is the prior's quantile at (level - mass)/λ: with λ = 1e-9 the last bit counts much.
    # Optimised, the two ways round alike all the same; compiled without, they need not.
    plain = "optimization_level=0" in os.environ.get("XLA_FLAGS", "")
    atol = 1e-6 if plain and name == "exact light prior" else 1e-10
    for scores in sequences(150).values():
        both(VARIANTS[name], scores, atol=atol)


def test_blocks_and_stretches_leave_no_seam(monkeypatch):
    scores = sequences(500)
    with small_work(monkeypatch):  # for all learners at once: whatever was compiled before is compiled anew afterwards
        for name in ("exact swinging", "exact discounted", "quantized", "quantized forgetful"):
            learner = VARIANTS[name]
            run = both(learner, scores["tied"])
            both(learner, scores["drifting"], state=run.state)  # with a past
            both(learner, scores["uniform"], RNG.random((500, len(LEVELS))))
            # Finds missing scores of earlier stretches counted as seen.
            both(learner, scores["skewed"], mask=RNG.random(500) < 0.3)
            run = both(learner, np.stack([scores["uniform"], scores["constant"]])[:, :133])  # a batch, padded blocks
            inside = jax.jit(lambda s, own=learner: dpc.replay(own, s, LEVELS).thresholds)(scores["uniform"][:133])
            np.testing.assert_allclose(inside, run.thresholds[0], atol=1e-10, err_msg=name)


def test_long_sequences_agree_with_the_oracle():
    """Longer than any block, so that stretches run side by side as they do for users."""
    scores = np.concatenate([RNG.beta(2, 5, 6000), RNG.random(3000)])
    levels = np.array([0.05, 0.5, 0.5 + 1e-15, 0.9, 0.999])
    for learner in (dpc.Exact(), dpc.Exact(discount=0.99), dpc.Quantized(64), dpc.Quantized(64, discount=0.99)):
        run = dpc.replay(learner, scores, levels)
        assert (np.diff(run.thresholds, axis=1) >= 0).all()
        state = dpc.replay(learner, scores[:8999], levels).state
        np.testing.assert_allclose(run.thresholds[8999], learner.quantile(state, levels), atol=1e-12)
    shares = np.full(8999, (1 - 9000**-0.5) / 8999)

    def cdf(x):
        return 9000**-0.5 * x + shares @ (scores[:8999, None] <= x)

    last = reference.bisect(cdf, levels, 0.0, 1.0)
    np.testing.assert_allclose(dpc.replay(dpc.Exact(), scores, levels).thresholds[8999], last, atol=1e-9)


def test_levels_next_to_the_ends_where_a_state_has_room_to_spare():
    almost = np.nextafter(1.0, 0)
    levels = np.array([0.0, np.nextafter(0.0, 1), 1e-300, almost - 1e-15, almost, 1.0])
    scores = RNG.random(40)
    for learner in (dpc.Exact(), dpc.Exact(discount=0.9), dpc.Exact(discount=0.9, capacity=200)):
        run = dpc.replay(learner, scores, levels)
        further = both(learner, scores[:7], levels, atol=1e-9, state=run.state)
        assert further.state.values.shape[0] > 47
        assert np.isfinite(further.thresholds).all()
        both(learner, scores[:7], np.tile(levels, (7, 1)), atol=1e-9, state=run.state)


@pytest.mark.parametrize("name", ["exact", "exact discounted", "quantized", "quantized discounted"])
def test_batches(name, monkeypatch):
    scores = RNG.random((7, 2, 40))
    alone = np.stack([[dpc.replay(VARIANTS[name], one, LEVELS).thresholds for one in pair] for pair in scores])
    run = both(VARIANTS[name], scores)
    np.testing.assert_allclose(run.thresholds, alone, atol=1e-14)
    further = both(VARIANTS[name], scores[..., ::-1], state=run.state)
    assert (further.state.seen == 80).all()
    monkeypatch.setattr(machine, "BYTES", 3 * 40 * 8 * 8)  # memory for a few sequences at a time
    np.testing.assert_array_equal(dpc.replay(VARIANTS[name], scores, LEVELS).thresholds, run.thresholds)


@pytest.mark.parametrize("name", ["exact swinging", "exact forgetful", "quantized", "quantized discounted"])
def test_inside_jit(name):
    learner, scores = VARIANTS[name], sequences(90)["tied"]
    outside = dpc.replay(learner, scores, LEVELS)
    inside = jax.jit(lambda s: dpc.replay(learner, s, LEVELS))(scores)
    np.testing.assert_allclose(inside.thresholds, outside.thresholds, atol=1e-12)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-12), inside.state, outside.state)
    further = jax.jit(lambda s, state: dpc.replay(learner, s, LEVELS, state=state).thresholds)(scores, outside.state)
    np.testing.assert_allclose(further, dpc.replay(learner, scores, LEVELS, outside.state).thresholds, atol=1e-12)


def test_inside_jit_a_bad_score_spoils_what_follows():
    scores = sequences(20)["uniform"].copy()
    for bad in (np.nan, 7.0, -np.inf):
        scores[11] = bad
        for learner in (dpc.Exact(), dpc.Exact(discount=0.9), dpc.Quantized(9), dpc.Quantized(9, discount=0.9)):
            run = jax.jit(lambda s, one=learner: dpc.replay(one, s, LEVELS))(scores)
            assert np.isfinite(run.thresholds[:12]).all()
            assert np.isnan(run.thresholds[12:]).all()
            assert int(run.state.seen) == -1


def test_a_sweep_is_one_program_and_gradients_are_those_of_the_scan():
    scores = sequences(60)["uniform"]

    def total(beta, how):
        run = dpc.replay(dpc.Exact(discount=beta), scores, [0.3, 0.8], method=how)
        return jnp.sum(run.thresholds**2)

    betas = jnp.array([0.5, 0.9, 0.99])
    np.testing.assert_allclose(*(jax.vmap(lambda b, how=how: total(b, how))(betas) for how in ("auto", "scan")))
    slopes = [jax.vmap(jax.grad(total), in_axes=(0, None))(betas, how) for how in ("auto", "scan")]
    np.testing.assert_allclose(*slopes, rtol=1e-9)
    assert (np.abs(slopes[0]) > 1e-3).all()


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_scores_that_a_stretch_forgets_weigh_nothing(dtype):
    """Finds a memory that ends before the last bit of the total does: 2⁻¹⁵ of it in float32."""
    for discount in (0.05, 0.9, 0.9999):
        rounds = pointer_loop.rounds_remembered(discount, dtype)
        assert discount**rounds < np.finfo(dtype).eps / 100 < discount ** (rounds / 2)


@pytest.mark.parametrize("name", ["exact", "exact discounted", "quantized discounted"])
def test_float32(name):
    scores = RNG.random(3000).astype(np.float32)
    run = dpc.replay(VARIANTS[name], scores, np.array([0.1, 0.5, 0.9], np.float32))
    assert run.thresholds.dtype == np.float32
    wide = dpc.replay(VARIANTS[name], scores.astype(float), [0.1, 0.5, 0.9])
    np.testing.assert_allclose(run.thresholds, wide.thresholds, atol=2e-3)  # a level 1e-7 away, over a small λ
    assert np.mean(np.abs(np.asarray(run.thresholds) - np.asarray(wide.thresholds))) < 2e-6


def test_workers_share_the_precision_of_the_caller():
    """``jax.enable_x64`` may hold for one thread only."""
    scores = RNG.random(30_000)
    with jax.enable_x64(False):
        narrow = dpc.replay(dpc.Exact(), scores, [0.5])
    assert (narrow.thresholds.dtype, dpc.replay(dpc.Exact(), scores, [0.5]).thresholds.dtype) == (
        np.float32,
        np.float64,
    )


@given(
    st.lists(st.floats(0, 1, width=16), min_size=1, max_size=60),
    st.lists(st.floats(0, 1), min_size=1, max_size=4),
    st.sampled_from([None, 0.3, 0.9, 0.9999]),
    st.floats(1e-6, 1),
)
def test_property_any_scores_levels_discount_and_weight(scores, levels, discount, weight):
    padded = np.resize(np.array(scores), 60)  # one shape for all: compiled once
    asked = np.resize(np.array(levels), 4)
    schedule = dpc.schedules.Constant(weight)
    for learner in (
        dpc.Exact(schedule=schedule, discount=discount),
        dpc.Quantized(7, dpc.priors.Uniform(), schedule, discount),
    ):
        both(learner, padded, asked, atol=1e-9)


@pytest.mark.parametrize(
    ("name", "shape"),
    [("exact", (400,)), ("exact discounted", (3, 120)), ("quantized", (3, 120)), ("split", (400,)), ("erm", (3, 120))],
)
def test_summaries_add_up(name, shape):
    learner = {**VARIANTS, "erm": dpc.ERM(), "split": dpc.SplitConformal()}[name]
    scores, levels = RNG.random(shape), np.array([0.0, 0.3, 0.9, 1.0])
    run = dpc.replay(learner, scores, levels)
    kept = dpc.replay(learner, scores, levels, keep="summary")
    covered = dpc.metrics.covered(run).sum(axis=-2)
    np.testing.assert_array_equal(kept.covered, covered)
    np.testing.assert_allclose(kept.coverage, dpc.metrics.coverage(run))
    np.testing.assert_allclose(kept.total_loss, dpc.metrics.quantile_loss(run).sum(axis=-2), rtol=1e-13)
    np.testing.assert_allclose(kept.mean_threshold, np.mean(run.thresholds, axis=-2), rtol=1e-13)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-13), kept.state, run.state)
    halves = [dpc.replay(learner, scores[..., :50], levels, keep="summary")]
    halves += [dpc.replay(learner, scores[..., 50:], levels, halves[0].state, keep="summary")]
    np.testing.assert_array_equal(halves[0].covered + halves[1].covered, covered)
    inside = jax.jit(lambda s: dpc.replay(learner, s, levels, keep="summary").covered)(scores)
    np.testing.assert_array_equal(inside, covered)
    per_round = np.broadcast_to(levels, (shape[-1], 4))
    np.testing.assert_array_equal(dpc.replay(learner, scores, per_round, keep="summary").covered, covered)


def test_summary_in_float32_does_not_drift():
    scores = np.full(300_000, 0.72, np.float32)
    kept = dpc.replay(dpc.Quantized(10), scores, np.array([0.5], np.float32), keep="summary")
    wide = dpc.replay(dpc.Quantized(10), scores.astype(float), [0.5], keep="summary")
    np.testing.assert_allclose(kept.total_threshold, wide.total_threshold, rtol=1e-6)


def test_method_of_a_belief_is_the_function():
    scores = RNG.random(50)
    for learner in (dpc.Exact(), dpc.Quantized(8)):
        np.testing.assert_array_equal(
            learner.replay(scores, LEVELS).thresholds, dpc.replay(learner, scores, LEVELS).thresholds
        )
        assert learner.replay(scores, LEVELS, keep="summary").rounds == 50


def test_on_an_accelerator_a_batch_is_one_vectorised_scan(monkeypatch):
    scores, driven = RNG.random((3, 21)), []
    expected = dpc.replay(dpc.Exact(), scores, LEVELS).thresholds
    module = sys.modules["dpconformal.replay"]
    original = module.drive
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    monkeypatch.setattr(
        module, "drive", lambda *given, **named: driven.append(given[3].scores.shape) or original(*given, **named)
    )
    np.testing.assert_allclose(dpc.replay(dpc.Exact(), scores, LEVELS).thresholds, expected, atol=1e-13)
    assert driven == [(3, 21)]


def test_unknown_options():
    with pytest.raises(ValueError, match="keep = 'everything': pass one of 'all', 'summary'"):
        dpc.replay(dpc.Exact(), [0.1], [0.5], keep="everything")
    with pytest.raises(ValueError, match="method = 'magic': pass one of 'auto', 'scan'"):
        dpc.replay(dpc.Exact(), [0.1], [0.5], method="magic")


def test_the_users_scores_are_not_touched_nor_held():
    scores = RNG.random(5000)
    before = scores.copy()
    run = dpc.replay(dpc.Exact(), scores, [0.5])
    scores[:] = 0.0
    np.testing.assert_array_equal(run.scores, before)
    np.testing.assert_array_equal(run.state.values[:5000], np.sort(before))


def test_an_error_in_a_worker_reaches_the_caller():
    def fail():
        raise ZeroDivisionError("here")

    with pytest.raises(ZeroDivisionError, match="here"):
        machine.in_threads([lambda: 1, fail, lambda: 3])
    assert machine.in_threads([lambda: 1, lambda: 2, lambda: 3, lambda: 4, lambda: 5]) == [1, 2, 3, 4, 5]
