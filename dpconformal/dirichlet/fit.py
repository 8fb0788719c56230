"""Fit a NumPyro model by NUTS, and read the distribution of the next score off its draws."""

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array

from dpconformal.validation import Numbers, Scalar, as_floats, as_levels, check_float, check_int, raise_at

_TOGETHER = 64  # draws evaluated at a time: all at once need memory for draws × points × scores
# What NumPyro calls its statistics, and what ArviZ does.
_STATISTICS = {"diverging": "diverging", "energy": "energy", "num_steps": "n_steps", "accept_prob": "acceptance_rate"}


@runtime_checkable
class Model(Protocol):
    """What can be fitted: a model for NumPyro that can also say which distribution a draw of its sites means."""

    @property
    def support(self) -> tuple[Scalar, Scalar]: ...  # noqa: D102
    def __call__(self) -> None: ...  # noqa: D102
    def cdf(self, sample: dict[str, Any], x: Array) -> Array: ...  # noqa: D102
    def quantile(self, sample: dict[str, Any], levels: Array) -> Array: ...  # noqa: D102


class Fit(NamedTuple):
    """
    Posterior draws of a model.

    Parameters as such mean little here, for the parts of a mixture switch their labels. What is meant to be read are
    the distribution function F and its quantiles.

    Attributes
    ----------
    model : callable
        The model: ``SticksModel``, ``MixtureModel``, ``ConcentrationModel`` or your own with ``cdf``, ``quantile`` and
        ``support``.
    samples : dict of Array, shape (C, D, ...)
        Draws of every site, by chain.
    stats : dict of Array, shape (C, D)
        ``diverging``, ``energy``, ``n_steps`` and ``acceptance_rate`` of every draw.

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
    def diverging(self) -> Any:
        """Which draws ended a divergent trajectory, shape (C, D)."""
        return self.stats["diverging"]

    def cdf(self, x: Numbers) -> Array:
        """F(x) of every draw, shape (C, D, X)."""
        return _cdfs(self.model, self.samples, self._points(x))

    def quantile(self, levels: Numbers) -> Array:
        """Quantile of every draw, shape (C, D, A)."""
        return _quantiles(self.model, self.samples, as_levels(levels, self._dtype))

    def predictive_cdf(self, x: Numbers) -> Array:
        """Probability that the next score is at most x: the mean of F(x) over all draws, shape (X,)."""
        return jnp.mean(_cdfs(self.model, self.samples, self._points(x)), axis=(0, 1))

    def threshold(self, levels: Numbers) -> Array:
        """Smallest x of the support with predictive_cdf(x) ≥ level, shape (A,)."""
        return _thresholds(self.model, self.samples, as_levels(levels, self._dtype))

    @property
    def _dtype(self) -> Any:
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
        A NumPyro model that can also say ``cdf(sample, x)`` and ``quantile(sample, levels)`` of one draw, and has a
        ``support``.
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
    >>> from dpconformal.dirichlet.models import MixtureModel
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


def _over_draws(function: Callable[[Any], Array], samples: dict[str, Any]) -> Array:
    """Evaluate a function of one draw for every draw of every chain, some draws at a time."""
    chains, draws = jax.tree.leaves(samples)[0].shape[:2]
    flat = jax.tree.map(lambda leaf: leaf.reshape((-1, *leaf.shape[2:])), samples)
    # A size that leaves no rest saves compiling the function twice.
    even = (size for size in range(_TOGETHER, _TOGETHER // 4, -1) if chains * draws % size == 0)
    values = lax.map(function, flat, batch_size=next(even, _TOGETHER))
    return values.reshape((chains, draws, *values.shape[1:]))


@jax.jit
def _cdfs(model: Model, samples: dict[str, Any], x: Array) -> Array:
    return _over_draws(lambda sample: model.cdf(sample, x.ravel()).reshape(x.shape), samples)


@jax.jit
def _quantiles(model: Model, samples: dict[str, Any], levels: Array) -> Array:
    return _over_draws(lambda sample: model.quantile(sample, levels.ravel()).reshape(levels.shape), samples)


@jax.jit
def _thresholds(model: Model, samples: dict[str, Any], levels: Array) -> Array:
    """Bisect between the least and the largest quantile of any draw, which bracket that of their mean."""
    inside = (levels > 0) & (levels < 1)
    asked = jnp.where(inside, levels, 0.5)
    found = _quantiles(model, samples, asked)

    def middle(ends: tuple[Array, Array]) -> Array:
        return ends[0] + (ends[1] - ends[0]) / 2

    def unfinished(ends: tuple[Array, Array]) -> Array:
        return jnp.any((middle(ends) > ends[0]) & (middle(ends) < ends[1]))

    def halve(ends: tuple[Array, Array]) -> tuple[Array, Array]:
        x = middle(ends)
        enough = jnp.mean(_cdfs(model, samples, x), axis=(0, 1)) >= asked
        return jnp.where(enough, ends[0], x), jnp.where(enough, x, ends[1])

    _, threshold = lax.while_loop(unfinished, halve, (jnp.min(found, axis=(0, 1)), jnp.max(found, axis=(0, 1))))
    low, high = (jnp.asarray(end, levels.dtype) for end in model.support)
    return jnp.where(inside, threshold, jnp.where(levels > 0, high, low))
