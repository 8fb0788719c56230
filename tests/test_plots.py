"""Pictures of runs and learners."""

import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np
import pytest

import dpconformal as dpc

mpl.use("Agg")
LEVELS = [0.5, 0.9]
SCORES = dpc.streams.drifting(300)


@pytest.fixture(autouse=True)
def _close_figures():
    yield
    plt.close("all")


def test_thresholds_draws_every_level_and_labels_it():
    run = dpc.replay(dpc.Exact(), SCORES, LEVELS)
    ax = dpc.plots.thresholds(run)
    assert len(ax.lines) == 2
    np.testing.assert_allclose(ax.lines[1].get_ydata(), run.thresholds[:, 1])
    assert [text.get_text() for text in ax.texts] == ["0.5", "0.9"]


def test_coverage_draws_into_given_axes():
    run = dpc.replay(dpc.Quantized(8), SCORES, LEVELS)
    _, mine = plt.subplots()
    ax = dpc.plots.coverage(run, window=50, ax=mine)
    assert ax is mine
    np.testing.assert_allclose(ax.lines[0].get_ydata(), dpc.metrics.rolling_coverage(run, 50)[:, 0])


def test_infinite_thresholds_and_no_rounds_can_be_drawn():
    dpc.plots.thresholds(dpc.replay(dpc.SplitConformal(), [0.2, 0.3], [0.5, 1.0])).figure.canvas.draw()
    dpc.plots.thresholds(dpc.replay(dpc.Exact(), [], [0.5])).figure.canvas.draw()


def test_a_batch_cannot_be_drawn():
    with pytest.raises(ValueError, match="one sequence with fixed levels"):
        dpc.plots.thresholds(dpc.replay(dpc.Exact(), np.zeros((2, 3)), LEVELS))


def test_behaviour_draws_three_streams_with_their_coverage():
    learner = dpc.OGD(LEVELS)
    figure = dpc.plots.behaviour(learner, LEVELS, rounds=50)
    names = [ax.get_title().split(":")[0] for ax in figure.axes]
    assert names == ["iid", "alternating", "drifting"]
    scores = dpc.streams.alternating(50)
    run = dpc.replay(learner, scores, LEVELS)
    np.testing.assert_allclose(figure.axes[1].lines[1].get_ydata(), run.thresholds[:, 1])
    low, high = dpc.metrics.coverage(run)
    assert figure.axes[1].get_title() == f"alternating: covered {low:.2f}, {high:.2f}"
