"""The belief itself: a continuous prior mixed with point masses, its cdf and its quantiles."""

from typing import Any, NamedTuple

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Int

from dpconformal.engine.pointer_loop import quantile_between_atoms
from dpconformal.priors.base import Prior
from dpconformal.validation import Numbers, as_floats, as_levels


class Belief(NamedTuple):
    """
    The distribution ``prior_weight · P0 + Σ_j mass_j · δ(atom_j)`` of the next score.

    Attributes
    ----------
    prior : Prior
        P0.
    prior_weight : Array, shape ()
        Share of the prior; NaN if the state is invalid inside ``jit``.
    atoms : Array, shape (J,)
        Point masses, ascending; those from ``used`` on are padding.
    cumulative : Array, shape (J + 1,)
        Mass of the first j atoms.
    used : Array, shape ()
        How many atoms there are.
    rest : Array, shape (J + 1,), optional
        What rounding has taken from ``cumulative``. Between two atoms a quantile is where the prior's share makes up
        the difference of level and mass, and a share of 1/1000 makes an error of that difference a thousand times as
        large: in float32, without this, up to 1e-7 divided by the prior's weight and density.
    """

    prior: Prior
    prior_weight: Float[Array, ""]  # ()
    atoms: Float[Array, " J"]  # (J,)
    cumulative: Float[Array, " J+1"]  # (J + 1,)
    used: Int[Array, ""]  # ()
    rest: Float[Array, " J+1"] | None = None  # (J + 1,)

    def cdf(self, x: Numbers, side: str = "right") -> Float[Array, "..."]:
        """
        P(X ≤ x).

        Parameters
        ----------
        x : array_like
            Any real numbers.
        side : {"right", "left"}
            Whether an atom at x itself counts: P(X ≤ x), or P(X < x).

        Returns
        -------
        Array
            Probabilities, of the shape of x.
        """
        x = as_floats(x).astype(self.atoms.dtype)
        passed = jnp.searchsorted(self.atoms, x, side=side).astype(self.used.dtype)
        mass = self.cumulative[jnp.minimum(passed, self.used)]
        value = self.prior_weight * self.prior.cdf(x) + mass
        return jnp.minimum(value, 1)  # rounding only

    def quantile(self, levels: Numbers) -> Float[Array, "..."]:
        """
        Smallest x of the support with P(X ≤ x) ≥ level.

        Between two neighbouring atoms only the prior's share grows, so the quantile is closed-form
        once the right pair of neighbours is found, and that is a binary search.

        Parameters
        ----------
        levels : array_like
            Levels in [0, 1].

        Returns
        -------
        Array
            Thresholds, of the shape of the levels. For levels a ≤ b they are ordered, to the last bit.
        """
        levels = as_levels(levels, self.atoms.dtype)
        j = self._first_reaching(lax.stop_gradient(levels))
        low, high = (jnp.asarray(end, levels.dtype) for end in self.prior.support)
        last = self.atoms.shape[-1] - 1
        left = jnp.where(j > 0, self.atoms[jnp.maximum(j - 1, 0)], low)
        right = jnp.where(j < self.used, self.atoms[jnp.minimum(j, last)], high)
        rest = 0 if self.rest is None else self.rest[j]
        return quantile_between_atoms(self.prior, self.prior_weight, self.cumulative[j], left, right, levels, rest)

    def _first_reaching(self, levels: Array) -> Int[Array, "..."]:
        """Index of the first atom at which the cdf reaches each level; ``used`` if none does."""
        given = self.prior_weight, self.atoms, self.cumulative, self.rest
        weight, atoms, cumulative, rest = lax.stop_gradient(given)

        def halve(_: Any, bracket: tuple[Array, Array]) -> tuple[Array, Array]:
            low, high = bracket
            middle = (low + high) // 2
            share = weight * self.prior.cdf(atoms[middle])
            if rest is None:
                reaches = share + cumulative[middle + 1] >= levels
            else:
                reaches = share >= (levels - cumulative[middle + 1]) - rest[middle + 1]
            searching = low < high
            high = jnp.where(searching & reaches, middle, high)
            low = jnp.where(searching & ~reaches, middle + 1, low)
            return low, high

        start = jnp.zeros(levels.shape, self.used.dtype)
        stop = jnp.broadcast_to(self.used, levels.shape)
        return lax.fori_loop(0, atoms.shape[-1].bit_length(), halve, (start, stop))[1]
