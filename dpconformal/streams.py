"""Simulated scores in [0, 1], friendly and hostile: what to try a method on before trusting it."""

import numpy as np

from dpconformal.checks import whole

__all__ = ["alternating", "drifting", "iid"]


def iid(rounds: int, seed: int = 0) -> np.ndarray:
    """
    Draw independent scores from Beta(2, 5).

    Parameters
    ----------
    rounds : int
        T.
    seed : int
        Of NumPy's generator.

    Returns
    -------
    ndarray, shape (T,)
        Scores.

    Examples
    --------
    >>> iid(1000).mean().round(2)
    np.float64(0.28)
    """
    return np.random.default_rng(whole("seed", seed, 0)).beta(2, 5, whole("rounds", rounds, 0))


def alternating(rounds: int) -> np.ndarray:
    """
    Switch between 0 and 1 in every round.

    Begun from 1, as ``1 - alternating(T)``, it is the paper's sequence, on which following the leader is ruinous.

    Parameters
    ----------
    rounds : int
        T.

    Returns
    -------
    ndarray, shape (T,)
        0, 1, 0, 1, …

    Examples
    --------
    >>> alternating(4)
    array([0., 1., 0., 1.])
    """
    return np.arange(whole("rounds", rounds, 0)) % 2 * 1.0


def drifting(rounds: int, seed: int = 0) -> np.ndarray:
    """
    Let the scale of the scores swing slowly, and double at once after two thirds of the time.

    Parameters
    ----------
    rounds : int
        T.
    seed : int
        Of NumPy's generator.

    Returns
    -------
    ndarray, shape (T,)
        Scores.

    Examples
    --------
    >>> scores = drifting(900)
    >>> bool(scores[600:].mean() > 1.5 * scores[300:600].mean())
    True
    """
    time = np.arange(whole("rounds", rounds, 0)) / max(rounds, 1)
    scale = 0.3 * (1 + 0.5 * np.sin(6 * np.pi * time)) * np.where(time < 2 / 3, 1, 2)
    return np.clip(scale * np.random.default_rng(whole("seed", seed, 0)).beta(2, 2, rounds), 0, 1)
