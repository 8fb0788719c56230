"""Simulated scores in [0, 1], friendly and hostile, to try a method on."""

import numpy as np

from dpconformal.validation import Scalar, check_float, check_int

__all__ = ["abrupt", "alternating", "drifting", "gradual", "heavy_tailed", "iid", "seasonal"]


def iid(rounds: int, seed: int = 0) -> np.ndarray:
    """
    Draw independent scores from Beta(2, 5).

    Parameters
    ----------
    rounds, seed : int
        T, and the seed of NumPy's generator.

    Returns
    -------
    ndarray, shape (T,)

    Examples
    --------
    >>> iid(1000).mean().round(2)
    np.float64(0.28)
    """
    return _generator(rounds, seed).beta(2, 5, rounds)


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

    Examples
    --------
    >>> alternating(4)
    array([0., 1., 0., 1.])
    """
    return np.arange(check_int("rounds", rounds, 0)) % 2 * 1.0


def drifting(rounds: int, seed: int = 0) -> np.ndarray:
    """
    Let the scale of the scores swing slowly, and double at once after two thirds of the time.

    Parameters
    ----------
    rounds, seed : int
        T, and the seed of NumPy's generator.

    Returns
    -------
    ndarray, shape (T,)

    Examples
    --------
    >>> scores = drifting(900)
    >>> bool(scores[600:].mean() > 1.5 * scores[300:600].mean())
    True
    """
    random = _generator(rounds, seed)
    time = np.arange(rounds) / max(rounds, 1)
    scale = 0.3 * (1 + 0.5 * np.sin(6 * np.pi * time)) * np.where(time < 2 / 3, 1, 2)
    return np.clip(scale * random.beta(2, 2, rounds), 0, 1)


def abrupt(rounds: int, seed: int = 0) -> np.ndarray:
    """
    Let the scale of Beta(2, 5) scores jump after every 200 to 800 rounds, to anything from 0.2 to 1.

    Parameters
    ----------
    rounds, seed : int
        T, and the seed of NumPy's generator.

    Returns
    -------
    ndarray, shape (T,)

    Examples
    --------
    >>> means = abrupt(5000).reshape(50, 100).mean(axis=1)
    >>> bool(means.max() > 2 * means.min())
    True
    """
    random = _generator(rounds, seed)
    jumps = np.cumsum(random.integers(200, 801, rounds // 200 + 1))
    scale = random.uniform(0.2, 1, jumps.size + 1)[np.searchsorted(jumps, np.arange(rounds), side="right")]
    return scale * random.beta(2, 5, rounds)


def gradual(rounds: int, seed: int = 0) -> np.ndarray:
    """
    Let the scale of Beta(2, 5) scores grow steadily, from 0.2 to 1.

    Parameters
    ----------
    rounds, seed : int
        T, and the seed of NumPy's generator.

    Returns
    -------
    ndarray, shape (T,)

    Examples
    --------
    >>> scores = gradual(1000)
    >>> bool(scores[-200:].mean() > 2 * scores[:200].mean())
    True
    """
    return _generator(rounds, seed).beta(2, 5, rounds) * np.linspace(0.2, 1, rounds)


def seasonal(rounds: int, seed: int = 0, period: Scalar = 250.0) -> np.ndarray:
    """
    Let the scale of Beta(2, 5) scores swing between 0.2 and 1.

    Parameters
    ----------
    rounds, seed : int
        T, and the seed of NumPy's generator.
    period : float
        Rounds of a swing; a year of trading days by default.

    Returns
    -------
    ndarray, shape (T,)

    Examples
    --------
    >>> year = seasonal(5000).reshape(20, 250).mean(axis=0)
    >>> bool(year[50:75].mean() > 3 * year[175:200].mean())
    True
    """
    random = _generator(rounds, seed)
    phase = np.arange(rounds) / float(check_float("period", period, 0.0, open_low=True))
    return (0.6 + 0.4 * np.sin(2 * np.pi * phase)) * random.beta(2, 5, rounds)


def heavy_tailed(rounds: int, seed: int = 0) -> np.ndarray:
    """
    Draw independent scores whose density falls like 1/s²: half of them below 0.01, some near 1.

    They are Lomax variables of scale 0.01 and shape 1, given that they do not exceed 1.

    Parameters
    ----------
    rounds, seed : int
        T, and the seed of NumPy's generator.

    Returns
    -------
    ndarray, shape (T,)

    Examples
    --------
    >>> scores = heavy_tailed(10_000)
    >>> np.median(scores).round(2), bool(scores.max() > 0.9)
    (np.float64(0.01), True)
    """
    random = _generator(rounds, seed)
    below = random.random(rounds) * (1 / 1.01)  # P(X ≤ 1) = 1 - 1/(1 + 1/0.01) = 1/1.01
    return np.minimum(0.01 * below / (1 - below), 1)  # rounding only


def _generator(rounds: int, seed: int) -> np.random.Generator:
    check_int("rounds", rounds, 0)
    return np.random.default_rng(check_int("seed", seed, 0))
