"""Draw the pictures of the page on exchangeability: part of `make pictures`."""

import pathlib

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np

import dpconformal as dpc
from dpconformal import martingales
from dpconformal.display import FAINT, INK, OURS, panels

HERE = pathlib.Path(__file__).parent / "images"
GAMBLERS = {
    "Composite()": martingales.Composite(),
    "Composite(spread=False)": martingales.Composite(spread=False),
    "Mixture()": martingales.Mixture(),
}

rng = np.random.default_rng(0)
same = rng.normal(size=1000)
streams = {
    "iid scores": same,
    "a shift by 0.5 in round 500": same + 0.5 * (np.arange(1000) >= 500),
    "a spread of 1.5 since round 500": same * np.where(np.arange(1000) >= 500, 1.5, 1),
}
figure, axes = panels(1, 3, 11.4, 3.7, sharey=True)
for ax, (name, scores) in zip(axes[0], streams.items(), strict=True):
    found = {gambler: martingales.exchangeability(scores, own) for gambler, own in GAMBLERS.items()}
    dpc.diagnostics.plot_martingale(found, ax=ax)
    ax.set_title(name, fontsize=10)
    ax.set_ylim(-3, 10)
    if ax is not axes[0, 0]:
        ax.get_legend().remove()
        ax.set_ylabel("")
figure.savefig(HERE / "martingale.png", dpi=110)
plt.close(figure)

parts = [rng.beta(2, 5, 400), rng.beta(4, 4, 400), rng.beta(16, 16, 400), rng.beta(2, 5, 400)]
scores, threshold = np.concatenate(parts), 10_000.0
seen = martingales.watch(martingales.ChangeAlarm(threshold=threshold), scores)
rounds = np.flatnonzero(seen.alarm) + 1
print("alarms in rounds", rounds)
figure, axes = panels(2, 1, 8.6, 4.4, sharex=True)
time = np.arange(1, scores.size + 1)
axes[0, 0].plot(time, scores, ".", color=FAINT, markersize=2.5)
axes[0, 0].set_ylabel("score")
axes[1, 0].plot(time, np.asarray(seen.log_statistic) / np.log(10), color=OURS, linewidth=1.2)
axes[1, 0].axhline(np.log10(threshold), color=INK, linewidth=0.9, linestyle="--")
axes[1, 0].set(xlabel="round", ylabel="log10 of the statistic", xlim=(0, scores.size))
for ax in axes[:, 0]:
    for i, change in enumerate((400, 800, 1200)):
        ax.axvline(change, color=FAINT, linewidth=1, linestyle=":", label=None if i else "change")
    for i, when in enumerate(rounds):
        ax.axvline(when, color=OURS, linewidth=1, label=None if i else "alarm")
handles, labels = axes[0, 0].get_legend_handles_labels()
figure.legend(handles, labels, loc="outside upper right", ncols=2, frameon=False, fontsize=9)
figure.savefig(HERE / "change_alarm.png", dpi=110)
plt.close(figure)
