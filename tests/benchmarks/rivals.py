"""Packages that a user would otherwise pick, each used in its own best way, and what each cannot do."""

import warnings

import numpy as np
from crepes import ConformalRegressor
from mapie.conformity_scores import AbsoluteConformityScore
from mapie.regression import TimeSeriesRegressor
from online_cp import DempsterHillConformalPredictiveSystem
from river import stats
from sklearn.dummy import DummyRegressor


def crepes_online(scores, levels):
    """Its online mode, with predictions of zero, so that residuals are the scores; one pass a level."""
    regressor, zeros = ConformalRegressor(), np.zeros(scores.size)
    passes = [regressor.predict_int_online(zeros, scores, confidence=float(a), warm_start=False)[:, 1] for a in levels]
    return np.stack(passes, axis=1)


def _river(estimators, scores):
    thresholds = np.empty((scores.size, len(estimators)))
    for t, score in enumerate(scores.tolist()):
        for a, estimator in enumerate(estimators):
            thresholds[t, a] = estimator.get() or 0.0
            estimator.update(score)
    return thresholds


def river_p2(scores, levels):
    """The P² estimator, in Rust: five markers a level, updated and read once a round."""
    return _river([stats.Quantile(float(a)) for a in levels], scores)


def river_rolling(scores, levels, window=1000):
    """An exact quantile of a sorted window, in Rust."""
    return _river([stats.RollingQuantile(float(a), window) for a in levels], scores)


def mapie_aci(scores, levels, warm_up=100):
    """Adaptive conformal inference around predictions of zero, by its own predict and adapt calls."""
    features = np.zeros((scores.size, 1))
    thresholds = np.tile(levels, (scores.size, 1))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        zero = DummyRegressor(strategy="constant", constant=0.0).fit(features, scores)
        for a, level in enumerate(levels):
            model = TimeSeriesRegressor(
                zero, method="aci", cv="prefit", conformity_score=AbsoluteConformityScore(sym=True)
            )
            model.fit(features[:warm_up], scores[:warm_up])
            for t in range(warm_up, scores.size):
                row = features[t : t + 1]
                _, interval = model.predict(row, confidence_level=round(float(level), 6), allow_infinite_bounds=True)
                thresholds[t, a] = interval[0, 1, 0]
                model.adapt_conformal_inference(
                    row, scores[t : t + 1], gamma=0.005, confidence_level=round(float(level), 6)
                )
    return thresholds


def online_cp_dempster_hill(scores, levels):
    """The label-only conformal predictive system: one distribution answers every level."""
    system = DempsterHillConformalPredictiveSystem()
    system.learn_initial_training_set(np.empty(0))
    thresholds = np.empty((scores.size, levels.size))
    for t, score in enumerate(scores):
        distribution = system.predict_cpd()
        thresholds[t] = [distribution.quantile(float(a), 1) for a in levels]
        system.learn_one(score)
    return thresholds


# name: (function, rounds to time it on, what it cannot do)
RIVALS = {
    "crepes online": (
        crepes_online,
        20_000,
        "split conformal; one level a pass; O(n) a round; no regret bound, no drift",
    ),
    "river P²": (river_p2, 20_000, "approximate; levels may cross; no prior, no bound"),
    "river rolling quantile": (river_rolling, 20_000, "a window of 1,000; one level each; no bound"),
    "MAPIE ACI": (mapie_aci, 600, "one level each, may cross; scores are tied to a regressor"),
    "online-cp Dempster-Hill": (online_cp_dempster_hill, 2_000, "sorts all scores every round; no drift, no bound"),
}
