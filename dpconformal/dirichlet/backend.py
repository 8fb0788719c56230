"""NumPyro on demand: the one place that imports it."""

import importlib
from typing import Any


def numpyro() -> Any:
    """
    Import NumPyro, which only the models and the Beta marginals need.

    Returns
    -------
    module
        ``numpyro``.

    Raises
    ------
    ImportError
        Saying how to install it.
    """
    return _imported("numpyro")


def numpyro_distributions() -> Any:
    """
    Import NumPyro's distributions.

    Returns
    -------
    module
        ``numpyro.distributions``.

    Raises
    ------
    ImportError
        Saying how to install it.
    """
    return _imported("numpyro.distributions")


def numpyro_infer() -> Any:
    """
    Import NumPyro's samplers.

    Returns
    -------
    module
        ``numpyro.infer``.

    Raises
    ------
    ImportError
        Saying how to install it.
    """
    return _imported("numpyro.infer")


def _imported(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise ImportError("this needs NumPyro: pip install 'dpconformal[numpyro]'") from error
