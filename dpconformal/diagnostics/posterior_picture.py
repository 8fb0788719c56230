"""Picture of a posterior: the distribution of scores as far as it is known, and its thresholds."""

from typing import Any

import numpy as np
from scipy import special

from dpconformal.canvas import FAINT, INK, OURS, panels
from dpconformal.diagnostics.pictures import BAND
from dpconformal.dirichlet.draws import Draws
from dpconformal.dirichlet.posterior import Posterior
from dpconformal.validation import Numbers, Scalar, as_levels, number

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
    mass = float(number("mass", mass, 0.0, 1.0, open_low=True, open_high=True))
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
