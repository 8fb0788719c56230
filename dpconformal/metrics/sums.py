"""Sums over rounds that say so when they overflow."""

from typing import Any

import numpy as np


def total_over_rounds(xp: Any, values: Any, what: str) -> Any:
    """
    Sum over the round axis.

    Parameters
    ----------
    xp : module
        ``numpy``, or ``jax.numpy`` inside ``jit``.
    values : array, shape (..., T, A)
        One value a round and level; infinite ones are welcome.
    what : str
        What is added up, for the error.

    Returns
    -------
    array, shape (..., A)
        The sums.

    Raises
    ------
    ValueError
        If finite values add up to more than float64 holds.

    Examples
    --------
    >>> import numpy as np
    >>> total_over_rounds(np, np.array([[1.0], [2.0]]), "losses")
    array([3.])
    """
    if xp is not np:
        return xp.sum(values, axis=-2)
    with np.errstate(over="ignore", invalid="ignore"):
        total = np.sum(values, axis=-2)
    if not np.isfinite(total).all() and (~np.isfinite(total) & np.isfinite(values).all(axis=-2)).any():
        raise ValueError(
            f"run has {what} that add up to more than float64 holds ({np.finfo(float).max:.3g}); rescale the scores"
        )
    return total
