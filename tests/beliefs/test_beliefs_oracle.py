"""Every belief against its naive oracle."""

from fractions import Fraction

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import reference
from cases import LEVELS, PRIORS, sequences
from hypothesis import given
from hypothesis import strategies as st

import dpconformal as dpc
from dpconformal.beliefs.quantized import bin_edges, bin_index

SCHEDULES = {
    "inverse_sqrt": (dpc.schedules.InverseSqrt(), lambda t: t**-0.5),
    "dirichlet": (dpc.schedules.Dirichlet(2.5), lambda t: 2.5 / (2.5 + t - 1)),
    "constant": (dpc.schedules.Constant(0.2), lambda t: 0.2 if t > 1 else 1.0),
    "callable": (lambda t: t**-0.75, lambda t: t**-0.75),
}
BETA = 0.93
DISCOUNTED_WEIGHT = np.sqrt(1 - BETA) / (BETA + np.sqrt(1 - BETA))


def thresholds(learner, scores, levels=LEVELS):
    return np.asarray(dpc.replay(learner, scores, levels).thresholds)


@pytest.mark.core
@pytest.mark.parametrize(
    ("bins", "rounding", "schedule"),
    [
        *((None, "up", schedule) for schedule in SCHEDULES),
        (7, "nearest", "inverse_sqrt"),
        (7, "nearest", "dirichlet"),
        (64, "up", "inverse_sqrt"),
        (64, "up", "callable"),
    ],
)
def test_uniform_prior_on_every_sequence(schedule, bins, rounding):
    ours, weight = SCHEDULES[schedule]
    learner = dpc.Exact(schedule=ours) if bins is None else dpc.Quantized(bins, schedule=ours, rounding=rounding)
    for name, scores in sequences().items():
        expected = reference.belief_thresholds(
            scores, LEVELS, PRIORS["uniform"][1], (0, 1), weight, bins=bins, rounding=rounding
        )
        np.testing.assert_allclose(thresholds(learner, scores), expected, atol=1e-9, rtol=0, err_msg=name)


@pytest.mark.core
@pytest.mark.parametrize(("bins", "rounding"), [(None, "up"), (7, "up"), (64, "nearest")])
def test_discounted_on_every_sequence(bins, rounding):
    learner = dpc.Exact(discount=BETA) if bins is None else dpc.Quantized(bins, discount=BETA, rounding=rounding)
    for name, scores in sequences().items():
        expected = reference.belief_thresholds(
            scores, LEVELS, PRIORS["uniform"][1], (0, 1), lambda t: DISCOUNTED_WEIGHT, BETA, bins, rounding
        )
        np.testing.assert_allclose(thresholds(learner, scores), expected, atol=1e-9, rtol=0, err_msg=name)


# Every prior both ways, and one of them all four.
BOTH = [(None, None), (BETA, 10)]
KINDS = [(prior, *kind) for prior in PRIORS for kind in BOTH] + [("beta_wide", BETA, None), ("beta_wide", None, 10)]


@pytest.mark.parametrize(("prior", "discount", "bins"), KINDS)
def test_every_prior(prior, discount, bins):
    ours, twin = PRIORS[prior]
    low, high = map(float, ours.support)
    learner = dpc.Exact(ours, discount=discount) if bins is None else dpc.Quantized(bins, ours, discount=discount)
    weight = (lambda t: t**-0.5) if discount is None else (lambda t: DISCOUNTED_WEIGHT)
    for name in ("uniform", "tied", "alternating", "extreme"):
        scores = sequences(24, low, high)[name]
        expected = reference.belief_thresholds(scores, LEVELS, twin, (low, high), weight, discount, bins)
        actual = thresholds(learner, scores)
        np.testing.assert_allclose(actual, expected, atol=1e-9 * (high - low), rtol=0, err_msg=name)


@pytest.mark.core
@pytest.mark.parametrize("name", sequences())
def test_frequentist_beliefs_are_exactly_their_oracles(name):
    scores = sequences()[name]
    levels = np.append(LEVELS, [0.07, 0.29, 0.55, 1 / 3])
    expected = reference.erm_thresholds(scores, levels, PRIORS["uniform"][1], (0, 1))
    np.testing.assert_allclose(thresholds(dpc.ERM(), scores, levels), expected, atol=1e-15, rtol=0)
    expected = reference.split_thresholds(scores, levels)
    np.testing.assert_array_equal(thresholds(dpc.SplitConformal(), scores, levels), expected)


SCORES = st.lists(st.floats(0, 1) | st.sampled_from([0.0, 0.25, 0.5, 1.0]), min_size=1, max_size=24)
LEVEL_LISTS = st.lists(st.floats(0, 1), min_size=3, max_size=3)


@pytest.mark.core
@given(
    scores=SCORES,
    levels=LEVEL_LISTS,
    concentration=st.floats(0.01, 100),
    bins=st.sampled_from([None, 1, 5, 50]),
)
def test_any_scores_and_levels(scores, levels, concentration, bins):
    # Padding to one length keeps one compiled program; thresholds do not look ahead.
    padded = np.pad(scores, (0, 24 - len(scores)))
    schedule = dpc.schedules.Dirichlet(concentration)
    learner = dpc.Exact(schedule=schedule) if bins is None else dpc.Quantized(bins, schedule=schedule)
    expected = reference.belief_thresholds(
        scores,
        levels,
        PRIORS["uniform"][1],
        (0, 1),
        lambda t: concentration / (concentration + t - 1),
        bins=bins,
    )
    actual = thresholds(learner, padded, levels)[: len(scores)]
    np.testing.assert_allclose(actual, expected, atol=1e-9, rtol=0)


@pytest.mark.core
@given(scores=SCORES, levels=LEVEL_LISTS, discount=st.floats(0.05, 0.999), bins=st.sampled_from([None, 1, 5, 50]))
def test_any_discount(scores, levels, discount, bins):
    padded = np.pad(scores, (0, 24 - len(scores)))
    learner = dpc.Exact(discount=discount) if bins is None else dpc.Quantized(bins, discount=discount)
    root = np.sqrt(1 - discount)
    expected = reference.belief_thresholds(
        scores, levels, PRIORS["uniform"][1], (0, 1), lambda t: root / (discount + root), discount, bins
    )
    actual = thresholds(learner, padded, levels)[: len(scores)]
    np.testing.assert_allclose(actual, expected, atol=1e-9, rtol=0)


@pytest.mark.core
@given(scores=SCORES, levels=LEVEL_LISTS, bins=st.sampled_from([1, 5, 50]))
def test_rounding_up_raises_a_threshold_by_one_bin_at_most(scores, levels, bins):
    """A score that counts below itself leaves coverage short of its level; scores on edges are where that shows."""
    padded, edges = np.pad(scores, (0, 24 - len(scores))), np.arange(bins + 1) / bins
    prior, a = dpc.priors.Uniform(), dpc.schedules.Dirichlet(2.0)
    exact, up = (thresholds(one, padded, levels) for one in (dpc.Exact(prior, a), dpc.Quantized(bins, prior, a)))
    assert (up >= exact - 1e-12).all()
    assert (up <= exact + 1 / bins + 1e-12).all()
    on_edges = edges[np.minimum((padded * bins).astype(int) + 1, bins)]  # these do not move
    exact, up = (thresholds(one, on_edges, levels) for one in (dpc.Exact(prior, a), dpc.Quantized(bins, prior, a)))
    np.testing.assert_allclose(up, exact, atol=1e-12)


@pytest.mark.core
@pytest.mark.parametrize("x64", [False, True])
def test_decimals_are_edges_of_bins_on_signed_supports(x64):
    """Found: on [-5, 5] edges were rounded twice, and 44 of a hundred decimals were not the edge that was meant."""
    dtype, bins = (np.float64 if x64 else np.float32), 100
    supports = [(-5.0, 5.0), (-3.0, 7.0), (-0.5, 0.5), (100.0, 200.0), (0.0, 1.0)]
    with jax.enable_x64(x64):
        ends = np.array(supports, dtype).T
        each = [np.asarray(bin_edges((low, high), bins, dtype)) for low, high in ends.T]
        # A division by a number that every row shares would be rounded otherwise.
        swept = jax.vmap(lambda low, high: bin_edges((low, high), bins, dtype))(*ends)
        for (low, high), edges, row in zip(supports, each, np.asarray(swept), strict=True):
            exact = [Fraction(low) + Fraction(high - low) * k / bins for k in range(bins + 1)]
            decimals = np.array(exact, dtype)
            np.testing.assert_array_equal(edges, decimals)
            np.testing.assert_array_equal(row, decimals)
            index = bin_index(jnp.asarray(decimals), (low, high), bins, "up")
            np.testing.assert_array_equal(index, np.maximum(np.arange(bins + 1) - 1, 0))


@pytest.mark.core
@pytest.mark.parametrize("name", sequences())
@pytest.mark.parametrize("learner", [dpc.Exact(), dpc.Exact(discount=BETA)], ids=["plain", "discounted"])
def test_float32_is_exact_for_a_nearby_level(name, learner):
    """Backward error: the float32 threshold is the exact quantile of a level a few float32 steps away."""
    scores = sequences(200)[name].astype(np.float32)
    levels = np.array([0.1, 0.5, 0.9], np.float32)
    actual = dpc.replay(learner, scores, levels).thresholds
    assert actual.dtype == np.float32
    weight = (lambda t: t**-0.5) if learner.discount is None else (lambda t: DISCOUNTED_WEIGHT)
    slack = 1e-6
    below, above = (
        reference.belief_thresholds(scores, levels + shift, PRIORS["uniform"][1], (0, 1), weight, learner.discount)
        for shift in (-slack, slack)
    )
    actual, ulp = np.asarray(actual, float), 1e-7
    assert (actual >= below - ulp).all()
    assert (actual <= above + ulp).all()


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_no_probability_is_above_one(dtype):
    """Finds a cdf without its cap: for some numbers of scores the prior's share and the masses add up to a bit more."""
    learner = dpc.Exact(schedule=dpc.schedules.Dirichlet(3.0))
    state, more = learner.init(60, dtype), 0
    for score in sequences(60)["sorted"].astype(dtype):
        state = learner.observe(state, score)
        assert learner.cdf(state, dtype(1)) <= 1
        belief = learner.belief(state)
        more += int(belief.prior_weight + belief.cumulative[belief.used] > 1)
    assert more  # so that the cap is needed
