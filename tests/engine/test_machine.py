"""Learners as machines: observe, ask, merge, save, load and replay in any order, beside an oracle with a memory."""

import pathlib
import tempfile

import jax
import numpy as np
import pytest
import reference
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

import dpconformal as dpc

LEVELS = np.array([0.0, 0.07, 0.5, 0.93, 1.0])
UNIFORM = reference.scipy_prior("uniform", 0.0, 1.0)
# Away from the places where a level falls on a jump, and rounding decides.
SCORES = st.integers(0, 96).map(lambda k: k / 97)


def belief(scores, weight, discount=None, bins=None):
    padded = np.append(scores, 0.5)  # the last row has seen all the others
    return reference.belief_thresholds(padded, LEVELS, UNIFORM, (0.0, 1.0), weight, discount, bins)[-1]


def discounted_weight(beta):
    return np.sqrt(1 - beta) / (beta + np.sqrt(1 - beta))


ORACLES = {
    "exact": (dpc.Exact(), lambda s: belief(s, lambda t: t**-0.5)),
    "discounted": (dpc.Exact(discount=0.9), lambda s: belief(s, lambda t: discounted_weight(0.9), 0.9)),
    "quantized": (dpc.Quantized(7), lambda s: belief(s, lambda t: t**-0.5, bins=7)),
    "both": (dpc.Quantized(7, discount=0.9), lambda s: belief(s, lambda t: discounted_weight(0.9), 0.9, 7)),
    "erm": (dpc.ERM(), lambda s: reference.erm_thresholds(np.append(s, 0.5), LEVELS, UNIFORM, (0.0, 1.0))[-1]),
}


class Machine(RuleBasedStateMachine):
    """States beside the lists of scores that they have seen."""

    learner, oracle = ORACLES["exact"]
    states = Bundle("states")

    @initialize(target=states)
    def empty(self):
        self.folder = tempfile.TemporaryDirectory()
        self.path = pathlib.Path(self.folder.name) / "state.dpc"
        self.saved = None
        return self.learner.init(), ()

    @rule(target=states, known=states, score=SCORES)
    def observe(self, known, score):
        state, seen = known
        return self.learner.observe(state, score), (*seen, score)

    @rule(target=states, known=states, scores=st.lists(SCORES, min_size=4, max_size=4), cut=st.booleans())
    def replay(self, known, scores, cut):
        state, seen = known
        run = dpc.replay(self.learner, scores, LEVELS, state=state, method="scan" if cut else "auto")
        for k in range(4):
            self.check(run.thresholds[k], (*seen, *scores[:k]))
        return run.state, (*seen, *scores)

    @rule(
        target=states,
        known=states,
        scores=st.lists(SCORES, min_size=4, max_size=4),
        gaps=st.lists(st.booleans(), min_size=4, max_size=4),
    )
    def replay_with_gaps(self, known, scores, gaps):
        state, seen = known
        run = dpc.replay(self.learner, np.where(gaps, np.nan, scores), LEVELS, state=state, mask=gaps)
        return run.state, (*seen, *(score for score, gap in zip(scores, gaps, strict=True) if not gap))

    @rule(target=states, first=states, second=states)
    def merge(self, first, second):
        if len(first[1]) + len(second[1]) > 40:
            return first
        return self.learner.merge(first[0], second[0]), first[1] + second[1]

    @rule(known=states)
    def save(self, known):
        dpc.save(self.path, self.learner, known[0])
        self.saved = known

    @rule(target=states)
    def load(self):
        if self.saved is None:
            return self.learner.init(), ()
        learner, state = dpc.load(self.path)
        assert learner == self.learner
        assert all(map(np.array_equal, jax.tree.leaves(state), jax.tree.leaves(self.saved[0])))
        return state, self.saved[1]

    @rule(known=states)
    def ask(self, known):
        self.check(self.learner.quantile(known[0], LEVELS), known[1])

    def check(self, found, seen):
        np.testing.assert_allclose(found, self.oracle(np.array(seen)), rtol=0, atol=1e-9)

    @invariant()
    def what_was_saved_is_there(self):
        if getattr(self, "saved", None) is not None:
            assert int(dpc.load(self.path).state.seen) == len(self.saved[1])

    def teardown(self):
        if hasattr(self, "folder"):
            self.folder.cleanup()


@pytest.mark.parametrize("name", ORACLES)
def test_any_order_of_events(name):
    learner, oracle = ORACLES[name]
    kind = type(name, (Machine,), {"learner": learner, "oracle": staticmethod(oracle)})
    run_state_machine_as_test(
        kind, settings=settings(max_examples=settings.default.max_examples // 2, stateful_step_count=12)
    )
