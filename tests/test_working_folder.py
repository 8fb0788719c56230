"""Nothing that stands in a folder of results makes a command write, read or delete elsewhere."""

import json
import os
import shutil
from pathlib import Path

import numpy as np
import pytest

from dpconformal import cli
from dpconformal.checkpoints import atomic
from dpconformal.checkpoints.atomic import write_whole
from dpconformal.checkpoints.journal import Journal
from dpconformal.cli import passes
from dpconformal.files.working_folder import WorkingFolder

REPLAY = ("replay", "scores.csv", "--learner", "quantized", "--no-report", "--no-certificate", "--levels", "0.5")


@pytest.fixture
def run(monkeypatch, capsys, tmp_path):
    """Run a command in a folder with scores: its code, and what it complained of."""
    monkeypatch.chdir(tmp_path)
    np.savetxt("scores.csv", np.random.default_rng(0).random(64).round(3), header="score", comments="")

    def command(*words):
        monkeypatch.setattr("sys.argv", ["dpconformal", *map(str, words)])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        return ended.value.code or 0, capsys.readouterr().err.replace("\n", " ")

    return command


@pytest.fixture
def precious(tmp_path):
    """Files of the user's that have nothing to do with the command."""
    folder = tmp_path / "precious"
    (folder / "deep").mkdir(parents=True)
    (folder / "thesis.tex").write_text("years of work")
    (folder / "deep/data.csv").write_text("more of it")
    yield folder
    assert (folder / "thesis.tex").read_text() == "years of work"
    assert (folder / "deep/data.csv").read_text() == "more of it"
    assert len(list(folder.rglob("*"))) == 3


def interrupted(run, monkeypatch):
    """Leave unfinished work behind, and return its folder."""
    real = passes.replay_batch

    def stop(*given, **named):
        real(*given, **named)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(passes, "replay_batch", stop)
        assert run(*REPLAY)[0] == 130
    (work,) = Path("results/replay/.unfinished").glob("work-*")
    return work


# Each would find that the folder is entered by its name alone: what a link leads to was emptied.
@pytest.mark.parametrize("more", [(), ("--resume",)])
@pytest.mark.parametrize("command", [REPLAY, ("compare", "scores.csv", "--learners", "quantized", "--levels", "0.5")])
def test_a_link_in_the_place_of_the_folder_is_refused(run, precious, tmp_path, command, more):
    out = tmp_path / "results" / command[0]
    out.mkdir(parents=True)
    (out / ".unfinished").symlink_to(precious)
    code, complaint = run(*command, *more)
    assert code == 2
    assert ".unfinished is a link that was not made by this program: move it away" in complaint


# Would find that the lock is opened for writing through a link, or a second name of a file, which empties it.
@pytest.mark.parametrize("more", [(), ("--resume",)])
@pytest.mark.parametrize("name", ["lock", "job.json"])
@pytest.mark.parametrize("link", ["symlink_to", "hardlink_to"])
def test_links_in_the_folder_are_refused(run, precious, tmp_path, name, link, more):
    folder = tmp_path / "results/replay/.unfinished"
    folder.mkdir(parents=True)
    getattr(folder / name, link)(precious / "thesis.tex")
    code, complaint = run(*REPLAY, *more)
    assert code == 2
    assert f"{name} is " in complaint
    assert "not made by this program" in complaint


# Would find that a folder with a familiar name is emptied, whoever filled it.
@pytest.mark.parametrize("more", [(), ("--resume",)])
@pytest.mark.parametrize("made", ["file", "folder", "link"])
def test_what_we_did_not_make_is_neither_deleted_nor_used(run, precious, tmp_path, made, more):
    folder = tmp_path / "results/replay/.unfinished"
    folder.mkdir(parents=True)
    stranger = folder / ("work-" + "0" * 16 if made == "link" else "run")
    if made == "link":
        stranger.symlink_to(precious)
    elif made == "folder":
        shutil.copytree(precious, stranger)
    else:
        stranger.write_text("mine")
    code, complaint = run(*REPLAY, *more)
    assert code == 2
    assert f"{stranger.name} is " in complaint
    assert stranger.exists()


# Would find that a folder is believed by its name: an unpacked archive would bring links and files that others wrote.
@pytest.mark.parametrize("more", [(), ("--resume",)])
@pytest.mark.parametrize("swap", ["link", "copy"])
def test_work_that_was_swapped_is_neither_deleted_nor_used(run, precious, monkeypatch, swap, more):
    work = interrupted(run, monkeypatch)
    work.rename("kept")
    if swap == "link":
        work.symlink_to(precious)
    else:
        shutil.copytree("kept", work)
    code, complaint = run(*REPLAY, *more)
    assert code == 2
    assert "is not the folder that was made there" in complaint
    assert work.exists()
    work.unlink() if swap == "link" else shutil.rmtree(work)
    Path("kept").rename(work)
    assert run(*REPLAY, "--resume")[0] == 0


def test_another_users_folder_is_refused(run, precious, monkeypatch):
    interrupted(run, monkeypatch)
    with monkeypatch.context() as patch:
        patch.setattr(os, "geteuid", lambda: os.getuid() + 1)
        code, complaint = run(*REPLAY, "--resume")
    assert code == 2
    assert "not made by this program" in complaint


def test_other_users_can_neither_read_nor_write_the_work(run, monkeypatch):
    work = interrupted(run, monkeypatch)
    assert work.stat().st_mode & 0o777 == 0o700
    assert work.parent.stat().st_mode & 0o777 == 0o700


# Would find that results are written through links of the same names.
def test_results_replace_links_and_do_not_follow_them(run, precious, tmp_path):
    out = tmp_path / "results/replay"
    out.mkdir(parents=True)
    (out / "summary.csv").symlink_to(precious / "thesis.tex")
    assert run(*REPLAY)[0] == 0
    assert not (out / "summary.csv").is_symlink()


# Would find a folder that can never be used again: killed between two steps, what is left must be understood.
def test_killed_between_any_two_steps(monkeypatch, tmp_path):
    class KilledError(BaseException):
        pass

    def crashing(function, left):
        def step(*given, **named):
            if not left:
                raise KilledError
            left.pop()
            return function(*given, **named)

        return step

    path = tmp_path / ".unfinished"
    outcomes = set()
    for steps in range(12):
        left = [None] * steps
        with monkeypatch.context() as patch:
            for module, name in ((os, "mkdir"), (os, "unlink"), (os, "rmdir"), (shutil, "rmtree"), (os, "rename")):
                patch.setattr(module, name, crashing(getattr(module, name), left))
            try:
                with WorkingFolder(path) as folder:
                    (folder.start({"steps": steps}) / "some.txt").write_text("half")
                    folder.remove()
                outcomes.add("done")
            except KilledError:
                outcomes.add("killed")
        with WorkingFolder(path) as folder:
            if folder.job is not None:  # then the work is whole
                assert (folder.work() / "some.txt").read_text() == "half"
            work = folder.start({"steps": -1})
            assert not any(work.iterdir())
            folder.remove()
        assert not path.exists()
    assert outcomes == {"done", "killed"}


# Would find notes of long work that are written through a link in a folder that was given.
def test_steps_are_not_written_through_links(precious, tmp_path):
    folder = tmp_path / "steps"
    Journal(folder, {}).once("a", lambda: (np.arange(3),))
    (step,) = folder.iterdir()
    step.unlink()
    step.symlink_to(precious / "thesis.tex")
    with pytest.raises(ValueError, match="is a link"):
        Journal(folder, {}).once("a", lambda: (np.arange(3),))


@pytest.mark.parametrize("unnamed", [True, False])
def test_a_link_is_replaced_on_demand(precious, tmp_path, monkeypatch, unnamed):
    if not unnamed:
        monkeypatch.setattr(atomic, "_write_unnamed", lambda *_: False)
    link, waiting = tmp_path / "a", tmp_path / ".a.new"
    link.symlink_to(precious / "thesis.tex")
    waiting.symlink_to(precious / "thesis.tex")
    write_whole(link, [b"new"], follow=False)
    assert link.read_bytes() == b"new"
    assert not link.is_symlink()


def test_the_record_holds_what_is_needed_to_know_the_work_again(tmp_path):
    with WorkingFolder(tmp_path / ".unfinished") as folder:
        work = folder.start({"seeds": 3})
        record = json.loads((tmp_path / ".unfinished/job.json").read_text())
    assert record == {"folder": work.name, "inode": work.stat().st_ino, "job": {"seeds": 3}}
