"""The commands: what they print and write, and how mistakes end."""

import re
import subprocess
import sys
import tempfile
from functools import partial

import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest
import xarray as xr
from commands import run_command
from scipy import stats

import dpconformal as dpc
from dpconformal.cli import demo
from dpconformal.cli.compare import draw_comparison, measure_runs, standard_errors
from dpconformal.cli.options import KINDS, Settings, make_learners, make_prior
from dpconformal.files import Recorded

mpl.use("Agg")
SCORES = np.random.default_rng(0).beta(2, 5, 300)


@pytest.fixture(autouse=True)
def _quiet(monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    yield
    plt.close("all")


@pytest.fixture
def run(monkeypatch, capsys, tmp_path):
    """Run a command in an empty folder: its code, what it printed, what it complained of."""
    monkeypatch.chdir(tmp_path)
    pd.DataFrame({"score": SCORES}).to_csv("scores.csv", index=False)
    return partial(run_command, monkeypatch, capsys)


def test_replay_writes_thresholds_summary_certificate_and_report(run, tmp_path):
    code, out, err = run(
        *("replay", "scores.csv", "--levels", "0.5,0.8,0.9,0.95", "--learner", "quantized", "--bins", 64),
        *("--discount", 0.99, "--out", "out/"),
    )
    assert (code, err) == (0, "")
    names = {file.name for file in (tmp_path / "out").iterdir()}
    assert names == {"thresholds.parquet", "summary.csv", "certificate.txt", "report.html"}
    want = dpc.replay(dpc.Quantized(64, discount=0.99), SCORES, [0.5, 0.8, 0.9, 0.95])
    table = pq.read_table("out/thresholds.parquet").to_pandas()
    assert list(table) == ["round", "score", "threshold_0.5", "threshold_0.8", "threshold_0.9", "threshold_0.95"]
    np.testing.assert_allclose(table.filter(like="threshold").to_numpy(), want.thresholds, rtol=1e-12)
    np.testing.assert_array_equal(table["score"], SCORES)
    summary = pd.read_csv("out/summary.csv")
    np.testing.assert_allclose(summary["coverage"], dpc.metrics.coverage(want))
    assert "certificate: passes" in out
    assert "all lines pass" in (tmp_path / "out" / "certificate.txt").read_text()
    assert "<html" in (tmp_path / "out" / "report.html").read_text()[:300]
    assert "300 rounds" in out
    row = re.search(r"^ +0.9 +([\d.]+) +([\d.]+) +([\d.]+)", out, re.MULTILINE)
    losses = dpc.metrics.quantile_loss(want).mean(axis=0)
    assert float(row[1]) == pytest.approx(float(dpc.metrics.coverage(want)[2]), abs=5e-4)
    assert float(row[2]) == pytest.approx(float(np.mean(want.thresholds[:, 2])), rel=1e-2)
    assert float(row[3]) == pytest.approx(float(losses[2]), rel=1e-2)
    assert max(map(len, out.splitlines())) <= 80
    assert "…" not in out


def test_many_series_of_unequal_length_run_each_by_itself(run):
    lengths = {"north": 40, "south": 120, "a[b]": 7}
    parts = [pd.DataFrame({"store": name, "score": SCORES[:n]}) for name, n in lengths.items()]
    pd.concat(parts).sample(frac=1, random_state=0).sort_index(kind="stable").to_csv("panel.csv", index=False)
    for form in ("csv", "netcdf"):
        code, out, err = run(
            *("replay", "panel.csv", "--batch", "store", "--levels", "0.5,0.9", "--format", form, "--out", "out"),
            "--no-report",
        )
        assert (code, err) == (0, "")
        assert "3 series, 167 rounds" in out
    table = pd.read_csv("out/thresholds.csv")
    with xr.open_dataset("out/thresholds.nc", engine="scipy") as data:
        for name, n in lengths.items():
            want = dpc.replay(dpc.Exact(), SCORES[:n], [0.5, 0.9]).thresholds
            mine = table[table["series"] == name]
            np.testing.assert_allclose(mine[["threshold_0.5", "threshold_0.9"]], want, rtol=1e-12)
            np.testing.assert_array_equal(mine["round"], np.arange(1, n + 1))
            array = data.thresholds.sel(series=name).values
            np.testing.assert_allclose(array[:n], want, rtol=1e-12)
            assert np.isnan(array[n:]).all()
    summary = pd.read_csv("out/summary.csv")
    assert len(summary) == 6
    shares = summary[summary["level"] == 0.9]["coverage"]
    row = re.search(r"^ +0.9 +([\d.]+) +([\d.]+) +([\d.]+)", out, re.MULTILINE)
    for text, value in zip(row.groups(), (shares.mean(), shares.min(), shares.max()), strict=True):
        assert float(text) == pytest.approx(value, abs=5e-3)


def test_filling_up_short_series_stays_within_any_range(run):
    pd.DataFrame({"s": ["a"] * 5 + ["b"] * 2, "score": 10 + SCORES[:7]}).to_csv("far.csv", index=False)
    code, _, err = run("replay", "far.csv", "--batch", "s", "--range", "10,11", "--levels", "0.9", "--out", "out")
    assert (code, err) == (0, "")


def test_commands_compute_in_float64():
    code = """
import sys
sys.argv = ["dpconformal", "replay", "-", "--levels", "0.5", "--no-report", "--out", sys.argv[1]]
from dpconformal.cli import main
main()
"""
    with tempfile.TemporaryDirectory() as folder:
        fed = "\n".join(map(str, SCORES[:20]))
        subprocess.run([sys.executable, "-c", code, folder], input=fed, text=True, check=True, capture_output=True)
        found = pq.read_table(f"{folder}/thresholds.parquet")["threshold_0.5"].to_numpy()
    np.testing.assert_allclose(found, dpc.replay(dpc.Exact(), SCORES[:20], [0.5]).thresholds[:, 0], rtol=1e-14)


def test_levels_are_written_out(run):
    code, out, _ = run("replay", "scores.csv", "--levels", "0.9999999,0.9999998,1", "--no-report", "--out", "out")
    assert code == 0
    assert "0.9999998" in out
    names = pq.read_table("out/thresholds.parquet").column_names
    assert names[2:] == ["threshold_0.9999998", "threshold_0.9999999", "threshold_1"]


def test_names_are_not_markup(run):
    names = np.repeat(["[/bold]", "[red]x"], 150)
    pd.DataFrame({"s": names, "score": np.sort(SCORES)}).to_csv("marked.csv", index=False)
    for command in ("diagnose", "replay"):
        code, out, err = run(command, "marked.csv", "--batch", "s", "--levels", "0.9")
        assert (code, err) == (0, "")
        assert "[/bold]" in out


def test_standard_input_unbounded_priors_and_failing_certificates(run, monkeypatch):
    import io
    import types

    def feed(text):
        monkeypatch.setattr("sys.stdin", types.SimpleNamespace(buffer=io.BytesIO(text.encode())))

    feed("score\n" + "\n".join(map(str, 5 * SCORES)))
    code, out, err = run("replay", "-", "--prior", "half-cauchy:1.5", "--levels", "0.9", "--no-report", "--out", "out")
    assert (code, err) == (0, "")
    want = dpc.replay(dpc.Exact(dpc.priors.HalfCauchy(1.5)), 5 * SCORES, [0.9])
    np.testing.assert_allclose(pq.read_table("out/thresholds.parquet")["threshold_0.9"], want.thresholds[:, 0])
    feed("\n".join(["1", "0"] * 400))  # the leader is followed into every trap
    code, out, _ = run("replay", "-", "--learner", "erm", "--levels", "0.5", "--no-report", "--out", "trap")
    assert "certificate: FAILS: regret, level 0.5" in out
    feed("\n".join(map(str, np.sort(SCORES))))
    code, out, _ = run("replay", "-", "--levels", "0.9", "--no-report", "--out", "sorted")
    assert "FAILS: coverage, level 0.9" in out
    assert "such scores are not iid" in out.replace("\n", " ")
    _, out, _ = run("replay", "scores.csv", "--no-certificate", "--no-report", "--out", "bare")
    assert "certificate: left out" in out
    monkeypatch.setattr("dpconformal.cli.replay._CERTIFIED", 10)
    _, out, _ = run("replay", "scores.csv", "--no-report", "--out", "bare")
    assert "ask with --certificate" in out


def test_compare_prints_a_table_and_draws_a_picture(run, tmp_path):
    chosen = "exact,exact:discount=0.9,erm,split,ogd"
    code, out, err = run("compare", "scores.csv", "--learners", chosen, "--levels", "0.5,0.9", "--out", "out")
    assert (code, err) == (0, "")
    for name in chosen.split(","):
        assert f" {name} " in out
    frame = pd.read_csv("out/compare.csv")
    run_of = dpc.replay(dpc.Exact(discount=0.9), SCORES, [0.5, 0.9])
    np.testing.assert_allclose(frame.loc[1, "coverage 0.9"], dpc.metrics.coverage(run_of)[1])
    np.testing.assert_allclose(frame.loc[1, "loss"], dpc.metrics.quantile_loss(run_of).mean())
    assert (tmp_path / "out" / "compare.png").stat().st_size > 10_000
    # Standard errors, those of other records: the table showed none.
    chance = np.sqrt(0.09 / 300)
    assert frame.loc[[0, 2, 3], "coverage 0.9 se"].between(0.5 * chance, 2 * chance).all()
    left = [np.delete(SCORES, np.arange(15 * g, 15 * g + 15)) for g in range(20)]
    kept = [float(dpc.metrics.quantile_loss(dpc.replay(dpc.ERM(), x, [0.5, 0.9])).mean()) for x in left]
    jackknife = np.sqrt(19 / 20 * np.sum((kept - np.mean(kept)) ** 2)) * stats.t.ppf(stats.norm.cdf(2), 19) / 2
    np.testing.assert_allclose(frame.loc[2, "loss se"], jackknife)
    assert np.isnan(frame.loc[3, "mean_threshold 0.9 se"])  # split conformal: infinite at first
    assert out.count("±") == 6
    assert max(map(len, out.splitlines())) <= 80
    close = [0.5, 0.55]
    chosen = ("--learners", "erm,ogd", "--levels", "0.5,0.55", "--no-errors")
    _, out, _ = run("compare", "scores.csv", *chosen, "--out", "out")
    assert "±" not in out
    ogd = dpc.replay(dpc.OGD(close), SCORES, close)
    frame = pd.read_csv("out/compare.csv")
    assert frame.loc[1, "crossings"] == int(dpc.metrics.crossings(ogd).rounds) > 0
    row = re.search(r"^ ogd +([\d.]+) +([\d.]+) +[\d.]+ +[\d.]+ +(\d+)", out, re.MULTILINE)
    assert [float(row[1]), float(row[2])] == pytest.approx(dpc.metrics.coverage(ogd), abs=5e-4)
    assert int(row[3]) == frame.loc[1, "crossings"]
    thresholds = {"ogd": np.asarray(ogd.thresholds)}
    recorded = Recorded("scores.csv", [""], SCORES, np.array([SCORES.size]))
    figure = draw_comparison(thresholds, recorded, measure_runs(thresholds, recorded, close), close, 0.55)
    np.testing.assert_allclose(figure.axes[2].lines[0].get_ydata(), dpc.metrics.coverage(ogd) - close, atol=1e-12)
    code, _, err = run("compare", "scores.csv", "--level", "0.7")
    assert code == 2
    assert "--level 0.7: must be one of --levels" in err


def test_errors_of_several_series_add_up_and_one_score_has_none():
    first, second = SCORES[:100], SCORES[100:141]

    def of(*series):
        lengths = np.array([len(one) for one in series])
        recorded = Recorded("x", ["a", "b"][: len(series)], np.concatenate(series), lengths)
        return standard_errors(dpc.ERM(), recorded, [0.5, 0.9])

    alone, both = [of(first), of(second)], of(first, second)
    for name, error in both.items():
        np.testing.assert_allclose(error, np.hypot(*(one[name] for one in alone)) / 2)
    assert np.isnan(of(first, second[:1])["coverage"]).all()


def test_diagnose_tells_iid_from_drift(run, tmp_path):
    code, out, err = run("diagnose", "scores.csv", "--levels", "0.9", "--concentration", "1")
    assert (code, err) == (0, "")
    answers = re.findall(r"\? +(yes|no|too often|cannot say) ", out)
    assert answers == ["yes"] * 6
    assert {file.name for file in (tmp_path / "results" / "diagnose").iterdir()} == {
        "diagnose.csv",
        "ranks.png",
        "coverage.png",
        "martingale.png",
        "rolling.png",
    }
    pd.DataFrame({"s": np.repeat(["a", "b"], 300), "score": np.tile(np.sort(SCORES), 2)}).to_csv("sorted.csv")
    code, out, _ = run("diagnose", "sorted.csv", "--column", "score", "--batch", "s", "--levels", "0.9")
    assert re.findall(r"iid: ranks uniform\? +(yes|no)", out) == ["no", "no"]
    bets = re.findall(r"iid: at all times\? +(yes|no) +capital up to 1e(\d+); alarm in round (\d+) ", out)
    assert len(bets) == 2
    assert all(answer == "no" and int(power) > 10 and int(when) < 100 for answer, power, when in bets)
    assert out.index("series a") < out.index("series b")
    table = pd.read_csv("results/diagnose/diagnose.csv")
    assert list(table["series"]) == ["a"] * 6 + ["b"] * 6
    code, out, _ = run("diagnose", "scores.csv", "--levels", "0.9", "--prior", "beta:50,1")
    assert re.search(r"often enough\? +too often", out)
    assert "try --prior histogram:OLD_SCORES" in out.replace("\n", " ")
    assert max(len(line) for line in out.splitlines() if "results/" not in line) <= 80  # a path is never broken
    pd.DataFrame({"score": SCORES[:15]}).to_csv("short.csv", index=False)
    code, _, err = run("diagnose", "short.csv")
    assert code == 2
    assert "short.csv: it has fewer than 20 scores" in err


MISTAKES = {
    ("replay", "none.csv"): "none.csv does not exist",
    ("replay", "scores.csv", "--column", "x"): "--column x: scores.csv has no such column; it has score",
    ("replay", "scores.csv", "--range", "0,0.5"): "lies outside [0, 0.5]",
    ("replay", "scores.csv", "--range", "1,0"): "--range 1,0: must be finite and ascending",
    ("replay", "scores.csv", "--range", "1"): "--range 1: write two numbers",
    ("replay", "scores.csv", "--levels", "90"): "--levels 90: 90 is no confidence level; 90 % is 0.9",
    ("replay", "scores.csv", "--levels", "a"): "--levels a: 'a' is no number",
    ("replay", "scores.csv", "--learner", "best"): "learner 'best' is not known: the learners are exact, quantized",
    ("replay", "scores.csv", "--learner", "Exat"): "learner 'Exat' is not known: did you mean exact?",
    ("compare", "scores.csv", "--prior", "half-cauchy:1"): "quantized needs a prior with an end",
    ("replay", "scores.csv", "--learner", "auto", "--prior", "half-cauchy:1"): "auto needs a prior with an end",
    ("replay", "scores.csv", "--levels", "90%"): "90 % is 0.9",
    ("replay", "scores.csv", "--learner", "exact,erm"): "one at a time",
    ("replay", "scores.csv", "--learner", "quantized", "--bins", "0"): "Quantized.bins = 0",
    (
        "replay",
        "scores.csv",
        "--prior",
        "half-cauchy:1",
        "--range",
        "0,2",
    ): "--range 0,2 means nothing beside this --prior",
    ("replay", "scores.csv", "--batch", "score"): "--batch score is the only column of scores.csv",
    ("replay", "scores.csv", "--bins", "8"): "--bins means nothing to exact: leave it out",
    ("replay", "scores.csv", "--discount", "1"): "Exact.discount = 1.0: must be finite and in (0, 1)",
    ("replay", "scores.csv", "--format", "xlsx"): "--format xlsx: write one of parquet, csv, netcdf",
    ("replay", "scores.csv", "--prior", "cauchy:1"): "--prior cauchy:1: write one of uniform, beta:X,Y",
    ("replay", "scores.csv", "--prior", "beta:1"): "--prior beta:1: write one of",
    ("replay", "scores.csv", "--out", "scores.csv/x"): "cannot be written to",
    ("compare", "scores.csv", "--learners", "exact,exact"): "learner 'exact' is asked for twice",
    ("compare", "scores.csv", "--learners", "ogd:bins=8"): "ogd has no such setting; it takes none",
    ("compare", "scores.csv", "--learners", "aci:window=x"): "'x' is no number",
    ("diagnose", "scores.csv", "--learner", "exact,erm"): "one at a time",
}


@pytest.mark.parametrize("words", MISTAKES)
def test_mistakes_end_with_code_2_and_leave_nothing_behind(run, tmp_path, words):
    code, _, err = run(*words)
    assert code == 2
    assert MISTAKES[words] in err
    assert err.count("\n") == 1
    assert {file.name for file in tmp_path.iterdir()} == {"scores.csv"}


def test_several_series_are_not_read_as_one(run, tmp_path):
    """Found: without --batch they were interleaved in silence."""
    days = np.arange(np.datetime64("2024-01-01"), np.datetime64("2024-01-31"))
    table = {"day": np.tile(days, 2), "store": np.repeat(["a", "b"], 30), "score": SCORES[:60]}
    pd.DataFrame(table).to_csv("stores.csv", index=False)
    for command in ("replay", "compare", "diagnose"):
        code, _, err = run(command, "stores.csv")
        assert code == 2
        assert err.startswith(
            "error: stores.csv, line 32, column 'day': 2024-01-01 comes after 2024-01-30; if there are "
        )
        assert "--batch store; if there is one, sort the rows, or pass --one-series" in err
        assert err.count("\n") == 1
    assert "exclude each other" in run("replay", "stores.csv", "--one-series", "--batch", "store")[2]
    assert {file.name for file in tmp_path.iterdir()} == {"scores.csv", "stores.csv"}
    said = ("--no-report", "--no-certificate", "--levels", "0.5")
    assert "stores.csv: 60 rounds" in run("replay", "stores.csv", "--one-series", *said)[1]
    assert "stores.csv: 2 series, 60 rounds" in run("replay", "stores.csv", "--batch", "store", *said)[1]


@pytest.mark.parametrize("module", ["typer", "rich", "pyarrow"])
def test_a_missing_extra_is_one_line(module, tmp_path):
    """Found: a traceback."""
    (tmp_path / "scores.csv").write_text("0.5\n0.25\n")
    code = f"""
import sys
sys.modules[{module!r}] = None
sys.argv = ["dpconformal", "replay", "scores.csv"]
from dpconformal.cli import main
main()
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, cwd=tmp_path)
    assert done.returncode == 2
    assert re.fullmatch(rf"error: .* needs? {module}: pip install '\.\[cli\]' in a clone of dpconformal\n", done.stderr)
    assert done.stdout == ""


def test_a_wrong_range_names_the_line(run):
    pd.DataFrame({"score": np.where(np.arange(300) == 40, 3.5, SCORES)}).to_csv("wide.csv", index=False)
    code, _, err = run("replay", "wide.csv")
    assert code == 2
    assert (
        "wide.csv, line 42, column 'score': score 3.5 lies outside [0, 1]; that is the range of exact: widen it" in err
    )
    pd.DataFrame({"score": SCORES - 0.2}).to_csv("signed.csv", index=False)
    code, _, err = run("replay", "signed.csv", "--prior", "half-cauchy:1")
    assert code == 2
    assert "of signed errors take the absolute values" in err


def test_every_learner_can_be_asked_for_by_name():
    made = make_learners(",".join(KINDS), [0.5, 0.9], Settings(low=0.0, high=2.0))
    asked = {type(learner).__name__ for learner in made.values()}
    assert asked == {card.name for card in dpc.learners()} - {"Hierarchical"}  # a file of scores has no groups
    for learner in made.values():
        assert tuple(map(float, learner.support)) == (0.0, 2.0)
    own = make_learners(
        "quantized:bins=8:discount=0.9,aci:window=7,nexcp:discount=0.8,sliding-erm:window=3,discounted-erm:discount=0.7",
        [0.5],
        Settings(concentration=2.0),
    )
    assert [own["aci:window=7"].window, own["sliding-erm:window=3"].window] == [7, 3]
    automatic = make_learners("auto:bins=8", [0.5], Settings(prior=dpc.priors.Beta(2, 5)))["auto:bins=8"]
    assert automatic == dpc.auto(prior=dpc.priors.Beta(2, 5), bins=8)
    assert make_learners("aci:rate=0.02", [0.5], Settings())["aci:rate=0.02"].rate == 0.02
    assert own["quantized:bins=8:discount=0.9"].schedule == dpc.schedules.Dirichlet(2.0)


def test_priors_by_name(tmp_path):
    np.save(tmp_path / "old.npy", SCORES)
    for text, kind in {
        "uniform": "Uniform",
        "beta:2,5": "Beta",
        "truncated-normal:0.3,0.2": "TruncatedNormal",
        "half-normal:2": "HalfNormal",
        "exponential:2": "Exponential",
        "log-normal:0,1": "LogNormal",
        "half-cauchy:2": "HalfCauchy",
        f"histogram:{tmp_path / 'old.npy'}": "Histogram",
    }.items():
        assert type(make_prior(text, 0.0, 1.0)).__name__ == kind
    assert make_prior("beta:2,5", 0.0, 4.0) == dpc.priors.Beta(2, 5, 0, 4)
    assert make_prior("truncated-normal:0.3,0.2", 0.0, 1.0) == dpc.priors.TruncatedNormal(0.3, 0.2)
    assert make_prior("log-normal:0.3,0.2", 0.0, 1.0) == dpc.priors.LogNormal(0.3, 0.2)


def test_the_module_runs_and_the_demo_shows_sets_methods_and_files(run, monkeypatch, tmp_path):
    short = demo.market()
    short = short._replace(dates=short.dates[:600], returns=short.returns[:600], predictions=short.predictions[:600])
    monkeypatch.setattr(demo, "market", lambda: short)
    monkeypatch.setattr(demo, "rivals", lambda: {"Exact": dpc.Exact(), "OGD": dpc.OGD(demo.LEVELS)})
    asked = []
    monkeypatch.setattr(dpc, "compilation_cache", lambda: asked.append(True))
    code, out, err = run("demo", "--out", "here")
    assert (code, err, asked) == (0, "", [])
    assert "600 days" in out
    assert " OGD " in out
    squeezed = dpc.scores.Transformed(dpc.scores.Normalized(), dpc.scores.Ratio())
    ogd = dpc.replay(dpc.OGD(demo.LEVELS), squeezed(short.predictions, short.returns), demo.LEVELS)
    late = dpc.metrics.covered(ogd)[-150:, 2].mean()
    assert re.search(r"^ OGD( +[\d.]+){4} +" + f"{late:.3f}", out, re.MULTILINE)
    assert "…" in out  # between the ends of an interval
    assert {file.name for file in (tmp_path / "here").iterdir()} == {"demo.png", "report.html"}
    run("demo", "--cache")
    assert asked == [True]


def test_forecasts_of_the_demo_know_the_past_only():
    stream = demo.market()
    returns, spread = stream.returns, stream.predictions[:, 1]
    np.testing.assert_allclose(spread[1:] ** 2, 0.94 * spread[:-1] ** 2 + 0.06 * returns[:-1] ** 2)
    np.testing.assert_allclose(stream.tomorrow[1] ** 2, 0.94 * spread[-1] ** 2 + 0.06 * returns[-1] ** 2)
    claim = demo.rivals()["  normal prior"].prior  # of abs(return)/forecast, squeezed by s/(1 + s)
    for s in (0.25, 1.0, 3.0):
        x = s / (1 + s)
        edges = np.asarray(claim.edges)
        low, high = edges[edges <= x + 1e-12].max(), edges[edges >= x - 1e-12].min()
        ends = [float(dpc.priors.HalfNormal().cdf(e / (1 - e))) for e in (low, high)]
        assert ends[0] - 1e-4 <= float(claim.cdf(x)) <= ends[1] + 1e-4
