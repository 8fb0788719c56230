"""
Losses of thresholds and beliefs: the quantile loss, regret, CRPS; and the PIT, by which beliefs are calibrated.

The formula of the quantile loss is :func:`dpconformal.engine.totals.pinball`, which the engine sums over rounds too.
"""

import contextlib
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from dpconformal.engine.scan import drive
from dpconformal.engine.states import Delayed, feedback_stream, state_to_carry_on
from dpconformal.engine.totals import pinball
from dpconformal.engine.walks import running_order_statistic
from dpconformal.learner import check_levels, fresh_state, support_of
from dpconformal.metrics.arrays import arrays_of, by_sequence, check_finite, checked_run, totals_over_rounds
from dpconformal.rounds import Rounds, kept_rounds, masked_scores, take_rounds
from dpconformal.runs import Replay, not_at_once
from dpconformal.validation import Numbers, Scalar, as_numbers, check_float, check_int, is_traced, raise_at


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
        except +∞ at level 1, where covering costs nothing, and -∞ at level 0, where missing does not.

    Examples
    --------
    >>> float(quantile_loss(0.5, 0.3, 0.9).round(6))
    0.02
    """
    if isinstance(run, Replay):
        return pinball(*arrays_of(run))
    if score is None or level is None:
        raise ValueError("score and level are needed beside thresholds; or pass a run")
    given = {"threshold": run, "score": score, "level": level}
    threshold, score, level = (as_numbers(name, value) for name, value in given.items())
    if is_traced(threshold, score, level):
        return pinball(jnp, *(jnp.asarray(part) for part in (threshold, score, level)))
    raise_at("level", level, ~((level >= 0) & (level <= 1)), "a confidence level lies in [0, 1]")
    return pinball(np, *(np.asarray(part, float) for part in (threshold, score, level)))


def regret(run: Replay, *, running: bool = False) -> Any:
    """
    Total quantile loss minus that of the best fixed threshold in hindsight.

    Parameters
    ----------
    run : Replay
        Where levels change by round, the comparator is the one threshold with the least total loss over them.
    running : bool
        Whether to return the whole curve, each round against the best threshold for the rounds so far. Not inside
        ``jit``: it needs the digits of float64.

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
        if arrays.xp is jnp:
            raise ValueError("run is being traced: ask for the running regret outside jit")
        totals_over_rounds(arrays)  # refuses losses that overflow: the last sum is the largest
        levels, curve = np.broadcast_to(arrays.levels, arrays.thresholds.shape), np.empty(arrays.thresholds.shape)
        for index in np.ndindex(curve.shape[:-2] if curve.size else (0,)):
            curve[index] = regret_curve(arrays.thresholds[index], run.scores[index], levels[index])[0]
        return curve
    return _regret(run)


@by_sequence
def _regret(run: Replay) -> Any:
    arrays = arrays_of(run)
    traced = arrays.xp is jnp
    loss = jnp.sum(pinball(*arrays), axis=-2) if traced else totals_over_rounds(arrays).loss.high
    least = best_threshold(arrays.xp, arrays.scores[..., 0], arrays.levels)[1]
    check_finite(least, arrays.thresholds)
    return loss - least


@by_sequence
def discounted_regret(run: Replay, discount: Scalar) -> Any:
    """
    Regret in which a loss k rounds old counts β^k, against the best threshold for the same weights.

    Parameters
    ----------
    run : Replay
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
    beta = check_float("discount", discount, 0.0, 1.0, open_low=True, open_high=True)
    arrays = arrays_of(run)
    if is_traced(beta):
        arrays = arrays._replace(xp=jnp)
        beta = jnp.where((beta > 0) & (beta < 1), beta, jnp.nan)
    xp, thresholds, scores, levels = arrays
    rounds = scores.shape[-2]
    weights = xp.asarray(beta, thresholds.dtype) ** xp.arange(rounds - 1, -1, -1).astype(thresholds.dtype)
    weights = xp.broadcast_to(weights, scores.shape[:-1])
    with np.errstate(over="ignore", invalid="ignore"):
        paid = xp.sum(weights[..., None] * pinball(*arrays), axis=-2)
    least = best_threshold(xp, scores[..., 0], levels, weights)[1]
    check_finite(paid + least, thresholds)
    return paid - least


@np.errstate(over="ignore", invalid="ignore")  # ∞ where there is no score, and for callers to see
def best_threshold(xp: Any, scores: Any, levels: Any, weights: Any = None) -> tuple[Any, Any]:
    """
    Find the best fixed threshold in hindsight, which is a score, and its total loss, both (..., A).

    The scores are (..., T), infinite where there is none; the levels (..., T or 1, A); weights of losses (..., T).
    """
    shape = (*scores.shape[:-1], levels.shape[-1])
    if not scores.shape[-1]:
        return xp.full(shape, xp.nan), xp.zeros(shape)
    if weights is None:
        ordered = xp.sort(scores, axis=-1)
        weight: Any = xp.isfinite(ordered).astype(scores.dtype)
    else:
        order = xp.argsort(scores, axis=-1)
        ordered, weight = (xp.take_along_axis(part, order, axis=-1) for part in (scores, weights))
    # From a score in the middle distances lose least to rounding.
    count = xp.sum(xp.isfinite(ordered), axis=-1, keepdims=True)
    middle = xp.where(count > 0, xp.take_along_axis(ordered, count // 2, axis=-1), 0)

    def moments(values: Any, weight: Any) -> tuple[Any, Any]:
        return weight, weight * xp.where(xp.isfinite(values), values - middle, 0)

    mass, moment = (xp.cumsum(part, axis=-1) for part in moments(ordered, weight))
    if levels.shape[-2] == 1:
        wanted, pull = (levels[..., 0, :] * part[..., -1:] for part in (mass, moment))
    else:
        own = xp.where(xp.isfinite(scores), xp.ones_like(scores) if weights is None else weights, 0)
        wanted, pull = (xp.sum(levels * part[..., None], axis=-2) for part in moments(scores, own))
    # A sum of quantile losses turns upwards where the weight passed reaches the weighted sum of levels.
    if weights is None:
        place = xp.ceil(wanted).astype(count.dtype) - 1
    else:
        place = xp.sum(mass[..., None] < wanted[..., None, :], axis=-2)
    place = xp.clip(place, 0, xp.maximum(count - 1, 0))
    best, mass, moment = (xp.take_along_axis(part, place, axis=-1) for part in (ordered, mass, moment))
    least = (mass - wanted) * (best - middle) - moment + pull
    return best, xp.where(count > 0, xp.maximum(least, 0), 0)


def regret_curve(thresholds: Any, scores: Any, levels: Any) -> tuple[np.ndarray, np.ndarray]:
    """Compute the regret of one sequence at every horizon, and the best threshold for the rounds so far, (T, A)."""
    if not np.size(scores):
        return np.zeros(np.shape(thresholds)), np.zeros(np.shape(thresholds))
    scores, levels = np.asarray(scores), np.broadcast_to(np.asarray(levels, float), np.shape(thresholds))
    level_sum = np.cumsum(levels, axis=0)
    rank = np.maximum(np.ceil(level_sum), 1).astype(np.int32)
    # The best threshold q_n is the rank_n-th smallest score so far: it stays or moves to a neighbour.
    # On the way L_{n-1} is linear, with slope (rank_n - 1) - Σ_{t<n} α_t, so the least loss telescopes.
    wide = scores.dtype == np.float64
    with jax.enable_x64(True) if wide else contextlib.nullcontext():  # also where the user's JAX is not in 64 bits
        best = np.asarray(running_order_statistic(jnp.asarray(scores), jnp.asarray(rank)), float)
    previous = np.concatenate([best[:1], best[:-1]])
    slope = (rank - 1) - (level_sum - levels)
    score = np.asarray(scores, float)[:, None]
    with np.errstate(invalid="ignore"):  # ∞ - ∞, where a threshold is infinite
        paid = np.cumsum(pinball(np, np.asarray(thresholds, float), score, levels), axis=0)
        return paid - np.cumsum(pinball(np, best, score, levels) + (best - previous) * slope, axis=0), best


def pit(run: Replay, key: Array | None = None) -> Any:
    """
    Probability integral transform: where in the belief each score fell.

    Parameters
    ----------
    run : Replay
        Of a belief, which is replayed.
    key : PRNG key, optional
        If given, a score that sits on an atom of the belief gets a uniform draw between P(X < score) and P(X ≤ score),
        so that the PIT of a correct belief is uniform. Otherwise P(X ≤ score).

    Returns
    -------
    Array, shape (..., T)
        Values in [0, 1].

    Examples
    --------
    >>> import dpconformal as dpc
    >>> pit(dpc.replay(dpc.Exact(), [0.2, 0.9], levels=[0.5])).round(3)
    Array([0.2  , 0.929], dtype=float...)
    """
    _require_learner(run, "cdf")
    answer = read_again(run, _cdf_here, jnp.zeros(1, run.scores.dtype))
    below, here = answer[..., 0], answer[..., 1]
    if key is None:
        return here
    return jnp.minimum(below + (here - below) * jax.random.uniform(key, here.shape, here.dtype), here)


def crps(run: Replay, points: int = 256) -> Any:
    """
    Continuous ranked probability score: twice the quantile loss integrated over all levels.

    Parameters
    ----------
    run : Replay
        Of a learner that answers any level, which is replayed.
    points : int
        Levels at which the integrand is evaluated (midpoint rule). The error falls about with points⁻² for a belief
        with a prior, whose quantiles are continuous in the level, and with points⁻¹ for ERM, whose are steps. The
        score of split conformal is infinite.

    Returns
    -------
    Array, shape (..., T)
        The score of each round, in units of the scores; smaller is better.

    Examples
    --------
    >>> import dpconformal as dpc
    >>> round(float(crps(dpc.replay(dpc.Exact(), [0.5], levels=[0.5]))[0]), 4)
    0.0833
    """
    _require_learner(run, "quantile")
    points = check_int("points", points, 1)
    middles = (jnp.arange(points, dtype=run.scores.dtype) + 0.5) / points
    check_levels(run.learner, middles, f": crps asks for {points} levels; take a run of a belief")
    return read_again(run, _mean_loss, middles)


def _require_learner(run: Replay, method: str) -> None:
    arrays_of(run)
    if run.learner is None or getattr(run.learner, method, None) is None:
        owner = "run.learner is None" if run.learner is None else f"{type(run.learner).__name__} has no {method}"
        raise ValueError(f"{owner}: this metric goes through the learner's beliefs again; use a run of a belief")


def read_again(run: Replay, reader: Callable[..., Array], query: Array) -> Array:
    """Go through the rounds of a run again, and ask the reader about the learner and its state before each score."""
    if run.delay is None:
        raise ValueError(
            "run.delay is None: rounds were taken out of a run with a delay; pass the run itself, mask and all"
        )
    scores, observed = jnp.asarray(run.scores), None
    if run.mask is not None:
        scores, mask = masked_scores(run.scores, run.mask, support_of(run.learner))
        scores, observed = jnp.asarray(scores), ~jnp.asarray(mask)
    start, waiting = run.start, None
    if isinstance(start, Delayed):
        start, waiting = start.state, start.waiting
    if start is None:
        begin = fresh_state(run.learner, scores.shape[-1], scores.dtype)
    else:
        scores, begin = state_to_carry_on(run.learner, scores, start, run.weights is not None)
    if run.weights is not None:
        begin = run.learner.weighted_state(begin, scores.dtype)
    late, weights = None, None if run.weights is None else jnp.asarray(run.weights)
    if not_at_once(run):
        late = feedback_stream(run.learner, run.delay, Rounds(scores, None, observed, run.context, weights), waiting)
    rounds = Rounds(scores, query.astype(scores.dtype), observed, run.context, weights, late)
    found = drive(reader, run.learner, begin, rounds, fresh=start is None)[0]
    return found if run.mask is None else take_rounds(found, kept_rounds(run.mask))


def _cdf_here(learner: Any, state: Any, score: Array, _: Array, **given: Any) -> Array:
    return jnp.stack([learner.cdf(state, score, side="left", **given), learner.cdf(state, score, **given)])


def _mean_loss(learner: Any, state: Any, score: Array, levels: Array, **given: Any) -> Array:
    loss = pinball(jnp, learner.quantile(state, levels, **given), score, levels)
    return 2 * jnp.sum(loss / levels.size)  # each by itself: their sum may overflow
