"""NumPyro models: the posterior of a Dirichlet process, to check the closed form, and a mixture that has none."""

import math
import warnings
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.scipy.special import logsumexp, ndtr, ndtri
from jaxtyping import Array, Float

from dpconformal.priors import Prior, Uniform
from dpconformal.pytree import register
from dpconformal.validation import Scalar, as_scores, check_float, check_int, is_traced

_TOLERATED = 1e-3  # mass that a truncation may misplace on average
_SCATTER = 0.5  # of the log scales around the log of their median


@register(static=("sticks",))
@dataclass(frozen=True)
class SticksModel:
    """
    W · (prior part) + Σ w_i δ(score_i), the posterior of a Dirichlet process taken apart.

    The shares (W, w_1, ..., w_n) are Dirichlet(a, c_1, ..., c_n), with c_i = 1 unless scores have counts. The prior
    part is a Dirichlet process of its own, with atoms from P0 and lengths by breaking a stick. Only it is truncated, so
    the number of sticks need not grow with n.

    A Dirichlet process is conjugate: everything that NUTS can find here is known exactly. The model is for comparing a
    sampler with the closed form, and to build upon.

    Parameters
    ----------
    posterior : Posterior
        Anything with ``prior``, ``concentration``, ``scores`` and ``counts``.
    sticks : int
        Atoms of the prior part; the last takes what remains. A warning says when that is too much.

    Examples
    --------
    >>> from types import SimpleNamespace
    >>> import jax.numpy as jnp
    >>> from dpconformal.priors import Prior, Uniform
    >>> posterior = SimpleNamespace(prior=Uniform(), concentration=1.0, scores=jnp.array([0.2, 0.6]), counts=None)
    >>> model = SticksModel(posterior, sticks=10)
    >>> sticks, atoms = jnp.full(9, 0.5), jnp.linspace(0.05, 0.95, 10)
    >>> sample = {"sticks": sticks, "atoms": atoms, "shares": jnp.array([0.5, 0.25, 0.25])}
    >>> model.cdf(sample, jnp.array([0.1, 0.2]))
    Array([0.25 , 0.625], dtype=float...)
    """

    posterior: Any
    sticks: int = 50

    def __post_init__(self) -> None:
        object.__setattr__(self, "sticks", check_int("SticksModel.sticks", self.sticks, 1))
        if is_traced(self.posterior.concentration, self.posterior.scores, self.posterior.counts):
            return
        a = float(self.posterior.concentration)
        share = a / (a + self._counts().sum())
        tail = share * (a / (a + 1)) ** self.sticks
        if tail > _TOLERATED:
            needed = math.ceil(math.log(_TOLERATED / share) / math.log(a / (a + 1)))
            warnings.warn(
                f"sticks = {self.sticks} misplaces {tail:.2g} of the mass on average, and the spread of F comes out "
                f"too large; {needed} sticks misplace {_TOLERATED:g}",
                stacklevel=3,
            )

    @property
    def support(self) -> tuple[Scalar, Scalar]:
        """Ends of the prior's support."""
        return self.posterior.prior.support

    def _counts(self) -> Any:
        scores, counts = self.posterior.scores, self.posterior.counts
        return np.ones(np.shape(scores)) if counts is None else np.asarray(counts, float)

    def __call__(self) -> None:
        """State the model to NumPyro."""
        import numpyro

        sample, dist, dtype = numpyro.sample, numpyro.distributions, jnp.result_type(float)
        a = jnp.asarray(self.posterior.concentration, dtype)
        if self.sticks > 1:
            sample("sticks", dist.Beta(jnp.ones((), dtype), a).expand([self.sticks - 1]).to_event(1))
        places = sample("places", dist.Uniform().expand([self.sticks]).to_event(1))
        numpyro.deterministic("atoms", self.posterior.prior.quantile(places))
        weights = np.concatenate([np.ones(1), self._counts()])  # the first is the prior's
        held = np.flatnonzero(weights)  # a score that was seen 0 times has no share
        if held.size > 1:  # without scores the prior part is all there is
            shares = sample("held_shares", dist.Dirichlet(jnp.asarray(weights[held], dtype).at[0].set(a)))
            numpyro.deterministic("shares", jnp.zeros(weights.size, dtype).at[held].set(shares))

    def cdf(self, sample: dict[str, Any], x: Float[Array, " X"]) -> Float[Array, " X"]:
        """F(x) of one draw."""
        places, masses = self._atoms_and_masses(sample)
        total = jnp.sum(jnp.where(places[None, :] <= x[:, None], masses[None, :], 0), axis=1)
        return jnp.where(x >= jnp.asarray(self.support[1], x.dtype), 1, jnp.clip(total, 0, 1))

    def quantile(self, sample: dict[str, Any], levels: Float[Array, " A"]) -> Float[Array, " A"]:
        """Smallest x with F(x) ≥ level, of one draw; level 1 is the upper end, which the untruncated F needs."""
        places, masses = self._atoms_and_masses(sample)
        order = jnp.argsort(places)
        index = jnp.searchsorted(jnp.cumsum(masses[order]), levels)
        found = places[order][jnp.minimum(index, places.size - 1)]
        low, high = (jnp.asarray(end, levels.dtype) for end in self.support)
        return jnp.where(levels <= 0, low, jnp.where(levels >= 1, high, found))

    def _atoms_and_masses(self, sample: dict[str, Any]) -> tuple[Array, Array]:
        atoms = sample["atoms"]
        lengths = stick_lengths(sample["sticks"]) if self.sticks > 1 else jnp.ones_like(atoms)
        if "shares" not in sample:
            return atoms, lengths
        shares = sample["shares"]
        scores = jnp.asarray(self.posterior.scores, atoms.dtype)
        return jnp.concatenate([atoms, scores]), jnp.concatenate([shares[0] * lengths, shares[1:]])


def stick_lengths(breaks: Float[Array, " K"]) -> Float[Array, " K+1"]:
    """Break a stick: each break takes its share of what is left, and the last piece is the rest."""
    one = jnp.ones(1, breaks.dtype)
    return jnp.concatenate([breaks, one]) * jnp.concatenate([one, jnp.cumprod(1 - breaks)])


@register(static=("components",))
@dataclass(frozen=True)
class MixtureModel:
    """
    Scores from a mixture of normal kernels whose locations come from P0 and whose weights break a stick.

    Kernels are cut to the prior's support, so that no mass leaves it, also where scores sit at its ends. Which score
    belongs to which kernel is summed out.

    Unlike the Dirichlet process itself, this has no closed form, and is where NUTS earns its keep. Its components
    switch labels, within chains and between them: r_hat of a location says nothing. Monitor F(x) and the quantiles,
    which do not depend on labels, as :class:`~dpconformal.dirichlet.fit.Fit` does.

    Parameters
    ----------
    scores : array_like, shape (n,)
        The scores.
    prior : Prior
        P0, of the locations.
    components : int
        Kernels; the last takes what remains of the stick.
    concentration : float
        Of the sticks: the larger, the more kernels share the scores.
    scale : float, optional
        Median of the kernels' scales, which are log-normal. By default a quarter of the range that holds the middle
        half of P0: 0.125 for the uniform prior on [0, 1].

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> model = MixtureModel([0.2, 0.3, 0.9], components=2)
    >>> sample = {"sticks": jnp.array([0.5]), "locations": jnp.array([0.25, 0.75]), "scales": jnp.array([0.1, 0.1])}
    >>> model.cdf(sample, jnp.array([0.0, 0.5, 1.0])).round(4)
    Array([0. , 0.5, 1. ], dtype=float...)
    """

    scores: Any
    prior: Prior = Uniform()
    components: int = 20
    concentration: Scalar = 1.0
    scale: Scalar | None = None

    def __post_init__(self) -> None:
        scores = as_scores(self.scores, self.prior.support)
        if scores.ndim != 1:
            raise ValueError(f"MixtureModel.scores has shape {scores.shape}: pass one sequence, shape (n,)")
        object.__setattr__(self, "scores", scores)
        object.__setattr__(self, "components", check_int("MixtureModel.components", self.components, 2))
        a = check_float("MixtureModel.concentration", self.concentration, 0.0, open_low=True)
        object.__setattr__(self, "concentration", a)
        scale = self.scale
        if scale is None:
            quarter, three = np.asarray(self.prior.quantile(np.array([0.25, 0.75])), float)
            scale = (three - quarter) / 4
        object.__setattr__(self, "scale", check_float("MixtureModel.scale", scale, 0.0, open_low=True))

    @property
    def support(self) -> tuple[Scalar, Scalar]:
        """Ends of the prior's support."""
        return self.prior.support

    def __call__(self) -> None:
        """State the model to NumPyro."""
        import numpyro

        sample, dist, dtype = numpyro.sample, numpyro.distributions, jnp.result_type(float)
        a = jnp.asarray(self.concentration, dtype)
        breaks = sample("sticks", dist.Beta(jnp.ones((), dtype), a).expand([self.components - 1]).to_event(1))
        places = sample("places", dist.Uniform().expand([self.components]).to_event(1))
        locations = numpyro.deterministic("locations", self.prior.quantile(places))
        center = jnp.log(jnp.asarray(self.scale, dtype))
        scales = sample("scales", dist.LogNormal(center, _SCATTER).expand([self.components]).to_event(1))
        x = jnp.asarray(self.scores, dtype)[:, None]
        tiny = jnp.finfo(dtype).tiny  # a stick may be used up, to the last bit
        heights = jnp.log(stick_lengths(breaks) + tiny) - jnp.log(self._mass_inside(locations, scales) * scales)
        bells = -0.5 * ((x - locations[None, :]) / scales[None, :]) ** 2 - 0.5 * math.log(2 * math.pi)
        numpyro.factor("likelihood", jnp.sum(logsumexp(heights[None, :] + bells, axis=1)))

    def cdf(self, sample: dict[str, Any], x: Float[Array, " X"]) -> Float[Array, " X"]:
        """F(x) of one draw."""
        weights, locations, scales = stick_lengths(sample["sticks"]), sample["locations"], sample["scales"]
        low, high = (jnp.asarray(end, x.dtype) for end in self.support)
        below, _ = self._cdf_at_ends(locations, scales)
        inside = ndtr((jnp.clip(x, low, high)[:, None] - locations[None, :]) / scales[None, :]) - below[None, :]
        total = jnp.sum(weights[None, :] * inside / self._mass_inside(locations, scales)[None, :], axis=1)
        return jnp.where(x >= high, 1, jnp.where(x <= low, 0, jnp.clip(total, 0, 1)))

    def quantile(self, sample: dict[str, Any], levels: Float[Array, " A"]) -> Float[Array, " A"]:
        """Smallest x with F(x) ≥ level, of one draw: by bisection between the quantiles of the kernels."""
        locations, scales = sample["locations"], sample["scales"]
        below, above = self._cdf_at_ends(locations, scales)
        tiny, eps = jnp.finfo(levels.dtype).tiny, jnp.finfo(levels.dtype).eps
        asked = jnp.where((levels > 0) & (levels < 1), levels, 0.5)
        place = jnp.clip(below[None, :] + asked[:, None] * (above - below)[None, :], tiny, 1 - eps)
        low, high = (jnp.asarray(end, levels.dtype) for end in self.support)
        kernels = jnp.clip(locations[None, :] + scales[None, :] * ndtri(place), low, high)

        def halve(_: Any, ends: tuple[Array, Array]) -> tuple[Array, Array]:
            middle = ends[0] + (ends[1] - ends[0]) / 2
            enough = self.cdf(sample, middle) >= asked
            return jnp.where(enough, ends[0], middle), jnp.where(enough, middle, ends[1])

        rounds = jnp.finfo(levels.dtype).nmant + 4
        _, found = lax.fori_loop(0, rounds, halve, (jnp.min(kernels, axis=1), jnp.max(kernels, axis=1)))
        return jnp.where(levels <= 0, low, jnp.where(levels >= 1, high, found))

    def _cdf_at_ends(self, locations: Array, scales: Array) -> tuple[Array, Array]:
        """Evaluate the normal cdf at the ends; an infinite end is put aside, for its derivative is NaN."""
        values = []
        for end, beyond in zip(self.support, (0, 1), strict=True):
            end = jnp.asarray(end, locations.dtype)
            finite = jnp.isfinite(end)
            values.append(jnp.where(finite, ndtr((jnp.where(finite, end, 0) - locations) / scales), beyond))
        return values[0], values[1]

    def _mass_inside(self, locations: Array, scales: Array) -> Array:
        """Return what the cut leaves of each kernel."""
        below, above = self._cdf_at_ends(locations, scales)
        return above - below
