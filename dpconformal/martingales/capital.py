"""What all martingales have in common: capital spread over bets, some of which jumps to other bets in each round."""

from typing import Any, NamedTuple, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import logsumexp
from jaxtyping import Array, Float

from dpconformal.checks import Numbers
from dpconformal.inputs import as_levels, check_not_batched


class Capital(NamedTuple):
    """
    What a gambler owns, by jumper and bet.

    Attributes
    ----------
    log_capitals : Array, shape (jumpers, bets)
        Logarithm of the capital on each bet of each jumper; they sum to 1 at first. NaN once a bad number was met inside
        ``jit``.
    """

    log_capitals: Float[Array, "*B J K"]  # (jumpers, bets)

    @property
    def log_capital(self) -> Float[Array, "*B"]:
        """Logarithm of the whole capital."""
        return logsumexp(self.log_capitals, axis=(-2, -1))


@runtime_checkable
class Martingale(Protocol):
    """
    A gambler against exchangeability: :class:`SimpleJumper`, :class:`Composite`, :class:`Mixture`.

    Numbers that are independent and uniform on [0, 1] are fair to it: whatever it owns, it expects to own as much after
    the next one.
    """

    def init(self, dtype: Any = None) -> Capital:
        """Return a capital of 1."""
        ...

    def observe(self, state: Capital, p: Numbers) -> Capital:
        """Return the capital after a bet on one more number."""
        ...

    def funded(self, state: Capital) -> Capital:
        """Return the capital with one more unit, spread over the bets as at first."""
        ...


class Bets:
    """
    A martingale by its bets: how capital is spread over them, which share jumps, and what each pays.

    A martingale says that (``jumps``, ``shares``, ``log_bets``) by pure functions; the checks and the sums are done here.
    """

    def init(self, dtype: Any = None) -> Capital:
        """Return a capital of 1."""
        check_not_batched(self)
        return _begun(self, np.dtype(dtype or jnp.result_type(float)))

    def observe(self, state: Capital, p: Numbers) -> Capital:
        """Return the capital after a bet on one more number."""
        check_capital(self, state)
        number = as_levels(p, state.log_capitals.dtype, "p")
        if number.ndim:
            raise ValueError(f"p has shape {number.shape}: observe takes one number; use run for many, or jax.vmap")
        return _observed(self, state, number)

    def funded(self, state: Capital) -> Capital:
        """Return the capital with one more unit, spread over the bets as at first."""
        check_capital(self, state)
        return _funded(self, state)

    def jumps(self, dtype: Any) -> Float[Array, " J"]:
        """Return the share of each jumper's capital that is spread anew before each round."""
        raise NotImplementedError

    def shares(self, dtype: Any) -> Float[Array, " K"]:
        """Return the share of each bet in fresh capital."""
        raise NotImplementedError

    def log_bets(self, p: Float[Array, ""]) -> Float[Array, " K"]:
        """Return the logarithm of what each bet pays for a unit; over p in [0, 1], each pays 1 on average."""
        raise NotImplementedError


def check_capital(martingale: Any, state: Any, batch: tuple[int, ...] = ()) -> None:
    """
    Refuse the state of another martingale.

    Parameters
    ----------
    martingale : Martingale
        Whose state it should be.
    state : Capital
        The state.
    batch : tuple of int
        Leading axes that it must have.

    Raises
    ------
    ValueError
        Naming the shapes.
    """
    name = type(martingale).__name__
    if not isinstance(state, Capital):
        raise ValueError(f"state is a {type(state).__name__}: {name} carries on from a Capital, such as its init()")
    wanted = (*batch, *jax.eval_shape(martingale.init).log_capitals.shape)
    found = jnp.shape(state.log_capitals)
    if found != wanted:
        remedy = "; use run for many sequences, or jax.vmap" if not batch and found[-2:] == wanted[-2:] else ""
        raise ValueError(f"state.log_capitals has shape {found}: this {name} has {wanted}{remedy}")


@jax.jit(static_argnames="dtype")
def _begun(martingale: Any, dtype: Any) -> Capital:
    jumpers, shares = martingale.jumps(dtype).shape[0], martingale.shares(dtype)
    return Capital(jnp.broadcast_to(jnp.log(shares / jumpers)[None], (jumpers, shares.shape[0])))


@jax.jit
def _funded(martingale: Any, state: Capital) -> Capital:
    fresh = _begun(martingale, np.dtype(state.log_capitals.dtype))
    return Capital(jnp.logaddexp(state.log_capitals, fresh.log_capitals))


@jax.jit
def _observed(martingale: Any, state: Capital, p: Float[Array, ""]) -> Capital:
    own = state.log_capitals
    jumps, shares = martingale.jumps(own.dtype)[:, None], martingale.shares(own.dtype)[None]
    # Capital moves before the bet, so what is bet depends on the past alone.
    spread = logsumexp(own, axis=-1, keepdims=True) + jnp.log(jumps) + jnp.log(shares)
    return Capital(jnp.logaddexp(own + jnp.log1p(-jumps), spread) + martingale.log_bets(p)[None])
