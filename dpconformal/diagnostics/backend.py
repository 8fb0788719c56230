"""ArviZ on demand, by its parts: the one place that imports them."""

import importlib
from typing import Any


def arviz(part: str) -> Any:
    """
    Import a part of ArviZ.

    Parameters
    ----------
    part : {"base", "stats", "plots"}
        What converts, what computes, or what draws.

    Returns
    -------
    module
        ``arviz_base``, ``arviz_stats`` or ``arviz_plots``.

    Raises
    ------
    ImportError
        Saying how to install it.
    """
    try:
        return importlib.import_module(f"arviz_{part}")
    except ImportError as error:
        raise ImportError(f"this needs arviz_{part}: pip install '.[arviz]' in a clone of dpconformal") from error
