"""The paper's stock experiment: published coverage of three methods on AMD, 2000 to 2020."""

import csv
import pathlib
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import dpconformal as dpc

PRICES = pathlib.Path(__file__).parents[2] / "shared" / "data" / "AMD.csv"


@pytest.mark.slow
@pytest.mark.skipif(not PRICES.exists(), reason=f"{PRICES} is not there")
def test_published_coverage_is_reproduced(tmp_path):
    rows = list(csv.reader(PRICES.read_text().splitlines(), skipinitialspace=True))[1:]
    dates = [row[0] for row in rows]
    # Newest first; the published figures leave out the first day itself.
    prices = np.array([float(row[1]) for row in rows])[dates.index("12/31/20") : dates.index("01/03/00")][::-1]
    np.save(tmp_path / "prices.npy", prices)
    script = pathlib.Path(__file__).with_name("garch.py")  # five thousand fits, which coverage would slow down
    subprocess.run([sys.executable, script, tmp_path / "prices.npy", tmp_path / "scores.npy"], check=True)
    scores = np.load(tmp_path / "scores.npy")
    rounds = scores.size
    assert rounds == 5283

    def coverage(learner):
        return float(np.mean(scores <= dpc.replay(learner, scores, [0.9]).thresholds[:, 0]))

    assert round(coverage(dpc.ACI(levels=[0.9], rate=0.005, window=100)), 3) == 0.901
    assert round(coverage(dpc.Quantized(bins=40, discount=np.sqrt(0.99))), 3) == 0.899
    eta = np.sqrt(np.log(80) / rounds)

    def multivalid(seed):
        learner = dpc.MVP(levels=[0.9], buckets=40, eta=eta, normalize=False, seed=seed)
        return jnp.mean(scores <= dpc.replay(learner, scores, [0.9]).thresholds[:, 0])

    assert abs(float(np.mean(jax.vmap(multivalid)(jnp.arange(20)))) - 0.893) < 0.003
