"""The rounds of a run as one value: which scores are missing, and few lengths, so that few programs are compiled."""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from dpconformal.validation import Numbers, Scalar, as_numbers, checked_scores, float_dtype, is_traced

SHORTEST = 64
BLOCK = 2048  # rounds: pointers and thresholds of a block stay in a core's own cache


class Rounds(NamedTuple):
    """What the rounds of a run bring, checked."""

    scores: Any  # (..., T): a number in the support where the score is missing
    # (A,) the same every round, (T, A) a row a round, or (..., T, A) for each sequence its own; None: nothing is asked
    levels: Any = None
    observed: Any = None  # (..., T), False where the score is missing; None: all are there
    context: Any = None  # pytree of (..., T, ...): what else is known before each round
    weights: Any = None  # (..., T): how much each score counts, for a learner that takes weights; None: all alike
    # A Rounds: what is observed in each round, if that is not the round's own, for scores that come with a delay. Then
    # `observed` tells which of the rounds' own scores are there to be judged by.
    feedback: Any = None

    @property
    def batch(self) -> tuple[int, ...]:
        """Leading axes of the run."""
        return self.scores.shape[:-1]

    @property
    def length(self) -> int:
        """How many rounds there are."""
        return self.scores.shape[-1]

    def split(self) -> tuple["Rounds", Any]:
        """Return what has the leading axes of the scores, and the levels that all sequences share, if they do."""
        if np.ndim(self.levels) == self.scores.ndim + 1:
            return self, None
        return self._replace(levels=None), self.levels

    def joined(self, shared: Any) -> "Rounds":
        """Undo :meth:`split`."""
        return self if shared is None else self._replace(levels=shared)

    def part(self, rounds: slice) -> "Rounds":
        """Return a stretch of the rounds."""
        own, levels = self.split()
        here = (slice(None),) * len(self.batch) + (rounds,)
        return jax.tree.map(lambda leaf: leaf[here], own).joined(levels[rounds] if np.ndim(levels) == 2 else levels)

    def padded(self) -> "Rounds":
        """Return as many rounds as :func:`padded_length` says: the last one repeated, and not observed."""
        *batch, length = self.scores.shape
        missing, axis = padded_length(length) - length, len(batch)
        if not missing:
            return self
        # As split and joined, without their calls: this is on the way of every replay.
        levels = None if np.ndim(self.levels) == len(batch) + 2 else self.levels
        own = jax.tree.map(
            functools.partial(pad_with_last, axis=axis, missing=missing),
            self if levels is None else self._replace(levels=None),
        )
        if isinstance(own.observed, np.ndarray):
            own.observed[..., length:] = False
        if levels is None:
            return own
        return own._replace(levels=pad_with_last(levels, 0, missing) if np.ndim(levels) == 2 else levels)


def padded_length(rounds: int) -> int:
    """Return the length to which this many rounds are padded, so that a new length is rarely a new program."""
    if rounds <= BLOCK:
        return max(SHORTEST, 1 << (rounds - 1).bit_length()) if rounds else 0
    # Blocks up to 2^17 rounds, and beyond that 64 lengths for each doubling: at most 3 % are padding.
    step = max(BLOCK, 1 << (rounds.bit_length() - 6))
    return -(-rounds // step) * step


def pad_with_last(leaf: Any, axis: int, missing: int) -> Any:
    """Repeat the last entry along an axis; on the host, unless an accelerator holds the array."""
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


def checked_mask(mask: Any, shape: tuple[int, ...]) -> Any:
    """Check which rounds are said to lack their score."""
    remedy = "pass booleans, True where the score is missing, such as numpy.isnan(scores)"
    if isinstance(mask, np.ma.MaskedArray):
        raise ValueError(f"mask is itself a masked array: {remedy}")
    try:
        array: Any = jnp.asarray(mask) if is_traced(mask) else np.asarray(mask)
    except (ValueError, TypeError) as error:
        raise ValueError(f"mask cannot be read as an array: {error}; {remedy}") from None
    if array.dtype != bool and not (array.size == 0 and array.ndim == 1):  # [] reads as an array of numbers
        raise ValueError(f"mask has dtype {array.dtype}: {remedy}")
    if not shape or array.shape not in (shape, shape[-1:]):
        each = "" if len(shape) == 1 else f", the same for every sequence, or {shape}"
        raise ValueError(f"mask has shape {array.shape}: pass one boolean a round, shape {shape[-1:]}{each}")
    xp = jnp if isinstance(array, jax.core.Tracer) else np
    return xp.broadcast_to(array.astype(bool), shape)


def masked_scores(values: Numbers, mask: Any, support: tuple[Scalar, Scalar]) -> tuple[Any, Any]:
    """
    Check scores where they are not masked; return them, with a number in the support elsewhere, and the mask.

    If the mask is traced, so are the scores then, and what is wrong with them gives NaN thresholds.
    """
    array: Any = as_numbers("scores", values)
    mask = checked_mask(mask, array.shape)
    if not is_traced(mask) and not mask.any():
        return checked_scores(values, support), mask
    if is_traced(array, mask, support):
        array, dtype = jnp.asarray(array), float_dtype(array)
        ends = (jnp.asarray(end, dtype) for end in support)
        # A number in the support: a learner looks at it, though what it makes of it is thrown away.
        return jnp.where(mask, jnp.clip(jnp.zeros((), dtype), *ends), array.astype(dtype)), mask
    low, high = (float(end) for end in support)
    filler: Any = np.clip(0.0, low, high)
    filler = np.asarray(filler, array.dtype if array.dtype.kind == "f" else float)
    return checked_scores(np.where(mask, filler, array), support), mask


def kept_rounds(mask: Any) -> np.ndarray:
    """List the rounds that were observed."""
    if is_traced(mask):
        raise ValueError(
            "run.mask is being traced: how many rounds were observed is known outside jit only; inside, keep='summary' "
            "has totals over them"
        )
    mask = np.asarray(mask)
    if np.ndim(count := round_counts(mask, mask.shape[-1])):
        least, most = (np.min(count), np.max(count)) if np.size(count) else (0, 0)
        raise ValueError(
            f"run.mask leaves between {least} and {most} rounds to a sequence: take one sequence at a time, "
            "as run.sequence(0) does"
        )
    return np.nonzero(~mask)[-1].reshape((*mask.shape[:-1], count)).astype(np.int32)


def take_rounds(values: Any, kept: np.ndarray) -> Any:
    """Take rounds out of an array."""
    xp = jnp if isinstance(values, jax.Array) else np
    if kept.ndim == 1:  # one sequence: whole rows at a time are several times as fast
        return xp.take(values, kept, axis=0)
    extra = (1,) * (np.ndim(values) - kept.ndim)
    return xp.take_along_axis(values, kept.reshape(kept.shape + extra), axis=kept.ndim - 1)


def round_counts(mask: Any, rounds: int) -> Any:
    """Count the rounds that were observed: one number if it is the same for all sequences; inside ``jit`` an array."""
    if mask is None:
        return rounds
    if is_traced(mask):
        return rounds - jnp.sum(mask, axis=-1, dtype=jnp.int32)
    counts = rounds - np.count_nonzero(np.asarray(mask), axis=-1)
    return int(counts.flat[0]) if np.unique(counts).size == 1 else counts
