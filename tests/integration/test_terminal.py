"""Names from files are shown by commands and pictures as they stand, and never obeyed."""

import io
import unicodedata

import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest
from commands import run_command

import dpconformal as dpc
from dpconformal.display import LONGEST, as_label, visible
from dpconformal.display.terminal import Terminal, table

mpl.use("Agg")
ACTS = "\x1b[2J\x1b]0;x\x07\u202e\u2066\x9b1m"  # clear the screen, name the window, ring, write backwards
COLUMN, SERIES, FILE = f"s{ACTS}$\\frac{{$", f'"{ACTS}\n$\\frac{{$[/bold]:art:', f"f{ACTS}\n$\\frac{{$.csv"
SCORES = np.random.default_rng(0).random(64).round(3)


def harmless(text):
    """Whether nothing in a text acts on a terminal."""
    return all(sign == "\n" or unicodedata.category(sign)[0] not in ("C",) for sign in text)


@pytest.fixture
def run(monkeypatch, capfd, tmp_path):
    """Run a command beside a file of hostile names: its code, and what it and its children wrote."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    frame = pd.DataFrame({"id": np.repeat([SERIES, "b"], 32), COLUMN: SCORES, "t": np.tile(np.arange(32), 2)})
    frame.to_csv(FILE, index=False)
    (tmp_path / "tables").mkdir()
    # Zarr takes a backslash in a name for a folder.
    frame.rename(columns={COLUMN: f"s{ACTS}"}).to_parquet(f"tables/{FILE}.parquet", index=False)

    def command(*words):
        code, out, err = run_command(monkeypatch, capfd, *words)
        assert harmless(out), repr(out)
        assert harmless(err), repr(err)
        return code, out, err

    yield command
    plt.close("all")


# Would find names that reach the terminal raw, and a name that is taken for a formula once all work is done.
@pytest.mark.parametrize("command", ["replay", "compare", "diagnose"])
def test_commands_show_names_and_write_them_as_they_are(run, command):
    learner = ("--learners", "quantized,erm") if command == "compare" else ("--learner", "quantized")
    code, out, err = run(command, FILE, "--column", COLUMN, "--batch", "id", "--levels", "0.5", *learner, "--out", ACTS)
    assert (code, err) == (0, ""), err
    assert r"\x1b[2J\x1b]0;x\x07\u202e\u2066\x9b1m" in out
    if command == "replay":
        assert set(pd.read_csv(f"{ACTS}/summary.csv", lineterminator="\n")["series"]) == {SERIES, "b"}
        assert set(pq.read_table(f"{ACTS}/thresholds.parquet")["series"].to_pylist()) == {SERIES, "b"}


# Would find errors that repeat the words of a command or the names of a file raw; typer writes some of them by itself.
@pytest.mark.parametrize(
    "words",
    [
        ("replay", FILE),
        ("replay", FILE, "--column", f"x{ACTS}"),
        ("replay", FILE, "--column", "id"),
        ("replay", FILE, "--column", COLUMN),
        ("compare", FILE, "--column", COLUMN, "--batch", "id", "--range", "0,0.5"),
        ("diagnose", f"no{ACTS}"),
        ("replay", FILE, "--delay", ACTS),
        ("replay", FILE, f"--{ACTS}"),
        ("replay", FILE, "more", ACTS),
        (ACTS,),
        ("experiment", ACTS),
        ("experiment", "stock", "--prices", FILE, "--column", "id"),
        ("experiment", "stock", "--prices", f"no{ACTS}"),
        ("compare", FILE, "--learners", f"exact:{ACTS}"),
        ("panel", "tables", "--id", "id", "--time", ACTS, "--out", f"{ACTS}.csv"),
        ("panel", f"no{ACTS}"),
    ],
)
def test_errors_show_names(run, words):
    code, _, err = run(*words)
    assert code == 2
    assert "\\x1b" in err or COLUMN not in repr(words)


# Would find a bar, a warning or a worker's complaint that writes names on its own.
def test_panels_show_names(run):
    given = (
        "panel",
        "tables",
        "--id",
        "id",
        "--score",
        f"s{ACTS}",
        "--levels",
        "0.5",
        "--workers",
        "1",
        "--learner",
        "erm",
    )
    code, out, err = run(*given, "--time", "t", "--out", f"{ACTS}.zarr")
    assert code == 0, err
    assert "\\x1b" in out
    code, _, err = run(*given, "--time", "id", "--out", "other.zarr")
    assert code == 2
    assert "error" in err


def test_progress_on_a_terminal_is_ours_alone(monkeypatch):
    """The console writes escape sequences of its own, and none that it was given."""
    terminal = Terminal()
    terminal.file, terminal._force_terminal = io.StringIO(), True
    with terminal.status(f"[red]x{ACTS}"):
        terminal.print(table(f"t{ACTS}", [f"h{ACTS}"], [[f"c{ACTS}"]]))
        terminal.print(f"[bold]{ACTS} :art:")
    written = terminal.file.getvalue()
    for sign in ("\x1b[2J", "\x1b]", "\x07", "\u202e", "\x9b", "🎨"):
        assert sign not in written


@pytest.mark.parametrize("name", ["$\\frac{$", "a\\$b$", "$x$", "\\", f"a{ACTS}\n", "é", "x" * 10**6, "\udcff"])
def test_labels_are_drawn_letter_by_letter(name):
    figure = plt.figure()
    text = figure.text(0, 0, as_label(name))
    shown, formula = text._preprocess_math(text.get_text())
    assert not formula
    assert shown.replace("$", r"\$") == as_label(name)
    assert len(shown) <= LONGEST
    if len(name) < 9 and harmless(name):
        assert shown == name
        figure.savefig(io.BytesIO())


def test_names_of_learners_in_pictures_are_no_formulas():
    ranks = {"$\\frac{$": dpc.martingales.exchangeability(SCORES), "b": dpc.martingales.exchangeability(SCORES)}
    dpc.diagnostics.plot_martingale(ranks).figure.savefig(io.BytesIO())
    plt.close("all")


def test_visible_text_is_left_alone():
    for text in ("", "π ≤ é 日本 👍", "two\nlines"):
        assert visible(text) == text
