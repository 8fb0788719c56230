"""What a nonconformity score is, and how the arrays that go into one are read."""

from collections.abc import Callable
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
            raise_at(name, array, ~np.isfinite(array), "must be finite; drop the round or replace it on purpose")
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

    For JAX they have a floating type that loses nothing of either. For NumPy they are in float64, each moved up to the
    largest number that the precision of the thresholds does not tell from it: see :func:`widest`.
    """
    array = as_numbers("thresholds", thresholds)
    if array.shape[:-1] != batch or array.ndim != len(batch) + 1:
        raise ValueError(
            f"thresholds has shape {array.shape}: must be {(*batch, 'A')}, a row of A levels for each prediction"
        )
    if xp is np:
        return widest(array if array.dtype.kind == "f" else np.asarray(array, float))
    return jnp.asarray(array, np.result_type(float_dtype(array), least))


# Maps numbers and their places in the flattened arrays to scores.
Scorer = Callable[[np.ndarray, np.ndarray], np.ndarray]


def widest(thresholds: Any) -> np.ndarray:
    """
    Find the largest float64 that is at most the threshold once it is rounded to the threshold's own precision.

    Scores are compared with thresholds in the precision of a run. In float32 a score a little above the threshold is
    rounded to it, and is covered.
    """
    given = np.asarray(thresholds)
    wide = given.astype(np.float64)
    if given.dtype == np.float64:
        return wide
    with np.errstate(over="ignore"):
        middle = wide + (np.nextafter(given, given.dtype.type(np.inf)).astype(np.float64) - wide) / 2
        middle = np.where(np.isfinite(middle), middle, wide)
        back = middle.astype(given.dtype) > given  # a tie that is rounded up
    return np.where(back, np.nextafter(middle, -np.inf), middle)


def outermost(score: Scorer, limits: np.ndarray, guess: np.ndarray, sign: int) -> np.ndarray:
    """
    Find the outermost number whose score is at most its limit; a guess far from any answer comes back as it is.

    ``score``: Score of numbers, given with their places; it does not fall in the direction of ``sign``. ``guess``:
    Close to the answer, of the shape of the limits. What is not finite is left alone.
    """
    found = np.array(guess, np.float64).ravel()
    limits = np.broadcast_to(limits, np.shape(guess)).ravel()
    open_ = np.flatnonzero(np.isfinite(found) & np.isfinite(limits))
    at = _ordinal(found[open_])

    def holds(numbers: np.ndarray, places: np.ndarray) -> np.ndarray:
        with np.errstate(all="ignore"):  # a step too far may overflow, and is outside then
            return score(numbers, places) <= limits[places]

    inside = holds(found[open_], open_)
    # In steps that double, until one number is inside and one is outside; then halve the distance.
    near, far = at.copy(), at.copy()  # inside, outside
    step, todo, last = 1, np.arange(open_.size), np.float64(np.inf).view(np.int64)
    for _ in range(63):
        if not todo.size:
            break
        way = np.where(inside[todo], sign, -sign)
        ahead = np.where(way * at[todo] > 0, last - way * at[todo], last)  # so many numbers are left
        moved = at[todo] + way * np.minimum(step, ahead)
        now = holds(_number(moved), open_[todo])
        crossed = now != inside[todo]
        near[todo] = np.where(now, moved, near[todo])
        far[todo] = np.where(now, far[todo], moved)
        step, todo = 2 * step, todo[~crossed]
    settled = np.ones(open_.size, bool)
    settled[todo] = False  # nothing near the guess has the score: leave it
    todo = np.flatnonzero(settled & (np.abs(near - far) > 1))
    while todo.size:
        middle = near[todo] + (far[todo] - near[todo]) // 2
        now = holds(_number(middle), open_[todo])
        near[todo], far[todo] = np.where(now, middle, near[todo]), np.where(now, far[todo], middle)
        todo = todo[np.abs(near[todo] - far[todo]) > 1]
    found[open_[settled]] = _number(near[settled])
    return found.reshape(np.shape(guess))


def _ordinal(x: np.ndarray) -> np.ndarray:
    """Give floats numbers in ascending order, so that neighbours differ by 1."""
    bits = np.ascontiguousarray(x, np.float64).view(np.int64)
    return np.where(bits < 0, np.int64(-(2**63)) - bits, bits)


def _number(ordinal: np.ndarray) -> np.ndarray:
    """Return the float of a number that :func:`_ordinal` gives."""
    bits = np.where(ordinal < 0, np.int64(-(2**63)) - ordinal, ordinal)
    return np.ascontiguousarray(bits, np.int64).view(np.float64)
