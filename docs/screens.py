"""Photograph a report with headless Chromium, if there is one: part of `make pictures`."""

import pathlib
import sys
import tempfile

import dpconformal as dpc

ROOT = pathlib.Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "tests" / "integration"))
import browser  # noqa: E402

if program := browser.installed():
    scores = dpc.streams.drifting(6000)
    run = dpc.replay(dpc.Quantized(bins=256, discount=0.99), scores, [0.5, 0.8, 0.9, 0.95])
    with tempfile.TemporaryDirectory() as folder:
        page = dpc.report(run, pathlib.Path(folder) / "report.html", title="Drifting scores")
        with browser.Browser(program, pathlib.Path(folder) / "profile") as window:
            window.open(page.as_uri() + "#level=0.9", 1200, 1000)
            window.settle()
            window.picture(ROOT / "docs" / "images" / "report.png")
else:
    print("no Chromium: report.png stays as it is")
