"""``dpconformal diagnose``: tests whether scores are iid and whether coverage is right."""

import tempfile
from pathlib import Path
from typing import Annotated, NamedTuple

import numpy as np
import typer

import dpconformal as dpc
from dpconformal.cli import options
from dpconformal.cli.jobs import replay_to_disk, runs_of
from dpconformal.diagnostics.coverage import ljung_box
from dpconformal.display import save_figure, track
from dpconformal.display.terminal import Terminal, table
from dpconformal.files import staging_folder
from dpconformal.validation import format_level

_LAGS = 10
_SUSPICIOUS = 0.01  # a p-value below this is worth a word
_ALARM = 1 / _SUSPICIOUS  # and so is a capital above this
_SHOWN = 10  # series in the terminal
_COLOURS = {
    "yes": "[green]yes[/green]",
    "too often": "[yellow]too often[/yellow]",
    "no": "[red]no[/red]",
    "cannot say": "[dim]cannot say[/dim]",
}


class Answer(NamedTuple):
    """A question with its answer and the evidence."""

    question: str
    answer: str
    evidence: str


@options.expand_groups
def diagnose(
    *,
    file: options.FileOptions,
    learner: Annotated[str, typer.Option(help=f"Whose coverage: one of {options.LEARNERS}.")] = "exact",
    common: options.LearnerOptions,
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
    import pandas as pd

    options.use_float64()
    console = Terminal()
    levels = common.read_levels()
    made = options.make_learner(learner, levels, common.settings())
    with tempfile.TemporaryDirectory() as work:
        recorded = file.read({learner: made}, common.ends, Path(work))
        for name, length in zip(recorded.names, recorded.lengths, strict=True):
            if length < 2 * _LAGS:
                which = f"series {name}" if name else "it"
                raise ValueError(
                    f"{recorded.source}: {which} has fewer than {2 * _LAGS} scores, too few to say anything"
                )
        thresholds, _ = replay_to_disk(made, recorded, levels, Path(work) / "run")
        runs = runs_of(made, recorded, levels, thresholds)
    with staging_folder(out) as folder:
        answers: dict[str, list[Answer]] = {}
        for name in track(list(runs), "asking"):
            run = runs[name]
            width = max(_LAGS, run.scores.shape[0] // 10) if rolling is None else rolling
            bets = dpc.martingales.exchangeability(np.asarray(run.scores), threshold=_ALARM, seed=seed)
            answers[name] = _ask_questions(run, bets, width)
            if len(answers) == 1:
                _save_pictures(run, bets, width, folder)
        for name in list(answers)[:_SHOWN]:
            which = f", series {name}" if name else ""
            title = f"{Path(recorded.source).name}{which}: {runs[name].scores.shape[0]:,} scores; coverage of {learner}"
            cells = [[row.question, _COLOURS[row.answer], row.evidence] for row in answers[name]]
            console.print(table(title, ("question", "answer", "evidence"), cells, left=3))
        if len(answers) > _SHOWN:
            console.print(f"the first {_SHOWN} of {len(answers):,} series; all are in diagnose.csv")
        rows = [{"series": name, **row._asdict()} for name, found in answers.items() for row in found]
        pd.DataFrame(rows).to_csv(folder / "diagnose.csv", index=False)
        files = sorted(file.name for file in folder.iterdir())
    console.print(
        "[bold]iid[/bold]: ranks among the past are uniform if the scores are exchangeable, whatever their "
        "distribution. Then who bets on them is unlikely to grow rich, at any time: a capital of 1 ever becomes "
        f"{_ALARM:g} with a chance of {_SUSPICIOUS:g} at most. "
        "[bold]misses[/bold]: pure chance if they neither cluster nor avoid each other."
    )
    if any(row.answer == "too often" for rows in answers.values() for row in rows):
        console.print(
            "[bold]too often[/bold]: sets are wider than they need be. Early on, and with a discount for good, a prior "
            "far from the scores does that: try --prior histogram:OLD_SCORES, or half-cauchy with a typical score."
        )
    where = "" if recorded.is_single else f" (pictures of series {recorded.names[0]})"
    console.say(f"written to {out}/: {', '.join(files)}{where}")


def _ask_questions(run: dpc.Replay, bets: dpc.martingales.Exchangeability, window: int) -> list[Answer]:
    uniform = dpc.diagnostics.uniformity(bets.ranks)
    order = float(ljung_box(bets.ranks[:, None], _LAGS)[1][0])
    most = float(bets.log_maximum[-1] / np.log(10))
    capital = f"capital up to {f'1e{most:.0f}' if most >= 4 else f'{10**most:.3g}'}"
    alarm = f"alarm in round {bets.alarm:,}" if bets.alarm else f"an alarm is {_ALARM:g}"
    rows = [
        Answer("iid: ranks uniform?", _verdict(uniform.inside), _p_value(uniform.p_value)),
        Answer("iid: ranks without memory?", _verdict(order >= _SUSPICIOUS), f"{_p_value(order)} over {_LAGS} lags"),
        Answer("iid: at all times?", _verdict(not bets.alarm), f"{capital}; {alarm}"),
    ]
    curve, band = dpc.diagnostics.coverage_curve(run), dpc.diagnostics.rolling_band(run, window)
    misses = dpc.diagnostics.miss_dependence(run, _LAGS)
    for level in curve.level.values:
        name = format_level(level)
        here, low, high = (float(curve[end].sel(level=level)) for end in ("coverage", "low", "high"))
        enough = _verdict(bool(low <= level <= high), bool(here > level))
        rows.append(Answer(f"{name}: often enough?", enough, f"{here:.3f}, 95 % interval {low:.3f} … {high:.3f}"))
        steady, seen = bool(band.passed.sel(level=level)), band.coverage.sel(level=level)
        reach = f"{float(seen.min()):.3f} … {float(seen.max()):.3f} over {window:,} rounds"
        rows.append(Answer(f"{name}: at all times?", _verdict(steady), reach))
        p = float(misses.ljung_box_p.sel(level=level))
        unknown = bool(np.isnan(p))
        chance = "cannot say" if unknown else _verdict(p >= _SUSPICIOUS)
        rows.append(Answer(f"{name}: misses by chance?", chance, "" if unknown else _p_value(p)))
    return rows


def _verdict(passed: bool, above: bool = False) -> str:
    return "yes" if passed else "too often" if above else "no"


def _p_value(p: float) -> str:
    return "p < 1e-16" if p < 1e-16 else f"p = {p:.2g}"


def _save_pictures(run: dpc.Replay, bets: dpc.martingales.Exchangeability, window: int, folder: Path) -> None:
    save_figure(dpc.diagnostics.plot_uniformity(bets.ranks).figure, folder / "ranks.png")
    save_figure(dpc.diagnostics.plot_martingale(bets).figure, folder / "martingale.png")
    save_figure(dpc.diagnostics.plot_coverage(run).figure, folder / "coverage.png")
    save_figure(dpc.diagnostics.plot_rolling(run, window), folder / "rolling.png")
