"""Every public entry refuses bad input with a ValueError that names the argument, the index and the value."""

import json
import re
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
from cases import LEARNERS

import dpconformal as dpc
from dpconformal import priors, rates, schedules

GOOD = np.full(6, 0.5)


def with_entry(value, index=3):
    scores = GOOD.copy()
    scores[index] = value
    return scores


REPLAY = [
    (with_entry(np.nan), [0.5], "scores[3] = nan: scores must be finite"),
    (with_entry(np.inf), [0.5], "scores[3] = inf: scores must be finite"),
    (with_entry(-np.inf), [0.5], "scores[3] = -inf"),
    (with_entry(1.5), [0.5], "scores[3] = 1.5: outside the support [0, 1]"),
    (with_entry(-1e-9), [0.5], "scores[3] = -1e-09: outside the support [0, 1]"),
    (np.stack([GOOD, with_entry(2.0, 5)]), [0.5], "scores[1, 5] = 2.0"),
    ([0.1, 7, 8], [0.5], "scores[1] = 7.0: outside the support [0, 1]; widen it (a belief's is that of its prior"),
    ([3, 0], [0.5], "scores[0] = 3: outside"),
    ([1.5, 2.5, 0.1], [0.5], "(1 more like it)"),
    (0.5, [0.5], "scores has shape ()"),
    ("text", [0.5], "scores must be real numbers; got dtype <U4"),
    (["a", "b"], [0.5], "scores must be real numbers"),
    ([[0.1, 0.2], [0.3]], [0.5], "scores cannot be read as an array of numbers"),
    ([None, 0.2], [0.5], "scores must be real numbers; got dtype object"),
    (np.array([0.5 + 1j]), [0.5], "scores must be real numbers; got dtype complex128"),
    (np.array(["2020-01-01"], "datetime64[D]"), [0.5], "scores must be real numbers"),
    (np.ma.masked_array([0.1, 0.2], [True, False]), [0.5], "scores is a masked array"),
    (GOOD, [0.5, 1.2], "levels[1] = 1.2: a confidence level lies in [0, 1]"),
    (GOOD, [90], "levels[0] = 90: a confidence level lies in [0, 1]; 90 % is 0.9"),
    (GOOD, [-0.1], "levels[0] = -0.1"),
    (GOOD, [np.nan], "levels[0] = nan"),
    (GOOD, 0.9, "levels has shape (): pass (A,), such as [0.9]"),
    (GOOD, [], "levels has shape (0,)"),
    (
        GOOD,
        np.full((5, 2), 0.5),
        "levels has shape (5, 2): pass (A,), such as [0.9], or (T, A) with T = 6 rows",
    ),
    (GOOD, np.full((6, 2, 2), 0.5), "levels has shape (6, 2, 2)"),
    (GOOD, "0.9", "levels must be real numbers"),
]


@pytest.mark.parametrize("name", LEARNERS)
@pytest.mark.parametrize(("scores", "levels", "message"), REPLAY)
def test_replay(name, scores, levels, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        dpc.replay(LEARNERS[name], scores, levels)


@pytest.mark.parametrize("name", LEARNERS)
def test_observe_and_quantile(name):
    learner = LEARNERS[name]
    state = learner.init()
    for bad in (np.nan, np.inf, 1.5, -0.5, "a", None):
        with pytest.raises(ValueError, match=r"^score "):
            learner.observe(state, bad)
    for bad in ([0.5, 1.5], [np.nan], "a", [None]):
        with pytest.raises(ValueError, match=r"^levels"):
            learner.quantile(state, bad)


def test_state():
    run = dpc.replay(dpc.Exact(), GOOD, [0.5])
    with pytest.raises(ValueError, match="state is a SortedScores: Quantized carries on from a BinnedScores"):
        dpc.replay(dpc.Quantized(4), GOOD, [0.5], state=run.state)
    with pytest.raises(ValueError, match="state is a int"):
        dpc.replay(dpc.Exact(), GOOD, [0.5], state=3)
    with pytest.raises(ValueError, match=r"its leading axes must be those of the scores, \(2,\)"):
        dpc.replay(dpc.Exact(), np.stack([GOOD, GOOD]), [0.5], state=run.state)
    batch = dpc.replay(dpc.Exact(), np.stack([GOOD, GOOD]), [0.5])
    with pytest.raises(ValueError, match=r"its leading axes must be those of the scores, \(\)"):
        dpc.replay(dpc.Exact(), GOOD, [0.5], state=batch.state)


def test_states_of_another_learner():
    scores = np.array([0.1, 0.7, 0.4])
    plain, discounted = (dpc.replay(dpc.Quantized(8, discount=b), scores, [0.5]).state for b in (None, 0.9))
    forgetful = dpc.Quantized(8, discount=0.9)
    for call in (
        lambda: forgetful.observe(plain, 0.3),
        lambda: forgetful.quantile(plain, [0.5]),
        lambda: forgetful.merge(plain, plain),
        lambda: dpc.replay(forgetful, scores, [0.5], state=plain),
    ):
        with pytest.raises(ValueError, match=r"made without a discount, and this Quantized has discount = 0\.9"):
            call()
    with pytest.raises(ValueError, match=r"made with a discount"):
        dpc.replay(dpc.Quantized(8), scores, [0.5], state=discounted)
    with pytest.raises(ValueError, match=r"state has 8 bins, and this Quantized has bins = 4"):
        dpc.replay(dpc.Quantized(4), scores, [0.5], state=plain)
    wide = dpc.replay(dpc.Exact(priors.Uniform(0, 10)), 10 * scores, [0.5]).state
    for learner in (dpc.Exact(), dpc.ERM(), dpc.SplitConformal()):
        with pytest.raises(ValueError, match=r"state holds scores from 1 to 7, outside the support \[0, 1\]"):
            learner.quantile(wide, [0.5])
    with pytest.raises(ValueError, match=r"state.seen = 500: more than the 64 values"):
        dpc.Exact().quantile(wide._replace(seen=jnp.asarray(500, jnp.int32)), [0.5])


@pytest.mark.parametrize(
    "make",
    [
        lambda: dpc.Exact(discount=jnp.array([0.5, 0.9])),
        lambda: dpc.Quantized(2, discount=jnp.array([0.5, 0.9])),
        lambda: dpc.Exact(schedule=schedules.Constant(np.array([0.5, 0.9]))),
        lambda: dpc.Exact(priors.Beta(np.array([2.0, 3.0]), 1)),
        lambda: dpc.Exact(priors.Histogram([0, 0.5, 1], np.ones((2, 2)))),
    ],
)
def test_arrays_of_hyperparameters_belong_under_vmap(make):
    with pytest.raises(ValueError, match=r"has shape \(2,.*to sweep a hyperparameter, use jax.vmap"):
        dpc.replay(make(), GOOD, [0.3, 0.9])


@pytest.mark.parametrize(
    "make",
    [
        lambda: dpc.Exact(discount=1 - 1e-9),
        lambda: dpc.Exact(schedule=schedules.Constant(1e-50)),
        lambda: dpc.Exact(schedule=schedules.Dirichlet(1e-50)),
        lambda: dpc.Quantized(4, schedule=schedules.Dirichlet(1e300)),
        lambda: dpc.Exact(priors.Uniform(1e8, 1e8 + 1)),
        lambda: dpc.Exact(priors.Beta(1e-60, 1)),
    ],
)
def test_what_collapses_in_float32_is_named(make):
    learner = make()
    low, high = learner.support
    scores = np.array([low, high, low], np.float32)
    with pytest.raises(ValueError, match=r"collapses? in float32; rescale it, or enable 64-bit JAX"):
        dpc.replay(learner, scores, np.array([0.5], np.float32))


def test_scores_are_compared_in_the_precision_they_came_in():
    with jax.enable_x64(False):
        with pytest.raises(ValueError, match=r"scores\[0\] = 1.000000001: outside the support"):
            dpc.replay(dpc.Exact(), [1 + 1e-9], [0.5])
        assert dpc.replay(dpc.Exact(priors.Uniform(0, 0.1)), np.array([0.1], np.float32), [0.5]).state.seen == 1


def test_unregistered_and_untraceable_things_are_named():
    class Opaque:
        support = (0.0, 1.0)

        def cdf(self, x):
            return x

        quantile = density = cdf

    with pytest.raises(ValueError, match="not a pytree; register its class"):
        dpc.ERM(Opaque())

    class Learner:
        def init(self):
            return (jnp.zeros(()),)

        def quantile(self, state, levels):
            return levels

        def observe(self, state, score):
            return state

    with pytest.raises(ValueError, match="not a pytree; register its class"):
        dpc.replay(Learner(), GOOD, [0.5])
    for function in (lambda t: 1 / np.sqrt(t), lambda t: 1.0 if t == 1 else 0.3):
        with pytest.raises(ValueError, match=r"write it with jax\.numpy"):
            dpc.Exact(schedule=function)


BIG_ENDIAN = {
    "exact": (dpc.Exact(), None),
    "quantized": (dpc.Quantized(4), None),
    "ogd": (dpc.OGD([0.5]), None),
    "pid": (dpc.PID([0.5], scorecast=True), np.linspace(0.2, 0.4, 6)),
    "groups": (dpc.Hierarchical(2), np.arange(6) % 2),
}


@pytest.mark.parametrize("name", BIG_ENDIAN)
def test_another_byte_order_is_read(name):
    """Found: JAX's own TypeError."""
    learner, context = BIG_ENDIAN[name]
    scores, mask, delay = np.linspace(0.1, 0.9, 6), np.arange(6) == 2, np.array([0, 1])

    def other(part):
        return part if part is None else part.astype(part.dtype.newbyteorder(">"))

    for extra in ({}, {"mask": mask, "delay": delay}) if name == "exact" else ({},):
        want = dpc.replay(learner, scores, [0.5], context=context, **extra)
        extra = {key: other(part) for key, part in extra.items()}
        found = dpc.replay(learner, other(scores), other(np.array([0.5])), context=other(context), **extra)
        np.testing.assert_array_equal(found.thresholds, want.thresholds)


def test_other_dtypes_are_read_or_named():
    """Found: durations were read as whole numbers, or refused in NumPy's words."""
    durations = np.zeros(6, "timedelta64[s]")
    learner = dpc.Exact()
    for name, call in {
        "scores": lambda: dpc.replay(learner, durations, [0.5]),
        "levels": lambda: dpc.replay(learner, GOOD, durations[:1]),
        "score": lambda: learner.observe(learner.init(), durations[0]),
        "context": lambda: dpc.replay(dpc.PID([0.5], scorecast=True), GOOD, [0.5], context=durations),
        "labels": lambda: dpc.conformalize(learner, dpc.scores.Absolute(), GOOD, durations, [0.5]),
        "Exact.discount": lambda: dpc.Exact(discount=durations[0]),
    }.items():
        with pytest.raises(ValueError, match=rf"^{name} must be real numbers; got dtype timedelta64\[s\]; divide"):
            call()
    with pytest.raises(ValueError, match=r"^levels must be real numbers; got dtype datetime64\[D\]"):
        dpc.replay(learner, GOOD, np.array(["2024-01-01"], "datetime64[D]"))
    with pytest.raises(ValueError, match=r"^delay = .*timedelta64"):
        dpc.replay(learner, np.stack([GOOD, GOOD]), [0.5], delay=durations[:2])
    with pytest.raises(ValueError, match="delay is a masked array"):
        dpc.replay(learner, np.stack([GOOD, GOOD]), [0.5], delay=np.ma.masked_array([1, 2], [True, False]))
    with pytest.raises(ValueError, match="context is a masked array"):
        dpc.replay(dpc.Hierarchical(2), GOOD, [0.5], context=np.ma.masked_array([0] * 6, True))
    want = dpc.replay(learner, np.array([0, 1, 1, 0, 1, 0.0]), [0.5]).thresholds
    for dtype in ("u1", ">u8", "f2", ">f2", ">f4", bool, jnp.bfloat16):
        found = dpc.replay(learner, np.array([0, 1, 1, 0, 1, 0]).astype(dtype), [0.5]).thresholds
        np.testing.assert_allclose(found, want, rtol=1e-6)


def test_longdouble_is_read():
    assert dpc.replay(dpc.Exact(), GOOD.astype(np.longdouble), [0.5]).thresholds.dtype == np.float64


def test_a_score_too_large_for_float32_is_not_made_infinite():
    learner = dpc.Exact(priors.Uniform(0, 1e90))
    with jax.enable_x64(False), pytest.raises(ValueError, match=r"scores\[0\] = 1e\+50: overflows float32"):
        dpc.replay(learner, [1e50], [0.5])


CONSTRUCTORS = [
    (lambda: dpc.Exact(prior=priors.Uniform), "Exact.prior = "),
    (lambda: dpc.Exact(schedule=0.5), "schedule = 0.5: pass a schedule"),
    (lambda: dpc.Exact(schedule=schedules.InverseSqrt), "schedule = "),
    (lambda: dpc.Exact(discount=1.0), "Exact.discount = 1.0: must be finite and in (0, 1)"),
    (lambda: dpc.Exact(discount=0), "Exact.discount = 0.0"),
    (lambda: dpc.Exact(discount=np.nan), "Exact.discount = nan"),
    (lambda: dpc.Exact(discount=jnp.array([0.5, 1.5])), "Exact.discount[1] = 1.5"),
    (lambda: dpc.Exact(discount="a"), "Exact.discount must be real numbers"),
    (lambda: dpc.Exact(capacity=0), "Exact.capacity = 0: must be a whole number, at least 1"),
    (lambda: dpc.Quantized(bins=0), "Quantized.bins = 0: must be a whole number, at least 1"),
    (lambda: dpc.Quantized(bins=True), "Quantized.bins = True"),
    (lambda: dpc.Quantized(bins=2**31), "Quantized.bins = 2147483648: at most 268435456"),
    (lambda: dpc.SlidingERM(2**63), "SlidingERM.window = 9223372036854775808: at most"),
    (lambda: dpc.ACI([0.5], window=2**63), "ACI.window = 9223372036854775808: at most"),
    (lambda: dpc.ACI([0.5], warmup=10**500), "ACI.warmup = 1000"),
    (lambda: dpc.SAOCP([0.5], lifetime=10**500), "SAOCP.lifetime = 1000"),
    (lambda: dpc.DtACI([0.5], horizon=10**500), "DtACI.horizon = 1000"),
    (lambda: dpc.Exact(capacity=10**500).init(), "would need room for 1000"),
    (lambda: dpc.PID([0.5], window=2**31), "PID.window = 2147483648: at most"),
    (lambda: dpc.MVP([0.5], buckets=2**63), "MVP.buckets = 9223372036854775808: at most"),
    (lambda: dpc.Quantized(bins=4, discount=-1), "Quantized.discount = -1.0"),
    (lambda: dpc.Quantized().init(), "Quantized.bins = None: a number of bins is needed outside replay"),
    (lambda: dpc.Quantized(4, priors.from_numpyro(dist.HalfNormal(1.0))), "equal bins need a bounded one"),
    (lambda: dpc.SplitConformal(1, 0), "SplitConformal.high = 0.0: must exceed low = 1.0"),
    (lambda: dpc.SplitConformal(0, np.nan), "SplitConformal.high = nan"),
    (lambda: dpc.SlidingERM(0), "SlidingERM.window = 0: must be a whole number, at least 1"),
    (lambda: dpc.DiscountedERM(1.0), "DiscountedERM.discount = 1.0: must be finite and in (0, 1); for no discount"),
    (lambda: dpc.NExCP(0.9, 1, 0), "NExCP.high = 0.0: must exceed low = 1.0"),
    (lambda: dpc.OGD([]), "OGD.levels has shape (0,): pass at least one level"),
    (lambda: dpc.OGD([0.5, 90]), "OGD.levels[1] = 90.0: a level lies in [0, 1]; 90 % is 0.9"),
    (lambda: dpc.OGD([np.nan]), "OGD.levels[0] = nan"),
    (lambda: dpc.OGD("0.9"), "OGD.levels must be real numbers"),
    (lambda: dpc.OGD([0.5], rate=-1), "OGD.rate = -1.0: must be finite and in [0, inf)"),
    (lambda: dpc.OGD([0.5], rate="fast"), "OGD.rate = 'fast': pass a rate such as rates.decaying(), a number, or"),
    (lambda: dpc.OGD([0.5], rate=rates.Power), "OGD.rate = <class"),
    (lambda: dpc.OGD([0.5], low=1, high=1), "OGD.high = 1.0: must exceed low = 1"),
    (lambda: dpc.OGD([0.5], initial=[0.1, 0.2]), "OGD.initial has shape (2,): pass one threshold, or one for each"),
    (lambda: dpc.OGD([0.5], initial=2), "OGD.initial[0] = 2.0: a threshold starts within the support [0.0, 1.0]"),
    (lambda: rates.decaying(0.5), "decaying.epsilon = 0.5: must be finite and in (0, 0.5)"),
    (lambda: rates.Power(-1), "Power.scale = -1.0"),
    (lambda: dpc.SFOGD([0.5], rate=np.inf), "SFOGD.rate = inf"),
    (lambda: dpc.SAOCP([0.5], lifetime=0), "SAOCP.lifetime = 0: must be a whole number, at least 1"),
    (lambda: dpc.ACI([0.5], window=0), "ACI.window = 0: must be a whole number, at least 1"),
    (lambda: dpc.ACI([0.5], warmup=0), "ACI.warmup = 0: must be a whole number, at least 1"),
    (lambda: dpc.ACI([0.5], convention="lower"), "ACI.convention = 'lower': pass one of 'linear', 'higher', 'inverted"),
    (lambda: dpc.ACI([0.5], outside="clip"), "ACI.outside = 'clip': pass one of 'ends', 'infinite', 'extremes'"),
    (lambda: dpc.ACI([0.5], rate=-0.1), "ACI.rate = -0.1"),
    (lambda: dpc.DtACI([0.5], rates=[]), "DtACI.rates has shape (0,): pass a rate for each expert"),
    (lambda: dpc.DtACI([0.5], rates=[0.1, 0]), "DtACI.rates[1] = 0.0: must be finite and above 0"),
    (lambda: dpc.DtACI([0.5], horizon=0), "DtACI.horizon = 0"),
    (lambda: dpc.AgACI([0.5], rates=0.1), "AgACI.rates has shape (): pass a rate for each expert"),
    (lambda: dpc.PID([0.5], saturation=0), "PID.saturation = 0.0: must be finite and in (0, inf)"),
    (lambda: dpc.PID([0.5], outside="extremes"), "PID.outside = 'extremes': pass one of 'ends', 'infinite'"),
    (lambda: dpc.PID([0.5], window=0), "PID.window = 0"),
    (lambda: dpc.MVP([0.5], buckets=0), "MVP.buckets = 0: must be a whole number, at least 1"),
    (lambda: dpc.MVP([0.5], eta=0), "MVP.eta = 0.0: must be finite and in (0, inf)"),
    (lambda: dpc.MVP([0.5], groups=0), "MVP.groups = 0"),
    (lambda: dpc.MVP([0.5], seed=0.5), "MVP.seed = 0.5: pass a whole number from 0 to 2^31 - 1"),
    (lambda: dpc.MVP([0.5], seed=2**40), "MVP.seed = 1099511627776: pass a whole number"),
    (lambda: dpc.MVP([0.5]).init(seed=1.5), "seed = 1.5: pass a whole number"),
    (lambda: dpc.MVP([0.5], resolution=10**9).init(dtype=np.float32), "MVP.resolution = 1000000000: with 50 buckets"),
    (lambda: dpc.PID([0.5], scorecast=True, initial=np.nan), "PID.initial[0] = nan: must be finite"),
    (lambda: dpc.OGD([0.5], low=1e9, high=1e9 + 1).init(dtype=np.float32), "OGD on [1000000000.0, 1000000001.0] coll"),
    (lambda: schedules.Dirichlet(0), "Dirichlet.concentration = 0.0: must be finite and in (0, inf)"),
    (lambda: schedules.Dirichlet(-2), "Dirichlet.concentration = -2.0"),
    (lambda: schedules.Dirichlet(np.inf), "Dirichlet.concentration = inf"),
    (lambda: schedules.Constant(0), "Constant.weight = 0.0: must be finite and in (0, 1]"),
    (lambda: schedules.Constant(1.1), "Constant.weight = 1.1"),
    (lambda: schedules.discounted(1), "discounted.beta = 1.0: must be finite and in (0, 1)"),
    (lambda: priors.Uniform(1, 1), "Uniform.high = 1.0: must exceed low = 1"),
    (lambda: priors.Uniform(0, np.inf), "Uniform.high = inf: must be finite"),
    (lambda: priors.Uniform(-1e308, 1e308), "Uniform.high = 1e+308: must exceed low"),
    (lambda: priors.Beta(0, 1), "Beta.a = 0.0"),
    (lambda: priors.Beta(1, -1), "Beta.b = -1.0"),
    (lambda: priors.Beta(1, 1, 3, 2), "Beta.high = 2.0: must exceed low = 3"),
    (lambda: priors.TruncatedNormal(0, 0), "TruncatedNormal.scale = 0.0"),
    (lambda: priors.TruncatedNormal(50, 1), "TruncatedNormal.loc = 50.0: lies more than 10 scales outside"),
    (lambda: priors.Histogram([0, 1], [1, 2]), "Histogram.masses has shape (2,) and edges (2,)"),
    (lambda: priors.Histogram([0], []), "Histogram.masses has shape (0,)"),
    (lambda: priors.Histogram([0, 2, 1], [1, 1]), "Histogram.edges[2] = 1.0: edges must increase strictly"),
    (lambda: priors.Histogram([0, np.inf], [1]), "Histogram.edges[1] = inf"),
    (
        lambda: priors.Histogram([0, 1, 2], [1, 0]),
        "Histogram.masses[1] = 0.0: masses must be finite and above 0",
    ),
    (lambda: priors.Histogram.from_scores([0.5], bins=0), "bins = 0"),
    (lambda: priors.Histogram.from_scores([0.5], smoothing=0), "smoothing = 0.0"),
    (lambda: priors.Histogram.from_scores([0.5, 2.0]), "scores[1] = 2.0: outside the support [0, 1]"),
    (lambda: priors.Histogram.from_scores([[0.5]]), "scores has shape (1, 1)"),
    (lambda: priors.Histogram.from_scores([0.5], low=1, high=0), "from_scores.high = 0.0"),
    (lambda: priors.Mixture([], []), "Mixture.weights has shape (0,)"),
    (lambda: priors.Mixture([priors.Uniform()], [1, 2]), "one weight for each of the 1 components"),
    (lambda: priors.Mixture([priors.Uniform()], [-1]), "Mixture.weights[0] = -1.0"),
    (
        lambda: priors.Mixture([priors.Uniform(0, 1), priors.Uniform(2, 3)], [1, 1]),
        "Mixture.components leave (1, 2) without density",
    ),
    (lambda: priors.from_numpyro(dist.Uniform(1.0, 0.0)), "Uniform on [1, 0] has parameters out of range"),
    (lambda: priors.from_numpyro(dist.Beta(jnp.ones(2), 2.0)), "Beta has batch_shape (2,)"),
    (lambda: schedules.InverseSqrt().weight(0), "t = 0.0: rounds are counted from 1"),
    (lambda: schedules.Dirichlet(5).weight([1, -3]), "t[1] = -3.0: rounds are counted from 1"),
    (lambda: schedules.Constant(0.3).weight(np.nan), "t = nan"),
    (lambda: schedules.Constant(0.3).weight("a"), "t must be real numbers"),
    (lambda: dpc.Exact().cdf(dpc.Exact().init(), "a"), "x must be real numbers"),
    (lambda: priors.from_numpyro(3), "distribution = 3: not a NumPyro distribution"),
    (lambda: priors.from_numpyro(dist.Poisson(1.0)), "Poisson is not univariate and continuous"),
    (lambda: priors.from_numpyro(dist.Dirichlet(jnp.ones(3))), "Dirichlet is not univariate and continuous"),
    (lambda: priors.from_numpyro(dist.Gamma(2.0)), "Gamma has no icdf in NumPyro and an unbounded support"),
    (lambda: priors.from_numpyro(dist.VonMises(0.0, 1.0)), "VonMises has no cdf in NumPyro"),
]


@pytest.mark.parametrize(("make", "message"), CONSTRUCTORS)
def test_constructors(make, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        make()


GROUPS = dpc.MVP([0.9], buckets=5, groups=2)
ROWS = np.ones((6, 2), bool)
CONTEXTS = [
    (lambda: dpc.replay(dpc.Exact(), GOOD, [0.5], context=ROWS), "context is given, and Exact takes none"),
    (lambda: dpc.replay(dpc.OGD([0.9]), GOOD, [0.5], context=ROWS), "context is given, and OGD takes none"),
    (lambda: dpc.replay(GROUPS, GOOD, [0.9]), "context is missing: an MVP with groups = 2 needs each round's groups"),
    (lambda: dpc.replay(GROUPS, GOOD, [0.9], context=ROWS[:5]), "context has shape (5, 2): pass a row of 2 booleans"),
    (lambda: dpc.replay(GROUPS, GOOD, [0.9], context=ROWS * 1.0), "context must be booleans"),
    (lambda: dpc.replay(dpc.MVP([0.9]), GOOD, [0.9], context=ROWS), "this MVP takes none: make it with groups=2"),
    (lambda: GROUPS.quantile(GROUPS.init(), [0.9]), "context is missing"),
    (lambda: GROUPS.observe(GROUPS.init(), 0.5, context=ROWS), "context has shape (6, 2): pass a row of 2 booleans"),
    (lambda: dpc.replay(dpc.PID([0.9]), GOOD, [0.9], context=GOOD), "make it with scorecast=True"),
    (lambda: dpc.replay(dpc.PID([0.9], scorecast=True), GOOD, [0.9]), "needs the round's scorecast"),
    (
        lambda: dpc.replay(dpc.PID([0.9], scorecast=True), GOOD, [0.9], context=with_entry(np.nan)),
        "context[3] = nan: a scorecast must be finite",
    ),
    (
        lambda: dpc.PID([0.9], scorecast=True).observe(dpc.PID([0.9], scorecast=True).init(), 0.5, context=np.inf),
        "context = inf: a scorecast must be finite",
    ),
    (
        lambda: dpc.replay(dpc.PID([0.9], scorecast=True), GOOD, [0.9], context=GOOD[:4]),
        "context has shape (4,): pass a scorecast a round, shape (6,), or one a round and level, shape (6, 1)",
    ),
]


@pytest.mark.parametrize(("call", "message"), CONTEXTS)
def test_context(call, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        call()


def test_states_and_rates_of_baselines():
    small, large = dpc.ACI([0.5], window=5), dpc.ACI([0.5], window=9)
    with pytest.raises(ValueError, match=r"state.latest has shape \(5,\), and this ACI works with \(9,\)"):
        large.observe(small.init(), 0.5)
    with pytest.raises(ValueError, match=r"state.iterate has shape \(1,\), and this OGD works with \(2,\)"):
        dpc.replay(dpc.OGD([0.5, 0.9]), GOOD, [0.5], state=dpc.OGD([0.5]).init())
    with pytest.raises(ValueError, match="state has room for 5 scores, and this SlidingERM has window = 9"):
        dpc.SlidingERM(9).quantile(dpc.SlidingERM(5).init(), [0.5])
    shrinking = dpc.OGD([0.5], rate=lambda t: 3 - t)
    with pytest.raises(ValueError, match=r"rate's step of round t = 4, = -1.0: must be at least 0"):
        dpc.replay(shrinking, GOOD, [0.5])
    state = dpc.replay(shrinking, GOOD[:2], [0.5]).state
    with pytest.raises(ValueError, match="round t = 4"):
        dpc.replay(shrinking, GOOD[:2], [0.5], state=state)
    wide = dpc.replay(dpc.ACI([0.5], window=5, high=10), 10 * GOOD, [0.5]).state
    with pytest.raises(ValueError, match=r"state.latest\[0\] = 5.0: outside the support \[0, 1\] of this ACI"):
        small.observe(wide, 0.5)
    wide = dpc.replay(dpc.SlidingERM(5, priors.Uniform(0, 10)), 10 * GOOD, [0.5]).state
    with pytest.raises(ValueError, match=r"state.latest\[0\] = 5.0: outside the support \[0, 1\] of this SlidingERM"):
        dpc.SlidingERM(5).quantile(wide, [0.5])
    with jax.enable_x64(False), pytest.raises(ValueError, match=r"collapses in float32; enable 64-bit JAX"):
        dpc.replay(dpc.NExCP(1 - 1e-9), GOOD, [0.5])


WRONG_TYPES = [
    (
        "dpc.metrics.coverage(dpc.replay(dpc.Exact(), [0.1], [0.5], keep='summary'))",
        "run is a Summary, which has coverage, loss and mean_threshold of its own",
    ),
    ("dpc.Exact().observe(dpc.Quantized(4).init(), 0.3)", "state is a BinnedScores: Exact carries on from"),
    ("dpc.ERM().quantile(3, [0.5])", "state is a int: ERM carries on from a SortedScores"),
    ("dpc.Quantized(4).merge(1, 2)", "state is a int: Quantized carries on from a BinnedScores"),
    ("dpc.priors.Mixture(dpc.priors.Uniform(), [1])", "pass a list of priors"),
    ("dpc.rates.Custom(3)", "Custom.function = 3: pass a function of t"),
    ("dpc.schedules.Custom(3)", "Custom.function = 3: pass a function of t"),
    ("dpc.metrics.pit([1])", "run is a list"),
    ("dpc.replay(dpc.Exact, [0.5], [0.5])", "pass an instance, with brackets"),
    ("dpc.replay('exact', [0.5], [0.5])", "learner = 'exact': pass a learner such as"),
    ("dpc.Exact(prior='uniform')", "Exact.prior = 'uniform': pass a prior"),
    ("dpc.Exact(capacity=2.5)", "Exact.capacity = 2.5: must be a whole number"),
    ("dpc.Quantized(bins=10.0)", "Quantized.bins = 10.0: must be a whole number"),
    ("dpc.OGD([0.9]).observe(dpc.SFOGD([0.9]).init(), 0.5)", "state is a ScaledIterates: OGD carries on from a Iter"),
    ("dpc.SlidingERM().quantile(3, [0.5])", "state is a int: SlidingERM carries on from a Window"),
    ("dpc.ACI([0.9], window=2.5)", "ACI.window = 2.5: must be a whole number"),
    ("dpc.PID([0.9], scorecast=[0.1])", "PID.scorecast = [0.1]: pass True, and the scorecasts as replay's context"),
    ("dpc.MVP([0.9], normalize=1)", "MVP.normalize = 1: pass True or False"),
    ("dpc.ERM(prior=3)", "ERM.prior = 3: pass a prior"),
    ("dpc.priors.Mixture([dpc.priors.Uniform(), 3], [1, 2])", "Mixture.components[1] = 3: not a prior"),
    ("dpc.metrics.coverage([[0.5]])", "run is a list: pass what replay returned"),
    ("dpc.metrics.rolling_coverage(dpc.replay(dpc.Exact(), [0.5], [0.5]), 'a')", "window = 'a'"),
]


def test_wrong_types_without_the_run_time_type_checker():
    """In another process: here the type checker of the tests would speak first."""
    code = "import json, dpconformal as dpc\nmessages = []\n"
    for call, _ in WRONG_TYPES:
        code += f"try:\n    {call}\nexcept ValueError as error:\n    messages.append(str(error))\n"
    code += "print(json.dumps(messages))"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    for (call, expected), message in zip(WRONG_TYPES, json.loads(out), strict=True):
        assert expected in message, call
