"""Checks of grid learners and of their states, on the host."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from dpconformal.beliefs.window import check_latest
from dpconformal.checks import as_numbers, check_not_forked, complain_at, is_traced, number, ordered
from dpconformal.counting import check_countable
from dpconformal.inputs import as_levels, check_not_batched, exactly, is_interval

SAME = 2.0**-22  # levels that are no further apart are one level: four units in the last place of a float32 below 1


def check_grid(learner: Any, start_anywhere: bool = False) -> None:
    """Check and normalise the levels, the support and the initial thresholds of a learner that is being constructed."""
    owner = type(learner).__name__
    object.__setattr__(learner, "levels", _column(f"{owner}.levels", learner.levels))
    if not is_traced(learner.levels):
        levels = learner.levels
        if levels.shape[-1] == 0:
            raise ValueError(f"{owner}.levels has shape {levels.shape}: pass at least one level, such as [0.9]")
        complain_at(f"{owner}.levels", levels, ~((levels >= 0) & (levels <= 1)), "a level lies in [0, 1]; 90 % is 0.9")
    for name in ("low", "high"):
        object.__setattr__(learner, name, number(f"{owner}.{name}", getattr(learner, name)))
    ordered(owner, learner.low, learner.high)
    if getattr(learner, "initial", None) is None:
        return
    initial = _column(f"{owner}.initial", learner.initial)
    object.__setattr__(learner, "initial", initial)
    if initial.shape[-1] not in (1, learner.levels.shape[-1]):
        raise ValueError(
            f"{owner}.initial has shape {initial.shape}: pass one threshold, or one for each of the "
            f"{learner.levels.shape[-1]} levels"
        )
    if is_traced(initial, learner.low, learner.high):
        return
    complain_at(f"{owner}.initial", initial, ~np.isfinite(initial), "must be finite")
    if not start_anywhere:
        why = f"a threshold starts within the support [{learner.low}, {learner.high}]"
        complain_at(f"{owner}.initial", initial, ~((initial >= learner.low) & (initial <= learner.high)), why)


def _column(name: str, values: Any) -> Any:
    array = as_numbers(name, values)
    if is_traced(array):
        return jnp.atleast_1d(array)
    return np.atleast_1d(np.asarray(array, float))


def check_asked(learner: Any, levels: Any, why: str = "") -> None:
    """
    Check that a learner has the levels that it is asked for.

    ``levels``: Levels asked for, of any shape. Traced ones, or a traced grid, are not looked at.
    """
    if learner.to_nearest or is_traced(levels, learner.levels) or np.ndim(learner.levels) != 1:
        return
    as_levels(levels)
    asked, grid = np.asarray(as_numbers("levels", levels), float), np.asarray(learner.levels, float)
    ascending = np.sort(grid)
    after = np.searchsorted(ascending, asked)  # the two neighbours of each level: rounds may be many
    neighbours = (ascending[np.clip(place, 0, grid.size - 1)] for place in (after - 1, after))
    missing = np.minimum(*(np.abs(asked - neighbour) for neighbour in neighbours)) > SAME
    if not missing.any():
        return
    name, grids = type(learner).__name__, (_written(grid), _written(np.unique(asked)))
    remedy = f"construct it with the levels that you ask for, {name}({grids[1]}), or use MultiOGD or MultiMVP"
    why = f"not in the grid of this {name}, {grids[0]}{why}; {remedy}, which answer with their nearest level"
    complain_at("levels", asked, missing, why)


def _written(levels: Any) -> str:
    """Write a few levels, and of many the first and the last."""
    shown = [exactly(level) for level in levels]
    return f"[{', '.join(shown if len(shown) <= 8 else [*shown[:3], '…', shown[-1]])}]"


def check_state(learner: Any, state: Any, batched: bool = False) -> None:
    """Check that a learner can work with a state."""
    check_not_forked()
    check_not_batched(learner)
    name, kind = type(learner).__name__, learner.state_type
    if not isinstance(state, kind):
        raise ValueError(
            f"state is a {type(state).__name__}: {name} carries on from a {kind.__name__}, such as run.state"
        )
    check_countable(state)
    if np.ndim(state.seen) and not batched:
        raise ValueError(f"state is a batch of shape {np.shape(state.seen)}: use jax.vmap")
    leaves, structure = jax.tree.flatten(learner)
    expected = _shapes(structure, tuple((np.shape(leaf), jnp.result_type(leaf)) for leaf in leaves))
    for field, own, wanted in zip(kind._fields, state, expected, strict=True):
        shape = np.shape(own)[np.ndim(state.seen) :]
        if len(shape) != len(wanted) or any(
            a != b and not a < b == learner.room for a, b in zip(shape, wanted, strict=True)
        ):
            raise ValueError(
                f"state.{field} has shape {shape}, and this {name} works with {wanted}: carry on with the learner "
                "that made it"
            )
    if hasattr(state, "latest"):
        check_latest(name, state.latest, learner.support)


def support_with_rounding(learner: Any, values: Any, step: Any = 0.0) -> tuple[Any, Any]:
    """
    Return between which numbers thresholds of a state lie.

    Descent leaves the support by one step at most: above all scores it only steps down, below them only up.
    """
    low, high = np.float64(learner.low), np.float64(learner.high)
    with np.errstate(over="ignore"):
        reach = (high - low) * step
        reach = reach + 64 * float(jnp.finfo(values.dtype).eps) * (max(abs(low), abs(high)) + reach)
        return low - reach, high + reach


@functools.lru_cache
def _shapes(structure: Any, leaves: tuple[Any, ...]) -> tuple[tuple[int, ...], ...]:
    """Shapes of a learner's state, by the learner's own; remembered, for online use is a call a round."""
    learner = jax.tree.unflatten(structure, [jax.ShapeDtypeStruct(*leaf) for leaf in leaves])
    return tuple(leaf.shape for leaf in jax.eval_shape(lambda own: own.start(jnp.float32), learner))


def check_width(learner: Any, dtype: Any) -> None:
    """Check that a support is still one in the precision to work in."""
    if is_traced(learner.low, learner.high):
        return
    if not is_interval(learner.support, dtype):
        raise ValueError(
            f"{type(learner).__name__} on [{learner.low}, {learner.high}] collapses in {np.dtype(dtype)}; rescale, or "
            "enable 64-bit JAX (jax_enable_x64)"
        )
