"""From pointers to thresholds, a block of rounds at a time, so that working memory stays small."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Bool, Float, Num

from dpconformal.offline.loops import Arrive, Locate, walk
from dpconformal.offline.workers import cores
from dpconformal.rounds import BLOCK, padded_length
from dpconformal.totals import Totals, add_rounds, no_rounds


class Walk(NamedTuple):
    """
    How pointers follow a store of scores; see :func:`dpconformal.offline.loops.walk`.

    Attributes
    ----------
    arrive, locate : callable
        A round's news, and a level's way to its new place.
    shrink : callable, or None
        ``(store, pointers, by) -> (store, pointers)``: multiply every mass. None for counts, which do not fade.
    store : pytree
        The evidence before the first round.
    pointers : Array, shape (A, P)
        Where the levels' pointers start.
    nested : bool
        Whether the loops are small enough to be nested and still native; see :mod:`dpconformal.offline.loops`.
    read : callable
        ``(pointers (T, A, P), rows (T,), levels (T or 1, A)) -> thresholds (T, A)``.
    """

    arrive: Arrive
    locate: Locate
    shrink: Callable[[Any, Array, Array], Any] | None
    store: Any
    pointers: Num[Array, "A P"]
    nested: bool
    read: Callable[[Array, Any, Array], Array]


def follow(
    walker: Walk,
    rows: Any,
    levels: Float[Array, "..."],
    scores: Float[Array, " T"],
    real: Bool[Array, " T"],
    keep: str,
    block: int = BLOCK,
    fade: Float[Array, " N"] | None = None,
) -> Float[Array, "T A"] | Totals:
    """
    Walk through rounds and turn what the pointers found into thresholds, or into their totals.

    ``real``: False for rounds that are padding or bring no score: they are walked, and not counted.
    """
    rounds, count = scores.shape[0], levels.shape[-1]
    block = even_block(rounds, block)
    blocks = -(-rounds // block)
    per_round = levels.ndim == 2

    def in_blocks(column: Array) -> Array:
        # With NaN for weights nobody walks, and what came in before the last round is linked already.
        missing = (blocks * block - rounds, *column.shape[1:])
        weight = jnp.issubdtype(column.dtype, jnp.floating)
        filler = jnp.full(missing, jnp.nan, column.dtype) if weight else jnp.broadcast_to(column[-1], missing)
        return jnp.concatenate([column, filler]).reshape(blocks, block, *column.shape[1:])

    def one_block(carry: Any, given: Any) -> Any:
        store, pointers, totals = carry
        rows, scores, real, own_levels, own_fade = given
        asked = own_levels if per_round else levels
        if own_fade is not None and walker.shrink is not None:
            store, pointers = walker.shrink(store, pointers, own_fade)
        store, pointers, found = walk(walker.arrive, walker.locate, store, pointers, rows, asked, walker.nested)
        thresholds = walker.read(found, rows, asked if per_round else asked[None])
        if keep == "all":
            return (store, pointers, totals), thresholds
        return (store, pointers, add_rounds(totals, thresholds, scores, jnp.atleast_2d(asked), real)), None

    rows, scores, levels_by_block = jax.tree.map(in_blocks, (rows, scores, levels if per_round else None))
    real = jnp.pad(real, (0, blocks * block - rounds)).reshape(blocks, block)
    given = rows, scores, real, levels_by_block, fade
    start = (walker.store, walker.pointers, no_rounds(count, scores.dtype))
    (_, _, totals), thresholds = lax.scan(one_block, start, given)
    return totals if keep == "summary" else thresholds.reshape(blocks * block, count)[:rounds]


def even_block(rounds: int, longest: int) -> int:
    """Divide rounds into blocks of one length with little padding."""
    return -(-rounds // -(-rounds // longest))


class Piece(NamedTuple):
    """
    A stretch of rounds.

    Attributes
    ----------
    rounds : slice
        Which.
    padding : int
        Rounds to add, so that all stretches have one length and share one compiled program.
    """

    rounds: slice
    padding: int


def pieces(rounds: int, count: int, longest: int | None = None) -> list[Piece]:
    """Cut rounds into stretches of one length, whole blocks, one stretch per core."""
    wanted = cores() if rounds * count >= 16 * BLOCK else 1
    length = padded_length(-(-rounds // wanted))
    length = min(length, longest or length)
    starts = range(0, rounds, length)
    return [Piece(slice(at, min(at + length, rounds)), max(at + length - rounds, 0)) for at in starts]


def padded(column: np.ndarray, padding: int, filler: Any = 0) -> np.ndarray:
    """Lengthen a column on the host."""
    if not padding:
        return column
    return np.concatenate([column, np.full((padding, *column.shape[1:]), filler, column.dtype)])


def rounds_of(
    rounds: slice, padding: int, seen: Any, scores: np.ndarray, levels: Array, observed: np.ndarray | None = None
) -> tuple[np.ndarray, np.ndarray, np.ndarray, Array | np.ndarray]:
    """
    Cut what a stretch needs out of a sequence, on the host.

    Returns: Scores seen before each round, the scores, whether a round is real, and the levels.
    """
    length = rounds.stop - rounds.start + padding
    asked = levels if levels.ndim == 1 else padded(np.asarray(levels)[rounds], padding)
    if observed is None:
        counts = seen + np.arange(rounds.start, rounds.start + length, dtype=seen.dtype)  # of padding, anything will do
        return counts, padded(scores[rounds], padding), np.arange(length) < length - padding, asked
    real = padded(observed[rounds], padding, False)
    counts = counts_before(real, seen + seen.dtype.type(np.count_nonzero(observed[: rounds.start])))
    return counts, padded(scores[rounds], padding), real, asked


def brought(scores: np.ndarray, observed: np.ndarray | None) -> int:
    """Count the scores of a sequence."""
    return scores.size if observed is None else int(np.count_nonzero(observed))


def counts_before(observed: np.ndarray, seen: Any) -> np.ndarray:
    """Count the scores seen before each round, where some rounds bring none."""
    seen = np.asarray(seen)
    return seen + (np.cumsum(observed, axis=-1, dtype=seen.dtype) - observed)
