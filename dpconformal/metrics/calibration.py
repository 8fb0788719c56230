"""PIT and CRPS: how good the whole belief is, not only its thresholds."""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array

from dpconformal.engine.scan import drive
from dpconformal.engine.states import Delayed, feedback_stream, state_to_carry_on
from dpconformal.engine.totals import pinball
from dpconformal.learner import check_levels, fresh_state, support_of
from dpconformal.metrics.arrays import arrays_of
from dpconformal.rounds import Rounds, kept_rounds, masked_scores, take_rounds
from dpconformal.runs import Replay, not_at_once
from dpconformal.validation import check_int


def pit(run: Replay, key: Array | None = None) -> Any:
    """
    Probability integral transform: where in the belief each score fell.

    Parameters
    ----------
    run : Replay
        Of a belief; its beliefs are gone through again.
    key : PRNG key, optional
        If given, a score that sits on an atom of the belief gets a uniform draw between P(X < score)
        and P(X ≤ score), so that the PIT of a correct belief is uniform. Otherwise P(X ≤ score).

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
        Of a learner that answers any level; its rounds are gone through again.
    points : int
        Levels at which the integrand is evaluated (midpoint rule). The quantiles of a belief with a
        prior are continuous in the level, so the error falls about with points⁻²; those of ERM are
        steps, and the error falls with points⁻¹. It is infinite for split conformal.

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


def read_again(run: Replay, reader: Any, query: Array) -> Any:
    """Go through the rounds of a run again, and read something off the learner before each score."""
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
        scores, begin = state_to_carry_on(run.learner, scores, start)
    if run.weights is not None:
        begin = run.learner.weighted_state(begin, scores.dtype)
    late, weights = None, run.weights if run.weights is None else jnp.asarray(run.weights)
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
