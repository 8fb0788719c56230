"""Empirical Bayes: prequential scores against the written-out belief, and choices that make sense."""

import numpy as np
import pytest
from cases import PRIORS, sequences
from scipy import stats

import dpconformal as dpc
from dpconformal.dirichlet import choose
from dpconformal.dirichlet.selection import CONCENTRATIONS, crps_terms, distances_to_past, log_terms

GRID = np.array([0.3, 4.0, 1e3])
SCORES = np.random.default_rng(0).beta(2, 5, 400)


def naive_crps(twin, low, high, scores, a):
    """Mean over rounds of ∫ (F_t - 1[x ≥ score])², cell by cell between scores on a fine grid."""
    x = np.unique(np.concatenate([np.linspace(low, high, 200_001), scores]))
    middle, width = (x[1:] + x[:-1]) / 2, np.diff(x)
    prior = twin.cdf(middle)
    total = 0.0
    for t, score in enumerate(scores):
        belief = (a * prior + (scores[:t, None] <= middle).sum(axis=0)) / (a + t)
        total += ((belief - (middle >= score)) ** 2 * width).sum()
    return total / len(scores)


@pytest.mark.parametrize("name", ["uniform", "beta_wide", "histogram", "truncated_normal", "mixture"])
def test_crps_against_the_written_out_belief(name):
    prior, twin = PRIORS[name]
    low, high = (float(end) for end in prior.support)
    for sequence in ("uniform", "tied", "alternating", "constant"):
        scores = sequences(12, low, high)[sequence]
        naive = [naive_crps(twin, low, high, scores, a) for a in GRID]
        np.testing.assert_allclose(crps_terms(prior, scores, GRID), naive, rtol=0, atol=1e-6 * (high - low))


def test_crps_is_that_of_the_metrics():
    learner = dpc.Exact(dpc.priors.Beta(2, 2), dpc.schedules.Dirichlet(4.0))
    run = dpc.replay(learner, SCORES[:50], [0.5])
    assert crps_terms(learner.prior, SCORES[:50], np.array([4.0]))[0] == pytest.approx(
        float(np.mean(dpc.metrics.crps(run))), abs=1e-6
    )


def test_log_score_against_the_written_out_belief():
    prior, twin = PRIORS["beta_wide"]
    edges = np.linspace(-1, 4, 8)
    for scores in (sequences(30, -1.0, 4.0)[name] for name in ("uniform", "tied", "highest")):
        for a, found in zip(GRID, log_terms(prior, scores, GRID, 7), strict=True):
            total = 0.0
            for t, score in enumerate(scores):
                cell = min(int((score + 1) / 5 * 7), 6)
                inside = (scores[:t] >= edges[cell]) & ((scores[:t] < edges[cell + 1]) | (cell == 6))
                mass = twin.cdf(edges[cell + 1]) - twin.cdf(edges[cell])
                total -= np.log((a * mass + inside.sum()) / (a + t))
            assert found == pytest.approx(total / len(scores), rel=1e-9)


def test_distances_to_past_by_halves_are_those_by_pairs():
    for length in (0, 1, 255, 700):
        values = np.random.default_rng(length).normal(size=length)
        pairs = np.tril(np.abs(values[:, None] - values)).sum(axis=1)
        np.testing.assert_allclose(distances_to_past(values), pairs, atol=1e-9)


def test_a_good_prior_is_worth_many_scores_and_a_bad_one_few():
    for by in ("crps", "log_score"):
        good, bad = (choose(SCORES, prior=prior, by=by) for prior in (dpc.priors.Beta(2.2, 5), dpc.priors.Beta(9, 2)))
        assert good.concentration > 20 * bad.concentration
    # A choice beats its neighbours on the same stretch, and is close to the best on the next one.
    best = choose(SCORES, prior=dpc.priors.Uniform())
    others = best.table.score.sel(prior="Uniform").values
    assert others.min() == float(best.table.score.sel(prior="Uniform", concentration=best.concentration))
    fresh = np.random.default_rng(1).beta(2, 5, 2000)
    later = crps_terms(dpc.priors.Uniform(), fresh, np.array(CONCENTRATIONS))
    assert later[CONCENTRATIONS.index(best.concentration)] < later.min() * 1.01


def test_a_learned_prior_beats_the_uniform_one_and_is_never_scored_on_its_own_sample():
    learned = choose(SCORES[:200])
    assert learned.table.attrs["taught"] == learned.table.attrs["scored"] == 100
    assert type(learned.prior).__name__ == "Histogram"
    assert learned.learner == dpc.Exact(learned.prior, dpc.schedules.Dirichlet(learned.concentration))
    fresh = np.random.default_rng(2).beta(2, 5, 300)
    ours, plain = (
        np.mean(dpc.metrics.crps(dpc.replay(learner, fresh, [0.5])))
        for learner in (learned.learner, dpc.Exact(schedule=dpc.schedules.Dirichlet(1.0)))
    )
    assert ours < plain
    # Scores after the first half teach nothing: the histograms are those of the first half alone.
    twin = dpc.priors.Histogram.from_scores(SCORES[:100], 16, low=0, high=1)
    score = crps_terms(twin, SCORES[100:200], np.array([learned.concentration]))[0]
    named = learned.table.score.sel(prior="histogram_16", concentration=learned.concentration)
    assert float(named) == pytest.approx(score, abs=1e-12)


def test_drift_makes_a_learned_prior_worth_little():
    drifting = np.concatenate([np.random.default_rng(3).beta(2, 8, 200), np.random.default_rng(4).beta(8, 2, 200)])
    with pytest.warns(UserWarning, match="first of the candidates: the prior is of no help"):
        found = choose(drifting, bins=[16], concentrations=[1.0, 10.0, 100.0])
    assert found.concentration == 1.0
    with pytest.warns(UserWarning, match="last of the candidates: the prior predicts so well"):
        choose(SCORES, prior=dpc.priors.Beta(2, 5), concentrations=[0.01, 0.02])


def test_other_supports_and_unbounded_priors():
    import numpyro.distributions as dist

    stretched = choose(10 * SCORES[:200] - 3, low=-3, high=7)
    assert stretched.concentration == choose(SCORES[:200]).concentration
    assert tuple(map(float, stretched.prior.support)) == (-3, 7)
    normal = dpc.priors.from_numpyro(dist.Normal(0.0, 1.0))
    values = np.random.default_rng(5).normal(size=30)
    naive = naive_crps(stats.norm, -9.0, 9.0, values, 4.0)
    assert crps_terms(normal, values, np.array([4.0]))[0] == pytest.approx(naive, abs=1e-5)
    with pytest.raises(ValueError, match="cells of equal width need a bounded one"):
        choose(values, prior=normal, by="log_score")
    cauchy = dpc.priors.from_numpyro(dist.Cauchy(0.0, 1.0))
    with pytest.raises(ValueError, match="tails too heavy for a CRPS"):
        choose(values, prior=cauchy)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"by": "likelihood"}, "by = 'likelihood': pass 'crps' or 'log_score'"),
        ({"concentrations": [1.0, 0.5]}, r"concentrations\[1\] = 0.5: must increase strictly"),
        ({"concentrations": [0.0]}, r"concentrations\[0\] = 0.0: must be finite and above 0"),
        ({"cells": 7}, "cells = 7: only the log score has cells"),
        ({"prior": dpc.priors.Uniform(), "bins": [4]}, r"bins = \[4\]: only a prior that is learned"),
        ({"learn": 1.0}, "learn = 1.0"),
        ({"low": 1.0, "high": 0.0}, "low"),
        ({"bins": [0]}, r"bins\[0\] = 0"),
        ({"high": 0.1}, r"scores\[\d+\] = .* outside the support"),
    ],
)
def test_bad_input(options, message):
    with pytest.raises(ValueError, match=message):
        choose(SCORES, **options)
    with pytest.raises(ValueError, match="too few to choose from"):
        choose([0.5])
    with pytest.raises(ValueError, match=r"scores has shape \(1, 2\)"):
        choose([[0.5, 0.5]])


@pytest.mark.parametrize(("loc", "scale"), [(50.0, 1.0), (1000.0, 1.0), (5.0, 1e-3), (0.0, 1e-3), (0.0, 1e4)])
def test_scores_of_unbounded_priors_wherever_their_mass_is(loc, scale):
    import numpyro.distributions as dist

    from dpconformal.dirichlet.selection import _half_mean_difference
    from dpconformal.theory import moments

    prior = dpc.priors.from_numpyro(dist.Normal(loc, scale))
    assert _half_mean_difference(prior) == pytest.approx(scale / np.sqrt(np.pi), rel=1e-8)
    assert moments.mean(prior) == pytest.approx(loc, abs=1e-8 * max(scale, abs(loc)))
    values = np.random.default_rng(0).standard_t(3, 60)
    here, plain = (
        crps_terms(dpc.priors.from_numpyro(dist.Normal(a, b)), a + b * values, GRID) / b
        for a, b in ((loc, scale), (0.0, 1.0))
    )
    np.testing.assert_allclose(here, plain, rtol=1e-6)


def test_one_score_says_nothing():
    with pytest.raises(ValueError, match="all concentrations do the same"):
        choose([0.3], prior=dpc.priors.Uniform())
