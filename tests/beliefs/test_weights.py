"""Importance weights: how much each score counts, in the belief and in everything that goes through a run again."""

import jax
import numpy as np
import pytest
import reference

import dpconformal as dpc

RNG = np.random.default_rng(5)
SCORES, WEIGHTS = RNG.random(60), 3 * RNG.random(60)
LEVELS = np.array([0.0, 0.1, 0.5, 0.9, 1.0])
LEARNER = dpc.Quantized(16)


def replay(**options):
    return dpc.replay(LEARNER, SCORES, LEVELS, weights=WEIGHTS, **options)


def expected(scores, weights):
    """Thresholds by bisection of the formula, one row a round."""
    of_round = reference.importance_weighted_thresholds
    return np.stack([of_round(scores[:t], weights[:t], LEVELS, 16, t + 1) for t in range(len(scores))])


def test_weights_multiply_the_mass_of_their_score():
    # Finds masses that are not normalised, a weight that meets another round's score, a weight that changes λ_t.
    np.testing.assert_allclose(replay().thresholds, expected(SCORES, WEIGHTS), atol=1e-9)


def test_equal_weights_are_no_weights_whatever_their_scale():
    plain = dpc.replay(LEARNER, SCORES, LEVELS).thresholds
    for scale in (1e-3, 1.0, 1e6):
        same = dpc.replay(LEARNER, SCORES, LEVELS, weights=np.full(60, scale)).thresholds
        np.testing.assert_allclose(same, plain, atol=1e-12)


def test_masks_delays_batches_and_runs_in_parts_keep_each_weight_with_its_score():
    whole = replay()
    late = replay(delay=3).thresholds
    np.testing.assert_allclose(late[3:], whole.thresholds[:-3], atol=1e-12)
    first = dpc.replay(LEARNER, SCORES[:25], LEVELS, weights=WEIGHTS[:25], delay=3)
    rest = dpc.replay(LEARNER, SCORES[25:], LEVELS, weights=WEIGHTS[25:], delay=3, state=first.state)
    np.testing.assert_allclose(rest.thresholds, late[25:], atol=1e-12)
    mask = RNG.random(60) < 0.3
    masked = replay(mask=mask).observed()
    np.testing.assert_allclose(masked.thresholds, expected(SCORES[~mask], WEIGHTS[~mask]), atol=1e-9)
    np.testing.assert_array_equal(masked.weights, WEIGHTS[~mask])
    both = dpc.replay(LEARNER, np.stack([SCORES, SCORES]), LEVELS, weights=np.stack([WEIGHTS, WEIGHTS[::-1]]))
    np.testing.assert_allclose(both.sequence(0).thresholds, whole.thresholds, atol=1e-12)
    np.testing.assert_array_equal(both.sequence(1).weights, WEIGHTS[::-1])


def test_weights_of_zero_leave_the_prior():
    run = dpc.replay(LEARNER, SCORES, LEVELS, weights=np.zeros(60))
    np.testing.assert_allclose(run.thresholds, np.broadcast_to(LEVELS, (60, 5)), atol=1e-12)


def test_a_run_with_weights_is_read_again_with_them():
    # Finds PITs of the unweighted belief.
    run = replay()
    pits = dpc.metrics.pit(run)
    for t in (0, 7, 59):
        edge = np.ceil(SCORES[:t] * 16) / 16
        weight = 1 / np.sqrt(t + 1)
        share = np.sum(WEIGHTS[:t] * (edge <= SCORES[t])) / np.sum(WEIGHTS[:t]) if t else 0
        upper = np.asarray(pits)[t].max()
        np.testing.assert_allclose(upper, weight * SCORES[t] + (1 - weight) * share if t else SCORES[t], atol=1e-9)


def test_refused():
    for learner, weights, why in (
        (dpc.Exact(), WEIGHTS, "weights are given, and Exact takes none: pass Quantized"),
        (dpc.Quantized(16, discount=0.9), WEIGHTS, "this Quantized has discount = 0.9: leave the discount out"),
        (LEARNER, WEIGHTS[:3], r"weights has shape \(3,\): pass one number a round, shape \(60,\)"),
        (LEARNER, np.where(np.arange(60) == 4, -1.0, 1.0), r"weights\[4\] = -1.0: must be finite and not negative"),
        (LEARNER, np.where(np.arange(60) == 4, np.nan, 1.0), r"weights\[4\] = nan"),
    ):
        with pytest.raises(ValueError, match=why):
            dpc.replay(learner, SCORES, LEVELS, weights=weights)
    with pytest.raises(ValueError, match=r"state\.weights has dtype float64.*with a discount or with weights"):
        dpc.replay(LEARNER, SCORES, LEVELS, state=replay().state)
    late = dpc.replay(LEARNER, SCORES, LEVELS, delay=2).state
    with pytest.raises(ValueError, match=r"weights: what is on its way in state\.waiting has none"):
        dpc.replay(LEARNER, SCORES, LEVELS, state=late, delay=2, weights=WEIGHTS)
    with pytest.raises(ValueError, match=r"run\.weights: certificates are for scores that count alike"):
        dpc.theory.certify(replay())


def test_a_bad_weight_inside_jit_spoils_what_follows():
    bad = np.where(np.arange(60) == 4, -1.0, 1.0)
    found = jax.jit(lambda weights: dpc.replay(LEARNER, SCORES, LEVELS, weights=weights).thresholds)(bad)
    assert np.isfinite(found[:5]).all()
    assert np.isnan(found[5:]).all()
