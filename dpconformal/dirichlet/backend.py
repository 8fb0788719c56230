"""NumPyro on demand: the one place that imports it."""

import importlib
from typing import Any


def numpyro() -> Any:
    """Import NumPyro, which only the models and the Beta marginals need."""
    package = _imported("numpyro")
    # ArviZ 1.x puts a lazy NumPyro in its place. Whole before its parts: else Python would execute these twice.
    assert package.__version__
    return package


def numpyro_distributions() -> Any:
    """Import NumPyro's distributions."""
    return numpyro().distributions


def numpyro_infer() -> Any:
    """Import NumPyro's samplers."""
    numpyro()
    return _imported("numpyro.infer")


def _imported(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise ImportError("this needs NumPyro: pip install '.[numpyro]' in a clone of dpconformal") from error
