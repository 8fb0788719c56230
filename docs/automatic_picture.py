"""Draw the picture of the page on the automatic mixture: part of `make pictures`."""

import pathlib

import jax
import jax.numpy as jnp
import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np

import dpconformal as dpc
from dpconformal.display import FAINT, INK, OURS, panels

HERE = pathlib.Path(__file__).parent / "images"
PART, LEVEL = 800, 0.9
ROUNDS = 3 * PART

calm = dpc.streams.iid(2 * PART)
scores = np.concatenate([calm[:PART], dpc.streams.seasonal(PART), calm[PART:]])
mixture = dpc.auto()


@jax.jit
def weights_by_round(state, scores):
    """Weights of the memories before each round, (T, N)."""

    def play(state, score):
        return mixture.observe(state, score), mixture.weights(state)

    return jax.lax.scan(play, state, scores)[1]


weights = np.asarray(weights_by_round(mixture.init(), jnp.asarray(scores)))
discounts = [None if one.discount is None else float(one.discount) for one in mixture.learners]
endless = [k for k, discount in enumerate(discounts) if discount is None]
shares = {f"{1 / (1 - d):.0f}": weights[:, k] for k, d in enumerate(discounts) if d is not None}
shares["all"] = weights[:, endless].sum(axis=1)

figure, axes = panels(2, 1, 9.2, 6.0, sharex=True)
time = np.arange(1, ROUNDS + 1)
top, below = axes[:, 0]
top.plot(time, scores, ".", color=FAINT, markersize=2.2, label="score")
lines = {
    "Quantized(256)": (dpc.Quantized(256), {"color": INK, "linewidth": 1.0, "linestyle": "--"}),
    "Quantized(256, discount=0.99)": (dpc.Quantized(256, discount=0.99), {"color": "#1d6fb8", "linewidth": 1.1}),
    "auto()": (mixture, {"color": OURS, "linewidth": 1.5}),
}
for name, (learner, style) in lines.items():
    top.plot(time, dpc.replay(learner, scores, [LEVEL]).thresholds[:, 0], label=name, **style)
top.set(
    ylabel="score",
    title=f"Thresholds of level {LEVEL:g}: iid scores, then a season of 250 rounds, then iid scores again",
    ylim=(0, 1.12),
)
top.legend(loc="upper left", ncols=4, frameon=False, fontsize=8.5)
image = below.imshow(
    np.maximum(np.stack(list(shares.values())), 0.01),
    aspect="auto",
    origin="lower",
    interpolation="nearest",
    cmap="Oranges",
    norm=matplotlib.colors.LogNorm(0.01, 1),
    extent=(0.5, ROUNDS + 0.5, -0.5, len(shares) - 0.5),
)
below.set_yticks(range(len(shares)), list(shares), fontsize=8.5)
below.set(xlabel="round", ylabel="memory, in rounds", title="Weights of the memories, means over the support")
bar = figure.colorbar(image, ax=below, location="right", pad=0.01, aspect=18)
bar.set_ticks([0.01, 0.1, 1], labels=["1 % or less", "10 %", "100 %"])
bar.ax.tick_params(which="both", length=0)
bar.outline.set_edgecolor(FAINT)
for ax in (top, below):
    for change in (PART, 2 * PART):
        ax.axvline(change + 0.5, color=INK, linewidth=0.8, linestyle=":")
figure.savefig(HERE / "automatic.png", dpi=110)
plt.close(figure)
