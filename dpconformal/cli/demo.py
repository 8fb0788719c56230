"""``dpconformal demo``: confidence sets for the S&P 500, and how the methods compare on it."""

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import jax
import numpy as np
import typer
from rich.table import Table

import dpconformal as dpc
from dpconformal.conformal import Conformal
from dpconformal.display import FAINT, INK, OURS, panels, save_figure
from dpconformal.display.terminal import Terminal, table
from dpconformal.files import staging_folder
from dpconformal.learner import Learner

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LEVELS = (0.5, 0.8, 0.9, 0.95)
_WARM_UP = 20  # days before the first forecast


def demo(
    cache: Annotated[
        bool, typer.Option(help="Keep compiled programs in ~/.cache/dpconformal, so that the next run starts faster.")
    ] = False,
    out: Annotated[Path, typer.Option(help="Folder to write to.")] = Path("results/demo"),
) -> None:
    """Show confidence sets for tomorrow's return of the S&P 500, and how learners compare on it."""
    if cache:
        dpc.compilation_cache()
    console = Terminal()
    stream = market()
    first, last = (str(day)[:10] for day in stream.dates[[0, -1]])
    console.print(
        f"\n[bold]The S&P 500, {first} to {last}: {stream.returns.size:,} days.[/bold] A base model forecasts the "
        "volatility of each day from the days before; the score of a day is its return in units of that forecast.\n"
    )
    # The base model's own claim, normal returns, is the prior. The scores have no upper end, and need none.
    learner = dpc.Exact(dpc.priors.HalfNormal(1.0), discount=0.99)
    score = dpc.scores.Normalized()
    result = dpc.conformalize(learner, score, stream.predictions, stream.returns, LEVELS)
    with staging_folder(out) as folder:
        console.print(_sets_table(learner, score, result, stream))
        console.print(_comparison_table(stream))
        save_figure(draw(result, stream), folder / "demo.png")
        dpc.report(result.run, folder / "report.html", title="The S&P 500: abs(return) / forecast")
    console.print(
        "[bold]late[/bold]: coverage at level 0.9 in the last quarter. [bold]regret[/bold]: total loss at level 0.9 "
        "less that of the best fixed threshold in hindsight; ∞ where a method answered +∞. [bold]cross[/bold]: rounds "
        "in which a higher level got a smaller threshold; none where all levels are quantiles of one belief. "
        "[bold]ms[/bold]: time of one replay, compiled.\n"
    )
    console.say(f"Look at {out}/demo.png, and open {out}/report.html")


class Market(NamedTuple):
    """A stream of returns with forecasts."""

    dates: np.ndarray  # (T,), trading days
    returns: np.ndarray  # (T,), daily returns in percent
    predictions: np.ndarray  # (T, 2), forecasts made the day before: mean 0, and a standard deviation
    tomorrow: np.ndarray  # (2,), the forecast for the day after the last


def market(index: str = "sp500", decay: float = 0.94) -> Market:
    """Forecast the volatility of an index by an exponentially weighted mean of squared returns."""
    from dpconformal.experiments.prices import read_prices

    prices = read_prices(index, "Adj Close")
    returns = 100 * np.diff(np.log(prices.to_numpy()))
    variance = np.empty(returns.size + 1)
    variance[:_WARM_UP] = np.mean(returns[:_WARM_UP] ** 2)
    for t in range(_WARM_UP - 1, returns.size):
        variance[t + 1] = decay * variance[t] + (1 - decay) * returns[t] ** 2
    spread = np.sqrt(variance[_WARM_UP:])
    forecasts = np.stack([np.zeros_like(spread), spread], axis=-1)
    dates = prices.index.to_numpy()[1 + _WARM_UP :]
    return Market(dates, returns[_WARM_UP:], forecasts[:-1], forecasts[-1])


def rivals() -> dict[str, Learner]:
    """Return the learners that the demonstration compares, for scores in [0, 1]."""
    # What a normal distribution would say of abs(return)/forecast, squeezed by s/(1 + s).
    edges = np.linspace(0, 1, 41)
    with np.errstate(divide="ignore"):
        normal = dpc.priors.HalfNormal().cdf(edges / (1 - edges))
    gauss = dpc.priors.Histogram(edges, np.maximum(np.diff(np.asarray(normal, float)), 1e-6))
    return {
        "Exact": dpc.Exact(),
        "Exact β=0.99": dpc.Exact(discount=0.99),
        "  normal prior": dpc.Exact(gauss, discount=0.99),
        "Quantized": dpc.Quantized(bins=64),
        "Quantized β=0.99": dpc.Quantized(bins=64, discount=0.99),
        "  normal prior ": dpc.Quantized(64, gauss, discount=0.99),
        "ERM": dpc.ERM(),
        "Split conformal": dpc.SplitConformal(),
        "NExCP β=0.99": dpc.NExCP(0.99),
        "OGD": dpc.OGD(LEVELS),
        "SAOCP": dpc.SAOCP(LEVELS),
        "ACI": dpc.ACI(LEVELS),
        "DtACI": dpc.DtACI(LEVELS),
        "PID": dpc.PID(LEVELS, window=100),
        "MVP": dpc.MVP(LEVELS),
    }


def _sets_table(learner: Learner, score: dpc.scores.Normalized, result: Conformal, stream: Market) -> Table:
    tomorrow = score.set(stream.tomorrow, learner.quantile(result.run.state, LEVELS))
    columns = LEVELS, tomorrow.low, tomorrow.high, result.coverage, result.size.mean(axis=0)
    rows = [
        [f"{level:.0%}", f"{low:+.2f} % … {high:+.2f} %", f"{covered:.1%}", f"{width:.2f} %"]
        for level, low, high, covered, width in zip(*columns, strict=True)
    ]
    heads = ("confidence", "return of the next day", "covered so far", "mean width")
    return table("One belief, every level: Exact(HalfNormal(), discount=0.99)", heads, rows, left=0)


def _comparison_table(stream: Market) -> Table:
    squeezed = dpc.scores.Transformed(dpc.scores.Normalized(), dpc.scores.Ratio())
    scores = squeezed(stream.predictions, stream.returns)
    rows = []
    for name, learner in rivals().items():
        jax.block_until_ready(dpc.replay(learner, scores, LEVELS))  # compile
        start = time.perf_counter()
        run: Any = jax.block_until_ready(dpc.replay(learner, scores, LEVELS))
        seconds = time.perf_counter() - start
        summary = dpc.metrics.summary(run)
        late = dpc.metrics.covered(run)[-scores.size // 4 :].mean(axis=0)[LEVELS.index(0.9)]
        regret = float(summary.regret.sel(level=0.9))
        numbers = [*(f"{value:.3f}" for value in summary.coverage.values), f"{late:.3f}"]
        numbers += [f"{regret:.1f}" if np.isfinite(regret) else "∞"]
        crossings = int(dpc.metrics.crossings(run).rounds)
        rows.append([name, *numbers, f"{crossings:,}", f"{seconds * 1e3:,.0f}"])
    heads = ["covered", *(f"{level:.0%}" for level in LEVELS), "late", "regret", "cross", "ms"]
    return table("Every method on the same scores, squeezed into [0, 1] by s/(1 + s)", heads, rows)


def draw(result: Conformal, stream: Market) -> "Figure":
    """Draw the returns with their sets, and the coverage over time."""
    figure, axes = panels(2, 1, 9.0, 6.0, height_ratios=[1.6, 1], sharex=True)
    above, below = axes[:, 0]
    dates, place = stream.dates, LEVELS.index(0.9)
    ends, missed = (result.sets.low[:, place], result.sets.high[:, place]), ~result.covered[:, place]
    above.fill_between(dates, *ends, color=OURS, alpha=0.25, linewidth=0, label="90 % set, known the day before")
    above.plot(dates, stream.returns, ".", color=FAINT, markersize=2.5, label="return")
    above.plot(dates[missed], stream.returns[missed], ".", color=INK, markersize=3, label="outside its set")
    above.set(ylabel="daily return in %", title="S&P 500: confidence sets from one belief")
    above.legend(loc="lower right", frameon=False, ncols=3, fontsize="small")
    window = 500
    rolling = dpc.metrics.rolling_coverage(result.run, window)
    for k, level in enumerate(LEVELS):
        below.plot(dates[window - 1 :], rolling[:, k], color=OURS, alpha=0.4 + 0.15 * k, linewidth=1.4)
        below.axhline(level, color=INK, linewidth=0.7, linestyle=(0, (4, 3)))
        below.annotate(f"{level:.0%}", (1.0, level), (4, 0), ("axes fraction", "data"), "offset points", va="center")
    below.set(ylabel="coverage", title=f"Covered in the last {window} days (targets dashed)")
    return figure
