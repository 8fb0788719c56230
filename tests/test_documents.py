"""The examples of README and docs run as they stand."""

import pathlib
import re

import matplotlib as mpl
import matplotlib.pyplot as plt
import pytest
from cases import ALL

import dpconformal as dpc

ROOT = pathlib.Path(__file__).parent.parent
mpl.use("Agg")


@pytest.mark.parametrize(
    "page",
    [
        "README.md",
        *(f"docs/{name}.md" for name in ("quickstart", "speed", "baselines", "theory", "experiments")),
        *(f"docs/{name}.md" for name in ("dirichlet", "diagnostics")),
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
    made = {type(learner).__name__ for learner in ALL.values()}
    assert {card.name for card in dpc.learners()} == made
    page, reference = (ROOT / "docs" / "baselines.md").read_text(), (ROOT / "docs" / "api.md").read_text()
    for name in made:
        assert f"images/behaviour_{name}.png" in page
        assert (ROOT / "docs" / "images" / f"behaviour_{name}.png").exists()
        assert f"   {name}\n" in reference


def test_every_experiment_has_a_picture_and_every_public_name_a_place():
    page, reference = (ROOT / "docs" / "experiments.md").read_text(), (ROOT / "docs" / "api.md").read_text()
    for name in dpc.experiments.EXPERIMENTS:
        assert f"dpconformal experiment {name}" in page
        assert f"images/experiment_{name}.png" in page
        assert (ROOT / "docs" / "images" / f"experiment_{name}.png").exists()
        assert f"   experiments.{name}\n" in reference
    for module in ("theory", "dirichlet", "diagnostics"):
        for name in getattr(dpc, module).__all__:
            assert f"   {module}.{name}\n" in reference


def test_monotone_on_a_card_means_a_belief():
    for learner in ALL.values():
        card = dpc.learners()[type(learner).__name__]
        assert card.monotone == (card.levels == "any") == hasattr(learner, "cdf")
    assert "ACI" in repr(dpc.learners())
    with pytest.raises(KeyError, match="the learners are Exact"):
        dpc.learners()["aci"]
