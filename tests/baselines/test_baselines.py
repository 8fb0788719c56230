"""Every baseline against its naive oracle, and the bounds that its paper proves on adversarial scores."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import reference
from cases import BASELINES, PRIORS

import dpconformal as dpc

T = 2000
LEVELS = (0.1, 0.5, 0.9)
RNG = np.random.default_rng(11)


def alternating_bursts(length):
    """Blocks of growing length at the two ends, with noise within: what unsettles whoever trusts the recent past."""
    block = np.floor(np.sqrt(np.arange(length))) % 2
    return 0.98 * block + 0.02 * np.random.default_rng(4).random(length)


SEQUENCES = {
    "iid": RNG.beta(2, 5, T),
    "drifting": np.clip(0.5 + 0.35 * np.sin(np.arange(T) / 150) + 0.1 * RNG.standard_normal(T), 0, 1),
    "adversarial": alternating_bursts(T),
    "tied": RNG.integers(0, 5, T) / 4,
}
RATES = (0.002, 0.016, 0.128)


def mvp_uniforms(learner, rounds=T):
    """The coins that a learner will toss."""
    key = jax.random.wrap_key_data(learner.init().key, impl="threefry2x32")
    return np.asarray(
        jax.vmap(lambda t: jax.random.uniform(jax.random.fold_in(key, t), (), float))(jnp.arange(1, rounds + 1))
    )


# name: (learner for levels, oracle of (scores, level))
CASES = {
    "ogd": (
        lambda levels: dpc.OGD(levels),
        lambda s, a: reference.ogd_thresholds(s, a, lambda t: t**-0.5, a),
    ),
    "ogd_constant": (
        lambda levels: dpc.OGD(levels, rate=0.0317, initial=0.25),
        lambda s, a: reference.ogd_thresholds(s, a, lambda t: 0.0317, 0.25),
    ),
    "ogd_decaying": (
        lambda levels: dpc.OGD(levels, rate=dpc.rates.decaying(0.1, scale=0.7)),
        lambda s, a: reference.ogd_thresholds(s, a, lambda t: 0.7 * t**-0.6, a),
    ),
    "ogd_function": (
        lambda levels: dpc.OGD(levels, rate=lambda t: 1 / (3 + jnp.log(t))),
        lambda s, a: reference.ogd_thresholds(s, a, lambda t: 1 / (3 + np.log(t)), a),
    ),
    "sfogd": (
        lambda levels: dpc.SFOGD(levels),
        lambda s, a: reference.sfogd_thresholds(s, a, 3**-0.5, a),
    ),
    "aci": (
        lambda levels: dpc.ACI(levels),
        lambda s, a: reference.aci_thresholds(s, a, 0.005, 100),
    ),
    "aci_higher": (
        lambda levels: dpc.ACI(levels, rate=0.0731, window=37, warmup=1, convention="higher", outside="infinite"),
        lambda s, a: reference.aci_thresholds(s, a, 0.0731, 37, 1, "higher", "infinite"),
    ),
    "aci_extremes": (
        lambda levels: dpc.ACI(levels, rate=0.05, window=20, convention="inverted_cdf", outside="extremes"),
        lambda s, a: reference.aci_thresholds(s, a, 0.05, 20, 10, "inverted_cdf", "extremes"),
    ),
    "dtaci": (
        lambda levels: dpc.DtACI(levels, rates=RATES, window=50, horizon=80),
        lambda s, a: reference.dtaci_thresholds(s, a, RATES, 50, 80),
    ),
    "agaci": (
        lambda levels: dpc.AgACI(levels, rates=RATES, window=50),
        lambda s, a: reference.agaci_thresholds(s, a, RATES, 50),
    ),
    "pid": (
        lambda levels: dpc.PID(levels, rate=0.0317, saturation=0.3, window=40),
        lambda s, a: reference.pid_thresholds(s, a, 0.0317, None, 0.3, window=40),
    ),
    "pid_constant": (
        lambda levels: dpc.PID(levels, rate=0.0317, integral=0.7, saturation=0.3, window=None, initial=levels),
        lambda s, a: reference.pid_thresholds(s, a, 0.0317, 0.7, 0.3, a),
    ),
    "pid_tracker": (
        lambda levels: dpc.PID(levels, rate=0.0517, integral=0, window=30),
        lambda s, a: reference.pid_thresholds(s, a, 0.0517, 0.0, 1.0, window=30),
    ),
}


def thresholds(learner, scores, levels=LEVELS, **options):
    return np.asarray(dpc.replay(learner, scores, levels, **options).thresholds)


@pytest.mark.core
@pytest.mark.parametrize("name", CASES)
def test_agrees_with_its_oracle(name):
    make, oracle = CASES[name]
    # DtACI's paper has a learning rate for levels inside (0, 1) only.
    levels = LEVELS if name == "dtaci" else (0.0, *LEVELS, 1.0)
    learner = make(np.array(levels))
    for sequence, scores in SEQUENCES.items():
        expected = np.stack([oracle(scores, level) for level in levels], axis=1)
        actual = thresholds(learner, scores, levels)
        np.testing.assert_allclose(actual, expected, atol=1e-9, rtol=1e-10, err_msg=sequence)  # tan is steep


@pytest.mark.core
@pytest.mark.parametrize("lifetime", [8, 3])
def test_saocp_agrees_with_its_oracle(lifetime):
    """Round by round from the same past: the method itself amplifies rounding errors, see the oracle."""
    levels = (0.0, *LEVELS, 1.0)
    learner = dpc.SAOCP(np.array(levels), lifetime=lifetime)
    for sequence, scores in SEQUENCES.items():
        actual = thresholds(learner, scores, levels)
        for a, level in enumerate(levels):
            played = actual[:, a]
            expected = reference.saocp_thresholds(scores, level, level, lifetime, played)
            np.testing.assert_allclose(played, expected, atol=1e-9, rtol=0, err_msg=sequence)
            alone = reference.saocp_thresholds(scores[:100], level, level, lifetime)
            np.testing.assert_allclose(played[:100], alone, atol=1e-9, rtol=0, err_msg=sequence)


@pytest.mark.core
@pytest.mark.parametrize("normalize", [True, False])
def test_mvp_agrees_with_its_oracle(normalize):
    rate = 0.5 if normalize else 0.05
    levels = (0.0, *LEVELS, 1.0)
    learner = dpc.MVP(np.array(levels), buckets=20, eta=rate, normalize=normalize, seed=3)
    uniforms = mvp_uniforms(learner)
    for sequence, scores in SEQUENCES.items():
        expected = np.stack(
            [reference.mvp_thresholds(scores, level, 20, rate, normalize, uniforms) for level in levels], axis=1
        )
        np.testing.assert_allclose(thresholds(learner, scores, levels), expected, atol=1e-9, rtol=0, err_msg=sequence)


@pytest.mark.core
@pytest.mark.parametrize("normalize", [True, False])
def test_mvp_with_groups_agrees_with_its_oracle(normalize):
    rows = RNG.random((T, 3)) < [0.6, 0.3, 0.1]  # overlapping; some rounds belong to none
    rate = 0.5 if normalize else 0.05
    learner = dpc.MVP(np.array([0.9]), buckets=12, eta=rate, normalize=normalize, groups=3)
    uniforms = mvp_uniforms(learner)
    for sequence, scores in SEQUENCES.items():
        expected = reference.mvp_thresholds(scores, 0.9, 12, rate, normalize, uniforms, rows)
        actual = thresholds(learner, scores, [0.9], context=rows)[:, 0]
        np.testing.assert_allclose(actual, expected, atol=1e-9, rtol=0, err_msg=sequence)


def test_pid_with_scorecasts_agrees_with_its_oracle():
    learner = dpc.PID(np.array(LEVELS), rate=0.0317, integral=1, saturation=0.3, scorecast=True, window=30)
    for sequence, scores in SEQUENCES.items():
        casts = np.concatenate([[0.5], 0.9 * scores[:-1]])
        expected = np.stack(
            [reference.pid_thresholds(scores, a, 0.0317, 1.0, 0.3, 0.0, 30, casts) for a in LEVELS], axis=1
        )
        actual = thresholds(learner, scores, context=casts)
        np.testing.assert_allclose(actual, expected, atol=1e-9, rtol=0, err_msg=sequence)
    per_level = np.repeat(casts[:, None], 3, axis=1)
    np.testing.assert_array_equal(thresholds(learner, scores, context=per_level), actual)


@pytest.mark.core
def test_fading_and_sliding_beliefs_agree_with_their_oracles():
    # Level 1 asks where the mass ends, which for fading sums is a matter of rounding: see the test of long sums.
    levels = np.array([0.0, 0.1, 0.37, 0.5, 0.9, 0.96])
    twin = PRIORS["uniform"][1]
    for sequence, scores in SEQUENCES.items():
        expected = reference.weighted_thresholds(scores, levels, 0.97, 0.0)
        expected[0] = levels
        np.testing.assert_array_equal(thresholds(dpc.DiscountedERM(0.97), scores, levels), expected, err_msg=sequence)
        expected = reference.weighted_thresholds(scores, levels, 0.97, 1.0)
        np.testing.assert_array_equal(thresholds(dpc.NExCP(0.97), scores, levels), expected, err_msg=sequence)
        levels_too = np.append(levels, 1.0)
        expected = reference.sliding_erm_thresholds(scores, levels_too, 30, twin)
        np.testing.assert_allclose(
            thresholds(dpc.SlidingERM(30), scores, levels_too), expected, atol=1e-15, rtol=0, err_msg=sequence
        )


def test_pid_by_hand():
    """Steps are shares of the spread of the two scores before, and the integrator knows all misses but the latest."""
    # η = 0.5, K = 1, C = 1, level 0.8, so that a miss moves the tracker by 0.4 S and a hit by -0.1 S.
    # round  score  tracker         x of the integrator, and t   threshold       S before
    # 1      -2     0               0                            0   covers      none
    # 2       4     0               0                        1   0   misses      one score: 0
    # 3       1     0              -0.2                      2   -tan(0.1 ln 2)       misses, S = 6
    # 4       6     0.4 · 6 = 2.4  -0.2 + 0.8 = 0.6          3   2.4 + tan(0.2 ln 3)  misses, S = 4 - 1 = 3
    # 5       0     2.4 + 1.2      0.6 + 0.8 = 1.4           4   3.6 + tan(0.35 ln 4) covers, S = 6 - 1 = 5
    # 6             3.6 - 0.5      1.4 + 0.8 = 2.2           5   3.1 + tan(0.44 ln 5)
    integrals = np.tan(np.array([0, 0, -0.1, 0.2, 0.35, 0.44]) * np.log([1, 1, 2, 3, 4, 5]))
    by_hand = np.array([0, 0, 0, 2.4, 3.6, 3.1]) + integrals
    learner = dpc.PID([0.8], rate=0.5, integral=1, window=2, low=-10, high=10)
    found = thresholds(learner, [-2.0, 4.0, 1.0, 6.0, 0.0, 0.0], [0.8])[:, 0]
    np.testing.assert_allclose(found, by_hand, atol=1e-12)


@pytest.mark.parametrize("options", [{}, {"integral": 0}, {"window": None, "integral": 1.0}, {"scorecast": True}])
def test_pid_on_signed_scores_does_not_depend_on_the_support(options):
    """Mean thresholds were 1.4, 3 and 25 for low = -5, -50 and -500."""
    scores = np.clip(np.random.default_rng(0).normal(size=400), -4, 4)
    told = {"context": np.zeros(400)} if "scorecast" in options else {}
    found = [
        thresholds(dpc.PID([0.9], low=low, high=high, **options), scores, [0.9], **told)
        for low, high in ((-5, 5), (-50, 5), (-500, 700))
    ]
    np.testing.assert_array_equal(found[1], found[0])
    np.testing.assert_array_equal(found[2], found[0])
    np.testing.assert_allclose(found[0][100:].mean(), 1.28, atol=0.35)


GRIDS = (dpc.OGD, dpc.SFOGD, dpc.SAOCP, dpc.ACI, dpc.DtACI, dpc.AgACI, dpc.PID, dpc.MVP)


@pytest.mark.parametrize("kind", GRIDS)
def test_a_level_that_is_not_in_the_grid_is_refused(kind):
    """It was answered by the nearest one: OGD([0.5]) covered 50 % under the name of 0.99."""
    learner, scores = kind([0.9, 0.5]), SEQUENCES["iid"][:60]
    way_out = (
        rf"not in the grid of this {kind.__name__}, \[0\.9, 0\.5\]; .*{kind.__name__}\(\[0\.5, 0\.99\]\).*MultiOGD"
    )
    with pytest.raises(ValueError, match=rf"levels\[1\] = 0\.99: {way_out}"):
        dpc.replay(learner, scores, [0.5, 0.99])
    with pytest.raises(ValueError, match=rf"levels\[1\] = 0\.99: {way_out}"):
        learner.quantile(learner.init(), [0.5, 0.99])
    by_round = np.full((60, 1), 0.9)
    by_round[7] = 0.8
    with pytest.raises(ValueError, match=r"levels\[7, 0\] = 0\.8: not in the grid"):
        dpc.replay(learner, scores, by_round)
    traced = np.asarray(
        jax.jit(lambda own, levels: dpc.replay(own, scores, levels).thresholds)(learner, np.array([0.5, 0.99]))
    )
    assert np.isfinite(traced[:, 0]).all()
    assert np.isnan(traced[:, 1]).all()


def test_levels_of_the_grid_in_any_order_number_and_precision():
    scores, grid = SEQUENCES["iid"][:60], np.array([0.9, 0.05, 0.3])
    own = thresholds(dpc.OGD(grid), scores, grid)
    asked = [0.3, 0.9, 0.9, 0.1 + 0.2, (1 - 0.9) / 2]  # 0.30000000000000004 and 0.04999999999999999
    np.testing.assert_array_equal(thresholds(dpc.OGD(grid), scores, asked), own[:, [2, 0, 0, 2, 1]])
    np.testing.assert_array_equal(thresholds(dpc.OGD(grid), scores, np.float32(asked)), own[:, [2, 0, 0, 2, 1]])
    rough = thresholds(dpc.OGD(np.float32(grid)), scores, asked)
    np.testing.assert_allclose(rough, own[:, [2, 0, 0, 2, 1]], atol=1e-5)
    narrow = thresholds(dpc.OGD(grid), scores.astype(np.float32), asked)
    np.testing.assert_allclose(narrow, own[:, [2, 0, 0, 2, 1]], atol=1e-5)
    close = [0.5, np.nextafter(0.5, 1)]  # both in the grid: each is answered by itself
    both = thresholds(dpc.OGD(close, initial=[0.1, 0.2]), scores[:1], close)
    np.testing.assert_array_equal(both, [[0.1, 0.2]])


@pytest.mark.parametrize("name", ["OGD", "MVP"])
def test_by_name_queries_go_to_the_nearest_level(name):
    plain, kind = getattr(dpc, name), getattr(dpc, f"Multi{name}")
    grid = np.linspace(0, 1, 50)
    queries = np.array([0.0, 0.013, 0.5, 0.777, 1.0])
    scores = SEQUENCES["iid"][:200]
    own = thresholds(kind(grid), scores, grid)
    np.testing.assert_array_equal(thresholds(plain(grid), scores, grid), own)
    expected = own[:, [reference.nearest_level(grid, q) for q in queries]]
    np.testing.assert_array_equal(thresholds(kind(grid), scores, queries), expected)


def test_what_asks_for_other_levels_says_which():
    """ACI([0.9]) covered 80 % under a score with two sides, each of which asks for 0.95."""
    labels = np.random.default_rng(0).normal(size=60)
    sides = r"levels\[0\] = 0\.95: .*\[0\.9\]: Signed has two sides, and asks each for .*; .*ACI\(\[0\.95\]\)"
    with pytest.raises(ValueError, match=sides):
        dpc.conformalize(dpc.ACI([0.9], low=-5, high=5), dpc.scores.Signed(), np.zeros(60), labels, [0.9])
    with pytest.raises(ValueError, match=sides):
        dpc.Online(dpc.ACI([0.9], low=-5, high=5), dpc.scores.Signed()).predict_set(0.0, [0.9])
    found = dpc.conformalize(dpc.ACI([0.95], low=-5, high=5), dpc.scores.Signed(), np.zeros(60), labels, [0.9])
    assert found.thresholds.shape == (2, 60, 1)
    with pytest.raises(ValueError, match=r"crps asks for 256 levels; take a run of a belief"):
        dpc.metrics.crps(dpc.replay(dpc.ACI([0.9]), SEQUENCES["iid"][:60], [0.9]))


# What an adversary plays when it has seen the threshold of the round.
ADVERSARIES = {
    "just_above": lambda r, t: jnp.where(r < 0.99, jnp.maximum(r, 0.001) + 0.005, 0.5),
    "mirror": lambda r, t: jnp.where(r > 0.5, 0.01, 0.99),
    "bursts": lambda r, t: jnp.where(jnp.floor(jnp.sqrt(t)) % 2 == 0, 0.02, 0.98),
    "noise_then_shock": lambda r, t: jnp.where(t % 100 < 90, 0.1 + 0.001 * (t % 7), jnp.clip(r, 0, 1) * 0.5 + 0.49),
}


def play(learner, adversary, level, rounds):
    """Share of covered rounds against an adversary that moves second."""

    @jax.jit
    def run(learner, state):
        def one(state, t):
            threshold = learner.quantile(state, jnp.array([level]))[0]
            score = jnp.clip(adversary(threshold, t), 0.001, 1.0)
            return learner.observe(state, score), score <= threshold

        return jax.lax.scan(one, state, jnp.arange(1.0, rounds + 1))

    return np.asarray(run(learner, learner.init(rounds=rounds))[1])


BOUNDS = {
    # name: (learner for a level, bound on |coverage frequency - level| after T rounds)
    "aci": (lambda a: dpc.ACI([a], rate=0.03, warmup=1), lambda a, t: (max(a, 1 - a) + 0.03) / (0.03 * t)),
    "aci_infinite": (
        lambda a: dpc.ACI([a], rate=0.2, window=7, warmup=1, outside="infinite", convention="higher"),
        lambda a, t: (max(a, 1 - a) + 0.2) / (0.2 * t),
    ),
    "ogd_constant": (lambda a: dpc.OGD([a], rate=0.05), lambda a, t: (1 + 0.05) / (0.05 * t)),
    "ogd": (lambda a: dpc.OGD([a]), lambda a, t: 2 / np.sqrt(t)),
    "ogd_decaying": (lambda a: dpc.OGD([a], rate=dpc.rates.decaying(0.2)), lambda a, t: 2 / (t * t**-0.7)),
    "pid_tracker": (
        lambda a: dpc.PID([a], rate=0.05, integral=0, window=None, initial=a),
        lambda a, t: (1 + 0.05) / (0.05 * t),
    ),
    "pid": (
        lambda a: dpc.PID([a], rate=0.0, saturation=0.2, outside="infinite"),
        lambda a, t: np.pi * 0.2 / (2 * np.log(t)) + 4 / t,
    ),
}


@pytest.mark.parametrize("name", BOUNDS)
def test_coverage_frequency_stays_within_its_bound(name):
    make, bound = BOUNDS[name]
    rounds, skipped = 3000, 1 if "aci" in name else 0
    for level in (0.1, 0.9):
        for adversary, strategy in ADVERSARIES.items():
            covered = play(make(level), strategy, level, rounds)[skipped:]
            for t in (50, 500, len(covered)):
                error = abs(covered[:t].mean() - level)
                assert error <= bound(level, t) + 1e-12, (adversary, level, t)


def test_a_bound_can_be_missed():
    """The harness above is able to fail: a window without adaptation loses to the adversary."""
    covered = play(dpc.ACI([0.9], rate=0.0, window=20, warmup=1), ADVERSARIES["just_above"], 0.9, 1000)
    assert abs(covered.mean() - 0.9) > 0.5


@pytest.mark.parametrize("groups", [1, 3])
def test_mvp_covers_every_bucket_of_every_group(groups):
    """E max |excess| ≤ 2√(T ln(2 · groups · buckets)), the scores being chosen by one who does not see the coin."""
    rounds, buckets, level = 2000, 20, 0.8
    bound = 2 * np.sqrt(rounds * np.log(2 * groups * buckets))
    eta = np.sqrt(np.log(2 * groups * buckets) / rounds)
    rng = np.random.default_rng(5)
    rows = rng.random((rounds, groups)) < 0.5 if groups > 1 else None
    hostile = {
        "bursts": (np.floor(buckets * alternating_bursts(rounds)) + 0.5) / buckets,
        "ends": rng.choice([0.5, buckets - 0.5], rounds) / buckets,
        "climbing": (np.floor(np.linspace(0, buckets - 0.01, rounds)) + 0.5) / buckets,
    }
    for name, scores in hostile.items():

        def worst(seed, scores=scores):
            learner = dpc.MVP([level], buckets=buckets, eta=eta, normalize=False, groups=groups, seed=seed)
            state = dpc.replay(learner, jnp.asarray(np.minimum(scores, 1)), [level], context=rows).state
            return jnp.max(jnp.abs((1 - level) * state.counts.astype(float) - state.misses.astype(float)))

        found = np.asarray(jax.vmap(worst)(jnp.arange(16)))
        assert found.mean() + 3 * found.std() / 4 <= bound, name
        assert found.mean() > bound / 100  # the bound is about something


def test_mvp_groups_are_covered_where_one_group_is_not_enough():
    """A small group of large scores: covered at its own rate only by the method that knows of it."""
    rng = np.random.default_rng(6)
    small = rng.random(6000) < 0.1
    scores = np.where(small, rng.uniform(0.6, 1, 6000), rng.uniform(0, 0.5, 6000))
    rows = np.stack([np.ones(6000, bool), small], axis=1)
    aware = thresholds(dpc.MVP([0.8], buckets=40, groups=2), scores, [0.8], context=rows)[3000:, 0]
    blind = thresholds(dpc.MVP([0.8], buckets=40), scores, [0.8])[3000:, 0]
    late, members = scores[3000:], small[3000:]
    assert (late <= blind)[members].mean() < 0.3
    assert abs((late <= aware)[members].mean() - 0.8) < 4 * np.sqrt(0.16 / members.sum())
    assert abs((late <= aware).mean() - 0.8) < 0.03


def test_nexcp_covers_exchangeable_scores():
    scores = np.random.default_rng(8).beta(2, 5, (4000, 25))
    run = dpc.replay(dpc.NExCP(0.9), scores, [0.5, 0.7, 0.85])
    covered = np.asarray(scores[..., None] <= run.thresholds)[:, -1]
    error = 3 * np.sqrt(0.25 / 4000)
    assert (covered.mean(axis=0) >= np.array([0.5, 0.7, 0.85]) - error).all()
    assert (covered.mean(axis=0) <= np.array([0.5, 0.7, 0.85]) + error + 0.1).all()


def test_forgetful_methods_follow_a_shift_and_lasting_ones_do_not():
    rng = np.random.default_rng(9)
    scores = np.concatenate([rng.uniform(0, 0.3, 1500), rng.uniform(0.6, 0.9, 500)])
    for learner, follows in (
        (dpc.ERM(), False),
        (dpc.SlidingERM(100), True),
        (dpc.DiscountedERM(0.98), True),
        (dpc.ACI([0.5], window=100), True),
        (dpc.DtACI([0.5]), True),
        (dpc.AgACI([0.5]), True),
        (dpc.SAOCP([0.5]), True),
        (dpc.PID([0.5], rate=0.05), True),
    ):
        late = thresholds(learner, scores, [0.5])[-250:, 0]
        assert (abs(np.mean(scores[-250:] <= late) - 0.5) < 0.1) == follows, learner


def test_crossings_belong_to_methods_that_follow_levels_apart():
    scores = RNG.beta(2, 5, 1500)
    levels = np.linspace(0.1, 0.9, 9)
    for learner in (dpc.Exact(), dpc.Quantized(64), dpc.ERM(), dpc.SlidingERM(), dpc.DiscountedERM(), dpc.NExCP()):
        assert dpc.metrics.crossings(dpc.replay(learner, scores, levels)).rounds == 0
    for learner in (dpc.OGD(levels), dpc.SFOGD(levels), dpc.SAOCP(levels), dpc.MVP(levels), dpc.PID(levels)):
        assert dpc.metrics.crossings(dpc.replay(learner, scores, levels)).rounds > 0
    hostile = alternating_bursts(1500)  # where levels adapt by leaps
    for learner in (dpc.ACI(levels, rate=0.05), dpc.DtACI(levels), dpc.AgACI(levels)):
        assert dpc.metrics.crossings(dpc.replay(learner, hostile, levels)).rounds > 0


def test_hyperparameters_are_swept_by_vmap():
    scores = SEQUENCES["drifting"][:200]
    rates = jnp.array([0.001, 0.01, 0.1])
    swept = jax.vmap(lambda g: dpc.replay(dpc.ACI(LEVELS, rate=g, window=20), scores, LEVELS).thresholds)(rates)
    alone = [thresholds(dpc.ACI(LEVELS, rate=float(g), window=20), scores) for g in rates]
    np.testing.assert_allclose(swept, alone, rtol=0, atol=1e-14)
    levels = jnp.array([[0.2, 0.6], [0.3, 0.95]])
    swept = jax.vmap(lambda own: dpc.replay(dpc.OGD(own), scores, own).thresholds)(levels)
    np.testing.assert_allclose(swept, [thresholds(dpc.OGD(own), scores, own) for own in levels], rtol=0, atol=1e-14)
    scale = jax.vmap(lambda c: dpc.replay(dpc.OGD(LEVELS, rate=dpc.rates.Power(c)), scores, LEVELS).thresholds)
    np.testing.assert_allclose(
        scale(rates)[1], thresholds(dpc.OGD(LEVELS, rate=dpc.rates.inverse_sqrt(0.01)), scores), rtol=0, atol=1e-14
    )


def test_states_of_a_batch_may_have_their_own_coins():
    learner = dpc.MVP([0.9], buckets=10)
    states = jax.vmap(lambda seed: learner.init(seed=seed))(jnp.arange(2))
    scores = SEQUENCES["iid"][:300]
    run = dpc.replay(learner, np.stack([scores, scores]), [0.9], state=states)
    assert (run.thresholds[0] != run.thresholds[1]).any()
    other = dpc.MVP([0.9], buckets=10, seed=1)
    np.testing.assert_array_equal(run.thresholds[1], thresholds(other, scores, [0.9]))


def test_context_of_batches_and_online():
    rows = RNG.random((2, 50, 2)) < 0.5
    scores = np.stack([SEQUENCES["iid"][:50], SEQUENCES["drifting"][:50]])
    learner = dpc.MVP([0.9], buckets=10, groups=2)
    batch = dpc.replay(learner, scores, [0.9], context=rows)
    shared = dpc.replay(learner, scores, [0.9], context=rows[1])
    for i in range(2):
        alone = dpc.replay(learner, scores[i], [0.9], context=rows[i])
        np.testing.assert_array_equal(batch.thresholds[i], alone.thresholds)
    np.testing.assert_array_equal(shared.thresholds[1], batch.thresholds[1])
    state = learner.init()
    for t in range(50):
        np.testing.assert_array_equal(learner.quantile(state, [0.9], context=rows[0, t]), batch.thresholds[0, t])
        state = learner.observe(state, scores[0, t], context=rows[0, t])
    summary = dpc.replay(learner, scores, [0.9], context=rows, keep="summary")
    np.testing.assert_array_equal(summary.covered, (scores[..., None] <= batch.thresholds).sum(axis=1))


def test_saocp_makes_room_for_later_rounds():
    scores = SEQUENCES["iid"][:70]
    learner = dpc.SAOCP([0.5])
    whole = dpc.replay(learner, scores, [0.5])
    first = dpc.replay(learner, scores[:5], [0.5])
    assert first.state.births.size < whole.state.births.size
    state = first.state
    for score in scores[5:]:
        state = learner.observe(state, score)
    np.testing.assert_allclose(state.answer, whole.state.answer, rtol=0, atol=1e-12)
    crowded = jax.lax.scan(lambda s, x: (learner.observe(s, x), None), first.state, jnp.asarray(scores[5:]))[0]
    assert np.isnan(learner.quantile(crowded, [0.5])).all()  # no room inside jit: nothing plausible


@pytest.mark.parametrize("name", BASELINES)
def test_a_shifted_and_stretched_support_shifts_and_stretches_the_thresholds(name):
    """By factors of two and small whole shifts, so that rounding does not come into it."""
    scores, levels = np.round(SEQUENCES["drifting"][:300], 6), (0.1, 0.5, 0.9)
    unit = thresholds(BASELINES[name], scores, levels)
    support = {"low": -4.0, "high": 4.0} | ({"initial": -4.0} if name == "pid" else {})  # PID starts at 0 otherwise
    wide = thresholds(dataclasses.replace(BASELINES[name], **support), 8 * scores - 4, levels)
    np.testing.assert_allclose(wide, 8 * unit - 4, rtol=0, atol=1e-9)


def test_saocp_does_not_depend_on_the_rounds_to_come():
    """Bit by bit: the least difference would grow."""
    scores, levels, learner = alternating_bursts(1200), [0.5, 0.9], dpc.SAOCP([0.5, 0.9])
    whole = thresholds(learner, scores, levels)
    np.testing.assert_array_equal(thresholds(learner, scores[:777], levels), whole[:777])
    first = dpc.replay(learner, scores[:300], levels)
    np.testing.assert_array_equal(thresholds(learner, scores[300:], levels, state=first.state), whole[300:])


def test_a_mixture_of_equal_thresholds_is_that_threshold():
    np.testing.assert_array_equal(thresholds(dpc.SAOCP([1.0]), np.ones(30), [1.0]), 1)
    tied = np.random.default_rng(1).integers(1, 5, 1000) / 7
    short = tied[:, None] - thresholds(dpc.AgACI([0.5, 0.9]), tied, [0.5, 0.9])
    assert not ((short > 0) & (short < 1e-12)).any()


def test_dtaci_with_one_expert_is_aci():
    scores = np.random.default_rng(0).random(1000)
    alone = dpc.DtACI([0.5, 0.9], rates=[0.1], window=10)
    plain = dpc.ACI([0.5, 0.9], rate=0.1, window=10, convention="inverted_cdf")
    np.testing.assert_array_equal(thresholds(alone, scores, [0.5, 0.9]), thresholds(plain, scores, [0.5, 0.9]))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_long_fading_sums_reach_what_they_should(dtype):
    scores = np.random.default_rng(0).random(40_000).astype(dtype)
    levels = np.array([0.5, 0.999, 1.0], dtype)
    found = thresholds(dpc.DiscountedERM(0.9999), scores, levels)
    assert np.isfinite(found).all()
    weights = 0.9999 ** np.arange(scores.size - 2, -1, -1.0)
    past, tolerance = scores[:-1], 1e-11 if dtype == np.float64 else 1e-3
    for threshold, level in zip(found[-1], levels, strict=True):
        above, at_least = (weights[keep].sum() / weights.sum() for keep in (past > threshold, past >= threshold))
        assert above <= 1 - level + tolerance
        assert at_least >= 1 - level - tolerance
    assert np.isinf(thresholds(dpc.NExCP(0.9999), scores, levels)[:, 2]).all()
    assert np.isinf(dpc.NExCP(0.9999).quantile(dpc.replay(dpc.NExCP(0.9999), scores[:9], levels).state, [1.0])).all()


def test_a_tracker_with_a_window_still_tracks():
    scores = 0.95 + 0.001 * (np.arange(2000) % 7)
    covered = scores[:, None] <= thresholds(dpc.PID([0.9], integral=0, window=50, initial=0.95), scores, [0.9])
    assert abs(covered.mean() - 0.9) < 0.02


NONSENSE = {
    "aci rate": lambda x: dpc.ACI([0.9], rate=-x, warmup=2),
    "aci level": lambda x: dpc.ACI(jnp.stack([1 + x]), warmup=2),
    "aci initial": lambda x: dpc.ACI([0.9], initial=jnp.stack([50 * x]), warmup=2),
    "dtaci rates": lambda x: dpc.DtACI([0.9], rates=jnp.stack([-x, x]), warmup=2),
    "dtaci level": lambda x: dpc.DtACI(jnp.stack([1 + x]), warmup=2),
    "agaci rates": lambda x: dpc.AgACI([0.9], rates=jnp.stack([-x, x]), warmup=2),
    "sfogd rate": lambda x: dpc.SFOGD([0.9], rate=-x),
    "ogd rate": lambda x: dpc.OGD([0.9], rate=dpc.rates.Power(-x)),
    "ogd initial": lambda x: dpc.OGD([0.9], initial=jnp.stack([50 * x])),
    "ogd decaying": lambda x: dpc.OGD([0.9], rate=dpc.rates.decaying(-0.2 * x)),
    "ogd ends": lambda x: dpc.OGD([0.9], high=-x),
    "pid rate": lambda x: dpc.PID([0.9], rate=-x),
    "pid integral": lambda x: dpc.PID([0.9], integral=-x),
    "pid saturation": lambda x: dpc.PID([0.9], saturation=-x),
    "mvp eta": lambda x: dpc.MVP([0.9], buckets=5, eta=-x),
    "mvp level": lambda x: dpc.MVP(jnp.stack([1 + x]), buckets=5),
    "fading discount": lambda x: dpc.DiscountedERM(1 + x),
    "nexcp discount": lambda x: dpc.NExCP(-x),
}


@pytest.mark.parametrize("name", NONSENSE)
def test_traced_nonsense_is_nan(name):
    scores = SEQUENCES["iid"][:6]
    result = jax.jit(lambda x: dpc.replay(NONSENSE[name](x), scores, [0.9]).thresholds)(1.0)
    first = 1 if name == "fading discount" else 0  # with no score at all it is the prior that answers
    assert np.isnan(result[first:]).all()


def test_a_traced_scorecast_that_is_nan_spoils_what_follows():
    learner, scores = dpc.PID([0.9], scorecast=True), SEQUENCES["iid"][:6]
    casts = jnp.full(6, 0.3).at[2].set(jnp.nan)
    result = jax.jit(lambda casts: dpc.replay(learner, scores, [0.9], context=casts).thresholds)(casts)
    assert np.isfinite(result[:2]).all()
    assert np.isnan(result[2:]).all()


def test_learners_are_equal_by_their_hyperparameters():
    assert dpc.OGD([0.5, 0.9]) == dpc.OGD(np.array([0.5, 0.9]))
    assert dpc.OGD([0.5, 0.9]) != dpc.OGD([0.5, 0.8])
    assert dpc.OGD([0.5, 0.9]) != dpc.OGD([0.5])
    assert dpc.OGD([0.5]) != dpc.SFOGD([0.5])
    assert dpc.ACI([0.5], window=5) != dpc.ACI([0.5], window=6)
    assert dpc.OGD([0.5]) != 3


def test_the_dead_have_no_say_in_saocp():
    """Whatever their wealth has come to: those of an odd lifetime wait for their successor."""
    learner = dpc.SAOCP([0.5], lifetime=1)
    state = learner.prepare(dpc.replay(learner, SEQUENCES["drifting"][:43], [0.5]).state, 2)
    dead = np.asarray(state.births) == 42  # it lived in rounds 42 and 43, and keeps its slot until round 46
    living = np.isin(state.births, [32, 40, 44])
    assert dead.any()
    assert (state.wealth[:, living] > 0).any()  # so that it is wealth that decides
    huge = {name: jnp.where(dead, jnp.inf, getattr(state, name)) for name in ("gains", "bets", "wealth")}
    poor, rich = (learner.observe(one, 0.3).answer for one in (state, state._replace(**huge)))
    assert np.isfinite(poor).all()
    np.testing.assert_array_equal(rich, poor)


def test_gains_of_saocp_that_are_all_rounding_are_none():
    """Finds a sum of gains that is 1e-16 in the place of 0: its expert would be the only rich one, and decide alone."""
    learner = dpc.SAOCP([0.5])
    state = learner.observe(learner.init(), 0.2)
    second = np.asarray(state.births) == 2  # it has begun further up, and gains by a high score
    gain = np.where(second, learner.observe(state, 0.9).gains, 0)
    assert gain.max() > 0.1
    even, nearly = (
        learner.observe(state._replace(gains=jnp.where(second, rest - gain, 0)), 0.9) for rest in (0, 2e-16)
    )
    np.testing.assert_array_equal(nearly.gains[:, second], 0)
    np.testing.assert_array_equal(nearly.answer, even.answer)
