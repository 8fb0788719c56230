"""Rounds are padded to few lengths, so that a new length is not a new program, and padding leaves no trace."""

import pathlib
import sys

import jax
import numpy as np
import pytest
from cases import BASELINES, GRID

import dpconformal as dpc
from dpconformal.rounds import BLOCK, Rounds, padded_length

_compiled = []
jax.monitoring.register_event_duration_secs_listener(
    lambda event, seconds, **rest: _compiled.append(event) if event.endswith("backend_compile_duration") else None
)

KEPT = {
    "exact": dpc.Exact(),
    "exact discounted": dpc.Exact(discount=0.9),
    "quantized": dpc.Quantized(16),
    "quantized discounted": dpc.Quantized(16, discount=0.9),
    "erm": dpc.ERM(),
    "head": dpc.Corrected(dpc.Exact()),
    "ogd": BASELINES["ogd"],
    "aci": BASELINES["aci"],
}


def test_what_is_compiled_is_counted():
    # Without this, the test below could not fail where JAX calls the event otherwise.
    before = len(_compiled)
    jax.jit(lambda x: 3 * x + 0.125)(np.zeros(17))
    assert len(_compiled) == before + 1


@pytest.mark.parametrize("batch", [(), (3,)])
@pytest.mark.parametrize("name", KEPT)
def test_a_new_length_is_not_a_new_program(name, batch):
    # Finds any shape on the way that depends on the number of rounds: each would be compiled for, 0.6 s a length.
    scores = np.random.default_rng(0).random((*batch, 120))
    dpc.replay(KEPT[name], scores[..., :100], GRID)
    before = len(_compiled)
    for length in (101, 99, 120):
        dpc.replay(KEPT[name], scores[..., :length], GRID)
    assert _compiled[before:] == []


def _calls(learner, scores):
    """Count our functions that a warm replay calls, and their files and calls."""
    dpc.replay(learner, scores, GRID)
    root, calls = str(pathlib.Path(dpc.__file__).parent), []

    def note(frame, event, argument):
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(root):
            calls.append((code.co_filename, code.co_qualname))

    sys.setprofile(note)
    dpc.replay(learner, scores, GRID)
    sys.setprofile(None)
    return len(set(calls)), len({file for file, _ in calls}), len(calls)


def test_a_warm_replay_passes_few_functions():
    # Finds layers that only hand on, and checks that are made again for what was checked before.
    scores = np.random.default_rng(0).random(100)
    functions, files, _ = _calls(dpc.Exact(), scores)
    assert functions <= 25
    assert files <= 10
    assert _calls(dpc.auto(bins=16), scores)[2] <= 120


def test_lengths_are_few_and_waste_little():
    rounds = np.arange(1, 300_000, 37)
    lengths = np.array([padded_length(int(n)) for n in rounds])
    assert (lengths >= rounds).all()
    assert (lengths[rounds > 32 * BLOCK] < 1.04 * rounds[rounds > 32 * BLOCK]).all()
    assert np.unique(lengths[rounds <= BLOCK]).tolist() == [64, 128, 256, 512, 1024, 2048]


def test_a_part_of_the_rounds_takes_what_belongs_to_them():
    scores = np.arange(6.0).reshape(2, 3)
    rounds = Rounds(scores, np.arange(3.0)[:, None], scores > 1, {"group": scores}, scores, Rounds(scores))
    part = rounds.part(slice(1, 3))
    np.testing.assert_array_equal(part.scores, scores[:, 1:])
    np.testing.assert_array_equal(part.levels, [[1.0], [2.0]])
    np.testing.assert_array_equal(part.context["group"], scores[:, 1:])
    np.testing.assert_array_equal(part.weights, scores[:, 1:])
    np.testing.assert_array_equal(part.feedback.scores, scores[:, 1:])
    longer = rounds.padded()
    assert longer.scores.shape == (2, 64)
    assert longer.levels.shape == (64, 1)
    np.testing.assert_array_equal(longer.scores[:, 3:], np.repeat(scores[:, -1:], 61, axis=1))
