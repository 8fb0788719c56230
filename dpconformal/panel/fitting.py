"""Belief of one giant stream: fitted to its parts in parallel, and merged."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from dpconformal.beliefs import Quantized
from dpconformal.learner import State, fresh_state, support_of
from dpconformal.panel.replaying import check_block
from dpconformal.replay import run_replay
from dpconformal.rounds import Rounds
from dpconformal.validation import as_numbers, check_time_index, checked_scores, float_dtype

FAN_IN = 8  # states that a task merges


class _Job(NamedTuple):
    """Settings that all parts share."""

    learner: Any
    begin: State  # of one that has a size for any number of scores; otherwise None
    wide: bool  # whether JAX has 64 bits where the work was asked for


def fit_belief(scores: Any, learner: Any = Quantized(1024)) -> State:
    """
    Find the state of a learner that has seen a stream, without its thresholds.

    Parameters
    ----------
    scores : dask.array.Array, xarray.DataArray or array_like, shape (T,)
        Scores in time order. The chunks of a Dask array are worked on side by side, by whatever scheduler is in charge,
        and what comes out of them is merged, as a tree and in time order.
    learner : Learner
        One that merges: :class:`dpconformal.Quantized`, whose state has one size for any number of scores,
        :class:`dpconformal.Exact`, or an empirical one. With or without a discount.

    Returns
    -------
    State
        As if all scores had been observed one after the other: for ``learner.quantile(state, levels)``,
        ``learner.belief(state)``, :func:`dpconformal.replay` and :func:`dpconformal.save`.

    Raises
    ------
    ValueError
        Naming the index of a bad score; or if the learner does not merge.

    Examples
    --------
    >>> import dask.array as da
    >>> import dpconformal as dpc, numpy as np
    >>> stream = da.from_array(np.linspace(0, 1, 1001), chunks=100)
    >>> learner = dpc.Quantized(500, discount=0.999)
    >>> state = dpc.fit_belief(stream, learner)
    >>> int(state.seen), bool(learner.quantile(state, 0.9) > 0.9)
    (1001, True)
    """
    check_time_index("scores", scores)
    scores = getattr(scores, "variable", scores)
    scores = getattr(scores, "data", scores) if hasattr(scores, "dims") else scores
    if not hasattr(scores, "dask"):
        scores = np.asarray(scores)
    if scores.ndim != 1:
        raise ValueError(f"scores has shape {scores.shape}: pass one stream, shape (T,)")
    wide = bool(jax.config.read("jax_enable_x64"))
    while hasattr(learner, "learner"):  # a head asks for other levels, of the same belief
        learner = learner.learner
    dtype = float_dtype(as_numbers("scores", np.empty(0, scores.dtype)))
    if not hasattr(scores, "dask"):
        return jax.tree.map(jnp.asarray, _fit_part(_Job(learner, None, wide), 0, scores))
    if not hasattr(learner, "merge"):
        raise ValueError(f"learner = {learner!r}: does not merge; take Quantized or Exact, or replay the stream whole")
    if np.isnan(scores.shape[0]):
        raise ValueError("scores has chunks of unknown size: call scores.compute_chunk_sizes() first")
    import dask

    # The bins of a Quantized may depend on how many scores there will be; other states are as large as the part.
    begin = _on_host(fresh_state(learner, scores.shape[0], dtype)) if isinstance(learner, Quantized) else None
    job = _Job(learner, begin, wide)
    fit, merge = dask.delayed(_fit_part, pure=True), dask.delayed(_merge, pure=True)
    starts = np.cumsum([0, *scores.chunks[0]])
    states = [fit(job, int(start), chunk) for start, chunk in zip(starts, scores.to_delayed(), strict=False)]
    while len(states) > 1:
        states = [merge(job, states[k : k + FAN_IN]) for k in range(0, len(states), FAN_IN)]
    (state,) = dask.compute(states[0])
    return jax.tree.map(jnp.asarray, state)


def _fit_part(job: _Job, start: int, scores: np.ndarray) -> State:
    """Return the state of a part of the stream."""
    with jax.enable_x64(job.wide):
        check_block([job.learner], scores, None, ["index"], [], np.arange(start, start + scores.size))
        scores = np.asarray(checked_scores(scores, support_of(job.learner)))
        begin = fresh_state(job.learner, scores.size, scores.dtype) if job.begin is None else job.begin
        no_levels = jnp.zeros(0, scores.dtype)
        return _on_host(run_replay(job.learner, begin, True, Rounds(scores, no_levels), "summary")[1])


def _merge(job: _Job, states: list[State]) -> State:
    """Merge states pair by pair."""
    with jax.enable_x64(job.wide):
        while len(states) > 1:
            pairs = [states[k : k + 2] for k in range(0, len(states), 2)]
            states = [job.learner.merge(*pair) if len(pair) == 2 else pair[0] for pair in pairs]
        return _on_host(states[0])


def _on_host(state: State) -> State:
    """Bring a state into memory that may travel between processes."""
    return jax.tree.map(np.asarray, state)
