"""Merging states: as if one belief had seen everything, in any grouping."""

import jax
import numpy as np
import pytest
from cases import LEARNERS, LEVELS
from hypothesis import given
from hypothesis import strategies as st

import dpconformal as dpc

pytestmark = pytest.mark.core
UNDISCOUNTED = [name for name in LEARNERS if "discounted" not in name and name not in ("sliding", "fading", "nexcp")]
PARTS = [np.random.default_rng(i).integers(0, 20, n) / 19 for i, n in enumerate((9, 0, 9))]


def states(learner):
    bins = 16 if isinstance(learner, dpc.Quantized) else None
    return [dpc.replay(learner, part, [0.5], state=learner.init() if bins else None).state for part in PARTS]


@pytest.mark.parametrize("name", LEARNERS)
def test_merged_is_sequential(name):
    learner = LEARNERS[name]
    a, b, c = states(learner)
    merged = learner.merge(learner.merge(a, b), c)
    sequential = dpc.replay(learner, np.concatenate(PARTS), LEVELS).state
    assert int(merged.seen) == int(sequential.seen)
    np.testing.assert_allclose(learner.quantile(merged, LEVELS), learner.quantile(sequential, LEVELS), atol=1e-12)


@pytest.mark.parametrize("name", LEARNERS)
def test_merge_is_associative(name):
    learner = LEARNERS[name]
    a, b, c = states(learner)
    left, right = learner.merge(learner.merge(a, b), c), learner.merge(a, learner.merge(b, c))
    tolerance = 1e-14 if name == "quantized_discounted" else 0
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=0, atol=tolerance), left, right)


@pytest.mark.parametrize("name", UNDISCOUNTED)
def test_undiscounted_merge_does_not_mind_the_order(name):
    learner = LEARNERS[name]
    a, _, c = states(learner)
    same = learner.quantile(learner.merge(a, c), LEVELS), learner.quantile(learner.merge(c, a), LEVELS)
    np.testing.assert_array_equal(*same)


FORGETFUL = {
    "exact": dpc.Exact(discount=0.8),
    "bins": dpc.Quantized(16, discount=0.8),
    "sliding": dpc.SlidingERM(16),
    "fading": dpc.DiscountedERM(0.8),
}


@pytest.mark.parametrize("learner", FORGETFUL.values(), ids=FORGETFUL)
def test_discounted_merge_minds_the_order(learner):
    a, _, c = states(learner)
    one, other = learner.quantile(learner.merge(a, c), LEVELS), learner.quantile(learner.merge(c, a), LEVELS)
    assert np.abs(one - other).max() > 1e-3


def test_a_merged_window_is_the_sequential_one_to_the_bit():
    """Finds scores that the second window has forgotten left out of the count of places: the wrong ones go next."""
    learner = dpc.SlidingERM(4)
    a, _, c = states(learner)
    sequential = dpc.replay(learner, np.concatenate(PARTS), [0.5]).state
    jax.tree.map(np.testing.assert_array_equal, learner.merge(a, c), sequential)


def test_a_spoilt_part_spoils_the_whole():
    for learner in (dpc.Exact(), dpc.Quantized(4)):
        good = learner.observe(learner.init(), 0.5)
        bad = jax.jit(learner.observe)(good, np.nan)
        for merged in (learner.merge(good, bad), learner.merge(bad, good)):
            assert np.isnan(learner.quantile(merged, [0.5])).all()


def test_bins_must_match():
    learner = dpc.Quantized(4)
    with pytest.raises(ValueError, match="state has 5 bins, and this Quantized has bins = 4"):
        learner.merge(learner.init(), dpc.Quantized(5).init())
    with pytest.raises(ValueError, match="second has 5 bins and first 4"):
        dpc.Quantized().merge(learner.init(), dpc.Quantized(5).init())


UNIT = st.floats(0, 1)


@given(scores=st.lists(UNIT, min_size=12, max_size=12), cut=st.integers(0, 12), discount=st.floats(0.1, 0.99))
def test_any_cut_merges_back(scores, cut, discount):
    scores = np.array(scores)
    for learner in (dpc.Exact(discount=discount, capacity=12), dpc.Quantized(6, discount=discount)):
        state = [learner.init(), learner.init()]
        for i, score in enumerate(scores):
            state[i >= cut] = learner.observe(state[i >= cut], score)
        whole = dpc.replay(learner, scores, [0.1, 0.5, 0.9]).state
        merged = learner.merge(*state)
        levels = np.array([0.1, 0.5, 0.9])
        np.testing.assert_allclose(learner.quantile(merged, levels), learner.quantile(whole, levels), atol=1e-11)
