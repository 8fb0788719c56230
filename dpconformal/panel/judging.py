"""Coverage, loss and regret of a block of series, from one pass over its thresholds."""

import functools

import numpy as np

from dpconformal.engine.threads import blocks_of_sequences, in_threads

METRICS = ("coverage", "loss", "regret", "mean_threshold")
IN_CACHE = 2**21  # bytes of thresholds that are looked at together


def means_of_totals(
    covered: np.ndarray, loss: np.ndarray, threshold: np.ndarray, least: np.ndarray, rounds: np.ndarray
) -> dict[str, np.ndarray]:
    """
    Turn totals into metrics.

    Returns: The :data:`METRICS`; for a series without a score regret is 0, as a total is, and means are NaN.
    """
    count = rounds[:, None]
    with np.errstate(invalid="ignore", divide="ignore"):
        return {
            "coverage": covered / count,
            "loss": loss / count,
            "regret": np.where(count > 0, loss - least, 0),
            "mean_threshold": threshold / count,
        }


def totals_of(
    thresholds: np.ndarray, scores: np.ndarray, observed: np.ndarray | None, levels: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Add up what thresholds cover, lose and are."""
    totals = np.empty((3, len(scores), levels.size))

    tile = max(IN_CACHE // max(8 * thresholds[:1].size, 1), 1)

    def task(block: slice) -> None:
        room = np.empty((2, tile, *thresholds.shape[1:]))  # new memory for each would cost more than the sums
        for start in range(block.start, min(block.stop, len(scores)), tile):
            own = slice(start, min(start + tile, block.stop, len(scores)))
            told = None if observed is None else observed[own]
            totals[:, own] = _totals(thresholds[own], scores[own], told, levels, *room[:, : own.stop - start])

    blocks = blocks_of_sequences(len(scores), thresholds[0].nbytes if len(scores) else 0)
    in_threads([functools.partial(task, block) for block in blocks])
    covered, loss, threshold = totals
    return covered, loss, threshold


def _totals(
    thresholds: np.ndarray,
    scores: np.ndarray,
    observed: np.ndarray | None,
    levels: np.ndarray,
    gap: np.ndarray,
    side: np.ndarray,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    np.subtract(thresholds, scores[..., None], out=gap, dtype=float)
    if observed is None:
        wide = thresholds.astype(float, copy=False)
        covered = _sums(np.greater_equal(gap, 0, out=side))
    else:
        counts = observed[..., None]
        wide = np.where(counts, thresholds, 0).astype(float, copy=False)
        covered = _sums(np.multiply(gap >= 0, counts, out=side))
        gap[~observed] = 0
    above = _sums(np.maximum(gap, 0, out=side))
    below = _sums(np.minimum(gap, 0, out=side))
    with np.errstate(invalid="ignore"):  # a threshold without an end, at level 1, costs nothing
        loss = np.where(levels >= 1, 0, (1 - levels) * above) - levels * below
    return covered, loss, _sums(wide)


def _sums(values: np.ndarray) -> np.ndarray:
    """Add up over rounds, (B, T, A): as a product with ones, several times as fast as a sum along that axis."""
    return (np.ones((1, values.shape[1])) @ values)[:, 0]


def least_loss(scores: np.ndarray, observed: np.ndarray | None, levels: np.ndarray) -> np.ndarray:
    """Compute the loss of the best fixed threshold of each series."""
    if not scores.size:
        return np.zeros((len(scores), levels.size))

    def task(block: slice) -> np.ndarray:
        own = np.asarray(scores[block], float)
        count = np.full(len(own), own.shape[-1]) if observed is None else observed[block].sum(axis=-1)
        if observed is not None:
            own = np.where(observed[block], own, np.inf)  # last in order
        ordered = np.sort(own, axis=-1)
        sums = np.cumsum(np.where(np.isfinite(ordered), ordered, 0), axis=-1)
        n, last = count[:, None], np.maximum(count[:, None] - 1, 0)
        rank = np.clip(np.ceil(levels * n), 1, np.maximum(n, 1)).astype(int)
        best, below = (np.take_along_axis(a, rank - 1, axis=-1) for a in (ordered, sums))
        above = np.take_along_axis(sums, last, axis=-1) - below
        with np.errstate(invalid="ignore"):  # a series without a score has no best
            return (1 - levels) * (rank * best - below) + levels * (above - (n - rank) * best)

    blocks = blocks_of_sequences(len(scores), scores[0].nbytes * 4 if len(scores) else 0)
    return np.concatenate(in_threads([functools.partial(task, block) for block in blocks]))
