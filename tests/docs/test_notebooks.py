"""The notebooks run from start to end, and read well unrun."""

import importlib.util
import pathlib
import re
import time

import nbformat
import pytest

FOLDER = pathlib.Path(__file__).parents[2] / "notebooks"
NAMES = sorted(path.name for path in FOLDER.glob("*.ipynb"))

_spec = importlib.util.spec_from_file_location("execute", FOLDER / "execute.py")
_module = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(_module)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # of the client and its sockets; those of a notebook show in its outputs
@pytest.mark.parametrize("name", NAMES)
def test_runs_without_a_word_of_warning_and_writes_nothing(name, tmp_path, monkeypatch):
    monkeypatch.delenv("XLA_FLAGS", raising=False)
    start = time.monotonic()
    notebook = _module.execute(FOLDER / name, tmp_path)
    assert time.monotonic() - start < 180
    assert not list(tmp_path.iterdir())
    for cell in notebook.cells:
        for output in cell.get("outputs", ()):
            assert output.get("name") != "stderr", output["text"]


@pytest.mark.parametrize("name", NAMES)
def test_committed_with_outputs_pictures_and_captions(name):
    notebook = nbformat.read(FOLDER / name, as_version=4)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    text = "\n".join(cell.source for cell in notebook.cells if cell.cell_type == "markdown")
    assert all(cell.execution_count for cell in code), "run make notebooks"
    outputs = [output for cell in code for output in cell.outputs]
    assert not any(output.output_type == "error" or output.get("name") == "stderr" for output in outputs)
    figures = [output for output in outputs if "image/png" in output.get("data", {})]
    captions = re.findall(r"^\*\*Figure (\d+)\.\*\*", text, re.MULTILINE)
    assert len(figures) >= 2
    assert captions == [str(k + 1) for k in range(len(figures))]
    assert text.startswith("# ")
    assert "## What to take away" in text
    assert not re.search(r"/home/|/work/|/tmp/|/root/", str(notebook))


@pytest.mark.parametrize("name", NAMES)
def test_links_lead_somewhere(name):
    notebook = nbformat.read(FOLDER / name, as_version=4)
    for cell in notebook.cells:
        if cell.cell_type == "markdown":
            for link in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", cell.source):
                assert link.startswith("https://") or (FOLDER / link).exists(), link


def test_there_are_six():
    assert [name[:2] for name in NAMES] == ["01", "02", "03", "04", "05", "06"]
