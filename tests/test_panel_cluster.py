"""Panels on real worker processes: the same results, also when a worker or the whole command is killed."""

import asyncio
import http.client
import os
import pathlib
import signal
import socket
import subprocess
import sys
import time
import types

import dask
import dask.array as da
import distributed
import numpy as np
import pandas as pd
import pytest
import xarray as xr
from commands import run_command
from distributed import Client, Security
from test_panel_files import COLUMNS, parquet, table

import dpconformal as dpc
from dpconformal.cli import panel as clusters
from dpconformal.cli import panel as command
from dpconformal.panel import long
from dpconformal.panel.storing import create_store, regions_of, write_regions

pytestmark = pytest.mark.xdist_group("cluster")
LEVELS = [0.5, 0.9]


@pytest.fixture(scope="module")
def own_cluster():
    """What --workers 2 starts: processes that ask for a certificate."""
    with clusters.local_cluster(2) as own:
        yield own


@pytest.fixture
def cluster(own_cluster):
    """The address of a cluster that exists; its certificate is where Dask looks for one."""
    security = own_cluster.security
    tls = {
        "distributed.comm.tls.ca-file": security.tls_ca_file,
        "distributed.comm.tls.client.cert": security.tls_client_cert,
        "distributed.comm.tls.client.key": security.tls_client_key,
    }
    with dask.config.set(tls):
        yield own_cluster.scheduler_address


@pytest.fixture
def client(own_cluster):
    """Everything that Dask computes meanwhile is computed by the workers."""
    with Client(own_cluster) as own:
        own.wait_for_workers(2)
        yield own


@pytest.fixture(autouse=True)
def small(monkeypatch):
    """Let even small panels have several chunks."""
    monkeypatch.setattr(long, "SMALLEST", 1)
    monkeypatch.setattr(long, "CHUNKS", 8)


@pytest.fixture
def run(monkeypatch, capsys, tmp_path):
    """Run the command in an empty folder: its code, what it printed, what it complained of."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "100")

    def words(*given):
        code, out, err = run_command(monkeypatch, capsys, "panel", *given)
        print(err)  # seen where a test fails
        return code, out, err

    return words


def scores(series=24, rounds=30):
    values = np.random.default_rng(2).random((series, rounds))
    return xr.DataArray(values, {"series": np.arange(series)}, ["series", "time"], name="score")


def expected(frame, learner=dpc.Exact(), levels=LEVELS):
    array = dpc.panel.from_long(frame, **COLUMNS)
    return array, dpc.replay_panel(array, learner, levels, dim="round", mask=array.isnull())


def assert_stored(stored, wanted):
    for name in wanted.data_vars:
        np.testing.assert_array_equal(stored[name].values, wanted[name].values)


def test_workers_give_what_one_process_gives(client):
    whole = dpc.replay_panel(scores(), dpc.Exact(), LEVELS)
    lazy = dpc.replay_panel(scores().chunk(series=3), dpc.Exact(), LEVELS)
    xr.testing.assert_identical(lazy.compute(), whole)
    pids = client.run(os.getpid)
    assert len(set(pids.values())) == 2
    assert os.getpid() not in pids.values()
    assert all(client.run(lambda: "dpconformal.panel" in sys.modules).values())
    stream = np.random.default_rng(1).random(1000)
    learner = dpc.Quantized(50, discount=0.99)
    state = dpc.fit_belief(da.from_array(stream, chunks=90), learner)
    sequential = dpc.replay(learner, stream, LEVELS).state
    np.testing.assert_allclose(learner.quantile(state, LEVELS), learner.quantile(sequential, LEVELS), atol=1e-12)
    spoilt = scores().copy()
    spoilt[7, 29] = np.nan
    with pytest.raises(ValueError, match="scores at series=7, time=29 is nan"):
        dpc.replay_panel(spoilt.chunk(series=3), dpc.Exact(), LEVELS).compute()


def test_a_worker_is_killed_in_the_middle(client, tmp_path):
    array, victim = scores(40), next(iter(client.run(os.getpid).values()))

    def fatal(block, block_info=None):
        if block_info[0]["chunk-location"][0] >= 10 and os.getpid() == victim:
            os.kill(victim, signal.SIGKILL)
        return block

    chunked = array.chunk(series=2)
    lazy = dpc.replay_panel(chunked.copy(data=chunked.data.map_blocks(fatal, dtype=float)), dpc.Exact(), LEVELS)
    create_store(lazy, tmp_path / "panel.zarr")
    regions = dict(enumerate(regions_of(lazy, ["series"])))
    done = []
    write_regions(lazy, tmp_path / "panel.zarr", regions, client, done.append)
    assert sorted(done) == list(range(20))
    client.wait_for_workers(2, timeout=60)
    assert victim not in client.run(os.getpid).values()
    assert_stored(xr.open_zarr(tmp_path / "panel.zarr"), dpc.replay_panel(array, dpc.Exact(), LEVELS))


class _Lost:
    """A task that no worker survives."""

    def __init__(self, error):
        self.error = error

    def result(self):
        raise self.error


@pytest.mark.parametrize(
    "error",
    [
        distributed.KilledWorker("replay", types.SimpleNamespace(address="tcp://a:1"), 3),
        distributed.CancelledError("replay"),
    ],
)
def test_workers_that_are_lost_again_and_again(error, tmp_path, monkeypatch):
    lazy = dpc.replay_panel(scores(4).chunk(series=2), dpc.Exact(), LEVELS)
    lost, cancelled = _Lost(error), []
    monkeypatch.setattr(distributed, "as_completed", lambda futures: futures)
    nobody = types.SimpleNamespace(compute=lambda tasks: [lost], cancel=cancelled.append)
    with pytest.raises(OSError, match=r"workers were lost, again and again.*enough memory"):
        write_regions(lazy, tmp_path / "panel.zarr", {0: {"series": slice(0, 2)}}, nobody, print)
    assert cancelled == [[lost]]


def test_a_worker_is_killed_while_a_stream_is_fitted(client):
    stream, learner = np.random.default_rng(1).random(4000), dpc.Quantized(50)
    pids = list(client.run(os.getpid).values())

    def fatal(block):
        if os.getpid() == pids[0]:
            os.kill(pids[0], signal.SIGKILL)
        return block

    state = dpc.fit_belief(da.from_array(stream, chunks=200).map_blocks(fatal, dtype=float), learner)
    sequential = dpc.replay(learner, stream, LEVELS).state
    np.testing.assert_array_equal(learner.quantile(state, LEVELS), learner.quantile(sequential, LEVELS))


@pytest.mark.parametrize("out", ["panel.zarr", "panel.nc", "tables"])
def test_the_command_on_a_cluster_that_exists(out, run, cluster, tmp_path):
    frame = table()
    parquet(frame, tmp_path / "scores")
    given = ["scores", "--id", "store", "--time", "day", "--score", "residual", "--levels", "0.5,0.9"]
    code, said, _ = run(*given, "--scheduler", cluster, "--out", out)
    assert code == 0
    assert "23 series of up to 12 rounds" in said
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([out, "scores"])
    array, wanted = expected(frame)
    if out == "tables":
        rows = pd.concat([pd.read_parquet(file) for file in sorted((tmp_path / out).glob("part-*"))], ignore_index=True)
        pd.testing.assert_frame_equal(rows, dpc.panel.to_long(wanted, array), check_dtype=False)
    else:
        assert_stored(xr.open_dataset(out, engine="zarr" if out.endswith("zarr") else "h5netcdf"), wanted)
    code, _, complaint = run(*given, "--scheduler", cluster, "--out", out)
    assert code == 2
    assert "exists: remove it" in complaint


def test_arrays_with_gaps_and_other_options(run, cluster, tmp_path):
    array = scores(10).where(lambda s: s.time + s.series < 30).assign_coords(week=("time", np.arange(30) // 7))
    array.to_dataset().to_zarr(tmp_path / "scores.zarr", zarr_format=2)
    given = ["scores.zarr", "--learner", "aci", "--levels", "0.9", "--keep", "summary", "--out", "out/panel.zarr"]
    code, _, complaint = run(*given, "--scheduler", cluster)
    assert code == 2
    assert "scores at series=" in complaint
    assert "is nan" in complaint
    assert not (tmp_path / "out").exists()
    code, _, _ = run(*given, "--missing", "--scheduler", cluster)
    assert code == 0
    wanted = dpc.replay_panel(array, dpc.ACI([0.9]), [0.9], mask=array.isnull(), keep="summary")
    stored = xr.open_zarr(tmp_path / "out/panel.zarr")
    assert_stored(stored, wanted)
    code, _, _ = run("scores.zarr", "--missing", "--scheduler", cluster)
    assert code == 0
    np.testing.assert_array_equal(xr.open_zarr(tmp_path / "panel.zarr").week, array.week)


@pytest.mark.parametrize("on_cluster", [True, False])
def test_an_interrupted_command_goes_on(on_cluster, run, cluster, tmp_path, monkeypatch):
    frame = table()
    parquet(frame, tmp_path / "scores")
    given = ["scores", "--id", "store", "--time", "day", "--score", "residual", "--levels", "0.5,0.9"]
    given += ["--scheduler", cluster] * on_cluster
    done, real = [], command.write_regions

    def noted(panel, path, regions, client, written):
        real(panel, path, regions, client, lambda number: (done.append((path.name, number)), written(number)))

    def stopped(panel, path, regions, client, written):
        def until(number):
            if path.name.startswith("panel") and len(done) == before + 3:
                raise KeyboardInterrupt
            written(number)

        noted(panel, path, regions, client, until)

    before = 8  # chunks of the table, which are read first
    monkeypatch.setattr(command, "write_regions", stopped)
    code, _, complaint = run(*given)
    assert code == 130
    assert "--resume" in complaint
    assert not (tmp_path / "panel.zarr").exists()
    monkeypatch.setattr(command, "write_regions", noted)
    code, _, complaint = run(*given, "--learner", "erm", "--resume")
    assert code == 2
    assert "the unfinished run has --learner" in complaint
    first, done[:] = {number for name, number in done[:-1] if name.startswith("panel")}, []
    code, _, _ = run(*given, "--resume")
    assert code == 0
    assert all(name.startswith("panel") for name, _ in done)  # nothing was read again
    assert {number for _, number in done} == set(range(8)) - first
    assert_stored(xr.open_zarr(tmp_path / "panel.zarr"), expected(frame)[1])


@pytest.mark.slow
@pytest.mark.parametrize("workers", [[], ["--workers", "2"]])
def test_a_killed_command_goes_on(workers, tmp_path):
    frame = table(64, 400)
    parquet(frame, tmp_path / "scores")
    words = [sys.executable, "-m", "dpconformal", "panel", "scores", "--id", "store", "--time", "day"]
    words += ["--score", "residual", "--levels", "0.5,0.9", *workers]
    quiet = {"cwd": tmp_path, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    started = subprocess.Popen(words, **quiet)
    work, deadline = tmp_path / ".panel.zarr/.unfinished", time.monotonic() + 120
    while not any(notes.read_text() for notes in work.glob("work-*/panel-*.done")) and started.poll() is None:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    started.kill()
    assert started.wait() == -signal.SIGKILL
    assert not (tmp_path / "panel.zarr").exists()
    subprocess.run([*words, "--resume"], check=True, timeout=240, **quiet)
    assert_stored(xr.open_zarr(tmp_path / "panel.zarr"), expected(frame)[1])
    assert not work.exists()


def test_what_the_command_refuses(run, tmp_path, monkeypatch):
    monkeypatch.setattr(clusters, "SECONDS", 1)
    parquet(table(5), tmp_path / "scores")
    for words, message in {
        ("nothing",): "nothing does not exist",
        ("scores", "--workers", 0): "--workers 0: at least 1",
        ("scores", "--workers", 1, "--scheduler", "tcp://127.0.0.1:9"): "--workers 1 means nothing beside --scheduler",
        ("scores", "--scheduler", "tcp://127.0.0.1:9"): "no scheduler with a worker answers within 1 s",
        ("scores", "--keep", "some"): "--keep some: write all or summary",
        ("scores", "--learner", "erm,exact"): "--learner erm,exact: one at a time",
        ("scores", "--keep", "summary", "--out", "tables"): "a folder of Parquet tables is for thresholds",
        ("scores", "--out", "scores"): "exists: remove it",
        ("scores", "--out", "panel.csv"): "write .zarr, .nc, or a folder without a suffix",
        ("scores", "--missing"): "a score that is missing has no row",
    }.items():
        code, _, complaint = run(*words)
        assert code == 2
        assert message in complaint.replace("\n", " ")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["scores"]


def test_dask_goes_back_to_what_it_was(cluster):
    with clusters.cluster(cluster, None) as client:
        assert dask.base.get_scheduler() == client.get
    with clusters.cluster(None, None) as client:
        assert client is None
        assert dask.base.get_scheduler() == dask.threaded.get
    assert dask.base.get_scheduler() is None


def test_without_a_cluster_no_port_is_opened(run, tmp_path, monkeypatch):
    """A port of Dask's on the loopback lets every user of the machine run code as this one."""
    parquet(table(), tmp_path / "scores")

    def listen(self, *_):
        raise AssertionError(f"something listens at {self.getsockname()}")

    monkeypatch.setattr(socket.socket, "listen", listen)
    for words in (["--out", "panel.zarr"], ["--out", "tables", "--learner", "erm"]):
        assert run("scores", "--id", "store", "--time", "day", "--score", "residual", *words)[0] == 0


@pytest.mark.parametrize("stranger", ["tcp", "tls"])
def test_workers_are_for_whom_they_were_started(stranger, own_cluster):
    """Neither without a certificate nor with one of one's own: who is let in can run code."""
    address = own_cluster.scheduler_address
    assert address.startswith("tls://127.0.0.1:")
    known = [worker["nanny"] for worker in own_cluster.scheduler_info["workers"].values()]
    known += list(own_cluster.scheduler_info["workers"])
    security = Security.temporary() if stranger == "tls" else None
    for each in (own_cluster.scheduler_address, *known):
        at = each.replace("tls", stranger)
        with pytest.raises(OSError, match=r"Timed out|closed|certificate|before comm was established"):
            Client(at, security=security, timeout=2)
        with pytest.raises(OSError, match=r"Timed out|closed|certificate|before comm was established"):
            asyncio.run(identity(at, security))


async def identity(address, security):
    """Ask a scheduler, a worker or a nanny who it is."""
    arguments = {} if security is None else security.get_connection_args("client")
    async with distributed.core.rpc(address, connection_args=arguments, timeout=2) as remote:
        return await remote.identity()


def test_who_has_the_certificate_is_let_in(own_cluster):
    """Or the test before this one would hold for addresses where nobody is."""
    workers = own_cluster.scheduler_info["workers"]
    for address in (own_cluster.scheduler_address, *workers, *(one["nanny"] for one in workers.values())):
        assert "id" in asyncio.run(identity(address, own_cluster.security))


def test_what_workers_unpickle_is_in_a_folder_of_this_user_alone(client):
    def modes(dask_worker):
        place = pathlib.Path(dask_worker.local_directory)
        return place.parent.parent.stat().st_mode & 0o777

    assert set(client.run(modes).values()) == {0o700}


def test_the_pages_of_dask_are_not_there(own_cluster):
    """They tell what is computed, and lead on to other addresses of the machine."""
    for path in ("/status", "/info/main/workers.html", "/proxy/80/127.0.0.1/"):
        asked = http.client.HTTPConnection("127.0.0.1", own_cluster.scheduler.http_server.port, timeout=5)
        asked.request("GET", path)
        assert asked.getresponse().status == 404
        asked.close()


def test_workers_need_what_makes_certificates(run, tmp_path, monkeypatch):
    parquet(table(5), tmp_path / "scores")
    monkeypatch.setitem(sys.modules, "cryptography", None)
    code, _, complaint = run("scores", "--workers", 1)
    assert code == 2
    assert "--workers needs the package cryptography" in complaint
