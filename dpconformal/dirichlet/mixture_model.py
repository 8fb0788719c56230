"""A Dirichlet-process mixture as a NumPyro model: a smooth distribution of the next score."""

import math
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.scipy.special import logsumexp, ndtr, ndtri
from jaxtyping import Array, Float

from dpconformal.dirichlet.backend import numpyro, numpyro_distributions
from dpconformal.dirichlet.sticks_model import stick_lengths
from dpconformal.priors import Uniform
from dpconformal.pytree import register
from dpconformal.validation import Scalar, as_scores, number, whole

_SCATTER = 0.5  # of the log scales around the log of their median


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
    prior: Any = Uniform()
    components: int = 20
    concentration: Scalar = 1.0
    scale: Scalar | None = None

    def __post_init__(self) -> None:
        scores = as_scores(self.scores, self.prior.support)
        if scores.ndim != 1:
            raise ValueError(f"MixtureModel.scores has shape {scores.shape}: pass one sequence, shape (n,)")
        object.__setattr__(self, "scores", scores)
        object.__setattr__(self, "components", whole("MixtureModel.components", self.components, 2))
        a = number("MixtureModel.concentration", self.concentration, 0.0, open_low=True)
        object.__setattr__(self, "concentration", a)
        scale = self.scale
        if scale is None:
            quarter, three = np.asarray(self.prior.quantile(np.array([0.25, 0.75])), float)
            scale = (three - quarter) / 4
        object.__setattr__(self, "scale", number("MixtureModel.scale", scale, 0.0, open_low=True))

    @property
    def support(self) -> tuple[Scalar, Scalar]:
        """Ends of the prior's support."""
        low, high = self.prior.support
        return low, high

    def __call__(self) -> None:
        """State the model to NumPyro."""
        sample, dist, dtype = numpyro().sample, numpyro_distributions(), jnp.result_type(float)
        a = jnp.asarray(self.concentration, dtype)
        breaks = sample("sticks", dist.Beta(jnp.ones((), dtype), a).expand([self.components - 1]).to_event(1))
        places = sample("places", dist.Uniform().expand([self.components]).to_event(1))
        locations = numpyro().deterministic("locations", self.prior.quantile(places))
        center = jnp.log(jnp.asarray(self.scale, dtype))
        scales = sample("scales", dist.LogNormal(center, _SCATTER).expand([self.components]).to_event(1))
        x = jnp.asarray(self.scores, dtype)[:, None]
        tiny = jnp.finfo(dtype).tiny  # a stick may be used up, to the last bit
        heights = jnp.log(stick_lengths(breaks) + tiny) - jnp.log(self._mass(locations, scales) * scales)
        bells = -0.5 * ((x - locations[None, :]) / scales[None, :]) ** 2 - 0.5 * math.log(2 * math.pi)
        numpyro().factor("likelihood", jnp.sum(logsumexp(heights[None, :] + bells, axis=1)))

    def cdf(self, sample: dict[str, Any], x: Float[Array, " X"]) -> Float[Array, " X"]:
        """F(x) of one draw."""
        weights, locations, scales = stick_lengths(sample["sticks"]), sample["locations"], sample["scales"]
        low, high = (jnp.asarray(end, x.dtype) for end in self.support)
        below, _ = self._cut(locations, scales)
        inside = ndtr((jnp.clip(x, low, high)[:, None] - locations[None, :]) / scales[None, :]) - below[None, :]
        total = jnp.sum(weights[None, :] * inside / self._mass(locations, scales)[None, :], axis=1)
        return jnp.where(x >= high, 1, jnp.where(x <= low, 0, jnp.clip(total, 0, 1)))

    def quantile(self, sample: dict[str, Any], levels: Float[Array, " A"]) -> Float[Array, " A"]:
        """Smallest x with F(x) ≥ level, of one draw: by bisection between the quantiles of the kernels."""
        locations, scales = sample["locations"], sample["scales"]
        below, above = self._cut(locations, scales)
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

    def _cut(self, locations: Array, scales: Array) -> tuple[Array, Array]:
        """Evaluate the normal cdf at the ends; an infinite end is put aside, for its derivative is NaN."""
        values = []
        for end, beyond in zip(self.support, (0, 1), strict=True):
            end = jnp.asarray(end, locations.dtype)
            finite = jnp.isfinite(end)
            values.append(jnp.where(finite, ndtr((jnp.where(finite, end, 0) - locations) / scales), beyond))
        return values[0], values[1]

    def _mass(self, locations: Array, scales: Array) -> Array:
        below, above = self._cut(locations, scales)
        return above - below
