"""A martingale over a whole sequence, or a batch of them."""

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float

from dpconformal.checks import Numbers
from dpconformal.inputs import as_levels
from dpconformal.martingales.capital import Capital, Martingale, check_capital
from dpconformal.time_axis import check_not_column, check_time_index


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
        fresh = martingale.init(dtype=numbers.dtype)
        state = jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, batch + leaf.shape), fresh)
    else:
        check_capital(martingale, state, batch)
        dtype = np.result_type(numbers.dtype, state.shares.dtype)
        numbers, state = jax.tree.map(lambda leaf: jnp.asarray(leaf).astype(dtype), (numbers, state))
    check_time_index("p", p)
    return Path(*scanned(_bet, martingale, state, numbers))


def scanned(read: Any, owner: Any, state: Any, values: Float[Array, "*B T"]) -> tuple[Any, Any]:
    """
    Scan a sequence, or a batch of them.

    ``read``: ``(owner, state, value) -> (state, output)``, one round; a module's function, since it is compiled for.
    """
    batch = values.shape[:-1]
    if not batch:
        return _scan(read, owner, state, values)
    count = math.prod(batch)
    flat = jax.tree.map(lambda leaf: leaf.reshape((count, *leaf.shape[len(batch) :])), (state, values))
    found = _scan_batch(read, owner, *flat)
    return jax.tree.map(lambda leaf: leaf.reshape(batch + leaf.shape[1:]), found)


def _bet(martingale: Any, state: Capital, p: Float[Array, ""]) -> tuple[Capital, Float[Array, ""]]:
    after = martingale.observe(state, p)
    return after, after.log_capital


@jax.jit(static_argnames="read")
def _scan(read: Any, owner: Any, state: Any, values: Array) -> tuple[Any, Any]:
    end, outputs = lax.scan(lambda carry, value: read(owner, carry, value), state, values)
    return outputs, end


@jax.jit(static_argnames="read")
def _scan_batch(read: Any, owner: Any, state: Any, values: Array) -> tuple[Any, Any]:
    return jax.vmap(lambda own, row: _scan(read, owner, own, row))(state, values)
