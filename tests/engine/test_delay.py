"""Scores that become known late: thresholds, states and totals; what it costs, and who notices a wrong threshold."""

import functools
import sys

import cases
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import reference
from hypothesis import given
from hypothesis import strategies as st

import dpconformal as dpc
from dpconformal import theory
from dpconformal.engine.states import feedback_stream, pending_feedback
from dpconformal.rounds import Rounds
from dpconformal.theory.bounds import late_losses

T = 30
LEVELS = cases.LEVELS
RNG = np.random.default_rng(5)
SCORES = RNG.random((2, T))
MASK = RNG.random((2, T)) < 0.3
HOLED = np.where(MASK, np.nan, SCORES)
ROWS = RNG.random((T, 3))
HEADS = {
    "credible": dpc.Credible(dpc.Exact(schedule=dpc.schedules.Dirichlet(2.0))),
    "corrected": dpc.Corrected(dpc.Quantized(bins=16)),
}
EVERY = cases.ALL | HEADS
DELAYS = (0, 1, 3, 100)
GROUPS = RNG.random((T, 3)) < 0.6
CASTS = RNG.random(T)
TOLD = {
    "mvp": (dpc.MVP(cases.GRID, buckets=10, groups=3), GROUPS),
    "pid": (dpc.PID(cases.GRID, scorecast=True, initial=0.1), CASTS),
}


def same(one, two, tolerance=1e-9):
    for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(two), strict=True):
        if jnp.issubdtype(a.dtype, jax.dtypes.prng_key):
            a, b = jax.random.key_data(a), jax.random.key_data(b)
        np.testing.assert_allclose(np.asarray(a, float), np.asarray(b, float), atol=tolerance, rtol=0)


def shifted(rows, delay):
    return np.asarray(rows)[..., np.maximum(np.arange(rows.shape[-2]) - delay, 0), :]


@pytest.mark.parametrize("name", EVERY)
def test_a_delay_is_a_loop_that_observes_late(name):
    """All delays as one batch: 0 and 1, some, and more than there are rounds."""
    learner, short = EVERY[name], SCORES[0, :7]
    run = dpc.replay(learner, short, LEVELS, delay=DELAYS)
    plain, again = dpc.replay(learner, short, LEVELS), dpc.replay(learner, short, LEVELS, delay=0)
    same((plain.thresholds, plain.state), (again.thresholds, again.state), 0)
    for k, delay in enumerate(DELAYS):
        np.testing.assert_allclose(run.thresholds[k], shifted(plain.thresholds, delay), atol=1e-12)
    found, state = reference.late_loop(learner, short, LEVELS, 3)
    np.testing.assert_allclose(run.thresholds[2], found, atol=1e-9)
    own = run.sequence(2).state.state
    if jax.tree.map(jnp.shape, own) == jax.tree.map(jnp.shape, state):
        same(own, state)


@pytest.mark.parametrize("name", ["exact", "quantized", "ogd", "corrected"])
def test_no_delay_is_no_change_to_the_bit(name):
    for delay, levels in ((0, cases.any_levels(EVERY[name], (T, 3))), ([0, 0], LEVELS)):
        run, plain = dpc.replay(EVERY[name], SCORES, levels, delay=delay), dpc.replay(EVERY[name], SCORES, levels)
        same((run.thresholds, run.state), (plain.thresholds, plain.state), 0)
        np.testing.assert_array_equal(run.delay, delay)


@pytest.mark.parametrize("kind", cases.sequences(8))
def test_beliefs_agree_with_the_formula(kind):
    scores, prior = cases.sequences(60)[kind], cases.PRIORS["uniform"][1]
    for learner, weight, discount, bins in (
        (dpc.Exact(), lambda t: t**-0.5, None, None),
        (dpc.Exact(schedule=dpc.schedules.ForDelay(4)), lambda t: 3 / (2 + t**0.5), None, None),
        (dpc.Exact(discount=0.9), lambda t: 0.1**0.5 / (0.9 + 0.1**0.5), 0.9, None),
        (dpc.Quantized(7), lambda t: t**-0.5, None, 7),
    ):
        run = dpc.replay(learner, scores, cases.LEVELS, delay=[1, 4, 59])
        for k, delay in enumerate((1, 4, 59)):
            want = reference.late_thresholds(scores, cases.LEVELS, delay, prior, (0, 1), weight, discount, bins)
            np.testing.assert_allclose(run.thresholds[k], want, atol=1e-9)


@pytest.mark.parametrize("name", ["exact", "exact_discounted", "quantized", "erm", "nexcp", "ogd", "corrected"])
def test_every_way_agrees_with_masks_and_levels_by_round(name):
    """The scan, native loops and stretches; thresholds, totals and states."""
    learner, delay = EVERY[name], np.array([2, 5])
    rows = cases.any_levels(learner, (T, 3))
    run = dpc.replay(learner, HOLED, rows, mask=MASK, delay=delay)
    scan = dpc.replay(learner, HOLED, rows, mask=MASK, delay=delay, method="scan")
    same((run.thresholds, run.state), (scan.thresholds, scan.state))
    for k in range(2):
        found = reference.late_loop(learner, SCORES[k], rows, delay[k], MASK[k])[0]
        np.testing.assert_allclose(run.thresholds[k], found, atol=1e-9)
    judged = ~MASK[..., None]
    want = np.where(judged, np.asarray(run.thresholds), 0).sum(axis=1)
    hits = ((SCORES[..., None] <= np.asarray(run.thresholds)) & judged).sum(axis=1)
    for method in ("auto", "scan"):
        total = dpc.replay(learner, HOLED, rows, mask=MASK, delay=delay, keep="summary", method=method)
        np.testing.assert_array_equal(total.covered, hits)
        np.testing.assert_allclose(total.total_threshold, want, atol=1e-9)
        loss = reference.quantile_loss(np.asarray(run.thresholds), SCORES[..., None], rows)
        np.testing.assert_allclose(total.total_loss, np.where(judged, loss, 0).sum(axis=1), atol=1e-9)
        np.testing.assert_array_equal(total.rounds, (~MASK).sum(axis=1))
        same(total.state, run.state)


def test_totals_of_many_stretches(monkeypatch):
    whole = dpc.replay(dpc.Exact(), HOLED, ROWS, mask=MASK, delay=4, keep="summary")
    monkeypatch.setattr(sys.modules["dpconformal.replay"], "ROOM", 42)  # seven rounds of two sequences and three levels
    parts = dpc.replay(dpc.Exact(), HOLED, ROWS, mask=MASK, delay=4, keep="summary")
    same(
        (whole.covered, whole.total_loss, whole.total_threshold),
        (parts.covered, parts.total_loss, parts.total_threshold),
    )
    same(whole.state, parts.state)


@pytest.mark.parametrize("name", TOLD)
def test_a_score_is_observed_with_the_context_of_its_own_round(name):
    learner, context = TOLD[name]
    run = dpc.replay(learner, SCORES[0], cases.GRID, context=context, delay=DELAYS)
    for k, delay in enumerate(DELAYS):
        found = reference.late_loop(learner, SCORES[0], cases.GRID, delay, context=context)[0]
        np.testing.assert_allclose(run.thresholds[k], found, atol=1e-9)
    assert run.context.shape == (4, *np.shape(context))
    assert run.sequence(1).context.shape == np.shape(context)
    masked = dpc.replay(learner, HOLED[0], cases.GRID, context=context, mask=MASK[0], delay=3)
    found = reference.late_loop(learner, SCORES[0], cases.GRID, 3, MASK[0], context)[0]
    np.testing.assert_allclose(masked.thresholds, found, atol=1e-9)
    np.testing.assert_array_equal(masked.observed().context, np.asarray(context)[~MASK[0]])
    first = dpc.replay(learner, SCORES[0, :13], cases.GRID, context=context[:13], delay=3)
    rest = dpc.replay(learner, SCORES[0, 13:], cases.GRID, first.state, context=context[13:], delay=3)
    whole = run.sequence(2)
    same(jnp.concatenate([first.thresholds, rest.thresholds]), whole.thresholds)
    assert np.isfinite(dpc.metrics.crps(whole, points=1)).all()  # of the level 0.5, which the grid has
    bare = rest.state._replace(waiting=rest.state.waiting._replace(context=None))
    with pytest.raises(ValueError, match=r"state\.waiting\.context does not suit"):
        dpc.replay(learner, SCORES[0], cases.GRID, bare, context=context, delay=3)


def test_runs_keep_their_context():
    learner, context = TOLD["mvp"]
    run = dpc.replay(learner, SCORES, cases.GRID, context=context)
    np.testing.assert_array_equal(run.context, np.broadcast_to(context, (2, *context.shape)))
    assert dpc.replay(dpc.Exact(), SCORES, LEVELS).context is None
    assert dpc.metrics.crps(run, points=1).shape == SCORES.shape


@pytest.mark.parametrize(
    ("name", "cuts"),
    [
        ("ogd", (1, 3)),
        ("ogd", (0, 30)),
        ("exact", (1, 3)),
        ("exact", (15,)),
        ("exact", (4, 4)),
        ("quantized_discounted", (4, 4)),
        ("corrected", (15,)),
    ],
)
def test_a_run_that_is_interrupted_is_as_if_it_were_not(name, cuts):
    learner, delay, state, parts, totals = EVERY[name], np.array([5, 2]), None, [], []
    whole = dpc.replay(learner, HOLED, LEVELS, mask=MASK, delay=delay)
    for start, stop in zip((0, *cuts), (*cuts, T), strict=True):
        here = slice(start, stop)
        totals.append(dpc.replay(learner, HOLED[:, here], LEVELS, state, "summary", mask=MASK[:, here], delay=delay))
        run = dpc.replay(learner, HOLED[:, here], LEVELS, state, mask=MASK[:, here], delay=delay)
        parts.append(run.thresholds)
        state = run.state
    same(jnp.concatenate(parts, axis=1), whole.thresholds)
    np.testing.assert_array_equal(sum(total.covered for total in totals), _covered(whole))
    same(state.waiting, whole.state.waiting, 0)
    one = dpc.replay(
        learner, SCORES[1, :9], LEVELS, whole.sequence(1).state, delay=2
    )  # five places, of which two count
    both = dpc.replay(learner, SCORES[:, :9], LEVELS, whole.state, delay=delay)
    same(one.thresholds, both.thresholds[1])


def _covered(run):
    return (np.asarray(run.scores)[..., None] <= np.asarray(run.thresholds)).sum(axis=1)


def test_a_plain_state_has_nothing_on_its_way():
    start = dpc.replay(dpc.Exact(), SCORES[0], LEVELS).state
    run = dpc.replay(dpc.Exact(), SCORES[1], LEVELS, start, delay=3)
    np.testing.assert_array_equal(run.thresholds[:4], np.broadcast_to(run.thresholds[0], (4, LEVELS.size)))
    same(run.thresholds, shifted(dpc.replay(dpc.Exact(), SCORES[1], LEVELS, start).thresholds, 3))


@pytest.mark.parametrize(("shape", "delay"), [((0,), 3), ((0, 3), 2)], ids=["no rounds", "no sequences"])
def test_a_head_without_scores_has_an_empty_run(shape, delay):
    """Found: NumPy's own error about shapes."""
    run = dpc.replay(dpc.Corrected(), np.zeros(shape), [0.5], delay=delay, mask=np.zeros(shape, bool))
    assert run.thresholds.shape == (*shape, 1)
    assert run.state.waiting.scores.shape == (*shape[:-1], delay)


def test_no_rounds_and_fewer_than_the_delay():
    empty = dpc.replay(dpc.Exact(), [], [0.5], delay=3)
    assert empty.thresholds.shape == (0, 1)
    assert not empty.state.waiting.observed.any()
    run = dpc.replay(dpc.Exact(), [0.2, 0.4], [0.5], empty.state, delay=3)
    np.testing.assert_array_equal(run.state.waiting.observed, [False, True, True])
    np.testing.assert_array_equal(run.state.waiting.scores[1:], [0.2, 0.4])
    rest = dpc.replay(dpc.Exact(), [0.6, 0.8, 0.9], [0.5], run.state, delay=3)
    same(rest.thresholds, dpc.replay(dpc.Exact(), [0.2, 0.4, 0.6, 0.8, 0.9], [0.5], delay=3).thresholds[2:], 0)
    same(dpc.replay(dpc.Exact(), [], [0.5], rest.state, delay=3).state, rest.state, 0)


@given(st.data())
def test_what_arrives_and_what_waits_are_all_there_is(data):
    rounds, held = data.draw(st.integers(0, 12)), data.draw(st.integers(0, 9))
    delay = np.array(data.draw(st.lists(st.integers(0, 9), min_size=2, max_size=2)), np.int32)
    observed = np.array(data.draw(st.lists(st.booleans(), min_size=2 * rounds, max_size=2 * rounds)), bool)
    own = Rounds(np.arange(2.0 * rounds).reshape(2, rounds) / 100, None, observed.reshape(2, rounds))
    learner = dpc.Exact()
    before = pending_feedback(learner, delay, Rounds(np.full((2, held), 0.5), None, np.ones((2, held), bool)), None)
    told, rest = feedback_stream(learner, delay, own, before), pending_feedback(learner, delay, own, before)
    for k in range(2):
        line = np.concatenate([before.scores[k][before.observed[k]], own.scores[k][own.observed[k]]])
        got = np.concatenate([told.scores[k][told.observed[k]], rest.scores[k][rest.observed[k]]])
        np.testing.assert_array_equal(line, got)
        for t in range(rounds):
            if t >= delay[k]:
                assert told.observed[k, t] == own.observed[k, t - delay[k]]


@pytest.mark.parametrize("name", ["exact", "ogd", "corrected"])
def test_inside_jit_vmap_and_grad(name):
    learner = EVERY[name]
    want = dpc.replay(learner, HOLED, LEVELS, mask=MASK, delay=3)

    def run(scores, mask, **more):
        return dpc.replay(learner, scores, LEVELS, mask=mask, delay=3, **more)

    same(jax.jit(lambda s, m: run(s, m).thresholds)(HOLED, MASK), want.thresholds)
    same(jax.vmap(lambda s, m: run(s, m).thresholds)(HOLED, MASK), want.thresholds)
    total = jax.jit(lambda s, m: run(s, m, keep="summary"))(HOLED, MASK)
    same(total.covered, _covered(want))
    same(total.total_loss, dpc.replay(learner, HOLED, LEVELS, mask=MASK, delay=3, keep="summary").total_loss)
    carried = jax.jit(lambda s, state: run(s, None, state=state).thresholds)(SCORES, want.state)
    same(carried, run(SCORES, None, state=want.state).thresholds)
    slopes = jax.grad(lambda s: jnp.where(jnp.isfinite(x := run(s, None).thresholds), x, 0).sum())(SCORES[0])
    assert np.isfinite(slopes).all()
    assert not np.asarray(slopes)[-4:].any()  # too late to matter
    came = jax.jit(lambda s: run(s, None))(SCORES)  # out of jit the delay is an array
    assert came.sequence(0).delay == 3
    if hasattr(learner, "cdf"):
        same(dpc.metrics.pit(came), dpc.metrics.pit(run(SCORES, None)))
        same(jax.jit(dpc.metrics.pit)(run(SCORES, None)), dpc.metrics.pit(run(SCORES, None)))


def test_undelayed_programs_are_not_traced_again():
    from dpconformal.engine.scan import _scan

    learner = dpc.OGD([0.5, 0.9])
    dpc.replay(learner, SCORES[0], [0.5])
    traces = _scan._cache_size()
    for delay in (0, 0):
        dpc.replay(learner, SCORES[1], [0.5], delay=delay)
    assert _scan._cache_size() == traces
    for delay in (1, 7, 40):  # one more program for all delays
        dpc.replay(learner, SCORES[1], [0.5], delay=delay)
    assert _scan._cache_size() == traces + 1


def test_beliefs_are_gone_through_again_as_they_were():
    run = dpc.replay(dpc.Exact(), HOLED[0], LEVELS, mask=MASK[0], delay=3)
    state, values, means = dpc.Exact().init(rounds=T), [], []
    middles = (np.arange(64) + 0.5) / 64
    for t in range(T):
        if not MASK[0, t]:
            values.append(float(dpc.Exact().cdf(state, SCORES[0, t])))
            quantiles = np.asarray(dpc.Exact().quantile(state, middles))
            means.append(2 * reference.quantile_loss(quantiles, SCORES[0, t], middles).mean())
        if t >= 3 and not MASK[0, t - 3]:
            state = dpc.Exact().observe(state, SCORES[0, t - 3])
    same(dpc.metrics.pit(run), np.array(values))
    same(dpc.metrics.crps(run, points=64), np.array(means))
    first = dpc.replay(dpc.Exact(), SCORES[0, :12], LEVELS, delay=3)
    rest = dpc.replay(dpc.Exact(), SCORES[0, 12:], LEVELS, first.state, delay=3)
    whole = dpc.replay(dpc.Exact(), SCORES[0], LEVELS, delay=3)
    same(jnp.concatenate([dpc.metrics.pit(first), dpc.metrics.pit(rest)]), dpc.metrics.pit(whole))
    with pytest.raises(ValueError, match=r"run\.delay is None: rounds were taken out"):
        dpc.metrics.pit(run.observed())


@pytest.mark.parametrize(
    ("delay", "message"),
    [
        (-1, r"delay = -1: a whole number of rounds, from 0"),
        ([1, -2], r"delay\[1\] = -2"),
        (1.5, r"delay = 1\.5: pass how many rounds late"),
        (True, r"delay = True"),
        ("3", r"delay = '3'"),
        ([1, 2, 3], r"delay has shape \(3,\): it must broadcast against the leading axes of the scores, \(2,\)"),
        (2**31, r"delay = 2147483648"),
    ],
)
def test_bad_delays(delay, message):
    with pytest.raises(ValueError, match=message):
        dpc.replay(dpc.Exact(), SCORES, LEVELS, delay=delay)


def test_states_of_another_delay_are_refused():
    run = dpc.replay(dpc.Exact(), SCORES, LEVELS, delay=[2, 5])
    for delay, message in (
        (0, "delay = 0: the state is that of a run with delay"),
        ([2, 4], r"delay = \[2, 4\]: .*\[2, 5\]"),
    ):
        with pytest.raises(ValueError, match=message):
            dpc.replay(dpc.Exact(), SCORES, LEVELS, run.state, delay=delay)
    with pytest.raises(ValueError, match=r"leading axes \(2,\)"):
        dpc.replay(dpc.Exact(), SCORES[0], LEVELS, run.state, delay=2)
    with pytest.raises(ValueError, match="delay is being traced"):
        jax.jit(lambda h: dpc.replay(dpc.Exact(), SCORES, LEVELS, delay=h).thresholds)(3)
    bad = run.state._replace(waiting=run.state.waiting._replace(scores=run.state.waiting.scores + 5))
    with pytest.raises(ValueError, match=r"state\.waiting\.scores\[0, 0\]"):
        dpc.replay(dpc.Exact(), SCORES, LEVELS, bad, delay=[2, 5])
    wrong = jax.jit(lambda state: dpc.replay(dpc.Exact(), SCORES, LEVELS, state, delay=[3, 5]).thresholds)(run.state)
    assert np.isnan(wrong[0, 2:]).all()  # nothing can raise in there
    assert np.isfinite(wrong[1]).all()


def test_precision_is_that_of_what_waits():
    first = dpc.replay(dpc.Quantized(8), SCORES, LEVELS, delay=3)
    run = dpc.replay(dpc.Quantized(8), SCORES.astype(np.float32), LEVELS, first.state, delay=3)
    assert run.thresholds.dtype == run.state.waiting.scores.dtype == jnp.float64
    assert dpc.replay(dpc.Exact(), SCORES.astype(np.float32), LEVELS, delay=3).thresholds.dtype == jnp.float32


@pytest.mark.parametrize("name", ["exact", "quantized", "ogd", "corrected", "mvp"])
def test_what_waits_can_be_saved(name, tmp_path):
    learner, context = TOLD["mvp"] if name == "mvp" else (EVERY[name], None)
    rows = {} if context is None else {"context": context}
    run = dpc.replay(learner, SCORES, cases.GRID, delay=[4, 2], **rows)
    dpc.save(tmp_path / "late.dpc", learner, run.state)
    made, state = dpc.load(tmp_path / "late.dpc")
    assert isinstance(state, dpc.Delayed)
    same(state, run.state, 0)
    rest = dpc.replay(made, SCORES, cases.GRID, state, delay=[4, 2], **rows)
    same(rest.thresholds, dpc.replay(learner, SCORES, cases.GRID, run.state, delay=[4, 2], **rows).thresholds, 0)
    bad = run.state._replace(delay=run.state.delay + 3)
    with pytest.raises(ValueError, match=r"state\.delay is \[7, 5\]"):
        dpc.save(tmp_path / "late.dpc", learner, bad)


def test_a_schedule_for_a_delay(tmp_path):
    schedule, t = dpc.schedules.ForDelay(12), np.arange(1.0, 50)
    np.testing.assert_allclose(schedule.weight(t), 5 / (4 + np.sqrt(t)), rtol=1e-15)
    assert schedule.weight(1) == 1
    np.testing.assert_allclose(dpc.schedules.ForDelay(0).weight(t), t**-0.5, rtol=1e-15)
    weight = np.asarray(schedule.weight(t[1:]))
    np.testing.assert_allclose(theory.concentration(t[1:], schedule), weight * (t[1:] - 1) / (1 - weight), rtol=1e-12)
    with pytest.raises(ValueError, match=r"ForDelay\.delay = -1"):
        dpc.schedules.ForDelay(-1)
    dpc.save(tmp_path / "a.dpc", dpc.Exact(schedule=schedule))
    assert dpc.load(tmp_path / "a.dpc").learner.schedule == schedule


def blocks(delay, rounds, rng):
    """Sequences that are hard to follow late: coins, and stretches about as long as the delay."""
    t = np.arange(rounds)
    found = [rng.random(rounds), (rng.random(rounds) < 0.5) * 1.0, t % 2 * 1.0]
    for length in {max(delay // 2, 1), max(delay, 1), delay + 1, 2 * delay + 1}:
        found += [t // length % 2 * 1.0, (t // length + 1) % 2 * 1.0]
    found += [np.repeat(rng.random(rounds) < chance, delay + 1)[:rounds] * 1.0 for chance in (0.1, 0.5, 0.5, 0.9)]
    return np.array(found)


@pytest.mark.parametrize(
    ("schedule", "delay"),
    [
        *((None, delay) for delay in (0, 1, 3, 10, 100)),
        ("for the delay", 0),
        ("for the delay", 10),
        (dpc.schedules.Dirichlet(3.0), 3),
        (dpc.schedules.Constant(0.2), 10),
        ("discounted", 100),
    ],
)
def test_the_bound_holds_and_so_does_each_of_its_terms(schedule, delay):
    rounds, levels, discount = 600, np.array([0.1, 0.5, 0.9]), 0.95 if schedule == "discounted" else None
    schedule = {"for the delay": dpc.schedules.ForDelay(delay), "discounted": None}.get(str(schedule), schedule)
    learner = dpc.Exact(schedule=schedule, discount=discount)
    scores = blocks(delay, rounds, np.random.default_rng(delay))
    run, plain = dpc.replay(learner, scores, levels, delay=delay), dpc.replay(learner, scores, levels)
    apart = np.asarray(run.thresholds - plain.thresholds)
    cost = np.where(apart > 0, (1 - levels) * apart, -levels * apart)
    allowed = late_losses(np.maximum(np.arange(rounds) - delay, 0), levels, schedule, discount)
    assert np.all(cost <= allowed + 1e-11)
    if delay:  # and some sequence here attains it in some round
        assert np.max(cost / np.where(allowed > 1e-9, allowed, np.inf)) > 0.99
    seen = dpc.metrics.regret(run) if discount is None else dpc.metrics.discounted_regret(run, discount)
    bound = theory.delayed_regret_bound(rounds, levels, delay, schedule=schedule, discount=discount)
    assert np.all(seen <= bound)
    if discount is None:
        curve = dpc.metrics.regret(run, running=True)
        horizons = np.arange(1, rounds + 1)[:, None]
        assert np.all(curve <= theory.delayed_regret_bound(horizons, levels, delay, schedule=schedule) + 1e-9)


def test_the_bound_is_the_sum_of_its_terms():
    kinds = (
        (None, lambda t: t**-0.5, lambda t: t**0.5 + 1),
        (dpc.schedules.ForDelay(4), lambda t: 3 / (2 + t**0.5), lambda t: 3 * (t**0.5 + 1)),
        (dpc.schedules.Dirichlet(2.0), lambda t: 2 / (1 + t), lambda t: 2.0),
    )
    for schedule, weight, concentration in kinds:
        for rounds, level, delay in ((0, 0.3, 2), (1, 0.5, 0), (9, 0.9, 4), (40, 0.5, 7), (40, 0.2, 100)):
            want = 2.5 * reference.delayed_bound(rounds, level, delay, weight, concentration)
            if rounds:
                found = theory.delayed_regret_bound(rounds, level, delay, 2.5, schedule)
                assert found == pytest.approx(want, rel=1e-9)
    grid = theory.delayed_regret_bound(np.array([[10], [50]]), 0.5, np.array([0, 3]))
    assert grid.shape == (2, 2)
    np.testing.assert_allclose(grid[:, 0], theory.regret_bound(np.array([10, 50]), 0.5), rtol=1e-12)
    late = theory.delayed_regret_bound(50, 0.5, 0, discount=0.9)
    assert late == pytest.approx(theory.discounted_regret_bound(50, 0.5, 0.9))
    assert theory.delayed_regret_bound(5, 0.5, 2, schedule=lambda t: 1.0 + 0 * t) == np.inf
    for bad, message in (
        ({"delay": -1}, "delay = -1"),
        ({"rounds": np.inf}, "rounds = inf"),
        ({"level": 2}, "level = 2"),
    ):
        with pytest.raises(ValueError, match=message):
            theory.delayed_regret_bound(**{"rounds": 5, "level": 0.5, "delay": 1} | bad)
    with pytest.raises(ValueError, match="with a discount pass schedules"):
        theory.delayed_regret_bound(5, 0.5, 1, discount=0.9, schedule=dpc.schedules.InverseSqrt())


def test_rates_of_the_bound():
    """√T in the rounds; in the delay linear for 1/√t, a square root with the schedule for it."""
    T = 10**5
    ratio = functools.partial(theory.delayed_regret_bound, level=0.5)
    assert ratio(4 * T, delay=10) / ratio(T, delay=10) == pytest.approx(2, rel=0.02)
    assert ratio(T, delay=40) / ratio(T, delay=10) == pytest.approx((1.5 + 80) / (1.5 + 20), rel=0.05)
    suited = [ratio(T, delay=h, schedule=dpc.schedules.ForDelay(h)) for h in (0, 10, 40)]
    for h, bound in zip((0, 10, 40), suited, strict=True):
        assert bound == pytest.approx(0.25 * 1.5 * np.sqrt((1 + 2 * h) * T), rel=0.05)


@pytest.mark.parametrize("schedule", [None, "for the delay"])
def test_an_adversary_that_searches_stays_below_the_bound(schedule):
    """Sequences of a small search, repeated for as long as the delay lasts: the learner answers each too late."""
    for delay, rounds in ((1, 64), (10, 176)):
        own = None if schedule is None else dpc.schedules.ForDelay(delay)
        learner = dpc.Exact(schedule=own)
        bound = theory.delayed_regret_bound(rounds, 0.5, delay, schedule=own)
        worst = _searched(learner, delay, rounds)
        assert 0.3 * bound < worst <= bound


def _searched(learner, delay, rounds, generations=15, size=32):
    """The largest regret at level 0.5 that an evolution of two-valued sequences finds."""
    rng, length = np.random.default_rng(1), delay + 1
    start = theory.hardest_sequence(learner, 0.5, -(-rounds // length), population=8, generations=2).scores
    coins = (rng.random((size - 1, -(-rounds // length))) < 0.5) * 1.0
    genes = np.repeat(np.concatenate([start[None], coins]), length, axis=1)[:, :rounds]
    for _ in range(generations):
        worth = dpc.metrics.regret(dpc.replay(learner, genes, [0.5], delay=delay))[:, 0]
        best = genes[np.argsort(-worth)[: size // 4]]
        mothers, fathers = (best[rng.integers(len(best), size=size - len(best))] for _ in range(2))
        cut = rng.integers(0, rounds, (len(mothers), 1))
        young = np.where(np.arange(rounds) < cut, mothers, fathers)
        first = rng.integers(0, rounds, (len(young), 1))
        stretch = (np.arange(rounds) >= first) & (np.arange(rounds) < first + rng.integers(1, length + 1, first.shape))
        genes = np.concatenate([best, np.where(stretch, 1 - young, young)])
    return dpc.metrics.regret(dpc.replay(learner, genes, [0.5], delay=delay)).max()


@pytest.mark.parametrize("name", ["exact", "exact_dirichlet", "exact_discounted", "quantized", "quantized_discounted"])
def test_certificates_of_late_runs(name):
    learner, levels = cases.BELIEFS[name], np.array([0.3, 0.5, 0.9])
    delay = np.array([0, 4, 100])
    scores, mask = (
        np.stack([cases.sequences(T)[k] for k in ("uniform", "tied", "alternating")]),
        RNG.random((3, T)) < 0.2,
    )
    run = dpc.replay(learner, scores, levels, mask=mask, delay=delay)
    found = theory.certify(run)
    assert not [line for line in found.failures if "coverage" not in line]
    verdict = found.dataset.verdict
    assert (verdict.sel(check="optimality") == "pass").all()
    assert (verdict.sel(check="coverage")[1:] == "no claim").all()
    claimed = "pass" if learner.discount is None else "no claim"
    assert (verdict.sel(check="regret") == claimed).all()
    assert (verdict.sel(check="discounted regret")[1:] == "no claim").all()
    for k, where in ((1, 2), (1, 25), (2, 0), (2, 29)):  # also before any score is known
        t = np.flatnonzero(~mask[k])[min(where, (~mask[k]).sum() - 1)]
        wrong = run._replace(
            thresholds=run.thresholds.at[k, t, 1].add(1e-4 if run.thresholds[k, t, 1] < 0.7 else -1e-4)
        )
        failures = [line for line in theory.certify(wrong).failures if "optimality" in line]
        assert any(f"batch {k}, optimality, level 0.5" in line and f"round {t + 1} " in line for line in failures)


def test_certificates_of_runs_that_carry_on_and_of_others():
    first = dpc.replay(dpc.Quantized(), SCORES, LEVELS, delay=3)
    rest = dpc.replay(dpc.Quantized(), SCORES, LEVELS, first.state, delay=3)
    verdict = theory.certify(rest).dataset.verdict
    assert (verdict.sel(check="optimality") == "pass").all()
    assert (verdict.sel(check="regret") == "no claim").all()
    wrong = rest._replace(delay=2)  # judged by what was not known
    assert not theory.certify(wrong._replace(start=first.state.state)).passed
    alternating = (np.arange(200) + 1) % 2 * 1.0
    erm = dpc.replay(dpc.ERM(), alternating, [0.5], delay=0)
    assert "regret" in "".join(theory.certify(erm).failures)
    late = theory.certify(dpc.replay(dpc.ERM(), alternating, [0.5], delay=2)).dataset
    assert late.high.sel(check="regret").item() > theory.certify(erm).dataset.high.sel(check="regret").item()
    with pytest.raises(ValueError, match=r"run\.delay = 3: the bound on a path"):
        theory.path_bound(first)
    curve = dpc.diagnostics.coverage_curve(first)
    assert not curve.claimed.any()
    assert np.isnan(curve.band_low).all()


def test_trees_reports_panels_and_sets(tmp_path):
    run = dpc.replay(dpc.Exact(), HOLED, [0.5, 0.9], mask=MASK, delay=[0, 3])
    for one, delay in ((run.sequence(0), 0), (dpc.replay(dpc.Exact(), SCORES, [0.5], delay=3), 3)):
        assert dpc.diagnostics.from_datatree(dpc.diagnostics.to_datatree(one)).delay == delay
    both = dpc.replay(dpc.Exact(), SCORES, [0.5], delay=[0, 3])
    np.testing.assert_array_equal(dpc.diagnostics.from_datatree(dpc.diagnostics.to_datatree(both)).delay, [0, 3])
    assert run.sequence(1).delay == 3
    assert run.sequence(1).observed().delay is None
    assert dpc.report(run.sequence(1), tmp_path / "late.html").exists()
    import xarray as xr

    panel = dpc.replay_panel(xr.DataArray(SCORES, dims=["store", "time"]), dpc.Exact(), [0.5], delay=3)
    same(panel.thresholds.values, dpc.replay(dpc.Exact(), SCORES, [0.5], delay=3).thresholds, 0)


def test_sets_of_many_horizons():
    """Found: an array of delays was refused. Rows of labels with a delay each, and every row at many delays."""
    learner = dpc.Exact(dpc.priors.Uniform(-10, 10))
    rng = np.random.default_rng(5)
    labels, predictions = rng.normal(0, 1, (2, T)), rng.normal(0, 1, (2, T))
    missing, errors = np.arange(T) % 7 == 3, labels - predictions
    for delay in ([0, 3], np.array([[0], [3]])):
        given = {"mask": missing, "delay": delay}
        want = dpc.replay(learner, np.abs(errors), [0.5, 0.9], **given)
        found = dpc.conformalize(learner, dpc.scores.Absolute(), predictions, labels, [0.5, 0.9], **given)
        same(found.thresholds, want.thresholds, 0)
        same(found.sets.high - predictions[..., None], want.thresholds, 1e-6)
        same(found.coverage, dpc.metrics.coverage(want.observed()))
        sided = dpc.conformalize(learner, dpc.scores.Signed(), predictions, labels, [0.5, 0.9], **given)
        for side, sign in enumerate((-1, 1)):
            same(sided.thresholds[side], dpc.replay(learner, sign * errors, [0.75, 0.95], **given).thresholds, 0)
        assert sided.covered.shape == (*want.thresholds.shape[:-2], T - missing.sum(), 2)
        assert sided.coverage.shape == found.coverage.shape


def test_predictions_of_every_kind_at_many_delays():
    """Predictions are repeated for every delay, whatever axes follow that of the rounds."""
    rng = np.random.default_rng(6)
    wide, cases = dpc.Exact(dpc.priors.Uniform(0, 20)), []
    chances, classes, noise = rng.dirichlet([1, 1, 1], T), rng.integers(0, 3, T), rng.random(T)
    cases.append((dpc.scores.APS(randomized=True), chances.tolist(), classes, {"noise": noise.tolist()}))
    means, matrices = rng.normal(0, 1, (T, 2)), np.broadcast_to(np.eye(2), (T, 2, 2))
    cases.append((dpc.scores.Ellipsoid(), (means, matrices), rng.normal(0, 1, (T, 2)), {}))
    for score, predictions, labels, extra in cases:
        both = dpc.conformalize(wide, score, predictions, labels, LEVELS, delay=[0, 3], **extra)
        late = dpc.conformalize(wide, score, predictions, labels, LEVELS, delay=3, **extra)
        same(both.thresholds[1], late.thresholds)
        same(both.size[1], late.size)
        same(both.coverage[1], late.coverage)


def test_pages_show_what_was_replayed_late():
    from dpconformal.report.series import blocks_of, curves_of, losses_of

    run = dpc.replay(dpc.Exact(), HOLED[0], [0.5], mask=MASK[0], delay=3)
    count = int((~MASK[0]).sum())
    curves = curves_of(run, blocks_of(count), steps=100)
    levels = np.arange(101) / 100
    want = dpc.replay(dpc.Exact(), HOLED[0], levels, mask=MASK[0], delay=3)
    np.testing.assert_allclose(curves.thresholds, np.asarray(want.observed().thresholds).T, atol=1e-12)
    found = losses_of(run, np.array([count]))
    assert found.kind == "late"
    assert np.all(found.regret <= found.bound)
    faded = dpc.replay(dpc.Exact(discount=0.9), SCORES[0], [0.5], delay=3)
    assert losses_of(faded, np.array([T])).kind == "unproved"


def test_the_command_takes_a_delay(tmp_path, monkeypatch):
    import pandas as pd
    from typer.testing import CliRunner

    from dpconformal.cli import jobs
    from dpconformal.cli.main import app

    monkeypatch.setattr(jobs, "ROUNDS", 7)  # so that scores are on their way from pass to pass
    np.save(tmp_path / "scores.npy", SCORES[0])
    options = ["--learner", "quantized", "--bins", "8", "--delay", "3", "--levels", "0.5,0.9", "--format", "csv"]
    done = CliRunner().invoke(app, ["replay", str(tmp_path / "scores.npy"), *options, "--out", str(tmp_path / "out")])
    assert done.exit_code == 0, done.output
    table = pd.read_csv(tmp_path / "out" / "thresholds.csv").iloc[:, -2:]
    want = np.asarray(dpc.replay(dpc.Quantized(8), SCORES[0], [0.5, 0.9], delay=3).thresholds)
    np.testing.assert_allclose(table, want, atol=1e-12)
    assert "optimality" in (tmp_path / "out" / "certificate.txt").read_text()
    assert "FAIL" not in (tmp_path / "out" / "certificate.txt").read_text()
