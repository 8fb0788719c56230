"""What all martingales have in common: capital spread over bets, some of which jumps to other bets in each round."""

from typing import Any, NamedTuple, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import logsumexp
from jaxtyping import Array, Float

from dpconformal.learner import State
from dpconformal.validation import Numbers, as_levels, check_not_batched


class Capital(NamedTuple):
    """
    What a gambler owns, by jumper and bet.

    Attributes
    ----------
    log_capitals : Array, shape (jumpers,)
        Logarithm of each jumper's capital; at first these sum to 1. NaN once a bad number was met inside ``jit``.
    rests : Array, shape (jumpers,)
        What rounding took from these logarithms, to be added in the next round: over a million rounds of float32 it
        would come to more than the rest.
    shares : Array, shape (jumpers, bets)
        How each jumper's capital is divided among its bets.
    """

    log_capitals: Float[Array, "*B J"]  # (jumpers,)
    rests: Float[Array, "*B J"]  # (jumpers,)
    shares: Float[Array, "*B J K"]  # (jumpers, bets)

    @property
    def log_capital(self) -> Float[Array, "*B"]:
        """Logarithm of the whole capital."""
        return logsumexp(self.log_capitals, axis=-1)


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
        """Return the capital with one more unit, divided as at first."""
        ...


class Bets:
    """
    A martingale by its bets: how capital is divided among them, which share jumps, and what each pays.

    A martingale says that (``weights``, ``jumps``, ``division``, ``bets``) by pure functions; the checks and the sums
    are done here.
    """

    def init(self, dtype: Any = None) -> Capital:
        """Return a capital of 1."""
        check_not_batched(self)
        return _begun(self, np.dtype(dtype or jnp.result_type(float)))

    def observe(self, state: State, p: Numbers) -> Capital:
        """Return the capital after a bet on one more number."""
        check_capital(self, state)
        number = as_levels(p, state.shares.dtype, "p")
        if number.ndim:
            raise ValueError(f"p has shape {number.shape}: observe takes one number; use run for many, or jax.vmap")
        return _observed(self, state, number)

    def funded(self, state: Capital) -> Capital:
        """Return the capital with one more unit, divided as at first."""
        check_capital(self, state)
        return _funded(self, state)

    def weights(self, dtype: Any) -> Float[Array, " J"]:
        """Return the share of each jumper in fresh capital."""
        raise NotImplementedError

    def jumps(self, dtype: Any) -> Float[Array, " J"]:
        """Return the share of each jumper's capital that is divided anew before each round."""
        raise NotImplementedError

    def division(self, dtype: Any) -> Float[Array, " K"]:
        """Return the share of each bet in what is divided anew."""
        raise NotImplementedError

    def bets(self, p: Float[Array, ""]) -> Float[Array, "#J K"]:
        """Return what each bet pays for a unit; over p in [0, 1], each pays 1 on average."""
        raise NotImplementedError


def check_capital(martingale: Any, state: Any, batch: tuple[int, ...] = ()) -> None:
    """Refuse the state of another martingale."""
    name = type(martingale).__name__
    if not isinstance(state, Capital):
        raise ValueError(f"state is a {type(state).__name__}: {name} carries on from a Capital, such as its init()")
    wanted = (*batch, *jax.eval_shape(martingale.init).shares.shape)
    found = jnp.shape(state.shares)
    if found != wanted:
        remedy = "; use run for many sequences, or jax.vmap" if not batch and found[-2:] == wanted[-2:] else ""
        raise ValueError(f"state.shares has shape {found}: this {name} has {wanted}{remedy}")


@jax.jit(static_argnames="dtype")
def _begun(martingale: Any, dtype: Any) -> Capital:
    weights, division = martingale.weights(dtype), martingale.division(dtype)
    shares = jnp.broadcast_to(division[None], weights.shape + division.shape)
    return Capital(jnp.log(weights), jnp.zeros_like(weights), shares)


@jax.jit
def _funded(martingale: Any, state: Capital) -> Capital:
    fresh = _begun(martingale, np.dtype(state.shares.dtype))
    log_capitals = jnp.logaddexp(state.log_capitals, fresh.log_capitals)
    old, new = (jnp.exp(part.log_capitals - log_capitals)[:, None] for part in (state, fresh))
    return Capital(log_capitals, jnp.zeros_like(state.rests), old * state.shares + new * fresh.shares)


@jax.jit
def _observed(martingale: Any, state: Capital, p: Float[Array, ""]) -> Capital:
    dtype = state.shares.dtype
    jumps, division = martingale.jumps(dtype)[:, None], martingale.division(dtype)[None]
    # Capital moves before the bet, so what is bet depends on the past alone.
    paid = ((1 - jumps) * state.shares + jumps * division) * martingale.bets(p)
    growth = jnp.sum(paid, axis=-1)
    # Added as by Kahan.
    step = jnp.log(growth) + state.rests
    log_capitals = state.log_capitals + step
    rests = jnp.where(jnp.isneginf(state.log_capitals), 0, step - (log_capitals - state.log_capitals))
    return Capital(log_capitals, rests, paid / growth[:, None])
