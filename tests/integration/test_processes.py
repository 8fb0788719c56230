"""What threads and processes may share, and what they are told where they may not."""

import copy
import pickle
import re
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

import dpconformal as dpc

ROOT = Path(__file__).parents[2]

FORKS = """
import os, signal, sys, warnings
import numpy as np
import dpconformal as dpc

warnings.simplefilter("ignore")  # JAX warns of a fork, and lets it hang


def in_child(work):
    read, write = os.pipe()
    pid = os.fork()
    if not pid:
        signal.alarm(60)  # which ends a child that hangs
        try:
            work()
            said = "ran"
        except BaseException as error:
            said = f"{type(error).__name__}: {error}"
        os.write(write, said.encode())
        os._exit(0)
    os.waitpid(pid, 0)
    os.close(write)
    return os.read(read, 1000).decode() or "hung"


learner, scores = dpc.Exact(), np.linspace(0, 1, 8)
try:
    dpc.priors.Uniform(1.0, 0.0)  # refused before JAX has run
except ValueError:
    pass
print(in_child(lambda: dpc.replay(learner, scores, [0.9])))
run = dpc.replay(learner, scores, [0.9])
mvp, saocp, live = dpc.MVP([0.5]), dpc.SAOCP([0.5]), dpc.Online(learner, dpc.scores.Absolute())
mvp_state, saocp_state = mvp.init(), saocp.init()
for work in (
    lambda: dpc.replay(learner, scores, [0.9]),
    lambda: learner.observe(run.state, 0.5),
    lambda: learner.quantile(run.state, [0.5]),
    lambda: mvp.observe(mvp_state, 0.5),
    lambda: mvp.quantile(mvp_state, [0.5]),
    lambda: saocp.observe(saocp_state, 0.5),
    lambda: live.update(0.5, 0.25),
    lambda: live.predict_set(0.5, [0.9]),
    lambda: dpc.dirichlet.Posterior(dpc.priors.Uniform(0.0, 1.0), 1.0, scores),
    lambda: dpc.metrics.summary(run),
    lambda: in_child(lambda: 0) and learner.observe(run.state, 0.5),
):
    print(in_child(work))
"""


def test_forks_work_before_jax_has_run_and_are_refused_after(tmp_path):
    """Would find a child that waits forever, by any entry; and one that is refused although nothing had run."""
    script = tmp_path / "forks.py"
    script.write_text(FORKS)
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=300, cwd=ROOT)
    before, *after = done.stdout.splitlines()
    assert before == "ran", done.stderr
    assert len(after) == 11, done.stderr
    for said in after:
        assert said.startswith("RuntimeError: this process was forked from one in which JAX had run"), said
        assert "get_context('spawn')" in said


def test_the_example_of_processes_runs(tmp_path):
    """The page is true: a parent that has used JAX starts processes that do, too."""
    (example,) = re.findall(
        r"```python\n(import multiprocessing\n.*?)```", (ROOT / "docs/reliability.md").read_text(), re.S
    )
    (tmp_path / "example.py").write_text(example)
    done = subprocess.run(
        [sys.executable, tmp_path / "example.py"], capture_output=True, text=True, timeout=300, cwd=ROOT
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["0.9", "0.9"], done.stdout


@pytest.mark.parametrize(("threads", "updates"), [(8, 50)])
def test_threads_that_share_a_live_loop_lose_no_observation(threads, updates):
    """Would find that of two threads that read the same state one writes over what the other has learned."""
    live = dpc.Online(dpc.Exact(), dpc.scores.Absolute())
    switch, start = sys.getswitchinterval(), time.perf_counter()
    labels = np.random.default_rng(0).random((threads, updates))

    def tell(thread):
        for k, y in enumerate(labels[thread]):
            live.update(0.0, y)
            if k % 10 == 0:
                live.predict_set(0.0, [0.5])
                copy.copy(live), pickle.dumps(live.state)

    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(threads) as pool:
            list(pool.map(tell, range(threads)))
    finally:
        sys.setswitchinterval(switch)
    print(f"{threads} threads, {threads * updates:,} updates: {time.perf_counter() - start:.1f} s")
    assert live.rounds == threads * updates == int(live.state[0].seen)
    np.testing.assert_allclose(  # the order is anyone's, and a belief does not know it
        live.thresholds([0.1, 0.5, 0.9]), np.asarray(_told(labels.ravel()).thresholds([0.1, 0.5, 0.9])), rtol=1e-6
    )


def _told(labels):
    state = dpc.replay(dpc.Exact(), labels, [0.5]).state
    return dpc.Online(dpc.Exact(), dpc.scores.Absolute(), state=(state,))


def test_a_copy_of_a_live_loop_has_a_lock_of_its_own():
    """Would find a lock that cannot be copied or pickled, or that two loops wait for."""
    live = dpc.Online(dpc.Exact(), dpc.scores.Absolute())
    for other in (copy.copy(live), copy.deepcopy(live), pickle.loads(pickle.dumps(live))):
        with live._lock:
            teller = threading.Thread(target=other.update, args=(0.0, 0.5))
            teller.start()
            teller.join(30)
            assert not teller.is_alive()
        assert (other.rounds, live.rounds) == (1, 0)
