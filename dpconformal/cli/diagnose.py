"""``dpconformal diagnose``: whether scores are iid, and coverage is right."""

from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from rich.console import Console

import dpconformal as dpc
from dpconformal.canvas import pyplot
from dpconformal.cli import options
from dpconformal.cli.methods import make_learners
from dpconformal.cli.series import replay_series
from dpconformal.diagnostics.dependence import ljung_box
from dpconformal.files import staged
from dpconformal.tables import table

_LAGS = 10
_SUSPICIOUS = 0.01  # a p-value below this is worth a word


def diagnose(
    scores: options.Source,
    levels: options.Levels = "0.5,0.8,0.9,0.95",
    learner: Annotated[str, typer.Option(help=f"Whose coverage: one of {options.LEARNERS}.")] = "exact",
    column: options.Column = None,
    batch: options.Batch = None,
    ends: options.Range = "0,1",
    prior: options.Prior = None,
    bins: options.Bins = None,
    discount: options.Discount = None,
    concentration: options.Concentration = None,
    window: options.Window = None,
    rolling: Annotated[
        int | None, typer.Option(help="Rounds of the rolling coverage.", show_default="a tenth of the rounds")
    ] = None,
    seed: Annotated[int, typer.Option(help="Of the numbers that break ties between scores.")] = 0,
    out: Annotated[Path, typer.Option(help="Folder to write to.")] = Path("results/diagnose"),
) -> None:
    """
    Ask whether the scores may be iid, and whether the coverage of a learner is right.

    Each question is a test with a p-value or a band; pictures show where and how it fails.

    Example: dpconformal diagnose scores.csv --learner quantized --discount 0.99
    """
    options.use_float64()
    console = Console()
    asked = options.read_levels(levels)
    said = options.settings(ends, prior, bins, discount, concentration, window)
    if "," in learner:
        raise ValueError(f"--learner {learner}: one at a time")
    made = make_learners(learner, asked, said)[learner]
    recorded = options.read(scores, column, batch, [made])
    short = [name for name, series in zip(recorded.names, recorded.scores, strict=True) if series.size < 2 * _LAGS]
    if short:
        raise ValueError(
            f"{recorded.source}: {'series ' + short[0] if short[0] else 'it'} has fewer than {2 * _LAGS} scores, too "
            "few to say anything"
        )
    with staged(out) as folder:
        runs = replay_series(made, recorded, asked)
        rows = []
        for k, (name, run) in enumerate(runs.items()):
            width = max(_LAGS, run.scores.shape[0] // 10) if rolling is None else rolling
            found = _questions(run, width, seed)
            rows += [[name if not i else "", *row] for i, row in enumerate(found)]
            if k == 0:
                _pictures(run, width, seed, folder)
        if list(runs) == [""]:
            rows = [row[1:] for row in rows]
            heads: list[str] = ["question", "answer", "evidence"]
        else:
            heads = ["series", "question", "answer", "evidence"]
        rounds = sum(series.size for series in recorded.scores)
        title = f"{Path(recorded.source).name}: {rounds:,} scores; coverage of {learner}"
        console.print(table(title, heads, rows, left=len(heads)))
        files = sorted(file.name for file in folder.iterdir())
    console.print(
        "[bold]iid[/bold]: ranks among the past are uniform if the scores are exchangeable, whatever their "
        "distribution. [bold]misses[/bold]: pure chance if they neither cluster nor avoid each other.",
        highlight=False,
    )
    where = f" (of series {next(iter(runs))})" if list(runs) != [""] else ""
    console.print(f"pictures{where} in {out}/: {', '.join(files)}", highlight=False, markup=False, soft_wrap=True)


def _questions(run: dpc.Replay, window: int, seed: int) -> list[list[str]]:
    """Answer each question: what is asked, the answer, and the evidence."""
    ranks = dpc.diagnostics.smoothed_ranks(np.asarray(run.scores), seed)
    uniform = dpc.diagnostics.uniformity(ranks)
    order = float(ljung_box(ranks[:, None], _LAGS)[1][0])
    rows = [
        ["iid: ranks uniform?", _answer(uniform.inside), _chance(uniform.p_value)],
        ["iid: ranks without memory?", _answer(order >= _SUSPICIOUS), f"{_chance(order)} over {_LAGS} lags"],
    ]
    curve, band = dpc.diagnostics.coverage_curve(run), dpc.diagnostics.rolling_band(run, window)
    misses = dpc.diagnostics.miss_dependence(run, _LAGS)
    for level in curve.level.values:
        here, low, high = (float(curve[name].sel(level=level)) for name in ("coverage", "low", "high"))
        within = bool(low <= level <= high)
        evidence = f"{here:.3f}, 95 % interval {low:.3f} … {high:.3f}"
        rows.append([f"{level:g}: often enough?", _answer(within, bool(here > level)), evidence])
        steady = bool(band.passed.sel(level=level))
        worst = band.coverage.sel(level=level)
        evidence = f"{float(worst.min()):.3f} … {float(worst.max()):.3f} over {window:,} rounds"
        rows.append([f"{level:g}: at all times?", _answer(steady), evidence])
        p = float(misses.ljung_box_p.sel(level=level))
        answer = "[dim]cannot say[/dim]" if np.isnan(p) else _answer(p >= _SUSPICIOUS)
        rows.append([f"{level:g}: misses by chance?", answer, "" if np.isnan(p) else _chance(p)])
    return rows


def _answer(fine: bool, over: bool = False) -> str:
    return "[green]yes[/green]" if fine else "[yellow]too often[/yellow]" if over else "[red]no[/red]"


def _chance(p: float) -> str:
    return "p < 1e-16" if p < 1e-16 else f"p = {p:.2g}"


def _pictures(run: dpc.Replay, window: int, seed: int, folder: Path) -> None:
    ranks = dpc.diagnostics.smoothed_ranks(np.asarray(run.scores), seed)
    drawn: dict[str, Any] = {
        "ranks.png": dpc.diagnostics.plot_uniformity(ranks),
        "coverage.png": dpc.diagnostics.plot_coverage(run),
        "rolling.png": dpc.diagnostics.plot_rolling(run, window),
    }
    for name, picture in drawn.items():
        figure = getattr(picture, "figure", picture)
        figure.savefig(folder / name, dpi=150)
        pyplot().close(figure)
