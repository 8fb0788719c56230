"""What becomes known in each round where scores are late, and what is still on its way after the last."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from dpconformal.checks import is_traced
from dpconformal.delays import Told
from dpconformal.learner import support_of


def spread_rounds(tree: Any, axes: int, batch: tuple[int, ...]) -> Any:
    """
    Repeat what belongs to the scores for every delay.

    Parameters
    ----------
    tree : pytree of array
        With the leading axes of the scores.
    axes : int
        How many these are.
    batch : tuple of int
        Leading axes of the run.

    Returns
    -------
    pytree of array
        With those.
    """

    def repeat(leaf: Any) -> Any:
        xp = np if isinstance(leaf, np.ndarray) else jnp
        new = (1,) * (len(batch) - axes) + leaf.shape
        return xp.broadcast_to(xp.reshape(leaf, new), batch + leaf.shape[axes:])

    return jax.tree.map(repeat, tree)


def arriving(learner: Any, delay: Any, own: Told, waiting: Told | None) -> Told:
    """
    Tell what becomes known in each round: the score of that many rounds before.

    Parameters
    ----------
    learner : Learner
        For the support.
    delay : int, or array of int, shape (...)
        Of each sequence; possibly traced.
    own : Told
        The scores of the rounds themselves.
    waiting : Told or None
        What was on its way before the first round.

    Returns
    -------
    Told
        Of as many rounds.

    Examples
    --------
    >>> import dpconformal as dpc
    >>> arriving(dpc.Exact(), 2, Told(np.array([0.2, 0.4, 0.6])), None)[:2]
    (array([0. , 0. , 0.2]), array([False, False,  True]))
    """
    rounds, late = own.scores.shape[-1], _column(delay)
    both = _one_after_the_other(own, waiting)
    xp = _namespace(both, late)
    first = both.scores.shape[-1] - rounds - late
    return _taken(learner, both, first + xp.arange(rounds, dtype=np.int32))


def on_their_way(learner: Any, delay: Any, own: Told, waiting: Told | None) -> Told:
    """
    Tell what is not known yet after the last round.

    Parameters
    ----------
    learner, delay, own, waiting
        As for :func:`arriving`; the delay is not traced.

    Returns
    -------
    Told
        Of as many places as the longest delay has rounds.
    """
    late, longest = _column(delay), int(np.max(delay, initial=0))
    both, place = _one_after_the_other(own, waiting), np.arange(longest, dtype=np.int32)
    found = _taken(
        learner, both, np.broadcast_to(both.scores.shape[-1] - longest + place, (*np.shape(late)[:-1], longest))
    )
    return found._replace(observed=found.observed & (place >= longest - late))


def _column(delay: Any) -> Any:
    return delay[..., None] if np.ndim(delay) else delay


def _namespace(*values: Any) -> Any:
    return jnp if is_traced(*values) else np


def _one_after_the_other(own: Told, waiting: Told | None) -> Told:
    """Put what was on its way before the first round, on the host unless something is traced."""
    observed = np.ones(own.scores.shape, bool) if own.observed is None else own.observed
    own = own._replace(observed=observed)
    xp, axis = _namespace(own, waiting), own.scores.ndim - 1
    parts = (own,) if waiting is None else (waiting, own)
    return jax.tree.map(lambda *leaves: xp.concatenate([xp.asarray(leaf) for leaf in leaves], axis=axis), *parts)


def _taken(learner: Any, both: Told, index: Any) -> Told:
    """Take some places, by one list for all sequences or a list each; there is nothing before the first."""
    xp, batch, places = _namespace(both, index), both.scores.shape[:-1], both.scores.shape[-1]

    def take(leaf: Any) -> Any:
        extra = leaf.shape[len(batch) + 1 :]
        if not places:
            return xp.zeros((*batch, index.shape[-1], *extra), leaf.dtype)
        inside = xp.maximum(index, 0)
        if index.ndim == 1:
            return xp.take(leaf, inside, axis=len(batch))
        inside = xp.broadcast_to(inside, (*batch, index.shape[-1]))
        return xp.take_along_axis(leaf, inside.reshape(inside.shape + (1,) * len(extra)), axis=len(batch))

    found = jax.tree.map(take, both)
    real = found.observed & (index >= 0)
    # A number in the support: a learner looks at it, though what it makes of it is thrown away.
    ends = support_of(learner)
    xp = jnp if is_traced(ends) else xp
    nothing = xp.clip(xp.zeros((), found.scores.dtype), *(xp.asarray(end, found.scores.dtype) for end in ends))
    return found._replace(scores=xp.where(real, found.scores, nothing), observed=real)
