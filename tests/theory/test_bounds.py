"""Bounds: none is broken by random, exhaustive or searched sequences; each has its rate, and comes close."""

import functools
import itertools
import math
from fractions import Fraction

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import reference
from cases import BELIEFS, PRIORS, sequences

import dpconformal as dpc
from dpconformal import theory
from dpconformal.theory import certificate, path
from dpconformal.theory.bounds import bin_cost
from dpconformal.theory.path import discounted_regret, running_regret

LEVELS = np.array([0.0, 0.1, 0.3, 0.5, 0.9, 1.0])


def families(rng, count, rounds):
    """Random sequences of six kinds, `count` in all."""
    size = (-(-count // 6), rounds)
    kinds = [
        rng.random(size),
        (rng.random(size) < rng.random((size[0], 1))).astype(float),
        rng.beta(0.3, 0.3, size),
        (np.arange(rounds) + rng.integers(0, 2, (size[0], 1))) % 2 + 0.0 * rng.random(size),
        np.clip(np.cumsum(0.2 * rng.standard_normal(size), axis=1) + 0.5, 0, 1),
        rng.choice([0.0, 0.5, 1.0], size),
    ]
    return np.concatenate(kinds)[:count]


@pytest.mark.parametrize(
    ("learner", "bound"),
    [
        (dpc.Exact(), lambda T: theory.regret_bound(T, LEVELS)),
        (dpc.Quantized(5), lambda T: theory.quantized_regret_bound(T, LEVELS, 5)),
        (dpc.Quantized(), lambda T: theory.quantized_regret_bound(T, LEVELS)),
        (dpc.Exact(discount=0.8), lambda T: theory.discounted_regret_bound(T, LEVELS, 0.8)),
        (
            dpc.Exact(discount=0.8, schedule=dpc.schedules.Constant(0.1)),
            lambda T: theory.discounted_regret_bound(T, LEVELS, 0.8, weight=0.1),
        ),
    ],
    ids=["theorem 2", "theorem 5", "theorem 5, √T bins", "theorem 6", "theorem 6, other λ"],
)
def test_no_random_sequence_breaks_a_bound(learner, bound):
    """A hundred thousand for each theorem."""
    rng, rounds, worst = np.random.default_rng(0), 24, -np.inf
    for _ in range(10):
        run = dpc.replay(learner, families(rng, 10_000, rounds), LEVELS)
        beta = learner.discount
        found = dpc.metrics.regret(run) if beta is None else dpc.metrics.discounted_regret(run, beta)
        worst = max(worst, np.max(found - bound(rounds)))
    assert worst <= 1e-9


def test_no_short_sequence_of_two_or_three_values_breaks_the_bound():
    for values, rounds in (((0.0, 1.0), 12), ((0.0, 0.4, 1.0), 7)):
        every = np.array(list(itertools.product(values, repeat=rounds)))
        found = dpc.metrics.regret(dpc.replay(dpc.Exact(), every, LEVELS))
        assert np.all(found <= theory.regret_bound(rounds, LEVELS) + 1e-9)
    # The worst of 4,096 is close: 94 % of the bound at level 0.5.
    assert found.shape[0] == 3**7
    every = np.array(list(itertools.product((0.0, 1.0), repeat=12)))
    worst = dpc.metrics.regret(dpc.replay(dpc.Exact(), every, LEVELS)).max(axis=0) / theory.regret_bound(12, LEVELS)
    assert 0.9 < worst[3] < 1


@pytest.mark.parametrize(
    ("learner", "level", "bound", "closeness"),
    [
        (dpc.Exact(), 0.5, theory.regret_bound(64, 0.5), 0.97),
        (dpc.Exact(), 0.9, theory.regret_bound(64, 0.9), 0.35),
        (dpc.Quantized(8), 0.5, theory.quantized_regret_bound(64, 0.5, 8), 0.35),
        (dpc.Exact(discount=0.9), 0.5, theory.discounted_regret_bound(64, 0.5, 0.9), 0.9),
    ],
)
def test_no_searched_sequence_breaks_a_bound(learner, level, bound, closeness):
    """An adversary that sees the thresholds and searches: it comes close, and stays below."""
    found = theory.hardest_sequence(learner, level, 64, learner.discount, population=64, generations=40)
    assert closeness * bound < found.regret <= bound
    run = dpc.replay(learner, found.scores, [level])
    assert found.regret <= theory.path_bound(run)[0] + 1e-12
    beta = learner.discount
    again = dpc.metrics.regret(run) if beta is None else dpc.metrics.discounted_regret(run, beta)
    assert again[0] == pytest.approx(found.regret, abs=1e-12)


def test_a_learner_without_a_leash_is_found_out():
    found = theory.hardest_sequence(dpc.ERM(), 0.5, 64, population=32, generations=3)
    assert found.regret > 3 * theory.regret_bound(64, 0.5)


CORRECTED = {
    "corrected": dpc.Corrected(),
    "corrected_callable": dpc.Corrected(BELIEFS["exact_callable"]),
    "corrected_quantized": dpc.Corrected(BELIEFS["quantized"]),
}


@pytest.mark.parametrize("name", BELIEFS | CORRECTED)
def test_bound_and_optimality_hold_on_every_path_and_horizon(name):
    """Any schedule, quantized or discounted, from a fresh state or an earlier one; corrected too."""
    learner, levels = (BELIEFS | CORRECTED)[name], np.array([0.0, 0.5, 0.9])
    every = np.stack(list(sequences(96).values()))
    first = dpc.replay(learner, every[:, :32], levels)
    for run in (dpc.replay(learner, every[:, 32:], levels), dpc.replay(learner, every[:, 32:], levels, first.state)):
        for _, one in path.sequences(run):
            here = path.path_of(one)
            assert np.abs(path.optimality_gap(here)).max() < 1e-12
            fading = here.discount != 1
            found = discounted_regret(here, np.arange(1, 65)) if fading else running_regret(here)
            assert np.all(found.regret <= found.bound + 1e-12)


def falling(t, xp=jnp):
    """h_t = 5 until round 6, then 1: the regularised leader is let off its leash."""
    return xp.where(t <= 6, 5 / (4 + t), 1 / t)


PATHS = {
    "theorem 2": ({}, None, lambda t: 1 / np.sqrt(t)),
    "falling concentration": ({"schedule": falling}, None, lambda t: falling(t, np)),
    "theorem 5": ({}, 6, lambda t: 1 / np.sqrt(t)),
    "theorem 6": ({"discount": 0.9}, None, lambda t: np.sqrt(0.1) / (0.9 + np.sqrt(0.1))),
    "theorems 5 and 6": ({"discount": 0.9}, 6, lambda t: np.sqrt(0.1) / (0.9 + np.sqrt(0.1))),
}


@pytest.mark.parametrize(
    ("name", "kind"),
    [*itertools.product(["shifted"], PATHS), ("beta", "theorem 2"), ("histogram", "falling concentration")],
)
def test_the_bound_of_a_path_is_the_sum_of_its_terms(name, kind):
    prior, twin = PRIORS[name]
    options, bins, lam = PATHS[kind]
    low, high = prior.support
    scores, levels = low + (high - low) * np.random.default_rng(3).random(12), np.array([0.3, 0.8])
    learner = dpc.Exact(prior, **options) if bins is None else dpc.Quantized(bins, prior, **options)
    noted = scores if bins is None else reference.to_bin(scores, bins, low, high)
    start = dpc.replay(learner, scores[:3], levels).state
    run = dpc.replay(learner, scores[3:], levels, start)
    beta = learner.discount

    def weight(t):
        odds = lam(max(t, 2)) / (1 - lam(max(t, 2)))
        return odds * (t - 1) if beta is None else (odds * beta ** (1 - t) + 1) / (1 - beta)

    for a, level in enumerate(levels):
        thresholds = np.asarray(run.thresholds)[:, a]
        psi = functools.partial(theory.excess_regularizer, level=level, prior=prior)
        want = reference.path_bound(scores[3:], noted[3:], thresholds, level, weight, beta, psi, twin.pdf, noted[:3])
        assert theory.path_bound(run)[a] == pytest.approx(want, rel=1e-9)


def test_the_bound_of_a_corrected_path_is_the_sum_of_its_terms():
    prior, twin = PRIORS["beta"]
    scores = np.random.default_rng(3).random(12)
    head = dpc.Corrected(dpc.Exact(prior))
    run = dpc.replay(head, scores[3:], [0.3, 0.8], dpc.replay(head, scores[:3], [0.3, 0.8]).state)
    for a, level in enumerate((0.3, 0.8)):
        want = reference.path_bound(
            scores[3:],
            scores[3:],
            np.asarray(run.thresholds)[:, a],
            level,
            lambda t: np.sqrt(t) + 1,
            None,
            functools.partial(theory.excess_regularizer, level=1.0, prior=prior),
            twin.pdf,
            scores[:3],
            lambda r, level=level: level * (1 - r),
        )
        assert theory.path_bound(run)[a] == pytest.approx(want, rel=1e-9)


def test_the_regret_of_corrected_thresholds_is_bounded():
    """All sequences of six fifths: the worst is near the bound, whose value is that of its formula."""
    every, levels = np.array(list(itertools.product(np.linspace(0, 1, 5), repeat=6))), np.array([0.1, 0.5, 0.9])
    worst = dpc.metrics.regret(dpc.replay(dpc.Corrected(), every, levels)).max(axis=0)
    np.testing.assert_allclose(worst, [2.235406, 2.220166, 0.6], atol=1e-6)
    bound = theory.corrected_regret_bound(6, levels)
    stability = np.maximum(levels, 1 - levels) ** 2 / 2 * sum(1 / (np.sqrt(t) + 1) for t in range(1, 7))
    np.testing.assert_allclose(bound, (np.sqrt(6) + 1) / 2 + levels + stability)
    np.testing.assert_allclose(bound, [2.7208022, 2.5013058, 3.5208022])
    assert np.all(worst <= bound)
    np.testing.assert_allclose(theory.corrected_regret_bound(6, levels, 4.0), 4 * bound)
    some = dpc.replay(dpc.Corrected(), every[::997], levels)
    assert np.all(dpc.metrics.regret(some) <= theory.path_bound(some) + 1e-12)
    assert np.all(theory.path_bound(some) <= bound + 1e-12)


def test_bounds_have_the_values_of_their_formulas():
    """Inequalities and rates leave constants free; these do not."""
    level, m = np.array([0.1, 0.5, 0.9]), np.array([0.9, 0.5, 0.9])
    swings = sum(1 / (np.sqrt(t) + 1) for t in range(1, 51))
    plain = m**2 * 3 / 2 * (np.sqrt(50) + 1 + swings)
    np.testing.assert_allclose(theory.regret_bound(50, level, 3.0), plain)
    np.testing.assert_allclose(theory.quantized_regret_bound(50, level, 7, 3.0), plain + 3 * 50 / 7)
    np.testing.assert_allclose(theory.quantized_regret_bound(50, level, 7, 3.0, "nearest"), plain + 3 * 50 / (2 * 7))
    np.testing.assert_allclose(theory.quantized_regret_bound(50, level, width=3.0), plain + 3 * 50 / 8)
    beta, weight = 0.9, 0.2 / 0.8
    terms = beta**5 / (1 - beta) + weight * beta / (1 - beta) + (1 - beta**5) / (weight * beta)
    np.testing.assert_allclose(theory.discounted_regret_bound(5, level, beta, 3.0, 0.2), m**2 * 3 / 2 * terms)
    # The theorem's λ is the best one as T grows without end, and not before.
    odds = np.sqrt((1 - beta) * (1 - beta**5)) / beta
    best = theory.discounted_regret_bound(5, 0.5, beta, weight=odds / (1 + odds))
    assert best == pytest.approx((beta**5 / (1 - beta) + 2 * np.sqrt((1 - beta**5) / (1 - beta))) / 8)
    others = [theory.discounted_regret_bound(5, 0.5, beta, weight=w) for w in np.linspace(0.05, 0.95, 181)]
    assert best <= min(others) < theory.discounted_regret_bound(5, 0.5, beta)
    assert theory.coverage_bound(101, 0.9, 0.1) == pytest.approx(
        (0.9 - 0.1 / (np.sqrt(101) - 1) - np.sqrt(np.log(20) / 200), 1.0)
    )
    low, high = theory.coverage_bound(10_001, 0.5, 0.1)
    shift, doubt = 0.5 / (np.sqrt(10_001) - 1), np.sqrt(np.log(20) / 20_000)
    assert (low, high) == pytest.approx((0.5 - shift - doubt, 0.5 + shift + 1e-4 + doubt))
    risk = theory.excess_risk_bound(10_001, 0.9, 0.1, dpc.priors.Uniform(0, 2))
    assert risk == pytest.approx(2 * doubt + 0.9**2 * 2 / 2 / (np.sqrt(10_001) - 1))


SWINGS_100 = 14.8960689  # Σ 1/(√t + 1) over t = 1, …, 100


def test_regret_bounds_at_a_hundred_rounds():
    """Theorems 2 and 5 and the corrected bound, as numbers: m²R/2 · (√100 + 1 + Σ 1/(√t + 1)) and what is added."""
    assert sum(1 / (math.sqrt(t) + 1) for t in range(1, 101)) == pytest.approx(SWINGS_100, abs=1e-6)
    # Finds m in the place of m², R²/2, √T in the place of h_T = √T + 1, and a sum that ends a round early or late.
    assert theory.regret_bound(100, 0.5) == pytest.approx(0.25 / 2 * (11 + SWINGS_100), abs=1e-6)
    assert theory.regret_bound(100, 0.9, 2.0) == pytest.approx(0.81 * (11 + SWINGS_100), abs=1e-6)
    assert theory.regret_bound(100, 0.1, 2.0) == theory.regret_bound(100, 0.9, 2.0)
    assert theory.regret_bound(0, 0.5) == 0.125
    # Finds m·RT/K (the paper's) for RT/K, K = √T rounded down, and centres that cost a whole bin.
    plain = theory.regret_bound(101, 0.9, 2.0)
    assert theory.quantized_regret_bound(101, 0.9, width=2.0) - plain == pytest.approx(2 * 101 / 11)
    assert theory.quantized_regret_bound(101, 0.9, width=2.0, rounding="nearest") - plain == pytest.approx(101 / 11)
    # Finds a leash of m²/2 · h_T for h_T/2, and α(high - u) left out or taken at 1 - α.
    for level, steepest in ((0.1, 0.9), (0.9, 0.9)):
        want = 2 * (11 / 2 + level + steepest**2 / 2 * SWINGS_100)
        assert theory.corrected_regret_bound(100, level, 2.0) == pytest.approx(want, abs=1e-6)


def test_the_bound_of_very_many_rounds_is_the_integral_above_the_sum():
    """Beyond 10⁷ rounds Σ 1/(√t + 1) is not added up: finds a wrong antiderivative, and a bound that is too small."""
    T = 2 * 10**7
    integral = 2 * math.sqrt(T) - 2 * math.log(1 + math.sqrt(T))
    assert theory.regret_bound(T, 0.5) == pytest.approx(0.125 * (math.sqrt(T) + 1 + integral), rel=1e-12)
    swings = float(np.sum(1 / (np.sqrt(np.arange(1, T + 1)) + 1)))
    assert swings < integral < swings + 1


def test_discounted_bounds_at_finite_horizons():
    # With the theorem's λ, oβ = √(1 - β): finds λ in the place of λ/(1 - λ), β^T left out, and 1 - β for its root.
    for rounds, beta, level, steepest in ((100, 0.99, 0.5, 0.5), (7, 0.9, 0.2, 0.8)):
        root = math.sqrt(1 - beta)
        want = steepest**2 * 3 / 2 * (beta**rounds / (1 - beta) + (2 - beta**rounds) / root)
        assert theory.discounted_regret_bound(rounds, level, beta, 3.0) == pytest.approx(want, rel=1e-12)
    # Every outcome of six coins: finds a wrong fourth moment, and powers of β that are one off.
    for beta, level in ((0.8, 0.5), (0.8, 0.1), (1.0, 0.3)):
        second = fourth = 0.0
        for coins in itertools.product((0, 1), repeat=6):
            chance = math.prod(1 - level if coin else level for coin in coins)
            total = sum(beta**i * (-level if coin else 1 - level) for i, coin in enumerate(coins))
            second, fourth = second + chance * total**2, fourth + chance * total**4
        want = 3 / 2 * second**1.5 / fourth**0.5
        assert theory.discounted_lower_bound(6, level, beta, 3.0) == pytest.approx(want, rel=1e-12)


def test_delayed_bounds_at_a_hundred_rounds():
    """Term by term, from the formulas of docs/theory.md alone."""
    kappa = math.sqrt(1 + 2 * 4)
    cases = (
        (None, lambda t: 1 / math.sqrt(t), lambda t: math.sqrt(t) + 1),
        (dpc.schedules.ForDelay(4), lambda t: kappa / (kappa + math.sqrt(t) - 1), lambda t: kappa * (math.sqrt(t) + 1)),
    )
    # Finds a delay that is one off, terms e_t of one side only, and a leash or swings of another concentration.
    for schedule, weight, concentration in cases:
        for level in (0.1, 0.5):
            want = 2 * reference.delayed_bound(100, level, 4, weight, concentration)
            assert theory.delayed_regret_bound(100, level, 4, 2.0, schedule) == pytest.approx(want, rel=1e-12)
    # A concentration that falls from 5 to 1 after round 6: finds that fall left out, or counted with another factor.
    for rounds, leash in ((6, 5.0), (9, 1.0 + 4.0)):
        swings = sum(min(0.8, 0.64 / (2 * (5.0 if t <= 6 else 1.0))) for t in range(1, rounds + 1))
        found = theory.delayed_regret_bound(rounds, 0.2, 0, schedule=falling)
        assert found == pytest.approx(0.64 / 2 * leash + swings, rel=1e-12)
    # With a discount: finds a prior's share without β^(t - 1), gains without 1 - λ, and sums that do not fade.
    beta, lam, level = 0.9, 0.2, 0.3
    at_once = theory.discounted_regret_bound(20, level, beta, 2.0, lam)
    late = [reference.late_loss_discounted(t, max(t - 4, 0), level, lam, beta) for t in range(1, 21)]
    found = theory.delayed_regret_bound(20, level, 3, 2.0, dpc.schedules.Constant(lam), beta)
    assert found == pytest.approx(at_once + 2 * np.array(late) @ beta ** np.arange(19, -1, -1.0), rel=1e-12)


def test_the_bound_of_a_group_is_the_sum_of_its_terms():
    """All scores are different, so each counts for the root: the bound follows from when a group had rounds."""
    rng, context = np.random.default_rng(8), np.array([0, 1, 1, 0, 1, 1, 1, 0, 1, 0, 0, 1])
    prior = dpc.priors.Histogram([0, 1, 2], [1, 3])  # on a width of 2, with a density of 1/4 at least
    for weights, bins, root in (
        ((dpc.schedules.Constant(0.2), dpc.schedules.InverseSqrt()), None, lambda n: 0.2),
        ((dpc.schedules.Dirichlet(2.0), dpc.schedules.InverseSqrt()), None, lambda n: 2 / (2 + n)),
    ):
        learner = dpc.Hierarchical(2, prior, concentrations=weights, bins=bins)
        run = dpc.replay(learner, 2 * rng.random(12), [0.3, 0.9], context=context)
        found = theory.group_regret_bound(run).bound
        for group, level in itertools.product((0, 1), (0.3, 0.9)):
            # Finds c/(h κ μ) without its 2, R in the place of R², the first round's own term left out, and sums over
            # v_n and h_n that begin in round 1 or run to N.
            before = np.flatnonzero(context == group)
            want = reference.group_bound(before, level, root, lambda n: 1 / math.sqrt(n), 2.0, 2.0 * 0.25)
            assert float(found.sel(group=group, level=level)) == pytest.approx(want, rel=1e-9)


def test_coverage_bounds_of_a_fixed_concentration():
    """Finds λ_t or h/(n + h) in the place of h/n, α and 1 - α exchanged, ln(1/δ), and n + 1 in the place of n."""
    doubt = math.sqrt(math.log(2 / 0.2) / (2 * 50))
    found = theory.coverage_bound(51, [0.3, 0.6], 0.2, dpc.schedules.Dirichlet(5.0))
    want = [[0.3 - 0.7 * 0.1 - doubt, 0.6 - 0.4 * 0.1 - doubt], [0.3 * 1.1 + 0.02 + doubt, 0.6 * 1.1 + 0.02 + doubt]]
    np.testing.assert_allclose(found, want, rtol=1e-12)
    # The larger end of ψ is the lower one at high levels and the upper one at low ones: finds one end taken for both.
    for level in (0.1, 0.9):
        risk = theory.excess_risk_bound(51, level, 0.2, dpc.priors.Uniform(0, 3), dpc.schedules.Dirichlet(5.0))
        assert risk == pytest.approx(3 * doubt + 0.1 * 0.81 * 3 / 2, rel=1e-12)


def test_ranks_of_the_bracket_are_those_of_exact_arithmetic():
    """Finds a floor for a ceiling, n in the place of n + 1, and a concentration not taken off at the lower end."""
    for n, a, percent in itertools.product((1, 9, 100), (Fraction(1), Fraction(5), Fraction(7, 2)), (5, 50, 87, 90)):
        level = Fraction(percent, 100)
        least, most = math.ceil(level * (n + a) - a), math.ceil(level * (n + a))
        want = Fraction(max(least, 0), n + 1), Fraction(min(most, n + 1), n + 1)
        found = theory.coverage_bracket(float(level), n, float(a))
        assert found == pytest.approx([float(end) for end in want], abs=1e-15)
        asked = min((level * (n + 1) + a) / (n + a), 1)
        assert theory.corrected_level(float(level), n, float(a)) == pytest.approx(float(asked), abs=1e-15)


def test_bins_cost_one_bin_or_half_of_it_a_round_at_any_level():
    """The loss of a threshold less that of another changes with the score at rate 1, not 2·max(α, 1 - α)."""
    grid = np.linspace(0, 1, 41)
    r, u, score = np.meshgrid(grid, grid, grid, indexing="ij")
    noted = reference.to_bin(score.ravel(), 4, 0.0, 1.0, "nearest").reshape(score.shape)
    for level in (0.1, 0.5, 0.9):
        by_score, by_bin = (
            reference.quantile_loss(r, s, level) - reference.quantile_loss(u, s, level) for s in (score, noted)
        )
        assert np.max(by_score - by_bin) == pytest.approx(bin_cost(1.0, 4, "nearest")) == pytest.approx(1 / 8)
    # A score just above an edge counts a whole bin higher.
    risen = reference.quantile_loss(r, 0.25 + 1e-9, 0.5) - reference.quantile_loss(u, 0.25 + 1e-9, 0.5)
    there = reference.quantile_loss(r, 0.5, 0.5) - reference.quantile_loss(u, 0.5, 0.5)
    assert np.max(risen - there) == pytest.approx(bin_cost(1.0, 4, "up")) == pytest.approx(1 / 4)
    for rounding, cost in (("up", 1 / 4), ("nearest", 1 / 8)):
        late = dpc.replay(dpc.Quantized(4, rounding=rounding), np.linspace(0, 1, 24), [0.1, 0.5], delay=2)
        bound = theory.delayed_regret_bound(24, np.array([0.1, 0.5]), 2) + 24 * cost
        found = theory.certify(late).dataset.sel(check="regret")
        np.testing.assert_allclose(found.high, bound, atol=1e-9)


def test_bounds_at_one_horizon_do_not_depend_on_others_and_grow_for_ever():
    together = theory.regret_bound([1, 100, 2 * 10**7, np.inf], 0.5)
    np.testing.assert_array_equal(together[:2], [theory.regret_bound(1, 0.5), theory.regret_bound(100, 0.5)])
    assert together[2] < together[3] == np.inf
    assert theory.quantized_regret_bound(np.inf, 0.5) == theory.discounted_lower_bound(np.inf, 0.5, 1.0) == np.inf
    assert theory.quantized_regret_bound(100, 0.5, [5, 10]).shape == (2,)
    assert theory.coverage_bracket(1.0, 10, 2.0) == (1, 1)
    found = theory.hardest_sequence(dpc.Exact(dpc.priors.Uniform(-0.3, 0.1)), 0.5, 8, population=8, generations=1)
    assert np.all((found.scores >= -0.3) & (found.scores <= 0.1))


def test_rates_of_the_bounds():
    T = 10.0 ** np.arange(4, 9)

    def slope(x, y):
        return np.polyfit(np.log(x), np.log(y), 1)[0]

    assert slope(T, theory.regret_bound(T, 0.9)) == pytest.approx(0.5, abs=0.02)
    assert slope(T, theory.quantized_regret_bound(T, 0.9)) == pytest.approx(0.5, abs=0.02)
    low, high = theory.coverage_bound(T, 0.5)
    assert slope(T, high - low) == pytest.approx(-0.5, abs=0.01)
    assert slope(T, theory.excess_risk_bound(T, 0.5)) == pytest.approx(-0.5, abs=0.01)
    beta = 1 - 10.0 ** -np.arange(2, 7)
    assert slope(1 - beta, theory.discounted_regret_bound(np.inf, 0.5, beta)) == pytest.approx(-0.5, abs=1e-9)
    assert slope(1 - beta, theory.discounted_lower_bound(np.inf, 0.5, beta)) == pytest.approx(-0.5, abs=0.01)
    # Theorem 6 as printed, times max(α, 1 - α)²: R/√(1 - β) in the limit.
    np.testing.assert_allclose(theory.discounted_regret_bound(np.inf, 1.0, beta), 1 / np.sqrt(1 - beta), rtol=1e-9)


@pytest.fixture(scope="module")
def coins():
    """Scores at the ends of the support, the upper one with probability 1 - α: no threshold is better than another."""
    level, rng = 0.7, np.random.default_rng(5)
    return level, (rng.random((60, 3000)) < 1 - level).astype(float)


def test_rates_and_the_lower_bound_are_seen_in_runs(coins):
    level, scores = coins
    run = dpc.replay(dpc.Exact(), scores, [level])
    curve = dpc.metrics.regret(run, running=True)[..., 0].mean(axis=0)
    late = np.arange(100, 3000)
    slope = np.polyfit(np.log(late + 1), np.log(curve[late]), 1)[0]
    assert slope == pytest.approx(0.5, abs=0.08)
    assert curve[-1] > theory.discounted_lower_bound(3000, level, 1.0)
    found = []
    discounts = 1 - np.geomspace(0.1, 0.003, 5)
    for beta in discounts:
        fading = dpc.metrics.discounted_regret(dpc.replay(dpc.Exact(discount=beta), scores, [level]), beta)[:, 0]
        error = fading.std() / np.sqrt(fading.size)
        assert fading.mean() + 3 * error > theory.discounted_lower_bound(3000, level, beta)
        assert fading.max() <= theory.discounted_regret_bound(3000, level, beta)
        found.append(fading.mean())
    # Every method pays R/2 · E|D|, whatever it does.
    weights = discounts[0] ** np.arange(2999, -1, -1.0)
    gain = np.abs((scores * -level + (1 - scores) * (1 - level)) @ weights) / 2
    error = np.std(gain) / np.sqrt(gain.size)
    assert found[0] == pytest.approx(gain.mean(), abs=4 * error)
    assert np.polyfit(np.log(1 - discounts), np.log(found), 1)[0] == pytest.approx(-0.5, abs=0.1)


@pytest.fixture(scope="module")
def simulated():
    """Thresholds after 200 iid scores in 2,000 data sets, under a prior that is wrong."""
    truth, levels = dpc.priors.Beta(2, 5), np.array([0.1, 0.5, 0.8, 0.9, 0.99])
    scores = np.random.default_rng(11).beta(2, 5, (2000, 201))
    prior = dpc.priors.Histogram([0, 0.5, 1], [1, 9])
    run = dpc.replay(dpc.Exact(prior), scores, levels)
    return truth, prior, levels, run


def test_coverage_band_holds_at_its_rate(simulated):
    """Theorem 3, for all levels at once, and Theorem 4: broken in at most a share δ of the data sets."""
    truth, prior, levels, run = simulated
    last = np.asarray(run.thresholds)[:, -1]
    covered = np.asarray(truth.cdf(last))
    for delta in (0.5, 0.1):
        low, high = theory.coverage_bound(201, levels, delta)
        broken = np.mean(np.any((covered < low) | (covered > high), axis=1))
        assert broken <= delta + 3 * np.sqrt(delta * (1 - delta) / 2000)
        risk = theory.excess_regularizer(last, levels, truth)
        late = np.mean(np.any(risk > theory.excess_risk_bound(201, levels, delta, prior), axis=1))
        assert late <= delta + 3 * np.sqrt(delta * (1 - delta) / 2000)
    # A quarter as wide, the band would be broken all the time: it is not wide for nothing.
    narrow = levels + (low - levels) / 4, levels + (high - levels) / 4
    assert np.mean(np.any((covered < narrow[0]) | (covered > narrow[1]), axis=1)) > 0.5


def test_finite_sample_bracket_holds_on_average(simulated):
    _, _, levels, run = simulated
    seen = np.mean(np.asarray(run.scores)[:, -1, None] <= np.asarray(run.thresholds)[:, -1], axis=0)
    low, high = theory.coverage_bracket(levels, 200, theory.concentration(201))
    error = 3 * np.sqrt(seen * (1 - seen) / 2000)
    assert np.all((seen >= low - error) & (seen <= high + error))


def test_extreme_priors_attain_both_ends_of_the_bracket():
    scores = np.random.default_rng(2).random((4000, 100))
    low, high = theory.coverage_bracket(0.9, 100, 5.0)
    assert (round(float(low), 4), round(float(high), 4)) == (0.8911, 0.9406)
    seen = []
    for masses in ([1.0, 1e-6], [1e-6, 1.0]):
        prior = dpc.priors.Histogram([0, 1e-9, 1] if masses[0] == 1 else [0, 1 - 1e-9, 1], masses)
        learner = dpc.Exact(prior, dpc.schedules.Dirichlet(5.0))
        state = dpc.replay(learner, scores, [0.9], keep="summary").state
        seen.append(np.mean(jax.vmap(lambda s, learner=learner: learner.quantile(s, 0.9))(state)))
    # The mean of F(r) over uniform scores is the coverage probability; its standard error is below 5e-4.
    assert seen[0] == pytest.approx(low, abs=2e-3)
    assert seen[1] == pytest.approx(high, abs=2e-3)


def test_the_lower_end_of_the_bracket_needs_no_continuity():
    """Every set of five scores on three values, each left to the last in turn: ties, and scores at both ends."""
    sets = np.array(list(itertools.combinations_with_replacement([0.0, 0.5, 1.0], 5)))
    turns = np.stack([np.roll(sets, k, axis=1) for k in range(5)])
    levels = np.array([0.1, 0.5, 0.8, 0.9])
    for learner, asked in ((dpc.Exact(), levels), (dpc.Corrected(), levels)):
        last = np.asarray(dpc.replay(learner, turns, asked).thresholds)[:, :, -1]
        covered = np.mean(turns[:, :, -1:] <= last, axis=0)
        low = theory.coverage_bracket(levels, 4, theory.concentration(5))[0]
        assert np.all(covered >= (levels if learner == dpc.Corrected() else low) - 1e-12)
    low, high = theory.coverage_bracket([0.0, 0.3], 4, 2.0)
    assert not np.signbit([low, high]).any()  # a rank of -0.0


def test_corrected_level_is_valid_in_finite_samples():
    n, a = np.arange(0, 300), np.array([0.5, 5.0, 40.0])[:, None]
    for level in (0.1, 0.5, 0.9, 0.99):
        asked = theory.corrected_level(level, n, a)
        low = theory.coverage_bracket(asked, n, a)[0]
        assert np.all((low >= level - 1e-12) | (asked == 1))
        assert np.all(asked <= 1)
    # Split conformal is the belief with concentration 1 and a prior at the upper end.
    np.testing.assert_allclose(theory.corrected_level(0.9, 99, 1.0), (0.9 * 100 + 1) / 100)


def test_the_band_of_coverage_frequencies_holds_at_its_rate(simulated):
    """The certificate's band: 2,000 iid runs leave it with probability δ at most, a level; drift does."""
    _, _, _, run = simulated
    outside = []
    for _, one in path.sequences(run._replace(thresholds=run.thresholds[:500], scores=run.scores[:500])):
        outside.append(certificate.coverage_check(one, path.path_of(one), 0.1).round > 0)
    assert np.all(np.mean(outside, axis=0) <= 0.1 + 3 * np.sqrt(0.09 / 500))
    rising = np.linspace(0, 1, 2000)
    assert not theory.certify(dpc.replay(dpc.Exact(), rising, [0.5, 0.9])).passed
