"""Arrays of a run, in NumPy and float64 outside ``jit`` and in JAX inside, and what all metrics do with them."""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from dpconformal.engine.totals import Totals, totals_of
from dpconformal.replay import Replay, Summary
from dpconformal.rounds import kept_rounds, round_counts
from dpconformal.validation import as_numbers, is_traced, raise_at


class Arrays(NamedTuple):
    """A run's arrays, ready to broadcast against each other."""

    xp: Any  # numpy, or jax.numpy inside jit
    thresholds: Any  # (..., T, A)
    scores: Any  # (..., T, 1)
    levels: Any  # (... or 1, T or 1, A), of the thresholds' rank


def checked_run(run: Any) -> Replay:
    """Check that this is a run."""
    if isinstance(run, Summary):
        raise ValueError(
            "run is a Summary, which has coverage, loss and mean_threshold of its own; for more, replay with keep='all'"
        )
    if not isinstance(run, Replay):
        raise ValueError(f"run is a {type(run).__name__}: pass what replay returned, or Replay(thresholds, ...)")
    if run.mask is not None and np.shape(run.mask) != np.shape(run.scores):
        raise ValueError(f"run.mask has shape {np.shape(run.mask)} and run.scores {np.shape(run.scores)}: not the same")
    return run


def by_sequence(metric: Callable[..., Any]) -> Callable[..., Any]:
    """Apply a metric that has one number a level to each sequence by itself where their numbers of scores differ."""

    @functools.wraps(metric)
    def each(run: Any, *args: Any, **kwargs: Any) -> Any:
        mask = getattr(run, "mask", None)
        if mask is None or is_traced(mask) or np.ndim(round_counts(mask, np.shape(mask)[-1])) == 0 or not np.size(mask):
            return metric(run, *args, **kwargs)
        batch = np.shape(mask)[:-1]
        found = [metric(run.sequence(*index), *args, **kwargs) for index in np.ndindex(batch)]
        xp = jnp if is_traced(found) else np
        return jax.tree.map(lambda *leaves: xp.stack(leaves).reshape(batch + np.shape(leaves[0])), *found)

    return each


def batch_axes(run: Replay) -> list[str]:
    """Name the leading axes of a run in a dataset."""
    axes = np.ndim(run.thresholds) - 2
    return ["batch"] if axes == 1 else [f"batch_{i}" for i in range(axes)]


def observed_rounds(run: Replay) -> np.ndarray:
    """List the rounds that are judged, as the user counts them; 1, …, N where masks differ between sequences."""
    rounds = np.arange(1, np.shape(run.scores)[-1] + 1)
    if run.mask is None:
        return rounds
    kept = kept_rounds(run.mask)
    rows = kept.reshape(-1, kept.shape[-1])
    return rounds[rows[0]] if len(rows) and (rows == rows[0]).all() else rounds[: kept.shape[-1]]


def arrays_of(run: Any) -> Arrays:
    """
    Take a run apart: arrays of the rounds that were observed, with a level axis on all.

    Sums over millions of rounds need more digits than float32 has, so outside ``jit`` everything is computed on the
    host in float64, whatever the run's dtype.
    """
    run = checked_run(run).observed()
    traced = is_traced(run.thresholds, run.scores, run.levels)
    xp = jnp if traced else np
    dtype = run.thresholds.dtype if traced else np.float64
    given = {"run.thresholds": run.thresholds, "run.scores": run.scores, "run.levels": run.levels}
    thresholds, scores, levels = (xp.asarray(as_numbers(name, a), dtype) for name, a in given.items())
    if thresholds.ndim < 2 or scores.shape != thresholds.shape[:-1]:
        raise ValueError(
            f"run.thresholds has shape {thresholds.shape} and run.scores {scores.shape}: expected (..., T, A), (..., T)"
        )
    axes, size = thresholds.ndim, thresholds.shape[-1]
    fitting = {1: (size,), axes: thresholds.shape, axes - 1: (*thresholds.shape[:-2], size)}
    if levels.shape != fitting.get(levels.ndim):
        raise ValueError(
            f"run.levels has shape {levels.shape} and run.thresholds {thresholds.shape}: expected (A,), or (..., T, A) "
            "for levels that change by round, or (..., A) for levels that differ between sequences"
        )
    if not traced:
        raise_at("run.levels", levels, ~((levels >= 0) & (levels <= 1)), "a confidence level lies in [0, 1]")
        why = "a score or hyperparameter inside jit was out of range from here on"
        raise_at("run.thresholds", thresholds, np.isnan(thresholds), why)
    if levels.ndim == 1:
        levels = levels.reshape((1,) * (axes - 1) + (size,))
    elif levels.ndim == axes - 1:
        levels = levels[..., None, :]
    return Arrays(xp, thresholds, scores[..., None], levels)


def totals_over_rounds(arrays: Arrays) -> Totals:
    """Add up a run on the host; refuse losses whose sum overflows float64."""
    found = totals_of(arrays.thresholds, arrays.scores[..., 0], arrays.levels)
    check_finite(found.loss.high, arrays.thresholds)
    return found


def check_finite(loss: Any, thresholds: Any) -> None:
    """Refuse total losses, (..., A), that overflow though the thresholds are finite; nothing is refused inside jit."""
    if is_traced(loss) or not thresholds.size:
        return
    if (~np.isfinite(loss) & np.isfinite(thresholds).all(axis=-2)).any():
        most = np.finfo(float).max
        raise ValueError(f"run has losses that add up to more than float64 holds ({most:.3g}); rescale the scores")


def mean_levels(arrays: Arrays) -> Any:
    """Average the levels over the rounds, (..., A)."""
    xp, thresholds, _, levels = arrays
    mean = xp.mean(levels, axis=-2) if levels.shape[-2] else xp.full(levels[..., 0, :].shape, np.nan)
    return xp.broadcast_to(mean, (*thresholds.shape[:-2], thresholds.shape[-1]))
