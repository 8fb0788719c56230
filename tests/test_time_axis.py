"""Which axis is time, and whether it goes forward: what would be read as something else is refused."""

import re

import jax
import numpy as np
import pandas as pd
import pytest
import xarray as xr

import dpconformal as dpc
from dpconformal import martingales, scores

RNG = np.random.default_rng(11)
T = 12
SCORES = RNG.random(T)
DAYS = pd.date_range("2024-01-01", periods=T)
WIDE = dpc.Exact(dpc.priors.Uniform(-9, 9))
COLUMN = r"has shape \(12, 1\), which reads as 12 series of one round: for one series of 12 rounds drop the last axis"


@pytest.mark.parametrize(
    "column", [SCORES[:, None], SCORES[:, None].tolist(), pd.DataFrame(SCORES, DAYS)], ids=["array", "list", "frame"]
)
def test_a_column_of_scores_is_not_many_series_of_one_round(column):
    """Found: n series of one round, coverage 1, nothing learned."""
    for learner in (dpc.Exact(), dpc.OGD([0.5])):
        with pytest.raises(ValueError, match=f"scores {COLUMN}.*jax.vmap over replay"):
            dpc.replay(learner, column, [0.5])
    for score in (scores.Absolute(), scores.Signed()):
        with pytest.raises(ValueError, match=f"labels {COLUMN}.*jax.vmap over conformalize"):
            dpc.conformalize(WIDE, score, column, column, [0.5])
    for call in (dpc.diagnostics.smoothed_ranks, martingales.exchangeability):
        with pytest.raises(ValueError, match=f"scores {COLUMN}"):
            call(column)


def test_both_ways_out_of_a_column_work():
    column = SCORES[:, None]
    whole = dpc.replay(dpc.Exact(), SCORES, [0.5])
    for one in (column[:, 0], column.squeeze(), pd.DataFrame(SCORES, DAYS).squeeze()):
        np.testing.assert_array_equal(dpc.replay(dpc.Exact(), one, [0.5]).thresholds, whole.thresholds)
    each = jax.vmap(lambda row: dpc.replay(dpc.Exact(), row, [0.5]).thresholds)(column)
    np.testing.assert_allclose(each, np.full((T, 1, 1), 0.5))
    centres = np.zeros((T, 1))
    sets = jax.vmap(lambda p, y: dpc.conformalize(WIDE, scores.Absolute(), p, y, [0.5]).sets.high)(centres, column)
    assert sets.shape == (T, 1, 1)
    batch = dpc.replay(dpc.Exact(), column, [0.5], delay=np.zeros(T, int))
    np.testing.assert_array_equal(batch.thresholds, np.full((T, 1, 1), 0.5))
    assert batch.state.seen.shape == (T,)
    panel = dpc.replay_panel(xr.DataArray(column, dims=["store", "time"]), dpc.Exact(), [0.5])
    np.testing.assert_allclose(panel.thresholds, np.full((T, 1, 1), 0.5))


@pytest.mark.parametrize("delay", [0, 1])
def test_batches_of_one_round_carry_on_from_a_batch_of_states(delay):
    batch = RNG.random((2, 3))
    run = dpc.replay(dpc.Exact(), batch[:, :2], [0.5], delay=delay)
    last = dpc.replay(dpc.Exact(), batch[:, 2:], [0.5], state=run.state, delay=delay)
    whole = dpc.replay(dpc.Exact(), batch, [0.5], delay=delay)
    np.testing.assert_allclose(last.thresholds, whole.thresholds[:, 2:], rtol=1e-6)
    sided = dpc.conformalize(WIDE, scores.Signed(), batch[:, :2], 0 * batch[:, :2], [0.5])
    rest = dpc.conformalize(WIDE, scores.Signed(), batch[:, 2:], 0 * batch[:, 2:], [0.5], state=sided.run.state)
    assert rest.thresholds.shape == (2, 2, 1, 1)


def test_one_round_is_one_round():
    """Two sides, heads asked at two delays, and vectors have axes that are no column."""
    assert dpc.replay(dpc.Exact(), [[0.5]], [0.5]).thresholds.shape == (1, 1, 1)
    assert dpc.conformalize(WIDE, scores.Signed(), [1.0], [2.0], [0.5]).thresholds.shape == (2, 1, 1)
    assert dpc.replay(dpc.Corrected(), [0.5], [0.5], delay=[0, 1]).thresholds.shape == (2, 1, 1)
    vectors = RNG.random((T, 1))
    assert dpc.conformalize(WIDE, scores.Norm(), vectors, 0 * vectors, [0.5]).thresholds.shape == (T, 1)
    chances = np.ones((T, 1))
    assert dpc.conformalize(WIDE, scores.LAC(), chances, np.zeros(T, int), [0.5]).thresholds.shape == (T, 1)


SWAPPED = np.r_[0:5, 6, 5, 7:T]
INDEXES = {
    "reversed dates": (DAYS[::-1], "[1] = 2024-01-11 comes after 2024-01-12: sort by it"),
    "swapped dates": (DAYS[SWAPPED], "[6] = 2024-01-06 comes after 2024-01-07: sort by it"),
    "dates with a zone": (DAYS.tz_localize("UTC")[::-1], "[1] = 2024-01-11 00:00:00+00:00 comes after"),
    "months": (pd.period_range("2024-01", periods=T, freq="M")[::-1], "[1] = 2024-11 comes after 2024-12"),
    "durations": (pd.to_timedelta(SWAPPED, "h"), "[6] = 0 days 05:00:00 comes after 0 days 06:00:00"),
    "dates as objects": (pd.Index(DAYS.date)[SWAPPED], "[6] = 2024-01-06 comes after 2024-01-07"),
    "dates as text": (DAYS.strftime("%Y-%m-%d")[SWAPPED], "[6] = 2024-01-06 comes after 2024-01-07"),
    "twice": (DAYS[np.r_[0, 0, 2:T]], "[1] = 2024-01-01 comes twice: if there are several series in it"),
    "missing": (DAYS.insert(2, pd.NaT)[:T], "[2] is missing: a round needs a time"),
    "several series": (
        pd.MultiIndex.from_product([["a", "b"], DAYS[:6]]),
        "[6] = 2024-01-01 comes after 2024-01-06",
    ),
    "numbers that go back": (pd.RangeIndex(T)[::-1], " goes back from 11 to 0, the newest first: sort by it"),
    "called time": (pd.Index(SWAPPED, name="time"), "[6] = 5 comes after 6"),
}


@pytest.mark.parametrize("name", INDEXES)
def test_times_that_go_back_are_named(name):
    """Found: accepted without a word."""
    index, message = INDEXES[name]
    series = pd.Series(SCORES, index)
    for called, call in (
        ("scores", lambda: dpc.replay(dpc.Exact(), series, [0.5])),
        ("labels", lambda: dpc.conformalize(WIDE, scores.Absolute(), np.zeros(T), series, [0.5])),
        ("predictions", lambda: dpc.conformalize(WIDE, scores.Absolute(), series, np.zeros(T), [0.5])),
        ("scores", lambda: martingales.exchangeability(series)),
        ("scores", lambda: martingales.watch(martingales.ChangeAlarm(), series)),
        ("scores", lambda: dpc.fit_belief(series, dpc.Quantized(8))),
    ):
        with pytest.raises(ValueError, match=re.escape(f"{called}.index{message}")):
            call()


def test_what_comes_with_the_scores_is_in_order_too():
    """Found: a mask, a context or levels by round, newest first, were applied to the wrong rounds in silence."""
    missing, groups = pd.Series(np.arange(T) < 3, DAYS)[::-1], pd.Series(np.arange(T) % 2, DAYS)[::-1]
    levels, noise = pd.DataFrame({"a": np.full(T, 0.5)}, DAYS)[::-1], pd.Series(SCORES, DAYS)[::-1]
    chances = np.full((T, 2), 0.5)

    def sets(score, **given):
        return dpc.conformalize(dpc.Exact(), score, chances, np.zeros(T, int), [0.5], **given)

    for name, call in (
        ("levels", lambda: dpc.replay(dpc.Exact(), SCORES, levels)),
        ("mask", lambda: dpc.replay(dpc.Exact(), SCORES, [0.5], mask=missing)),
        ("context", lambda: dpc.replay(dpc.Hierarchical(2), SCORES, [0.5], context=groups)),
        ("mask", lambda: sets(scores.LAC(), mask=missing)),
        ("noise", lambda: sets(scores.APS(randomized=True), noise=noise)),
    ):
        with pytest.raises(ValueError, match=rf"{name}.index\[1\] = 2024-01-11 comes after 2024-01-12"):
            call()
    right = dpc.replay(dpc.Hierarchical(2), SCORES, levels[::-1], context=groups[::-1], mask=missing[::-1])
    assert right.thresholds.shape == (T, 1)
    batch = pd.DataFrame(np.zeros((2, T), int), columns=DAYS[::-1])
    with pytest.raises(ValueError, match=r"context.columns\[1\] = 2024-01-11 comes after"):
        dpc.replay(dpc.Hierarchical(2), np.stack([SCORES] * 2), [0.5], context=batch)


def test_frames_and_arrays_with_times():
    frame = pd.DataFrame(np.stack([SCORES, 1 - SCORES]), columns=DAYS[::-1])
    with pytest.raises(ValueError, match=r"scores.columns\[1\] = 2024-01-11 comes after 2024-01-12"):
        dpc.replay(dpc.Exact(), frame, [0.5])
    with pytest.raises(ValueError, match=r"scores.index holds times, and rounds are read along scores.columns: pass"):
        dpc.replay(dpc.Exact(), pd.DataFrame(RNG.random((T, 2)), DAYS), [0.5])
    chances = pd.DataFrame({"a": SCORES, "b": 1 - SCORES}, DAYS[::-1])
    with pytest.raises(ValueError, match=r"predictions.index\[1\] = 2024-01-11 comes after"):
        dpc.conformalize(dpc.Exact(), scores.LAC(), chances, np.zeros(T, int), [0.5])
    array = xr.DataArray(np.stack([SCORES] * 2), {"time": DAYS[::-1]}, ["store", "time"])
    for call in (lambda: dpc.replay(dpc.Exact(), array, [0.5]), lambda: dpc.replay_panel(array, dpc.Exact(), [0.5])):
        with pytest.raises(ValueError, match=r"2024-01-11.* comes after 2024-01-12"):
            call()
    with pytest.raises(ValueError, match=r"scores.time holds times, .*pass scores.transpose\(..., 'time'\)"):
        dpc.replay(dpc.Exact(), array.sortby("time").T, [0.5])


def test_times_that_go_forward_and_labels_that_are_no_times():
    """A shuffled index of numbers, as a random split leaves it, is no time; what goes forward may have gaps."""
    want = dpc.replay(dpc.Exact(), SCORES, [0.5]).thresholds
    for index in (DAYS, DAYS[[*range(T - 1), T - 1]] + pd.Timedelta("1h"), RNG.permutation(T), list("abcdefghijkl")):
        np.testing.assert_array_equal(dpc.replay(dpc.Exact(), pd.Series(SCORES, index), [0.5]).thresholds, want)
    backward = pd.Series(SCORES, DAYS[::-1])
    np.testing.assert_array_equal(dpc.replay(dpc.Exact(), backward.to_numpy(), [0.5]).thresholds, want)
    lone = xr.DataArray(SCORES, {"time": DAYS}, ["time"])
    np.testing.assert_array_equal(dpc.replay(dpc.Exact(), lone, [0.5]).thresholds, want)
    rows = pd.DataFrame({"a": SCORES, "b": 1 - SCORES}, DAYS)
    assert dpc.conformalize(dpc.Exact(), scores.LAC(), rows, np.zeros(T, int), [0.5]).thresholds.shape == (T, 1)
