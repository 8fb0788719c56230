"""The fastest way through recorded scores that a learner offers: a replay of its own, native loops, or the scan."""

import inspect
from typing import Any

import jax

from dpconformal.checks import is_traced
from dpconformal.delays import Told
from dpconformal.learner import State
from dpconformal.offline.driver import replay_offline
from dpconformal.scan import drive, thresholds
from dpconformal.starting import spread
from dpconformal.totals import joined, totals_of

ROOM = 2**24  # thresholds that are held at a time where only totals are wanted


def go_through(
    learner: Any,
    begin: State,
    fresh: bool,
    scores: Any,
    levels: Any,
    keep: str,
    method: str = "auto",
    context: Any = None,
    observed: Any = None,
    late: Told | None = None,
) -> tuple[Any, State]:
    """
    Run a learner over checked scores.

    Parameters
    ----------
    learner : Learner
        The learner.
    begin : State
        Where to start, with room for every score; with the leading axes of the scores unless it is fresh.
    fresh : bool
        Whether it has seen nothing.
    scores : array, shape (..., T)
        Checked scores.
    levels : Array, shape (A,) or (T, A)
        Checked levels.
    keep : {"all", "summary"}
        Every threshold or totals.
    method : {"auto", "scan"}
        The fastest way, or the generic scan.
    context : pytree of array, shape (..., T, ...), optional
        Checked context.
    observed : array of bool, shape (..., T), optional
        False for rounds whose score is missing.
    late : Told, optional
        What becomes known in each round, if that is not the round's own score.

    Returns
    -------
    tuple
        Thresholds or totals, and the final state.
    """
    offline, recorded = getattr(learner, "offline", None), getattr(learner, "recorded", None)
    if late is not None and keep == "summary" and method == "auto" and (offline or recorded) and scores.size:
        return _by_stretches(learner, begin, fresh, scores, levels, observed, late)
    # What is kept of every round are thresholds, which depend on what was told alone.
    told = (scores, observed) if late is None else late[:2]
    given = (begin, fresh, told[0], levels, keep)
    own = None
    if recorded and method == "auto" and (told[1] is None or "observed" in inspect.signature(recorded).parameters):
        own = recorded(*given) if told[1] is None else recorded(*given, observed=told[1])
    if own is not None:
        return own
    if method == "auto" and offline is not None and scores.size and jax.default_backend() == "cpu":
        return replay_offline(offline, learner, *given, told[1])
    return drive(thresholds, learner, begin, scores, levels, keep, context, observed, fresh=fresh, late=late)


def _by_stretches(
    learner: Any, begin: State, fresh: bool, scores: Any, levels: Any, observed: Any, late: Told
) -> tuple[Any, State]:
    """Add up a stretch of rounds at a time: who is told late is judged by other scores than it is told."""
    batch, rounds = scores.shape[:-1], scores.shape[-1]
    state = spread(begin, batch) if fresh else begin
    block = max(ROOM * rounds // (scores.size * levels.shape[-1]), 1)
    parts = []
    for start in range(0, rounds, block):
        here = slice(start, min(start + block, rounds))
        own = levels[here] if levels.ndim == 2 else levels
        told = Told(late.scores[..., here], late.observed[..., here])  # type: ignore[index]
        kept, state = go_through(learner, state, False, scores[..., here], own, "all", late=told)
        parts.append(totals_of(kept, scores[..., here], own, None if observed is None else observed[..., here]))
    if is_traced(parts):
        return jax.tree.map(lambda *leaves: sum(leaves[1:], leaves[0]), *parts), state
    return joined(parts), state
