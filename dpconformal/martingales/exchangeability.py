"""Are these scores exchangeable? A test that may be looked at after every round."""

from typing import Any, NamedTuple

import numpy as np

from dpconformal.martingales.capital import Martingale
from dpconformal.martingales.jumpers import Composite
from dpconformal.martingales.running import run
from dpconformal.ranks import smoothed_ranks
from dpconformal.validation import Numbers, Scalar, scalar


class Exchangeability(NamedTuple):
    """
    What :func:`exchangeability` found.

    Attributes
    ----------
    ranks : ndarray, shape (..., T)
        Smoothed ranks, independent and uniform if the scores are exchangeable.
    log_capital : ndarray, shape (..., T)
        Logarithm of the martingale's capital after each round.
    log_maximum : ndarray, shape (..., T)
        Logarithm of the largest capital so far.
    alarm : int or ndarray of int, shape (...)
        The round, counted from 1, in which the capital first reached the threshold; 0 if it never did.
    threshold : float
        The capital that makes an alarm.
    """

    ranks: np.ndarray  # (..., T)
    log_capital: np.ndarray  # (..., T)
    log_maximum: np.ndarray  # (..., T)
    alarm: Any  # (...)
    threshold: float

    @property
    def p_value(self) -> Any:
        """One over the largest capital: a p-value that holds whenever one stops looking, shape (...)."""
        most = self.log_maximum[..., -1] if self.log_maximum.shape[-1] else np.zeros(self.log_maximum.shape[:-1])
        return np.exp(-np.maximum(most, 0))

    @property
    def guarantee(self) -> str:
        """What an alarm means, in words."""
        return (
            "If the scores are exchangeable, whatever their distribution, the chance that the capital ever reaches "
            f"{self.threshold:g} is at most {1 / self.threshold:.3g} (Ville's inequality), however long one looks."
        )


def exchangeability(
    scores: Numbers, martingale: Martingale | None = None, threshold: Scalar = 100.0, seed: Any = 0
) -> Exchangeability:
    """
    Bet against exchangeability, on the rank of each score among those before it.

    A gambler who begins with 1 and plays a fair game is not likely to grow rich: the chance that the capital ever
    reaches c is at most 1/c. Under exchangeability this game is fair.

    Parameters
    ----------
    scores : array_like, shape (..., T)
        Scores in time order.
    martingale : Martingale, optional
        The gambler; ``Composite()`` by default.
    threshold : float
        The capital that makes an alarm, above 1. Its inverse bounds the chance of a false one.
    seed : int or numpy.random.Generator
        Of the ranks' smoothing.

    Returns
    -------
    Exchangeability
        Its ``alarm`` is the verdict.

    Raises
    ------
    ValueError
        For NaN among the scores.

    Examples
    --------
    >>> import dpconformal as dpc
    >>> exchangeability(dpc.streams.iid(2000)).alarm
    0
    >>> found = exchangeability(dpc.streams.drifting(2000))
    >>> found.alarm, bool(found.p_value < 1e-9)
    (126, True)
    """
    threshold = scalar("threshold", threshold, 1.0, open_low=True)
    ranks = smoothed_ranks(scores, seed)
    log_capital = np.asarray(run(Composite() if martingale is None else martingale, ranks).log_capital)
    reached = log_capital >= np.log(threshold)
    alarm = np.where(reached.any(-1), reached.argmax(-1) + 1, 0) if ranks.shape[-1] else np.zeros(ranks.shape[:-1], int)
    most = np.maximum.accumulate(log_capital, axis=-1)
    return Exchangeability(ranks, log_capital, most, alarm if alarm.ndim else int(alarm), threshold)
