"""Draw the pictures of README and docs: `make pictures`."""

import pathlib

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np

import dpconformal as dpc
from dpconformal.cli import demo
from dpconformal.cli.compare import draw_comparison, measure_runs
from dpconformal.cli.options import Settings, make_learners
from dpconformal.files import Recorded

HERE = pathlib.Path(__file__).parent / "images"
HERE.mkdir(exist_ok=True)

stream = demo.market()
learner = dpc.Exact(dpc.priors.HalfNormal(1.0), discount=0.99)
figure = demo.draw(
    dpc.conformalize(learner, dpc.scores.Normalized(), stream.predictions, stream.returns, demo.LEVELS), stream
)
figure.savefig(HERE / "sets.png", dpi=110)
plt.close(figure)

asked = "exact,exact:discount=0.99,quantized,erm,ogd,aci,mvp,saocp"
drifting = dpc.streams.drifting(6000)
runs = {
    name: np.asarray(dpc.replay(learner, drifting, demo.LEVELS).thresholds)
    for name, learner in make_learners(asked, demo.LEVELS, Settings()).items()
}
recorded = Recorded("drifting", [""], np.asarray(drifting), np.array([len(drifting)]))
levels = list(demo.LEVELS)
figure = draw_comparison(runs, recorded, measure_runs(runs, recorded, levels), levels, 0.9)
figure.savefig(HERE / "compare_command.png", dpi=90)
plt.close(figure)

(HERE.parent / "learners.md").write_text(dpc.learners().markdown())

GRID = [0.5, 0.9]
METHODS = {
    "Exact": dpc.Exact(),
    "Quantized": dpc.Quantized(bins=50, discount=0.98),
    "Aggregate": dpc.auto(),
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
