"""Groups: trees, nested beliefs, tables, and what each group is promised."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import reference
import xarray as xr
from cases import PRIORS, covering, sequences
from hypothesis import given
from hypothesis import strategies as st

import dpconformal as dpc
from dpconformal.compositions.tree import as_groups, as_tree, nodes_of
from dpconformal.theory import groups as group_bounds

LEVELS = np.array([0.0, 0.1, 0.5, 0.9, 0.99, 1.0])
PARENTS = [-1, -1, 0, 0, 1, 3]  # two families; a group within a group within a group
WEIGHTS = (4.0, 2.0, 3.0, 1.5)
T = 60


def rounds(seed=0, length=T, groups=6):
    return np.random.default_rng(seed).integers(-1, groups, length)


def oracle(scores, groups, levels, twin, low, high, bins=None, rounding="up"):
    """Thresholds of each round, by dictionaries and bisection."""
    parents = [6 if parent == -1 else parent for parent in PARENTS] + [None]
    kept = scores if bins is None else reference.to_bin(scores, bins, low, high, rounding)
    width = (high - low) / (bins or 1)
    above = 0.0 if rounding == "up" else width / 2  # from where a score counts to the upper edge of its bin
    base = (lambda value: 0.0) if bins is None else lambda v: twin.cdf(v + above) - twin.cdf(v + above - width)
    franchise, out = reference.Franchise(parents, WEIGHTS, base), []
    for value, group in zip(kept, np.where(groups < 0, 6, groups), strict=True):
        cdf = functools.partial(franchise.cdf, group, prior_cdf=twin.cdf)
        found = reference.bisect(cdf, np.asarray(levels), low, high)
        out.append(np.where(np.asarray(levels) >= 1, high, found))
        franchise.observe(group, value)
    return np.array(out)


@covering(
    sequence=["uniform", "tied", "alternating", "sorted", "constant", "extreme"],
    evidence=[(None, "up"), (8, "up"), (8, "nearest")],
)
def test_thresholds_are_those_of_the_formula(sequence, evidence):
    bins, rounding = evidence
    scores, groups = sequences(T)[sequence], rounds()
    prior, twin = PRIORS["uniform"]
    wanted = oracle(scores, groups, LEVELS, twin, 0.0, 1.0, bins, rounding)
    run = dpc.replay(dpc.Hierarchical(PARENTS, prior, WEIGHTS, bins, rounding), scores, LEVELS, context=groups)
    np.testing.assert_allclose(run.thresholds, wanted, rtol=0, atol=1e-9)
    assert (np.diff(run.thresholds, axis=1) >= 0).all()


def test_any_prior_will_do():
    scores, groups = sequences(40, -1, 4)["tied"], rounds(length=40)
    prior, twin = PRIORS["beta_wide"]
    for bins in (None, 6):
        wanted = oracle(scores, groups, LEVELS, twin, -1.0, 4.0, bins)
        run = dpc.replay(dpc.Hierarchical(PARENTS, prior, WEIGHTS, bins), scores, LEVELS, context=groups)
        np.testing.assert_allclose(run.thresholds, wanted, rtol=0, atol=1e-8)


def test_one_group_is_the_plain_belief():
    scores = sequences(T)["skewed"]
    for schedule in (5.0, dpc.schedules.InverseSqrt()):
        plain = dpc.schedules.Dirichlet(5.0) if schedule == 5.0 else schedule
        for grouped, alone in (
            (dpc.Hierarchical([-1], concentrations=schedule), dpc.Exact(schedule=plain)),
            (dpc.Hierarchical(1, concentrations=schedule, bins=16), dpc.Quantized(16, schedule=plain)),
        ):
            run = dpc.replay(grouped, scores, LEVELS, context=np.zeros(T, int))
            np.testing.assert_allclose(run.thresholds, dpc.replay(alone, scores, LEVELS).thresholds, rtol=0, atol=1e-12)


def test_without_ties_it_is_the_nested_mean_and_a_group_without_scores_has_its_parents():
    scores, groups = sequences(T)["uniform"], rounds(1, groups=5)  # group 5 is never seen
    learner = dpc.Hierarchical(PARENTS, concentrations=WEIGHTS)
    state = dpc.replay(learner, scores, [0.5], context=groups).state
    x = np.linspace(0, 1, 101)
    family = {0: (0, 2, 3, 5), 1: (1, 4), 3: (3, 5), 4: (4,)}
    whole = (4 * x + (scores[:, None] <= x).sum(axis=0)) / (4 + T)
    ups = {0: whole, 1: whole}
    for g, parent, a in ((0, -1, 2), (1, -1, 2), (3, 0, 3), (4, 1, 3)):
        own = scores[np.isin(groups, family[g])]
        above = whole if parent == -1 else ups[parent]
        ups[g] = (a * above + (own[:, None] <= x).sum(axis=0)) / (a + own.size)
        np.testing.assert_allclose(learner.cdf(state, x, context=g), ups[g], atol=1e-12)
    np.testing.assert_allclose(learner.cdf(state, x), whole, atol=1e-12)
    np.testing.assert_allclose(learner.cdf(state, x, context=5), ups[3], atol=1e-12)


@pytest.mark.parametrize("continuous", [True, False])
def test_expected_tables_are_close_to_the_exact_posterior_of_a_hierarchical_process(continuous):
    """All numbers of tables summed over: the order of the scores is all that the filter gets wrong."""
    rng, errors, naive = np.random.default_rng(0), [], []
    for _ in range(25):
        a, a0 = rng.choice([0.5, 2.0, 10.0]), rng.choice([1.0, 5.0])
        groups = np.repeat(np.arange(3), rng.integers(1, 6, 3))
        chances = rng.dirichlet(np.ones(4), 3)
        places = np.array([rng.choice(4, p=chances[g]) for g in groups])
        order = rng.permutation(groups.size)
        counts = np.zeros((3, 4), int)
        np.add.at(counts, (groups, places), 1)
        if continuous:
            learner, scores, base = dpc.Hierarchical(3, concentrations=(a0, a)), (places + 0.5) / 4, np.zeros(4)
        else:
            learner, base = dpc.Hierarchical(3, concentrations=(a0, a), bins=4), np.full(4, 0.25)
            scores = (places + 0.5) / 4
        state = dpc.replay(learner, scores[order], [0.5], context=groups[order]).state
        edges, centres = np.arange(5) / 4, (np.arange(4) + 0.5) / 4
        if continuous:
            found = np.asarray(learner.cdf(state, centres)) - np.asarray(learner.cdf(state, centres, side="left"))
        else:
            found = np.diff(np.asarray(learner.cdf(state, edges)))
        exact = reference.franchise_posterior(counts, a, a0, base)
        errors.append(np.abs(found - exact).max())
        pooled = (a0 * base + counts.sum(axis=0)) / (a0 + counts.sum())
        naive.append(np.abs(pooled - exact).max())
    assert np.mean(errors) < 0.012
    assert np.max(errors) < 0.06
    assert np.mean(errors) < 0.25 * np.mean(naive)


def test_expected_tables_with_a_fixed_parent_are_the_digamma_formula():
    """Another group keeps the root's belief at what it is: then c equal scores open s(ψ(s + c) - ψ(s)) tables."""
    from scipy.special import digamma

    learner = dpc.Hierarchical(2, concentrations=(1e9, 3.0), bins=4)  # a root that nothing moves
    count = 40
    state = dpc.replay(learner, np.full(count, 0.3), [0.5], context=np.zeros(count, int)).state
    s = 3.0 * 0.25
    np.testing.assert_allclose(state.totals[2], s * (digamma(s + count) - digamma(s)), rtol=1e-6)


@given(st.lists(st.tuples(st.floats(0, 1), st.integers(-1, 5)), min_size=1, max_size=30))
def test_beliefs_are_distributions_whatever_comes(history):
    scores, groups = (np.array(part) for part in zip(*history, strict=True))
    padded = np.resize(scores, 30), np.resize(groups, 30)
    learner = dpc.Hierarchical(PARENTS, concentrations=WEIGHTS, bins=5)
    state = dpc.replay(learner, padded[0], [0.5], context=padded[1], mask=np.arange(30) >= scores.size).state
    assert (np.asarray(state.counts) >= 0).all()
    np.testing.assert_allclose(state.counts.sum(axis=1), state.totals, rtol=1e-9)
    for group in range(-1, 6):
        values = np.asarray(learner.cdf(state, np.linspace(0, 1, 21), context=group))
        assert (np.diff(values) >= -1e-12).all()
        np.testing.assert_allclose(values[-1], 1, atol=1e-12)
        # A parent is never told of more than its children have seen.
    own = np.bincount(np.where(groups < 0, 6, groups), minlength=7)
    below = {0: (0, 2, 3, 5), 1: (1, 4), 2: (2,), 3: (3, 5), 4: (4,), 5: (5,), 6: range(7)}
    for node, members in below.items():
        assert float(state.totals[node]) <= own[list(members)].sum() + 1e-9


@pytest.mark.parametrize("bins", [None, 8])
def test_replay_batches_resumes_and_jits_like_any_learner(bins, tmp_path):
    learner = dpc.Hierarchical(PARENTS, concentrations=WEIGHTS, bins=bins)
    rng = np.random.default_rng(2)
    scores, groups = rng.integers(0, 9, (2, T)) / 8, np.stack([rounds(3), rounds(4)])
    batch = dpc.replay(learner, scores, LEVELS, context=groups)
    for i in range(2):
        alone = dpc.replay(learner, scores[i], LEVELS, context=groups[i])
        np.testing.assert_allclose(batch.thresholds[i], alone.thresholds, rtol=0, atol=1e-13)
    first = dpc.replay(learner, scores[0, :25], LEVELS, context=groups[0, :25])
    dpc.save(tmp_path / "groups.dpc", learner, first.state)
    again, state = dpc.load(tmp_path / "groups.dpc")
    assert again == learner
    second = dpc.replay(again, scores[0, 25:], LEVELS, state=state, context=groups[0, 25:])
    np.testing.assert_allclose(
        np.concatenate([first.thresholds, second.thresholds]), batch.thresholds[0], rtol=0, atol=1e-13
    )
    jitted = jax.jit(lambda s, g: dpc.replay(learner, s, LEVELS, context=g).thresholds)
    np.testing.assert_allclose(jitted(scores[0], groups[0]), batch.thresholds[0], rtol=0, atol=1e-13)
    state = learner.init()
    for t in range(12):
        found = learner.quantile(state, LEVELS, context=int(groups[0, t]))
        np.testing.assert_allclose(found, batch.thresholds[0, t], rtol=0, atol=1e-13)
        state = learner.observe(state, scores[0, t], context=int(groups[0, t]))
    single = dpc.replay(learner, scores[0].astype(np.float32), LEVELS, context=groups[0])
    assert single.thresholds.dtype == np.float32
    np.testing.assert_allclose(single.thresholds, batch.thresholds[0], atol=0.26)  # a level between two atoms may turn
    swept = jax.vmap(lambda a: dpc.replay(_with(learner, a), scores[0], LEVELS, context=groups[0]).thresholds)(
        jnp.array([1.0, 5.0])
    )
    other = dpc.Hierarchical(PARENTS, concentrations=5.0, bins=bins)
    np.testing.assert_allclose(
        swept[1], dpc.replay(other, scores[0], LEVELS, context=groups[0]).thresholds, rtol=0, atol=1e-13
    )


def _with(learner, a):
    """The same learner with one (traced) concentration for all depths."""
    return jax.tree.unflatten(
        jax.tree.structure(learner),
        [a if np.ndim(leaf) == 0 and leaf in WEIGHTS else leaf for leaf in jax.tree.leaves(learner)],
    )


def test_a_group_that_is_none_inside_jit_is_nan_from_then_on():
    learner = dpc.Hierarchical(3, bins=8)
    jitted = jax.jit(lambda g: dpc.replay(learner, np.full(6, 0.4), [0.5], context=g).thresholds)
    found = np.asarray(jitted(np.array([0, 1, 7, 0, 1, 2])))[:, 0]
    np.testing.assert_array_equal(np.isnan(found), [False, False, True, True, True, True])


def test_trees_are_read_in_every_way_of_writing_them():
    nested = as_tree({"north": {"a": ["b", "c"], "d": None}, "south": "e"})
    assert [name for name, _ in nested] == ["north", "a", "b", "c", "d", "south", "e"]
    assert [parent for _, parent in nested] == [-1, 0, 1, 1, 0, -1, 5]
    assert as_tree(np.array([-1, 0])) == as_tree([None, 0]) == (-1, 0)
    assert as_tree(["x", "y"]) == (("x", -1), ("y", -1))
    assert as_tree(nested) == nested
    assert nodes_of(as_tree({"all": ["x", "y"]})).root == 0
    assert nodes_of(as_tree(2)).root == 2
    parents = [-1, *(int(np.random.default_rng(i).integers(-1, i)) for i in range(1, 40))]
    nodes = nodes_of(as_tree(parents))
    for group, path in enumerate(nodes.paths[:40]):
        walk = [group]
        while parents[walk[-1]] >= 0:
            walk.append(parents[walk[-1]])
        walk = [*([40] if nodes.root == 40 else []), *walk[::-1]]
        assert path.tolist() == walk + [-1] * (path.size - len(walk))
        assert nodes.levels[group] == len(walk) - 1
    np.testing.assert_array_equal(as_groups(nested, [["e", "b"]]), [[6, 2]])
    np.testing.assert_array_equal(as_groups((-1, -1), [-1, 1]), [-1, 1])
    np.testing.assert_array_equal(as_groups((-1, 0), [-1, 1]), [0, 1])


@pytest.mark.parametrize(
    ("tree", "message"),
    [
        (0, "tree = 0: there must be one group"),
        ([], "tree is empty"),
        (2.5, "pass the number of groups"),
        ("north", "pass the number of groups"),
        ([1, 0], r"tree\[0\] is its own ancestor"),
        ([-1, 5], r"tree\[1\] has the parent 5"),
        ([-1, True], r"tree\[1\] has the parent True"),
        ([("a", -1), 0], r"tree\[1\] = 0: either all groups have names"),
        (["a", "a"], r"tree\[1\] has the name 'a'"),
        ({"a": ["a"]}, r"tree\[1\] has the name 'a'"),
    ],
)
def test_what_is_no_tree_is_refused(tree, message):
    with pytest.raises(ValueError, match=message):
        dpc.Hierarchical(tree)


def test_what_is_no_group_is_refused():
    learner = dpc.Hierarchical({"north": ["a", "b"]}, bins=4)
    for context, message in (
        (None, "context is missing"),
        (["a", "z"], r"context\[1\] = 'z' is no group: name one of the tree, such as north, a, b"),
        ([0, 3], r"context\[1\] = 3: groups are numbered from 0 to 2"),
        ([0.0, 1.0], "context has dtype float64"),
        ([0], r"context has shape \(1,\): pass a group a round, \(2,\)"),
    ):
        with pytest.raises(ValueError, match=message):
            dpc.replay(learner, [0.1, 0.2], [0.5], context=context)
    with pytest.raises(ValueError, match="this tree has no names"):
        dpc.replay(dpc.Hierarchical(2), [0.1], [0.5], context=["a"])
    with pytest.raises(ValueError, match="concentrations has 3 entries: pass one for all, or one for each of the 2"):
        dpc.Hierarchical(2, concentrations=[1.0, 2.0, 3.0])
    with pytest.raises(ValueError, match="concentration"):
        dpc.Hierarchical(2, concentrations=-1.0)
    with pytest.raises(ValueError, match="equal bins need a bounded one"):
        dpc.Hierarchical(2, dpc.priors.HalfNormal(1.0), bins=8)
    with pytest.raises(ValueError, match="this Hierarchical carries on from a GroupedScores"):
        dpc.Hierarchical(2).quantile(learner.init(), [0.5])
    with pytest.raises(ValueError, match="state is of a tree with 3 nodes and a depth of 2, and this one has 4 and 2"):
        dpc.Hierarchical(3, bins=4).quantile(learner.init(), [0.5])
    with pytest.raises(ValueError, match="counts up to 16777216 scores in float32"):
        learner.init(rounds=2**24 + 1, dtype=np.float32)


GUARDED = (dpc.schedules.Constant(0.2), dpc.schedules.InverseSqrt())


def arrangements(length=120):
    """Scores and groups that try to hurt group 0: by themselves, and by what the other group tells the parent."""
    rng, t = np.random.default_rng(6), np.arange(length)
    alternating = t // 2 % 2 * 1.0
    yield "in turn", alternating, t % 2
    yield "against each other", np.where(t % 2, 1 - alternating, alternating), t % 2
    yield "alone", t % 2 * 1.0, np.zeros(length, int)
    # Before each round of group 0 the other one draws the parent to the wrong side, with more and more scores.
    groups = np.ones(length, int)
    groups[np.cumsum(np.arange(1, 15))] = 0
    wrong = np.where(np.cumsum(groups == 0) % 2, 0.0, 1.0)
    yield "led astray", np.where(groups == 0, 1 - wrong, wrong), groups
    for k in range(3):
        yield f"random {k}", rng.choice([0.0, 0.4, 0.6, 1.0], length), rng.integers(0, 2, length)


@pytest.mark.parametrize("bins", [None, 40])
def test_regret_of_each_group_stays_below_its_bound_at_every_horizon(bins):
    levels = [0.1, 0.5, 0.9]
    for weights in (GUARDED, 2.0):
        learner = dpc.Hierarchical(2, concentrations=weights, bins=bins)
        for name, scores, groups in arrangements():
            run = dpc.replay(learner, scores, levels, context=groups)
            found = dpc.theory.certify(run).dataset
            verdicts = found.verdict.sel(check=["order", "optimality", "regret"]).values
            assert "FAIL" not in verdicts, name
            ends = dpc.theory.group_regret_bound(run)
            assert (ends.bound >= ends.regret).where(ends.rounds > 0, True).all()
            assert np.isfinite(ends.bound.where(ends.rounds > 0, 0.0)).all()


def test_the_bound_grows_like_the_root_where_it_is_said_to():
    """A steady share of the rounds, ancestors whose weights do not vanish: four times the rounds, twice the bound."""
    bounds = []
    for length in (500, 2000, 8000):
        learner = dpc.Hierarchical(4, concentrations=GUARDED, bins=2000)
        scores = np.random.default_rng(0).random(length)
        run = dpc.replay(learner, scores, [0.5], context=np.arange(length) % 4)
        ends = dpc.theory.group_regret_bound(run)
        quantization = 0.5 * float(ends.rounds[0]) / 2000
        bounds.append(float(ends.bound[0, 0]) - quantization)
    assert bounds[1] / bounds[0] < 2.2
    assert bounds[2] / bounds[1] < 2.15


def test_without_a_guard_regret_may_grow_with_time():
    """With weights that vanish at every depth the prior is lost, and alternating scores are ruinous."""
    near = 1e-3 * np.random.default_rng(0).random(2000)  # no two scores are equal: the parent is told of each
    scores, groups = np.abs(np.arange(2000) % 2 - near), np.zeros(2000, int)
    regrets = []
    for weights in (dpc.schedules.InverseSqrt(), GUARDED):
        run = dpc.replay(dpc.Hierarchical(2, concentrations=weights), scores, [0.5], context=groups)
        regrets.append(float(dpc.metrics.by_group(run).regret[0, 0]))
    assert regrets[0] > 100
    assert regrets[1] < 0.6 * regrets[0]


def test_coverage_of_every_group_lies_in_its_bracket_if_its_scores_are_iid():
    """Whatever the other groups are like: here they are of other distributions, and of other sizes."""
    sizes, shapes = [3, 10, 40], [(2, 5), (5, 2), (1, 1)]
    rng, many, levels = np.random.default_rng(11), 3000, [0.5, 0.9]
    order = rng.permutation(np.repeat(np.arange(3), np.array(sizes) + 1))
    scores = np.stack([rng.beta(*shapes[g], many) for g in order], axis=1)
    a = 4.0
    learner = dpc.Hierarchical(3, concentrations=(2.0, a))
    run = dpc.replay(learner, scores, levels, context=order)
    for g, size in enumerate(sizes):
        last = np.flatnonzero(order == g)[-1]
        covered = (scores[:, last, None] <= np.asarray(run.thresholds)[:, last]).mean(axis=0)
        low, high = dpc.theory.coverage_bracket(levels, size, a)
        error = 4 * np.sqrt(np.maximum(covered * (1 - covered), 1e-3) / many)
        assert (covered >= low - error).all(), (g, covered, low)
        assert (covered <= high + error).all(), (g, covered, high)


def test_certificates_are_by_group_and_find_a_wrong_threshold_and_a_group_that_drifts():
    rng = np.random.default_rng(1)
    names = {"north": ["a", "b"], "south": ["c"]}
    groups = rng.choice(["a", "b", "c"], 450)
    scores = rng.beta(2, 5, 450)
    learner = dpc.Hierarchical(names, concentrations=5.0)
    run = dpc.replay(learner, scores, [0.5, 0.9], context=groups)
    found = dpc.theory.certify(run)
    assert found.passed
    assert found.dataset.group.values.tolist() == ["north", "a", "b", "south", "c"]
    assert (found.dataset.verdict.sel(group="north") == "no claim").all()
    assert "450 rounds, 5 groups" in repr(found)
    wrong = run._replace(thresholds=run.thresholds.at[321, 1].set(run.thresholds[321, 1] + 0.01))
    failures = dpc.theory.certify(wrong).failures
    assert len(failures) == 1
    assert failures[0].startswith(f"group {groups[321]}, optimality, level 0.9")
    assert "from round 322 on" in failures[0]
    drifting = scores.copy()
    here = np.flatnonzero(groups == "b")
    drifting[here] = np.sort(drifting[here])
    failures = dpc.theory.certify(dpc.replay(learner, drifting, [0.5, 0.9], context=groups)).failures
    assert {failure.split(",")[0] for failure in failures} == {"group b"}
    masked = dpc.replay(
        learner, np.where(np.arange(450) % 9, scores, np.nan), [0.5], context=groups, mask=np.arange(450) % 9 == 0
    )
    assert dpc.theory.certify(masked).passed
    batch = dpc.replay(learner, np.stack([scores, drifting]), [0.5, 0.9], context=groups)
    assert dpc.theory.certify(batch).dataset.verdict.dims == ("batch", "group", "check", "level")


def test_metrics_by_group_are_those_of_the_groups_rounds():
    rng = np.random.default_rng(3)
    scores, groups = rng.random(80), rng.integers(0, 3, 80)
    run = dpc.replay(dpc.Hierarchical(4, bins=16), scores, [0.5, 0.9], context=groups)
    found = dpc.metrics.by_group(run)
    for g in range(3):
        here = groups == g
        own = np.asarray(run.thresholds)[here]
        loss = reference.quantile_loss(own, scores[here, None], np.array([0.5, 0.9]))
        np.testing.assert_allclose(found.loss.sel(group=g), loss.mean(axis=0))
        np.testing.assert_allclose(found.coverage.sel(group=g), (scores[here, None] <= own).mean(axis=0))
        np.testing.assert_allclose(found.threshold.sel(group=g), own.mean(axis=0))
        best = [reference.best_total_loss(scores[here], np.full(here.sum(), level)) for level in (0.5, 0.9)]
        np.testing.assert_allclose(found.regret.sel(group=g), loss.sum(axis=0) - best, atol=1e-12)
    assert found.rounds.values.tolist() == [*np.bincount(groups), 0]
    assert np.isnan(found.loss.sel(group=3)).all()
    overlapping = dpc.metrics.by_group(run, np.stack([groups < 2, groups > 0], axis=1), names=["low", "high"])
    assert overlapping.rounds.sel(group="high") == (groups > 0).sum()
    plain = dpc.replay(dpc.Exact(), scores, [0.5])
    assert dpc.metrics.by_group(plain, groups).sizes["group"] == 3
    for wrong, message in (
        ({}, "groups is missing"),
        ({"groups": groups[:5]}, "groups has 5 rounds, and the run 80"),
        ({"groups": groups, "names": ["a"]}, "names has 1 entries"),
        ({"groups": np.zeros((80, 2))}, r"groups has shape \(80, 2\)"),
    ):
        with pytest.raises(ValueError, match=message):
            dpc.metrics.by_group(plain, **wrong)


def test_groups_with_gaps_are_judged_by_their_scores():
    """Metrics and bounds counted rounds with gaps against rounds without; batches were refused."""
    rng = np.random.default_rng(3)
    scores, groups = rng.random((2, 80)), rng.integers(0, 3, (2, 80))
    mask, levels = rng.random((2, 80)) < [[0.1], [0.3]], np.array([0.5, 0.9])
    learner = dpc.Hierarchical(4, bins=16)
    run = dpc.replay(learner, np.where(mask, np.nan, scores), levels, context=groups, mask=mask)
    found, bounds = dpc.metrics.by_group(run), dpc.theory.group_regret_bound(run)
    assert found.loss.dims == bounds.bound.dims == ("batch", "group", "level")
    for k in range(2):
        for g in range(3):
            here = (groups[k] == g) & ~mask[k]
            own = np.asarray(run.thresholds)[k, here]
            loss = reference.quantile_loss(own, scores[k, here, None], levels)
            best = [reference.best_total_loss(scores[k, here], np.full(here.sum(), level)) for level in levels]
            one = found.sel(batch=k, group=g)
            assert one.rounds == here.sum()
            np.testing.assert_allclose(one.loss, loss.mean(axis=0))
            np.testing.assert_allclose(one.coverage, (scores[k, here, None] <= own).mean(axis=0))
            np.testing.assert_allclose(one.regret, loss.sum(axis=0) - best, atol=1e-12)
        assert np.isnan(found.loss.sel(batch=k, group=3)).all()
        xr.testing.assert_allclose(dpc.metrics.by_group(run.sequence(k)), found.sel(batch=k))
        # A gap is no round at all: the bound is that of the other rounds alone.
        kept = ~mask[k]
        alone = dpc.replay(learner, scores[k, kept], levels, context=groups[k, kept])
        want = dpc.theory.group_regret_bound(alone)
        xr.testing.assert_allclose(bounds.sel(batch=k), want)
        xr.testing.assert_allclose(dpc.theory.group_regret_bound(run.sequence(k)), want)
    assert (bounds.regret <= bounds.bound).where(bounds.rounds > 0, True).all()
    certificate = dpc.theory.certify(run)
    assert certificate.passed
    np.testing.assert_allclose(certificate.dataset.seen.sel(check="coverage"), found.coverage)
    np.testing.assert_allclose(dpc.metrics.by_group(run, groups[0]).rounds[0], found.rounds[0, :3])
    with pytest.raises(ValueError, match=r"groups has leading axes \(3,\), and the run \(2,\)"):
        dpc.metrics.by_group(run, np.zeros((3, 80), int))


def test_bins_add_one_bin_a_round_to_the_bound_of_a_group():
    scores, groups = np.random.default_rng(3).random(80), np.arange(80) % 3
    learner, levels = dpc.Hierarchical(4, bins=16), np.array([0.5, 0.9])
    path = group_bounds.group_path(dpc.replay(learner, scores, levels, context=groups))
    bare = dataclasses.replace(learner, bins=None)
    more = [group_bounds.group_bound_by_round(belief, path, 0, levels) for belief in (learner, bare)]
    np.testing.assert_allclose(more[0] - more[1], np.arange(1, 28)[:, None] / 16 + np.zeros(2))


def test_levels_of_groups_that_change_by_round_are_certified():
    scores, groups = np.random.default_rng(3).random(80), np.arange(80) % 3
    levels = np.stack([np.linspace(0.3, 0.6, 80), np.linspace(0.95, 0.7, 80)], axis=1)
    run = dpc.replay(dpc.Hierarchical(4, bins=16), scores, levels, context=groups)
    found = dpc.theory.certify(run)
    assert found.passed
    assert (found.dataset.verdict.sel(check=["optimality", "coverage"])[:3] == "pass").all()
    assert (found.dataset.verdict.sel(check="regret") == "no claim").all()
    assert not dpc.theory.certify(run._replace(levels=levels[::-1])).passed


def test_small_groups_gain_most_and_no_group_loses():
    """A small cousin of tests/benchmarks/groups.py."""
    rng, levels = np.random.default_rng(5), [0.5, 0.9]
    sizes = np.repeat([5, 20, 100], 8)
    means = rng.beta(12, 24, 24)
    order = rng.permutation(np.repeat(np.arange(24), sizes))
    scores = rng.beta(10 * means[order], 10 * (1 - means[order]))
    prior = dpc.schedules.Dirichlet(5.0)
    thresholds = {
        "groups": dpc.replay(dpc.Hierarchical(24, bins=64), scores, levels, context=order).thresholds,
        "pooled": dpc.replay(dpc.Quantized(64, schedule=prior), scores, levels).thresholds,
        # A tree whose parent nothing reaches: each group by itself, over the uniform prior.
        "apart": dpc.replay(
            dpc.Hierarchical(24, concentrations=(1e9, 5.0), bins=64), scores, levels, context=order
        ).thresholds,
    }
    loss = {
        name: dpc.metrics.by_group(dpc.Replay(found, None, scores, np.asarray(levels)), order).loss.mean("level")
        for name, found in thresholds.items()
    }
    for other in ("pooled", "apart"):
        assert loss["groups"].mean() < loss[other].mean()
    small = sizes == 5
    gain = (loss["apart"] - loss["groups"]).values
    assert gain[small].mean() > 2 * gain[~small].mean() > 0


def test_the_first_index_past_the_groups_is_no_group():
    """Inside, it is the number of the root: not for users."""
    learner = dpc.Hierarchical(3)
    scores = np.full(4, 0.4)
    jitted = jax.jit(lambda g: dpc.replay(learner, scores, [0.5], context=g).thresholds)
    assert np.isnan(jitted(np.full(4, 3))).all()
    assert np.isnan(jitted(np.full(4, -2))).all()
    with pytest.raises(ValueError, match="context = 3: groups are numbered from 0 to 2"):
        learner.quantile(learner.init(), [0.5], context=jnp.asarray(3))
    with pytest.raises(ValueError, match=r"context has shape \(2,\): pass one group"):
        learner.quantile(learner.init(), [0.5], context=[0, 1])


def test_rounds_of_no_group_are_judged_too():
    scores, groups = np.random.default_rng(0).random(60), np.tile([-1, 0, 1], 20)
    run = dpc.replay(dpc.Hierarchical(["a", "b"]), scores, [0.5, 0.9], context=groups)
    assert run.context.tolist() == groups.tolist()
    assert dpc.metrics.by_group(run).rounds.sel(group="(none)") == 20
    wrong = run._replace(thresholds=run.thresholds.at[30, 1].set(0.0))
    failures = dpc.theory.certify(wrong).failures
    assert failures
    assert all(failure.startswith("group (none), o") for failure in failures)
    # Where -1 is the root, and the root a group, there is nothing besides.
    rooted = dpc.replay(dpc.Hierarchical({"all": ["a", "b"]}), scores, [0.5], context=groups)
    assert dpc.metrics.by_group(rooted).rounds.values.tolist() == [40, 20, 0]


def test_certificates_of_horizons_and_of_weights_of_one():
    scores, groups = np.random.default_rng(0).random((2, 30)), np.arange(30) % 3
    run = dpc.replay(dpc.Hierarchical(3), scores, [0.5, 0.9], context=groups, delay=[0, 2])
    found = dpc.theory.certify(run)
    assert found.passed
    assert (found.dataset.verdict.sel(check="order") == "pass").all()
    assert (found.dataset.verdict.sel(check=["regret", "coverage"]) == "no claim").all()
    deaf = dpc.Hierarchical(3, concentrations=dpc.schedules.Constant(1.0))
    found = dpc.theory.certify(dpc.replay(deaf, scores[0], [0.5], context=groups))
    assert "FAIL" not in found.dataset.verdict.sel(check=["order", "optimality", "regret"]).values


def test_spoilt_evidence_is_not_saved_nor_carried_on(tmp_path):
    scores, groups = np.random.default_rng(0).random(20), np.arange(20) % 3
    for bins, spoilt, message in (
        (8, {"counts": -1.0}, r"state\.counts\[0, 0\] = -1\.0: must be finite and in \[0, 40\]"),
        (8, {"counts": 2.0}, r"state\.totals\[0\] = .*it is the sum of what counts"),
        (8, {"totals": np.nan}, r"state\.totals\[0\] = nan"),
        (None, {"groups": 77}, r"state\.groups\[0\] = .*this tree has 4 nodes"),
        (None, {"shares": 3.0}, r"state\.shares\[0, 0\] = 3\.0: must be finite and in \[0, 1\]"),
    ):
        learner = dpc.Hierarchical(3, bins=bins)
        state = dpc.replay(learner, scores, [0.5], context=groups).state
        (name, factor), *_ = spoilt.items()
        bad = state._replace(**{name: getattr(state, name) * factor if name != "groups" else state.groups + factor})
        with pytest.raises(ValueError, match=message):
            dpc.save(tmp_path / "bad.dpc", learner, bad)
        if name in ("totals", "groups"):
            with pytest.raises(ValueError, match=message):
                dpc.replay(learner, scores, [0.5], state=bad, context=groups)
