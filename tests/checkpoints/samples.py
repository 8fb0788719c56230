"""
What the stored checkpoints hold. None is ever written again: they show that a format goes on being read. New ones join.

    python tests/checkpoints/samples.py tests/checkpoints/format_1
"""

import json
import pathlib
import sys

import jax
import numpy as np
import numpyro.distributions as dist

import dpconformal as dpc
from dpconformal import priors, rates, schedules

LEVELS = [0.1, 0.5, 0.9]
GRID = np.array([0.1, 0.5, 0.9])
MIXED = priors.Mixture([priors.Beta(2, 5), priors.Uniform(), priors.TruncatedNormal(0.3, 0.2)], [0.6, 0.3, 0.1])
SAMPLES = {
    "Exact": dpc.Exact(),
    "Exact_discounted": dpc.Exact(priors.Beta(2, 5), schedules.Constant(0.25), discount=0.9, capacity=30),
    "Exact_half_line": dpc.Exact(priors.HalfCauchy(0.5), schedules.Dirichlet(3.0)),
    "Exact_half_normal": dpc.Exact(priors.HalfNormal(0.5)),
    "Exact_exponential": dpc.Exact(priors.Exponential(0.5), schedules.InverseSqrt()),
    "Exact_log_normal": dpc.Exact(priors.LogNormal(-1.0, 0.5)),
    "Exact_histogram": dpc.Exact(priors.Histogram([0.0, 0.1, 0.35, 1.0], [3.0, 1.0, 0.7])),
    "Exact_numpyro": dpc.Exact(priors.from_numpyro(dist.TruncatedNormal(0.2, 0.4, low=0.0, high=1.0))),
    # Written before there was a choice of rounding.
    "Quantized": dpc.Quantized(16, rounding="nearest"),
    "Quantized_discounted": dpc.Quantized(16, MIXED, discount=0.9, rounding="nearest"),
    "Aggregate": dpc.Aggregate(
        [
            dpc.Quantized(16, rounding="nearest"),
            dpc.Exact(),
            dpc.Quantized(16, discount=0.9, rounding="nearest"),
        ],
        0.01,
    ),
    "Hierarchical": dpc.Hierarchical({"north": ["a", "b"], "south": ["c"]}, concentrations=5.0),
    "Hierarchical_bins": dpc.Hierarchical(3, concentrations=2.0, bins=16, rounding="nearest"),
    "ERM": dpc.ERM(),
    "SplitConformal": dpc.SplitConformal(-np.inf, np.inf),
    "SlidingERM": dpc.SlidingERM(8),
    "DiscountedERM": dpc.DiscountedERM(0.9),
    "NExCP": dpc.NExCP(0.9),
    "OGD": dpc.OGD(GRID, rate=rates.Power(0.5, 0.25)),
    "SFOGD": dpc.SFOGD(GRID),
    "SAOCP": dpc.SAOCP(GRID, lifetime=4),
    "ACI": dpc.ACI(GRID, window=8),
    "DtACI": dpc.DtACI(GRID, window=8),
    "AgACI": dpc.AgACI(GRID, window=8),
    "PID_2": dpc.PID(GRID, window=8),
    "MultiOGD": dpc.MultiOGD(np.linspace(0, 1, 5)),
    "MultiMVP": dpc.MultiMVP(np.linspace(0, 1, 5), buckets=10, seed=7),
    "MVP": dpc.MVP(GRID, buckets=10, seed=7),
    "Credible": dpc.Credible(dpc.Exact(schedule=schedules.Dirichlet(2.0)), 0.9),
    "Corrected": dpc.Corrected(dpc.Quantized(16, rounding="nearest")),
    "Exact_batch": dpc.Exact(),
    "Quantized_up": dpc.Quantized(16),
    "Recalibrated": dpc.Recalibrated(dpc.Exact(discount=0.9), dpc.Quantized(16)),
    "Rearranged": dpc.Rearranged(dpc.OGD(GRID)),
    "Hierarchical_up_bins": dpc.Hierarchical(3, concentrations=2.0, bins=16),
}


def scores(name):
    """Twenty scores, or two sequences of them."""
    shape = (2, 20) if name.endswith("batch") else 20
    return np.random.default_rng(5).beta(2, 4, shape)


def told(name):
    """Groups of the twenty scores, for what has groups; for others nothing."""
    if not name.startswith("Hierarchical"):
        return None
    groups = np.arange(20) ** 2 % 3
    return groups if name.endswith("bins") else np.array(["a", "b", "c"])[groups]


def main(folder):
    """Write every sample that is not there yet, and what each one answers afterwards."""
    kept = folder / "answers.json"
    answers = json.loads(kept.read_text()) if kept.exists() else {}
    for name, learner in SAMPLES.items():
        if name in answers:
            continue
        run = dpc.replay(learner, scores(name), LEVELS, context=told(name))
        dpc.save(folder / f"{name}.dpc", learner, run.state)
        again = dpc.replay(learner, scores(name)[..., ::-1], LEVELS, state=run.state, context=told(name))
        answers[name] = np.asarray(again.thresholds).tolist()
    kept.write_text(json.dumps(answers) + "\n")


if __name__ == "__main__":
    jax.config.update("jax_enable_x64", True)
    target = pathlib.Path(sys.argv[1])
    target.mkdir(exist_ok=True)
    main(target)
