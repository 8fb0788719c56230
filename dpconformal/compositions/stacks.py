"""Learners that differ in numbers alone are one program: their numbers stand in a row, and so do their states."""

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from dpconformal.beliefs import Belief, Quantized
from dpconformal.beliefs.quantized import BinnedScores
from dpconformal.learner import ContextLearner, State
from dpconformal.validation import is_hashable


class Stack(NamedTuple):
    """Learners of one kind."""

    places: tuple[int, ...]  # where they stand among all learners
    learner: Any  # one learner, each of whose numbers is an array, shape (n,)
    with_context: bool  # whether it takes the context of a round


def takes_context(learner: Any) -> bool:
    """Whether a learner takes the context of a round; of a mixture, whether any of those in it does."""
    inner = getattr(learner, "learners", None)
    return isinstance(learner, ContextLearner) and (inner is None or any(map(takes_context, inner)))


def stack_learners(learners: Sequence[Any]) -> list[Stack]:
    """Sort learners into stacks; equal ones once."""
    learners = tuple(learners)
    return _stack_once(learners, jnp.result_type(float)) if is_hashable(learners) else _stack(learners)


@functools.lru_cache(maxsize=128)
def _stack_once(learners: tuple[Any, ...], dtype: Any) -> list[Stack]:
    del dtype  # of the numbers, which depends on the user's settings
    with jax.ensure_compile_time_eval():
        return _stack(learners)


def _stack(learners: tuple[Any, ...]) -> list[Stack]:
    kinds: dict[Any, list[int]] = {}
    for place, learner in enumerate(learners):
        leaves, structure = jax.tree.flatten(learner)
        kinds.setdefault((structure, tuple(np.shape(leaf) for leaf in leaves)), []).append(place)
    stacks = []
    for places in kinds.values():
        own = [learners[place] for place in places]
        joint = jax.tree.map(lambda *leaves: jnp.stack([jnp.asarray(leaf) for leaf in leaves]), *own)
        stacks.append(Stack(tuple(places), joint, takes_context(own[0])))
    return stacks


def stack_states(learners: Sequence[Any], states: Sequence[State], axis: int = 0) -> tuple[State, ...]:
    """Put the states of learners into stacks."""
    return tuple(
        jax.tree.map(lambda *leaves: jnp.stack(leaves, axis), *(states[place] for place in stack.places))
        for stack in stack_learners(learners)
    )


def unstack_states(learners: Sequence[Any], stacks: Sequence[State], axis: int = 0) -> list[State]:
    """Take the states of learners out of their stacks."""
    states: list[State] = [None] * len(learners)
    for stack, state in zip(stack_learners(learners), stacks, strict=True):
        for k, place in enumerate(stack.places):
            states[place] = jax.tree.map(lambda leaf, k=k: jnp.take(leaf, k, axis), state)
    return states


def vmap_learners(
    learners: Sequence[Any], states: Sequence[State], call: Callable[..., Any], context: Any
) -> list[Any]:
    """Call ``call(learner, state, **given)`` for every learner; return the results of each stack."""
    results = []
    for stack, state in zip(stack_learners(learners), states, strict=True):
        given = {"context": context} if stack.with_context else {}
        results.append(jax.vmap(lambda one, own, given=given: call(one, own, **given))(stack.learner, state))
    return results


def quantiles_of(learners: Sequence[Any], states: Sequence[State], levels: Array, context: Any) -> Array:
    """Read the thresholds of every learner, in any order: of all beliefs of one kind in one search, for one program."""

    def read(one: Any, own: State, **given: Any) -> Array | Belief:
        binned = isinstance(one, Quantized) and isinstance(own, BinnedScores)
        return one.belief(own, levels.dtype) if binned else one.quantile(own, levels, **given)

    found: list[Array] = []
    kinds: dict[Any, list[Belief]] = {}
    for answer in vmap_learners(learners, states, read, context):
        if isinstance(answer, Belief):
            leaves, structure = jax.tree.flatten(answer)
            kinds.setdefault((structure, tuple(leaf.shape[1:] for leaf in leaves)), []).append(answer)
        else:
            found.append(answer)
    for beliefs in kinds.values():
        joint = jax.tree.map(lambda *leaves: jnp.concatenate(leaves), *beliefs)
        found.append(jax.vmap(lambda belief: belief.quantile(levels))(joint))
    return jnp.concatenate(found)


def cdf_in_cells(learner: Any, state: State, middles: Array, **given: Any) -> Array:
    """Evaluate a learner's cdf in the middles of equal cells of the support."""
    if not isinstance(learner, Quantized) or not isinstance(state, BinnedScores):
        return learner.cdf(state, middles, **given)
    # How many bins have their atom below is known beforehand: no search, and so a fraction of the time.
    cells, bins = middles.shape[0], state.weights.shape[-1]
    passed = ((2 * np.arange(cells) + 1) * bins + cells * (learner.rounding == "nearest")) // (2 * cells)
    belief = learner.belief(state, middles.dtype if learner.discount is None else None)
    return jnp.minimum(belief.prior_weight * learner.prior.cdf(middles) + belief.cumulative[passed], 1)
