"""Interrupted commands go on where they were, and their results are the same to the last byte."""

import errno
import json
import os
import shlex
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from commands import run_command

import dpconformal as dpc
from dpconformal.checkpoints.container import Journal
from dpconformal.cli import jobs
from dpconformal.cli.jobs import order_statistics, tally
from dpconformal.files import Recorded, copy_to_disk, formats, open_scores

SCORES = np.random.default_rng(4).beta(2, 5, 400).round(4)


@pytest.fixture
def run(monkeypatch, capsys, tmp_path):
    """Run a command in an empty folder, in many small passes: its code, what it printed, what it complained of."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr(jobs, "ROUNDS", 64)
    monkeypatch.setattr(jobs, "PARTS", 2)
    monkeypatch.setattr(jobs, "_EVERY", 0.0)
    monkeypatch.setattr(formats, "BYTES", 300)
    pd.DataFrame({"score": SCORES}).to_csv("scores.csv", index=False)
    return partial(run_command, monkeypatch, capsys)


def work_of(out):
    """Return the folder in which an interrupted command left its work."""
    (work,) = (out / ".unfinished").glob("work-*")
    return work


def contents(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.name != "times.csv"}


def interrupted_after(monkeypatch, count, error=KeyboardInterrupt):
    """Let something happen after some passes."""
    real, left = jobs.replay_batch, [count]

    def replay(*given, **named):
        if not left[0]:
            raise error
        left[0] -= 1
        return real(*given, **named)

    monkeypatch.setattr(jobs, "replay_batch", replay)


LEARNERS = ["exact", "quantized:discount=0.9", "discounted-erm", "aci", "mvp"]


@pytest.mark.parametrize("learner", LEARNERS)
def test_replay_goes_on_to_the_same_bytes(run, monkeypatch, tmp_path, learner):
    words = ("replay", "scores.csv", "--learner", learner, "--no-certificate", "--no-report")
    assert run(*words, "--out", "whole")[0] == 0
    for count in (0, 1):
        with monkeypatch.context() as patch:
            interrupted_after(patch, count)
            code, _, err = run(*words, "--out", "cut", *(["--resume"] if count else []))
        assert code == 130
        again = f"stopped; go on with: dpconformal {shlex.join(words)} --out cut"
        assert again in err.replace("\n", " ")
        assert err.rstrip().endswith("--resume")
        assert [path.name for path in (tmp_path / "cut").iterdir()] == [".unfinished"]
    done, real = [], jobs.replay_batch
    monkeypatch.setattr(jobs, "replay_batch", lambda *given, **named: done.append(given) or real(*given, **named))
    assert run(*words, "--out", "cut", "--resume")[0] == 0
    recorded = Recorded("", [""], SCORES, np.array([SCORES.size]))
    assert len(done) == len(jobs.plan(done[0][0], recorded, 4)) - 1 > 0
    assert contents(tmp_path / "cut") == contents(tmp_path / "whole")


def test_in_passes_thresholds_are_those_of_one_replay(run):
    assert run("replay", "scores.csv", "--learner", "quantized:discount=0.9", "--levels", "0.5,0.9")[0] == 0
    found = pd.read_parquet("results/replay/thresholds.parquet").filter(like="threshold").to_numpy()
    want = dpc.replay(dpc.Quantized(256, discount=0.9), SCORES, [0.5, 0.9]).thresholds
    np.testing.assert_allclose(found, want, atol=1e-12)


def test_many_series_go_on_too(run, monkeypatch, tmp_path):
    rng = np.random.default_rng(0)
    names = rng.choice(["north", "south", "east"], SCORES.size, p=[0.6, 0.3, 0.1])
    pd.DataFrame({"store": names, "score": SCORES}).to_csv("stores.csv", index=False)
    monkeypatch.setattr(jobs, "NUMBERS", 600)
    words = ("replay", "stores.csv", "--batch", "store", "--learner", "quantized", "--levels", "0.5", "--format", "csv")
    assert run(*words, "--out", "whole")[0] == 0
    with monkeypatch.context() as patch:
        interrupted_after(patch, 3)
        assert run(*words, "--out", "cut")[0] == 130
    assert run(*words, "--out", "cut", "--resume")[0] == 0
    assert contents(tmp_path / "cut") == contents(tmp_path / "whole")
    table = pd.read_csv("cut/thresholds.csv")
    own = SCORES[names == "south"]
    np.testing.assert_array_equal(table[table.series == "south"].score, own)
    want = dpc.replay(dpc.Quantized(256), own, [0.5]).thresholds
    np.testing.assert_allclose(table[table.series == "south"][["threshold_0.5"]], want, atol=1e-12)


def test_compare_goes_on_to_the_same_bytes(run, monkeypatch, tmp_path):
    words = ("compare", "scores.csv", "--learners", "quantized,aci,erm", "--levels", "0.5,0.9")
    assert run(*words, "--out", "whole")[0] == 0
    with monkeypatch.context() as patch:
        interrupted_after(patch, 10)  # in the midst of the second learner
        assert run(*words, "--out", "cut")[0] == 130
    assert run(*words, "--out", "cut", "--resume")[0] == 0
    assert contents(tmp_path / "cut") == contents(tmp_path / "whole")
    assert list(pd.read_csv("cut/times.csv").learner) == ["quantized", "aci", "erm"]


def test_an_experiment_goes_on_to_the_same_bytes(run, monkeypatch, tmp_path):
    words = ("experiment", "drift", "--seeds", "2", "--rounds", "60", "--window", "20")
    assert run(*words, "--out", "whole")[0] == 0
    real, left = Journal.once, [5]

    def once(self, name, work, *given):
        if not left[0]:
            raise KeyboardInterrupt
        left[0] -= 1
        return real(self, name, work, *given)

    with monkeypatch.context() as patch:
        patch.setattr(Journal, "once", once)
        assert run(*words, "--out", "cut")[0] == 130
    kept = len(list((work_of(tmp_path / "cut") / "steps").iterdir()))
    assert kept == 5
    assert run(*words, "--out", "cut", "--resume")[0] == 0
    assert contents(tmp_path / "cut") == contents(tmp_path / "whole")


def test_standard_input_need_not_be_given_again(run, monkeypatch, tmp_path):
    import io

    def given(content):
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(content)))

    words = ("replay", "-", "--learner", "quantized", "--no-report")
    text = (tmp_path / "scores.csv").read_bytes()
    given(text)
    assert run(*words, "--out", "whole")[0] == 0
    given(text)
    with monkeypatch.context() as patch:
        interrupted_after(patch, 2)
        assert run(*words, "--out", "cut")[0] == 130
    given(b"")
    assert run(*words, "--out", "cut", "--resume")[0] == 0
    assert contents(tmp_path / "cut") == contents(tmp_path / "whole")


def test_what_has_changed_is_not_gone_on_with(run, monkeypatch, tmp_path):
    words = ["replay", "scores.csv", "--learner", "quantized", "--no-report"]
    with monkeypatch.context() as patch:
        interrupted_after(patch, 2)
        assert run(*words)[0] == 130
    for change, message in (
        (["--levels", "0.5"], "has --levels = [0.5, 0.8, 0.9, 0.95], and this one [0.5]"),
        (["--bins", "7"], "has --learner = Quantized(bins=256"),
        (["--discount", "0.9999999999"], "has --learner = "),
    ):
        code, _, err = run(*words, *change, "--resume")
        assert code == 2
        assert message in err.replace("\n", " ")
        assert "cannot be written to" not in err.replace("\n", " ")
    os.utime("scores.csv")
    code, _, err = run(*words, "--resume")
    assert code == 2
    assert "scores.csv is not what it was when the unfinished run began" in err.replace("\n", " ")
    assert (work_of(tmp_path / "results/replay") / "run/progress.dpc").exists()  # and nothing is lost
    code, _, err = run(*words)
    assert code == 0
    assert "starting anew" in err
    code, _, err = run(*words, "--resume")
    assert code == 0
    assert "nothing to go on with" in err


def test_one_process_at_a_time(run, tmp_path):
    fcntl = pytest.importorskip("fcntl")
    folder = tmp_path / "results/replay/.unfinished"
    folder.mkdir(parents=True)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        code, _, err = run("replay", "scores.csv")
    assert code == 2
    assert "is being written to by another process" in err.replace("\n", " ")
    assert folder.exists()


def test_bad_scores_leave_nothing_behind(run, tmp_path):
    (tmp_path / "bad.csv").write_text("score\n" + "0.5\n" * 300 + "7\n")
    code, _, err = run("replay", "bad.csv")
    assert code == 2
    assert "bad.csv, line 302, column 'score': score 7 lies outside [0, 1]" in err.replace("\n", " ")
    assert not (tmp_path / "results").exists()


def test_a_full_disk_leaves_the_last_good_checkpoint(run, monkeypatch, tmp_path):
    words = ("replay", "scores.csv", "--learner", "quantized", "--no-report")
    assert run(*words, "--out", "whole")[0] == 0
    with monkeypatch.context() as patch:
        interrupted_after(patch, 2, OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)))
        code, _, err = run(*words, "--out", "cut")
    assert code == 2
    message = err.replace("\n", " ")
    assert "cut cannot be written to: No space left on device" in message
    assert "What was done is kept: once there is room, go on with: dpconformal replay" in message
    assert run(*words, "--out", "cut", "--resume")[0] == 0
    assert contents(tmp_path / "cut") == contents(tmp_path / "whole")


@pytest.mark.slow
def test_killed_or_stopped_at_any_moment(tmp_path):
    scores = np.random.default_rng(1).random(100_000)
    np.save(tmp_path / "scores.npy", scores)
    # In the background of a shell without job control, Ctrl-C is ignored: it is not here.
    code = "import signal as s; s.signal(s.SIGINT, s.default_int_handler); from dpconformal.cli import main; main()"
    words = ["replay", "scores.npy", "--learner", "quantized", "--discount", "0.99", "--no-report", "--out"]

    def start(out, *more):
        command = [sys.executable, "-c", code, *words, out, *more]
        return subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)

    def wait(seconds, folder, pattern):
        """Until a file is there, or the command has had its time."""
        end = time.monotonic() + seconds
        while time.monotonic() < end and not any(folder.glob(pattern)):
            time.sleep(0.01)

    begun = time.monotonic()
    start("whole").communicate()
    whole = time.monotonic() - begun
    process = start("cut")
    wait(whole, tmp_path / "cut/.unfinished", "work-*/run/thresholds.f8")
    process.send_signal(signal.SIGINT)
    _, err = process.communicate()
    assert process.returncode == 130
    assert err.startswith("stopped; go on with: ")
    process = start("cut", "--resume")
    time.sleep(whole * 0.7)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    process = start("cut", "--resume")
    process.communicate()
    assert process.returncode == 0
    assert contents(tmp_path / "cut") == contents(tmp_path / "whole")


# --- What it stands on


@pytest.mark.parametrize("size", [1, 7, 50, 10_000])
def test_files_read_in_blocks_are_read_the_same(size, monkeypatch, tmp_path):
    rng = np.random.default_rng(8)
    names = rng.choice(['a,"b"', "two\nlines", "ü", " x "], 97)
    frame = pd.DataFrame({"store": names, "score": rng.random(97), "note": 'say "hi"\r\n'})
    frame.to_csv(tmp_path / "a.csv", index=False)
    frame.to_parquet(tmp_path / "a.parquet", row_group_size=10)
    np.save(tmp_path / "a.npy", frame["score"].to_numpy().reshape(1, -1).repeat(3, 0))
    monkeypatch.setattr(formats, "BYTES", size)
    monkeypatch.setattr(formats, "BATCH_ROWS", size)
    monkeypatch.setattr(formats, "ROWS", size)
    want = {name: frame["score"][names == name].to_numpy() for name in dict.fromkeys(names)}
    for number, file in enumerate(("a.csv", "a.parquet")):
        (tmp_path / str(number)).mkdir()
        source = open_scores(tmp_path / file, "score", "store")
        found = copy_to_disk(source, tmp_path / str(number), lambda source, block: None)
        assert found.names == list(want)
        for mine, wanted in zip(found.scores, want.values(), strict=True):
            np.testing.assert_array_equal(mine, wanted)
        blocks = list(source)
        for block in blocks[:3]:  # and from the end of any block on
            rest = [after.scores for after in source.blocks(block.after, block.row + block.scores.size)]
            read = np.concatenate([block.scores for block in blocks[: blocks.index(block) + 1]] + rest)
            np.testing.assert_array_equal(read, frame["score"])
    array = open_scores(tmp_path / "a.npy")
    assert [block.names[-1] for block in array][-1] == "2"
    blocks = list(array.blocks(0, 100))
    assert blocks[0].row == 100
    np.testing.assert_array_equal(np.concatenate([block.scores for block in blocks]), np.tile(frame["score"], 3)[100:])


def test_reading_goes_on_where_it_was(monkeypatch, tmp_path):
    module = sys.modules["dpconformal.files.reading"]
    pd.DataFrame({"score": SCORES}).to_csv(tmp_path / "scores.csv", index=False)
    monkeypatch.setattr(formats, "BYTES", 300)
    monkeypatch.setattr(module, "_EVERY", 0.0)
    source = open_scores(tmp_path / "scores.csv")
    seen = []

    def stops(source, block):
        seen.append(block.row)
        if len(seen) == 5:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        copy_to_disk(source, tmp_path, stops)
    found = copy_to_disk(source, tmp_path, stops)
    assert seen[5] == seen[4]  # none again but the one that was not done
    np.testing.assert_array_equal(found.scores[0], SCORES)
    assert not (tmp_path / "reading.dpc").exists()


def test_a_note_without_its_file_is_not_believed(monkeypatch, tmp_path):
    module = sys.modules["dpconformal.files.reading"]
    pd.DataFrame({"score": SCORES}).to_csv(tmp_path / "scores.csv", index=False)
    module.note(tmp_path / "reading.dpc", "reading", {"where": 100, "rows": 13}, {})
    found = copy_to_disk(open_scores(tmp_path / "scores.csv"), tmp_path, lambda source, block: None)
    np.testing.assert_array_equal(found.scores[0], SCORES)


def test_tallies_are_the_metrics(monkeypatch):
    monkeypatch.setattr(jobs, "BLOCK", 5)
    monkeypatch.setattr(sys.modules["dpconformal.metrics.summary"], "BLOCK", 37)
    scores, levels = SCORES.round(1), [0.9, 0.1, 0.5, 0.5]
    for learner in (dpc.Exact(), dpc.OGD([0.1, 0.5, 0.9]), dpc.SplitConformal()):
        run = dpc.replay(learner, scores, levels)
        found, want = tally(scores, np.asarray(run.thresholds), levels), dpc.metrics.summary(run)
        for measure in ("coverage", "mean_threshold", "loss", "regret", "longest_miss_run"):
            np.testing.assert_allclose(found[measure], want[measure], rtol=1e-10, atol=1e-12, err_msg=measure)
        assert found["crossing_rounds"] == dpc.metrics.crossings(run).rounds


def test_order_statistics_digit_by_digit(monkeypatch):
    monkeypatch.setattr(jobs, "BLOCK", 11)
    values = np.concatenate(
        [np.random.default_rng(0).standard_normal(300), [0.0, -0.0, 5e-324, -np.inf, np.inf, 1e308]]
    )
    values = np.append(values, values[:50])
    ranks = np.arange(1, values.size + 1)
    np.testing.assert_array_equal(order_statistics(values, ranks), np.sort(values))


def test_a_journal_keeps_steps_and_knows_its_work(tmp_path):
    calls = []

    def work(x):
        calls.append(x)
        return np.arange(x), np.float32(x)

    for _ in range(2):
        journal = Journal(tmp_path / "steps", {"seeds": (1, 2)})
        whole, single = journal.once("three", work, 3)
        np.testing.assert_array_equal(whole, [0, 1, 2])
        assert single == np.float32(3)
    assert calls == [3]
    with pytest.raises(ValueError, match=r"is a step of other work, .*: choose another folder"):
        Journal(tmp_path / "steps", {"seeds": 9}).once("three", work, 3)
    Journal(None, {}).once("three", work, 4)
    assert calls == [3, 4]


def test_a_damaged_checkpoint_is_refused_and_named(run, monkeypatch, tmp_path):
    words = ("replay", "scores.csv", "--learner", "quantized", "--no-report")
    with monkeypatch.context() as patch:
        interrupted_after(patch, 2)
        assert run(*words)[0] == 130
    file = work_of(tmp_path / "results/replay") / "run/progress.dpc"
    content = bytearray(file.read_bytes())
    content[60] ^= 1
    file.write_bytes(content)
    code, _, err = run(*words, "--resume")
    assert code == 2
    assert "progress.dpc is damaged: its checksum does not match" in err.replace("\n", " ")
    assert file.exists()  # what else is there may be worth a look
    job = tmp_path / "results/replay/.unfinished/job.json"
    whole = job.read_bytes()
    job.write_bytes(whole[:-3])
    for more in ((), ("--resume",)):  # which work is ours is not known any more, so nothing is deleted
        code, _, err = run(*words, *more)
        assert code == 2
        assert "job.json is damaged" in err.replace("\n", " ")
    assert file.exists()
    job.write_bytes(whole)
    assert run(*words)[0] == 0


def test_hyperparameters_are_compared_to_the_last_digit(run, monkeypatch, tmp_path):
    """A histogram that was learned from another file may print the same."""
    made = {
        "a": dpc.priors.Histogram([0, 0.5, 1], [0.3, 0.7]),
        "b": dpc.priors.Histogram([0, 0.5, 1], [0.3 + 1e-12, 0.7]),
    }
    assert repr(made["a"]) == repr(made["b"])
    words = ("replay", "scores.csv", "--learner", "quantized", "--no-report", "--prior")
    monkeypatch.setattr("dpconformal.cli.options.make_prior", lambda text, low, high: made[text])
    with monkeypatch.context() as patch:
        interrupted_after(patch, 2)
        assert run(*words, "a")[0] == 130
    code, _, err = run(*words, "b", "--resume")
    assert code == 2
    assert "has hyperparameters = " in err.replace("\n", " ")
    assert run(*words, "a", "--resume")[0] == 0


def test_scores_that_cannot_be_read_are_not_blamed_on_the_results(run, monkeypatch):
    real = Path.open

    def forbidden(path, *given, **named):
        if path.name == "scores.csv":
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), "scores.csv")
        return real(path, *given, **named)

    monkeypatch.setattr(Path, "open", forbidden)
    code, _, err = run("replay", "scores.csv")
    assert code == 2
    assert "scores.csv" in err
    assert "Permission denied" in err
    assert "cannot be written to" not in err.replace("\n", " ")


def test_the_job_is_told_apart_from_another_version(run, monkeypatch, tmp_path):
    with monkeypatch.context() as patch:
        interrupted_after(patch, 1)
        assert run("replay", "scores.csv", "--learner", "quantized")[0] == 130
    file = tmp_path / "results/replay/.unfinished/job.json"
    record = json.loads(file.read_text())
    file.write_text(json.dumps(record | {"job": record["job"] | {"jax": "0.0"}}))
    code, _, err = run("replay", "scores.csv", "--learner", "quantized", "--resume")
    assert code == 2
    assert "the unfinished run has jax = 0.0" in err.replace("\n", " ")
    assert jobs.resume_command().startswith("dpconformal replay")


def test_passes_cover_every_round_once():
    rng = np.random.default_rng(0)
    for count, longest in ((1, 300), (5, 40), (3, 1000)):
        lengths = [longest, *rng.integers(1, longest, count - 1)]
        recorded = Recorded("", [str(k) for k in range(count)], rng.random(sum(lengths)), np.array(lengths))
        for learner in (dpc.ERM(), dpc.Quantized(8)):
            rows = np.zeros(recorded.total, int)
            for found, _ in jobs.replay_passes(learner, recorded, [0.5], jobs.plan(learner, recorded, 1)):
                for row, some in found:
                    rows[row : row + len(some)] += 1
            assert (rows == 1).all()
