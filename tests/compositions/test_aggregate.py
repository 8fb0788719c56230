"""Several beliefs in the place of one: mixed right, never far from the best, in order."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import reference
from cases import covering, sequences
from hypothesis import given
from hypothesis import strategies as st

import dpconformal as dpc
from dpconformal.compositions.aggregate import mix_cdfs

LEVELS = np.array([0.0, 0.1, 0.5, 0.9, 0.99, 1.0])
BINS = 12
# Discount, constant weight, rounding.
PARTS = [(0.9, 0.2, "up"), (None, 0.3, "nearest"), (0.6, 0.05, "up"), (None, 0.01, "nearest")]


def learners(low=0.0, high=1.0, bins=BINS):
    prior = dpc.priors.Uniform(low, high)
    return [dpc.Quantized(bins, prior, dpc.schedules.Constant(w), discount, kind) for discount, w, kind in PARTS]


def cdfs(scores, points, low=0.0, high=1.0, bins=BINS):
    """(N, T, P): each belief's cdf before each score, from the formula."""
    x = np.tile(points, (len(scores), 1))
    found = []
    for discount, weight, rounding in PARTS:
        kept = reference.to_bin(scores, bins, low, high, rounding)
        shares = reference.shares_of_past(len(scores), lambda t, w=weight: w, discount)
        found.append(reference.belief_cdf(x, lambda v: (v - low) / (high - low), kept, shares))
    return np.array(found)


@covering(sequence=["uniform", "tied", "alternating", "sorted", "constant", "extreme"], share=[0.0, 0.02])
def test_thresholds_are_those_of_the_formula(sequence, share):
    low, high = -1.0, 3.0
    scores = sequences(50, low, high)[sequence]
    edges = low + (high - low) * np.arange(2 * BINS + 1) / (2 * BINS)
    tables = cdfs(scores, (edges[1:] + edges[:-1]) / 2, low, high).transpose(1, 0, 2)
    own = np.stack([dpc.replay(one, scores, LEVELS).thresholds for one in learners(low, high)], axis=1)
    wanted = reference.aggregate_thresholds(scores, LEVELS, tables, own, low, high, share)
    run = dpc.replay(dpc.Aggregate(learners(low, high), fixed_share=share, cells=2 * BINS), scores, LEVELS)
    np.testing.assert_allclose(run.thresholds, wanted, rtol=0, atol=1e-9)


def test_an_aggregate_of_one_is_that_one():
    scores = sequences(60)["skewed"]
    for one in (dpc.Exact(), dpc.Quantized(16, discount=0.9)):
        alone, run = dpc.replay(one, scores, LEVELS), dpc.replay(dpc.Aggregate([one]), scores, LEVELS)
        np.testing.assert_allclose(run.thresholds, alone.thresholds, rtol=0, atol=1e-13)


def _whole_cdf(learner, state, score, x):
    return learner.cdf(state, x)


def crps_of(run, points=4000):
    """Total CRPS of a run, by its own cdf at many points."""
    low, high = dpc.learner.support_of(run.learner)
    x = low + (high - low) * (np.arange(points) + 0.5) / points
    found = dpc.metrics.loss.read_again(run, _whole_cdf, jnp.asarray(x))
    return (high - low) * np.mean((np.asarray(found) - (np.asarray(run.scores)[:, None] <= x)) ** 2, axis=1).sum()


@pytest.mark.parametrize("sequence", ["uniform", "alternating", "drifting", "constant", "skewed"])
def test_crps_is_within_its_bound_of_the_best_belief(sequence):
    low, high = 2.0, 5.0
    scores = sequences(120, low, high)[sequence]
    run = dpc.replay(dpc.Aggregate(learners(low, high)), scores, [0.5])
    alone = [crps_of(dpc.replay(one, scores, [0.5])) for one in learners(low, high)]
    bound = np.log(len(alone)) * (high - low) / 2
    assert crps_of(run) - min(alone) <= bound
    # And not for want of trying: one belief alone may do much worse than that.
    assert max(alone) - min(alone) > 0.3 * bound


def test_crps_is_within_its_bound_on_sequences_searched_against_it():
    """Of the scores tried in a round, the one that hurts the aggregate most in comparison with its best belief."""
    parts = [dpc.Quantized(8, schedule=dpc.schedules.Constant(1e-3), discount=d) for d in (0.3, 0.6, 0.9)]
    mixture = dpc.Aggregate(parts)
    x = jnp.asarray((np.arange(400) + 0.5) / 400)
    tried = jnp.asarray([0.01, 0.3, 0.45, 0.55, 0.7, 0.99])

    @jax.jit
    def play(state, own, totals):
        def costs(cdf):
            return jnp.mean((cdf[None] - (tried[:, None] <= x[None]).astype(cdf.dtype)) ** 2, axis=1)

        mine, theirs = (
            costs(mixture.cdf(state, x)),
            jnp.stack([costs(part.cdf(one, x)) for part, one in zip(parts, own, strict=True)]),
        )
        after = totals[0] + mine - jnp.min(totals[1:, None] + theirs, axis=0)
        worst = jnp.argmax(after)
        totals = totals + jnp.concatenate([mine[None], theirs])[:, worst]
        score = tried[worst]
        own = [part.observe(one, score) for part, one in zip(parts, own, strict=True)]
        return mixture.observe(state, score), own, totals

    state, own, totals = mixture.init(), [part.init() for part in parts], jnp.zeros(4)
    largest = 0.0
    for _ in range(250):
        state, own, totals = play(state, own, totals)
        largest = max(largest, float(totals[0] - totals[1:].min()))
    assert 0.1 < largest <= np.log(3) / 2


def test_fixed_share_follows_a_switch():
    rng = np.random.default_rng(4)
    scores = np.concatenate([rng.beta(2, 5, 900), np.clip(np.arange(200) % 50 / 50 + 0.05 * rng.random(200), 0, 1)])
    parts = [dpc.Quantized(32, schedule=dpc.schedules.Dirichlet(1.0)), dpc.Quantized(32, discount=0.7)]
    loss = [
        float(
            np.asarray(dpc.metrics.quantile_loss(dpc.replay(dpc.Aggregate(parts, share), scores, [0.5, 0.9])))[
                900:
            ].mean()
        )
        for share in (0.0, 0.01)
    ]
    assert loss[1] < 0.9 * loss[0]
    # Its bound: against the first belief before the switch, and the second after it.
    run, n, s, k = dpc.replay(dpc.Aggregate(parts, 0.01), scores, [0.5]), 2, 0.01, 1
    grid = (np.arange(1000) + 0.5) / 1000
    hit = scores[:, None] <= grid

    def by_round(one):
        found = dpc.metrics.loss.read_again(dpc.replay(one, scores, [0.5]), _whole_cdf, jnp.asarray(grid))
        return np.mean((np.asarray(found) - hit) ** 2, axis=1)

    mine, first, second = by_round(run.learner), by_round(parts[0]), by_round(parts[1])
    allowed = (np.log(n) + k * np.log(n / s) + (len(scores) - 1 - k) * np.log(1 / (1 - s))) / 2
    assert mine.sum() - first[:900].sum() - second[900:].sum() <= allowed


@given(st.lists(st.floats(0, 1), min_size=1, max_size=6), st.integers(0, 2**32 - 1))
def test_the_mixture_costs_no_more_than_the_aggregating_algorithm_allows(forecasts, seed):
    values = np.array(forecasts)
    weights = np.random.default_rng(seed).dirichlet(np.ones(values.size))
    mixture = float(mix_cdfs(jnp.asarray(values)[:, None], jnp.log(jnp.asarray(weights))[:, None])[0])
    assert values.min() - 1e-12 <= mixture <= values.max() + 1e-12
    for outcome in (0, 1):
        allowed = -np.log(np.sum(weights * np.exp(-2 * (values - outcome) ** 2))) / 2
        assert (mixture - outcome) ** 2 <= allowed + 1e-12


def test_learners_of_one_kind_are_one_program_and_keep_their_places():
    mixed_up = dpc.Aggregate(learners())
    run = dpc.replay(mixed_up, sequences(80)["drifting"], LEVELS)
    assert len(run.state.learners) == 2
    order = [2, 0, 3, 1]
    other = dpc.Aggregate([mixed_up.learners[i] for i in order])
    again = dpc.replay(other, sequences(80)["drifting"], LEVELS)
    np.testing.assert_allclose(again.thresholds, run.thresholds, rtol=0, atol=1e-12)
    weights = np.asarray(mixed_up.weights(run.state))
    np.testing.assert_allclose(other.weights(again.state), weights[order], rtol=1e-9)
    np.testing.assert_allclose(weights.sum(), 1)


def test_auto_is_close_to_the_best_discount_without_being_told():
    rng = np.random.default_rng(2)
    t = np.arange(1500)
    streams = {
        "iid": rng.beta(2, 5, 1500),
        "alternating": t % 2 * 1.0,
        "abrupt": np.where(t // 300 % 2, rng.beta(8, 2, 1500), rng.beta(2, 8, 1500)),
        "slow": np.clip(0.2 + 0.6 * t / 1500 + 0.08 * rng.standard_normal(1500), 0, 1),
    }
    levels = [0.5, 0.8, 0.9, 0.95, 0.99]

    def loss(learner, scores):
        return float(np.mean(dpc.metrics.quantile_loss(dpc.replay(learner, scores, levels))))

    for name, scores in streams.items():
        fixed = [dpc.Quantized(256), *(dpc.Quantized(256, discount=1 - 2.0**-k) for k in range(2, 12))]
        best = min(loss(one, scores) for one in fixed)
        assert loss(dpc.auto(), scores) <= 1.02 * best, name


def test_what_cannot_be_mixed_is_refused():
    for wrong, message in (
        ([], "pass a list of beliefs"),
        (dpc.Exact(), "pass a list of beliefs"),
        ([dpc.Exact(), dpc.OGD([0.5])], r"learners\[1\] is OGD: only beliefs"),
        ([dpc.Exact, dpc.Exact()], r"learners\[0\] is Exact"),
        ([dpc.Exact(), dpc.Exact(dpc.priors.Uniform(0, 2))], r"learners\[1\] has support \(0.0, 2.0\)"),
        ([dpc.Exact(dpc.priors.HalfNormal(1.0))], "a mixture needs a bounded one"),
    ):
        with pytest.raises(ValueError, match=message):
            dpc.Aggregate(wrong)
    for share in (-0.1, 1.0, np.nan):
        with pytest.raises(ValueError, match=r"Aggregate.fixed_share"):
            dpc.Aggregate([dpc.Exact()], share)
    with pytest.raises(ValueError, match=r"Aggregate.cells = 0"):
        dpc.Aggregate([dpc.Exact()], cells=0)
    mixture = dpc.Aggregate([dpc.Quantized(8)])
    with pytest.raises(ValueError, match="none of the learners of this Aggregate takes one"):
        dpc.replay(mixture, [0.5], [0.5], context=[1])
    with pytest.raises(ValueError, match="state is of 1 learners, and this Aggregate has 2"):
        dpc.Aggregate([dpc.Quantized(8)] * 2).quantile(mixture.init(), [0.5])
    with pytest.raises(ValueError, match="state has 512 cells"):
        dpc.Aggregate([dpc.Quantized(8)], cells=32).quantile(mixture.init(), [0.5])
    with pytest.raises(ValueError, match="auto got a prior as well as low, high"):
        dpc.auto(0, 2, prior=dpc.priors.Uniform())
    with pytest.raises(ValueError, match=r"auto\.longest = 4"):
        dpc.auto(longest=4)


def test_groups_can_be_mixed_too():
    rng = np.random.default_rng(0)
    scores, groups = rng.random(60), rng.integers(0, 3, 60)
    parts = [dpc.Hierarchical(3, concentrations=a, bins=16) for a in (1.0, 20.0)]
    mixture = dpc.Aggregate([*parts, dpc.Quantized(16)])
    run = dpc.replay(mixture, scores, LEVELS, context=groups)
    own = np.stack([dpc.replay(one, scores, LEVELS, context=groups).thresholds for one in parts])
    own = np.concatenate([own, np.asarray(dpc.replay(dpc.Quantized(16), scores, LEVELS).thresholds)[None]])
    assert (run.thresholds >= own.min(axis=0)).all()
    assert (run.thresholds <= own.max(axis=0)).all()
    named = [dpc.Hierarchical(names, bins=16) for names in (["a", "b"], ["b", "a"])]
    with pytest.raises(ValueError, match="means different things"):
        dpc.replay(dpc.Aggregate(named), [0.5], [0.5], context=["a"])


def test_checkpoints_carry_on_to_the_bit(tmp_path):
    scores = sequences(80)["drifting"]
    mixture = dpc.auto(bins=16, longest=16)
    whole, first = dpc.replay(mixture, scores, LEVELS), dpc.replay(mixture, scores[:40], LEVELS)
    dpc.save(tmp_path / "mixture.dpc", mixture, first.state)
    learner, state = dpc.load(tmp_path / "mixture.dpc")
    assert learner == mixture
    np.testing.assert_array_equal(
        dpc.replay(learner, scores[40:], LEVELS, state=state).thresholds, whole.thresholds[40:]
    )


def test_bad_weights_are_nan_and_are_not_saved(tmp_path):
    parts, scores = [dpc.Quantized(8), dpc.Quantized(8, discount=0.9)], sequences(20)["uniform"]
    jitted = jax.jit(lambda share: dpc.replay(dpc.Aggregate(parts, share, 16), scores, [0.5]).thresholds)
    assert np.isnan(jitted(2.0)[1:]).all()
    assert np.isfinite(jitted(0.5)).all()
    mixture = dpc.Aggregate(parts, cells=16)
    state = dpc.replay(mixture, scores, [0.5]).state
    cut = tuple(jax.tree.map(lambda leaf: leaf[:0], own) for own in state.learners)
    for bad, message in (
        (state._replace(log_weights=state.log_weights * np.nan), r"log_weights\[0, 0\] = nan: must be finite"),
        (state._replace(seen=state.seen + 1), r"state\.seen must be that of every learner"),
        (state._replace(learners=cut), r"state\.learners are not those of this Aggregate"),
    ):
        with pytest.raises(ValueError, match=message):
            dpc.save(tmp_path / "bad.dpc", mixture, bad)
    with pytest.raises(ValueError, match=r"state\.learners are not those"):
        dpc.replay(mixture, scores, [0.5], state=state._replace(learners=cut))


def test_a_mixture_within_a_mixture_is_told_of_groups_only_if_it_wants_to_know():
    scores, groups = sequences(20)["uniform"], np.arange(20) % 2
    inner = dpc.Aggregate([dpc.Quantized(8), dpc.Quantized(8, discount=0.9)], cells=16)
    outer = dpc.Aggregate([dpc.Hierarchical(2, bins=8), inner], cells=16)
    run = dpc.replay(outer, scores, [0.1, 0.5], context=groups)
    assert np.isfinite(run.thresholds).all()
    with pytest.raises(ValueError, match="none of the learners"):
        dpc.replay(dpc.Aggregate([inner]), scores, [0.5], context=groups)
