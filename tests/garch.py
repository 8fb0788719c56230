"""Scores of a GARCH(1, 1) volatility forecast: `python garch.py prices.npy scores.npy`, in a process of its own."""

import sys
import warnings

import numpy as np
from arch import arch_model


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


if __name__ == "__main__":
    np.save(sys.argv[2], garch_scores(np.load(sys.argv[1])))
