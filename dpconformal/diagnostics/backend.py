"""ArviZ on demand, by its parts: the one place that imports them."""

import importlib
from typing import Any


def arviz_base() -> Any:
    """
    Import the part of ArviZ that converts.

    Returns
    -------
    module
        ``arviz_base``.

    Raises
    ------
    ImportError
        Saying how to install it.
    """
    return _imported("arviz_base")


def arviz_stats() -> Any:
    """
    Import the part of ArviZ that computes.

    Returns
    -------
    module
        ``arviz_stats``.

    Raises
    ------
    ImportError
        Saying how to install it.
    """
    return _imported("arviz_stats")


def arviz_plots() -> Any:
    """
    Import the part of ArviZ that draws.

    Returns
    -------
    module
        ``arviz_plots``.

    Raises
    ------
    ImportError
        Saying how to install it.
    """
    return _imported("arviz_plots")


def _imported(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise ImportError(f"this needs {name}: pip install 'dpconformal[arviz]'") from error
