"""
The streams of the benchmark of methods: simulated, searched for, and real.

Each has a support that is stated beforehand and told to every method alike. Every random choice has a fixed seed.
"""

import functools
from typing import NamedTuple

import numpy as np
from sklearn import datasets
from sklearn.linear_model import SGDClassifier

import dpconformal as dpc
from dpconformal import streams
from dpconformal.experiments.prices import garch_scores, read_prices


class Stream(NamedTuple):
    """Scores with their support, and where they come from."""

    name: str
    kind: str  # simulated, searched, market, classes or regression
    about: str
    low: float
    high: float
    scores: np.ndarray  # (T,)


def _simulated(name, about, make):
    return name, 5000, lambda rounds: Stream(name, "simulated", about, 0.0, 1.0, make(rounds))


def _searched(name, victim):
    """Search for a sequence that one method regrets at level 0.9; the others are not looked at."""

    def make(rounds):
        found = dpc.theory.hardest_sequence(victim, 0.9, rounds, population=16, generations=20, seed=0)
        about = f"searched against {type(victim).__name__} at level 0.9, as theory.hardest_sequence does"
        return Stream(name, "searched", about, 0.0, 1.0, found.scores)

    return name, 1000, make


def _market(name, label, read):
    """Score the latest days by the paper's protocol: errors of GARCH forecasts of squared returns, in [0, 1)."""

    def make(rounds):
        scores = garch_scores(read()[-rounds:], refit_every=20, progress=False)
        return Stream(name, "market", f"{label}: error of a GARCH(1, 1) forecast of volatility", 0.0, 1.0, scores)

    return name, 5000, make


def oil_prices():
    """Daily prices of WTI oil, from the data sets of arch; days without a price are holidays, and left out."""
    from arch.data import wti

    return wti.load().iloc[:, 0].dropna().to_numpy()


class Ridge:
    """Ridge regression, solved anew in each round, with predictions kept within the range of the labels."""

    def __init__(self, size, low, high):
        self.low, self.high = low, high
        self.products, self.sums = np.eye(size + 1), np.zeros(size + 1)

    def predict(self, x):
        return np.clip(np.append(x, 1.0) @ np.linalg.solve(self.products, self.sums), self.low, self.high)

    def learn(self, x, y):
        row = np.append(x, 1.0)
        self.products += np.outer(row, row)
        self.sums += y * row


def _records(load, passes, is_sorted):
    """Return features divided by their ranges and labels: shuffled for each pass, and perhaps sorted by label."""
    x, y = load(return_X_y=True)
    x = (x - x.min(axis=0)) / np.maximum(np.ptp(x, axis=0), 1e-12)
    random = np.random.default_rng(0)
    order = np.concatenate([random.permutation(y.size) for _ in range(passes)])
    if is_sorted:
        rows = order.reshape(passes, -1)
        order = np.concatenate([row[np.argsort(y[row], kind="stable")] for row in rows])
    return x[order], y[order]


def _told(passes, is_sorted):
    order = "sorted by label" if is_sorted else "shuffled"
    return order if passes == 1 else f"{order}, passed through {passes} times"


def _classes(name, load, size, passes=1, is_sorted=False):
    """Score the probability that a linear classifier gives to the label, before it learns from it."""

    def make(rounds):
        x, y = _records(load, passes, is_sorted)
        classes = np.unique(y)
        # A constant step, so that the model goes on learning; loss and step are not chosen by any result here.
        sgd = SGDClassifier(loss="log_loss", learning_rate="constant", eta0=0.1, random_state=0)
        model, score = dpc.models.from_sklearn(sgd, classes), dpc.scores.LAC()
        scores = np.empty(min(rounds, y.size))
        for t in range(scores.size):
            p = model.predict(x[t]) if model.ready else np.full(classes.size, 1 / classes.size)
            scores[t] = score([p], [model.label(y[t])])[0]
            model.learn(x[t], y[t])
        about = f"1 - probability of the label, SGD classifier that learns; {_told(passes, is_sorted)}"
        return Stream(name, "classes", about, 0.0, 1.0, scores)

    return name, size * passes, make


def _regression(name, load, size, passes, is_sorted=False):
    """Score the distance to the prediction of a ridge regression, before it learns from the label."""

    def make(rounds):
        x, y = _records(load, passes, is_sorted)
        model, score = Ridge(x.shape[1], y.min(), y.max()), dpc.scores.Absolute()
        scores = np.empty(min(rounds, y.size))
        for t in range(scores.size):
            scores[t] = score([model.predict(x[t])], [y[t]])[0]
            model.learn(x[t], y[t])
        about = f"absolute residual of a ridge regression that learns; {_told(passes, is_sorted)}"
        return Stream(name, "regression", about, 0.0, float(np.ptp(y)), scores)

    return name, size * passes, make


# Name, rounds, and how to make it of that many rounds or fewer.
BUILDERS = (
    _simulated("iid", "independent, Beta(2, 5)", streams.iid),
    _simulated("alternating", "1, 0, 1, 0, …: the paper's sequence against ERM", lambda n: 1 - streams.alternating(n)),
    _simulated("abrupt", "scale jumps every 200 to 800 rounds", streams.abrupt),
    _simulated("gradual", "scale grows steadily, fivefold", streams.gradual),
    _simulated("seasonal", "scale swings fivefold, once in 250 rounds", streams.seasonal),
    _simulated("heavy tails", "independent, density like 1/s²", streams.heavy_tailed),
    _searched("hard for Exact", dpc.Exact()),
    _searched("hard for OGD", dpc.OGD([0.9])),
    _searched("hard for ACI", dpc.ACI([0.9])),
    _market("S&P 500", "daily, to 2018", lambda: read_prices("sp500", "Adj Close").to_numpy()),
    _market("NASDAQ", "daily, to 2018", lambda: read_prices("nasdaq", "Adj Close").to_numpy()),
    _market("WTI oil", "daily, to 2019", oil_prices),
    _classes("digits", datasets.load_digits, 1797),
    _classes("digits, sorted", datasets.load_digits, 1797, is_sorted=True),
    _classes("breast cancer", datasets.load_breast_cancer, 569, passes=2),
    _classes("wine", datasets.load_wine, 178, passes=6),
    _regression("diabetes", datasets.load_diabetes, 442, passes=3),
    _regression("diabetes, sorted", datasets.load_diabetes, 442, passes=3, is_sorted=True),
)


@functools.cache
def stream(name, most=None):
    """Make a stream; of ``most`` rounds at most."""
    found = [(rounds, make) for known, rounds, make in BUILDERS if known == name]
    if not found:
        raise ValueError(f"name = {name!r}: the streams are {', '.join(known for known, *_ in BUILDERS)}")
    rounds, make = found[0]
    return make(rounds if most is None else min(rounds, most))
