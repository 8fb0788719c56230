"""What becomes known in each round where scores are late, and what is still on its way after the last."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from dpconformal.checks import is_traced
from dpconformal.delays import Told
from dpconformal.learner import support_of


def spread_rounds(tree: Any, axes: int, batch: tuple[int, ...]) -> Any:
    """Repeat what belongs to the scores for every delay."""

    def repeat(leaf: Any) -> Any:
        xp = np if isinstance(leaf, np.ndarray) else jnp
        new = (1,) * (len(batch) - axes) + leaf.shape
        return xp.broadcast_to(xp.reshape(leaf, new), batch + leaf.shape[axes:])

    return jax.tree.map(repeat, tree)


def arriving(learner: Any, delay: Any, own: Told, waiting: Told | None) -> Told:
    """Tell what becomes known in each round: the score of that many rounds before."""
    both = _one_after_the_other(own, waiting)
    rounds, places = own.scores.shape[-1], both.scores.shape[-1]
    return _taken(learner, both, np.arange(places - rounds, places, dtype=np.int32), delay)


def on_their_way(learner: Any, delay: Any, own: Told, waiting: Told | None) -> Told:
    """Tell what is not known yet after the last round."""
    both, longest = _one_after_the_other(own, waiting), int(np.max(delay, initial=0))
    places = both.scores.shape[-1]
    found = _taken(learner, both, np.arange(places - longest, places, dtype=np.int32), 0)
    late = np.broadcast_to(delay, own.scores.shape[:-1])[..., None]
    return _blank(learner, found, np.arange(longest) >= longest - late)


def _one_after_the_other(own: Told, waiting: Told | None) -> Told:
    """Put what was on its way before the first round; what is not traced stays on the host."""
    observed = np.ones(own.scores.shape, bool) if own.observed is None else own.observed
    own, axis = own._replace(observed=observed), own.scores.ndim - 1

    def joined(*leaves: Any) -> Any:
        xp = _namespace(leaves)
        return xp.concatenate([xp.asarray(leaf) for leaf in leaves], axis=axis)

    return jax.tree.map(joined, *((own,) if waiting is None else (waiting, own)))


def _taken(learner: Any, both: Told, place: np.ndarray, delay: Any) -> Told:
    """Take for each place what stands that many places before it; there is nothing before the first."""
    batch, places, xp = both.scores.shape[:-1], both.scores.shape[-1], _namespace(delay)
    late = xp.asarray(delay, np.int32)
    if late.ndim:  # a list of places for each sequence
        late = xp.broadcast_to(late, batch)[..., None]
    index = xp.broadcast_to(xp.asarray(place), (*late.shape[:-1], place.size)) - late

    def take(leaf: Any) -> Any:
        xp, extra = _namespace(leaf, index), leaf.shape[len(batch) + 1 :]
        if not places:
            return xp.zeros((*batch, place.size, *extra), leaf.dtype)
        inside = xp.maximum(xp.asarray(index), 0)
        if late.ndim == 0:
            return xp.take(leaf, inside, axis=len(batch))
        return xp.take_along_axis(leaf, inside.reshape(inside.shape + (1,) * len(extra)), axis=len(batch))

    return _blank(learner, jax.tree.map(take, both), xp.broadcast_to(index >= 0, (*batch, place.size)))


def _blank(learner: Any, told: Told, there: Any) -> Told:
    """Leave out what is not there: for its score stands a number in the support, at which a learner may look."""
    real, ends = told.observed & there, support_of(learner)
    xp = _namespace(told.scores, real, ends)
    nothing = xp.clip(xp.zeros((), told.scores.dtype), *(xp.asarray(end, told.scores.dtype) for end in ends))
    return told._replace(scores=xp.where(real, told.scores, nothing), observed=real)


def _namespace(*values: Any) -> Any:
    return jnp if is_traced(*values) else np
