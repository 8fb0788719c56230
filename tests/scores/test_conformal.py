"""Recorded streams and live loops, from predictions and labels to sets; on scikit-learn's models and data."""

import subprocess
import sys

import numpy as np
import pandas as pd
import pytest
from sklearn.compose import ColumnTransformer
from sklearn.datasets import load_diabetes, load_digits
from sklearn.ensemble import GradientBoostingRegressor
from sklearn.linear_model import LinearRegression, LogisticRegression, SGDClassifier, SGDRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import LinearSVC

import dpconformal as dpc
from dpconformal import models, scores

LEVELS = [0.5, 0.9]


def stream(rounds=300, seed=0):
    rng = np.random.default_rng(seed)
    predictions = rng.normal(size=rounds)
    return predictions, predictions + 0.3 * rng.standard_t(5, rounds)


@pytest.mark.parametrize("score", [scores.Absolute(), scores.Signed()], ids=["one side", "two sides"])
def test_a_recorded_stream_and_a_live_loop_agree(score):
    predictions, labels = stream(60)
    learner = dpc.Exact(dpc.priors.Uniform(-8, 8), discount=0.98)
    result = dpc.conformalize(learner, score, predictions, labels, LEVELS)
    live = dpc.Online(learner, score)
    for t in range(60):
        sets = live.predict_set(predictions[t], LEVELS)
        np.testing.assert_allclose(sets.low, result.sets.low[t], rtol=1e-9)
        np.testing.assert_allclose(sets.high, result.sets.high[t], rtol=1e-9)
        live.update(predictions[t], labels[t])
    np.testing.assert_array_equal(result.covered, result.sets.contains(labels))
    np.testing.assert_allclose(result.coverage, result.covered.mean(axis=0))
    np.testing.assert_allclose(result.size, result.sets.width)
    np.testing.assert_array_equal(result.levels, LEVELS)
    assert live.rounds == 60
    again = dpc.Online(learner, score, state=live.state)
    np.testing.assert_array_equal(again.thresholds(LEVELS), live.thresholds(LEVELS))
    shape = (2, 60, 2) if score.sides == 2 else (60, 2)
    assert result.thresholds.shape == shape


def test_the_past_alone_decides_and_a_run_can_be_carried_on():
    predictions, labels = stream(80)
    learner, score = dpc.Exact(dpc.priors.HalfCauchy(0.3)), scores.Absolute()
    whole = dpc.conformalize(learner, score, predictions, labels, LEVELS)
    changed = np.where(np.arange(80) < 50, labels, labels + 5)
    other = dpc.conformalize(learner, score, predictions, changed, LEVELS)
    np.testing.assert_array_equal(other.thresholds[:51], whole.thresholds[:51])
    first = dpc.conformalize(learner, score, predictions[:50], labels[:50], LEVELS)
    rest = dpc.conformalize(learner, score, predictions[50:], labels[50:], LEVELS, state=first.run.state)
    np.testing.assert_allclose(np.concatenate([first.sets.high, rest.sets.high]), whole.sets.high, rtol=1e-9)


def test_levels_that_change_by_round_and_batches():
    predictions, labels = stream(40)
    levels = np.random.default_rng(1).random((40, 3))
    learner, score = dpc.Exact(dpc.priors.Uniform(0, 20)), scores.Absolute()
    result = dpc.conformalize(learner, score, predictions, labels, levels)
    run = dpc.replay(learner, np.abs(labels - predictions), levels)
    np.testing.assert_allclose(result.sets.high, predictions[:, None] + np.asarray(run.thresholds))
    panel = dpc.conformalize(learner, score, np.stack([predictions] * 2), np.stack([labels] * 2), [0.9])
    assert panel.sets.low.shape == (2, 40, 1)
    assert panel.coverage.shape == (2, 1)
    sided = dpc.conformalize(
        dpc.Exact(dpc.priors.Uniform(-20, 20)),
        scores.Signed(),
        np.stack([predictions] * 2),
        np.stack([labels] * 2),
        [0.9],
    )
    assert sided.thresholds.shape == (2, 2, 40, 1)
    assert sided.covered.shape == (2, 40, 1)


def test_lopsided_errors_get_lopsided_intervals():
    """A one-sided miss at (1 - α)/2 on either side; the symmetric score spends all of it on the heavy one."""
    rng = np.random.default_rng(3)
    labels = rng.exponential(1.0, 4000)
    learner = dpc.Exact(dpc.priors.Uniform(-20, 20), dpc.schedules.Dirichlet(1.0))
    sided = dpc.conformalize(learner, scores.Signed(), np.zeros(4000), labels, [0.8])
    both = dpc.conformalize(learner, scores.Absolute(), np.zeros(4000), labels, [0.8])
    for result in (sided, both):
        assert result.coverage[0] == pytest.approx(0.8, abs=4 * 0.4 / np.sqrt(4000))
    above, below = labels > sided.sets.high[:, 0], labels < sided.sets.low[:, 0]
    assert above.mean() == pytest.approx(0.1, abs=4 * 0.3 / np.sqrt(4000))
    assert below.mean() == pytest.approx(0.1, abs=4 * 0.3 / np.sqrt(4000))
    assert sided.size[-1, 0] < both.size[-1, 0]


def test_coverage_is_the_same_on_any_increasing_scale():
    """Without a prior quantiles commute with transforms, so the very same labels are covered."""
    predictions, labels = stream()
    plain = dpc.conformalize(dpc.ERM(dpc.priors.Uniform(0, 50)), scores.Absolute(), predictions, labels, LEVELS)
    for transform in (
        scores.Ratio(0.3),
        scores.Log(1e-3),
        scores.Rank(np.abs(np.random.default_rng(9).normal(size=50))),
    ):
        score = scores.Transformed(scores.Absolute(), transform)
        moved = dpc.conformalize(dpc.ERM(dpc.priors.Uniform(-10, 10)), score, predictions, labels, LEVELS)
        np.testing.assert_array_equal(moved.covered[1:], plain.covered[1:])
        np.testing.assert_allclose(moved.sets.high[1:], plain.sets.high[1:], rtol=1e-9)


def test_a_regressor_on_diabetes():
    x, y = load_diabetes(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(y))
    x, y = x[order], y[order]
    model = LinearRegression().fit(x[:150], y[:150])
    predictions = model.predict(x[150:])
    scale = np.median(np.abs(y[:150] - model.predict(x[:150])))
    score = scores.Transformed(scores.Absolute(), scores.Ratio(scale))
    result = dpc.conformalize(dpc.Exact(), score, predictions, y[150:], LEVELS)
    assert isinstance(result.sets, scores.Interval)
    rounds = len(y) - 150
    np.testing.assert_allclose(result.coverage, LEVELS, atol=4 * 0.5 / np.sqrt(rounds) + 0.05)
    assert (result.size[:, 0] <= result.size[:, 1]).all()
    assert dpc.theory.certify(result.run).passed


def test_a_classifier_on_digits():
    x, y = load_digits(return_X_y=True)
    model = LogisticRegression(max_iter=500).fit(x[:500] / 16, y[:500])
    p = model.predict_proba(x[500:] / 16)
    for score in (scores.LAC(), scores.APS(), scores.RAPS(), scores.SAPS(), scores.Margin(), scores.TopK()):
        low, high = score.bounds(p)
        learner = dpc.Exact(dpc.priors.Uniform(low, high), dpc.schedules.Dirichlet(2.0))
        result = dpc.conformalize(learner, score, p, y[500:], [0.9, 0.99])
        assert result.sets.shape == (len(y) - 500, 2, 10)
        assert (result.coverage >= np.array([0.9, 0.99]) - 0.05).all()
        np.testing.assert_array_equal(result.covered, result.sets[np.arange(len(y) - 500), :, y[500:]])
        np.testing.assert_array_equal(result.size, result.sets.sum(axis=-1))
        assert (~result.sets[:, 0] | result.sets[:, 1]).all()  # nested


def test_noise_reaches_the_score_and_the_set():
    rng = np.random.default_rng(0)
    p, y, noise = rng.dirichlet(np.ones(4), 200), rng.integers(0, 4, 200), rng.random(200)
    result = dpc.conformalize(dpc.Exact(), scores.APS(randomized=True), p, y, [0.8], noise=noise)
    np.testing.assert_array_equal(result.covered[:, 0], result.sets[np.arange(200), 0, y])
    live = dpc.Online(dpc.Exact(), scores.APS(randomized=True))
    for t in range(5):
        np.testing.assert_array_equal(live.predict_set(p[t], [0.8], noise=noise[t]), result.sets[t])
        live.update(p[t], y[t], noise=noise[t])


def test_a_model_that_learns_from_each_label():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(400, 3))
    y = x @ np.array([1.0, -2.0, 0.5]) + 0.1 * rng.normal(size=400)
    model = models.from_sklearn(SGDRegressor(random_state=0))
    live = dpc.Online(dpc.Exact(dpc.priors.HalfCauchy(1.0), discount=0.98), scores.Absolute(), model)
    with pytest.raises(ValueError, match="learned too little to predict: call update first"):
        live.predict_set(x[0], [0.9])
    assert live.update(x[0], y[0]) is None  # it could not predict, so there is no score
    widths, hits = [], []
    for t in range(1, 400):
        sets = live.predict_set(x[t], [0.9])
        before = live.predict(x[t])
        hits.append(bool(sets.contains(y[t])[0]))
        widths.append(float(sets.width[0]))
        score = live.update(x[t], y[t])
        assert float(score) == pytest.approx(abs(y[t] - before))
    assert live.rounds == 399
    assert np.mean(widths[-50:]) < 0.5 * np.mean(widths[:50])
    assert np.mean(hits[100:]) > 0.85


def test_classes_by_name_and_models_that_refit_or_stay():
    x, y = load_digits(return_X_y=True)
    x, names = x[:260] / 16, np.array([f"digit {k}" for k in y[:260]])
    learning = SGDClassifier(loss="log_loss", random_state=0)
    live = dpc.Online(dpc.Exact(), scores.LAC(), models.from_sklearn(learning, classes=np.unique(names)))
    for t in range(260):
        live.update(x[t], names[t])
    mask = live.predict_set(x[0], [0.95])
    assert mask.shape == (1, 10)
    assert "digit 0" in live.model.classes[mask[0]]
    with pytest.raises(ValueError, match="y = 'seven': the classes are digit 0"):
        live.update(x[0], "seven")
    refitting = models.from_sklearn(make_pipeline(StandardScaler(), LinearRegression()), refit_every=20, window=50)
    loop = dpc.Online(dpc.Exact(dpc.priors.Exponential(1.0)), scores.Absolute(), refitting)
    rng = np.random.default_rng(1)
    inputs = rng.normal(size=(100, 2))
    for row in inputs:
        loop.update(row, row.sum())
    assert loop.rounds == 80  # the first twenty taught it only
    assert len(refitting._labels) == 50
    assert float(loop.predict(inputs[0])) == pytest.approx(inputs[0].sum(), abs=1e-9)
    still = LinearRegression().fit(inputs, inputs[:, 0])
    frozen = dpc.Online(
        dpc.Exact(dpc.priors.Exponential(1.0)), scores.Absolute(), models.from_sklearn(still, frozen=True)
    )
    frozen.update(inputs[0], 7.0)
    assert float(frozen.predict(inputs[0])) == pytest.approx(inputs[0, 0])


class Moody:
    """A base model that never says the same thing twice."""

    def __init__(self):
        self.asked = 0

    def predict(self, x):
        self.asked += 1
        return float(np.sum(x)) + self.asked

    def learn(self, x, y):
        pass


def test_a_label_is_scored_against_the_prediction_of_its_set():
    live = dpc.Online(dpc.Exact(dpc.priors.HalfCauchy(1.0)), scores.Absolute(), Moody())
    buffer = np.array([1.0, 0.0])
    live.predict_set(buffer, [0.5])
    assert float(live.update(buffer, 2.0)) == 0.0  # 1 + 1, said once
    live.predict_set(buffer, [0.5])
    buffer[:] = [5.0, 0.0]  # the same array, another input
    assert float(live.update(buffer, 8.0)) == 0.0  # 5 + 3
    assert live.model.asked == 3


def test_a_classifier_that_refits_knows_all_classes_and_forgets_none():
    from sklearn.naive_bayes import GaussianNB

    model = models.from_sklearn(GaussianNB(), classes=["a", "b", "c"], refit_every=10, window=10)
    live = dpc.Online(dpc.Exact(), scores.LAC(), model)
    rng = np.random.default_rng(0)
    for t in range(40):
        live.update(rng.normal(size=2), "ab"[t % 2])
    assert live.predict_set(np.zeros(2), [0.9]).shape == (1, 3)
    assert live.predict(np.zeros(2))[2] == 0
    assert float(live.update(np.zeros(2), "c")) == 1.0
    assert len(model._labels) == 10


def test_a_fit_that_fails_leaves_everything_as_it_was():
    fitted = LogisticRegression().fit(np.array([[0.0], [1.0]]), ["a", "b"])
    model = models.from_sklearn(fitted, refit_every=2)
    live = dpc.Online(dpc.Exact(), scores.LAC(), model)
    live.update([0.0], "a")
    state = live.state
    with pytest.raises(ValueError, match="at least 2 classes"):
        live.update([0.1], "a")
    assert live.rounds == 1
    assert live.state is state
    assert model._labels == ["a"]
    live.update([0.9], "b")
    assert live.rounds == 2
    young = dpc.Online(dpc.Exact(), scores.Absolute(), models.from_sklearn(LinearRegression(), refit_every=3))
    with pytest.raises(ValueError, match="y = nan: must be finite"):
        young.update([0.0], np.nan)


def test_rows_of_frames_reach_the_estimator_as_frames():
    frame = pd.DataFrame({"a": np.arange(30.0), "b": np.ones(30)})
    pipeline = make_pipeline(ColumnTransformer([("scale", StandardScaler(), ["a"])]), LinearRegression())
    live = dpc.Online(
        dpc.Exact(dpc.priors.Exponential(1.0)), scores.Absolute(), models.from_sklearn(pipeline, refit_every=10)
    )
    for t in range(30):
        live.update(frame.iloc[[t]], 2.0 * t)
    assert live.rounds == 20
    assert float(live.predict(frame.iloc[[5]])) == pytest.approx(10.0)


class Recursive:
    """An immutable base model: a running mean."""

    def __init__(self, total=0.0, count=0):
        self.total, self.count = total, count

    @property
    def ready(self):
        return self.count > 0

    def predict(self, x):
        return self.total / self.count

    def learn(self, x, y):
        return Recursive(self.total + y, self.count + 1)


def test_a_model_of_ones_own_and_nothing_changes_on_a_mistake():
    live = dpc.Online(dpc.Exact(), scores.Absolute(), Recursive())
    live.update(None, 1.0)
    live.update(None, 2.0)
    assert live.model.count == 2
    assert live.rounds == 1
    state = live.state
    with pytest.raises(ValueError, match=r"score = 98\.5: outside the support \[0, 1\]"):
        live.update(None, 100.0)
    assert live.state is state
    assert live.model.count == 2


def test_context_reaches_the_learner():
    live = dpc.Online(dpc.MVP([0.9], groups=2), scores.LAC())
    groups = np.array([True, False])
    assert live.predict_set([0.5, 0.5], [0.9], context=groups).shape == (1, 2)
    live.update([0.5, 0.5], 1, context=groups)
    assert live.rounds == 1


BAD = {
    "score = <class": lambda: dpc.conformalize(dpc.Exact(), scores.LAC, [[1.0]], [0], [0.9]),
    "labels has shape ()": lambda: dpc.conformalize(dpc.Exact(), scores.Absolute(), 1.0, 1.0, [0.9]),
    "scores[1] = 2.0: outside the support [0, 1]": lambda: dpc.conformalize(
        dpc.Exact(), scores.Absolute(), [1.0, 1.0], [1.0, 3.0], [0.9]
    ),
    "state is a tuple: pass a tuple with a SortedScores for each of the 2 sides": lambda: dpc.Online(
        dpc.Exact(), scores.Signed(), state=(1,)
    ),
    "state is a BinnedScores": lambda: dpc.Online(dpc.Quantized(8), scores.Signed(), state=dpc.Quantized(8).init()),
    "levels[0] = -0.5": lambda: dpc.conformalize(dpc.Exact(), scores.Signed(), [0.0], [0.0], [-0.5]),
    "levels[0] = 90": lambda: dpc.Online(dpc.Exact(), scores.Signed()).predict_set(0.0, [90]),
    "is no classifier; leave them out": lambda: models.from_sklearn(SGDRegressor(), classes=[0, 1]),
    "levels has shape (): pass (A,)": lambda: dpc.Online(dpc.Exact(), scores.Absolute()).predict_set(1.0, 0.9),
    "pass an instance with a predict method": lambda: models.from_sklearn(LinearRegression),
    "has no predict_proba": lambda: models.from_sklearn(LinearSVC(), frozen=True),
    "has no partial_fit: say refit_every=100": lambda: models.from_sklearn(GradientBoostingRegressor()),
    "all classes must be told of a classifier": lambda: models.from_sklearn(SGDClassifier(loss="log_loss")),
    "window = 5: only a fit on the last labels": lambda: models.from_sklearn(SGDRegressor(), window=5),
    "a frozen estimator does not learn": lambda: models.from_sklearn(SGDRegressor(), refit_every=5, frozen=True),
}


@pytest.mark.parametrize("message", BAD)
def test_bad_input_is_named(message):
    with pytest.raises(ValueError, match=r".") as raised:
        BAD[message]()
    assert message in str(raised.value)


def test_wrong_types_are_named_without_a_type_checker():
    code = """
import dpconformal as dpc
for attempt in (
    lambda: dpc.conformalize(dpc.Exact(), "absolute", [1.0], [1.0], [0.9]),
    lambda: dpc.Online(3, dpc.scores.Absolute()),
    lambda: dpc.Online(dpc.Exact(), dpc.scores.Absolute(), 3),
):
    try:
        attempt()
    except ValueError as error:
        print(error)
"""
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.splitlines()
    assert len(said) == 3
    assert said[0].startswith("score = 'absolute': pass one, such as dpconformal.scores.Absolute()")
    assert said[1].startswith("learner = 3: pass a learner")
    assert said[2].startswith("model = 3: needs predict and learn")
