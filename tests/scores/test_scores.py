"""Scores against their definitions, sets against brute force, transforms and their inverses."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import reference
from hypothesis import given
from hypothesis import strategies as st

import dpconformal as dpc
from dpconformal import scores
from dpconformal.scores.base import widest

RNG = np.random.default_rng(0)
T, A, K = 40, 5, 6


def eighths(*shape, low=-40, high=40):
    """Multiples of 1/8, on which sums and differences are exact: no label is a rounding error from an end."""
    return RNG.integers(low, high, shape) / 8


def some_probabilities(*shape):
    p = RNG.dirichlet(np.full(K, 0.5), shape)
    p[0] = np.eye(K)[2]  # certain
    p[1] = 1 / K  # all equal
    p[2] = [0.5, 0.5, 0, 0, 0, 0]
    return p


REGRESSION = {
    "absolute": (scores.Absolute(), eighths(T)),
    "signed": (scores.Signed(), eighths(T)),
    "normalized": (scores.Normalized(), np.stack([eighths(T), 2.0 ** RNG.integers(-2, 3, T)], -1)),
    "cqr": (scores.CQR(), np.stack([eighths(T), eighths(T)], -1)),  # some of them out of order
    "cqr_sided": (scores.CQR(symmetric=False), np.stack([eighths(T), eighths(T)], -1)),
}
NOISE = RNG.random(T)
CLASSES = {
    "lac": (scores.LAC(), {}),
    "aps": (scores.APS(), {}),
    "raps": (scores.RAPS(0.1, 2), {"penalty": 0.1, "free": 2}),
    "saps": (scores.SAPS(0.3), {"weight": 0.3}),
    "margin": (scores.Margin(), {}),
    "top_k": (scores.TopK(), {}),
}
RANDOM = {
    "aps": (scores.APS(True), {}),
    "raps": (scores.RAPS(0.1, 2, True), {"penalty": 0.1, "free": 2}),
    "saps": (scores.SAPS(0.3, True), {"weight": 0.3}),
}


def naive_regression(name, prediction, y):
    if name == "absolute":
        return abs(y - prediction)
    if name == "signed":
        return np.array([prediction - y, y - prediction])
    if name == "normalized":
        return abs(y - prediction[0]) / prediction[1]
    both = np.array([prediction[0] - y, y - prediction[1]])
    return both if name == "cqr_sided" else both.max()


@pytest.mark.parametrize("name", REGRESSION)
def test_intervals_are_the_labels_whose_score_is_at_most_the_threshold(name):
    score, predictions = REGRESSION[name]
    labels = eighths(T)
    found = score(predictions, labels)
    want = np.stack([naive_regression(name, predictions[t], labels[t]) for t in range(T)], -1)
    np.testing.assert_array_equal(found, want)
    assert found.shape == ((2, T) if score.sides == 2 else (T,))
    low, high = score.bounds(predictions)
    assert found.min() >= low
    assert found.max() <= high
    thresholds = eighths(*found.shape, A, low=-16, high=40)
    thresholds[..., 0, 0], thresholds[..., 1, 1] = np.inf, -np.inf
    sets = score.set(predictions, thresholds)
    assert sets.low.shape == sets.high.shape == (T, A)
    inside = 0
    for t in range(T):
        for y in np.arange(-12, 12, 0.125):
            s = naive_regression(name, predictions[t], y)
            brute = (np.asarray(s)[..., None] <= thresholds[..., t, :]).reshape(-1, A).all(axis=0)
            got = (sets.low[t] <= y) & (y <= sets.high[t])
            np.testing.assert_array_equal(got, brute)
            inside += brute.sum()
    assert 0 < inside < T * A * 192
    np.testing.assert_array_equal(sets.contains(labels), (found[..., None] <= thresholds).reshape(-1, T, A).all(axis=0))
    assert np.array_equal(sets.empty, np.isnan(sets.high))
    assert sets.empty.any()
    assert (sets.width[sets.empty] == 0).all()
    assert (sets.size >= 0).all()


@pytest.mark.parametrize("name", REGRESSION)
def test_scores_and_sets_trace_and_map(name):
    score, predictions = REGRESSION[name]
    labels = eighths(T)
    given = score(predictions, labels)
    np.testing.assert_allclose(jax.jit(type(score).__call__)(score, predictions, labels), given)
    live = jax.vmap(lambda p, y: score(p, y), out_axes=-1)(jnp.asarray(predictions), jnp.asarray(labels))
    np.testing.assert_allclose(live, given)
    thresholds = jnp.asarray(np.abs(eighths(*given.shape, A)))
    sets, traced = score.set(predictions, thresholds), jax.jit(type(score).set)(score, predictions, thresholds)
    assert isinstance(sets.low, np.ndarray)
    assert isinstance(traced.low, jax.Array)
    np.testing.assert_allclose(traced.low, sets.low, atol=1e-12)  # to the last bit by NumPy only
    np.testing.assert_allclose(traced.high, sets.high, atol=1e-12)


def test_large_labels_keep_their_digits_without_64_bit_jax():
    with jax.enable_x64(False):
        result = dpc.conformalize(
            dpc.Exact(), scores.Absolute(), np.full(50, 3e7), 3e7 + np.linspace(0, 1, 50), levels=[0.5]
        )
        assert result.run.thresholds.dtype == np.float32
    np.testing.assert_allclose(result.run.scores, np.linspace(0, 1, 50), atol=1e-6)
    np.testing.assert_allclose((result.sets.high - 3e7)[:, 0], result.thresholds[:, 0], atol=1e-6)


@pytest.mark.parametrize("name", CLASSES)
def test_masks_are_the_classes_whose_score_is_at_most_the_threshold(name):
    score, options = CLASSES[name]
    p = some_probabilities(T)
    labels = RNG.integers(0, K, T)
    want = np.array([[reference.label_score(name, list(row), k, **options) for k in range(K)] for row in p])
    every = score.label_scores(p)
    np.testing.assert_allclose(every, want, atol=1e-12)
    np.testing.assert_array_equal(score(p, labels), every[np.arange(T), labels])
    low, high = score.bounds(p)
    assert every.min() >= low
    assert every.max() <= high
    thresholds = RNG.uniform(low, high, (T, A))
    thresholds[:, 0] = every[np.arange(T), labels]  # a label at its threshold is in
    mask = score.set(p, thresholds)
    np.testing.assert_array_equal(mask, every[:, None, :] <= thresholds[:, :, None])
    assert mask[np.arange(T), 0, labels].all()
    # A compiled program may round the score of the tie otherwise than NumPy did.
    np.testing.assert_array_equal(jax.jit(type(score).set)(score, p, thresholds[:, 1:]), mask[:, 1:])
    np.testing.assert_allclose(
        jax.vmap(lambda a, b: score(a, b))(jnp.asarray(p), jnp.asarray(labels)), every[np.arange(T), labels]
    )


@pytest.mark.parametrize("name", RANDOM)
def test_randomized_scores_share_one_number_a_round(name):
    score, options = RANDOM[name]
    p = some_probabilities(T)
    want = [[reference.label_score(name, list(p[t]), k, NOISE[t], **options) for k in range(K)] for t in range(T)]
    np.testing.assert_allclose(score.label_scores(p, NOISE), want, atol=1e-12)
    with pytest.raises(ValueError, match=r"noise is needed by .*randomized=True"):
        score(p, np.zeros(T, int))
    with pytest.raises(ValueError, match="is not randomized"):
        CLASSES[name][0](p, np.zeros(T, int), NOISE)
    with pytest.raises(ValueError, match=r"noise\[3\] = 1\.5: must lie in \[0, 1\]"):
        score(p, np.zeros(T, int), np.where(np.arange(T) == 3, 1.5, NOISE))
    thresholds = RNG.random((T, A))
    np.testing.assert_array_equal(
        score.set(p, thresholds, NOISE), score.label_scores(p, NOISE)[:, None] <= thresholds[..., None]
    )


def test_a_randomized_aps_covers_exactly_where_the_model_is_right():
    """With noise the scores of a true model are uniform (Romano, Sesia & Candès 2020)."""
    n = 20_000
    p = RNG.dirichlet(np.ones(4), n)
    labels = (RNG.random((n, 1)) > np.cumsum(p, axis=1)).sum(axis=1).clip(max=3)
    found = scores.APS(True)(p, labels, RNG.random(n))
    grid = np.linspace(0.05, 0.95, 19)
    assert np.abs(np.searchsorted(np.sort(found), grid) / n - grid).max() < 4 * 0.5 / np.sqrt(n)


@pytest.mark.parametrize("order", [1, 2, 3.5, np.inf])
def test_balls(order):
    score = scores.Norm(order)
    centre, labels, thresholds = eighths(T, 3), eighths(T, 3), np.abs(eighths(T, A))
    thresholds[0] = -1
    found = score(centre, labels)
    gap = np.abs(labels - centre)
    want = gap.max(-1) if np.isinf(order) else (gap**order).sum(-1) ** (1 / order)
    np.testing.assert_allclose(found, want)
    sets = score.set(centre, thresholds)
    np.testing.assert_array_equal(sets.contains(labels), found[:, None] <= thresholds)
    assert not sets.contains(centre)[0].any()
    assert sets.contains(centre)[1:].all()
    np.testing.assert_allclose(jax.jit(lambda r: score.set(centre, r).volume)(thresholds), sets.volume)
    # By Monte Carlo in the cube around the ball.
    points = RNG.uniform(-1, 1, (100_000, 3))
    share = np.mean(score(np.zeros_like(points), points) <= 1)
    assert scores.Norm(order).set([[0.0, 0.0, 0.0]], [[1.0]]).size[0, 0] / 8 == pytest.approx(share, abs=0.008)


def test_ellipsoids():
    root = RNG.normal(size=(T, 2, 2)) + 2 * np.eye(2)
    covariance = root @ root.swapaxes(-1, -2)
    centre, labels, thresholds = eighths(T, 2), eighths(T, 2), np.abs(eighths(T, A)) + 0.01
    step = (labels - centre)[..., None]
    want = np.sqrt((step.swapaxes(-1, -2) @ np.linalg.inv(covariance) @ step)[:, 0, 0])
    score = scores.Ellipsoid()
    np.testing.assert_allclose(score((centre, covariance), labels), want)
    sets = score.set((centre, covariance), thresholds)
    np.testing.assert_array_equal(sets.contains(labels), want[:, None] <= thresholds)
    np.testing.assert_allclose(sets.size, np.pi * np.sqrt(np.linalg.det(covariance))[:, None] * thresholds**2)
    around = sets.boundary(9)
    assert around.shape == (T, A, 9, 2)
    for k in range(9):
        np.testing.assert_allclose(
            [score((centre, covariance), around[:, a, k]) for a in range(A)], thresholds.T, rtol=1e-9
        )
    fixed = scores.Ellipsoid(covariance[0])
    np.testing.assert_allclose(fixed(centre[:1], labels[:1]), want[:1])
    np.testing.assert_allclose(jax.jit(type(fixed).__call__)(fixed, centre[:1], labels[:1]), want[:1])
    np.testing.assert_allclose(fixed.set(centre[:1], thresholds[:1]).volume, sets.volume[:1])
    with pytest.raises(ValueError, match="a covariance is symmetric"):
        scores.Ellipsoid([[1.0, 0.5], [0.0, 1.0]])
    with pytest.raises(ValueError, match=r"least eigenvalue of .*\[1\] = .*: a covariance is positive definite"):
        score((centre[:2], np.stack([np.eye(2), np.ones((2, 2))])), labels[:2])
    with pytest.raises(ValueError, match="a pair of means and covariances"):
        score(centre, labels)
    with pytest.raises(ValueError, match="in the plane"):
        scores.Ellipsoid(np.eye(3)).set(np.zeros((1, 3)), [[1.0]]).boundary()


TRANSFORMS = {
    "ratio": scores.Ratio(0.7),
    "log": scores.Log(0.25),
    "rank": scores.Rank([0.5, 0.1, 0.9, 0.9, 3.0]),
    "rank_one": scores.Rank([2.0]),
}


@pytest.mark.parametrize("name", TRANSFORMS)
def test_transforms_rise_and_are_undone(name):
    transform = TRANSFORMS[name]
    s = np.sort(np.concatenate([[0.0, 0.1, 0.5, 0.9, 2.0, 3.0], RNG.gamma(1, 2, 200), [1e3, 1e6]]))
    x = transform(s)
    assert (np.diff(x) > 0)[np.diff(s) > 0].all()
    np.testing.assert_allclose(transform.undo(x), s, rtol=1e-6, atol=1e-12)
    low, high = transform.image(0.0, np.inf)
    assert x.min() >= low
    assert x.max() <= high
    assert np.isposinf(transform.undo([high])).all()
    np.testing.assert_allclose(jax.jit(type(transform).__call__)(transform, s), x, rtol=1e-12)
    np.testing.assert_allclose(
        jax.jit(type(transform).undo)(transform, x[:-2]), transform.undo(x[:-2]), rtol=1e-9, atol=1e-15
    )


@given(st.lists(st.floats(-5, 5), min_size=1, max_size=6), st.floats(-9, 9))
def test_ranks_agree_with_their_definition(sample, s):
    rank = scores.Rank(sample)
    assert float(rank(s)) == pytest.approx(reference.rank_transform(sample, s), abs=1e-12)
    assert float(rank.undo(rank(s))) == pytest.approx(s, abs=1e-6)


def test_thresholds_out_of_a_transforms_range():
    """Descent may leave [0, 1]: above is every label, below is none."""
    assert np.isposinf(scores.Ratio().undo([1.0, 1.5, np.inf])).all()
    below = scores.Ratio().undo([-0.5, -np.inf])
    assert (below < 0).all()
    rank = TRANSFORMS["rank"]
    np.testing.assert_array_equal(rank.undo([-1.0, 0.0, 1.0, 2.0]), [-np.inf, -np.inf, np.inf, np.inf])
    sets = scores.Transformed(scores.Absolute(), scores.Ratio()).set([1.0], [[-0.5, 0.5, 1.2]])
    np.testing.assert_array_equal(sets.contains([1.0]), [[False, True, True]])


@pytest.mark.parametrize("name", TRANSFORMS)
def test_a_transformed_score_has_the_same_sets(name):
    transform = TRANSFORMS[name]
    plain, moved = scores.Absolute(), scores.Transformed(scores.Absolute(), transform)
    predictions, labels = eighths(T), eighths(T) + 1 / 16
    np.testing.assert_array_equal(moved(predictions, labels), transform(plain(predictions, labels)))
    radius = np.abs(eighths(T, A)) + 1 / 32
    sets, back = plain.set(predictions, radius), moved.set(predictions, transform(radius))
    np.testing.assert_allclose(back.low, sets.low, rtol=1e-9, atol=1e-9)
    np.testing.assert_array_equal(back.contains(labels), sets.contains(labels))
    assert moved.bounds(predictions) == transform.image(0.0, np.inf)
    assert moved.sides == 1
    p = some_probabilities(T)
    ranks = scores.Transformed(scores.TopK(), transform)
    np.testing.assert_array_equal(  # scores of classes tie with thresholds, and must not be lost to rounding
        ranks.set(p, transform(np.tile([1.0, 2.0, 3.0], (T, 1)))),
        scores.TopK().set(p, np.tile([1.0, 2.0, 3.0], (T, 1))),
    )


def test_sides_stay_through_a_transform():
    moved = scores.Transformed(scores.Signed(), scores.Rank(RNG.normal(size=50)))
    predictions, labels = RNG.normal(size=T), RNG.normal(size=T)
    assert moved.sides == 2
    assert not moved.randomized
    result = dpc.conformalize(dpc.Exact(), moved, predictions, labels, [0.5, 0.9])
    assert result.sets.low.shape == (T, 2)
    np.testing.assert_array_equal(result.covered, result.sets.contains(labels))


BAD = {
    "labels has shape (3,): must be (2,), one label": lambda: scores.Absolute()([1.0, 2.0], [1.0, 2.0, 3.0]),
    "labels[1] = nan: must be finite": lambda: scores.Absolute()([1.0, 2.0], [1.0, np.nan]),
    "predictions must be real numbers": lambda: scores.Absolute()(["a"], [1.0]),
    "predictions has shape (3,): must be (..., 2), ŷ and σ̂": lambda: scores.Normalized()([1.0, 1.0, 1.0], 1.0),
    "predictions[..., 1][1] = 0.0: σ̂ + offset must be above 0": lambda: scores.Normalized()(
        [[1.0, 1.0], [1.0, 0.0]], [1.0, 1.0]
    ),
    "Normalized.offset = -1.0": lambda: scores.Normalized(-1),
    "thresholds has shape (2,): must be (2, 'A')": lambda: scores.Absolute().set([1.0, 2.0], [0.5, 0.5]),
    "labels[0] = 3: must be the number of a class, from 0 to 2": lambda: scores.LAC()([[0.5, 0.5, 0.0]], [3]),
    "labels[0] = -1": lambda: scores.LAC()([[0.5, 0.5, 0.0]], [-1]),
    "labels are names: pass their numbers": lambda: scores.LAC()([[0.5, 0.5]], ["a"]),
    "labels[0] = 0.5": lambda: scores.LAC()([[0.5, 0.5, 0.0]], [0.5]),
    "predictions[0, 1] = 1.5: a probability lies in [0, 1]": lambda: scores.LAC()([[0.5, 1.5]], [0]),
    "predictions.sum(axis=-1)[0] = 0.75": lambda: scores.APS()([[0.5, 0.25]], [0]),
    "a margin needs two classes": lambda: scores.Margin()([[1.0]], [0]),
    "must be (..., K)": lambda: scores.LAC()(0.5, 0),
    "RAPS.penalty = -1": lambda: scores.RAPS(-1),
    "RAPS.free = -1": lambda: scores.RAPS(0.1, -1),
    "SAPS.weight = 0": lambda: scores.SAPS(0),
    "Norm.order = 0.5": lambda: scores.Norm(0.5),
    "must be (..., D)": lambda: scores.Norm()(1.0, 2.0),
    "Ratio.scale = 0": lambda: scores.Ratio(0),
    "scores[1] = -1.0: s/(scale + s) is for scores from 0": lambda: scores.Ratio()([1.0, -1.0]),
    "scores[0] = 0.0: a logarithm needs": lambda: scores.Log()([0.0]),
    "Log.offset = -1": lambda: scores.Log(-1),
    "Rank.reference has shape (0,)": lambda: scores.Rank([]),
    "Rank.reference[1] = nan": lambda: scores.Rank([1.0, np.nan]),
    "Transformed.score = 3: pass a score": lambda: scores.Transformed(3, scores.Ratio()),
    "Transformed.transform = <class": lambda: scores.Transformed(scores.Absolute(), scores.Ratio),
}


@pytest.mark.parametrize("message", BAD)
def test_bad_input_is_named(message):
    with pytest.raises(ValueError, match=r".") as raised:
        BAD[message]()
    assert message in str(raised.value)


def test_traced_nonsense_is_nan():
    p = jnp.asarray(some_probabilities(3))
    wrong = jax.jit(lambda y: scores.LAC()(p, y))(jnp.array([0, K, -1]))
    np.testing.assert_array_equal(np.isnan(wrong), [False, True, True])
    assert np.isnan(jax.jit(lambda x: scores.Normalized()(x, jnp.ones(1)))(jnp.array([[1.0, -1.0]]))).all()
    assert np.isnan(jax.jit(scores.Ratio())(jnp.array(-0.5)))
    assert np.isnan(jax.jit(scores.Log())(jnp.array(-0.5)))


def tenths(*shape):
    """Numbers with one decimal, whose differences are rarely what they seem: 0.3 - 0.2 is not 0.1."""
    return RNG.integers(0, 500, shape) / 10


TIED = {
    "absolute": (scores.Absolute(), lambda a: a),
    "signed": (scores.Signed(), lambda a: a),
    "normalized": (scores.Normalized(0.1), lambda a: np.stack([a, np.full_like(a, 2.9)], -1)),
    "cqr": (scores.CQR(), lambda a: np.stack([a - 1.3, a + 0.7], -1)),
    "ratio": (scores.Transformed(scores.Absolute(), scores.Ratio(0.7)), lambda a: a),
    "log": (scores.Transformed(scores.Absolute(), scores.Log(0.01)), lambda a: a),
    "rank": (scores.Transformed(scores.Signed(), scores.Rank([-1.0, 0.3, 2.0])), lambda a: a),
    "norm": (scores.Norm(1), lambda a: np.stack([a, a / 2], -1)),
    "ellipsoid": (scores.Ellipsoid([[1.0, 0.3], [0.3, 2.0]]), lambda a: np.stack([a, a / 2], -1)),
}


@pytest.mark.parametrize("precise", [False, True], ids=["float32", "float64"])
@pytest.mark.parametrize("name", TIED)
def test_a_label_that_is_covered_is_in_its_set_on_rounded_data(name, precise):
    """Scores tie with past scores all the time; an end that is off by a bit would lose them."""
    score, predict = TIED[name]
    a = tenths(600)
    labels = np.round(a + RNG.normal(size=600), 1)
    if name in ("norm", "ellipsoid"):
        labels = np.stack([labels, np.round(labels / 2, 1)], -1)
    with jax.enable_x64(precise):
        result = dpc.conformalize(dpc.ERM(dpc.priors.Uniform(-50, 50)), score, predict(a), labels, [0.3, 0.5, 0.9])
    assert result.run.thresholds.dtype == (np.float64 if precise else np.float32)
    np.testing.assert_array_equal(result.sets.contains(labels), result.covered)
    assert (np.asarray(result.run.scores)[..., None] == np.asarray(result.run.thresholds)).any()  # ties there are


@pytest.mark.parametrize("name", ["absolute", "normalized", "cqr", "signed"])
def test_ends_are_the_last_labels_inside(name):
    """One float further out the score exceeds the threshold, in any size of numbers."""
    score, predict = TIED[name]
    size = 10.0 ** RNG.integers(-6, 9, 400)
    a, thresholds = size * RNG.normal(size=400), np.abs(size * RNG.normal(size=400))
    a[:4], thresholds[:4] = [-1.0, 1.0, 0.0, 1e300], [1.0, 1e-300, 0.0, 1e10]
    limits = np.stack([thresholds] * 2) if score.sides == 2 else thresholds
    sets = score.set(predict(a), limits[..., None])
    for end, outward in ((sets.low[:, 0], -np.inf), (sets.high[:, 0], np.inf)):
        with np.errstate(over="ignore"):
            at, beyond = (np.max(np.atleast_2d(score(predict(a), y)), 0) for y in (end, np.nextafter(end, outward)))
        assert (at <= thresholds).all()
        assert (beyond > thresholds).all()


@given(st.floats(-1e30, 1e30).map(np.float32))
def test_widest_is_the_last_number_that_rounds_to_the_threshold(threshold):
    given_ = np.float32(threshold)
    limit = widest(given_)
    assert np.float32(limit) <= given_
    assert np.float32(np.nextafter(limit, np.inf)) > given_


def test_offsets_and_bounds_are_those_of_the_definition():
    np.testing.assert_allclose(scores.Normalized(0.5)([[10.0, 1.5]], [11.0]), [0.5])
    np.testing.assert_allclose(scores.Normalized(0.5).set([[10.0, 1.5]], [[2.0]]).high, [[14.0]])
    sure = np.eye(K)[:1]
    for score in (scores.RAPS(0.1, 2), scores.SAPS(0.3), scores.APS(), scores.TopK(), scores.LAC(), scores.Margin()):
        assert score.label_scores(sure).max() == pytest.approx(score.bounds(sure)[1])
    assert scores.Margin().label_scores(sure).min() == scores.Margin().bounds(sure)[0]


def test_probabilities_that_sum_to_nearly_one_are_divided_by_their_sum():
    rough = np.array([[0.5, 0.4995, 0.0001]])
    np.testing.assert_allclose(scores.APS().label_scores(rough), [[0.5 / 0.9996, 0.9995 / 0.9996, 1.0]])


@pytest.mark.parametrize("score", [scores.APS(), scores.RAPS()])
def test_probabilities_may_sum_to_within_a_thousandth_of_one(score):
    """Finds another tolerance: a looser one takes what are no probabilities, a tighter one refuses rounded ones."""
    for total in (0.9991, 1.0009):
        score(np.array([[0.6, 0.4]]) * total, [0])
    for total in (0.9989, 1.0011):
        with pytest.raises(ValueError, match=r"sum\(axis=-1\)\[0\] = .*probabilities sum to 1; divide by it"):
            score(np.array([[0.6, 0.4]]) * total, [0])


def test_infinite_thresholds_in_float32_are_their_own_limits():
    """Finds warnings about infinity minus infinity: level 1 has an infinite threshold on an unbounded support."""
    np.testing.assert_array_equal(widest(np.array([np.inf, -np.inf], np.float32)), [np.inf, -np.inf])


def test_covariances_of_jax_are_checked_too_and_a_traced_half_label_has_no_score():
    with pytest.raises(ValueError, match="a covariance is symmetric"):
        scores.Ellipsoid()((jnp.zeros((1, 2)), jnp.array([[[1.0, 0.9], [0.0, 1.0]]])), jnp.ones((1, 2)))
    assert np.isnan(jax.jit(lambda y: scores.LAC()(jnp.array([[0.7, 0.2, 0.1]]), y))(jnp.array([1.5]))).all()
