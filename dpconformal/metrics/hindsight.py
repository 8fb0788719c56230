"""The best fixed threshold in hindsight, round by round."""

import contextlib

import jax
import jax.numpy as jnp
import numpy as np

from dpconformal.engine.linked_list import running_order_statistic
from dpconformal.pinball import pinball


def running_best(scores: np.ndarray, levels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Find the best threshold for the first n rounds, and its total loss, for every n."""
    level_sum = np.cumsum(levels, axis=0)
    rank = np.maximum(np.ceil(level_sum), 1).astype(np.int32)
    # The best threshold q_n is the rank_n-th smallest score so far: it stays or moves to a neighbour.
    # On the way L_{n-1} is linear, with slope (rank_n - 1) - Σ_{t<n} α_t, so the least loss telescopes.
    wide = np.asarray(scores).dtype == np.float64
    with jax.enable_x64(True) if wide else contextlib.nullcontext():  # also where the user's JAX is not in 64 bits
        best = np.asarray(running_order_statistic(jnp.asarray(scores), jnp.asarray(rank)), float)
    previous = np.concatenate([best[:1], best[:-1]])
    slope = (rank - 1) - (level_sum - levels)
    step = pinball(np, best, np.asarray(scores, float)[:, None], levels) + (best - previous) * slope
    return best, np.cumsum(step, axis=0)
