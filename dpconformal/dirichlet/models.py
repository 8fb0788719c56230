"""NumPyro models of the scores, their fits by NUTS, and the distribution of the next score that a fit predicts."""

import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.scipy.special import logsumexp, ndtr, ndtri
from jaxtyping import Array, Float

from dpconformal.dirichlet.posterior import Posterior
from dpconformal.priors import Prior, Uniform
from dpconformal.pytree import register
from dpconformal.validation import (
    Numbers,
    Scalar,
    as_floats,
    as_levels,
    as_scores,
    check_float,
    check_int,
    is_traced,
    raise_at,
)

Sample = dict[str, Any]  # the sites of one draw by name, or those of all draws

_BATCH = 64  # draws evaluated at a time: all at once need memory for draws × points × scores
# What NumPyro calls its statistics, and what ArviZ does.
_STATISTICS = {"diverging": "diverging", "energy": "energy", "num_steps": "n_steps", "accept_prob": "acceptance_rate"}
_TOLERATED = 1e-3  # mass that a truncation may misplace on average
_SCATTER = 0.5  # of the log scales around the log of their median


@runtime_checkable
class Model(Protocol):
    """A NumPyro model that can also say which distribution of scores a draw of its sites means."""

    @property
    def support(self) -> tuple[Scalar, Scalar]: ...  # noqa: D102
    def __call__(self) -> None: ...  # noqa: D102
    def cdf(self, sample: Sample, x: Array) -> Array: ...  # noqa: D102
    def quantile(self, sample: Sample, levels: Array) -> Array: ...  # noqa: D102


class Fit(NamedTuple):
    """
    Posterior draws of a ``model``: ``samples`` of its sites, and ``stats`` of the draws, by chain.

    Parameters as such mean little here, for the parts of a mixture switch their labels. Read the distribution function
    F and its quantiles. The stats are ``diverging``, ``energy``, ``n_steps`` and ``acceptance_rate``.

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> from dpconformal.dirichlet.concentration import ConcentrationModel
    >>> model = ConcentrationModel(counts=[3, 1], masses=[0.5, 0.5])
    >>> two = Fit(model, {"concentration": jnp.array([[4.0, 12.0]])}, {})
    >>> two.cdf(0.5), two.predictive_cdf(0.5)
    (Array([[0.625 , 0.5625]], dtype=float...), Array(0.59375, dtype=float...))
    >>> round(float(two.threshold(0.59375)), 3)
    0.5
    """

    model: Model
    samples: dict[str, Any]  # each (C, D, ...)
    stats: dict[str, Any]  # each (C, D)

    def __repr__(self) -> str:
        """Say how many draws there are of what, not their values."""
        chains, draws = next(iter(self.samples.values())).shape[:2]
        return f"Fit({type(self.model).__name__}: {', '.join(self.samples)}; {chains} chains of {draws:,} draws)"

    @property
    def diverging(self) -> Array:
        """Which draws ended a divergent trajectory, shape (C, D)."""
        return self.stats["diverging"]

    def cdf(self, x: Numbers) -> Array:
        """F(x) of every draw, shape (C, D, X)."""
        return _over_draws(self.model, self.samples, "cdf", self._points(x))

    def quantile(self, levels: Numbers) -> Array:
        """Quantile of every draw, shape (C, D, A)."""
        return _over_draws(self.model, self.samples, "quantile", as_levels(levels, self._dtype))

    def predictive_cdf(self, x: Numbers) -> Array:
        """Probability that the next score is at most x: the mean of F(x) over all draws, shape (X,)."""
        return jnp.mean(self.cdf(x), axis=(0, 1))

    def threshold(self, levels: Numbers) -> Array:
        """Smallest x of the support with predictive_cdf(x) ≥ level, shape (A,)."""
        return _thresholds(self.model, self.samples, as_levels(levels, self._dtype))

    @property
    def _dtype(self) -> np.dtype:
        return next(leaf.dtype for leaf in self.samples.values() if jnp.issubdtype(leaf.dtype, jnp.floating))

    def _points(self, x: Numbers) -> Array:
        points = as_floats(x)
        raise_at("x", points, np.isnan(np.asarray(points)), "must be a number")
        return points.astype(self._dtype)


def fit(
    model: Any,
    key: Array,
    warmup: int = 500,
    draws: int = 1000,
    chains: int = 4,
    target_accept_prob: Scalar = 0.8,
    progress_bar: bool = True,
) -> Fit:
    """
    Draw from the posterior of a model with NUTS.

    All chains run as one vectorised program, so that four cost little more than one.

    Parameters
    ----------
    model : callable
        A NumPyro model with ``cdf(sample, x)`` and ``quantile(sample, levels)`` of one draw, and a ``support``.
    key : PRNG key
        Such as ``jax.random.key(0)``.
    warmup, draws, chains : int
        Steps to adapt, steps to keep of each chain, and chains.
    target_accept_prob : float
        Of NUTS, in (0, 1); a larger one takes smaller steps, the remedy for divergences.
    progress_bar : bool
        Whether NumPyro shows its progress.

    Returns
    -------
    Fit
        The draws. Look at ``diagnostics.summary(fit)`` before using them.

    Examples
    --------
    >>> import jax
    >>> found = fit(MixtureModel([0.2, 0.3, 0.9]), jax.random.key(0))  # doctest: +SKIP
    >>> found.threshold([0.5, 0.9])  # doctest: +SKIP
    """
    import numpyro

    if not callable(model) or not all(hasattr(model, name) for name in ("cdf", "quantile", "support")):
        raise ValueError(f"model = {model!r}: pass a model with cdf, quantile and support, such as a MixtureModel")
    warmup, draws, chains = check_int("warmup", warmup, 1), check_int("draws", draws, 1), check_int("chains", chains, 1)
    target = check_float("target_accept_prob", target_accept_prob, 0.0, 1.0, open_low=True, open_high=True)
    sampler = numpyro.infer.MCMC(
        numpyro.infer.NUTS(model, target_accept_prob=target),
        num_warmup=warmup,
        num_samples=draws,
        num_chains=chains,
        chain_method="vectorized",
        progress_bar=progress_bar,
    )
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        sampler.run(key, extra_fields=tuple(_STATISTICS))
        samples, extra = sampler.get_samples(group_by_chain=True), sampler.get_extra_fields(group_by_chain=True)
    return Fit(model, dict(samples), {ours: extra[theirs] for theirs, ours in _STATISTICS.items()})


@jax.jit(static_argnames="method")
def _over_draws(model: Model, samples: Sample, method: str, at: Array) -> Array:
    """Evaluate the cdf or the quantiles of every draw of every chain, some draws at a time."""
    chains, draws = jax.tree.leaves(samples)[0].shape[:2]
    flat = jax.tree.map(lambda leaf: leaf.reshape((-1, *leaf.shape[2:])), samples)
    evaluate: Callable[[Sample, Array], Array] = getattr(model, method)
    # A size that leaves no rest saves compiling the function twice.
    even = (size for size in range(_BATCH, _BATCH // 4, -1) if chains * draws % size == 0)
    values = lax.map(lambda sample: evaluate(sample, at.ravel()), flat, batch_size=next(even, _BATCH))
    return values.reshape((chains, draws, *at.shape))


@jax.jit
def _thresholds(model: Model, samples: Sample, levels: Array) -> Array:
    """Bisect between the least and the largest quantile of any draw, which bracket that of their mean."""
    inside = (levels > 0) & (levels < 1)
    asked = jnp.where(inside, levels, 0.5)
    found = _over_draws(model, samples, "quantile", asked)

    def middle(ends: tuple[Array, Array]) -> Array:
        return ends[0] + (ends[1] - ends[0]) / 2

    def unfinished(ends: tuple[Array, Array]) -> Array:
        return jnp.any((middle(ends) > ends[0]) & (middle(ends) < ends[1]))

    def halve(ends: tuple[Array, Array]) -> tuple[Array, Array]:
        x = middle(ends)
        enough = jnp.mean(_over_draws(model, samples, "cdf", x), axis=(0, 1)) >= asked
        return jnp.where(enough, ends[0], x), jnp.where(enough, x, ends[1])

    _, threshold = lax.while_loop(unfinished, halve, (jnp.min(found, axis=(0, 1)), jnp.max(found, axis=(0, 1))))
    return _with_ends(model, levels, threshold)


def _with_ends(model: Model, levels: Array, found: Array) -> Array:
    """Put the ends of the support in the place of what was found for levels 0 and 1."""
    low, high = (jnp.asarray(end, levels.dtype) for end in model.support)
    return jnp.where(levels <= 0, low, jnp.where(levels >= 1, high, found))


@register(static=("sticks",))
@dataclass(frozen=True)
class SticksModel:
    """
    The posterior of a Dirichlet process taken apart: W · (prior part) + Σ w_i δ(score_i).

    The shares (W, w_1, ..., w_n) are Dirichlet(a, c_1, ..., c_n), with c_i = 1 unless scores have counts. The prior
    part is a Dirichlet process of its own, with atoms from P0 and lengths by breaking a stick. Only it is truncated, so
    the number of sticks need not grow with n.

    A Dirichlet process is conjugate: everything that NUTS can find here is known exactly. The model is for comparing a
    sampler with the closed form, and to build upon.

    Parameters
    ----------
    posterior : Posterior
        What is known after some scores.
    sticks : int
        Atoms of the prior part; the last takes what remains. A warning says when that is too much.

    Examples
    --------
    >>> import jax.numpy as jnp
    >>> model = SticksModel(Posterior(Uniform(), 1.0, [0.2, 0.6]), sticks=10)
    >>> sticks, atoms = jnp.full(9, 0.5), jnp.linspace(0.05, 0.95, 10)
    >>> sample = {"sticks": sticks, "atoms": atoms, "shares": jnp.array([0.5, 0.25, 0.25])}
    >>> model.cdf(sample, jnp.array([0.1, 0.2]))
    Array([0.25 , 0.625], dtype=float...)
    """

    posterior: Posterior
    sticks: int = 50

    def __post_init__(self) -> None:
        object.__setattr__(self, "sticks", check_int("SticksModel.sticks", self.sticks, 1))
        if is_traced(self.posterior):
            return
        a = float(self.posterior.concentration)
        share = a / float(self.posterior.total)
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

    def __call__(self) -> None:
        """State the model to NumPyro."""
        import numpyro

        sample, dist, dtype = numpyro.sample, numpyro.distributions, jnp.result_type(float)
        a = jnp.asarray(self.posterior.concentration, dtype)
        if self.sticks > 1:
            sample("sticks", dist.Beta(jnp.ones((), dtype), a).expand([self.sticks - 1]).to_event(1))
        places = sample("places", dist.Uniform().expand([self.sticks]).to_event(1))
        numpyro.deterministic("atoms", self.posterior.prior.quantile(places))
        scores, counts = self.posterior.scores, self.posterior.counts
        weights = np.append(1.0, np.ones(np.shape(scores)) if counts is None else counts)  # the first is the prior's
        held = np.flatnonzero(weights)  # a score that was seen 0 times has no share
        if held.size > 1:  # without scores the prior part is all there is
            shares = sample("held_shares", dist.Dirichlet(jnp.asarray(weights[held], dtype).at[0].set(a)))
            numpyro.deterministic("shares", jnp.zeros(weights.size, dtype).at[held].set(shares))

    def cdf(self, sample: Sample, x: Float[Array, " X"]) -> Float[Array, " X"]:
        """F(x) of one draw."""
        places, masses = self._atoms_and_masses(sample)
        total = jnp.sum(jnp.where(places[None, :] <= x[:, None], masses[None, :], 0), axis=1)
        return jnp.where(x >= jnp.asarray(self.support[1], x.dtype), 1, jnp.clip(total, 0, 1))

    def quantile(self, sample: Sample, levels: Float[Array, " A"]) -> Float[Array, " A"]:
        """Smallest x with F(x) ≥ level, of one draw; level 1 is the upper end, which the untruncated F needs."""
        places, masses = self._atoms_and_masses(sample)
        order = jnp.argsort(places)
        index = jnp.searchsorted(jnp.cumsum(masses[order]), levels)
        found = places[order][jnp.minimum(index, places.size - 1)]
        return _with_ends(self, levels, found)

    def _atoms_and_masses(self, sample: Sample) -> tuple[Array, Array]:
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
    which do not depend on labels, as :class:`~dpconformal.dirichlet.models.Fit` does.

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

    def cdf(self, sample: Sample, x: Float[Array, " X"]) -> Float[Array, " X"]:
        """F(x) of one draw."""
        weights, locations, scales = stick_lengths(sample["sticks"]), sample["locations"], sample["scales"]
        low, high = (jnp.asarray(end, x.dtype) for end in self.support)
        below, _ = self._cdf_at_ends(locations, scales)
        inside = ndtr((jnp.clip(x, low, high)[:, None] - locations[None, :]) / scales[None, :]) - below[None, :]
        total = jnp.sum(weights[None, :] * inside / self._mass_inside(locations, scales)[None, :], axis=1)
        return jnp.where(x >= high, 1, jnp.where(x <= low, 0, jnp.clip(total, 0, 1)))

    def quantile(self, sample: Sample, levels: Float[Array, " A"]) -> Float[Array, " A"]:
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
        return _with_ends(self, levels, found)

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
