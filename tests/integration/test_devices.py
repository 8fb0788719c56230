"""Batches over several devices: how they are divided, and a process that has eight."""

import os
import pathlib
import subprocess
import sys

import jax
import numpy as np
import pytest

import dpconformal as dpc
from dpconformal.engine import scan


@pytest.mark.parametrize(
    ("batch", "count", "parts"),
    [((16,), 8, (8,)), ((2, 8), 8, (2, 4)), ((3, 8), 8, (1, 8)), ((6, 4), 8, (2, 4)), ((13,), 8, None), ((), 1, None)],
)
def test_division(batch, count, parts):
    assert scan.split_axes(batch, count) == parts


def test_one_device_decides_nothing():
    if len(jax.local_devices()) > 1:
        pytest.skip("there are several")
    scores = jax.device_put(np.full((4, 3), 0.5), jax.local_devices()[0])
    assert scan.placement(scores) is None
    assert scan.layout_of(scores) is None
    run = dpc.replay(dpc.OGD([0.5]), scores, [0.5])
    assert not run.thresholds.committed


def test_eight_devices():
    """Pretend to have eight, which is possible in a new process only."""
    flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count=8"
    environment = os.environ | {"XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu"}
    path = pathlib.Path(__file__).with_name("eight_devices.py")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", str(path)]
    done = subprocess.run(command, env=environment, cwd=path.parents[2], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
