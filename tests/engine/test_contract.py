"""The contract of every learner: jit, vmap, resume, dtypes, traces, causality, order."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from cases import ALL as SHARED
from cases import BASELINES, LEVELS, any_levels, sequences
from cases import LEARNERS as SINGLE

import dpconformal as dpc

LEARNERS = SINGLE | {"aggregate": dpc.Aggregate([dpc.Quantized(16), dpc.Quantized(16, discount=0.9)], cells=32)}
ALL = SHARED | LEARNERS

# On other interpreters one of each kind is enough; and the oracles try every schedule.
SCHEDULES = ("exact_dirichlet", "exact_callable")
CORE = ("exact", "exact_discounted", "quantized_discounted", "nexcp")
BELIEFS = [pytest.param(n, marks=[pytest.mark.core] * (n in CORE)) for n in LEARNERS if n not in SCHEDULES]
every = pytest.mark.parametrize("name", [*BELIEFS, *BASELINES])
# What grid learners do by the code that they share.
every_kind = pytest.mark.parametrize("name", [*BELIEFS, "ogd", "saocp", "mvp"])
every_belief = pytest.mark.parametrize("name", BELIEFS)
T = 40
SCORES = np.random.default_rng(3).beta(2, 3, T)


def thresholds(learner, scores, levels=LEVELS, **options):
    return np.asarray(dpc.replay(learner, scores, levels, **options).thresholds)


@functools.cache
def replayed(name, sequence=None):
    """The run that several tests look at: of SCORES, or of one of the shared sequences."""
    return dpc.replay(ALL[name], SCORES if sequence is None else sequences(T)[sequence], LEVELS)


def same(a, b):
    """Bit-identical, NaN and infinities included."""
    jax.tree.map(np.testing.assert_array_equal, a, b)


def same_but_for_sums(learner, a, b):
    """Bit-identical; discounted sums alone may differ in their last bits, by the order they were added up in."""
    if getattr(learner, "discount", None) is None:
        same(a, b)
    else:
        np.testing.assert_allclose(a, b, rtol=0, atol=1e-15)


@every
def test_is_a_learner_whose_state_is_a_tuple_of_arrays(name):
    learner = ALL[name]
    assert isinstance(learner, dpc.Learner)
    state = learner.init()
    assert isinstance(state, tuple)
    assert hasattr(state, "_fields")
    assert all(isinstance(leaf, jax.Array) for leaf in jax.tree.leaves(state))
    rebuilt = jax.tree.unflatten(jax.tree.structure(learner), jax.tree.leaves(learner))
    assert rebuilt == learner


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@every
def test_dtype_follows_the_scores(name, dtype):
    run = dpc.replay(ALL[name], SCORES.astype(dtype), LEVELS)
    assert run.thresholds.dtype == run.scores.dtype == run.levels.dtype == dtype
    assert run.thresholds.shape == (T, len(LEVELS))
    floats = [leaf.dtype for leaf in jax.tree.leaves(run.state) if jnp.issubdtype(leaf.dtype, jnp.floating)]
    assert all(kind == dtype for kind in floats)
    again = ALL[name].observe(run.state, 0.5)
    assert [leaf.dtype for leaf in jax.tree.leaves(again)] == [leaf.dtype for leaf in jax.tree.leaves(run.state)]
    assert ALL[name].quantile(again, jnp.asarray(LEVELS, dtype)).dtype == dtype


@every_kind
def test_float32_is_the_default_without_x64(name):
    with jax.enable_x64(False):
        run = dpc.replay(ALL[name], SCORES, LEVELS)
        assert run.thresholds.dtype == np.float32
        assert ALL[name].quantile(run.state, [0.5]).dtype == np.float32


@every_kind
def test_lists_and_integers_are_converted(name):
    levels = [0, 1] * (len(LEVELS) // 2)  # as many as other tests ask for: the same program
    run = dpc.replay(ALL[name], [1, 0, 1, 1], levels)
    same(run.thresholds, thresholds(ALL[name], np.array([1.0, 0.0, 1.0, 1.0]), np.array(levels, float)))


@every_kind
def test_jit_gives_the_same(name):
    plain = replayed(name).thresholds
    jitted = jax.jit(lambda learner, scores: dpc.replay(learner, scores, LEVELS).thresholds)
    np.testing.assert_allclose(jitted(ALL[name], SCORES), plain, rtol=0, atol=1e-14)


@every_kind
def test_batches_are_independent_sequences(name):
    batch = np.random.default_rng(5).random((2, 3, T))
    run = dpc.replay(ALL[name], batch, LEVELS)
    assert run.thresholds.shape == (2, 3, T, len(LEVELS))
    mapped = jax.vmap(jax.vmap(lambda s: dpc.replay(ALL[name], s, LEVELS).thresholds))(batch)
    for i, j in np.ndindex(2, 3):
        alone = dpc.replay(ALL[name], batch[i, j], LEVELS)
        np.testing.assert_allclose(run.thresholds[i, j], alone.thresholds, rtol=0, atol=1e-14)
        np.testing.assert_allclose(mapped[i, j], alone.thresholds, rtol=0, atol=1e-14)
        jax.tree.map(
            lambda many, one, i=i, j=j: np.testing.assert_allclose(many[i, j], one, atol=1e-14),
            run.state,
            alone.state,
        )


@every_kind
def test_vmap_sweeps_the_support(name):
    """Stretching prior and scores alike stretches the thresholds."""
    learner = ALL[name]
    structure = jax.tree.structure(learner)
    wide = [jax.tree.unflatten(structure, _stretched(learner, factor)) for factor in (1.0, 2.0, 4.0)]
    stacked = jax.tree.map(lambda *leaves: jnp.stack([jnp.asarray(leaf) for leaf in leaves]), *wide)
    scores = np.multiply.outer([1.0, 2.0, 4.0], SCORES)
    swept = jax.vmap(lambda one, s: dpc.replay(one, s, LEVELS).thresholds)(stacked, scores)
    for factor, result in zip((1.0, 2.0, 4.0), swept, strict=True):
        np.testing.assert_allclose(result, factor * swept[0], rtol=1e-12)


def _stretched(learner, factor):
    paths = jax.tree_util.tree_leaves_with_path(learner)
    return [leaf * factor if path[-1].name in ("low", "high") else leaf for path, leaf in paths]


@every
def test_resuming_is_as_if_never_interrupted(name):
    learner = ALL[name]
    for cut in (0, T // 2, T):
        for sequence in ("uniform", "tied", "alternating"):
            scores, whole = sequences(T)[sequence], replayed(name, sequence)
            first = dpc.replay(learner, scores[:cut], LEVELS)
            second = dpc.replay(learner, scores[cut:], LEVELS, state=first.state)
            joined = np.concatenate([first.thresholds, second.thresholds])
            if getattr(learner, "discount", None) is None:
                same(joined, whole.thresholds)
            else:
                np.testing.assert_allclose(joined, whole.thresholds, rtol=0, atol=1e-12)
            assert int(second.state.seen) == T


@every
def test_online_is_replay(name):
    learner = ALL[name]
    whole = replayed(name)
    state = learner.init()
    for t, score in enumerate(SCORES):
        np.testing.assert_allclose(learner.quantile(state, LEVELS), whole.thresholds[t], rtol=0, atol=1e-12)
        state = learner.observe(state, float(score))
    more = SCORES[: 64 - T]  # in all as many as the program of T rounds has room for
    carried_on = dpc.replay(learner, more, LEVELS, state=state)
    longer = dpc.replay(learner, np.concatenate([SCORES, more]), LEVELS)
    np.testing.assert_allclose(carried_on.thresholds, longer.thresholds[T:], rtol=0, atol=1e-12)


@every_kind
def test_no_new_trace_for_new_numbers(name, monkeypatch):
    learner = ALL[name]
    traces = []

    def count_calls(owner, method):
        original = getattr(owner, method)
        monkeypatch.setattr(owner, method, lambda self, *given: traces.append(method) or original(self, *given))

    count_calls(type(learner), "observe")  # by the generic scan
    if hasattr(learner, "prior"):
        count_calls(type(learner.prior), "cdf")  # by the faster ways
    if hasattr(learner, "weights"):
        count_calls(type(learner), "weights")
    rng = np.random.default_rng(0)
    length = 150 + list(ALL).index(name)  # a shape that no other test has compiled
    structure = jax.tree.structure(learner)
    for factor in (1.0, 1.5, 2.0):
        changed = jax.tree.unflatten(structure, _stretched(learner, factor))
        dpc.replay(changed, rng.random(length), any_levels(learner, 3, 1))
        if factor == 1.0:
            first = len(traces)
            assert first > 0
        dpc.replay(changed, rng.random(length), any_levels(learner, 3, 2))
    assert len(traces) == first


@every
def test_thresholds_do_not_look_ahead(name):
    for cut in (0, 1, 13, T - 1):
        changed = np.concatenate([SCORES[:cut], 1 - SCORES[cut:]])
        plain, other = replayed(name).thresholds, thresholds(ALL[name], changed)
        same_but_for_sums(ALL[name], plain[: cut + 1], other[: cut + 1])


@every_belief
def test_thresholds_never_cross(name):
    close = 0.5 + np.arange(-2, 3) * np.spacing(0.5)
    levels = np.unique(np.concatenate([np.linspace(0, 1, 60), close, np.nextafter([0, 1], 0.5)]))
    for sequence, scores in sequences(60).items():
        result = thresholds(ALL[name], scores, levels)
        assert (result[:, 1:] >= result[:, :-1]).all(), sequence


@every_kind
def test_levels_may_change_every_round(name):
    levels = any_levels(ALL[name], (T, len(LEVELS)))
    run = dpc.replay(ALL[name], SCORES, levels)
    for t in range(T):
        fixed = dpc.replay(ALL[name], SCORES, levels[t]).thresholds[t]
        same_but_for_sums(ALL[name], run.thresholds[t], fixed)


@pytest.mark.parametrize("length", [0, 1])
@every_kind
def test_no_score_and_one_score(name, length):
    run = dpc.replay(ALL[name], SCORES[:length], LEVELS)
    assert run.thresholds.shape == (length, len(LEVELS))
    assert int(run.state.seen) == length
    empty_batch = dpc.replay(ALL[name], np.zeros((0, 3)), LEVELS)
    assert empty_batch.thresholds.shape == (0, 3, len(LEVELS))


@every
def test_a_bad_score_inside_jit_turns_to_nan_and_stays(name):
    jitted = jax.jit(lambda scores: dpc.replay(ALL[name], scores, LEVELS).thresholds)
    for bad in (np.nan, np.inf, -np.inf, 1.5, -0.1):
        scores = SCORES.copy()
        scores[10] = bad
        result = np.asarray(jitted(scores))
        assert not np.isnan(result[:11]).any()
        assert np.isnan(result[11:]).all()


@every_kind
def test_a_bad_level_inside_jit_is_nan(name):
    jitted = jax.jit(lambda levels: dpc.replay(ALL[name], SCORES, levels).thresholds)
    result = np.asarray(jitted(np.array([np.nan, 1.5, -0.2, 0.5])))
    assert np.isnan(result[:, :3]).all()
    assert not np.isnan(result[:, 3]).any()


@every_belief
def test_cdf_of_nan_is_nan_and_sides_differ_at_an_atom(name):
    learner = ALL[name]
    # In the ninth of sixteen bins a score counts at the upper edge, or at the centre.
    score = 0.5625 if getattr(learner, "rounding", "up") == "up" else 0.53125
    state = learner.observe(learner.init(), score)
    assert np.isnan(learner.cdf(state, np.nan))
    left, right = (float(learner.cdf(state, score, side=side)) for side in ("left", "right"))
    assert right - left > 0.05
    np.testing.assert_allclose(learner.cdf(state, score - 1e-9), left, atol=1e-8)


@every_kind
def test_one_score_at_a_time(name):
    learner = ALL[name]
    with pytest.raises(ValueError, match=r"score has shape \(4,\): observe takes one score"):
        learner.observe(learner.init(), [0.9] * 4)
    with pytest.raises(ValueError, match=r"score has shape \(1,\)"):
        jax.jit(learner.observe)(learner.init(), np.array([0.3]))


@every_kind
def test_batches_carry_on_online_under_vmap(name):
    learner = ALL[name]
    batch = dpc.replay(learner, np.stack([SCORES, SCORES[::-1]]), LEVELS)
    with pytest.raises(ValueError, match=r"state is a batch of shape \(2,\): use jax.vmap"):
        learner.observe(batch.state, 0.3)
    with pytest.raises(ValueError, match="state is a batch"):
        learner.quantile(batch.state, [0.5])
    roomy = learner.prepare(batch.state, 1)
    onwards = jax.vmap(learner.observe)(roomy, np.array([0.3, 0.6]))
    assert onwards.seen.tolist() == [T + 1, T + 1]
    alone = learner.observe(replayed(name).state, 0.3)
    answers = jax.vmap(lambda state: learner.quantile(state, LEVELS))(onwards)
    np.testing.assert_allclose(answers[0], learner.quantile(alone, LEVELS), atol=1e-12)


@every_kind
def test_a_spoilt_state_is_not_carried_on(name):
    learner = ALL[name]
    spoilt = jax.jit(learner.observe)(learner.init(), np.nan)
    with pytest.raises(ValueError, match=r"state.seen = -1: a bad score or a full buffer was met inside jit"):
        dpc.replay(learner, SCORES, LEVELS, state=spoilt)


@every_belief
def test_everything_works_without_x64_and_without_a_warning(name):
    learner = ALL[name]
    with jax.enable_x64(False):
        run = dpc.replay(learner, SCORES, LEVELS)
        state = learner.observe(run.state, np.float64(0.3))
        for x in (0.3, np.array([0.3, 0.5]), [0.1], np.array([0, 1])):
            assert learner.cdf(state, x).dtype == np.float32
        if hasattr(learner, "merge"):
            assert learner.merge(state, state).seen == 2 * (T + 1)
        plain = run._replace(scores=np.asarray(run.scores))
        assert dpc.metrics.pit(plain).shape == (T,)
        assert dpc.metrics.crps(plain).shape == (T,)
        assert dpc.metrics.summary(run).sizes["time"] == T


@every_belief
def test_quantile_and_cdf_are_inverse_in_the_sense_of_galois(name):
    learner = ALL[name]
    levels = np.array([0.05, 0.3, 0.5, 0.9])
    for length in (0, 1, 40):
        state = dpc.replay(learner, sequences(40)["tied"][:length], levels).state
        quantiles = np.asarray(learner.quantile(state, levels))
        assert (np.asarray(learner.cdf(state, quantiles)) >= levels - 1e-14).all()
        just_below = np.asarray(learner.cdf(state, np.minimum(quantiles, 2) - 1e-9))
        assert (just_below < levels + 1e-7).all()
        grid = np.linspace(-0.5, 1.5, 301)
        values = np.asarray(learner.cdf(state, grid))
        assert (np.diff(values) >= -1e-15).all()
        assert values[0] == 0
        weights = 0.9 ** np.arange(1, length + 1) if name == "nexcp" else np.ones(length)
        top = weights.sum() / (1 + weights.sum()) if name in ("split", "nexcp") else 1
        np.testing.assert_allclose(values[-1], top, atol=1e-12)


@every_kind
def test_gradients_are_finite(name):
    learner = ALL[name]

    def loss(scores, learner):
        run = dpc.replay(learner, scores, [0.3, 0.9])
        finite = jnp.isfinite(run.thresholds)
        return jnp.sum(jnp.where(finite, dpc.metrics.quantile_loss(run), 0))

    by_scores, by_learner = jax.grad(loss, argnums=(0, 1), allow_int=True)(jnp.asarray(SCORES), learner)
    assert np.isfinite(by_scores).all()
    for leaf in jax.tree.leaves(by_learner):
        assert leaf.dtype == jax.dtypes.float0 or np.isfinite(leaf).all()
