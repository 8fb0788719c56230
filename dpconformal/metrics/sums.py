"""Sums over rounds that say so when they overflow."""

from typing import Any

import numpy as np


def total_over_rounds(xp: Any, values: Any, what: str) -> Any:
    """Sum over the round axis."""
    if xp is not np:
        return xp.sum(values, axis=-2)
    with np.errstate(over="ignore", invalid="ignore"):
        total = np.sum(values, axis=-2)
    if not np.isfinite(total).all() and (~np.isfinite(total) & np.isfinite(values).all(axis=-2)).any():
        raise ValueError(
            f"run has {what} that add up to more than float64 holds ({np.finfo(float).max:.3g}); rescale the scores"
        )
    return total
