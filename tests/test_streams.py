"""Simulated streams: within their range, the same for the same seed, and distributed as they say."""

import numpy as np
import pytest

from dpconformal import streams

RANDOM = ("iid", "drifting", "abrupt", "gradual", "seasonal", "heavy_tailed")


@pytest.mark.parametrize("name", RANDOM)
def test_scores_lie_in_the_unit_interval_and_depend_on_the_seed_alone(name):
    make = getattr(streams, name)
    for rounds in (0, 1, 2, 1000):
        scores = make(rounds, seed=3)
        assert scores.shape == (rounds,)
        assert ((scores >= 0) & (scores <= 1)).all()
        np.testing.assert_array_equal(scores, make(rounds, seed=3))
    assert (make(1000, seed=3) != make(1000, seed=4)).any()


@pytest.mark.parametrize("name", RANDOM)
def test_bad_arguments_are_named(name):
    make = getattr(streams, name)
    with pytest.raises(ValueError, match="rounds = -1"):
        make(-1)
    with pytest.raises(ValueError, match="seed = -1"):
        make(10, seed=-1)


def test_a_season_has_a_length():
    with pytest.raises(ValueError, match="period = 0"):
        streams.seasonal(10, period=0)


def test_heavy_tails_have_the_distribution_that_is_claimed():
    scores = streams.heavy_tailed(20_000, seed=1)
    for x in (0.001, 0.01, 0.1, 0.5, 0.9):
        claimed = (1 - 1 / (1 + x / 0.01)) / (1 - 1 / (1 + 1 / 0.01))
        error = np.sqrt(claimed * (1 - claimed) / scores.size)
        assert abs(np.mean(scores <= x) - claimed) < 4 * error


def test_scales_follow_their_course():
    """Scores over their scale are Beta(2, 5), of mean 2/7 and variance 10/392."""
    rounds = 20_000
    grows = np.linspace(0.2, 1, rounds)
    swings = 0.6 + 0.4 * np.sin(2 * np.pi * np.arange(rounds) / 125)
    for scores, scale in ((streams.gradual(rounds), grows), (streams.seasonal(rounds, period=125), swings)):
        for part in np.array_split(np.argsort(scale), 8):
            assert abs(np.mean(scores[part] / scale[part]) - 2 / 7) < 4 * np.sqrt(10 / 392 / part.size)


def test_jumps_come_after_200_rounds_at_the_soonest():
    scores = streams.abrupt(8000, seed=2)
    means = scores.reshape(-1, 50).mean(axis=1) * 3.5
    assert means.max() > 0.7
    assert means.min() < 0.4
    # A stretch of 50 rounds has a standard error of at most 0.08 in units of the scale; three of four do not jump.
    calm = np.abs(np.diff(means)) < 4 * np.sqrt(2) * 3.5 * np.sqrt(10 / 392 / 50)
    assert calm.mean() > 0.75
