"""Regret after the game: what the proofs of Theorems 2, 5 and 6 give on the path that a run took, for any prior."""

from typing import Any, NamedTuple

import numpy as np

from dpconformal.heads import Corrected
from dpconformal.metrics.loss import best_threshold, regret_curve
from dpconformal.theory import moments
from dpconformal.theory.densities import least_density
from dpconformal.theory.path import Path, path_of, sequences, stability, total_loss
from dpconformal.theory.regularizer import excess_regularizer
from dpconformal.totals import pinball


class Regret(NamedTuple):
    """Regret and its bound at some horizons."""

    horizons: np.ndarray  # (H,), rounds into the run
    regret: np.ndarray  # (H, A), at each of them
    bound: np.ndarray  # (H, A)


def path_bound(run: Any) -> Any:
    """
    Bound the regret of a run, from its prior, its schedule and the path it took (Theorems 2, 5 and 6).

    With ψ̃ = ψ - min ψ, the comparator u, the thresholds rₜ, their slopes gₜ and the least density μₜ between threshold
    and score: h_T ψ̃(u) + Σ min(lossₜ, gₜ²/(2 hₜ μₜ)), plus Σ (hₜ - hₜ₊₁)⁺ ψ̃(rₜ₊₁) for a schedule whose concentration
    falls, plus what binning costs. With a discount all terms are discounted, and so is the regret meant. For
    :class:`dpconformal.Corrected` ψ̃ is that of level 1, and α(high - u) is added.

    Parameters
    ----------
    run : Replay
        Of :class:`dpconformal.Exact` or :class:`dpconformal.Quantized`, any prior, schedule and discount, or of
        :class:`dpconformal.Corrected`; also one that carries on from an earlier state. With the same levels every
        round.

    Returns
    -------
    ndarray, shape (..., A)
        No regret exceeds it, discounted with a discount: :func:`dpconformal.metrics.regret`,
        :func:`dpconformal.metrics.discounted_regret`.

    Examples
    --------
    >>> import dpconformal as dpc
    >>> run = dpc.replay(dpc.Exact(), [1.0, 0.0] * 50, levels=[0.5])
    >>> regret, bound = dpc.metrics.regret(run)[0], path_bound(run)[0]
    >>> round(float(regret), 2), round(float(bound), 2)
    (1.83, 3.24)
    """
    found = []
    for _, sequence in sequences(run):
        path = path_of(sequence)
        if path is None or not has_regret_bound(path):
            raise ValueError(
                f"run.learner = {run.learner!r}: only Exact and Quantized, and Corrected on a bounded support, have a "
                "path of this kind"
            )
        if not path.scores.size:
            found.append(np.zeros(path.levels.size))
            continue
        outcome = running_regret(path) if path.discount == 1 else discounted_regret(path, np.array([path.scores.size]))
        found.append(outcome.bound[-1])
    return np.array(found).reshape((*np.shape(run.thresholds)[:-2], np.shape(run.thresholds)[-1]))


def has_regret_bound(path: Path) -> bool:
    """Tell whether the regret is bounded; of the heads that of Corrected is, unless its first threshold is infinite."""
    finite = bool(np.isfinite(moments.support(path.learner.prior)[1]))
    return path.head is None or (isinstance(path.head, Corrected) and finite)


def running_regret(path: Path) -> Regret:
    """Compute regret and bound of an undiscounted path at every horizon."""
    rounds = np.arange(1, path.scores.size + 1)
    regret, comparator = regret_curve(path.thresholds, path.scores, path.levels)
    return Regret(rounds, regret, _bound(path, comparator, rounds))


def discounted_regret(path: Path, horizons: np.ndarray) -> Regret:
    """Compute discounted regret and bound of a path at some horizons, against the best thresholds for those weights."""
    paid = pinball(np, path.thresholds, path.scores[:, None], path.levels)
    # Older rounds weigh less than 1e-18 of the newest.
    memory = int(np.ceil(41.5 / -np.log(path.discount)))
    comparator, least = np.empty((2, horizons.size, path.levels.size))
    for i, horizon in enumerate(horizons):
        window = path.scores[max(0, horizon - memory) : horizon]
        weights = path.discount ** np.arange(window.size - 1, -1, -1.0)
        comparator[i], least[i] = best_threshold(np, window, path.levels[None], weights)
    total = _fading_sum(path.discount, paid)[horizons - 1]
    return Regret(horizons, total - least, _bound(path, comparator, horizons))


def _bound(path: Path, comparator: np.ndarray, horizons: np.ndarray) -> np.ndarray:
    prior, beta, levels = path.learner.prior, path.discount, path.levels
    # In single precision an end of the support may lie beside where the prior has it.
    low, high = moments.support(prior)
    noted = np.clip(path.noted, low, high)[:, None]
    played = [np.clip(r, low, high) for r in (path.lowest, path.thresholds)]
    terms = stability(path, least_density(prior, np.minimum(played[0], noted), np.maximum(played[1], noted)))

    # The regulariser of round t is w_t·away(r) + pull(r). Corrected pulls upwards, but at level 0.
    level = levels if path.head is None else np.where(levels > 0, 1.0, 0.0)

    def away(r: np.ndarray) -> Any:
        return excess_regularizer(r, level, prior)

    def pull(r: np.ndarray) -> Any:
        return np.zeros(levels.size) if path.head is None else levels * (high - r)

    with np.errstate(invalid="ignore"):
        fall = np.maximum(path.weights[:-1] - path.weights[1:] / beta, 0)[:, None]
        later = np.maximum(away(path.lowest[1:]), away(path.thresholds[1:]))
        # Entry t: what the falling weight before round t + 1 costs, discounted once since then.
        terms[1:] += beta * np.where((fall > 0) & (later > 0), fall * later, 0)
    if path.noted is not path.scores:
        scores, error = path.scores[:, None], (path.noted - path.scores)[:, None]
        noted_loss = np.minimum(*(pinball(np, r, path.noted[:, None], levels) for r in (path.lowest, path.thresholds)))
        terms += pinball(np, path.thresholds, scores, levels) - noted_loss
        terms += np.where(error > 0, levels, levels - 1) * error  # by what noting may have raised the comparator's loss
    since_start = beta ** (horizons - 1.0)[:, None]
    past = total_loss(path.past, path.past_weights, comparator, levels)
    leash = _times(path.weights[horizons - 1, None], away(comparator)) + pull(comparator)
    at_start = np.zeros(levels.size)  # the first threshold is the prior's quantile, up to rounding
    if path.past.size:
        first = path.lowest[0], path.thresholds[0]
        at_start = sum(
            np.minimum(*(part(r) for r in first))
            for part in (
                lambda r: beta * total_loss(path.past, path.past_weights, r, levels),
                lambda r: _times(path.weights[0], away(r)),
                pull,
            )
        )
    return leash + since_start * (beta * past - at_start) + _fading_sum(beta, terms)[horizons - 1]


def _times(weight: Any, excess: Any) -> Any:
    """Multiply, where an infinite weight on nothing is nothing."""
    with np.errstate(invalid="ignore"):
        return np.where(excess == 0, 0, weight * excess)


def _fading_sum(beta: float, terms: np.ndarray) -> np.ndarray:
    """Sum up with a discount; once infinite, for ever."""
    from scipy.signal import lfilter  # slow to import

    endless = np.maximum.accumulate(~np.isfinite(terms), axis=0)
    return np.where(endless, np.inf, lfilter([1.0], [1.0, -beta], np.where(endless, 0, terms), axis=0))
