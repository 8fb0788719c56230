"""The rounds of a run: one value for all that they bring, and few lengths, so that few programs are compiled."""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from dpconformal.validation import is_traced

SHORTEST = 64
BLOCK = 2048  # rounds: pointers and thresholds of a block stay in a core's own cache


class Rounds(NamedTuple):
    """
    What the rounds of a run bring, checked.

    Attributes
    ----------
    scores : array, shape (..., T)
        A number in the support where there is none.
    levels : Array, shape (A,) or (T, A), or None
        The same every round, or a row a round. None: nothing is asked.
    observed : array of bool, shape (..., T), or None
        False where the score is missing. None: all are there.
    context : pytree of array, shape (..., T, ...), or None
        What else is known before each round.
    feedback : Rounds or None
        What is observed in each round, if that is not the round's own: scores that come with a delay. Then ``observed`` tells which of the
        rounds' own scores are there to be judged by.
    """

    scores: Any  # (..., T)
    levels: Any = None  # (A,) or (T, A)
    observed: Any = None  # (..., T)
    context: Any = None  # (..., T, ...)
    feedback: Any = None  # of (..., T, ...)

    @property
    def batch(self) -> tuple[int, ...]:
        """Leading axes of the run."""
        return self.scores.shape[:-1]

    @property
    def length(self) -> int:
        """How many rounds there are."""
        return self.scores.shape[-1]

    def part(self, rounds: slice) -> "Rounds":
        """Return a stretch of the rounds."""
        axis = len(self.batch)
        levels, own = self.levels, self._replace(levels=None)
        own = jax.tree.map(lambda leaf: leaf[(slice(None),) * axis + (rounds,)], own)
        return own._replace(levels=levels[rounds] if np.ndim(levels) == 2 else levels)

    def padded(self) -> "Rounds":
        """Return as many rounds as :func:`padded_length` says: the last one repeated, and not observed."""
        *batch, length = self.scores.shape
        missing, axis = padded_length(length) - length, len(batch)
        if not missing:
            return self
        levels, own = self.levels, self._replace(levels=None)
        own = jax.tree.map(functools.partial(lengthened, axis=axis, missing=missing), own)
        if isinstance(own.observed, np.ndarray):
            own.observed[..., length:] = False
        return own._replace(levels=lengthened(levels, 0, missing) if levels.ndim == 2 else levels)


def padded_length(rounds: int) -> int:
    """Return the length to which this many rounds are padded, so that a new length is rarely a new program."""
    if rounds <= BLOCK:
        return max(SHORTEST, 1 << (rounds - 1).bit_length()) if rounds else 0
    # Blocks up to 2^17 rounds, and beyond that 64 lengths for each doubling: at most 3 % are padding.
    step = max(BLOCK, 1 << (rounds.bit_length() - 6))
    return -(-rounds // step) * step


def lengthened(leaf: Any, axis: int, missing: int) -> Any:
    """Repeat the last entry along an axis; on the host, unless an accelerator holds the array."""
    if leaf.shape[axis] == 0:
        raise AssertionError("no rounds to repeat")
    widths = [(0, 0)] * leaf.ndim
    widths[axis] = (0, missing)
    if isinstance(leaf, np.ndarray) or not _stays(leaf):
        return np.pad(np.asarray(leaf), widths, mode="edge")
    return jnp.pad(leaf, widths, mode="edge")


def first_rounds(tree: Any, axis: int, rounds: int) -> Any:
    """Cut the padding off again; on the host, where JAX would compile a program for each length."""

    def cut(leaf: Any) -> Any:
        if leaf.shape[axis] == rounds:
            return leaf
        here = (slice(None),) * axis + (slice(rounds),)
        if _stays(leaf):
            return leaf[here]
        place = leaf.sharding if isinstance(leaf, jax.Array) and leaf.committed else None  # where the user wants it
        return jax.device_put(np.ascontiguousarray(np.asarray(leaf)[here]), place, may_alias=True)

    return jax.tree.map(cut, tree)


def _stays(leaf: Any) -> bool:
    """Whether an array should not come to the host: traced, on an accelerator or several, or a random key."""
    if not isinstance(leaf, jax.Array) or is_traced(leaf):
        return is_traced(leaf)
    devices: Any = leaf.sharding.device_set
    return len(devices) > 1 or next(iter(devices)).platform != "cpu" or jnp.issubdtype(leaf.dtype, jax.dtypes.extended)
