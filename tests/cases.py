"""Sequences, priors and learners that many tests go through."""

import jax.numpy as jnp
import numpy as np
import pytest
import reference

import dpconformal as dpc

LEVELS = np.array([0.0, 0.05, 0.3, 0.5, 0.55, 0.9, 0.99, 1.0])


def sequences(length=120, low=0.0, high=1.0):
    """Named score sequences on [low, high], friendly and hostile."""
    rng = np.random.default_rng(7)
    unit = {
        "uniform": rng.random(length),
        "tied": rng.integers(0, 5, length) / 4,
        "alternating": np.arange(length) % 2 * 1.0,
        "sorted": np.sort(rng.random(length)),
        "reversed": np.sort(rng.random(length))[::-1],
        "constant": np.full(length, 0.3),
        "lowest": np.zeros(length),
        "highest": np.ones(length),
        "skewed": rng.beta(0.2, 3.0, length),
        "drifting": np.clip(np.linspace(0.1, 0.9, length) + 0.05 * rng.standard_normal(length), 0, 1),
        "extreme": rng.choice([0.0, 2.3e-308, 1e-300, 1e-16, 0.5, 1 - 1e-16, np.nextafter(1, 0), 1.0], length),
        "neighbouring": 0.5 + rng.integers(-3, 4, length) * np.spacing(0.5),
    }
    return {name: low + (high - low) * values for name, values in unit.items()}


_EDGES, _MASSES = np.array([0.0, 0.1, 0.15, 0.6, 1.0]), np.array([3.0, 1.0, 0.2, 2.0])


class _MixtureTwin:
    def __init__(self, weights, twins):
        self.weights, self.twins = weights, twins

    def cdf(self, x):
        return sum(w * twin.cdf(x) for w, twin in zip(self.weights, self.twins, strict=True))

    def pdf(self, x):
        return sum(w * twin.pdf(x) for w, twin in zip(self.weights, self.twins, strict=True))

    def ppf(self, p):
        return reference.bisect(self.cdf, np.asarray(p), 0.0, 1.0)


# name: (our prior, its SciPy twin)
PRIORS = {
    "uniform": (dpc.priors.Uniform(), reference.scipy_prior("uniform", 0.0, 1.0)),
    "shifted": (dpc.priors.Uniform(-3, 7), reference.scipy_prior("uniform", -3.0, 7.0)),
    "beta": (dpc.priors.Beta(2, 5), reference.scipy_prior("beta", 2, 5, 0, 1)),
    "beta_wide": (dpc.priors.Beta(1.5, 0.7, -1, 4), reference.scipy_prior("beta", 1.5, 0.7, -1, 4)),
    "truncated_normal": (
        dpc.priors.TruncatedNormal(0.3, 0.2),
        reference.scipy_prior("truncated_normal", 0.3, 0.2, 0, 1),
    ),
    "histogram": (dpc.priors.Histogram(_EDGES, _MASSES), reference.scipy_prior("histogram", _EDGES, _MASSES)),
    "mixture": (
        dpc.priors.Mixture([dpc.priors.Beta(2, 5), dpc.priors.Uniform()], [0.9, 0.1]),
        _MixtureTwin([0.9, 0.1], [reference.scipy_prior("beta", 2, 5, 0, 1), reference.scipy_prior("uniform", 0, 1)]),
    ),
}

BELIEFS = {
    "exact": dpc.Exact(),
    "exact_dirichlet": dpc.Exact(schedule=dpc.schedules.Dirichlet(3.0)),
    "exact_discounted": dpc.Exact(discount=0.9),
    "exact_callable": dpc.Exact(schedule=lambda t: 1 / (1 + jnp.log(t))),
    "quantized": dpc.Quantized(bins=16),
    "quantized_discounted": dpc.Quantized(bins=16, discount=0.9, rounding="nearest"),
}
# Everything with a cdf: one distribution answers every level.
LEARNERS = BELIEFS | {
    "erm": dpc.ERM(),
    "split": dpc.SplitConformal(),
    "sliding": dpc.SlidingERM(window=16),
    "fading": dpc.DiscountedERM(0.9),
    "nexcp": dpc.NExCP(0.9),
}
# Everything that follows each level of a grid by itself.
GRID = np.union1d(LEVELS, [0.1])  # no other level is answered
BASELINES = {
    "ogd": dpc.OGD(GRID),
    "sfogd": dpc.SFOGD(GRID),
    "saocp": dpc.SAOCP(GRID),
    "aci": dpc.ACI(GRID, window=16),
    "dtaci": dpc.DtACI(GRID, window=16),
    "agaci": dpc.AgACI(GRID, window=16),
    "pid": dpc.PID(GRID, window=16),
    "mvp": dpc.MVP(GRID, buckets=10),
}
ALL = LEARNERS | BASELINES


def covering(**lists):
    """Parametrize with as many cases as the longest list has; the shorter ones begin anew, so every value occurs."""
    lists = {name: list(values) for name, values in lists.items()}
    count = max(map(len, lists.values()))
    cases = [tuple(values[k % len(values)] for values in lists.values()) for k in range(count)]
    return pytest.mark.parametrize(list(lists), cases)


def any_levels(learner, shape, seed=8):
    """Levels at random, and for a learner with a grid of those in the grid."""
    rng = np.random.default_rng(seed)
    return rng.choice(learner.levels, shape) if hasattr(learner, "levels") else rng.random(shape)
