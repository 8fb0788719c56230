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
plt.close(figure)

(HERE.parent / "learners.md").write_text(dpc.learners().markdown())

GRID = [0.5, 0.9]
METHODS = {
    "Exact": dpc.Exact(),
    "Quantized": dpc.Quantized(bins=50, discount=0.98),
    "ERM": dpc.ERM(),
    "SlidingERM": dpc.SlidingERM(window=50),
    "DiscountedERM": dpc.DiscountedERM(0.98),
    "SplitConformal": dpc.SplitConformal(),
    "NExCP": dpc.NExCP(0.98),
    "OGD": dpc.OGD(GRID),
    "SFOGD": dpc.SFOGD(GRID),
    "SAOCP": dpc.SAOCP(GRID),
    "ACI": dpc.ACI(GRID, rate=0.02, window=100),
    "DtACI": dpc.DtACI(GRID),
    "AgACI": dpc.AgACI(GRID),
    "PID": dpc.PID(GRID, window=100),
    "MVP": dpc.MVP(GRID),
}
for name, learner in METHODS.items():
    figure = dpc.plots.behaviour(learner)
    figure.savefig(HERE / f"behaviour_{name}.png", dpi=90)
    plt.close(figure)

for name, experiment in dpc.experiments.EXPERIMENTS.items():
    data = experiment.run()
    assert data.attrs["certified"], name
    figure = dpc.experiments.plot(data)
    figure.savefig(HERE / f"experiment_{name}.png", dpi=110)
    plt.close(figure)
    print(dpc.experiments.table(data).to_string())
