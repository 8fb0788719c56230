"""The benchmark of the automatic mixture: its figures against plain loops, and the tables of the page."""

import pathlib
import sys

import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest
import reference

import dpconformal as dpc

FOLDER = pathlib.Path(__file__).parents[1] / "benchmarks"
sys.path.append(str(FOLDER))  # scripts, which import each other by name

import automatic  # noqa: E402
import method_streams  # noqa: E402

DOCS = FOLDER.parents[1] / "docs"


def test_costs_are_the_crps_of_steps():
    """Exact for a cdf that is constant in each cell, also where the score parts one."""
    low, high, cells = -1.0, 3.0, 8
    steps = np.sort(np.random.default_rng(0).random(cells))
    for score in (-1.0, -0.9, 0.5, 1.234, 3.0):
        x = low + (high - low) * (np.arange(80_000) + 0.5) / 80_000
        wanted = (high - low) * np.mean((np.repeat(steps, 10_000) - (score <= x)) ** 2)
        found = automatic.costs(jnp.asarray(steps), jnp.asarray([score]), low, high, cells)
        np.testing.assert_allclose(found, [wanted], atol=1e-4)


def test_regret_is_that_of_a_plain_loop():
    scores = np.random.default_rng(1).beta(2, 5, 25)
    mixture = dpc.Aggregate([dpc.Quantized(8, discount=0.9), dpc.Quantized(8), dpc.Quantized(8, discount=0.6)])
    x, totals, regrets = (np.arange(64) + 0.5) / 64, np.zeros(4), []
    own, state = [one.init() for one in mixture.learners], mixture.init()
    for score in scores:
        below = np.clip(score * 64 - np.arange(64), 0, 1)
        parts = zip(mixture.learners, own, strict=True)
        for k, cdf in enumerate([mixture.cdf(state, x), *(one.cdf(its, x) for one, its in parts)]):
            totals[k] += np.mean(below * cdf**2 + (1 - below) * (1 - cdf) ** 2)
        regrets.append(totals[0] - totals[1:].min())
        own = [one.observe(its, score) for one, its in zip(mixture.learners, own, strict=True)]
        state = mixture.observe(state, score)
    lost = np.cumsum(automatic.crps_by_round(mixture, mixture.init(), jnp.asarray(scores), points=64), axis=0)
    np.testing.assert_allclose(lost[:, 0] - lost[:, 1:].min(axis=1), regrets, atol=1e-9)


def test_loss_is_the_quantile_loss():
    scores = np.random.default_rng(2).random(30)
    learner = dpc.Quantized(8)
    thresholds = np.asarray(dpc.replay(learner, scores, automatic.LEVELS).thresholds)
    wanted = reference.quantile_loss(thresholds, scores[:, None], np.asarray(automatic.LEVELS)).mean()
    np.testing.assert_allclose(automatic.loss(learner, scores), wanted)


def test_cells_decide_whether_a_search_breaks_the_bound():
    """What cells do not see is not charged: steep priors that stay break the bound with few cells, not with many."""
    beliefs = automatic.victims()["two opposite priors that stay"]
    found = {}
    for cells in (32, 256):
        mixture = dpc.Aggregate(beliefs, cells=cells)
        found[cells] = float(automatic.search(mixture, mixture.init(), -1, rounds=150, points=256).max())
    assert found[32] > automatic.bound(mixture) >= found[256] > 0


@pytest.mark.parametrize("light", [False, True])
def test_every_memory_is_compared(light):
    found = automatic.fixed(0.0, 2.0, light)
    memories = [1 / (1 - float(one.discount)) for name, one in found.items() if name != "all"]
    np.testing.assert_allclose(memories, [float(name) for name in found if name != "all"])
    assert len(found) == 12


def test_the_page_has_every_stream_and_keeps_what_it_says():
    kept = pd.read_csv(DOCS / "automatic_streams.csv", index_col="stream")
    assert list(kept.index) == [name for name, *_ in method_streams.BUILDERS], "run make benchmark-auto"
    assert (kept[["auto / best, default prior", "auto / best, light prior"]] <= 1.02).all(axis=None)
    assert (kept["largest CRPS regret"] <= kept.bound).all()
    searched = pd.read_csv(DOCS / "automatic_searched.csv", index_col="beliefs mixed")
    assert list(searched.index) == list(automatic.victims())
    assert (searched[f"largest CRPS regret, {automatic.FINE} cells"] <= searched.bound).all()
