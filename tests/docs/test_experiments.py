"""The experiments that need no data: their figures, tables, pictures, files and commands."""

import functools

import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np
import pytest
import xarray as xr
from typer.testing import CliRunner

import dpconformal as dpc
from dpconformal import cli, experiments
from dpconformal.display import track

mpl.use("Agg")


SIZES = {"monotonicity": {"seeds": 6}, "switching": {"rounds": 2000, "seeds": 2}, "prior": {"rounds": 60}}


@functools.cache
def data_of(name):
    return experiments.EXPERIMENTS[name].run(**SIZES[name], progress=False)


@pytest.fixture(params=SIZES)
def small(request):
    return data_of(request.param)


@pytest.fixture(autouse=True)
def _close_figures():
    yield
    plt.close("all")


def test_ours_is_certified(small):
    assert small.attrs["certified"] == 1
    assert "all lines pass" in small.attrs["certificate"]
    assert "FAIL" not in small.attrs["certificate"]


def test_files_hold_it_all(small, tmp_path):
    files = experiments.save(small, tmp_path / "new" / "folder")
    assert [file.suffix for file in files] == [".png", ".nc", ".csv", ".txt"]
    assert all(file.stat().st_size > 50 for file in files)
    with xr.open_dataset(files[1], engine="scipy") as back:
        for name in small.data_vars:
            np.testing.assert_allclose(back[name].values, small[name].values)
        assert experiments.table(back).shape == experiments.table(small).shape
        experiments.plot(back)
    assert files[2].read_text().count("\n") == len(experiments.table(small)) + 1


def test_a_learner_is_selected_by_keyword():
    """A dimension called method was taken for xarray's own argument: everything came back, or an error."""
    data = data_of("monotonicity")
    assert data.sel(learner="ERM").crossings.dims == ("pair", "seed")
    for name in SIZES:
        assert "method" not in {*data_of(name).dims, *data_of(name).coords}


def test_crossings_are_counted():
    data = data_of("monotonicity")
    assert data.crossings.sel({"learner": ["ERM", "Exact"]}).sum() == 0
    assert (data.crossings.sel({"learner": "MultiOGD"}) > 0).mean() > 0.8
    seed = data.attrs["shown"]
    scores = np.random.default_rng(seed).random(50)
    np.testing.assert_allclose(data.scores, scores)
    run = dpc.replay(dpc.MultiOGD(np.linspace(0, 1, 50)), scores, data.level.values)
    thresholds = np.asarray(run.thresholds)
    np.testing.assert_allclose(data.thresholds.sel({"learner": "MultiOGD"}), thresholds)
    for pair, columns in enumerate(((0, 1), (2, 3))):
        want = np.sum(thresholds[:, columns[0]] > thresholds[:, columns[1]])
        assert data.crossings.sel({"learner": "MultiOGD"}).values[pair, seed] == want


def test_following_the_leader_has_linear_regret_on_switching_scores():
    data = data_of("switching")
    slope = data.slope.sel(level=0.5)
    assert slope.sel({"learner": "ERM"}) == pytest.approx(1, abs=0.01)
    assert slope.sel({"learner": "Exact"}) == pytest.approx(0.5, abs=0.1)
    assert slope.sel({"learner": "OGD"}) == pytest.approx(0.5, abs=0.1)
    late = data.regret.isel(time=-1)
    assert late.sel({"learner": "ERM", "level": 0.5}) == pytest.approx(500, abs=1)
    assert np.all(data.regret.sel({"learner": "Quantized"}) <= data.bound)
    # MVP warms up for hundreds of rounds at level 0.7, then its regret is flat.
    assert np.all((data.warmup.sel(level=0.7) > 200) & (data.warmup.sel(level=0.7) < 1000))
    certificate = dpc.theory.certify(dpc.replay(dpc.ERM(), 1 - dpc.streams.alternating(2000), [0.5]))
    assert certificate.dataset.verdict.sel(check="regret", level=0.5) == "FAIL"


def test_a_good_prior_starts_where_the_scores_are():
    data = data_of("prior")
    first = data.thresholds.isel(time=0)
    np.testing.assert_allclose(first.sel({"prior": "uniform on [0, 0.5]"}), data.level / 2, rtol=1e-6)
    np.testing.assert_allclose(first.sel({"prior": "uniform on [0, 1]"}), data.level, rtol=1e-6)
    late = data.regret.isel(time=-1)
    assert late.sel({"prior": "learned"}).mean() < late.sel({"prior": "uniform on [0, 1]"}).mean()
    assert late.sel({"prior": "wrong"}).mean() > late.sel({"prior": "uniform on [0, 1]"}).mean()
    assert np.all(late <= data.bound.fillna(np.inf))


def test_commands_write_where_they_say(tmp_path):
    result = CliRunner().invoke(cli.app, ["experiment", "prior", "--rounds", "60", "--out", str(tmp_path / "here")])
    assert result.exit_code == 0, result.output
    assert "uniform on [0, 0.5]" in result.output
    assert "passes" in result.output
    assert (tmp_path / "here" / "prior.png").exists()


def test_commands_name_their_default_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert CliRunner().invoke(cli.app, ["experiment", "monotonicity", "--seeds", "6"]).exit_code == 0
    assert (tmp_path / "results" / "monotonicity" / "monotonicity.nc").exists()


def test_every_experiment_has_a_command():
    listed = CliRunner().invoke(cli.app, ["experiment", "--help"]).output
    for name, experiment in experiments.EXPERIMENTS.items():
        assert name in listed
        assert getattr(experiments, name) is experiment.run


def test_a_mistake_ends_with_code_2_and_one_line(monkeypatch, capsys, tmp_path):
    monkeypatch.setattr("sys.argv", ["dpconformal", "experiment", "prior", "--rounds", "1"])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code == 2
    assert "rounds = 1: must be a whole number, at least 2" in capsys.readouterr().err
    (tmp_path / "file").write_text("")
    with pytest.raises(ValueError, match=r"folder = .*file/below' cannot be made"):
        experiments.save(data_of("prior"), tmp_path / "file" / "below")


def test_brackets_in_names_are_not_markup_and_folders_are_checked_first(monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(
        "sys.argv", ["dpconformal", "experiment", "stock", "--prices", "x[/b].csv", "--out", str(tmp_path)]
    )
    with pytest.raises(SystemExit):
        cli.main()
    assert "x[/b].csv" in capsys.readouterr().err
    (tmp_path / "file").write_text("")
    monkeypatch.setattr(experiments, "stock", lambda *_, **__: pytest.fail("it ran"))
    monkeypatch.setattr("sys.argv", ["dpconformal", "experiment", "stock", "--out", str(tmp_path / "file")])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code == 2
    assert "cannot be written to" in capsys.readouterr().err
    (tmp_path / "prior.png").mkdir()
    with pytest.raises(ValueError, match="cannot be written to"):
        experiments.save(data_of("prior"), tmp_path)


def test_what_is_not_an_experiments_data_is_refused():
    with pytest.raises(ValueError, match="pass what an experiment returned"):
        experiments.plot(xr.Dataset())


def test_progress_is_quiet_where_there_is_no_terminal(capsys):
    assert list(track([1, 2], "counting")) == [1, 2]
    assert list(track(iter([1, 2]), "counting")) == [1, 2]
    assert "counting" not in capsys.readouterr().out
