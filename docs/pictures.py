"""Draw the pictures of README and docs: `make pictures`."""

import pathlib

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt

import dpconformal as dpc
from dpconformal.demo import LEVELS, simulated_scores

HERE = pathlib.Path(__file__).parent / "images"
HERE.mkdir(exist_ok=True)

scores = simulated_scores(6500)
prior = dpc.priors.Histogram.from_scores(scores[:500], bins=20, smoothing=25)
run = dpc.replay(dpc.Quantized(bins=256, prior=prior, discount=0.99), scores[500:], LEVELS)
figure, (left, right) = plt.subplots(1, 2, figsize=(12, 3.8), layout="constrained")
dpc.plots.thresholds(run, left)
dpc.plots.coverage(run, 500, right)
right.set_ylim(0.35, 1.02)
figure.get_layout_engine().set(w_pad=0.15)
figure.savefig(HERE / "thresholds.png", dpi=110)
