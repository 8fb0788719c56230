"""Beliefs through the PITs of others: thresholds, and that a score is covered exactly when its PIT is."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import GRID, LEVELS, sequences
from scipy import stats

import dpconformal as dpc
from dpconformal.forecasts import AutoRegression, Given, LocalLevel, Seasonal

BINS, T = 16, 120
BASES = {
    "quantized": dpc.Quantized(BINS, discount=0.9),
    "exact": dpc.Exact(dpc.priors.Beta(2, 5)),
    "autoregression": AutoRegression(1, memory=20, low=0.0, high=1.0),
}
BYS = {
    "quantized": dpc.Quantized(BINS, discount=0.9, rounding="nearest"),
    "exact": dpc.Exact(),
    "ogd": dpc.OGD(GRID),
    "aci": dpc.ACI(GRID, window=16),
}
PAIRS = [
    ("quantized", "quantized"),
    ("exact", "exact"),
    ("autoregression", "ogd"),
    ("quantized", "aci"),
    ("exact", "quantized"),
]


def rounds_as_told(scores, mask=None, delay=0):
    """List, for each round, the rounds whose scores are known before it."""
    mask = np.zeros(len(scores), bool) if mask is None else mask
    return [[i for i in range(max(t - delay, 0)) if not mask[i]] for t in range(len(scores))]


def one_by_one(learner, scores, levels, known):
    """Thresholds and PITs, each round from a state that has seen what is known, in order: no driver, no kernel."""
    base, by = learner.base, learner.by
    rows, pits = [], []
    states = {(): (base.init(), by.init())}
    for t, past in enumerate(known):
        key = tuple(past)
        if key not in states:
            own, other = states[key[:-1]]
            states = {key: (base.observe(own, scores[key[-1]]), by.observe(other, pits[key[-1]]))}
        own, other = states[key]
        asked = np.clip(by.quantile(other, levels), 0, 1)
        rows.append(np.asarray(base.quantile(own, asked)))
        pits.append(float(np.clip(base.cdf(own, scores[t], side="left"), 0, 1)))
    return np.array(rows), np.array(pits)


@pytest.mark.parametrize(("base", "by"), PAIRS)
@pytest.mark.parametrize(("mask", "delay"), [(None, 0), (np.arange(T) % 7 == 3, 0), (np.arange(T) % 7 == 3, 3)])
def test_thresholds_are_those_of_the_parts_and_coverage_transfers(base, by, mask, delay):
    """Finds a right limit, a PIT of a later forecast under a delay, and a gap that one part learns from."""
    learner = dpc.Recalibrated(BASES[base], BYS[by])
    levels = LEVELS if by in ("quantized", "exact") else GRID
    for name in ("tied", "drifting") if delay or mask is not None else ("uniform", "tied", "alternating", "extreme"):
        if name == "alternating" and base == "autoregression":
            continue  # it is predicted exactly: what is left of an error is rounding
        scores = sequences(T)[name]
        expected, pits = one_by_one(learner, scores, levels, rounds_as_told(scores, mask, delay))
        run = dpc.replay(learner, scores, levels, mask=mask, delay=delay)
        # Next to its end the Beta prior's quantile is a square root, which makes 1e-8 of a rounding.
        atol = 1e-7 if (base, name) == ("exact", "alternating") else 1e-9
        np.testing.assert_allclose(run.thresholds, expected, atol=atol, err_msg=name)
        asked = by_levels(learner.by, pits, levels, mask, delay)
        seen = np.ones(T, bool) if mask is None else ~mask
        covered, as_pit = (scores[:, None] <= np.asarray(run.thresholds))[seen], (pits[:, None] <= asked)[seen]
        undecided = np.abs(pits[:, None] - asked)[seen] < 1e-12  # by rounding
        assert ((covered == as_pit) | undecided).all(), name
        assert undecided.mean() < 0.5 or name in ("alternating", "extreme")


def by_levels(by, pits, levels, mask, delay):
    return np.clip(dpc.replay(by, pits, levels, mask=mask, delay=delay).thresholds, 0, 1)


def test_native_loops_and_the_scan_agree():
    """Finds a kernel that hands a part the wrong rounds: in batches, after an earlier run, in totals."""
    scores = np.stack([sequences(T)[name] for name in ("uniform", "drifting")])
    for base, by in PAIRS[:2]:
        learner = dpc.Recalibrated(BASES[base], BYS[by])
        fast, slow = (dpc.replay(learner, scores, LEVELS, method=method) for method in ("auto", "scan"))
        np.testing.assert_allclose(fast.thresholds, slow.thresholds, atol=1e-9)
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-9), fast.state, slow.state)
        late = dpc.replay(learner, scores[:, :50], LEVELS, delay=[0, 4])
        rest = dpc.replay(learner, scores[:, 50:], LEVELS, delay=[0, 4], state=late.state)
        whole = dpc.replay(learner, scores, LEVELS, delay=[0, 4], method="scan")
        np.testing.assert_allclose(rest.thresholds, whole.thresholds[:, 50:], atol=1e-9)
        totals = dpc.replay(learner, scores, LEVELS, keep="summary")
        np.testing.assert_array_equal(totals.covered, (scores[..., None] <= np.asarray(fast.thresholds)).sum(axis=1))
    traced = jax.jit(lambda s: dpc.replay(learner, s, LEVELS).thresholds)(jnp.asarray(scores[0]))
    np.testing.assert_allclose(traced, fast.thresholds[0], atol=1e-9)


def test_the_cdf_is_that_of_by_after_that_of_the_base():
    learner = dpc.Recalibrated(BASES["quantized"], BYS["exact"])
    state = dpc.replay(learner, sequences(T)["uniform"], [0.5]).state
    x = np.linspace(0, 1, 41)
    inner = learner.base.cdf(state.base, x)
    np.testing.assert_allclose(learner.cdf(state, x), learner.by.cdf(state.by, inner), atol=1e-15)
    levels = np.linspace(0.01, 0.99, 50)
    reached = learner.cdf(state, learner.quantile(state, levels))
    assert (reached >= levels - 1e-12).all()
    with pytest.raises(ValueError, match=r"Recalibrated\.by is OGD, which has no cdf"):
        dpc.Recalibrated(BASES["exact"], BYS["ogd"]).cdf(dpc.Recalibrated(BASES["exact"], BYS["ogd"]).init(), 0.5)


def test_a_perfect_forecast_is_left_as_it_is_and_a_wrong_one_is_mended():
    """Finds a `by` that learns nothing, and a prior of the PITs that is not uniform."""
    rng = np.random.default_rng(5)
    scores = rng.standard_t(4, 4000)
    given = np.stack([np.zeros(4000), np.full(4000, 0.5)], axis=-1)  # half the scale, and no tails
    levels = np.array([0.1, 0.5, 0.9])
    run = dpc.replay(dpc.Recalibrated(Given(shape="normal"), dpc.Exact()), scores, levels, context=given)
    error = np.abs(np.asarray(dpc.metrics.coverage(run)) - levels)
    assert error.max() <= 4 * np.sqrt(0.25 / 4000)
    np.testing.assert_allclose(run.thresholds[0], stats.norm.ppf(levels, 0, 0.5), atol=1e-9)
    wrong = dpc.replay(Given(shape="normal"), scores, levels, context=given)
    assert float(dpc.metrics.quantile_loss(run).mean()) < 0.97 * float(dpc.metrics.quantile_loss(wrong).mean())


def test_contexts_reach_their_part_under_a_delay():
    """Finds the context of the round in the place of that of its score, and the other way round."""
    places = np.arange(T) % 4
    scores = sequences(T)["uniform"] + places
    learner = dpc.Recalibrated(Seasonal(4), BYS["exact"])
    run = dpc.replay(learner, scores, LEVELS, context=places, delay=2)
    base = dpc.replay(Seasonal(4), scores, LEVELS, context=places, delay=2)
    pits = np.asarray(dpc.metrics.pit(base))
    asked = by_levels(BYS["exact"], pits, LEVELS, None, 2)
    again = dpc.replay(Seasonal(4), scores, asked, context=places, delay=2)
    np.testing.assert_allclose(run.thresholds, again.thresholds, atol=1e-9)
    with pytest.raises(ValueError, match="neither base nor by of this Recalibrated takes one"):
        dpc.replay(dpc.Recalibrated(LocalLevel()), scores, [0.5], context=places)


def test_where_the_base_is_flat_coverage_does_not_transfer():
    """The counterexample to the claim without its condition: an empirical distribution is flat between scores."""
    scores = np.tile([0.2, 0.8, 0.5], 40)
    learner = dpc.Recalibrated(dpc.ERM(), dpc.Exact())
    run = dpc.replay(learner, scores, [0.5])
    base = dpc.replay(dpc.ERM(), scores, [0.5])
    pits = np.clip(np.asarray(dpc.metrics.pit(base, side="left")), 0, 1)
    asked = by_levels(dpc.Exact(), pits, [0.5], None, 0)
    assert ((scores[:, None] <= np.asarray(run.thresholds)) != (pits[:, None] <= asked)).any()


def test_parts_that_cannot_be_are_refused():
    for wrong, message in [
        (lambda: dpc.Recalibrated(dpc.OGD([0.5])), r"Recalibrated\.base is OGD: pass a belief"),
        (lambda: dpc.Recalibrated(dpc.Exact), r"Recalibrated\.base = .*: pass a learner, an instance"),
        (lambda: dpc.Recalibrated(dpc.Exact(), LocalLevel()), r"Recalibrated\.by has support .*: PITs are in \[0, 1\]"),
        (lambda: dpc.replay(dpc.Recalibrated(dpc.Exact(), BYS["ogd"]), [0.5], [0.123]), "0.123"),
        (lambda: dpc.Recalibrated(dpc.Exact()).quantile(dpc.Exact().init(), [0.5]), "carries on from a Recalibration"),
        (lambda: dpc.Rearranged(dpc.Exact()), r"Rearranged\.learner is Exact: pass a method with a grid"),
    ]:
        with pytest.raises(ValueError, match=message):
            wrong()


@pytest.mark.parametrize("method", ["ogd", "aci"])
def test_rearranged_thresholds_keep_what_is_promised(method):
    """Counts, mean coverage and order are kept, the summed loss never rises; single levels may change."""
    scores = sequences(T)["drifting"]
    plain, ordered = (dpc.replay(one, scores, GRID) for one in (BYS[method], dpc.Rearranged(BYS[method])))
    np.testing.assert_array_equal(np.sort(plain.thresholds, axis=-1), ordered.thresholds)
    covered, again = (scores[:, None] <= np.asarray(run.thresholds) for run in (plain, ordered))
    np.testing.assert_array_equal(covered.sum(axis=1), again.sum(axis=1))
    top, top_again = (np.cumsum(hits.sum(axis=0)[::-1]) for hits in (covered, again))
    assert (top_again >= top).all()
    loss, loss_again = (np.asarray(dpc.metrics.quantile_loss(run)).sum(axis=-1) for run in (plain, ordered))
    assert (loss_again <= loss + 1e-12).all()
    assert int(dpc.metrics.crossings(plain).rounds) > 0 or method == "aci"
    assert int(dpc.metrics.crossings(ordered).rounds) == 0
    some = dpc.replay(dpc.Rearranged(BYS[method]), scores, GRID[[3, 1]])
    np.testing.assert_array_equal(some.thresholds, np.asarray(ordered.thresholds)[:, [3, 1]])


def test_with_unequal_weights_sorting_can_raise_the_loss():
    levels, weights, crossed, score = np.array([0.5, 0.9]), np.array([1, 10]), np.array([1.0, 0.0]), 0.0
    loss = lambda r: np.sum(weights * np.maximum(levels * (score - r), (1 - levels) * (r - score)))  # noqa: E731
    assert loss(np.sort(crossed)) > loss(crossed)
