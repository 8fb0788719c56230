"""What ``make demo`` shows: one belief and its rivals on a stream whose world changes half-way."""

import argparse
import time
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

import dpconformal as dpc

LEVELS = (0.5, 0.8, 0.9, 0.95)


def simulated_scores(rounds: int = 6000, seed: int = 0) -> np.ndarray:
    """
    Simulate absolute errors of a forecaster, squeezed into [0, 1) by s/(1 + s).

    The noise doubles after half of the rounds, and a slow wave runs through all of it.

    Parameters
    ----------
    rounds : int
        Length of the stream.
    seed : int
        Of the random numbers.

    Returns
    -------
    ndarray, shape (rounds,)
        Scores.

    Examples
    --------
    >>> simulated_scores(3).shape
    (3,)
    """
    rng = np.random.default_rng(seed)
    t = np.arange(rounds)
    scale = np.where(t < rounds / 2, 0.4, 0.8) * (1 + 0.25 * np.sin(2 * np.pi * t / 1500))
    error = np.abs(scale * rng.standard_normal(rounds))
    return error / (1 + error)


def rivals() -> dict[str, Any]:
    """
    Return the learners that the demonstration compares.

    Returns
    -------
    dict
        Learners by the name shown.
    """
    learned = dpc.priors.Histogram.from_scores(simulated_scores(500, seed=1), bins=20, smoothing=25)
    return {
        "Exact": dpc.Exact(),
        "Exact β=0.99": dpc.Exact(discount=0.99),
        "  learned prior": dpc.Exact(learned, discount=0.99),
        "Quantized": dpc.Quantized(bins=64),
        "Quantized β=0.99": dpc.Quantized(bins=64, discount=0.99),
        "  learned prior ": dpc.Quantized(64, learned, discount=0.99),
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


def main(arguments: Sequence[str] | None = None) -> None:
    """
    Run the demonstration and print its table.

    Parameters
    ----------
    arguments : sequence of str, optional
        Of the command line, which is read by default.
    """
    parser = argparse.ArgumentParser(prog="python -m dpconformal.demo", description=__doc__)
    parser.add_argument(
        "--cache",
        nargs="?",
        const="",
        metavar="DIR",
        help="keep compiled programs in DIR (default: ~/.cache/dpconformal), so that the next run starts faster",
    )
    cache = parser.parse_args(arguments).cache
    if cache is not None:
        dpc.compilation_cache(cache or None)
    from rich import box
    from rich.console import Console
    from rich.table import Table

    scores = simulated_scores()
    console = Console()
    console.print(
        f"\n[bold]{scores.size:,} simulated scores, {len(LEVELS)} confidence levels.[/bold] "
        "The noise doubles half-way; every learner sees only the past.\n"
    )
    table = Table(
        title="Coverage by level",
        title_justify="left",
        title_style="bold",
        box=box.SIMPLE_HEAD,
        padding=(0, 0, 0, 1),
        pad_edge=False,
    )
    table.add_column("", no_wrap=True)
    headings = [f"{level:.0%}" for level in LEVELS] + ["late", "regret", "crossings", "ms"]
    for heading in headings:
        table.add_column(heading, justify="right", no_wrap=True)
    for name, learner in rivals().items():
        jax.block_until_ready(dpc.replay(learner, scores, LEVELS))  # compile
        start = time.perf_counter()
        run = jax.block_until_ready(dpc.replay(learner, scores, LEVELS))
        seconds = time.perf_counter() - start
        summary = dpc.metrics.summary(run)
        late = dpc.metrics.covered(run)[-scores.size // 4 :].mean(axis=0)[LEVELS.index(0.9)]
        regret = float(summary.regret.sel(level=0.9))
        table.add_row(
            name,
            *(f"{value:.3f}" for value in summary.coverage.values),
            f"{late:.3f}",
            f"{regret:.1f}" if np.isfinite(regret) else "∞",
            f"{int(dpc.metrics.crossings(run).rounds):,}",
            f"{seconds * 1e3:,.0f}",
        )
    console.print(table)
    console.print(
        "[bold]late[/bold]: coverage at level 90 % in the last quarter. A discount β follows the change, where "
        "averaging over the whole past falls behind. A learned prior is a histogram of 500 scores of another stream.\n"
        "[bold]regret[/bold]: total loss at level 90 % minus that of the best fixed threshold in hindsight; below zero "
        "beats it. Split conformal and NExCP answer +∞ until they know enough, which costs infinitely much.\n"
        "[bold]crossings[/bold]: rounds in which a higher level got a smaller threshold. None where all levels are "
        "quantiles of one distribution, a belief; methods that follow each level by itself have them.\n"
        "[bold]ms[/bold]: time of one replay, compiled.\n"
    )


if __name__ == "__main__":
    main()
