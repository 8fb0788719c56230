"""Distributions drawn from a Dirichlet process: point masses, on shared atoms and on atoms of a draw's own."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from dpconformal.validation import Numbers, as_floats, as_levels


class Draws(NamedTuple):
    """
    Random distributions F_1, …, F_D. Their thresholds never cross, for each is a distribution.

    All draws put mass on the scores seen, so these atoms are kept once; atoms that a draw took from the prior are its
    own.

    Attributes
    ----------
    low, high : Array, shape ()
        Ends of the support; for the Bayesian bootstrap ``high`` is the largest score.
    atoms : Array, shape (J,)
        Atoms of all draws, ascending.
    cumulative : Array, shape (D, J)
        Mass of the first j + 1 of them.
    own_atoms : Array, shape (D, K)
        Atoms of one draw, ascending.
    own_cumulative : Array, shape (D, K)
        Mass of the first k + 1 of them.

    Examples
    --------
    >>> import jax, dpconformal as dpc
    >>> draws = dpc.dirichlet.Posterior(dpc.priors.Uniform(), 5.0, [0.2, 0.4, 0.6]).sample(jax.random.key(0), 1000)
    >>> draws.cdf([0.5]).shape, draws.quantile([0.5, 0.9]).shape
    ((1000, 1), (1000, 2))
    """

    low: Float[Array, "*B"]  # ()
    high: Float[Array, "*B"]  # ()
    atoms: Float[Array, "*B J"]  # (J,)
    cumulative: Float[Array, "*B D J"]  # (D, J)
    own_atoms: Float[Array, "*B D K"]  # (D, K)
    own_cumulative: Float[Array, "*B D K"]  # (D, K)

    def cdf(self, x: Numbers) -> Float[Array, "D ..."]:
        """
        F(x) of each draw.

        Parameters
        ----------
        x : array_like
            Any real numbers.

        Returns
        -------
        Array, shape (D, ...)
            Probabilities.
        """
        return _cdf(self, as_floats(x).astype(self.atoms.dtype))

    def quantile(self, levels: Numbers) -> Float[Array, "D ..."]:
        """
        Smallest x with F(x) ≥ level, of each draw.

        Parameters
        ----------
        levels : array_like
            Levels in [0, 1].

        Returns
        -------
        Array, shape (D, ...)
            Thresholds; at levels 0 and 1 the ends of the support.
        """
        return _quantile(self, as_levels(levels, self.atoms.dtype))

    def __repr__(self) -> str:
        """Say how many there are, not what."""
        return f"Draws({self.cumulative.shape[-2]:,} distributions)"

    def mean(self) -> Float[Array, " D"]:
        """Return the expectation of a score under each draw."""
        shared = jnp.diff(self.cumulative, axis=-1, prepend=0) @ self.atoms
        own = jnp.sum(jnp.diff(self.own_cumulative, axis=-1, prepend=0) * self.own_atoms, axis=-1)
        return shared + own


def _mass_up_to(atoms: Array, cumulative: Array, x: Array) -> Array:
    """Return the mass up to x on atoms (J,), with cumulative (J,)."""
    if atoms.shape[0] == 0:
        return jnp.zeros(x.shape, cumulative.dtype)
    passed = jnp.searchsorted(atoms, x, side="right")
    return jnp.where(passed > 0, cumulative[jnp.maximum(passed - 1, 0)], 0)


@jax.jit
def _cdf(draws: Draws, x: Array) -> Array:
    shared = jax.vmap(_mass_up_to, in_axes=(None, 0, None))(draws.atoms, draws.cumulative, x)
    own = jax.vmap(_mass_up_to, in_axes=(0, 0, None))(draws.own_atoms, draws.own_cumulative, x)
    value = jnp.minimum(shared + own, 1)  # rounding only
    invalid = jnp.isnan(_total(draws)).reshape(-1, *(1,) * x.ndim)
    return jnp.where(jnp.isnan(x)[None] | invalid, jnp.nan, value)


def _total(draws: Draws) -> Array:
    """Return the mass of each draw: 1 but for rounding, NaN if the posterior was invalid inside jit."""
    parts = [part[:, -1] for part in (draws.cumulative, draws.own_cumulative) if part.shape[-1]]
    return sum(parts, jnp.zeros(draws.cumulative.shape[0], draws.atoms.dtype))


@jax.jit
def _quantile(draws: Draws, levels: Array) -> Array:
    def one(cumulative: Array, own_atoms: Array, own_cumulative: Array, total: Array) -> Array:
        parts = (draws.atoms, cumulative), (own_atoms, own_cumulative)

        def mass(x: Array) -> Array:
            return _mass_up_to(*parts[0], x) + _mass_up_to(*parts[1], x)

        first = [_first_reaching(atoms, mass, levels * total) for atoms, _ in parts if atoms.shape[0]]
        return jnp.min(jnp.stack(first), axis=0)

    total = _total(draws)
    found = jax.vmap(one)(draws.cumulative, draws.own_atoms, draws.own_cumulative, total)
    found = jnp.where(levels[None] <= 0, draws.low, jnp.where(levels[None] >= 1, draws.high, found))
    invalid = jnp.isnan(total).reshape(-1, *(1,) * levels.ndim)
    return jnp.where(jnp.isnan(levels)[None] | invalid, jnp.nan, found)


def _first_reaching(atoms: Array, mass: Callable[[Array], Array], wanted: Array) -> Array:
    """Return the first atom up to which there is enough mass; +inf if there is none."""

    def halve(_: Any, bracket: tuple[Array, Array]) -> tuple[Array, Array]:
        low, high = bracket
        middle = (low + high) // 2
        reaches = mass(atoms[jnp.minimum(middle, atoms.shape[0] - 1)]) >= wanted
        searching = low < high
        return jnp.where(searching & ~reaches, middle + 1, low), jnp.where(searching & reaches, middle, high)

    start = jnp.zeros(wanted.shape, jnp.int32)
    stop = jnp.full(wanted.shape, atoms.shape[0], jnp.int32)
    index = jax.lax.fori_loop(0, atoms.shape[0].bit_length(), halve, (start, stop))[1]
    return jnp.where(index < atoms.shape[0], atoms[jnp.minimum(index, atoms.shape[0] - 1)], jnp.inf)
