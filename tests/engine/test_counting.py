"""Counts that grow large: past 2^24 in float32, past 2^31 anywhere."""

import math
from fractions import Fraction

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import ALL, BASELINES

import dpconformal as dpc
from dpconformal.beliefs.quantized import BinnedScores
from dpconformal.beliefs.sorted_scores import SortedScores

MOST = 2**31 - 1
LEVELS = np.array([0.0, 1e-9, 0.1, 0.5, 0.9, 1 - 1e-9, 1.0])
BINS = 8
SHARES = np.array([5, 0, 1, 2, 0, 0, 7, 1])  # of 16, in the bins
SCHEDULES = {"inverse_sqrt": None, "dirichlet": dpc.schedules.Dirichlet(1e-12), "constant": dpc.schedules.Constant(0.1)}


def binned(seen, dtype=jnp.int32):
    """A state that has seen so many scores."""
    weights = [int(share) * (seen // 16) for share in SHARES]
    weights[0] += seen - sum(weights)
    return BinnedScores(jnp.asarray(seen, dtype), jnp.asarray(weights, dtype))


def slack(thresholds, levels, counts, weight):
    """
    How far each level would have to be moved for its threshold to be exactly right, in exact arithmetic.

    The belief λ · Uniform(0, 1) + (1 - λ)/n · Σ count · δ(edge) rises by `reached` up to a threshold and has passed
    `before` just below it; a level between them is answered by that threshold.
    """
    n, lam = sum(counts), Fraction(weight)
    atoms = [Fraction(k + 1, len(counts)) for k in range(len(counts))]
    moved = []
    for x, level in zip(thresholds, levels, strict=True):
        x = Fraction(float(x))
        at, below = (
            lam * x + (1 - lam) * Fraction(sum(c for c, m in zip(counts, atoms, strict=True) if inside(m, x)), n)
            for inside in (lambda m, x: m <= x, lambda m, x: m < x)
        )
        level = Fraction(float(level))
        moved.append(float(max(level - at, below - level, 0)))
    return np.array(moved)


def weight_of(name, t):
    if name == "dirichlet":
        return 1 / (1 + Fraction(t - 1) / Fraction(1e-12))
    return Fraction(0.1) if name == "constant" else Fraction(1 / np.sqrt(t))


def ways(learner, state, scores, levels):
    """Thresholds of every round and the end of three ways to get them."""
    fast, scan = (dpc.replay(learner, scores, levels, state=state, method=method) for method in ("auto", "scan"))
    rows, online = [], state
    for score in scores:
        rows.append(np.asarray(learner.quantile(online, levels)))
        online = learner.observe(online, score)
    return {"fast": (fast.thresholds, fast.state), "scan": (scan.thresholds, scan.state), "online": (rows, online)}


@pytest.mark.core
@pytest.mark.parametrize(
    ("schedule", "dtype", "seen"),
    [
        ("inverse_sqrt", np.float32, 2**24),
        ("dirichlet", np.float32, 2**30 + 3),
        ("constant", np.float32, MOST - 2),
        ("inverse_sqrt", np.float32, MOST),
        ("dirichlet", np.float32, 3_000_000_000),
        ("constant", np.float32, 2**40 + 1),
        ("inverse_sqrt", np.float64, MOST - 2),
        ("dirichlet", np.float64, 2**24),
        ("constant", np.float64, 2**40 + 1),
    ],
)
def test_quantized_counts_on(seen, dtype, schedule):
    """Also across 2^31; in float32 the exact answer for a level moved by 1e-6 at most."""
    learner = dpc.Quantized(BINS, schedule=SCHEDULES[schedule])
    scores, levels = np.array([0.99, 0.01, 0.5, 0.5], dtype), LEVELS.astype(dtype)
    begin = binned(seen, jnp.int32 if seen <= MOST else jnp.int64)
    for thresholds, end in ways(learner, begin, scores, levels).values():
        counts = [int(count) for count in begin.weights]
        for t, (row, score) in enumerate(zip(np.asarray(thresholds), scores, strict=True), start=seen + 1):
            assert row.dtype == dtype
            tolerance = 1e-6 if dtype == np.float32 else 1e-13
            assert slack(row, levels, counts, weight_of(schedule, t)).max() <= tolerance
            counts[max(math.ceil(score * BINS) - 1, 0)] += 1
        assert int(end.seen) == seen + scores.size
        assert [int(count) for count in end.weights] == counts
        assert end.seen.dtype == end.weights.dtype == (jnp.int64 if seen + scores.size > MOST else jnp.int32)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_rows_of_levels_and_batches_of_late_states(dtype):
    learner, scores = dpc.Quantized(BINS), np.array([[0.2, 0.9], [0.7, 0.1]], dtype)
    begin = jax.tree.map(lambda *leaves: jnp.stack(leaves), binned(3, jnp.int64), binned(MOST - 1, jnp.int64))
    levels = np.array([[0.1, 0.9], [0.5, 0.2]], dtype)
    together = dpc.replay(learner, scores, levels, state=begin)
    for i in range(2):
        alone = dpc.replay(learner, scores[i], levels, state=jax.tree.map(lambda leaf, i=i: leaf[i], begin))
        np.testing.assert_allclose(together.thresholds[i], alone.thresholds, rtol=1e-6)
    assert together.state.seen.tolist() == [5, MOST + 1]
    summary = dpc.replay(learner, scores, [0.5], state=begin, keep="summary")
    assert summary.covered.dtype == np.int64


def test_discounted_bins_count_on():
    learner = dpc.Quantized(BINS, discount=0.5)
    begin = learner.init()
    for late, early in zip(
        *(
            ways(learner, begin._replace(seen=jnp.asarray(seen, jnp.int32)), [0.2, 0.9, 0.4], LEVELS).values()
            for seen in (MOST - 1, 1000)
        ),
        strict=True,
    ):
        np.testing.assert_allclose(np.asarray(late[0]), np.asarray(early[0]), rtol=0, atol=1e-15)  # β^n is nothing
        assert int(late[1].seen) == MOST + 2


@pytest.mark.parametrize(
    "learner", [dpc.Quantized(BINS), dpc.SlidingERM(4), dpc.Quantized(BINS, discount=0.5)], ids=repr
)
def test_merged_counts_pass_two_to_the_31(learner):
    part = dpc.replay(learner, [0.2, 0.4, 0.9, 0.1, 0.3], [0.5], state=learner.init()).state
    late = part._replace(seen=jnp.asarray(MOST - 3, jnp.int32))
    for first, second in ((late, part), (part, late)):
        merged = learner.merge(first, second)
        assert int(merged.seen) == MOST + 2
        assert merged.seen.dtype == jnp.int64
        again = learner.merge(merged, part)  # 64 bits with 32
        assert int(again.seen) == MOST + 7
        assert np.isfinite(learner.quantile(again, [0.1, 0.9])).all()
    if isinstance(learner, dpc.Quantized) and learner.discount is None:
        whole = learner.merge(binned(MOST), binned(MOST))
        assert [int(w) for w in whole.weights] == [2 * int(w) for w in binned(MOST).weights]
        moved = slack(learner.quantile(whole, LEVELS), LEVELS, whole.weights.tolist(), 1 / np.sqrt(2 * MOST + 1))
        assert moved.max() <= 1e-13


def late_state(name, seen, dtype=jnp.int32):
    """A state of a baseline after twenty scores, as if it had seen many more."""
    state = dpc.replay(ALL[name], np.linspace(0, 1, 20), [0.5]).state
    return jax.tree.map(
        lambda leaf: leaf.astype(dtype) if jnp.issubdtype(leaf.dtype, jnp.signedinteger) else leaf,
        state._replace(seen=jnp.asarray(seen, dtype)),
    )


@pytest.mark.parametrize("name", [*BASELINES, "sliding"])
def test_baselines_count_on(name):
    learner, scores = ALL[name], np.array([0.3, 0.8, 0.1])
    if name == "saocp":
        with pytest.raises(ValueError, match=r"state\.seen = 2147483646: with 3 more"):
            dpc.replay(learner, scores, [0.5], state=late_state(name, MOST - 1))
        with pytest.raises(ValueError, match=r"state\.seen = 2147483646: with 1 more"):
            learner.observe(late_state(name, MOST - 1), 0.5)
        return
    # What a run does around 2^31 is what it does when 64 bits were there from the start.
    wide, narrow = (ways(learner, late_state(name, MOST - 1, kind), scores, [0.1, 0.9]) for kind in ("int64", "int32"))
    for way, (thresholds, end) in narrow.items():
        assert np.isfinite(np.asarray(thresholds)).all(), way
        np.testing.assert_array_equal(np.asarray(thresholds), np.asarray(wide[way][0]))
        assert int(end.seen) == MOST + 2
        assert end.seen.dtype == jnp.int64


def test_the_schedule_is_told_the_right_round():
    told = []

    def weight(t):
        jax.debug.callback(lambda t: told.append(np.asarray(t)), t)
        return 1 / jnp.sqrt(t)

    learner = dpc.Quantized(BINS, schedule=weight)
    thresholds = learner.quantile(binned(2_999_999_999, jnp.int64), [0.5])
    jax.effects_barrier()
    assert told[-1] == 3e9
    assert np.isfinite(thresholds).all()
    two = jax.tree.map(lambda *leaves: jnp.stack(leaves), binned(0, jnp.int64), binned(3_000_000_000, jnp.int64))
    run = dpc.replay(learner, [[0.5], [0.5]], [0.5], state=two)  # the rounds between are not evaluated
    assert run.state.seen.tolist() == [1, 3_000_000_001]


@pytest.mark.parametrize("name", [name for name in ALL if name not in ("saocp",)])
def test_inside_jit_a_count_that_would_wrap_spoils_the_state(name):
    learner = ALL[name]
    full = dpc.replay(learner, [0.5], [0.5], state=learner.init()).state._replace(seen=jnp.asarray(MOST, jnp.int32))
    end = jax.jit(lambda state: learner.observe(state, 0.5))(full)
    assert int(end.seen) == -1
    assert np.isnan(jax.jit(lambda state: learner.quantile(state, jnp.array([0.5])))(end)).all()
    if isinstance(full, SortedScores):
        return  # holds as many scores as it has seen
    run = jax.jit(lambda state: dpc.replay(learner, [0.5, 0.5, 0.5], [0.5], state=state))(
        full._replace(seen=jnp.asarray(MOST - 1, jnp.int32))
    )
    assert int(run.state.seen) == -1
    assert np.isnan(run.thresholds[2]).all()
    assert not np.isnan(run.thresholds[0]).any()


def test_inside_jit_a_sum_that_would_wrap_spoils_the_state():
    for learner, state in ((dpc.Quantized(BINS), binned(MOST)), (dpc.SlidingERM(16), late_state("sliding", MOST))):
        assert int(jax.jit(learner.merge)(state, state).seen) == -1


@pytest.mark.parametrize("name", [*BASELINES, "sliding", "quantized"])
def test_without_64_bits_refused(name):
    learner = ALL[name]
    with jax.enable_x64(False):
        state = learner.init()
        state = state._replace(seen=jnp.asarray(MOST, jnp.int32))
        match = r"state\.seen = 2147483647: with"
        for use in (
            lambda: learner.observe(state, 0.5),
            lambda: dpc.replay(learner, [0.5, 0.5], [0.5], state=state),
            lambda: dpc.replay(learner, [0.5, 0.5], [0.5], state=state, method="scan"),
            *([lambda: learner.merge(state, state)] if hasattr(learner, "merge") else []),
        ):
            with pytest.raises(ValueError, match=match):
                use()
        stored = state._replace(seen=np.int64(5_000_000_000))  # from a file; cut to 32 bits it would be 705,032,704
        for use in (
            lambda: learner.quantile(stored, [0.5]),
            lambda: learner.observe(stored, 0.5),
            lambda: dpc.replay(learner, [0.5], [0.5], state=stored),
        ):
            with pytest.raises(ValueError, match=r"state\.seen = 5000000000"):
                use()


def test_more_scores_than_can_be_numbered_are_refused():
    for learner in (dpc.Exact(), dpc.ERM(), dpc.NExCP()):
        with pytest.raises(ValueError, match="state would need room for 2147483648 scores"):
            learner.prepare(learner.init(), 2**31)
        with pytest.raises(ValueError, match="state would need room for 3000000000 scores"):
            learner.init(rounds=3_000_000_000)


def test_every_score_kept_past_two_to_the_24_in_float32():
    """Half of 2^24 + 8 scores at 0.25, half at 0.75, then a few at 0.5: the level tells which."""
    learner, half = dpc.Exact(), 2**23 + 4
    seen = 2 * half
    values = np.full(seen + 8, np.inf, np.float32)
    values[:half], values[half:seen] = 0.25, 0.75
    arrivals = np.concatenate([np.arange(1, seen + 1), np.zeros(8)]).astype(np.int32)
    state = SortedScores(jnp.asarray(seen, jnp.int32), jnp.asarray(values), jnp.asarray(arrivals))
    levels = np.array([0.1, 0.5 - 1e-3, 0.5 + 1e-3, 0.9], np.float32)
    run = dpc.replay(learner, np.full(4, 0.5, np.float32), levels, state=state)
    np.testing.assert_array_equal(run.thresholds, np.tile(np.float32([0.25, 0.25, 0.75, 0.75]), (4, 1)))
    assert int(run.state.seen) == seen + 4
    online = learner.observe(run.state, 0.5)
    assert int(online.seen) == seen + 5
    np.testing.assert_array_equal(learner.quantile(online, levels), run.thresholds[0])
