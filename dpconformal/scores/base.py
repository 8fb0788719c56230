"""What a nonconformity score is, how its arguments are read, and the outermost numbers of a set to the last bit."""

from collections.abc import Callable
from types import ModuleType
from typing import Any, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np

from dpconformal.validation import Numbers, as_numbers, float_dtype, is_traced, raise_at


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

    def __call__(self, predictions: Any, labels: Numbers) -> Any:
        """Score each label, shape (...), or (2, ...) for two sides."""

    def set(self, predictions: Any, thresholds: Numbers) -> Any:
        """Collect the labels whose score is at most the threshold, for thresholds of shape (..., A)."""

    def bounds(self, predictions: Any) -> tuple[float, float]:
        """Return the ends of the interval that holds every score of such predictions."""


def namespace(*values: Any) -> Any:
    """Choose who computes: JAX if any of the values is JAX's own, NumPy in float64 otherwise."""
    return jnp if any(isinstance(leaf, jax.Array) for leaf in jax.tree.leaves(values)) else np


def namespace_of_sets(predictions: Any, thresholds: Any) -> Any:
    """Choose who computes a set: predictions decide, for thresholds of a replay are JAX's, unless they are traced."""
    return namespace(predictions, thresholds if is_traced(thresholds) else None)


def reals(xp: ModuleType, **named: Numbers) -> list[Any]:
    """Read arguments as finite real numbers of one floating type."""
    arrays = [as_numbers(name, value) for name, value in named.items()]
    for name, array in zip(named, arrays, strict=True):
        if not is_traced(array):
            raise_at(name, array, ~np.isfinite(array), "must be finite; drop the round or replace it on purpose")
    if xp is np:
        return [np.asarray(array, float) for array in arrays]
    dtype = np.result_type(*(float_dtype(array) for array in arrays))
    return [jnp.asarray(array, dtype) for array in arrays]


def same_shape(name: str, array: Any, shape: tuple[int, ...], why: str) -> None:
    """Check the shape of an argument."""
    if array.shape != shape:
        raise ValueError(f"{name} has shape {array.shape}: must be {shape}, {why}")


def read_thresholds(xp: ModuleType, thresholds: Numbers, batch: tuple[int, ...], least: Any = np.float32) -> Any:
    """
    Read thresholds, a row of them for each prediction.

    For JAX they have a floating type that loses nothing of either. For NumPy they are those of :func:`widest`.
    """
    array = as_numbers("thresholds", thresholds)
    if array.shape[:-1] != batch or array.ndim != len(batch) + 1:
        raise ValueError(
            f"thresholds has shape {array.shape}: must be {(*batch, 'A')}, a row of A levels for each prediction"
        )
    return widest(array) if xp is np else jnp.asarray(array, np.result_type(float_dtype(array), least))


def widest(thresholds: Numbers) -> np.ndarray:
    """
    Find the largest float64 that is at most the threshold once it is rounded to the threshold's own precision.

    Scores are compared with thresholds in the precision of a run. In float32 a score a little above the threshold is
    rounded to it, and is covered.
    """
    given = np.asarray(as_numbers("thresholds", thresholds))
    wide = given.astype(np.float64)
    if given.dtype.kind != "f" or given.dtype == np.float64:
        return wide
    with np.errstate(over="ignore", invalid="ignore"):  # an infinite threshold has no neighbour further out
        middle = wide + (np.nextafter(given, given.dtype.type(np.inf)).astype(np.float64) - wide) / 2
        middle = np.where(np.isfinite(middle), middle, wide)
        back = middle.astype(given.dtype) > given  # a tie that is rounded up
    return np.where(back, np.nextafter(middle, -np.inf), middle)


def outermost(
    score: Callable[[np.ndarray, np.ndarray], np.ndarray], limits: np.ndarray, guess: np.ndarray, sign: int
) -> np.ndarray:
    """
    Find the outermost number, in the direction of ``sign``, whose score is at most its limit.

    ``score`` takes numbers and their places in the flattened arrays, and does not fall in that direction. The guess is
    close to the answer, and of the shape of the limits. It comes back as it is where it is not finite, and where no
    number has such a score.
    """
    found = np.array(guess, np.float64).ravel()
    limits = np.broadcast_to(limits, np.shape(guess)).ravel()
    places = np.flatnonzero(np.isfinite(found) & np.isfinite(limits))
    start = _reorder(found[places].view(np.int64))  # neighbouring floats are neighbouring integers

    def is_inside(numbers: np.ndarray, which: Any = slice(None)) -> np.ndarray:
        at = places[which]
        with np.errstate(all="ignore"):  # a step too far may overflow, and is outside then
            return score(_reorder(numbers).view(np.float64), at) <= limits[at]

    inside = is_inside(start)
    way = np.where(inside, sign, -sign)
    # In steps that double, until one number is inside and one is outside; then halve the distance.
    near, far = start.copy(), start.copy()  # inside, outside
    last, step, todo = np.float64(np.inf).view(np.int64), 1, np.arange(places.size)
    for _ in range(63):
        if not todo.size:
            break
        numbers_left = last - np.maximum(way[todo] * start[todo], 0)
        moved = start[todo] + way[todo] * np.minimum(step, numbers_left)
        now = is_inside(moved, todo)
        near[todo], far[todo] = np.where(now, moved, near[todo]), np.where(now, far[todo], moved)
        step, todo = 2 * step, todo[now == inside[todo]]
    settled = np.ones(places.size, bool)
    settled[todo] = False  # nothing near the guess has the score: leave it
    todo = np.flatnonzero(settled & (np.abs(near - far) > 1))
    while todo.size:
        middle = near[todo] + (far[todo] - near[todo]) // 2
        now = is_inside(middle, todo)
        near[todo], far[todo] = np.where(now, middle, near[todo]), np.where(now, far[todo], middle)
        todo = todo[np.abs(near[todo] - far[todo]) > 1]
    found[places[settled]] = _reorder(near[settled]).view(np.float64)
    return found.reshape(np.shape(guess))


def _reorder(bits: np.ndarray) -> np.ndarray:
    """Turn the bits of floats into integers in the same order, and such integers back into bits."""
    return np.where(bits < 0, np.int64(-(2**63)) - bits, bits)
