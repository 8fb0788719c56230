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
    """
    Learners of one kind.

    Attributes
    ----------
    places : tuple of int
        Where they stand among all learners.
    learner : Learner
        One learner, each of whose numbers is an array, shape (n,).
    with_context : bool
        Whether it takes the context of a round.
    """

    places: tuple[int, ...]
    learner: Any  # leaves (n,)
    with_context: bool


def takes_context(learner: Any) -> bool:
    """Tell whether a learner takes the context of a round; of a mixture, whether any of those in it does."""
    inner = getattr(learner, "learners", None)
    return isinstance(learner, ContextLearner) and (inner is None or any(map(takes_context, inner)))


def stack_learners(learners: Sequence[Any]) -> list[Stack]:
    """Sort learners into stacks; equal ones once."""
    learners = tuple(learners)
    return _stacked_once(learners, jnp.result_type(float)) if is_hashable(learners) else _stacked(learners)


@functools.lru_cache(maxsize=128)
def _stacked_once(learners: tuple[Any, ...], dtype: Any) -> list[Stack]:
    del dtype  # of the numbers, which depends on the user's settings
    with jax.ensure_compile_time_eval():
        return _stacked(learners)


def _stacked(learners: Sequence[Any]) -> list[Stack]:
    kinds: dict[Any, list[int]] = {}
    for place, learner in enumerate(learners):
        leaves, structure = jax.tree.flatten(learner)
        kinds.setdefault((structure, tuple(np.shape(leaf) for leaf in leaves)), []).append(place)
    return [
        Stack(
            tuple(places),
            jax.tree.map(
                lambda *leaves: jnp.stack([jnp.asarray(leaf) for leaf in leaves]), *(learners[i] for i in places)
            ),
            takes_context(learners[places[0]]),
        )
        for places in kinds.values()
    ]


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
    learners: Sequence[Any], stacks: Sequence[State], reader: Callable[..., Array], context: Any
) -> Array:
    """Read something off every learner."""
    found = []
    for stack, state in zip(stack_learners(learners), stacks, strict=True):
        given = {"context": context} if stack.with_context else {}
        found.append(jax.vmap(lambda learner, own, given=given: reader(learner, own, **given))(stack.learner, state))
    return jnp.concatenate(found)


def quantiles_of(learners: Sequence[Any], stacks: Sequence[State], levels: Array, context: Any) -> Array:
    """Read the thresholds of every learner, in any order: of all beliefs of one kind in one search, for one program."""
    found: list[Array] = []
    kinds: dict[Any, list[Belief]] = {}
    for stack, state in zip(stack_learners(learners), stacks, strict=True):
        if isinstance(stack.learner, Quantized) and isinstance(state, BinnedScores):
            beliefs = jax.vmap(lambda one, own: one.belief(own, levels.dtype))(stack.learner, state)
            leaves, structure = jax.tree.flatten(beliefs)
            kinds.setdefault((structure, tuple(leaf.shape[1:] for leaf in leaves)), []).append(beliefs)
            continue
        given = {"context": context} if stack.with_context else {}
        found.append(jax.vmap(lambda one, own, given=given: one.quantile(own, levels, **given))(stack.learner, state))
    for beliefs_of_a_kind in kinds.values():
        beliefs = jax.tree.map(lambda *leaves: jnp.concatenate(leaves), *beliefs_of_a_kind)
        found.append(jax.vmap(lambda belief: belief.quantile(levels))(beliefs))
    return jnp.concatenate(found)


def cdf_in_cells(learner: Any, state: State, middles: Array, **given: Any) -> Array:
    """Evaluate a learner's cdf in the middles of equal cells."""
    if not isinstance(learner, Quantized) or not isinstance(state, BinnedScores):
        return learner.cdf(state, middles, **given)
    # How many bins have their atom below is known beforehand: no search, and so a fraction of the time.
    cells, bins = middles.shape[0], state.weights.shape[-1]
    passed = ((2 * np.arange(cells) + 1) * bins + cells * (learner.rounding == "nearest")) // (2 * cells)
    belief = learner.belief(state, middles.dtype if learner.discount is None else None)
    return jnp.minimum(belief.prior_weight * learner.prior.cdf(middles) + belief.cumulative[passed], 1)
