"""The benchmark of methods: every method on tiny streams, measures against plain loops, tables without holes."""

import pathlib
import sys

import matplotlib as mpl
import numpy as np
import pandas as pd
import pytest
import reference
from cases import sequences
from hypothesis import given
from hypothesis import strategies as st

import dpconformal as dpc

FOLDER = pathlib.Path(__file__).parents[1] / "benchmarks"
sys.path.append(str(FOLDER))  # scripts, which import each other by name

import method_measures  # noqa: E402
import method_picture  # noqa: E402
import method_streams  # noqa: E402
import method_tables  # noqa: E402
import methods  # noqa: E402

DOCS = FOLDER.parents[1] / "docs"
LEVELS, ASKED = method_measures.LEVELS, method_measures.ASKED
mpl.use("Agg")


@pytest.fixture(scope="module")
def streams():
    return [method_streams.stream("iid", 60), method_streams.stream("diabetes", 60)]


@pytest.fixture(scope="module")
def results(streams):
    return methods.run(streams, repeats=0)


@pytest.fixture(scope="module")
def table(results):
    return method_tables.everything(results)


def made(method, one):
    return method.make(one.low, one.high, np.asarray(ASKED))


def agree(found, stream, thresholds):
    for k, level in enumerate(LEVELS):
        column = thresholds[:, ASKED.index(level)]
        wanted = reference.judged(stream.scores, column, level, stream.low, stream.high, method_measures.WINDOWS)
        for name, value in wanted.items():
            np.testing.assert_allclose(found[name][k], value, rtol=1e-9, atol=1e-9, err_msg=f"{name} at {level}")
    both = [(i, j) for i in range(len(ASKED)) for j in range(i) if {ASKED[i], ASKED[j]} <= set(LEVELS)]
    crossed = [any(row[i] < row[j] for i, j in both) for row in thresholds]
    np.testing.assert_allclose(found["crossings"], np.mean(crossed))
    inside = np.clip(thresholds, stream.low, stream.high)
    losses = [
        reference.quantile_loss(inside[:, ASKED.index(level)], stream.scores, level)
        for level in method_measures.MIDDLES
    ]
    np.testing.assert_allclose(found["CRPS"], 2 * np.mean(losses) / (stream.high - stream.low), rtol=1e-9)


def test_every_learner_is_compared(streams):
    compared = {type(made(method, streams[0])).__name__ for method in methods.METHODS}
    assert {card.name for card in dpc.learners()} - {"Hierarchical"} <= compared  # these streams have no groups
    names = [method.name for method in methods.METHODS]
    assert len(set(names)) == len(names)


def test_measures_are_those_of_plain_loops(streams, results):
    """Of the thresholds that each method gives when asked anew."""
    for one in streams:
        for method in methods.METHODS:
            run = dpc.replay(made(method, one), one.scores, ASKED)
            agree(results[one.name, method.name], one, np.asarray(run.thresholds))


@pytest.mark.parametrize(("low", "high"), [(0.0, 1.0), (-3.0, 7.0)])
def test_measures_on_every_kind_of_sequence(low, high):
    random = np.random.default_rng(0)
    for name, scores in sequences(50, low, high).items():
        stream = method_streams.Stream(name, "simulated", "", low, high, scores)
        thresholds = random.choice(scores, (50, len(ASKED)))  # many hit a score to the bit
        thresholds[random.random(thresholds.shape) < 0.1] = np.inf
        thresholds[random.random(thresholds.shape) < 0.1] = -np.inf
        agree(method_measures.judge(stream, thresholds), stream, thresholds)


@given(st.integers(20, 45), st.integers(0, 1000))
def test_measures_of_any_length(rounds, seed):
    random = np.random.default_rng(seed)
    stream = method_streams.Stream("any", "simulated", "", 0.0, 2.0, 2 * random.random(rounds))
    thresholds = random.normal(1, 1, (rounds, len(ASKED)))
    agree(method_measures.judge(stream, thresholds), stream, thresholds)


def test_what_cannot_cross_does_not(results):
    for (_, name), found in results.items():
        method = next(method for method in methods.METHODS if method.name == name)
        monotone = method.ours or name in ("ERM", "SplitConformal", "SlidingERM", "DiscountedERM", "NExCP")
        assert found["crossings"] == 0 or not monotone
    assert results["iid", "SAOCP"]["crossings"] > 0  # so that crossings are seen at all


def test_a_crossing_of_ours_ends_the_benchmark(streams):
    wrong = methods.METHODS[0]._replace(make=lambda low, high, levels: dpc.SAOCP(levels, low=low, high=high))
    with pytest.raises(AssertionError, match=r"Exact on iid: .* CROSS in"):
        methods.run(streams[:1], [wrong], repeats=0)


def test_tables_have_every_cell(streams, table):
    size, names = len(methods.METHODS), [one.name for one in streams]
    assert len(table) == len(names) * size * (len(LEVELS) + 1)
    overall = table[table.level == "all"].drop(columns="coverage")
    assert not overall.isna().any(axis=None)
    by_level = table[table.level != "all"]
    assert (
        not by_level[["regret", "windowed regret", "worst window", "coverage", "width", "outside"]]
        .isna()
        .any(axis=None)
    )
    above = method_tables.relative(table)
    assert above.shape == (size, len(names))
    assert (above.min() == 0).all()
    ranks = method_tables.ranks(table)
    assert ranks.shape == (size, len(method_tables.RANKED))
    np.testing.assert_allclose(ranks.mean(), (size + 1) / 2)
    assert ranks.regret.is_monotonic_increasing
    assert not method_tables.means(table, streams).isna().any(axis=None)
    found = method_tables.winners(table, methods.OURS, streams)
    for name in names:
        assert above.loc[found.loc[name, "least loss"], name] == 0
        assert found.loc[name, "least loss of ours"] in methods.OURS


def test_the_largest_regret_is_that_of_the_worst_level_and_stream(streams, results, table):
    found = method_tables.largest_regret(table, streams)
    for method in methods.METHODS:
        worst = max(results[one.name, method.name]["regret"].max() / np.sqrt(one.scores.size) for one in streams)
        np.testing.assert_allclose(found[method.name], worst)


def test_what_is_written_is_read_again(streams, table, tmp_path):
    pages = method_tables.write(table, streams, methods.OURS, tmp_path)
    again = pd.read_csv(tmp_path / "methods.csv", dtype={"level": str})
    assert again.level.tolist() == table.level.tolist()
    np.testing.assert_allclose(again.regret, table.regret, rtol=1e-3)
    for name, page in pages.items():
        assert len(pd.read_csv(tmp_path / f"methods_{name}.csv")) == len(page)
    method_picture.draw(table, methods.OURS, tmp_path / "methods.png")
    assert (tmp_path / "methods.png").stat().st_size > 10_000


@pytest.mark.parametrize("name", [name for name, *_ in method_streams.BUILDERS])
def test_streams_keep_to_their_support_and_come_out_the_same(name, monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))  # so that nothing is looked up
    first, second = (method_streams.stream.__wrapped__(name, 16) for _ in range(2))
    assert first.name == name
    assert first.scores.shape == (16,)
    assert ((first.scores >= first.low) & (first.scores <= first.high)).all()
    np.testing.assert_array_equal(first.scores, second.scores)


def test_a_stream_that_is_not_known():
    with pytest.raises(ValueError, match="name = 'noise': the streams are iid, alternating"):
        method_streams.stream("noise")


def test_a_sorted_stream_comes_in_the_order_of_its_labels():
    load = method_streams.datasets.load_diabetes
    _, labels = method_streams._records(load, 3, True)
    rows = labels.reshape(3, -1)
    assert (np.diff(rows, axis=1) >= 0).all()
    _, shuffled = method_streams._records(load, 3, False)
    np.testing.assert_array_equal(np.sort(shuffled.reshape(3, -1), axis=1), rows)


def test_the_page_has_every_method_and_stream():
    kept = pd.read_csv(DOCS / "methods.csv", usecols=["stream", "method"]).drop_duplicates()
    wanted = {(name, method.name) for name, *_ in method_streams.BUILDERS for method in methods.METHODS}
    assert set(kept.itertuples(index=False, name=None)) == wanted, "run make benchmark-methods"
