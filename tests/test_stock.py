"""The paper's stock experiment: published coverage of three methods on AMD, 2000 to 2020."""

import csv
import pathlib
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from arch import arch_model

import dpconformal as dpc

PRICES = pathlib.Path(__file__).parents[2] / "shared" / "data" / "AMD.csv"


def garch_scores(prices, lookback=100, offset=10):
    """|squared return - its GARCH(1, 1) forecast|, refitted daily on the latest returns, as s/(1 + s)."""
    returns = 100 * np.diff(prices) / prices[:-1]
    returns = np.concatenate([returns[:1], returns])
    scores = np.zeros(returns.size)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a fit on a hundred days does not always converge
        for t in range(offset, returns.size):
            model = arch_model(returns[max(0, t - lookback) : t], vol="GARCH", p=1, q=1, rescale=False)
            forecast = model.fit(disp="off", show_warning=False).forecast(horizon=1).variance.iloc[-1, 0]
            error = abs(returns[t] ** 2 - forecast)
            scores[t] = error / (1 + error)
    return scores


@pytest.mark.slow
@pytest.mark.skipif(not PRICES.exists(), reason=f"{PRICES} is not there")
def test_published_coverage_is_reproduced():
    rows = list(csv.reader(PRICES.read_text().splitlines(), skipinitialspace=True))[1:]
    dates = [row[0] for row in rows]
    # Newest first; the published figures leave out the first day itself.
    prices = np.array([float(row[1]) for row in rows])[dates.index("12/31/20") : dates.index("01/03/00")][::-1]
    scores = garch_scores(prices)
    rounds = scores.size
    assert rounds == 5283

    def coverage(learner):
        return float(np.mean(scores <= dpc.replay(learner, scores, [0.9]).thresholds[:, 0]))

    assert round(coverage(dpc.ACI(levels=[0.9], rate=0.005, window=100)), 3) == 0.901
    assert round(coverage(dpc.Quantized(bins=40, discount=np.sqrt(0.99))), 3) == 0.899
    eta = np.sqrt(np.log(80) / rounds)

    def multivalid(seed):
        learner = dpc.MVP(levels=[0.9], buckets=40, eta=eta, normalize=False, seed=seed)
        return jnp.mean(scores <= dpc.replay(learner, scores, [0.9]).thresholds[:, 0])

    assert abs(float(np.mean(jax.vmap(multivalid)(jnp.arange(20)))) - 0.893) < 0.003
