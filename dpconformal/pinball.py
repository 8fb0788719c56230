"""The quantile loss."""

from typing import Any


def pinball(xp: Any, threshold: Any, score: Any, level: Any) -> Any:
    """Compute the quantile loss in a given namespace."""
    above = xp.maximum(threshold - score, 0)
    below = xp.maximum(score - threshold, 0)
    free = (level >= 1) | (above == 0)  # 0 · ∞ is 0 here
    return xp.where(free, 0, (1 - level) * xp.where(free, 0, above)) + level * below
