"""The picture of the benchmark of methods: a heat map of losses, with crossings marked."""

import numpy as np
from matplotlib.colors import LogNorm
from method_tables import by_cell, relative

from dpconformal.display import FAINT, INK, OURS, pyplot

_LEAST, _MOST = 1.0, 100.0  # per cent: the ends of the colours


def draw(table, ours, path):
    """Draw by how much the loss of each method exceeds the best on each stream; ours on top."""
    above, crossings = relative(table), by_cell(table, "crossings")
    order = [*(name for name in above.index if name in ours), *(name for name in above.index if name not in ours)]
    above, crossings = above.loc[order], crossings.loc[order]
    rows, columns = above.shape
    plt = pyplot()
    figure, ax = plt.subplots(figsize=(1.5 + 0.56 * columns, 1.9 + 0.3 * rows), layout="constrained")
    image = ax.imshow(
        np.clip(above, _LEAST, _MOST), norm=LogNorm(_LEAST, _MOST), cmap="YlGnBu", aspect="auto", interpolation="none"
    )
    for row, column in np.ndindex(rows, columns):
        value, share = above.iat[row, column], crossings.iat[row, column]
        ink = "white" if value > 14 else INK
        text = f"{value:.0f}" if value < 9999.5 else f"{value / 1000:.0f}k"
        weight = "bold" if value == 0 else "normal"
        ax.text(column, row, text, ha="center", va="center", fontsize=7.5, color=ink, weight=weight)
        if share > 0:
            ax.scatter(column + 0.38, row - 0.27, s=4 + 22 * share, color=OURS, edgecolors="white", linewidths=0.5)
    ax.axhline(sum(name in ours for name in order) - 0.5, color="white", linewidth=5)
    ax.set_xticks(range(columns), above.columns, rotation=40, ha="left", rotation_mode="anchor", fontsize=8.5)
    ax.set_yticks(range(rows), order, fontsize=8.5)
    for label in ax.get_yticklabels():
        label.set(color=OURS if label.get_text() in ours else INK)
    ax.xaxis.tick_top()
    ax.tick_params(length=0)
    ax.spines[:].set_visible(False)
    bar = figure.colorbar(image, ax=ax, location="bottom", pad=0.01, aspect=60, shrink=0.5, ticks=[1, 3, 10, 30, 100])
    bar.ax.set_xticklabels(["1 % or less", "3 %", "10 %", "30 %", "100 % or more"], fontsize=8)
    bar.ax.tick_params(which="both", length=0)
    bar.outline.set_edgecolor(FAINT)
    figure.suptitle(
        "Quantile loss, per cent above the best method of the stream (bold 0); mean over seven levels, 0.5 to 0.99\n"
        "A dot: thresholds of different levels cross, the larger the more often",
        fontsize=10,
        x=0.01,
        ha="left",
    )
    figure.savefig(path, dpi=150)
    plt.close(figure)
