"""The state from which a replay begins: the user's, with room for the rounds to come, or a copy for each sequence."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from dpconformal.counting import check_countable
from dpconformal.learner import Learner, SizedLearner, State, fresh_state


def state_to_carry_on(learner: Learner, scores: Any, state: State) -> tuple[Any, State]:
    """
    Check the user's state, and make room in it for the scores.

    Returns: The scores and the state, in a common dtype that loses nothing.
    """
    batch, rounds = scores.shape[:-1], scores.shape[-1]
    pattern = jax.eval_shape(lambda: fresh_state(learner, 1, scores.dtype))
    if jax.tree.structure(state) != jax.tree.structure(pattern):  # type: ignore[operator]
        raise ValueError(
            f"state is a {type(state).__name__}: {type(learner).__name__} carries on from a "
            f"{type(pattern).__name__}, such as run.state"
        )
    if hasattr(getattr(state, "seen", None), "dtype"):
        check_countable(state)
    state = jax.tree.map(jnp.asarray, state)
    for path, leaf in jax.tree_util.tree_leaves_with_path(state):
        extra = leaf.ndim - dict(jax.tree_util.tree_leaves_with_path(pattern))[path].ndim
        if leaf.shape[: max(extra, 0)] != batch:
            raise ValueError(
                f"state{jax.tree_util.keystr(path)} has shape {leaf.shape}: its leading axes must be those of "
                f"the scores, {batch}"
            )
    kinds = [leaf.dtype for leaf in jax.tree.leaves(state) if jnp.issubdtype(leaf.dtype, jnp.floating)]
    dtype = np.result_type(scores.dtype, *kinds)

    def widen(leaf: Array) -> Array:
        return leaf.astype(dtype) if jnp.issubdtype(leaf.dtype, jnp.floating) else leaf

    state = jax.tree.map(widen, state)
    return scores.astype(dtype), learner.prepare(state, rounds) if isinstance(learner, SizedLearner) else state


def spread(state: State, batch: tuple[int, ...]) -> State:
    """Give every sequence of a batch its own copy of a state."""
    if not batch:
        return state
    return jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, batch + leaf.shape), state)
