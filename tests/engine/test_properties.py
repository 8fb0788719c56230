"""What holds whatever the scores: order, causality, resuming, and the regret bound."""

import jax.numpy as jnp
import numpy as np
from hypothesis import given
from hypothesis import strategies as st

import dpconformal as dpc

T = 20
SCORES = st.lists(st.floats(0, 1) | st.sampled_from([0.0, 0.5, 1.0]), min_size=T, max_size=T).map(np.array)
LEVELS = st.lists(st.floats(0, 1), min_size=4, max_size=4).map(np.array)
MASSES = st.lists(st.floats(1e-3, 1e3), min_size=3, max_size=3)


@st.composite
def beliefs(draw):
    """Any of our beliefs with any prior weights and any schedule or discount; few shapes, so few compilations."""
    prior = dpc.priors.Histogram([0.0, 0.2, 0.7, 1.0], draw(MASSES))
    discount = draw(st.none() | st.floats(0.01, 0.9999))
    schedule = draw(
        st.none() | st.floats(1e-3, 1e3).map(dpc.schedules.Dirichlet) | st.floats(1e-6, 1).map(dpc.schedules.Constant)
    )
    if draw(st.booleans()):
        return dpc.Exact(prior, schedule, discount)
    return dpc.Quantized(6, prior, schedule, discount)


@given(learner=beliefs(), scores=SCORES, levels=LEVELS)
def test_never_cross_and_stay_within_the_support(learner, scores, levels):
    levels = np.sort(np.append(levels, np.nextafter(levels, 1)))
    result = np.asarray(dpc.replay(learner, scores, levels).thresholds)
    assert (np.diff(result) >= 0).all()
    assert ((result >= 0) & (result <= 1)).all()


@given(learner=beliefs(), scores=SCORES, others=SCORES, cut=st.integers(0, T))
def test_no_round_sees_its_own_score_or_a_later_one(learner, scores, others, cut):
    changed = np.concatenate([scores[:cut], others[cut:]])
    first, second = (dpc.replay(learner, s, [0.1, 0.6]).thresholds[: cut + 1] for s in (scores, changed))
    np.testing.assert_array_equal(first, second)


@given(learner=beliefs(), scores=SCORES)
def test_resuming_from_a_full_state_changes_nothing(learner, scores):
    half = dpc.replay(learner, scores[: T // 2], [0.1, 0.6], state=learner.init())
    rest = dpc.replay(learner, scores[T // 2 :], [0.1, 0.6], state=half.state)
    whole = dpc.replay(learner, scores, [0.1, 0.6], state=learner.init())
    joined = np.concatenate([half.thresholds, rest.thresholds])
    np.testing.assert_allclose(joined, whole.thresholds, rtol=0, atol=0 if learner.discount is None else 1e-12)


@given(scores=SCORES, levels=LEVELS, bins=st.sampled_from([None, 5]))
def test_regret_is_within_its_bound(scores, levels, bins):
    """
    Uniform prior on [0, 1], λ_t = 1/√t, any scores: regret ≤ h_{T+1}/2 + ½ Σ 1/h_t with h_t = √t + 1, h_1 = 1.

    The step from t to t + 1 costs at most 1/(2 h_t μ) with μ = 1, and ψ is at most 1/2. Bins of width w move
    each score by at most w/2, which can cost w/2 a round on either side.
    """
    learner = dpc.Exact() if bins is None else dpc.Quantized(bins)
    regret = dpc.metrics.regret(dpc.replay(learner, scores, levels), running=True)
    t = np.arange(1, T + 1)
    h = np.where(t == 1, 1.0, np.sqrt(t) + 1)
    bound = (np.sqrt(t + 1) + 1) / 2 + np.cumsum(1 / h) / 2
    if bins is not None:
        bound = bound + t / bins
    assert (regret <= bound[:, None] + 1e-12).all()


@given(scores=SCORES, level=st.floats(0.01, 0.99))
def test_erm_is_the_limit_of_a_vanishing_prior(scores, level):
    erm = dpc.replay(dpc.ERM(), scores, [level]).thresholds[1:, 0]
    faint = dpc.Exact(schedule=dpc.schedules.Dirichlet(1e-9))
    limit = dpc.replay(faint, scores, [level]).thresholds[1:, 0]
    rank = level * np.arange(1, T)
    clear = np.abs(rank - np.round(rank)) > 1e-6  # a rank on the edge goes either way
    np.testing.assert_allclose(np.asarray(limit)[clear], np.asarray(erm)[clear], atol=1e-12)


@given(scores=SCORES, weight=st.floats(0.01, 0.99))
def test_a_strong_prior_is_not_moved(scores, weight):
    stubborn = dpc.Exact(schedule=dpc.schedules.Dirichlet(1e12))
    np.testing.assert_allclose(dpc.replay(stubborn, scores, [weight]).thresholds, weight, atol=1e-9)


@given(scores=SCORES, shift=st.integers(-5, 5), scale=st.sampled_from([0.5, 2.0, 8.0]))
def test_thresholds_move_with_the_scale_of_the_scores(scores, shift, scale):
    scores = np.round(scores, 3)
    base = dpc.replay(dpc.Exact(), scores, [0.2, 0.9]).thresholds
    prior = dpc.priors.Uniform(float(shift), float(shift + scale))
    moved = dpc.replay(dpc.Exact(prior), np.clip(shift + scale * scores, *prior.support), [0.2, 0.9]).thresholds
    np.testing.assert_allclose(moved, shift + scale * jnp.asarray(base), atol=1e-10)
