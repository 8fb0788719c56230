"""Chance and counts: intervals around a coverage, bands for what pure chance does, and the histogram of PITs."""

from typing import Any

import numpy as np

from dpconformal.report.blocks import Blocks
from dpconformal.report.curves import Curves

TAIL = 0.025  # on each side: 95 % between


def chance_band(chance: np.ndarray, tosses: int) -> tuple[np.ndarray, np.ndarray]:
    """Say how many of many coins may show heads: the 2.5 % and the 97.5 % quantile, for one look."""
    from scipy import stats  # slow to import

    coins = stats.binom(tosses, np.asarray(chance, float))
    return coins.ppf(TAIL), coins.ppf(1 - TAIL)


def histogram(curves: Curves, blocks: Blocks, steps: int) -> dict[str, Any]:
    """
    Count how often the belief had put a given probability below the score that came: a histogram of PITs.

    A score exceeds the thresholds of exactly those levels that the belief had at or below P(X < score), so that the
    pass over the levels has placed every PIT between two of them, and in its bar. A score on an atom of the belief, on
    which the thresholds of several levels coincide, draws its place among them. So these are the counts of
    :func:`dpconformal.diagnostics.randomised_pit`, without going through all beliefs again: for a belief that keeps
    every score that takes time in proportion to the square of the rounds.

    Returns: ``counts`` of the bars, and the ``low`` and ``high`` that a bar of uniform numbers has 95 times in 100.
    """
    if curves.below is None or curves.equal is None:
        raise ValueError("curves have no grid of levels: a histogram of PITs needs one")
    bars = 20 if blocks.rounds >= 400 else 10
    # The first level whose threshold is not below the score is number `below`; half a step less is inside its cell.
    place = np.random.default_rng(0).random(blocks.rounds)
    pit = np.clip((curves.below - 0.5 + place * curves.equal) / steps, 0, 1)
    counts, _ = np.histogram(pit, bars, (0, 1))
    low, high = chance_band(np.array([1 / bars]), blocks.rounds)
    return {"counts": counts.tolist(), "low": int(low[0]), "high": int(high[0])}
