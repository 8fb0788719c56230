"""Quantile loss and regret: what thresholds cost, and how much of it hindsight would have saved."""

from typing import Any

import jax.numpy as jnp
import numpy as np

from dpconformal.checks import Numbers, Scalar, as_numbers, complain_at, is_traced, number
from dpconformal.metrics.arrays import arrays_of, by_sequence, checked_run, per_round_levels
from dpconformal.metrics.hindsight import running_best
from dpconformal.metrics.sums import total_over_rounds
from dpconformal.pinball import pinball
from dpconformal.replay import Replay


def quantile_loss(run: Replay | Numbers, score: Numbers = None, level: Numbers = None) -> Any:
    """
    Quantile (pinball) loss l_α(r, s) = (1[r ≥ s] - α)(r - s).

    Parameters
    ----------
    run : Replay or array_like
        A run; or thresholds r, with ``score`` and ``level`` given too.
    score, level : array_like, optional
        Scores s and levels α that broadcast against the thresholds.

    Returns
    -------
    array
        Loss of every round and level, (..., T, A) for a run. An infinite threshold has infinite loss,
        except at level 1, where covering costs nothing.

    Examples
    --------
    >>> float(quantile_loss(0.5, 0.3, 0.9).round(6))
    0.02
    """
    if isinstance(run, Replay):
        xp, threshold, score, level = arrays_of(run)
    else:
        if score is None or level is None:
            raise ValueError("score and level are needed beside thresholds; or pass a run")
        threshold, score, level = (as_numbers(n, v) for n, v in zip(_NAMES, (run, score, level), strict=True))
        xp = jnp if is_traced(threshold, score, level) else np
        if xp is np:
            complain_at("level", level, ~((level >= 0) & (level <= 1)), "a confidence level lies in [0, 1]")
        threshold, score, level = (xp.asarray(a, float if xp is np else None) for a in (threshold, score, level))
    return pinball(xp, threshold, score, level)


_NAMES = ("threshold", "score", "level")


def regret(run: Replay, *, running: bool = False) -> Any:
    """
    Total quantile loss minus that of the best fixed threshold in hindsight.

    Parameters
    ----------
    run : Replay
        With the same levels every round, or levels that change: then the comparator is the one
        threshold with the least total loss over the levels asked.
    running : bool
        Whether to return the whole curve, each round against the best threshold for the rounds so far.
        Not inside ``jit``: it needs the digits of float64.

    Returns
    -------
    array, shape (..., A), or (..., T, A) if running
        The regret of each level.

    Examples
    --------
    >>> import dpconformal as dpc
    >>> run = dpc.replay(dpc.ERM(), [1.0, 0.0] * 50, levels=[0.5])
    >>> float(regret(run)[0])
    24.75
    """
    if running:
        run = checked_run(run).observed()
        arrays = arrays_of(run)
        xp, incurred = arrays.xp, pinball(*arrays)
        if xp is jnp:
            raise ValueError("run is being traced: ask for the running regret outside jit")
        total_over_rounds(xp, incurred, "losses")  # the largest of the sums to come
        return xp.cumsum(incurred, axis=-2) - _running_best(run, arrays)
    return _regret(run)


@by_sequence
def _regret(run: Replay) -> Any:
    arrays = arrays_of(run)
    xp, levels = arrays.xp, per_round_levels(arrays)
    incurred = total_over_rounds(xp, pinball(*arrays), "losses")
    return incurred - _best_loss(xp, arrays.scores, levels, xp.sum(levels, axis=-2))


@by_sequence
def discounted_regret(run: Replay, discount: Scalar) -> Any:
    """
    Regret in which a loss k rounds old counts β^k, against the best threshold for the same weights.

    Parameters
    ----------
    run : Replay
        The run.
    discount : float
        β in (0, 1).

    Returns
    -------
    array, shape (..., A)
        Discounted regret at the end of the run.

    Examples
    --------
    >>> import dpconformal as dpc
    >>> run = dpc.replay(dpc.Exact(discount=0.9), [0.2, 0.8] * 50, levels=[0.5])
    >>> bool(discounted_regret(run, 0.9)[0] < 1 / (1 - 0.9) ** 0.5)
    True
    """
    beta = number("discount", discount, 0.0, 1.0, open_low=True, open_high=True)
    arrays = arrays_of(run)
    if is_traced(beta):
        arrays = arrays._replace(xp=jnp)
        beta = jnp.where((beta > 0) & (beta < 1), beta, jnp.nan)
    xp, thresholds, scores, _ = arrays
    levels = per_round_levels(arrays)
    rounds = scores.shape[-2]
    weights = xp.asarray(beta, thresholds.dtype) ** xp.arange(rounds - 1, -1, -1).astype(thresholds.dtype)
    weights = weights.reshape((1,) * (scores.ndim - 2) + (rounds, 1))
    incurred = total_over_rounds(xp, weights * pinball(*arrays), "losses")
    if rounds == 0:
        return incurred
    order = xp.argsort(scores, axis=-2)
    in_order = xp.take_along_axis(scores, order, axis=-2)
    # A sum of pinball losses turns upwards where the weight passed reaches the weighted sum of levels.
    passed = xp.cumsum(xp.take_along_axis(xp.broadcast_to(weights, scores.shape), order, axis=-2), axis=-2)
    wanted = xp.sum(weights * levels, axis=-2, keepdims=True)
    first = xp.minimum(xp.sum(passed < wanted, axis=-2, keepdims=True), rounds - 1)
    best = xp.take_along_axis(xp.broadcast_to(in_order, levels.shape), first, axis=-2)
    return incurred - xp.sum(weights * pinball(xp, best, scores, levels), axis=-2)


def _best_loss(xp: Any, scores: Any, levels: Any, level_sum: Any) -> Any:
    rounds = scores.shape[-2]
    if rounds == 0:
        return xp.zeros_like(level_sum)
    rank = xp.clip(xp.ceil(level_sum), 1, rounds).astype(np.int32)
    in_order = xp.broadcast_to(xp.sort(scores, axis=-2), levels.shape)
    best = xp.take_along_axis(in_order, rank[..., None, :] - 1, axis=-2)
    return total_over_rounds(xp, pinball(xp, best, scores, levels), "losses")


def _running_best(run: Replay, arrays: Any) -> np.ndarray:
    """Least total loss of one threshold over the first n rounds, for every n and sequence."""
    levels = per_round_levels(arrays)
    least = np.empty(levels.shape)
    for index in np.ndindex(levels.shape[:-2] if levels.size else (0,)):
        least[index] = running_best(np.asarray(run.scores[index]), levels[index])[1]
    return least
