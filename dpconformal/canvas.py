"""What all pictures share: matplotlib on demand, quiet axes, a colour for each method."""

from typing import Any

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
    """
    Import matplotlib, which no other part of the package needs.

    Returns
    -------
    module
        ``matplotlib.pyplot``.

    Raises
    ------
    ImportError
        Saying how to install it.
    """
    try:
        import matplotlib.pyplot as plt
    except ImportError as error:
        raise ImportError("plots need matplotlib: pip install '.[plots]' in a clone of dpconformal") from error
    return plt


def quiet(ax: Any) -> Any:
    """
    Take away what a picture does not need.

    Parameters
    ----------
    ax : matplotlib Axes
        The axes.

    Returns
    -------
    matplotlib Axes
        The same, without the upper and right spines.
    """
    ax.spines[["top", "right"]].set_visible(False)
    ax.spines[["left", "bottom"]].set_color(FAINT)
    ax.tick_params(colors=INK)
    return ax


def panels(rows: int, columns: int, width: float, height: float, **options: Any) -> tuple[Any, Any]:
    """
    Make a figure of quiet panels.

    Parameters
    ----------
    rows, columns : int
        Of panels.
    width, height : float
        Of the figure, in inches.
    **options
        Of ``matplotlib.pyplot.subplots``.

    Returns
    -------
    tuple
        The figure and an array of axes, shape (rows, columns).
    """
    figure, axes = pyplot().subplots(
        rows, columns, figsize=(width, height), layout="constrained", squeeze=False, **options
    )
    for ax in axes.flat:
        quiet(ax)
    return figure, axes
