"""The two ways through recorded rounds: a learner's own kernel where it has one, and the generic scan."""

from typing import Any

import jax

from dpconformal.checks import is_traced
from dpconformal.learner import KernelLearner, State
from dpconformal.rounds import Rounds
from dpconformal.scan import drive, thresholds
from dpconformal.starting import spread
from dpconformal.totals import joined, totals_of

ROOM = 2**24  # thresholds that are held at a time where only totals are wanted


def run_replay(
    learner: Any, begin: State, fresh: bool, rounds: Rounds, keep: str, method: str = "auto"
) -> tuple[Any, State]:
    """
    Run a learner over checked rounds, by its kernel where it has one that can; with ``method="scan"`` by the scan.

    ``begin`` has room for every score, and the leading axes of the scores unless it is ``fresh``. Returns thresholds or
    totals, and the final state.
    """
    if method == "auto" and isinstance(learner, KernelLearner) and rounds.scores.size:
        own = rounds
        if rounds.feedback is not None:
            if keep == "summary":
                return _totals_of_delayed(learner, begin, fresh, rounds)
            # What is kept of every round are thresholds, which depend on what was observed alone.
            own = Rounds(levels=rounds.levels, **rounds.feedback._asdict())
        found = learner.kernel(begin, fresh, own, keep)
        if found is not None:
            return found
    return drive(thresholds, learner, begin, rounds, keep, fresh)


def _totals_of_delayed(learner: Any, begin: State, fresh: bool, rounds: Rounds) -> tuple[Any, State]:
    """Add up some rounds at a time: with a delay, thresholds are judged by other scores than were observed."""
    state = spread(begin, rounds.batch) if fresh else begin
    parts = []
    for here in slices_with_room(rounds):
        own = rounds.part(here)
        kept, state = run_replay(learner, state, False, own, "all")
        parts.append(totals_of(kept, own.scores, own.levels, own.observed))
    if is_traced(parts):
        return jax.tree.map(lambda *leaves: sum(leaves[1:], leaves[0]), *parts), state
    return joined(parts), state


def slices_with_room(rounds: Rounds) -> list[slice]:
    """Cut the rounds where only totals are wanted, so that the thresholds of each part have room."""
    block = max(ROOM * rounds.length // (rounds.scores.size * rounds.levels.shape[-1]), 1)
    return [slice(start, min(start + block, rounds.length)) for start in range(0, rounds.length, block)]
