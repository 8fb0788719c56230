"""The most and the fewest of many coins that show heads in any window: what a rolling average may do by chance."""

import numpy as np
from scipy import special

from dpconformal.validation import Scalar, number, whole


def window_band(chance: Scalar, window: int, rounds: int, prob: Scalar = 0.95) -> tuple[int, int]:
    """
    Bound the number of heads in every window of a sequence of iid coins, with a given probability for all windows.

    From the distribution of the largest window, by the product form of Naus (1982): what happens in two and in three
    windows' length is known exactly, and what is far apart is as good as independent. Each side has half of what is
    left over, so the probability of staying inside is at least ``prob``.
    """
    chance = float(number("chance", chance, 0.0, 1.0))
    window, rounds = whole("window", window, 1), whole("rounds", rounds, 1)
    if window > rounds:
        raise ValueError(f"window = {window}: there are only {rounds} rounds")
    tail = (1 - float(number("prob", prob, 0.0, 1.0, open_low=True, open_high=True))) / 2
    return window - _most(1 - chance, window, rounds, tail), _most(chance, window, rounds, tail)


def _most(chance: float, window: int, rounds: int, tail: float) -> int:
    """Return the least number that some window exceeds with at most a given probability."""
    low, high = -1, window  # always exceeded, never exceeded
    while high - low > 1:
        middle = (low + high) // 2
        exceeded = 1 - _all_below(middle + 1, window, rounds, chance)
        low, high = (low, middle) if exceeded <= tail else (middle, high)
    return high


def _all_below(k: int, window: int, rounds: int, chance: float) -> float:
    """Return the probability that every window has fewer than k heads: Naus's approximation, 1 ≤ k ≤ window."""
    mean = window * chance

    def exactly(j: np.ndarray | int) -> np.ndarray:
        j = np.asarray(j)
        log = special.gammaln(window + 1) - special.gammaln(j + 1) - special.gammaln(np.maximum(window - j, 0) + 1)
        log = log + special.xlogy(j, chance) + special.xlog1py(np.maximum(window - j, 0), -chance)
        return np.where((j >= 0) & (j <= window), np.exp(log), 0.0)

    def up_to(j: np.ndarray | int, coins: int = window) -> np.ndarray:
        j = np.asarray(j)
        coins = max(coins, 0)
        return np.where(j < 0, 0.0, np.where(j >= coins, 1.0, special.bdtr(np.clip(j, 0, coins), coins, chance)))

    if rounds == window:
        return float(up_to(k - 1))
    here, below = exactly(k), up_to(k - 1)
    step = (k - 1) * up_to(k - 2) - mean * up_to(k - 3, window - 1)
    two = below**2 - here * step
    r = np.arange(1, k)
    pair = (k - 1) * (k - 2) * up_to(k - 3) - 2 * (k - 2) * mean * up_to(k - 4, window - 1)
    pair = pair + mean * (mean - chance) * up_to(k - 5, window - 2)
    apart = exactly(2 * k - r) * up_to(r - 1) ** 2
    joint = exactly(2 * k - r) * exactly(r) * ((r - 1) * up_to(r - 2) - mean * up_to(r - 3, window - 1))
    three = below**3 - 2 * here * below * step + 0.5 * here**2 * pair + apart.sum() - joint.sum()
    if not (two > 0 and three > 0):
        return 0.0
    return float(min(two * min(three / two, 1.0) ** (rounds / window - 2), 1.0))
