"""A martingale over a whole sequence, or a batch of them."""

from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from dpconformal.martingales.capital import Capital, Martingale, check_capital
from dpconformal.pytree import register
from dpconformal.rounds import Rounds
from dpconformal.scan import drive
from dpconformal.time_axis import check_not_column, check_time_index
from dpconformal.validation import Numbers, as_levels, is_traced


class Path(NamedTuple):
    """
    What :func:`run` returns.

    Attributes
    ----------
    log_capital : Array, shape (..., T)
        Logarithm of the capital after each round.
    state : Capital
        To carry on from.
    """

    log_capital: Float[Array, "*B T"]  # (..., T)
    state: Capital


def run(martingale: Martingale, p: Numbers, state: Capital | None = None) -> Path:
    """
    Follow the capital of a martingale.

    Parameters
    ----------
    martingale : Martingale
        The gambler.
    p : array_like, shape (..., T)
        Numbers in [0, 1], in time order: :func:`dpconformal.diagnostics.smoothed_ranks`, for instance.
    state : Capital, optional
        The ``state`` of an earlier run, with the same leading axes; a capital of 1 by default.

    Returns
    -------
    Path
        The capital round by round, in logarithms: a million rounds neither overflow nor underflow.

    Raises
    ------
    ValueError
        For NaN and numbers outside [0, 1].

    Examples
    --------
    >>> import numpy as np
    >>> from dpconformal.martingales import SimpleJumper
    >>> p = np.random.default_rng(0).random(1000) ** 0.5
    >>> path = run(SimpleJumper(), p)
    >>> path.log_capital.shape, bool(path.log_capital[-1] > 20)
    ((1000,), True)
    """
    numbers = as_levels(p, None, "p")
    if not numbers.ndim:
        raise ValueError("p has shape (): pass a sequence, shape (T,) or (..., T)")
    batch = numbers.shape[:-1]
    if state is None:
        check_not_column("p", numbers.shape, "run")
        begin = martingale.init(dtype=numbers.dtype)
    else:
        check_capital(martingale, state, batch)
        dtype = np.result_type(numbers.dtype, state.shares.dtype)
        numbers, begin = jax.tree.map(lambda leaf: jnp.asarray(leaf).astype(dtype), (numbers, state))
    check_time_index("p", p)
    (log_capital,), end = follow(martingale, ("log_capital",), begin, numbers, fresh=state is None)
    return Path(log_capital, end)


@register(static=("fields",))
@dataclass(frozen=True)
class _Followed:
    """A learner for the generic scan: it answers each round with some fields of its state."""

    owner: Any
    fields: tuple[str, ...]

    def init(self) -> Any:
        """Return the owner's fresh state."""
        return self.owner.init()

    def quantile(self, state: Any, levels: Any) -> Any:
        """Read the fields off a state."""
        del levels
        return tuple(getattr(state, name) for name in self.fields)

    def observe(self, state: Any, score: Any) -> Any:
        """Return the owner's state after one more round."""
        return self.owner.observe(state, score)


def follow(
    owner: Any, fields: tuple[str, ...], state: Any, values: Float[Array, "*B T"], fresh: bool
) -> tuple[tuple[Array, ...], Any]:
    """Scan a sequence, or a batch of them; return some fields of the state after each round, and the final state."""
    learner = _Followed(owner, fields)
    before, end = drive(_answer, learner, state, Rounds(values, np.zeros(0, values.dtype)), fresh=fresh)
    if not values.shape[-1]:
        return before, end
    xp = jnp if is_traced(before) else np

    def moved_up(rows: Any, last: Any) -> Array:
        return jnp.asarray(xp.concatenate([rows[..., 1:], last[..., None]], axis=-1))

    # The generic scan reads a state before each round.
    return jax.tree.map(moved_up, before, _answer(learner, end, None, None)), end


@jax.jit
def _answer(learner: Any, state: Any, score: Any, levels: Any) -> tuple[Array, ...]:
    del score
    return learner.quantile(state, levels)
