"""The fastest way through recorded scores that a learner offers: a replay of its own, native loops, or the scan."""

from typing import Any

import jax

from dpconformal.checks import is_traced
from dpconformal.learner import State
from dpconformal.offline.driver import replay_offline
from dpconformal.rounds import Rounds
from dpconformal.scan import drive, thresholds
from dpconformal.starting import spread
from dpconformal.totals import joined, totals_of

ROOM = 2**24  # thresholds that are held at a time where only totals are wanted


def go_through(
    learner: Any, begin: State, fresh: bool, rounds: Rounds, keep: str, method: str = "auto"
) -> tuple[Any, State]:
    """
    Run a learner over checked rounds, in the fastest way that it offers or, with ``method="scan"``, in the generic one.

    ``begin`` has room for every score, and the leading axes of the scores unless it is ``fresh``. Returns thresholds or
    totals, and the final state.
    """
    offline, recorded = getattr(learner, "offline", None), getattr(learner, "recorded", None)
    own, told = None, rounds
    if rounds.feedback is not None:
        if keep == "summary" and method == "auto" and (offline or recorded) and rounds.scores.size:
            return _by_stretches(learner, begin, fresh, rounds)
        # What is kept of every round are thresholds, which depend on what was told alone.
        told = rounds._replace(scores=rounds.feedback.scores, observed=rounds.feedback.observed, feedback=None)
    if recorded and method == "auto":
        own = recorded(begin, fresh, told, keep)
    if own is not None:
        return own
    if method == "auto" and offline is not None and rounds.scores.size and jax.default_backend() == "cpu":
        return replay_offline(offline, learner, begin, fresh, told, keep)
    return drive(thresholds, learner, begin, rounds, keep, fresh)


def _by_stretches(learner: Any, begin: State, fresh: bool, rounds: Rounds) -> tuple[Any, State]:
    """Add up a stretch of rounds at a time: who is told late is judged by other scores than it is told."""
    state = spread(begin, rounds.batch) if fresh else begin
    parts = []
    for here in stretches(rounds):
        own = rounds.part(here)
        kept, state = go_through(learner, state, False, own, "all")
        parts.append(totals_of(kept, own.scores, own.levels, own.observed))
    if is_traced(parts):
        return jax.tree.map(lambda *leaves: sum(leaves[1:], leaves[0]), *parts), state
    return joined(parts), state


def stretches(rounds: Rounds) -> list[slice]:
    """Cut the rounds where only totals are wanted, so that the thresholds of each part have room."""
    block = max(ROOM * rounds.length // (rounds.scores.size * rounds.levels.shape[-1]), 1)
    return [slice(start, min(start + block, rounds.length)) for start in range(0, rounds.length, block)]
