"""Pictures of runs, posteriors and studies. Matplotlib is imported when one is drawn."""

import itertools
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy import special

from dpconformal.diagnostics.calibration import Sbc, Uniformity, ecdf_band, interval_coverage, uniformity
from dpconformal.diagnostics.coverage import coverage_curve, rolling_band
from dpconformal.dirichlet import Draws, Posterior
from dpconformal.display import COLOURS, FAINT, INK, OURS, as_label, panels
from dpconformal.martingales import Exchangeability, exchangeability
from dpconformal.plots import axes_or_new, check_one_sequence, shades
from dpconformal.replay import Replay
from dpconformal.validation import Numbers, Scalar, as_levels, check_float

if TYPE_CHECKING:
    import xarray as xr
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_BAND = "#e8e2d9"  # what chance allows
_SERIES = (OURS, "#1d6fb8", "#2e8b57", "#7b3fa0", "#8a6d1f", "#1a9ba1", "#5f6368")
_TITLES = {"cdf": "distribution function", "quantile": "threshold", "mean": "mean", "next": "next score"}
_POINTS = 801  # at which a posterior is drawn, beside its scores


def plot_uniformity(pits: Any, prob: Scalar = 0.95, coverage: bool = False, ax: "Axes | None" = None) -> "Axes":
    """
    Draw how far the ECDF is from the diagonal, with the band that it should stay in.

    Parameters
    ----------
    pits : array_like or Uniformity
        Numbers in [0, 1]; or what :func:`dpconformal.diagnostics.uniformity` found, which has settled
        ``prob`` and ``coverage``.
    prob : float
        Probability that iid uniform numbers stay inside the band.
    coverage : bool
        Whether to draw the coverage of central intervals.
    ax : matplotlib Axes, optional
        Where to draw; a new figure by default.

    Returns
    -------
    matplotlib Axes
        With the picture; grid points outside the band are marked.
    """
    found = pits if isinstance(pits, Uniformity) else uniformity(pits, prob, coverage=coverage)
    ax = axes_or_new(ax, 5.6, 3.4)
    grid = np.concatenate([[0.0], found.grid, [1.0]])
    low, high, line = (np.pad(part, 1) for part in (found.low, found.high, found.difference))
    ax.fill_between(grid, low, high, color=_BAND, linewidth=0, label=f"{found.prob:.4g} band")
    ax.axhline(0, color=FAINT, linewidth=0.8)
    ax.plot(grid, line, color=OURS, linewidth=1.5)
    outside = (line < low - 1e-9) | (line > high + 1e-9)
    ax.plot(grid[outside], line[outside], linestyle="", marker="o", markersize=3, color=INK, label="outside")
    what = ("mass of the central interval", "coverage − mass") if found.coverage else ("u", "ECDF − u")
    verdict = "inside the band" if found.inside else f"leaves the band at {found.first_outside:.2g}"
    ax.set(xlabel=what[0], ylabel=what[1], xlim=(0, 1), title=f"{found.size:,} numbers: {verdict}")
    return ax


def plot_coverage(run: Replay, prob: Scalar = 0.95, delta: Scalar = 0.05, ax: "Axes | None" = None) -> "Axes":
    """
    Draw by how much the coverage of each level is off, with both bands of its uncertainty.

    Parameters
    ----------
    run : Replay
        One sequence, with the same levels every round.
    prob : float
        Confidence of the intervals of Clopper and Pearson, drawn as bars.
    delta : float
        Probability that iid scores leave the band of the theory, which is shaded, and that of Theorem 3, dashed.
    ax : matplotlib Axes, optional
        Where to draw; a new figure by default.

    Returns
    -------
    matplotlib Axes
        With the picture; levels outside the band of the theory are crosses.
    """
    check_one_sequence(run)
    data = coverage_curve(run, prob, delta).sortby("level")
    ax = axes_or_new(ax, 6.4, 3.8)
    level, seen = data.level.values, data.coverage.values
    low, high = (data[name].values - level for name in ("band_low", "band_high"))
    claimed = data.claimed.values
    if claimed.any():
        label = f"theory, iid scores ({1 - data.attrs['delta']:.4g})"
        ax.fill_between(level[claimed], low[claimed], high[claimed], color=_BAND, linewidth=0, label=label)
        # A band of few levels is hard to read between them.
        ax.vlines(level[claimed], low[claimed], high[claimed], color="#cfc4b4", linewidth=5 if level.size < 12 else 0)
    bounds = [data[name].values - level for name in ("theorem_low", "theorem_high")]
    if np.isfinite(bounds).all():
        for i, bound in enumerate(bounds):
            name = None if i else f"Theorem 3, the last threshold ({1 - data.attrs['delta']:.4g})"
            ax.plot(level, bound, color=FAINT, linewidth=0.9, linestyle="--", label=name)
    ax.axhline(0, color=FAINT, linewidth=0.8)
    bars = np.stack([seen - data.low.values, data.high.values - seen])
    for passed, marker in ((True, "o"), (False, "X")):
        here = data.passed.values == passed
        if here.any():
            label = f"coverage, Clopper–Pearson ({data.attrs['prob']:.4g})" if passed else "outside the theory's band"
            colour = OURS if passed else INK
            style: dict[str, Any] = {"linestyle": "", "markersize": 5, "linewidth": 1.2, "label": label}
            ax.errorbar(level[here], seen[here] - level[here], bars[:, here], marker=marker, color=colour, **style)
    ax.set(xlabel="level", ylabel="coverage − level", title=f"Coverage over {data.attrs['rounds']:,} rounds")
    # Under the axes, where no point can be.
    ax.legend(loc="upper center", bbox_to_anchor=(0.5, -0.18), ncols=2, frameon=False, fontsize=9)
    return ax


def plot_rolling(run: Replay, window: int, prob: Scalar = 0.95) -> "Figure":
    """
    Draw the coverage along a run, with the band that it leaves nowhere if misses are pure chance.

    Parameters
    ----------
    run : Replay
        One sequence, with the same levels every round.
    window : int
        Rounds that each point averages over.
    prob : float
        Probability that the coverage of a level stays inside its band over the whole run.

    Returns
    -------
    matplotlib Figure
        A panel a level, the highest level on top; rounds outside the band are dark.
    """
    check_one_sequence(run)
    data = rolling_band(run, window, prob).sortby("level", ascending=False)
    rows = data.sizes["level"]
    figure, axes = panels(rows, 1, 7.6, 0.9 + 1.5 * rows, sharex=True)
    time = data.time.values
    for i, ax in enumerate(axes[:, 0]):
        here = data.isel(level=i)
        level, seen, low, high = (here[name].values for name in ("level", "coverage", "low", "high"))
        ax.axhspan(low, high, color=_BAND, linewidth=0, label=f"all windows ({data.attrs['prob']:.4g})")
        for j, name in enumerate(("pointwise_low", "pointwise_high")):
            ax.axhline(here[name].values, color=FAINT, linewidth=0.8, linestyle=":", label=None if j else "one window")
        ax.axhline(level, color=FAINT, linewidth=0.8)
        ax.plot(time, seen, color=OURS, linewidth=1.2, label="coverage")
        outside = (seen < low - 1e-9) | (seen > high + 1e-9)
        if outside.any():
            ax.plot(time, np.where(outside, seen, np.nan), color=INK, linewidth=2.2, label="outside")
        verdict = "" if here.passed else f": leaves the band in round {time[outside.argmax()]:,}"
        ax.set_title(f"level {float(level):g}{verdict}", fontsize=9.5, loc="left")
    axes[-1, 0].set_xlabel("round")
    figure.supylabel(f"coverage of the last {window:,} rounds", fontsize=10)
    entries = {
        label: handle for ax in axes[:, 0] for handle, label in zip(*ax.get_legend_handles_labels(), strict=True)
    }
    figure.legend(list(entries.values()), list(entries), loc="outside upper center", ncols=4, frameon=False, fontsize=9)
    return figure


def plot_martingale(
    found: Any, threshold: Scalar = 100.0, seed: int | np.random.Generator = 0, ax: "Axes | None" = None
) -> "Axes":
    """
    Draw the capital of one martingale or several over the rounds, and the round of the alarm.

    Parameters
    ----------
    found : array_like, Exchangeability or dict of Exchangeability
        Scores in time order; or what :func:`dpconformal.martingales.exchangeability` found in one sequence, which has
        settled ``threshold`` and ``seed``; or several of these by name, with one threshold.
    threshold, seed : float, int
        The capital that makes an alarm, and the seed of the ranks' smoothing.
    ax : matplotlib Axes, optional
        Where to draw; a new figure by default.

    Returns
    -------
    matplotlib Axes
        With the picture; alarms are points.
    """
    if not isinstance(found, (dict, Exchangeability)):
        found = exchangeability(found, threshold=threshold, seed=seed)
    paths: dict[str, Exchangeability] = found if isinstance(found, dict) else {"capital": found}
    if not paths:
        raise ValueError("found is empty: pass at least one Exchangeability")
    limits = {name: path.threshold for name, path in paths.items()}
    limit, *others = set(limits.values())
    if others:
        raise ValueError(f"found has thresholds {limits}: a picture has one")
    for name, path in paths.items():
        if path.log_capital.ndim != 1:
            raise ValueError(
                f"found[{name!r}].log_capital has shape {path.log_capital.shape}: a picture shows one sequence"
            )
    ax = axes_or_new(ax, 7.2, 3.6)
    rounds = max(path.log_capital.size for path in paths.values())
    ax.axhline(0, color=FAINT, linewidth=0.8)
    ax.axhline(np.log10(limit), color=INK, linewidth=0.9, linestyle="--", label=f"alarm at {limit:g}")
    for (name, path), colour in zip(paths.items(), itertools.cycle(_SERIES), strict=False):
        height = np.concatenate([[0.0], path.log_capital / np.log(10)])  # everyone begins with 1
        ax.plot(np.arange(height.size), height, color=colour, linewidth=1.3, label=as_label(name))
        if path.alarm:
            ax.plot(path.alarm, height[path.alarm], "o", color=colour, markersize=6, markeredgecolor="white", zorder=3)
    verdict = f": alarm in round {path.alarm:,}" if path.alarm else ": no alarm"
    ax.set(xlabel="round", ylabel="log10 of the capital", xlim=(0, max(rounds, 1)))
    ax.set_title(f"{rounds:,} bets against exchangeability{verdict if len(paths) == 1 else ''}")
    ax.legend(frameon=False, fontsize=9)
    return ax


def plot_sbc(found: Sbc, prob: Scalar = 0.95) -> "Figure":
    """
    Draw the uniformity of each quantity of a simulation-based calibration.

    Parameters
    ----------
    found : Sbc
        From :func:`dpconformal.diagnostics.sbc`.
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
        ax.set_title(f"{_TITLES.get(name, name)}{'' if each.inside else ' ✗'}", fontsize=10)
        ax.set(xlabel="u", ylabel="ECDF − u" if ax is axes[0, 0] else "")
    true = f"{found.concentration:.3g}"
    fitted = f"{true}, as simulated" if found.fitted == found.concentration else f"{found.fitted:.3g} instead of {true}"
    simulations = next(iter(found.pits.values())).size
    title = f"{simulations:,} simulations of {found.scores:,} scores, fitted with a concentration of {fitted}"
    figure.suptitle(title, fontsize=11)
    return figure


def plot_compare(data: "xr.Dataset") -> "Figure":
    """
    Draw coverage, width, loss and CRPS of learners, with two standard errors to either side.

    Parameters
    ----------
    data : xarray.Dataset
        From :func:`dpconformal.diagnostics.compare`. Errors of recorded scores are those of another such
        record, and the title says so.

    Returns
    -------
    matplotlib Figure
        A row a learner, a colour a level. Loss and CRPS are drawn beyond those of the first learner, on the same data;
        what is infinite is left out.
    """
    if data.attrs.get("diagnostics") != "compare":
        raise ValueError("data is not what compare returned: its attrs say no diagnostics = 'compare'")
    names, levels = [str(name) for name in data.learner.values], data.level.values
    rows = np.arange(len(names), dtype=float)
    known = data.crps_gain.notnull().values.any()
    figure, axes = panels(1, 4 if known else 3, 11.0, 1.4 + 0.1 * len(names) * (2 + levels.size), sharey=True)
    titles = ("coverage − level", "mean threshold", f"loss beyond that of\n{as_label(names[0])}")
    for ax, name, title in zip(axes[0], ("coverage", "width", "loss_gain"), titles, strict=False):
        for i, (level, colour) in enumerate(zip(levels, shades(levels.size), strict=True)):
            here = data.sel({"level": level})
            value = here[name if name == "loss_gain" else f"{name}_mean"].values
            value = value - level if name == "coverage" else value
            offset = (i - (levels.size - 1) / 2) * 0.7 / max(levels.size, 2)
            style = {"linestyle": "", "marker": "o", "markersize": 4, "color": colour, "label": f"{level:g}"}
            ax.errorbar(value, rows + offset, xerr=2 * here[f"{name}_se"].values, **style)
        ax.set_title(title, fontsize=10)
    if known:
        for row, name in enumerate(names):
            gain, error = (float(part[row]) for part in (data.crps_gain, data.crps_gain_se))
            axes[0, 3].errorbar(gain, row, xerr=2 * error, marker="D", markersize=4, color=COLOURS.get(name, OURS))
        axes[0, 3].set_title(f"CRPS beyond that of\n{as_label(names[0])}", fontsize=10)
    for ax in axes[0]:
        if ax is not axes[0, 1]:
            ax.axvline(0, color=FAINT, linewidth=0.8, zorder=0)
        for row in rows[1:]:
            ax.axhline(row - 0.5, color=_BAND, linewidth=0.8, zorder=0)
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


def plot_calibration(pits: dict[str, Numbers], prob: Scalar = 0.95, ax: "Axes | None" = None) -> "Axes":
    """
    Draw how often central credible intervals hold the truth, against the mass that they claim.

    Parameters
    ----------
    pits : dict of str to array_like, shape (N,)
        Where in its posterior each truth lies, for each schedule or model
        (:func:`dpconformal.diagnostics.credible_pits`).
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
    ax = axes_or_new(ax, 4.6, 4.4)
    grid, low, high = ecdf_band(min(np.size(values) for values in pits.values()), prob)
    grid, low, high = (np.concatenate([[0.0], part, [1.0]]) for part in (grid, low, high))
    ax.fill_between(grid, low, high, color=_BAND, linewidth=0, label="calibrated")
    ax.plot([0, 1], [0, 1], color=FAINT, linewidth=0.8)
    for (name, values), colour in zip(pits.items(), itertools.cycle(_SERIES), strict=False):
        ax.plot(grid, interval_coverage(values, grid), color=colour, linewidth=1.6, label=as_label(name))
    ax.set(xlabel="mass that an interval claims", ylabel="share of intervals that hold the truth")
    ax.set(xlim=(0, 1), ylim=(0, 1.005))
    ax.set_title("Credible intervals", color=INK)
    ax.legend(loc="upper left", frameon=False, fontsize=9)
    return ax


def plot_posterior(
    posterior: Posterior, levels: Numbers = (0.5, 0.9), mass: Scalar = 0.9, draws: Draws | None = None
) -> "Figure":
    """
    Draw the posterior of the distribution F of scores, and of its quantiles.

    Parameters
    ----------
    posterior : Posterior
        The posterior.
    levels : array_like, shape (A,)
        Levels of the quantiles.
    mass : float
        Probability of the band around F, point by point, and of the intervals of the quantiles.
    draws : Draws, optional
        Draws of the posterior, to be seen beside the closed form.

    Returns
    -------
    matplotlib Figure
        On the left the mean of F, which is the belief, with its band; on the right the posterior of each quantile, with
        its central interval. A few draws are thin lines on the left; all of them are the dashed steps on the right.
    """
    mass = float(check_float("mass", mass, 0.0, 1.0, open_low=True, open_high=True))
    as_levels(levels)
    asked = np.atleast_1d(np.asarray(levels, float))
    # Points across what is not negligible, and every score, where F jumps.
    first, last = np.asarray(posterior.mean.quantile(np.array([0.001, 0.999])), float)
    room, (low_end, high_end) = 0.05 * (last - first), (float(end) for end in posterior.prior.support)
    first, last = max(low_end, first - room), min(high_end, last + room)
    scores = np.asarray(posterior.scores, float)
    x = np.union1d(np.linspace(first, last, _POINTS), scores[(scores >= first) & (scores <= last)])
    figure, axes = panels(1, 2, 10.0, 3.8)
    left, right = axes[0]
    g, total = np.asarray(posterior.mean.cdf(x), float), float(posterior.total)
    low, high = (_beta_quantile(total, g, tail) for tail in ((1 - mass) / 2, (1 + mass) / 2))
    left.fill_between(x, low, high, step="post", color=_BAND, linewidth=0, label=f"F(x), {mass:.3g} of the posterior")
    if draws is not None:
        for row in np.asarray(draws.cdf(x))[:12]:
            left.step(x, row, where="post", color=FAINT, linewidth=0.6, alpha=0.7)
    left.step(x, g, where="post", color=OURS, linewidth=1.6, label="belief: the mean of F")
    left.plot(x, np.asarray(posterior.prior.cdf(x)), color=INK, linewidth=0.9, linestyle=":", label="prior")
    seen = total - float(posterior.concentration)
    left.set(xlabel="score", ylabel="F", ylim=(0, 1.02), title=f"After {seen:,.0f} scores")
    left.legend(loc="lower right", frameon=False, fontsize=9)
    for i, level in enumerate(np.sort(asked)):
        shade, level = _SERIES[i % len(_SERIES)], float(level)
        label = f"level {level:g}"
        right.step(x, posterior.quantile_cdf(level, x), where="post", color=shade, linewidth=1.6, label=label)
        if draws is not None:
            sampled = np.sort(np.asarray(draws.quantile(level), float))
            share, named = np.arange(1, sampled.size + 1) / sampled.size, None if i else f"{sampled.size:,} draws"
            right.step(sampled, share, where="post", color=INK, linewidth=0.9, linestyle="--", label=named)
        ends = posterior.quantile_interval(level, mass)
        right.plot(ends, [0.0, 0.0], color=shade, linewidth=4, solid_capstyle="butt", alpha=0.6)
    right.set(xlabel="threshold", ylabel="P(q ≤ x)", ylim=(-0.02, 1.02), title="Posterior of the thresholds")
    right.legend(loc="upper left" if asked.min() >= 0.5 else "best", frameon=False, fontsize=9)
    return figure


def _beta_quantile(total: float, mean: np.ndarray, probability: float) -> np.ndarray:
    """Return a quantile of F(x) at each point, from its mean; where that is 0 or 1, F(x) is certain."""
    known = (mean <= 0) | (mean >= 1)
    inner = np.where(known, 0.5, mean)
    return np.where(known, mean, special.betaincinv(total * inner, total * (1 - inner), probability))
