"""Parts that all figures share: matplotlib on demand, plain axes, a colour for each method."""

from typing import Any

from dpconformal.display import visible

LONGEST = 100  # characters of a name in a picture
INK, FAINT = "#222222", "#9aa0a6"
OURS = "#c2410c"
# One colour a method in every picture; ours is the warm one.
COLOURS = {
    "Exact": OURS,
    "Quantized": OURS,
    "ERM": "#5f6368",
    "OGD": "#1d6fb8",
    "MultiOGD": "#1d6fb8",
    "MVP": "#2e8b57",
    "MultiMVP": "#2e8b57",
    "ACI": "#7b3fa0",
    "DtACI": "#b0569f",
    "SAOCP": "#1a9ba1",
    "PID": "#8a6d1f",
    "SplitConformal": "#9aa0a6",
}


def pyplot() -> Any:
    """Import matplotlib, which no other part of the package needs."""
    try:
        import matplotlib.pyplot as plt
    except ImportError as error:
        raise ImportError("plots need matplotlib: pip install '.[plots]' in a clone of dpconformal") from error
    return plt


def quiet(ax: Any) -> Any:
    """Remove top and right spines, and mute the others."""
    ax.spines[["top", "right"]].set_visible(False)
    ax.spines[["left", "bottom"]].set_color(FAINT)
    ax.tick_params(colors=INK)
    return ax


def as_label(name: Any) -> str:
    """Write a name for matplotlib, which takes what stands between dollars for a formula."""
    text = visible(str(name)).replace("\n", r"\n")
    return (text if len(text) <= LONGEST else f"{text[: LONGEST - 1]}…").replace("$", r"\$")


def panels(rows: int, columns: int, width: float, height: float, **options: Any) -> tuple[Any, Any]:
    """Make a figure of quiet panels."""
    figure, axes = pyplot().subplots(
        rows, columns, figsize=(width, height), layout="constrained", squeeze=False, **options
    )
    for ax in axes.flat:
        quiet(ax)
    return figure, axes
