"""The page about a run: what it holds, what it refuses, and how it behaves in a browser."""

import base64
import errno
import json
import os
import re

import numpy as np
import pytest
from integration import browser

import dpconformal as dpc
from dpconformal.diagnostics.coverage import window_band
from dpconformal.report import page, report, series
from dpconformal.report import series as losses
from dpconformal.report.series import (
    INFINITY,
    LAST,
    MINUS_INFINITY,
    NOTHING,
    as_plain,
    blocks_of,
    counts_in,
    pack_counts,
    pack_rows,
)

ROUNDS, LEVELS = 500, [0.5, 0.9, 0.9555]
SOME = [0.0, 0.1, 0.5, 0.777, 0.9, 0.9555, 1.0]
NASTY = "</script><script>alert(1)</script> <b>\"quoted\"</b> & 'so' {{data}} \u2028"


def held(path):
    """What a page holds, read as a browser does: up to the first end of the script."""
    text = path.read_text(encoding="utf-8")
    return json.loads(text.split('id="data">')[1].split("</script>")[0])


def unpack_rows(packed):
    """Decode the rows of a table, as the page does."""
    low, high = (np.array(packed[end])[:, None] for end in ("low", "high"))
    codes = np.frombuffer(base64.b64decode(packed["codes"]), "<u2").reshape(low.size, -1)
    rows = low + codes * (high / LAST - low / LAST)
    for code, value in ((MINUS_INFINITY, -np.inf), (INFINITY, np.inf), (NOTHING, np.nan)):
        rows = np.where(codes == code, value, rows)
    return rows


def unpack_counts(packed):
    return np.frombuffer(base64.b64decode(packed["codes"]), f"<u{packed['bytes']}").astype(int)


@pytest.fixture(scope="module")
def run():
    return dpc.replay(dpc.Exact(), dpc.streams.iid(ROUNDS), LEVELS)


@pytest.fixture(scope="module")
def written(run, tmp_path_factory):
    return report(run, tmp_path_factory.mktemp("report") / "report.html", title=NASTY)


@pytest.fixture(scope="module")
def again():
    """The same learner asked for other levels, and for one round more."""
    scores = np.append(dpc.streams.iid(ROUNDS), 0.5)
    return dpc.replay(dpc.Exact(), scores, SOME)


def places(data):
    return np.searchsorted(data["levels"], SOME)


def test_the_slider_has_every_thousandth_and_the_levels_asked_for(written):
    data = held(written)
    assert data["levels"] == sorted({*(np.arange(1001) / 1000).tolist(), *LEVELS})
    assert [data["levels"][k] for k in data["asked"]] == LEVELS


def test_thresholds_are_those_of_a_replay_at_that_level(written, again):
    data = held(written)
    one, here = data["series"][0], places(data)
    packed = one["thresholds"]
    steps = (np.array(packed["high"]) - np.array(packed["low"]))[here, None] / 65532
    expected = np.asarray(again.thresholds)[np.array(one["ends"]) - 1].T
    assert np.all(np.abs(unpack_rows(packed)[here] - expected) <= steps / 2 + 1e-12)
    np.testing.assert_allclose(np.array(one["following"])[here], again.thresholds[-1], rtol=1e-6)


def test_counts_are_those_of_covered(written, again):
    data = held(written)
    one = data["series"][0]
    blocks = blocks_of(ROUNDS)
    hits = dpc.metrics.covered(again._replace(thresholds=again.thresholds[:-1], scores=again.scores[:-1]))
    counts = unpack_counts(one["covered"]).reshape(len(data["levels"]), -1)
    np.testing.assert_array_equal(counts[places(data)], counts_in(hits, blocks).T)
    curve = dpc.diagnostics.coverage_curve(again._replace(thresholds=again.thresholds[:-1], scores=again.scores[:-1]))
    low, high = unpack_rows(one["interval"])[:, places(data)]
    np.testing.assert_allclose([low, high], [curve.low, curve.high], atol=1e-5)


def test_the_window_is_a_tenth_of_the_run_and_its_band_that_of_one_window(written):
    one = held(written)["series"][0]
    assert one["window"] == {"blocks": 25, "rounds": 50}
    band = unpack_rows(one["chance"])[:, 900] * 50  # level 0.9
    np.testing.assert_allclose(band, window_band(0.9, 50, 50), atol=0.01)


def test_the_histogram_is_that_of_the_pits(run, written):
    pits = dpc.diagnostics.randomised_pit(run)
    expected = np.histogram(pits, 20, (0, 1))[0]
    np.testing.assert_array_equal(held(written)["series"][0]["pit"]["counts"], expected)


def test_scores_on_atoms_of_the_belief_draw_their_place(tmp_path):
    tied = dpc.replay(dpc.Exact(), np.tile([0.2, 0.4, 0.4, 0.6], 125), LEVELS)
    ours = np.array(held(report(tied, tmp_path / "tied.html"))["series"][0]["pit"]["counts"])
    # Two draws of the same counts: each bar has about 25, so they differ by a few.
    expected = np.histogram(dpc.diagnostics.randomised_pit(tied), 20, (0, 1))[0]
    assert np.all(np.abs(ours - expected) <= 5 * np.sqrt(2 * 25))
    assert np.sum((ours - expected) ** 2 / 50) < 40


def test_the_table_says_what_the_metrics_and_the_theory_say(run, written):
    rows = held(written)["series"][0]["table"]
    summary, curve = dpc.metrics.summary(run), dpc.diagnostics.coverage_curve(run)
    expected = {
        "level": LEVELS,
        "coverage": summary.coverage,
        "size": summary.mean_threshold,
        "loss": summary.loss,
        "regret": dpc.metrics.regret(run),
        "bound": dpc.theory.path_bound(run),
        "low": curve.band_low,
        "high": curve.band_high,
    }
    for name, values in expected.items():
        np.testing.assert_allclose([row[name] for row in rows], values, rtol=1e-5)
    assert [row["verdict"] for row in rows] == ["pass"] * 3


def test_a_wrong_threshold_shows_in_the_verdict(run, tmp_path):
    wrong = run._replace(thresholds=run.thresholds.at[321, 1].set(0.1))
    rows = held(report(wrong, tmp_path / "wrong.html"))["series"][0]["table"]
    assert [row["verdict"] for row in rows] == ["fail", "fail", "pass"]
    assert rows[1]["failed"] == ["order", "optimality"]


@pytest.mark.parametrize("groups", [5, 3])
def test_a_page_about_groups_fails_what_their_certificate_fails(groups, tmp_path):
    """Checks were read off the axis of groups: five groups passed whatever they did, and other numbers raised."""
    rng = np.random.default_rng(4)
    given = {"context": rng.integers(0, groups, 60), "mask": rng.random(60) < 0.2}
    run = dpc.replay(dpc.Hierarchical(groups, bins=16), rng.random(60), [0.5, 0.9], **given)
    rows = held(report(run, tmp_path / "right.html"))["series"][0]["table"]
    assert [(row["verdict"], row["failed"], row["groups"]) for row in rows] == [("pass", [], [])] * 2
    wrong = run._replace(thresholds=np.full_like(run.thresholds, 0.999))
    found = held(report(wrong, tmp_path / "wrong.html"))["series"][0]
    assert found["kind"] == "groups"
    verdict = dpc.theory.certify(wrong).dataset.verdict
    for i, row in enumerate(found["table"]):
        here = verdict.isel(level=i) == "FAIL"
        assert row["verdict"] == "fail"
        assert row["failed"] == here.check.values[here.any("group").values].tolist()
        assert row["groups"] == [str(name) for name in here.group.values[here.any("check").values]]


def test_regret_is_that_of_its_kind(run):
    ends = blocks_of(ROUNDS).ends
    found = losses.losses_of(run, ends)
    np.testing.assert_allclose(found.regret, dpc.metrics.regret(run, running=True)[ends - 1], atol=1e-9)
    fading = dpc.replay(dpc.Exact(discount=0.9), dpc.streams.iid(ROUNDS), LEVELS)
    found = losses.losses_of(fading, ends)
    assert found.kind == "discounted"
    np.testing.assert_allclose(found.regret[-1], dpc.metrics.discounted_regret(fading, 0.9), atol=1e-9)
    np.testing.assert_allclose(found.bound[-1], dpc.theory.path_bound(fading))


def test_long_runs_go_without_certificate(run, tmp_path, monkeypatch):
    for module in (losses, series, page):
        monkeypatch.setattr(module, "LONGEST", 100)
    data = held(report(run, tmp_path / "long.html"))
    assert data["series"][0]["kind"] == "long"
    assert {row["verdict"] for row in data["series"][0]["table"]} == {"left out"}
    assert data["longest"] == 100


def test_text_of_the_user_is_only_ever_text(run, written, tmp_path):
    text = written.read_text(encoding="utf-8")
    assert "<script>alert" not in text
    assert "<title>&lt;/script&gt;&lt;script&gt;alert(1)" in text
    named = report({NASTY: run, "\ud800": run}, tmp_path / "named.html")
    assert [entry["name"] for entry in held(named)["series"]] == [NASTY, "\ud800"]
    assert "<script>alert" not in named.read_text(encoding="utf-8")


def test_nothing_is_loaded_from_elsewhere(written):
    text = written.read_text(encoding="utf-8")
    assert set(re.findall(r"https?:[^\"'\s]*", text)) == {"http://www.w3.org/2000/svg"}
    assert not re.search(r"<link|@import|url\((?!#)|src=", text)


def test_files_stay_small(run, written, tmp_path):
    assert written.stat().st_size < 1.5e6
    many = report({f"series {i}": run for i in range(14)}, tmp_path / "many.html")
    assert many.stat().st_size < 5e6
    data = held(many)
    assert len(data["series"]) == 12
    assert data["omitted"] == ["series 12", "series 13"]
    assert data["steps"] == 200


def test_a_method_without_a_distribution_has_the_levels_asked_for(tmp_path):
    run = dpc.replay(dpc.ACI([0.5, 0.9]), dpc.streams.drifting(120), [0.9, 0.5])
    data = held(report(run, tmp_path / "aci.html"))
    one = data["series"][0]
    assert (data["levels"], data["steps"], one["pit"], one["kind"]) == ([0.5, 0.9], None, None, "borrowed")
    np.testing.assert_allclose(unpack_rows(one["thresholds"]), run.thresholds[:, ::-1].T, atol=1e-5)
    expected = dpc.ACI([0.5, 0.9]).quantile(run.state, [0.5, 0.9])
    np.testing.assert_allclose(one["following"], expected, rtol=1e-6)


def test_the_next_threshold_is_unknown_before_its_context(tmp_path):
    groups = np.tile([[True, False], [True, True]], (30, 1))
    run = dpc.replay(dpc.MVP([0.5], groups=2), dpc.streams.iid(60), [0.5], context=groups)
    assert held(report(run, tmp_path / "groups.html"))["series"][0]["following"] == [None]
    plain_run = dpc.replay(dpc.MVP([0.5]), dpc.streams.iid(60), [0.5])
    expected = dpc.MVP([0.5]).quantile(plain_run.state, [0.5])
    np.testing.assert_allclose(held(report(plain_run, tmp_path / "one.html"))["series"][0]["following"], expected)


def test_a_run_of_nobody_in_particular(tmp_path):
    alone = dpc.Replay(np.full((3, 1), 0.5), None, np.array([0.2, 0.4, 0.6]), np.array([0.9]))
    data = held(report(alone, tmp_path / "alone.html"))
    assert (data["named"], data["series"][0]["following"]) == (False, [None])


def test_infinite_thresholds(tmp_path):
    run = dpc.replay(dpc.SplitConformal(), dpc.streams.iid(60), [0.5, 0.95])
    data = held(report(run, tmp_path / "split.html"))
    one = data["series"][0]
    rows = unpack_rows(one["thresholds"])[data["asked"]]
    np.testing.assert_array_equal(np.isinf(rows), np.isinf(run.thresholds.T))
    np.testing.assert_allclose(rows[:, 30:], run.thresholds[30:].T, atol=1e-5)
    assert one["following"][-1] == "inf"
    assert one["regret"][0][0] == "inf"


def test_a_head_answers_every_level_too(tmp_path):
    run = dpc.replay(dpc.Corrected(dpc.Exact()), dpc.streams.iid(60), [0.5])
    data = held(report(run, tmp_path / "head.html"))
    assert (data["steps"], data["series"][0]["pit"], data["series"][0]["kind"]) == (200, None, "own")
    np.testing.assert_allclose(data["series"][0]["table"][0]["bound"], dpc.theory.path_bound(run)[0], rtol=1e-5)
    credible = dpc.replay(dpc.Credible(), dpc.streams.iid(60), [0.5])
    assert losses.losses_of(credible, np.array([60])).kind == "none"


def test_a_run_that_carries_on_is_replayed_from_where_it_started(run, tmp_path):
    later = dpc.replay(dpc.Exact(), dpc.streams.iid(40, seed=1), [0.5], state=run.state)
    data = held(report(later, tmp_path / "later.html"))
    row = unpack_rows(data["series"][0]["thresholds"])[[100, 500]]
    expected = dpc.replay(dpc.Exact(), dpc.streams.iid(40, seed=1), [0.1, 0.5], state=run.state)
    np.testing.assert_allclose(row, expected.thresholds.T, atol=1e-5)


BATCH = dpc.Replay(np.zeros((2, 3, 1)), None, np.zeros((2, 3)), np.array([0.5]))
CHANGING = dpc.Replay(np.zeros((3, 1)), None, np.zeros(3), np.full((3, 1), 0.5))
EMPTY = dpc.Replay(np.zeros((0, 1)), None, np.zeros(0), np.array([0.5]))
GOOD = dpc.Replay(np.ones((3, 1)), None, np.zeros(3), np.array([0.5]))


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (BATCH, r"run\.thresholds has shape \(2, 3, 1\), a batch: pass a mapping"),
        ({"a": GOOD, "b": BATCH}, r"run\['b'\]\.thresholds has shape"),
        (CHANGING, r"run\.levels has shape \(3, 1\), they change by round"),
        (EMPTY, r"run\.thresholds has shape \(0, 1\): there is nothing to report"),
        ({}, "run is an empty mapping"),
        (
            {"a": GOOD, "b": GOOD._replace(levels=np.array([0.6]))},
            r"run\['b'\]\.levels differ from those of run\['a'\]",
        ),
        ({"a": GOOD, "b": GOOD._replace(learner=dpc.ERM())}, r"run\['b'\]\.learner differs"),
    ],
)
def test_what_one_page_cannot_show_is_refused(bad, message, tmp_path):
    with pytest.raises(ValueError, match=message):
        report(bad, tmp_path / "bad.html")
    assert not list(tmp_path.iterdir())


def test_what_is_no_run_is_refused():
    summary = dpc.replay(dpc.ERM(), [0.1], [0.5], keep="summary")
    with pytest.raises(ValueError, match="run is a Summary: pass what replay returned with keep='all'"):
        page._checked_runs(summary)
    with pytest.raises(ValueError, match="run has the key 3: a series is named by text"):
        page._checked_runs({3: GOOD})


def test_paths_that_cannot_be_written_are_refused(tmp_path):
    with pytest.raises(ValueError, match=r"path = .* is a folder"):
        report(GOOD, tmp_path)
    with pytest.raises(ValueError, match=r"path = .*there is no folder"):
        report(GOOD, tmp_path / "none" / "report.html")


def test_a_failure_leaves_the_old_file_and_nothing_else(tmp_path, monkeypatch):
    path = tmp_path / "report.html"
    path.write_text("old")

    def fail(*_, **__):
        raise OSError(errno.ENOSPC, "no space left")

    monkeypatch.setattr(os, "rename", fail)
    with pytest.raises(OSError, match="no space left"):
        report(GOOD, path)
    assert [file.name for file in tmp_path.iterdir()] == ["report.html"]
    assert path.read_text() == "old"
    monkeypatch.undo()
    assert report(GOOD, path).read_text(encoding="utf-8").endswith("</html>\n")


def test_encoding_keeps_what_it_can():
    rows = np.array([[1e300, -1e300, 0.0, np.inf], [np.nan, np.nan, -np.inf, np.nan], [5.0, 5.0, 5.0, 5.0]])
    found = unpack_rows(pack_rows(rows))
    np.testing.assert_allclose(found[0], rows[0], atol=2e295)
    np.testing.assert_array_equal(found[1:], rows[1:])
    counts = np.array([0, 255, 70_000])
    np.testing.assert_array_equal(unpack_counts(pack_counts(counts, 70_000)), counts)
    assert as_plain([True, np.int32(3), -np.inf, "a"]) == [True, 3, "-inf", "a"]


@pytest.fixture(scope="module")
def chromium(tmp_path_factory):
    program = browser.installed()
    if program is None:
        pytest.skip("there is no Chromium")
    with browser.Browser(program, tmp_path_factory.mktemp("chromium")) as opened:
        yield opened


def shown(chromium, name):
    return chromium.value(f"document.getElementById('{name}').textContent")


def test_arrow_keys_move_the_level(chromium, run, written):
    chromium.open(written.as_uri())
    assert shown(chromium, "read-level") == "0.9"
    curve = "document.getElementById('curve').getAttribute('d')"
    before = chromium.value(curve)
    chromium.value("document.getElementById('level').focus()")
    chromium.press("ArrowLeft", times=3)
    assert shown(chromium, "read-level") == "0.897"
    assert chromium.value(curve) != before
    longer = dpc.replay(dpc.Exact(), np.append(run.scores, 0.5), [0.897])
    assert float(shown(chromium, "read-threshold")) == pytest.approx(float(longer.thresholds[-1, 0]), rel=1e-3)
    covered = int(dpc.metrics.covered(longer)[:-1].sum())
    assert shown(chromium, "read-count") == f"({covered} of {ROUNDS})"
    for key, level in (("End", "1"), ("Home", "0")):
        chromium.press(key)
        assert shown(chromium, "read-level") == level
    assert chromium.problems() == []
    assert chromium.requests() == [written.as_uri()]


def test_the_level_can_be_typed_and_linked_to(chromium, written):
    chromium.open(written.as_uri() + "#level=0.25")
    assert shown(chromium, "read-level") == "0.25"
    chromium.value("document.getElementById('number').select(), document.getElementById('number').focus()")
    chromium.type("0.9555")
    assert shown(chromium, "read-level") == "0.9555"
    chromium.value("location.hash = '#level=0.1'")
    chromium.settle()
    assert shown(chromium, "read-level") == "0.1"
    assert chromium.problems() == []


def test_every_picture_has_a_name_and_paper_has_the_level(chromium, written):
    chromium.open(written.as_uri())
    names = chromium.value(
        "[...document.querySelectorAll('svg')].map(s => s.getAttribute('role') + s.querySelector('title').textContent)"
    )
    assert len(names) == 6
    assert all(name.startswith("img") and len(name) > 40 for name in names)
    chromium.call("Emulation.setEmulatedMedia", media="print")
    assert chromium.value("getComputedStyle(document.getElementById('controls')).display") == "none"
    assert chromium.value("getComputedStyle(document.getElementById('chosen')).display") == "block"
    chromium.call("Emulation.setEmulatedMedia", media="")
    assert "at confidence level 0.9" in shown(chromium, "chosen")


def test_a_narrow_window_needs_no_sideways_scrolling(chromium, written, tmp_path):
    split = dpc.replay(dpc.SplitConformal(), dpc.streams.iid(60), [0.5, 0.95])
    for path in (written, report({NASTY * 3: split, "b": split}, tmp_path / "split.html")):
        chromium.open(path.as_uri(), width=360, height=640)
        assert chromium.value("document.documentElement.scrollWidth") <= 360
        assert chromium.value("Math.max(...[...document.querySelectorAll('svg')].map(s => s.clientWidth))") <= 360
        assert chromium.problems() == []


def test_series_are_chosen_and_infinity_is_shown(chromium, tmp_path):
    runs = {
        name: dpc.replay(dpc.SplitConformal(), scores, [0.5, 0.95])
        for name, scores in ((NASTY, dpc.streams.iid(60)), ("second", 0.5 * dpc.streams.iid(60)))
    }
    chromium.open(report(runs, tmp_path / "two.html").as_uri() + "#level=1")
    assert shown(chromium, "read-threshold") == "∞"
    assert chromium.value("document.getElementById('series').options[0].text").startswith("</script>")
    assert "infinite" in chromium.value("document.querySelector('#regret .drawing').textContent")
    chromium.value("document.getElementById('series').focus()")
    chromium.press("ArrowDown")
    assert shown(chromium, "facts").startswith("2 series · second: 60 rounds")
    assert chromium.problems() == []
