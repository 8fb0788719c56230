"""A learner's state as named arrays, held to what the learner itself would have made."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from dpconformal.checkpoints.records import as_jax
from dpconformal.engine.feedback import Delayed, split_delayed_state
from dpconformal.learner import ContextLearner, SizedLearner, State, fresh_state
from dpconformal.rounds import Rounds
from dpconformal.validation import is_traced

_MOST = 2**31  # bytes of an empty state that a learner without one may ask for


def leaves_of(learner: Any, state: State) -> dict[str, np.ndarray]:
    """Take a state apart."""
    if is_traced(state):
        raise ValueError("state is being traced: save it outside jit, vmap and grad")
    if isinstance(state, Delayed):
        check_waiting(learner, state)
        rest = jax.tree_util.tree_leaves_with_path(state._replace(state=None))
        own = {f".state{name}": leaf for name, leaf in leaves_of(learner, state.state).items()}
        return own | {jax.tree_util.keystr(path): np.asarray(leaf) for path, leaf in rest}
    pattern, _ = _pattern(learner)
    if jax.tree.structure(state) != jax.tree.structure(pattern):  # type: ignore[operator]
        raise ValueError(
            f"state is a {type(state).__name__}: {type(learner).__name__} has a {type(pattern).__name__}, such as "
            "run.state"
        )
    check_state(learner, state)
    return {jax.tree_util.keystr(path): np.asarray(leaf) for path, leaf in jax.tree_util.tree_leaves_with_path(state)}


def state_from(learner: Any, leaves: dict[str, np.ndarray]) -> State:
    """Put a state together."""
    if ".delay" in leaves:
        return _delayed_from(learner, leaves)
    pattern, names = _pattern(learner)
    if set(leaves) != set(names):
        raise ValueError(f"its state has {', '.join(leaves)}, and that of {type(learner).__name__} {', '.join(names)}")
    state = jax.tree.unflatten(jax.tree.structure(pattern), [as_jax(leaves[name], f"state{name}") for name in names])
    check_state(learner, state)
    return state


def _delayed_from(learner: Any, leaves: dict[str, np.ndarray]) -> Delayed:
    """Put together a state with scores on their way."""
    prefix, rest = ".state", {".delay", ".waiting.scores", ".waiting.observed"}
    own = {name.removeprefix(prefix): leaf for name, leaf in leaves.items() if name.startswith(prefix)}
    found = set(leaves) - {prefix + name for name in own} - {".waiting.context"}
    if found != rest:
        raise ValueError(f"its state has {', '.join(sorted(found))}, and one with a delay {', '.join(sorted(rest))}")
    names = (".delay", ".waiting.scores", ".waiting.observed")
    delay, scores, observed = (as_jax(leaves[name], f"state{name}") for name in names)
    context = leaves.get(".waiting.context")
    waiting = Rounds(
        scores, observed=observed, context=None if context is None else as_jax(context, "state.waiting.context")
    )
    state = Delayed(state_from(learner, own), delay, waiting)
    check_waiting(learner, state)
    return state


def check_waiting(learner: Any, state: Delayed) -> None:
    """Hold what is on its way to what a replay carries on from."""
    delay, scores, real = (np.asarray(part) for part in (state.delay, state.waiting.scores, state.waiting.observed))
    for name, part, kind in (("delay", delay, "i"), ("waiting.scores", scores, "f"), ("waiting.observed", real, "b")):
        if part.dtype.kind != kind:
            raise ValueError(f"state.{name} holds {part.dtype}, which is not what a replay with a delay leaves there")
    width = int(np.max(delay, initial=0))
    if (delay < 0).any() or (delay.size and width == 0) or scores.ndim == 0 or scores.shape[-1] < width:
        raise ValueError(f"state.delay is {delay.tolist()}, and state.waiting.scores has shape {scores.shape}")
    pattern, leaf = jax.tree.leaves(_pattern(learner)[0])[0], jax.tree.leaves(state.state)[0]
    if np.shape(leaf)[: np.ndim(leaf) - pattern.ndim] != delay.shape:
        raise ValueError(f"state.delay has shape {delay.shape}, which does not fit the other parts of the state")
    context = state.waiting.context
    split_delayed_state(learner, state, delay, delay.shape, context)
    if context is not None:
        if not isinstance(learner, ContextLearner):
            raise ValueError(f"state.waiting.context is there, and {type(learner).__name__} takes none")
        if np.shape(context)[: scores.ndim] != scores.shape:
            raise ValueError(f"state.waiting.context has shape {np.shape(context)}, and the scores {scores.shape}")
        learner.as_context(context, scores.shape)


def check_state(learner: Any, state: State) -> None:
    """Hold a state to the types and axes of the learner's own, and to what the learner checks before it carries on."""
    pattern, names = _pattern(learner)
    batch = np.shape(jax.tree.leaves(state)[0])
    batch = batch[: len(batch) - jax.tree.leaves(pattern)[0].ndim]
    for name, leaf, own in zip(names, jax.tree.leaves(state), jax.tree.leaves(pattern), strict=True):
        dtype, shape = np.asarray(leaf).dtype, np.shape(leaf)
        if dtype.kind != own.dtype.kind:
            raise ValueError(f"state{name} holds {dtype}, and {type(learner).__name__} keeps {own.dtype} there")
        if shape[: len(batch)] != batch or len(shape) != len(batch) + own.ndim:
            raise ValueError(f"state{name} has shape {shape}, which does not fit the other parts of the state")
    if 0 in batch:
        return
    if isinstance(learner, SizedLearner):
        learner.prepare(state, 0)
    state.check(learner)


def _pattern(learner: Any) -> tuple[Any, list[str]]:
    """Return shapes and types of an empty state, for which no memory is taken, and the names of its parts."""
    pattern = jax.eval_shape(lambda: fresh_state(learner, 1, jnp.result_type(float)))
    size = sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(pattern))
    if size > _MOST:
        raise ValueError(f"{type(learner).__name__} would keep {size:,} bytes: more than any use of it needs")
    return pattern, [jax.tree_util.keystr(path) for path, _ in jax.tree_util.tree_leaves_with_path(pattern)]
