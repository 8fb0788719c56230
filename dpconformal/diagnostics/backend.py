"""ArviZ on demand, by its parts: the one place that imports them."""

import importlib
from typing import Any


def arviz(part: str) -> Any:
    """Import a part of ArviZ."""
    try:
        return importlib.import_module(f"arviz_{part}")
    except ImportError as error:
        raise ImportError(f"this needs arviz_{part}: pip install '.[arviz]' in a clone of dpconformal") from error
