"""NumPyro on demand: the one place that imports it."""

import importlib
import sys
from typing import Any


def numpyro() -> Any:
    """Import NumPyro, which only the models and the Beta marginals need."""
    package = _imported("numpyro")
    _mended(package.distributions)
    return package


def numpyro_distributions() -> Any:
    """Import NumPyro's distributions."""
    return _mended(numpyro().distributions)


def numpyro_infer() -> Any:
    """Import NumPyro's samplers."""
    numpyro()
    return _imported("numpyro.infer")


def _mended(package: Any) -> Any:
    """
    Give a package the submodules that it has lost.

    ArviZ 1.x puts a lazy NumPyro in its place. If then ``numpyro.distributions`` is imported first, Python executes it
    twice, and the second time sets no attributes for submodules that are there already; ``numpyro.factor`` needs one.
    """
    for name, module in list(sys.modules.items()):
        parent, _, child = name.rpartition(".")
        if parent == package.__name__ and not hasattr(package, child):
            setattr(package, child, module)
    return package


def _imported(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise ImportError("this needs NumPyro: pip install '.[numpyro]' in a clone of dpconformal") from error
