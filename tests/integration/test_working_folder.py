"""Nothing that stands in a folder of results makes a command write, read or delete elsewhere."""

import json
import os
import shutil
import socket
from pathlib import Path

import numpy as np
import pytest
from commands import run_command

from dpconformal.checkpoints import container as atomic
from dpconformal.checkpoints.container import Journal, write_whole
from dpconformal.cli import jobs
from dpconformal.files.working_folder import WorkingFolder

REPLAY = ("replay", "scores.csv", "--learner", "quantized", "--no-report", "--no-certificate", "--levels", "0.5")


COMPARE = ("compare", "scores.csv", "--learners", "quantized", "--levels", "0.5")


@pytest.fixture
def run(monkeypatch, capsys, tmp_path):
    """Run a command in a folder with scores: its code, and what it complained of."""
    monkeypatch.chdir(tmp_path)
    np.savetxt("scores.csv", np.random.default_rng(0).random(64).round(3), header="score", comments="")

    def command(*words):
        code, _, err = run_command(monkeypatch, capsys, *words)
        return code, err.replace("\n", " ")

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
    real = jobs.replay_batch

    def stop(*given, **named):
        real(*given, **named)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(jobs, "replay_batch", stop)
        assert run(*REPLAY)[0] == 130
    (work,) = Path("results/replay/.unfinished").glob("work-*")
    return work


# Each would find that the folder is entered by its name alone: what a link leads to was emptied.
@pytest.mark.parametrize("more", [(), ("--resume",)])
@pytest.mark.parametrize("command", [REPLAY, COMPARE])
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


# Would find that results are written through links of the same names, or through second names of the same file.
@pytest.mark.parametrize("link", ["symlink_to", "hardlink_to"])
@pytest.mark.parametrize(
    "command",
    [
        ("replay", "scores.csv", "--learner", "quantized", "--levels", "0.5"),
        COMPARE,
        ("diagnose", "scores.csv", "--learner", "quantized", "--levels", "0.5"),
        ("experiment", "monotonicity", "--seeds", "4", "--rounds", "8"),
    ],
    ids=lambda words: words[0],
)
def test_results_replace_links_and_do_not_follow_them(run, precious, tmp_path, command, link):
    out = tmp_path / "out"
    assert run(*command, "--out", out)[0] == 0
    results = sorted(out.iterdir())
    assert len(results) > 2
    assert all(file.is_file() for file in results)
    for file in results:
        file.unlink()
        getattr(file, link)(precious / "thesis.tex")
    assert run(*command, "--out", out)[0] == 0
    assert sorted(out.iterdir()) == results
    assert not any(file.is_symlink() or file.samefile(precious / "thesis.tex") for file in results)


# Would find a folder of results that somebody else put a link in the place of.
def test_a_link_of_ours_is_followed_and_that_of_another_user_is_not(run, precious, tmp_path, monkeypatch):
    (tmp_path / "far").mkdir()
    (tmp_path / "out").symlink_to(tmp_path / "far")
    assert run(*REPLAY, "--out", "out")[0] == 0
    assert (tmp_path / "out").is_symlink()
    before = sorted((tmp_path / "far").iterdir())
    assert {file.name for file in before} == {"summary.csv", "thresholds.parquet"}
    with monkeypatch.context() as patch:
        patch.setattr(os, "geteuid", lambda: os.getuid() + 1)
        code, complaint = run(*REPLAY, "--out", "out")
    assert code == 2
    assert "out is a link of another user" in complaint
    assert sorted((tmp_path / "far").iterdir()) == before


# Would find that a panel is worked on in a folder that a link leads to, or written in its place after all the work.
@pytest.mark.parametrize("name", [".panel.zarr", "panel.zarr"])
def test_panels_are_not_written_through_links(run, precious, tmp_path, name):
    (tmp_path / name).symlink_to(precious)
    (tmp_path / "tables").mkdir()
    code, complaint = run("panel", "tables", "--out", "panel.zarr")
    assert code == 2
    assert f"{name} is a link" in complaint


# Would find that a folder that others can write to is worked in.
def test_a_folder_that_was_open_to_others_is_closed(run, monkeypatch, tmp_path):
    folder = tmp_path / "results/replay/.unfinished"
    folder.mkdir(parents=True)
    folder.chmod(0o777)
    interrupted(run, monkeypatch)
    assert folder.stat().st_mode & 0o777 == 0o700


# Would find that the record is written by the folder's path, in the place of which another folder may stand by now.
def test_the_record_goes_to_the_folder_that_was_opened(tmp_path):
    path, other = tmp_path / ".unfinished", tmp_path / "other"
    other.mkdir()
    with WorkingFolder(path) as folder:
        path.rename(tmp_path / "moved")
        path.symlink_to(other)
        folder.start({"seeds": 3})
        folder.remove()
    assert not list(other.iterdir())


# Would find that what is no file is waited for, or opened as one.
@pytest.mark.parametrize("more", [(), ("--resume",)])
@pytest.mark.parametrize("name", ["lock", "job.json"])
@pytest.mark.parametrize("kind", ["pipe", "folder", "socket"])
def test_what_is_no_file_is_refused(run, tmp_path, name, kind, more):
    place = tmp_path / "results/replay/.unfinished" / name
    place.parent.mkdir(parents=True)
    if kind == "pipe":
        os.mkfifo(place)
    elif kind == "folder":
        place.mkdir()
    else:
        monkey = socket.socket(socket.AF_UNIX)
        monkey.bind(os.path.relpath(place))
        monkey.close()
    code, complaint = run(*REPLAY, *more)
    assert code == 2
    assert f"{name} is something that was not made by this program" in complaint
    assert place.exists()


# Would find a process that is told of a missing folder, because another has just finished in it.
def test_a_folder_that_is_removed_in_the_meantime_is_made_anew(tmp_path, monkeypatch):
    path, real, gone = tmp_path / ".unfinished", os.open, []

    def removed_before(name, *given, **named):
        if name == "lock" and not gone:
            gone.append(path.rmdir())
        return real(name, *given, **named)

    monkeypatch.setattr(os, "open", removed_before)
    with WorkingFolder(path) as folder:
        folder.start({})
        folder.remove()
    assert gone
    assert not path.exists()


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
