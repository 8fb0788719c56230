"""Rounds without a score, on purpose: the user's mask, checked, and scores that nobody looks at."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from dpconformal.validation import Numbers, Scalar, as_numbers, checked_scores, is_traced


def checked_mask(mask: Any, shape: tuple[int, ...]) -> Any:
    """Check which rounds are said to lack their score."""
    remedy = "pass booleans, True where the score is missing, such as numpy.isnan(scores)"
    if isinstance(mask, np.ma.MaskedArray):
        raise ValueError(f"mask is itself a masked array: {remedy}")
    try:
        array: Any = mask if isinstance(mask, jax.core.Tracer) else jnp.asarray(mask) if is_traced(mask) else None
        array = np.asarray(mask) if array is None else array
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
    Check scores where they are not masked.

    Returns: Scores, with a number in the support where they are missing; and the mask in their shape. If the mask is
    traced, so are the scores then, and what is wrong with them gives NaN thresholds.
    """
    array: Any = as_numbers("scores", values)
    mask = checked_mask(mask, array.shape)
    if not is_traced(mask) and not mask.any():
        return checked_scores(values, support), mask
    if is_traced(array, mask, support):
        array = jnp.asarray(array)
        dtype = jax.dtypes.canonicalize_dtype(array.dtype if jnp.issubdtype(array.dtype, jnp.floating) else float)
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
    """
    Count the rounds that were observed.

    Returns: One number if it is the same for all sequences; inside ``jit`` an array.
    """
    if mask is None:
        return rounds
    if is_traced(mask):
        return rounds - jnp.sum(mask, axis=-1, dtype=jnp.int32)
    counts = rounds - np.count_nonzero(np.asarray(mask), axis=-1)
    return int(counts.flat[0]) if np.unique(counts).size == 1 else counts
