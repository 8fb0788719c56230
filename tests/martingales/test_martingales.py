"""Martingales against exchangeability: their bets are fair, their paths exact, false alarms as rare as promised."""

import itertools

import jax
import jax.numpy as jnp
import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np
import pytest
import reference
from cases import covering, sequences
from hypothesis import given
from hypothesis import strategies as st
from scipy import integrate

import dpconformal as dpc
from dpconformal.martingales import (
    BinnedRanks,
    ChangeAlarm,
    Composite,
    Martingale,
    Mixture,
    SimpleJumper,
    exchangeability,
    run,
    watch,
)

MARTINGALES = {
    "jumper": SimpleJumper(),
    "jumper_fast": SimpleJumper(0.3, spread=True),
    "composite": Composite(),
    "composite_shift": Composite((0.2, 0.001), spread=False),
    "mixture": Mixture(),
    "mixture_low": Mixture(nodes=5, side="low", floor=1e-3),
    "mixture_high": Mixture(nodes=5, side="high", floor=1e-300),
}
named = pytest.mark.parametrize("name", list(MARTINGALES))


def log_capital_of(martingale, p):
    """The path of a martingale by its oracle."""
    if isinstance(martingale, Mixture):
        return reference.mixture_capital(p, martingale.nodes, martingale.side, martingale.floor)
    rates = getattr(martingale, "rates", None) or (martingale.rate,)
    return np.log(np.mean([reference.jumper_capital(p, rate, martingale.spread) for rate in rates], axis=0))


@pytest.mark.core
@covering(kind=sequences(), name=MARTINGALES)
def test_paths_are_those_of_the_naive_products(name, kind):
    p = sequences()[kind]
    path = run(MARTINGALES[name], p)
    np.testing.assert_allclose(path.log_capital, log_capital_of(MARTINGALES[name], p), rtol=1e-9, atol=1e-9)
    assert path.log_capital.dtype == jnp.float64
    np.testing.assert_allclose(path.state.log_capital, path.log_capital[-1], rtol=1e-12, atol=1e-12)


@pytest.mark.core
@pytest.mark.parametrize("name", [name for name in MARTINGALES if name != "mixture_high"])
def test_the_game_is_fair_after_any_past(name):
    """
    The mean of the capital after the next number, over all numbers, is the capital before it.

    With a floor of 1e-300 most of that mean is nearer to 1 than doubles go; the test after this one has its bets.
    """
    martingale = MARTINGALES[name]
    past = np.array([0.1, 0.95, 0.9, 0.3, 0.99, 0.02])

    @jax.jit
    def after(state, p):
        return jax.vmap(lambda q: jnp.exp(martingale.observe(state, q).log_capital - state.log_capital))(p)

    state = martingale.init()
    for number in past:
        state = martingale.observe(state, number)
        floor = getattr(martingale, "floor", 0.25)
        # Bets have corners at the floor and in the middle. Between them, in log p, they are smooth.
        corners = [0, floor, 0.5, 1 - floor, 1]
        total = 0.0
        for left, right in itertools.pairwise(corners):
            x, w = np.polynomial.legendre.leggauss(60)
            share = (x + 1) / 2
            if left in (floor, 0.5) and floor < 0.1:
                near = left == floor
                a, b = (np.log(floor), np.log(0.5)) if near else (np.log(0.5), np.log(floor))
                q = np.exp(a + (b - a) * share)
                place, jacobian = (q if near else 1 - q), q * abs(b - a)
            else:
                place, jacobian = left + (right - left) * share, right - left
            total += float(np.sum(np.asarray(after(state, place)) * w / 2 * jacobian))
        assert total == pytest.approx(1, abs=1e-9)


def test_each_power_bet_is_fair_for_any_floor():
    for floor in (0.5, 1e-2, 1e-6, 1e-300):
        bets = jax.jit(jax.vmap(Mixture(nodes=6, side="low", floor=floor).bets))
        x, w = np.polynomial.legendre.leggauss(150)
        p = np.exp(np.log(floor) * (1 - x) / 2)  # between the floor and 1, evenly in log p
        above = np.sum(bets(p)[..., 0] * (p * w)[:, None], axis=0) * -np.log(floor) / 2
        np.testing.assert_allclose(above + floor * bets(np.zeros(1))[0, :, 0], 1, atol=1e-9)


def test_the_mixture_is_near_the_integral_over_all_exponents():
    p = np.random.default_rng(0).random(200) ** 1.5
    found = run(Mixture(nodes=32, side="low", floor=1e-300), p).log_capital
    for rounds in (5, 50, 200):
        scale = np.sum(np.log(p[:rounds]))
        exact = integrate.quad(lambda e, n=rounds, s=scale: np.exp(n * np.log(e) + (e - 1) * s), 0, 1)[0]
        assert found[rounds - 1] == pytest.approx(np.log(exact), abs=0.02)


@named
def test_jit_vmap_resume_and_batches_agree(name):
    martingale, p = MARTINGALES[name], np.random.default_rng(1).random((2, 3, 40))
    whole = run(martingale, p)
    assert whole.log_capital.shape == (2, 3, 40)
    np.testing.assert_allclose(whole.log_capital[1, 2], run(martingale, p[1, 2]).log_capital, rtol=1e-12, atol=1e-12)
    first = run(martingale, p[..., :15])
    rest = run(martingale, p[..., 15:], state=first.state)
    joined = np.concatenate([first.log_capital, rest.log_capital], axis=-1)
    np.testing.assert_allclose(joined, whole.log_capital, rtol=1e-12, atol=1e-12)
    state = martingale.init()
    for number in p[0, 0]:
        state = martingale.observe(state, number)
    np.testing.assert_allclose(state.log_capital, whole.log_capital[0, 0, -1], rtol=1e-12, atol=1e-12)
    inside = jax.jit(lambda own, numbers: run(own, numbers).log_capital)(martingale, p[0, 0])
    np.testing.assert_allclose(inside, whole.log_capital[0, 0], rtol=1e-12, atol=1e-12)
    assert isinstance(martingale, Martingale)
    assert run(martingale, np.zeros((3, 0))).log_capital.shape == (3, 0)


def test_a_rate_is_swept_by_vmap():
    p, rates = np.random.default_rng(2).random(50), np.array([0.01, 0.1, 1.0])
    paths = jax.vmap(lambda own: run(own, p).log_capital)(SimpleJumper(rates))
    for rate, path in zip(rates, paths, strict=True):
        np.testing.assert_allclose(path, run(SimpleJumper(rate), p).log_capital, rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(paths[2], 0, atol=1e-12)  # all jumps: nothing is bet
    with pytest.raises(ValueError, match=r"SimpleJumper.rate has shape \(3,\)"):
        SimpleJumper(rates).init()


@given(st.lists(st.floats(0, 1, width=32), min_size=1, max_size=30))
def test_capital_is_positive_finite_and_a_composite_owns_its_part_of_the_best_jumper(p):
    p = np.resize(np.array(p), 30)
    rates = (1.0, 0.1, 0.01)
    capital = np.asarray(run(Composite(rates), p).log_capital)
    assert np.isfinite(capital).all()
    best = np.max([run(SimpleJumper(rate, spread=True), p).log_capital for rate in rates], axis=0)
    assert (capital >= best - np.log(3) - 1e-12).all()
    assert (capital >= -np.log(3) - 1e-12).all()
    mirrored = np.asarray(run(Mixture(), 1 - p).log_capital)
    np.testing.assert_allclose(mirrored, run(Mixture(), 1 - (1 - p)).log_capital, rtol=1e-9, atol=1e-9)


@named
def test_many_rounds_neither_overflow_nor_lose_digits_in_float32(name):
    martingale = MARTINGALES[name]
    if getattr(martingale, "floor", 1) < 1e-30:
        with pytest.raises(ValueError, match=r"Mixture.floor = 1e-300: too small for float32"):
            run(martingale, np.zeros(3, np.float32))
        return
    fair = np.random.default_rng(3).random(30_000)
    for p in (fair, fair**0.5, np.zeros(30_000), np.ones(30_000), np.tile([0.0, 1.0], 15_000)):
        p = p.astype(np.float32)
        path = np.asarray(run(martingale, p).log_capital)
        assert path.dtype == np.float32
        assert np.isfinite(path).all()
        exact = np.asarray(run(martingale, p.astype(float)).log_capital)
        # A round errs by a few units in the last place; 1 − p is known to one of them only, of 1.
        np.testing.assert_allclose(path, exact, rtol=1e-4, atol=0.05)


def test_bad_numbers_are_refused_and_inside_jit_become_nan_for_good():
    for martingale in (SimpleJumper(), Composite(), Mixture()):
        state = martingale.init()
        for bad in (np.nan, -0.1, 1.5):
            with pytest.raises(ValueError, match=rf"p = {bad}: must lie in \[0, 1\]"):
                martingale.observe(state, bad)
            spoilt = jax.jit(martingale.observe)(state, bad)
            assert np.isnan(spoilt.log_capital)
            assert np.isnan(martingale.observe(spoilt, 0.5).log_capital)
        with pytest.raises(ValueError, match=r"p has shape \(2,\): observe takes one"):
            martingale.observe(state, [0.1, 0.2])
        with pytest.raises(ValueError, match=r"p\[1\] = nan"):
            run(martingale, [0.5, np.nan])
        with pytest.raises(ValueError, match=r"p has shape \(\)"):
            run(martingale, 0.5)
    with pytest.raises(ValueError, match=r"state.shares has shape \(1, 3\): this Composite has \(4, 5\)"):
        Composite().observe(SimpleJumper().init(), 0.5)
    with pytest.raises(ValueError, match=r"this SimpleJumper has \(1, 3\); use run for many"):
        SimpleJumper().observe(run(SimpleJumper(), np.zeros((2, 2))).state, 0.5)
    with pytest.raises(ValueError, match="state is a tuple: Mixture carries on from a Capital"):
        Mixture().observe((), 0.5)
    for make, what in {
        lambda: SimpleJumper(0.0): r"SimpleJumper.rate = 0.0: must be finite and in \(0, 1\]",
        lambda: Composite((0.1, 2.0)): r"Composite.rates\[1\] = 2.0",
        lambda: Composite(()): r"Composite.rates = \(\): pass one rate or more",
        lambda: Composite(0.1): "Composite.rates = 0.1: pass one rate or more",
        lambda: Mixture(side="left"): "Mixture.side = 'left': pass one of both, low, high",
        lambda: Mixture(nodes=0): "Mixture.nodes = 0",
        lambda: Mixture(nodes=1000): "Mixture.nodes = 1000: at most 256",
        lambda: Mixture(floor=1.0): "Mixture.floor = 1.0",
    }.items():
        with pytest.raises(ValueError, match=what):
            make()
    assert np.isnan(jax.jit(lambda rate: run(SimpleJumper(rate), [0.5]).log_capital)(-0.1)).all()
    assert np.isnan(jax.jit(lambda floor: run(Mixture(floor=floor), [0.5]).log_capital)(0.0)).all()


# The test of exchangeability


@pytest.fixture(scope="module")
def fair_ranks():
    """Ranks of many iid sequences, of scores that differ and of scores that seldom do."""
    rng = np.random.default_rng(4)
    different, tied = rng.standard_cauchy((10_000, 500)), rng.integers(0, 3, (10_000, 60)) * 1.0
    return {"continuous": dpc.diagnostics.smoothed_ranks(different), "tied": dpc.diagnostics.smoothed_ranks(tied)}


@covering(martingale=[Composite(), Mixture(4), SimpleJumper(0.1)], kind=["continuous", "tied"])
def test_false_alarms_are_as_rare_as_promised(kind, martingale, fair_ranks):
    """Of 10,000 iid sequences, a share of 1/threshold at most reaches the threshold, whatever the distribution."""
    most = np.asarray(run(martingale, fair_ranks[kind].astype(np.float32)).log_capital).max(axis=-1)
    for threshold in (20, 100):
        chance = 1 / threshold
        assert np.mean(most >= np.log(threshold)) <= chance + 3 * np.sqrt(chance * (1 - chance) / most.size)
    assert np.mean(most >= np.log(5)) > 0.02  # a gambler who never bets would pass as well


def test_the_mean_capital_of_many_gamblers_stays_one():
    p = np.random.default_rng(5).random((20_000, 20))
    for martingale in (SimpleJumper(), Composite()):  # power bets gain too seldom
        capital = np.exp(np.asarray(run(martingale, p).log_capital[:, -1]))
        assert abs(capital.mean() - 1) < 4 * capital.std() / np.sqrt(len(p))


def changed(kind, rng, rounds=1000):
    """Scores that are not exchangeable after half of the rounds."""
    scores, late = rng.normal(size=rounds), np.arange(rounds) >= rounds // 2
    return {"shift": scores + late, "spread": scores * np.where(late, 2.5, 1), "none": scores}[kind]


def test_drift_shifts_and_changes_of_spread_are_found():
    assert 0 < exchangeability(dpc.streams.drifting(2000)).alarm < 400
    rng = np.random.default_rng(6)
    shift, spread = (exchangeability(changed(kind, rng)).alarm for kind in ("shift", "spread"))
    assert 500 < shift < 620
    assert 500 < spread < 700
    assert exchangeability(changed("none", rng)).alarm == 0
    # Without bets on the spread it is not seen: what the option is for.
    assert exchangeability(changed("spread", rng), Composite(spread=False)).alarm == 0


def test_what_is_found_says_what_it_means():
    scores = np.stack([dpc.streams.drifting(600), dpc.streams.iid(600)])
    found = exchangeability(scores, threshold=50.0)
    np.testing.assert_array_equal(found.ranks, dpc.diagnostics.smoothed_ranks(scores))
    np.testing.assert_array_equal(found.log_maximum, np.maximum.accumulate(found.log_capital, axis=-1))
    assert found.alarm.shape == (2,)
    first, none = found.alarm
    assert none == 0
    assert found.log_capital[0, first - 1] >= np.log(50) > found.log_maximum[0, first - 2]
    np.testing.assert_allclose(found.p_value, np.exp(-np.maximum(found.log_maximum[:, -1], 0)))
    assert found.p_value[0] < 0.02 < found.p_value[1]
    assert "ever reaches 50 is at most 0.02" in found.guarantee
    assert exchangeability([]).alarm == 0
    assert exchangeability([]).p_value == 1
    # Finds the capital of before the first round forgotten: this gambler only loses.
    assert exchangeability(np.arange(5.0), Mixture(nodes=5, side="low")).p_value == 1
    for bad in (1.0, np.inf, np.nan):
        with pytest.raises(ValueError, match="threshold = "):
            exchangeability(scores, threshold=bad)
    with pytest.raises(ValueError, match=r"scores\[1\] = nan"):
        exchangeability([0.1, np.nan])


def test_the_picture_shows_the_capital_the_threshold_and_the_alarm():
    mpl.use("Agg")
    found = exchangeability(dpc.streams.drifting(400), threshold=50.0)
    ax = dpc.diagnostics.plot_martingale(found)
    assert f"alarm in round {found.alarm}" in ax.get_title()
    _, limit, path, mark = ax.get_lines()
    np.testing.assert_allclose(limit.get_ydata(), np.log10(50))
    np.testing.assert_allclose(path.get_ydata()[1:], found.log_capital / np.log(10))
    np.testing.assert_allclose(mark.get_xydata(), [[found.alarm, path.get_ydata()[found.alarm]]])
    ax = dpc.diagnostics.plot_martingale(dpc.streams.iid(400))
    assert "no alarm" in ax.get_title()
    other = exchangeability(dpc.streams.drifting(400), Mixture(), threshold=50.0)
    ax = dpc.diagnostics.plot_martingale({"composite": found, "mixture": other})
    assert [text.get_text() for text in ax.get_legend().get_texts()] == ["alarm at 50", "composite", "mixture"]
    plt.close("all")
    for bad, what in (
        ({}, "found is empty"),
        ({"a": found, "b": exchangeability([0.1])}, "found has thresholds"),
        (exchangeability(np.zeros((2, 5))), r"found\['capital'\].log_capital has shape \(2, 5\)"),
    ):
        with pytest.raises(ValueError, match=what):
            dpc.diagnostics.plot_martingale(bad)


# Ranks of a stream, and the alarm


@pytest.mark.core
@covering(kind=sequences(), bins=[1, 7, 64])
def test_binned_ranks_are_those_by_counting(kind, bins):
    scores = sequences(60, -3.0, 5.0)[kind]
    ranks = BinnedRanks(bins, -3.0, 5.0, seed=3)
    rank, observe, state = jax.jit(ranks.rank), jax.jit(ranks.observe), ranks.init()
    coins = []
    for t, score in enumerate(scores):
        coins.append(float(state.coin))
        expected = reference.binned_rank(scores[:t], score, coins[-1], bins, -3.0, 5.0)
        assert float(rank(state, score)) == pytest.approx(expected, abs=1e-12)
        state = observe(state, score)
    assert len(set(coins)) == len(coins)
    assert int(state.seen) == int(state.counts.sum()) == 60
    fresh = ranks.restarted(state)
    assert (int(fresh.seen), int(fresh.counts.sum())) == (60, 0)


def test_binned_ranks_of_iid_scores_are_uniform_also_in_few_bins():
    ranks = BinnedRanks(4)
    scores = dpc.streams.iid(4000)

    def one(state, score):
        return ranks.observe(state, score), ranks.rank(state, score)

    p = jax.lax.scan(one, ranks.init(), jnp.asarray(scores))[1]
    assert dpc.diagnostics.uniformity(p, 0.99).inside
    assert abs(np.corrcoef(p[1:], p[:-1])[0, 1]) < 4 / np.sqrt(4000)


@pytest.mark.core
@pytest.mark.parametrize("kind", list(sequences()))
def test_the_statistic_is_that_of_gamblers_since_each_round_and_starts_anew(kind):
    scores, rates, threshold = sequences(60)[kind], (0.1, 0.01), 200.0
    alarm = ChangeAlarm(Composite(rates), threshold, BinnedRanks(8))
    found = watch(alarm, scores)
    state, coins = alarm.ranks.init(), []
    for score in scores:
        coins.append(float(state.coin))
        state = alarm.ranks.observe(state, score)
    expected, rung, start = np.zeros(60), np.zeros(60, bool), 0
    while start < 60:
        p = [reference.binned_rank(scores[start:t], scores[t], coins[t], 8, 0, 1) for t in range(start, 60)]
        statistic = reference.gamblers_since_each_round(np.array(p), rates, True)
        end = np.append(np.flatnonzero(statistic >= threshold), len(p) - 1)[0] + 1
        expected[start : start + end], rung[start + end - 1] = statistic[:end], statistic[end - 1] >= threshold
        start += end
    np.testing.assert_allclose(found.log_statistic, np.log(expected), rtol=1e-9, atol=1e-9)
    np.testing.assert_array_equal(found.alarm, rung)
    assert int(found.state.alarms) == rung.sum()
    # In two parts, and score by score, it is the same.
    first = watch(alarm, scores[:25])
    rest = watch(alarm, scores[25:], state=first.state)
    np.testing.assert_array_equal(np.concatenate([first.alarm, rest.alarm]), found.alarm)
    observe, state = jax.jit(alarm.observe), alarm.init()
    for t, score in enumerate(scores):
        state = observe(state, score)
        assert float(state.log_statistic) == pytest.approx(np.log(expected[t]), abs=1e-9)
        assert bool(state.alarm) == rung[t]


@pytest.mark.parametrize("values", [None, 3])
def test_false_alarms_of_the_change_alarm_are_as_rare_as_promised(values):
    """From one to the next, 100 rounds pass at least in expectation; N rounds have N/100 of them at most."""
    rng, count, rounds, threshold = np.random.default_rng(7), 200, 2000, 100.0
    scores = rng.random((count, rounds)) if values is None else rng.integers(0, values, (count, rounds)) / values
    alarm = ChangeAlarm(threshold=threshold, ranks=BinnedRanks(16))
    state = jax.vmap(lambda seed: alarm.init(seed=seed))(jnp.arange(count))
    rung = np.asarray(watch(alarm, scores, state).alarm)
    alarms = rung.sum(axis=-1)
    assert alarms.mean() <= rounds / threshold + 3 * alarms.std() / np.sqrt(count)
    # Sequences without any alarm count as if they had one in the last round, which makes the mean smaller.
    first = np.where(rung.any(axis=-1), rung.argmax(axis=-1) + 1, rounds)
    assert first.mean() >= threshold - 3 * first.std() / np.sqrt(count)
    assert alarms.mean() > rounds / threshold / 20  # it does go off


def test_the_alarm_goes_off_again_and_again():
    rng = np.random.default_rng(8)
    parts = [rng.beta(2, 5, 400), rng.beta(4, 4, 400), rng.beta(12, 12, 400), rng.beta(2, 5, 400)]
    rounds = np.flatnonzero(watch(ChangeAlarm(threshold=1e4), np.concatenate(parts)).alarm) + 1
    assert [(t - 1) // 400 for t in rounds] == [1, 2, 3]
    assert all((t - 1) % 400 < 150 for t in rounds)
    drifting = watch(ChangeAlarm(threshold=1e4), dpc.streams.drifting(2000))
    assert 3 <= int(drifting.state.alarms) <= 12


def test_scores_and_states_that_do_not_fit_are_refused():
    alarm = ChangeAlarm(ranks=BinnedRanks(8, 0.0, 2.0))
    state = alarm.init()
    for bad in (np.nan, 3.0):
        with pytest.raises(ValueError, match=f"score = {bad}"):
            alarm.observe(state, bad)
        with pytest.raises(ValueError, match=rf"scores\[1\] = {bad}"):
            watch(alarm, [0.5, bad])
        spoilt = jax.jit(alarm.observe)(state, bad)
        assert np.isnan(spoilt.log_statistic)
        assert not spoilt.alarm
        after = alarm.observe(spoilt, 0.5)
        assert np.isnan(after.log_statistic)
        assert int(after.ranks.seen) == -1
    with pytest.raises(ValueError, match=r"scores has shape \(\)"):
        watch(alarm, 0.5)
    with pytest.raises(ValueError, match=r"this SimpleJumper has \(1, 3\)"):
        ChangeAlarm(SimpleJumper()).observe(state, 0.5)
    with pytest.raises(ValueError, match="state is a Capital: ChangeAlarm carries on from a Watch"):
        alarm.observe(Composite().init(), 0.5)
    with pytest.raises(ValueError, match="state is a Capital: ChangeAlarm carries on from a Watch"):
        watch(alarm, [0.5], Composite().init())
    with pytest.raises(ValueError, match=r"state.shares has shape \(4, 5\): this Composite has \(2, 4, 5\)"):
        watch(alarm, np.zeros((2, 3)), state)
    with pytest.raises(ValueError, match=r"state.counts has shape \(8,\): this BinnedRanks has \(4,\)"):
        ChangeAlarm(ranks=BinnedRanks(4)).observe(state, 0.5)
    for make, what in {
        lambda: ChangeAlarm(threshold=1.0): "ChangeAlarm.threshold = 1.0",
        lambda: ChangeAlarm(martingale=0.1): "ChangeAlarm.martingale = 0.1: pass a Martingale",
        lambda: ChangeAlarm(ranks=8): "ChangeAlarm.ranks = 8: pass a BinnedRanks",
        lambda: BinnedRanks(0): "BinnedRanks.bins = 0",
        lambda: BinnedRanks(8, 1.0, 1.0): "BinnedRanks.high = 1.0",
        lambda: BinnedRanks(8, seed=-1): "BinnedRanks.seed = -1",
    }.items():
        with pytest.raises(ValueError, match=what):
            make()


def test_hyperparameters_are_leaves_and_sizes_are_not():
    assert jax.tree.leaves(ChangeAlarm(SimpleJumper(0.2), 50.0, BinnedRanks(9, 1.0, 3.0))) == [0.2, 50.0, 1.0, 3.0, 0]
    assert Composite((0.5, 0.1)) == Composite([0.5, 0.1])
    traces = []

    @jax.jit
    def path(martingale, p):
        traces.append(1)
        return run(martingale, p).log_capital

    for rate in (0.1, 0.2):
        path(SimpleJumper(rate), jnp.zeros(3))
    assert len(traces) == 1
    assert all(
        isinstance(leaf, jax.Array) for leaf in jax.tree.leaves(ChangeAlarm().observe(ChangeAlarm().init(), 0.1))
    )
