"""The examples of README and docs run as they stand."""

import pathlib
import re

import matplotlib as mpl
import matplotlib.pyplot as plt
import pytest

ROOT = pathlib.Path(__file__).parent.parent
mpl.use("Agg")


@pytest.mark.parametrize("page", ["README.md", "docs/quickstart.md", "docs/speed.md"])
def test_examples_run(page):
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(), re.DOTALL)
    assert blocks
    space = {}
    for block in blocks:
        exec(compile(block, page, "exec"), space)
    plt.close("all")
