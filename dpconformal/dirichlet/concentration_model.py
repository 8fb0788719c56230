"""A hyperprior on the concentration as a NumPyro model, for NUTS; by quadrature: :mod:`.concentration`."""

import math
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from dpconformal.dirichlet.backend import numpyro, numpyro_distributions
from dpconformal.dirichlet.binned import bin_counts
from dpconformal.dirichlet.concentration import MEDIAN, SPREAD
from dpconformal.priors import Uniform
from dpconformal.pytree import register
from dpconformal.validation import Numbers, Scalar, as_numbers, complain_at


@register(static=("total",))
@dataclass(frozen=True, init=False)
class ConcentrationModel:
    """
    Counts of binned scores are Dirichlet-multinomial: their spread around the prior tells the concentration.

    One parameter: quadrature does the same in a millisecond. The model is to check it, and to build upon.

    What it says of a depends on the bins: the finer they are, the larger a becomes, by orders of magnitude where they
    hold a score or none each. :func:`~dpconformal.dirichlet.concentration.concentration_posterior` has figures.

    Its F is the belief *given* the concentration a, (a P0 + counts)/(a + n) at the edges of the bins and in between as
    the prior is. So draws of F(x) and of q differ by what is not known about a only, and say less than a posterior of
    F would: given a, F at an edge is still Beta distributed. The mean of F over draws is the predictive distribution.

    Parameters
    ----------
    counts : array_like, shape (K,)
        Whole numbers of scores in each bin.
    masses : array_like, shape (K,)
        What the prior gives each bin, above 0; they sum to 1. The bins are those of the prior's quantiles at their
        cumulative sums: see :func:`from_scores` for the usual way.
    hyperprior : numpyro.distributions.Distribution, optional
        Of the concentration, on positive numbers. By default a log-normal with median 10 and 1.5 for its spread.
    prior : Prior
        P0, to tell where the bins are.

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> model = ConcentrationModel(counts=[3, 1], masses=[0.5, 0.5])
    >>> model.cdf({"concentration": jnp.array(4.0)}, jnp.array([0.25, 0.5]))
    Array([0.3125, 0.625 ], dtype=float...)
    """

    counts: Any
    masses: Any
    hyperprior: Any
    prior: Any
    total: int

    def __init__(self, counts: Numbers, masses: Numbers, hyperprior: Any = None, prior: Any = Uniform()) -> None:
        held, given = (np.asarray(as_numbers(n, v), float) for n, v in (("counts", counts), ("masses", masses)))
        if held.ndim != 1 or held.shape != given.shape or not held.size:
            raise ValueError(f"counts has shape {held.shape} and masses {given.shape}: pass one of each a bin")
        whole = np.isfinite(held) & (held >= 0) & (held == np.floor(held))
        complain_at("counts", held, ~whole, "a count is a whole number, at least 0")
        complain_at("masses", given, ~(np.isfinite(given) & (given > 0)), "must be above 0; merge empty bins")
        if abs(given.sum() - 1) > 1e-6:
            raise ValueError(f"masses sum to {given.sum():g}: they must sum to 1")
        if hyperprior is not None and not hasattr(hyperprior, "log_prob"):
            raise ValueError(f"hyperprior = {hyperprior!r}: pass a NumPyro distribution, such as Gamma(2.0, 0.1)")
        for name, value in (("counts", held), ("masses", given / given.sum()), ("hyperprior", hyperprior)):
            object.__setattr__(self, name, value)
        object.__setattr__(self, "prior", prior)
        object.__setattr__(self, "total", int(held.sum()))

    @classmethod
    def from_scores(
        cls, scores: Numbers, prior: Any = Uniform(), bins: int = 32, hyperprior: Any = None
    ) -> "ConcentrationModel":
        """
        Bin scores as :func:`~dpconformal.dirichlet.concentration.concentration_posterior` does.

        Parameters
        ----------
        scores : array_like, shape (n,)
            The scores.
        prior : Prior
            P0.
        bins : int
            Bins of equal prior mass. Finer bins give a larger concentration.
        hyperprior : numpyro.distributions.Distribution, optional
            Of the concentration.

        Returns
        -------
        ConcentrationModel
            The model.

        Examples
        --------
        >>> ConcentrationModel.from_scores([0.1, 0.2, 0.9], bins=2).counts
        array([2., 1.])
        """
        counts, masses = bin_counts(scores, prior, bins)
        return cls(counts, masses, hyperprior, prior)

    @property
    def support(self) -> tuple[Scalar, Scalar]:
        """Ends of the prior's support."""
        low, high = self.prior.support
        return low, high

    def __call__(self) -> None:
        """State the model to NumPyro."""
        dist, dtype = numpyro_distributions(), jnp.result_type(float)
        hyperprior = self.hyperprior or dist.LogNormal(math.log(MEDIAN), SPREAD)
        a = numpyro().sample("concentration", hyperprior)
        # Γ(x + c)/Γ(x) as the product that it is. As a difference of log Γ, which DirichletMultinomial takes, it is
        # lost to rounding for a large a, and its noise there can trap a chain at 10¹⁸.
        bins = np.repeat(np.arange(self.counts.size), self.counts.astype(int))
        place = np.arange(self.total) - np.searchsorted(bins, bins)  # of each score among those of its bin
        above = a * jnp.asarray(self.masses[bins], dtype) + jnp.asarray(place, dtype)
        below = a + jnp.arange(self.total, dtype=dtype)
        numpyro().factor("counts", jnp.sum(jnp.log(above / below)))

    def cdf(self, sample: dict[str, Any], x: Float[Array, " X"]) -> Float[Array, " X"]:
        """F(x) given the concentration of one draw."""
        edges, belief = self._lines(sample["concentration"])
        return jnp.interp(self.prior.cdf(x).astype(edges.dtype), edges, belief)

    def quantile(self, sample: dict[str, Any], levels: Float[Array, " A"]) -> Float[Array, " A"]:
        """Smallest x with F(x) ≥ level, given the concentration of one draw."""
        edges, belief = self._lines(sample["concentration"])
        return self.prior.quantile(jnp.clip(jnp.interp(levels, belief, edges), 0, 1))

    def _lines(self, a: Array) -> tuple[Array, Array]:
        zero = jnp.zeros(1, a.dtype)
        edges = jnp.concatenate([zero, jnp.cumsum(jnp.asarray(self.masses, a.dtype))])
        seen = jnp.concatenate([zero, jnp.cumsum(jnp.asarray(self.counts, a.dtype))])
        edges = (edges / edges[-1]).at[-1].set(1)
        return edges, ((a * edges + seen) / (a + self.total)).at[-1].set(1)
