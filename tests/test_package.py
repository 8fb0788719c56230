"""The package as a whole: importing it is harmless, its public names are there, its modules stay in order."""

import ast
import importlib
import pathlib
import subprocess
import sys

import pytest

import dpconformal as dpc

ROOT = pathlib.Path(dpc.__file__).parent


def run_python(code):
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip()


def test_importing_changes_no_jax_setting_and_loads_nothing_heavy():
    code = """
import jax, sys
before = dict(jax.config.values)
import dpconformal
assert jax.config.values == before
heavy = "arviz_base arviz_stats arviz_plots numpyro matplotlib rich typer pandas xarray scipy arch sklearn".split()
heavy += ["pyarrow"]
heavy += [f"dpconformal.{name}" for name in "cli diagnostics dirichlet experiments metrics panel plots theory".split()]
print([module for module in heavy if module in sys.modules])
"""
    assert run_python(code) == "[]"


def test_names_that_are_imported_late_are_what_their_modules_have():
    """Finds a function that the folder of its name hides, and a name that only type checkers see."""
    code = """
import pickle, sys, types
import dpconformal as dpc
assert not [name for name in dpc.__all__ if name not in dir(dpc)]
assert "dpconformal.diagnostics" not in sys.modules
import dpconformal.report.page, dpconformal.replay
from dpconformal import *
from dpconformal import diagnostics, replay, report
assert diagnostics is dpc.diagnostics is sys.modules["dpconformal.diagnostics"]
assert isinstance(dpc.replay, types.FunctionType) and isinstance(dpc.report, types.FunctionType)
assert pickle.loads(pickle.dumps([dpc.report, dpc.Aggregate])) == [report, Aggregate]
try:
    dpc.nothing
except AttributeError as error:
    print(error)
"""
    assert run_python(code) == "module 'dpconformal' has no attribute 'nothing'"


def test_type_checkers_see_what_is_imported_late():
    seen = {}
    for node in ast.walk(ast.parse((ROOT / "__init__.py").read_text())):
        if isinstance(node, ast.If) and getattr(node.test, "id", "") == "TYPE_CHECKING":
            seen = {alias.name: inner.module for inner in node.body for alias in inner.names}
    assert seen.keys() == {*dpc._MODULES, *dpc._MODULE_OF}
    for name, module in seen.items():
        assert getattr(dpc, name) is getattr(importlib.import_module(module), name)


def test_works_as_it_is_without_any_setting():
    code = """
import numpy as np, dpconformal as dpc
scores = np.random.default_rng(0).beta(2, 5, 1000)
run = dpc.replay(dpc.Exact(), scores, levels=[0.5, 0.9])
state = dpc.Exact().observe(run.state, 0.3)
print(run.thresholds.dtype, run.thresholds.shape, float(dpc.metrics.summary(run).coverage.sel(level=0.9)) > 0.85)
"""
    assert run_python(code) == "float32 (1000, 2) True"


def test_public_names():
    for name in (
        "replay",
        "Exact",
        "Quantized",
        "ERM",
        "SplitConformal",
        *("OGD", "ACI", "MVP", "SFOGD", "SAOCP", "DtACI", "AgACI", "PID", "NExCP", "SlidingERM", "DiscountedERM"),
        "learners",
        "priors",
        "rates",
        "schedules",
        "metrics",
        "theory",
        "experiments",
        "plots",
    ):
        assert hasattr(dpc, name)
    assert set(dpc.__all__) <= set(dir(dpc))


def test_imports_point_one_way():
    """Down this list only: a module imports from its own layer or those above it."""
    names = (
        "pytree validation learner schedules rates priors rounds engine streams runs replay beliefs forecasts "
        "baselines compositions martingales checkpoints metrics scores models conformal theory display plots dirichlet "
        "diagnostics experiments report panel __init__ files cli __main__"
    )
    layers = names.split()
    for path in ROOT.rglob("*.py"):
        here = path.relative_to(ROOT).parts[0].removesuffix(".py")
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("dpconformal"):
                inner = (node.module or "").split(".")[1:]
                targets = inner[:1] or [alias.name for alias in node.names]
                for target in targets:
                    assert target in layers, f"{path}: {target} has no layer"
                    assert layers.index(target) <= layers.index(here), f"{path} imports {target}"


def test_compiled_programs_are_kept_on_disk_only_when_asked(tmp_path):
    code = f"""
import jax, numpy as np, dpconformal as dpc
scores = np.random.default_rng(0).random(300)
dpc.replay(dpc.Exact(), scores, [0.5])
assert jax.config.jax_compilation_cache_dir is None
print(dpc.compilation_cache({str(tmp_path / "kept")!r}))
dpc.replay(dpc.Quantized(9), scores, [0.5])
"""
    assert run_python(code) == str(tmp_path / "kept")
    kept = set((tmp_path / "kept").iterdir())
    assert kept
    run_python(code)
    assert {path for path in (tmp_path / "kept").iterdir() if not path.name.endswith("-atime")} <= kept


def test_a_directory_that_cannot_be_made_is_an_error(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ValueError, match=r"directory = .*file/below' cannot be made"):
        dpc.compilation_cache(tmp_path / "file" / "below")
