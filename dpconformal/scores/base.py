"""What a nonconformity score is, and how the arrays that go into one are read."""

from typing import Any, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np

from dpconformal.scores.edges import widest
from dpconformal.validation import Numbers, as_numbers, complain_at, float_dtype, is_traced


@runtime_checkable
class Score(Protocol):
    """
    How badly a label fits a prediction, and which labels fit well enough.

    A score is a frozen dataclass registered as a pytree, and works inside ``jit``. What is given as NumPy arrays or
    lists is computed by NumPy in float64, so that no digit of a large label is lost; JAX arrays are computed by JAX,
    in their own precision.

    Attributes
    ----------
    sides : int
        1; or 2 for scores that bound a label from below and from above with a stream of scores each. Their scores and
        thresholds have a leading axis for the sides, and each side is asked for the level (1 + α)/2.
    """

    @property
    def sides(self) -> int:
        """Streams of scores."""
        ...

    def __call__(self, predictions: Any, labels: Numbers) -> Any:
        """Score each label, shape (...), or (2, ...) for two sides."""
        ...

    def set(self, predictions: Any, thresholds: Numbers) -> Any:
        """Collect the labels whose score is at most the threshold, for thresholds of shape (..., A)."""
        ...

    def bounds(self, predictions: Any) -> tuple[float, float]:
        """Return the ends of the interval that holds every score of such predictions."""
        ...


def namespace(*values: Any) -> Any:
    """Choose who computes: JAX if any of the values is JAX's own, NumPy in float64 otherwise."""
    return jnp if any(isinstance(leaf, jax.Array) for leaf in jax.tree.leaves(values)) else np


def namespace_of_sets(predictions: Any, thresholds: Any) -> Any:
    """Choose who computes a set: predictions decide, for thresholds of a replay are JAX's, unless they are traced."""
    return namespace(predictions, thresholds if is_traced(thresholds) else None)


def reals(xp: Any, **named: Numbers) -> list[Any]:
    """Read arguments as finite real numbers of one floating type."""
    arrays = [as_numbers(name, value) for name, value in named.items()]
    for name, array in zip(named, arrays, strict=True):
        if not is_traced(array):
            complain_at(name, array, ~np.isfinite(array), "must be finite; drop the round or replace it on purpose")
    if xp is np:
        return [np.asarray(array, float) for array in arrays]
    dtype = np.result_type(*(float_dtype(array) for array in arrays))
    return [jnp.asarray(array, dtype) for array in arrays]


def same_shape(name: str, array: Any, shape: tuple[int, ...], why: str) -> None:
    """Check the shape of an argument."""
    if array.shape != shape:
        raise ValueError(f"{name} has shape {array.shape}: must be {shape}, {why}")


def read_thresholds(xp: Any, thresholds: Numbers, batch: tuple[int, ...], least: Any = np.float32) -> Any:
    """
    Read thresholds, a row of them for each prediction.

    Returns: For JAX of a floating type that loses nothing of either. For NumPy in float64, each moved up to the largest
    number that the precision of the thresholds does not tell from it: see :func:`dpconformal.scores.edges.widest`.
    """
    array = as_numbers("thresholds", thresholds)
    if array.shape[:-1] != batch or array.ndim != len(batch) + 1:
        raise ValueError(
            f"thresholds has shape {array.shape}: must be {(*batch, 'A')}, a row of A levels for each prediction"
        )
    if xp is np:
        return widest(array if array.dtype.kind == "f" else np.asarray(array, float))
    return jnp.asarray(array, np.result_type(float_dtype(array), least))
