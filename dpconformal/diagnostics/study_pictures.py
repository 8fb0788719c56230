"""Pictures of many simulations: calibration of a posterior, of credible intervals, and learners compared."""

from typing import TYPE_CHECKING, Any

import numpy as np
from scipy import special

from dpconformal.diagnostics.pictures import BAND, plot_uniformity
from dpconformal.diagnostics.studies import Sbc, interval_coverage
from dpconformal.diagnostics.uniformity import ecdf_band
from dpconformal.dirichlet.draws import Draws
from dpconformal.dirichlet.posterior import Posterior
from dpconformal.display.figures import COLOURS, FAINT, INK, OURS, as_label, panels, pyplot, quiet
from dpconformal.validation import Numbers, Scalar, as_levels, check_float

if TYPE_CHECKING:
    import xarray as xr

_OTHERS = ("#1d6fb8", "#2e8b57", "#7b3fa0", "#8a6d1f", "#1a9ba1", "#5f6368")
_TITLES = {
    "cdf": "distribution function",
    "quantile": "threshold",
    "mean": "mean",
    "next": "next score",
}


def plot_sbc(found: Sbc, prob: Scalar = 0.95) -> Any:
    """
    Draw the uniformity of each quantity of a simulation-based calibration.

    Parameters
    ----------
    found : Sbc
        From :func:`dpconformal.diagnostics.studies.sbc`.
    prob : float
        Probability that a right model stays inside all bands.

    Returns
    -------
    matplotlib Figure
        A panel a quantity.
    """
    size = len(found.pits)
    figure, axes = panels(1, size, 2.9 * size, 2.9, sharey=True)
    for ax, (name, each) in zip(axes[0], found.uniformity(prob).items(), strict=True):
        plot_uniformity(each, ax=ax)
        verdict = "" if each.inside else " ✗"
        ax.set_title(f"{_TITLES.get(name, name)}{verdict}", fontsize=10)
        ax.set(xlabel="u", ylabel="ECDF − u" if ax is axes[0, 0] else "")
    true = f"{found.concentration:.3g}"
    fitted = f"{true}, as simulated" if found.fitted == found.concentration else f"{found.fitted:.3g} instead of {true}"
    simulations = next(iter(found.pits.values())).size
    title = f"{simulations:,} simulations of {found.scores:,} scores, fitted with a concentration of {fitted}"
    figure.suptitle(title, fontsize=11)
    return figure


def plot_compare(data: "xr.Dataset") -> Any:
    """
    Draw coverage, width, loss and CRPS of learners, with two standard errors to either side.

    Parameters
    ----------
    data : xarray.Dataset
        From :func:`dpconformal.diagnostics.compare.compare`. Errors of recorded scores are those of another such
        record, and the title says so.

    Returns
    -------
    matplotlib Figure
        A row a learner, a colour a level. Loss and CRPS are drawn beyond those of the first learner, on the same data;
        what is infinite is left out.
    """
    import matplotlib

    if data.attrs.get("diagnostics") != "compare":
        raise ValueError("data is not what compare returned: its attrs say no diagnostics = 'compare'")
    names, levels = [str(name) for name in data.learner.values], data.level.values
    rows = np.arange(len(names), dtype=float)
    known = data.crps_gain.notnull().values.any()
    figure, axes = panels(1, 4 if known else 3, 11.0, 1.4 + 0.1 * len(names) * (2 + levels.size), sharey=True)
    shades = [matplotlib.colormaps["viridis"](x) for x in np.linspace(0.82, 0.05, levels.size)]
    titles = ("coverage − level", "mean threshold", f"loss beyond that of\n{as_label(names[0])}")
    for ax, name, title in zip(axes[0], ("coverage", "width", "loss_gain"), titles, strict=False):
        for i, level in enumerate(levels):
            here = data.sel({"level": level})
            value = here[name if name == "loss_gain" else f"{name}_mean"].values
            value = value - level if name == "coverage" else value
            offset = (i - (levels.size - 1) / 2) * 0.7 / max(levels.size, 2)
            style = {"linestyle": "", "marker": "o", "markersize": 4, "color": shades[i], "label": f"{level:g}"}
            ax.errorbar(value, rows + offset, xerr=2 * here[f"{name}_se"].values, **style)
        ax.set_title(title, fontsize=10)
    if known:
        colours = [COLOURS.get(name, OURS) for name in names]
        for row, value, error, colour in zip(
            rows, data.crps_gain.values, data.crps_gain_se.values, colours, strict=True
        ):
            axes[0, 3].errorbar(value, row, xerr=2 * error, marker="D", markersize=4, color=colour)
        axes[0, 3].set_title(f"CRPS beyond that of\n{as_label(names[0])}", fontsize=10)
    for ax in axes[0]:
        if ax is not axes[0, 1]:
            ax.axvline(0, color=FAINT, linewidth=0.8, zorder=0)
        for row in rows[1:]:
            ax.axhline(row - 0.5, color=BAND, linewidth=0.8, zorder=0)
        ax.locator_params(axis="x", nbins=4)
        ax.ticklabel_format(axis="x", scilimits=(-2, 4))
    axes[0, 0].set_yticks(rows, [as_label(name) for name in names])
    axes[0, 0].set_ylim(len(names) - 0.5, -0.5)
    handles, labels = axes[0, 0].get_legend_handles_labels()
    figure.legend(handles, labels, title="level", loc="outside right center", frameon=False)
    what = f"{data.sizes['dataset']:,} data sets of {data.attrs['rounds']:,} rounds"
    if data.attrs["burn_in"]:
        what += f", the first {data.attrs['burn_in']:,} not counted"
    record = data.attrs["record"]
    if record:
        what = f"{record:,} recorded scores, {what}"
    bars = "bars are two standard errors" + (", of another such record" if record else "")
    figure.suptitle(f"{what}; {bars}", fontsize=11)
    return figure


def plot_calibration(pits: dict[str, Any], prob: Scalar = 0.95, ax: Any = None) -> Any:
    """
    Draw how often central credible intervals hold the truth, against the mass that they claim.

    Parameters
    ----------
    pits : dict of str to array_like, shape (N,)
        Where in its posterior each truth lies, for each schedule or model
        (:func:`dpconformal.diagnostics.studies.credible_pits`).
    prob : float
        Probability that a calibrated model stays inside the band, which is that of the fewest data sets.
    ax : matplotlib Axes, optional
        Where to draw; a new figure by default.

    Returns
    -------
    matplotlib Axes
        With the picture: a line a name; below the diagonal intervals are too short.
    """
    if not pits:
        raise ValueError("pits is empty: pass at least one name with its numbers")
    if ax is None:
        ax = pyplot().figure(figsize=(4.6, 4.4), layout="constrained").add_subplot()
    quiet(ax)
    grid, low, high = ecdf_band(min(np.size(values) for values in pits.values()), prob)
    grid, low, high = (np.concatenate([[0.0], part, [1.0]]) for part in (grid, low, high))
    ax.fill_between(grid, low, high, color=BAND, linewidth=0, label="calibrated")
    ax.plot([0, 1], [0, 1], color=FAINT, linewidth=0.8)
    for i, (name, values) in enumerate(pits.items()):
        colour = OURS if i == 0 else _OTHERS[(i - 1) % len(_OTHERS)]
        ax.plot(grid, interval_coverage(values, grid), color=colour, linewidth=1.6, label=as_label(name))
    ax.set(xlabel="mass that an interval claims", ylabel="share of intervals that hold the truth", xlim=(0, 1))
    ax.set_ylim(0, 1.005)
    ax.set_title("Credible intervals", color=INK)
    ax.legend(loc="upper left", frameon=False, fontsize=9)
    return ax


_POINTS = 801


def plot_posterior(
    posterior: Posterior, levels: Numbers = (0.5, 0.9), mass: Scalar = 0.9, draws: Draws | None = None
) -> Any:
    """
    Draw what is known of the distribution F of scores, and of its quantiles.

    Parameters
    ----------
    posterior : Posterior
        The posterior.
    levels : array_like, shape (A,)
        Levels of the quantiles.
    mass : float
        Probability of the band around F, point by point, and of the intervals of the quantiles.
    draws : Draws, optional
        Draws of it, to be seen beside the closed form.

    Returns
    -------
    matplotlib Figure
        On the left the mean of F, which is the belief, with its band; on the right the posterior of each quantile, with
        its central interval. A few draws are thin lines on the left; all of them are the dashed steps on the right.
    """
    mass = float(check_float("mass", mass, 0.0, 1.0, open_low=True, open_high=True))
    as_levels(levels)
    asked = np.atleast_1d(np.asarray(levels, float))
    x = _points(posterior)
    figure, (left, right) = _two_panels()
    g, total = np.asarray(posterior.mean.cdf(x), float), float(posterior.total)
    low, high = (_beta_quantile(total, g, tail) for tail in ((1 - mass) / 2, (1 + mass) / 2))
    left.fill_between(x, low, high, step="post", color=BAND, linewidth=0, label=f"F(x), {mass:.3g} of the posterior")
    if draws is not None:
        for row in np.asarray(draws.cdf(x))[:12]:
            left.step(x, row, where="post", color=FAINT, linewidth=0.6, alpha=0.7)
    left.step(x, g, where="post", color=OURS, linewidth=1.6, label="belief: the mean of F")
    left.plot(x, np.asarray(posterior.prior.cdf(x)), color=INK, linewidth=0.9, linestyle=":", label="prior")
    left.set(
        xlabel="score", ylabel="F", ylim=(0, 1.02), title=f"After {total - float(posterior.concentration):,.0f} scores"
    )
    left.legend(loc="lower right", frameon=False, fontsize=9)
    for i, level in enumerate(np.sort(asked)):
        _quantile(right, posterior, float(level), mass, x, draws, i)
    right.set(xlabel="threshold", ylabel="P(q ≤ x)", ylim=(-0.02, 1.02), title="Posterior of the thresholds")
    right.legend(loc="upper left" if asked.min() >= 0.5 else "best", frameon=False, fontsize=9)
    return figure


def _two_panels() -> tuple[Any, Any]:
    figure, axes = panels(1, 2, 10.0, 3.8)
    return figure, axes[0]


def _quantile(ax: Any, posterior: Posterior, level: float, mass: float, x: Any, draws: Any, i: int) -> None:
    shade = (OURS, "#1d6fb8", "#2e8b57", "#7b3fa0")[i % 4]
    ax.step(x, posterior.quantile_cdf(level, x), where="post", color=shade, linewidth=1.6, label=f"level {level:g}")
    if draws is not None:
        sampled = np.sort(np.asarray(draws.quantile(level), float))
        share = np.arange(1, sampled.size + 1) / sampled.size
        label = f"{sampled.size:,} draws" if i == 0 else None
        ax.step(sampled, share, where="post", color=INK, linewidth=0.9, linestyle="--", label=label)
    low, high = posterior.quantile_interval(level, mass)
    ax.plot([low, high], [0.0, 0.0], color=shade, linewidth=4, solid_capstyle="butt", alpha=0.6)


def _points(posterior: Posterior) -> np.ndarray:
    """Points across what is not negligible, and every score, where F jumps."""
    ends = np.asarray(posterior.mean.quantile(np.array([0.001, 0.999])), float)
    room = 0.05 * (ends[1] - ends[0])
    low, high = (float(end) for end in posterior.prior.support)
    even = np.linspace(max(low, ends[0] - room), min(high, ends[1] + room), _POINTS)
    scores = np.asarray(posterior.scores, float)
    return np.unique(np.concatenate([even, scores[(scores >= even[0]) & (scores <= even[-1])]]))


def _beta_quantile(total: float, mean: np.ndarray, probability: float) -> np.ndarray:
    known = (mean <= 0) | (mean >= 1)
    inner = np.where(known, 0.5, mean)
    return np.where(known, mean, special.betaincinv(total * inner, total * (1 - inner), probability))
