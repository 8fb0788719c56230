"""The examples of README and docs run as they stand."""

import pathlib
import re
import types

import matplotlib as mpl
import matplotlib.pyplot as plt
import pytest
from cases import ALL

import dpconformal as dpc

ROOT = pathlib.Path(__file__).parent.parent
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").glob("*.md")]
mpl.use("Agg")


@pytest.mark.parametrize(
    "page",
    [
        "README.md",
        "CONTRIBUTING.md",
        *(f"docs/{name}.md" for name in ("getting_started", "sets", "speed", "baselines", "theory", "experiments")),
        *(f"docs/{name}.md" for name in ("dirichlet", "diagnostics", "exchangeability", "panels")),
        *(f"docs/{name}.md" for name in ("automatic", "delay", "groups")),
    ],
)
def test_examples_run(page):
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(), re.DOTALL)
    assert blocks
    space = {}
    for block in blocks:
        exec(compile(block, page, "exec"), space)
    plt.close("all")


def test_the_table_of_learners_is_the_catalogue():
    assert (ROOT / "docs" / "learners.md").read_text() == dpc.learners().markdown(), "run make pictures"


def test_every_learner_has_a_card_a_picture_and_a_place_in_the_reference():
    made = {type(learner).__name__ for learner in ALL.values()} | {"Aggregate"}
    assert {card.name for card in dpc.learners()} == made | {"Hierarchical"}
    page, reference = (ROOT / "docs" / "baselines.md").read_text(), (ROOT / "docs" / "api.md").read_text()
    for name in made:
        assert f"images/behaviour_{name}.png" in page
        assert (ROOT / "docs" / "images" / f"behaviour_{name}.png").exists()
        assert f"   {name}\n" in reference
    assert "   Hierarchical\n" in reference  # without such a picture: the streams of one have no groups


def test_every_experiment_has_a_picture():
    page, reference = (ROOT / "docs" / "experiments.md").read_text(), (ROOT / "docs" / "api.md").read_text()
    for name in dpc.experiments.EXPERIMENTS:
        assert f"dpconformal experiment {name}" in page
        assert f"images/experiment_{name}.png" in page
        assert (ROOT / "docs" / "images" / f"experiment_{name}.png").exists()
        assert f"   experiments.{name}\n" in reference


def public_names():
    """Everything that `import dpconformal as dpc` offers by name, and what its modules offer."""
    for name in dpc.__all__:
        thing = getattr(dpc, name)
        if isinstance(thing, types.ModuleType):
            assert thing.__all__, f"dpc.{name} does not say what it offers"
            yield from (f"{name}.{inner}" for inner in thing.__all__)
        else:
            yield name


def test_every_public_name_is_in_the_reference():
    reference = (ROOT / "docs" / "api.md").read_text()
    missing = [name for name in public_names() if f"   {name}\n" not in reference]
    assert not missing
    for line in re.findall(r"^   ([\w.]+)$", reference, re.MULTILINE):  # and nothing else is
        thing = dpc
        for part in line.split("."):
            thing = getattr(thing, part)


def test_every_page_is_in_the_table_of_contents_and_links_lead_somewhere():
    pages = {path.stem for path in (ROOT / "docs").glob("*.md")} - {"index", "learners"}
    listed = re.findall(r"^([\w]+)$", (ROOT / "docs" / "index.md").read_text(), re.MULTILINE)
    assert set(listed) == pages
    for path in PAGES:
        for link in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", path.read_text()):
            assert (path.parent / link).exists(), f"{path.name}: {link}"
        for image in re.findall(r"\{image\} (\S+)", path.read_text()):
            assert (path.parent / image).exists(), f"{path.name}: {image}"


def headings(path):
    """Anchors of a page, as Sphinx and forges make them of its headings: words, hyphens in the place of blanks."""
    text = re.sub(r"```.*?```", "", path.read_text(), flags=re.DOTALL)
    lines = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return {re.sub(r"[^\w -]", "", line.lower()).replace(" ", "-") for line in lines}


def test_links_to_headings_lead_to_one():
    """Finds links whose page exists and whose anchor does not: they lead to the top of the page."""
    for path in PAGES:
        for page, anchor in re.findall(r"\]\(([^)#:]*)#([^)]+)\)", path.read_text()):
            assert anchor in headings(path.parent / page if page else path), f"{path.name}: {page}#{anchor}"


def test_pages_name_commands_that_there_are():
    """Finds targets of make that are gone or left out, and installations of what was never released."""
    targets = set(re.search(r"^\.PHONY: (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)[1].split())
    for path in PAGES:
        text = path.read_text()
        assert set(re.findall(r"`make ([a-z-]+)", text)) <= targets, path.name
    for path in [*PAGES, *(ROOT / "dpconformal").rglob("*.py")]:
        assert "pip install 'dpconformal" not in path.read_text(), f"{path.name}: say how from a clone"
    listed = re.findall(r"^make ([a-z-]+)", (ROOT / "CONTRIBUTING.md").read_text(), re.MULTILINE)
    assert set(listed) == targets - {"help", "demo", "clean"}


def test_the_map_of_the_package_is_complete():
    """Finds folders and modules that moved: the table of CONTRIBUTING names each of them once."""
    section = (ROOT / "CONTRIBUTING.md").read_text().split("## Where things live")[1].split("\n## ")[0]
    rows = re.findall(r"^\| (`.*?) \|", section, re.MULTILINE)
    named = [name for row in rows for name in re.findall(r"`([^`]+)`", row)]
    folders = {f"{path.parent.name}/" for path in (ROOT / "dpconformal").glob("*/__init__.py")}
    modules = {path.name for path in (ROOT / "dpconformal").glob("*.py") if not path.name.startswith("__")}
    assert sorted(named) == sorted(folders | modules)


def test_modules_that_pages_name_are_there():
    """Finds files of the package, of the tests and of the docs that a page names and that moved."""
    for path in PAGES:
        for name in re.findall(r"`((?:[\w.]+/)+[\w.]+\.(?:py|md|csv|toml))`", path.read_text()):
            there = [ROOT / name, ROOT / "dpconformal" / name]
            assert any(place.exists() for place in there), f"{path.name}: {name}"


def test_monotone_on_a_card_means_a_belief():
    for learner in [*ALL.values(), dpc.auto(bins=8, longest=8), dpc.Hierarchical(2)]:
        card = dpc.learners()[type(learner).__name__]
        assert card.monotone == (card.levels == "any") == hasattr(learner, "cdf")
    assert "ACI" in repr(dpc.learners())
    with pytest.raises(KeyError, match="the learners are Exact"):
        dpc.learners()["aci"]


def test_the_tests_that_hold_promises_are_there():
    """Would find a promise whose test was renamed or taken away."""
    named, there = set(), {path.name for path in (ROOT / "tests").rglob("*.py")}
    for page in ("SECURITY", "reliability", "theory"):
        named |= set(re.findall(r"\btest_\w+(?:\.py)?", (ROOT / "docs" / f"{page}.md").read_text()))
    there |= {
        name for path in (ROOT / "tests").glob("test_*.py") for name in re.findall(r"def (\w+)", path.read_text())
    }
    assert len(named) > 20
    assert not named - there
