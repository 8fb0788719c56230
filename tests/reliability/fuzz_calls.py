"""Arguments that nobody should pass, to every public entry: a clear error, or an answer that an oracle agrees with."""

import functools
import inspect
import math

import jax
import jax.numpy as jnp
import numpy as np
import reference

import dpconformal as dpc
from dpconformal import metrics, priors, rates, schedules, scores, streams, theory

ODD = [math.nan, math.inf, -math.inf, 0, -0.0, 1, -1, 0.5, 1e-300, 1e300, 5e-324, 1 + 2**-52, 1 - 2**-53, 2**31, 2**63]
ODD += [
    10**400,
    True,
    None,
    "0.5",
    "",
    [],
    [0.5],
    [[0.1], [0.2, 0.3]],
    {},
    1j,
    b"x",
    object(),
    np.float32(0.1),
    np.array(7),
]
ODD += [np.array([]), np.array(["a"]), np.ma.masked_array([0.1], [True]), np.array([0.5, np.nan]), lambda t: t, int]
SCORES = [0.0, 1.0, 0.5, 0.25, 0.3, 0.30000000000000004, 1e-16, 1 - 2**-53, 2.3e-308, 0.75]
LEVELS = [0.0, 1.0, 0.5, 0.9, 0.1, 2**-53, 1 - 2**-53, 0.3]
ROUNDS = 8  # of every sequence, so that a program is compiled once


def odd(rng, usual, chance=0.15):
    """Mostly what is usual."""
    return rng.choice(ODD) if rng.random() < chance else usual


def some_prior(rng, chance=0.1):
    """Make a prior, of numbers that may be odd."""
    low = odd(rng, rng.choice((0.0, 0.0, -1.0)), chance)
    high = odd(rng, rng.choice((1.0, 1.0, 2.0)), chance)
    a, b = odd(rng, rng.uniform(0.3, 9), chance), odd(rng, rng.uniform(0.3, 9), chance)
    match rng.randrange(6):
        case 0:
            return priors.Beta(a, b, low, high)
        case 1:
            return priors.TruncatedNormal(odd(rng, 0.3, chance), a, low, high)
        case 2:
            return priors.Histogram(odd(rng, [0.0, 0.4, 1.0], chance), odd(rng, [a, b], chance))
        case 3:
            return rng.choice((priors.HalfNormal, priors.Exponential, priors.HalfCauchy))(a)
        case _:
            return priors.Uniform(low, high)


def some_schedule(rng, chance=0.1):
    """Make a schedule, of numbers that may be odd."""
    match rng.randrange(4):
        case 0:
            return schedules.Dirichlet(odd(rng, rng.uniform(0.1, 9), chance))
        case 1:
            return schedules.Constant(odd(rng, rng.uniform(0.01, 1), chance))
        case 2:
            return None
        case _:
            return odd(rng, schedules.InverseSqrt(), chance)


def some_learner(rng, chance=0.05):
    """Make a learner, of numbers that may be odd."""
    discount = odd(rng, rng.choice((None, 0.9, 0.5)), chance)
    levels = odd(rng, LEVELS, chance)  # which are asked for below
    ends = {"low": odd(rng, 0.0, chance / 2), "high": odd(rng, 1.0, chance / 2)}
    match rng.randrange(12):
        case 0 | 1 | 2:
            return dpc.Exact(some_prior(rng, chance), some_schedule(rng, chance), discount)
        case 3 | 4:
            return dpc.Quantized(odd(rng, 16, chance), some_prior(rng, chance), some_schedule(rng, chance), discount)
        case 5:
            return dpc.ERM(some_prior(rng, chance))
        case 6:
            return dpc.SplitConformal(**ends)
        case 7:
            return dpc.NExCP(odd(rng, 0.9, chance), **ends)
        case 8:
            return dpc.DiscountedERM(odd(rng, 0.9, chance), some_prior(rng, chance))
        case 9:
            return dpc.SlidingERM(odd(rng, 4, chance), some_prior(rng, chance))
        case 10:
            return dpc.OGD(levels, odd(rng, rates.Power(0.5, 0.5), chance), odd(rng, None, chance), **ends)
        case _:
            return dpc.ACI(levels, odd(rng, 0.005, chance), odd(rng, 4, chance), odd(rng, 2, chance), **ends)


def swept(value):
    """Tell whether a hyperparameter is an axis for vmap, on which a call by itself means nothing."""
    return any(np.ndim(leaf) > 1 or (np.ndim(leaf) and np.size(leaf) < 2) for leaf in jax.tree.leaves(value))


def fuzz_replay(rng):
    """Any learner over any scores at any levels: thresholds are numbers within the support, in order, and right."""
    learner = some_learner(rng)
    given = odd(rng, [odd(rng, rng.choice(SCORES), 0.02) for _ in range(ROUNDS)], 0.03)
    levels = odd(rng, [odd(rng, rng.choice(LEVELS), 0.02) for _ in range(3)], 0.03)
    method, keep = odd(rng, rng.choice(("auto", "auto", "scan")), 0.02), odd(rng, "all", 0.02)
    run = dpc.replay(learner, given, levels, odd(rng, None, 0.02), keep, method)
    if keep != "all":
        return
    thresholds, low, high = np.asarray(run.thresholds), *map(float, learner.support)
    told = (learner, given, levels, method)
    assert not np.isnan(thresholds).any(), told
    if hasattr(learner, "cdf"):  # methods that follow a gradient may leave the support
        assert (thresholds >= low).all(), told
        assert (thresholds <= high).all() or not hasattr(learner, "prior"), told
    if hasattr(learner, "cdf") and run.levels.ndim == 1:
        rising = thresholds[..., np.argsort(run.levels)]
        assert (rising[..., 1:] >= rising[..., :-1]).all()
    agree(learner, run)


def agree(learner, run):
    """Hold a run to its oracle, where there is one."""
    values, levels = np.asarray(run.scores, float), np.asarray(run.levels, float)
    if values.ndim != 1 or levels.ndim != 1 or values.dtype != np.float64 or run.thresholds.dtype != np.float64:
        return
    prior = getattr(learner, "prior", None)
    kinds = isinstance(learner, (dpc.Exact, dpc.Quantized)) and isinstance(prior, priors.Uniform)
    schedule = getattr(learner, "schedule", None)
    if kinds and (schedule is None or isinstance(schedule, (schedules.Dirichlet, schedules.InverseSqrt))):
        low, high = float(prior.low), float(prior.high)
        if not 1e-100 < high - low < 1e100 or abs(low) > 1e10 * (high - low):
            return  # the oracle bisects in float64
        schedule = schedule or (
            schedules.InverseSqrt() if learner.discount is None else schedules.discounted(learner.discount)
        )
        weights = [float(schedule.weight(float(t))) for t in range(1, values.size + 1)]
        if min(weights, default=1) < 1e-6 or (learner.discount or 0.5) < 1e-6:
            return  # where thresholds hang on the last bit of a level
        bins = learner.bins or math.isqrt(max(values.size, 1) - 1) + 1 if isinstance(learner, dpc.Quantized) else None
        want = reference.belief_thresholds(
            values, levels, reference.scipy_prior("uniform", low, high), (low, high), lambda t: weights[t - 1],
            learner.discount, bins,
        )  # fmt: skip
        close(run.thresholds, want, (high - low) / min(weights, default=1), values, learner)
    elif isinstance(learner, dpc.SplitConformal) and math.isfinite(float(learner.low)):
        want = reference.split_thresholds(values, levels, float(learner.low))
        near = [abs(level * (t + 1) - round(level * (t + 1))) < 1e-9 for t in range(values.size) for level in levels]
        np.testing.assert_array_equal(
            np.asarray(run.thresholds).ravel()[~np.array(near, bool)], want.ravel()[~np.array(near, bool)]
        )


def close(found, want, scale, values, learner):
    """Agree to 1e-9, except where a level lies within rounding of a jump and a neighbour is as right."""
    apart = np.abs(np.asarray(found) - want) > 1e-9 * scale
    for t, a in np.argwhere(apart):
        # The answer on the other side of an atom is right for a level that differs by a few units in the last place.
        places = np.unique(np.concatenate([values[:t], [float(end) for end in learner.support]]))
        gap = sorted((float(found[t, a]), float(want[t, a])))
        inside = ((places > gap[0] + 1e-9 * scale) & (places < gap[1] - 1e-9 * scale)).sum()
        assert inside == 0, (learner, values.tolist(), t, a, found[t, a], want[t, a])


def fuzz_online(rng):
    """Scores and questions one at a time, states mixed up: NaN never comes out of the host's checks."""
    learner = some_learner(rng, 0.02)
    state = odd(rng, learner.init(), 0.05)
    for _ in range(3):
        state = learner.observe(state, odd(rng, rng.choice(SCORES), 0.1))
    if hasattr(learner, "merge"):
        state = learner.merge(state, odd(rng, learner.init(), 0.1))
    answers = np.asarray(learner.quantile(state, odd(rng, [0.1, 0.5, 0.9], 0.1)))
    assert not np.isnan(answers).any()


def fuzz_priors(rng):
    """Distributions: cdf and quantile in range, in order, and inverse to each other."""
    prior = some_prior(rng, 0.2)
    if swept(prior):
        return
    low, high = map(float, prior.support)
    p = np.asarray(prior.quantile(odd(rng, [0.0, 0.2, 0.5, 1.0], 0.1)))
    assert not np.isnan(p).any()
    assert ((p >= low) & (p <= high)).all()
    assert (np.diff(p) >= 0).all() if p.ndim == 1 and p.size == 4 else True
    x = odd(rng, [-1.0, 0.0, 0.2, 1.0, 3.0], 0.1)
    cdf, density = np.asarray(prior.cdf(x)), np.asarray(prior.density(x))
    if np.all(np.isfinite(np.asarray(x, float))):
        assert ((cdf >= 0) & (cdf <= 1)).all()
        assert (density >= 0).all()


def fuzz_schedules(rng):
    """Weights are in (0, 1], steps are not negative."""
    schedule = some_schedule(rng, 0.3)
    if schedule is not None:
        schedule = schedules.as_schedule(schedule)
        if isinstance(schedule, schedules.Custom):
            return
        weight = np.asarray(schedule.weight(odd(rng, 5.0, 0.2)))
        assert ((weight >= 0) & (weight <= 1)).all()
    rate = rates.as_rate(odd(rng, rates.Power(odd(rng, 1.0), odd(rng, 0.5)), 0.2), "OGD.rate")
    if not isinstance(rate, rates.Custom):
        assert (np.asarray(rate.step(7.0)) >= 0).all()


_METRICS = [getattr(metrics, name) for name in metrics.__all__ if inspect.isfunction(getattr(metrics, name))]


def fuzz_metrics(rng):
    """What is measured of a run that somebody put together."""
    shape = rng.choice([(ROUNDS, 3), (ROUNDS, 3), (2, ROUNDS, 3), (0, 3), (ROUNDS,)])
    thresholds = odd(rng, np.array([rng.choice(SCORES) for _ in range(math.prod(shape))]).reshape(shape), 0.1)
    values = odd(rng, np.array([rng.choice(SCORES) for _ in range(math.prod(shape[:-1]))]).reshape(shape[:-1]), 0.1)
    levels = odd(rng, np.array([0.1, 0.5, 0.9]), 0.1)
    run = odd(rng, dpc.Replay(*map(_array, (thresholds, None, values, levels)), dpc.Exact()), 0.05)
    measure = rng.choice(_METRICS)
    extra = [odd(rng, rng.choice((0.9, 3, 0.5)), 0.2) for _ in _required(measure)[1:]]
    measure(run, *extra)


def _array(value):
    try:
        return jnp.asarray(value) if isinstance(value, (np.ndarray, list, float, int)) else value
    except (TypeError, ValueError, OverflowError):
        return value


@functools.cache
def _required(function):
    given = inspect.signature(function).parameters.values()
    return [p.name for p in given if p.default is p.empty and p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]


def _entries():
    """Every public function and class that is called with numbers."""
    found = {}
    for module in (theory, streams, scores, schedules, rates, priors):
        for name in getattr(module, "__all__", dir(module)):
            entry = getattr(module, name)
            # Scores of two billion rounds can be asked for, and take their time; a tuple is no entry.
            record = isinstance(entry, type) and issubclass(entry, tuple)
            if callable(entry) and not getattr(entry, "_is_protocol", False) and not record and name[0] != "_":
                found[f"{module.__name__}.{name}"] = entry
    return found


_ENTRIES = _entries()
_USUAL = [0.5, 0.9, 10, 3, [0.1, 0.5, 0.9], [0.2, 0.4, 0.3], priors.Uniform(), schedules.InverseSqrt(), 0.99]


def fuzz_entries(rng):
    """Every other function and class, with any arguments that its signature takes."""
    name = rng.choice(sorted(_ENTRIES))
    entry = _ENTRIES[name]
    count = len(_required(entry)) if inspect.isfunction(entry) else len(_required(entry.__init__)) - 1
    most = len(inspect.signature(entry).parameters)
    given = [
        odd(rng, rng.choice(_USUAL), 0.4)
        for _ in range(rng.randint(min(count, most), max(count, min(most, count + 2))))
    ]
    if entry.__module__ == streams.__name__:
        given = [3 if isinstance(part, int) and part > 10**6 else part for part in given]
    with np.errstate(over="ignore"):  # a bound beyond the largest number is infinite
        entry(*given)


_LABELS = np.random.default_rng(0).normal(size=ROUNDS)


def fuzz_conformal(rng):
    """Predictions and labels of any kind: sets, or a clear error."""
    score = odd(rng, rng.choice([scores.Absolute(), scores.Norm(), scores.LAC(), scores.CQR(), scores.Margin()]), 0.1)
    predictions = odd(rng, rng.choice([_LABELS, np.zeros((ROUNDS, 2)), np.full((ROUNDS, 3), 1 / 3)]), 0.2)
    labels = odd(rng, rng.choice([_LABELS, np.zeros(ROUNDS, int), np.zeros((ROUNDS, 2))]), 0.2)
    learner = dpc.Exact(priors.HalfCauchy(1.0))
    dpc.conformalize(odd(rng, learner, 0.05), score, predictions, labels, odd(rng, [0.5, 0.9], 0.1))


def fuzz_jit(rng):
    """Inside jit nothing can be refused: numbers are right, or NaN."""
    discount, score = rng.uniform(-0.2, 1.2), odd_number(rng, rng.choice(SCORES))
    thresholds = np.asarray(_traced(discount, np.array([0.25, score, 0.5]), np.array([0.5, odd_number(rng, 0.9)])))
    assert ((np.isnan(thresholds)) | ((thresholds >= 0) & (thresholds <= 1))).all()
    if not 0 < discount < 1 or not 0 <= score <= 1:
        assert np.isnan(thresholds[-1]).all()


@jax.jit
def _traced(discount, values, levels):
    return dpc.replay(dpc.Exact(discount=discount), values, levels).thresholds


def odd_number(rng, usual):
    """Mostly what is usual, but always a number."""
    return rng.choice([x for x in ODD[:13] if isinstance(x, (int, float))]) if rng.random() < 0.2 else usual


TARGETS = {
    "replay": fuzz_replay,
    "observe and merge": fuzz_online,
    "priors": fuzz_priors,
    "schedules and rates": fuzz_schedules,
    "metrics": fuzz_metrics,
    "entries": fuzz_entries,
    "conformalize": fuzz_conformal,
    "jit": fuzz_jit,
}
