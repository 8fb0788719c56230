"""Draw from the posterior by breaking sticks: of the prior's part alone, or of everything."""

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float

from dpconformal.beliefs.bins import bin_edges, bin_index
from dpconformal.dirichlet.draws import Draws
from dpconformal.dirichlet.posterior import Posterior
from dpconformal.dirichlet.stick_breaking import (
    broken_sticks,
    check_room,
    checked_draws,
    checked_size,
    dirichlet,
    ends,
    enough_sticks,
    from_mean,
    in_order,
    prior_draws,
    score_masses,
    truncation,
)
from dpconformal.validation import check_int, float_dtype, is_traced


def split(posterior: Posterior, key: Array, draws: int, sticks: int | None = None) -> Draws:
    """
    Draw W·DP(a, P0) + (1-W)·Σ w_i δ(score_i), with W ~ Beta(a, n) and w uniform on the simplex.

    That is the posterior itself, and only its prior part is infinite: the sticks that leave no more than a given mass
    over do not grow with the number of scores.

    ``sticks``: Of the prior's part. By default as many as leave a mass of 1e-6 over; inside ``jit``, where the
    concentration may not be known, to be given.
    """
    draws, a = checked_draws(posterior, draws), posterior.concentration
    sticks = checked_size(
        "sticks", sticks, enough_sticks(a, a / posterior.total), truncation(posterior, "split", sticks)
    )
    check_room(draws, sticks, "sticks")
    return _split(posterior, key, draws, sticks, float_dtype(posterior.scores))


def sticks(posterior: Posterior, key: Array, draws: int, sticks: int | None = None) -> Draws:
    """
    Draw by sticks alone: Σ π_k δ(θ_k), π broken with Beta(1, a + n), θ from the posterior mean.

    ``sticks``: The last of them takes what is left. By default as many as leave 1e-6 over, about 14·(a + n). Returns:
    Of them. With too few sticks the mean is right and the spread too large; there is a warning.
    """
    draws, a = checked_draws(posterior, draws), posterior.total
    sticks = checked_size("sticks", sticks, enough_sticks(a, 1.0), truncation(posterior, "sticks", sticks))
    check_room(draws, sticks, "sticks")
    return _sticks(posterior, key, draws, sticks, float_dtype(posterior.scores))


@jax.jit(static_argnames=("draws", "sticks", "dtype"))
def _split(posterior: Posterior, key: Array, draws: int, sticks: int, dtype: Any) -> Draws:
    keys = jax.random.split(key, 4)
    a = jnp.asarray(posterior.concentration, dtype)
    atoms = prior_draws(posterior, keys[0], (draws, sticks), dtype)
    atoms, own = in_order(atoms, broken_sticks(keys[1], a, draws, sticks))
    shared = jnp.cumsum(score_masses(posterior, keys[2], draws, dtype), axis=-1)
    if shared.shape[-1]:
        prior_mass, score_mass = jax.random.gamma(keys[3], a, (draws, 1), dtype), shared[:, -1:]
        empty = score_mass + prior_mass <= 0  # nothing was counted, and the gamma draw underflowed
        share = jnp.where(empty, 1, prior_mass / jnp.where(empty, 1, score_mass + prior_mass))
        own, shared = own * share, shared * ((1 - share) / jnp.where(score_mass > 0, score_mass, 1))
    return Draws(*ends(posterior, dtype), jnp.asarray(posterior.scores, dtype), shared, atoms, own)


@jax.jit(static_argnames=("draws", "sticks", "dtype"))
def _sticks(posterior: Posterior, key: Array, draws: int, sticks: int, dtype: Any) -> Draws:
    keys = jax.random.split(key)
    total = jnp.asarray(posterior.total, dtype)
    atoms = from_mean(posterior, keys[0], (draws, sticks), dtype)
    nothing = jnp.zeros((draws, 0), dtype)
    ordered = in_order(atoms, broken_sticks(keys[1], total, draws, sticks))
    return Draws(*ends(posterior, dtype), nothing[0], nothing, *ordered)


_BINS = 256


def grid(posterior: Posterior, key: Array, draws: int, bins: int | None = None) -> Draws:
    """
    Draw masses of equal bins, Dirichlet(a·P0(bin) + scores in it), and put them at the upper edges.

    An edge belongs to the bin below it. So F(x) = P(X ≤ x) is exact at the edges of the bins, for any number of them,
    also where scores lie on edges. Quantiles are those of F, moved up to the next edge;
    means are up to a bin larger than those of F.
    """
    draws, bins = checked_draws(posterior, draws), bins if bins is not None else posterior.bins or _BINS
    bins = check_int("bins", bins, 1)
    if posterior.bins is not None and posterior.bins % bins:
        raise ValueError(f"bins = {bins}: the posterior's {posterior.bins} bins must be a multiple of it")
    low, high = posterior.prior.support
    if not is_traced(low, high) and not math.isfinite(float(high) - float(low)):
        raise ValueError(f"posterior.prior has support {posterior.prior.support}: a grid needs a bounded one")
    return _grid(posterior, key, draws, bins, float_dtype(posterior.scores))


@jax.jit(static_argnames=("draws", "bins", "dtype"))
def _grid(posterior: Posterior, key: Array, draws: int, bins: int, dtype: Any) -> Draws:
    support = posterior.prior.support
    a, scores = jnp.asarray(posterior.concentration, dtype), jnp.asarray(posterior.scores, dtype)
    counts = jnp.ones(scores.shape, dtype) if posterior.counts is None else jnp.asarray(posterior.counts, dtype)
    edges = bin_edges(support, bins, dtype)
    shapes = a * jnp.diff(posterior.prior.cdf(edges))
    if posterior.bins is not None and posterior.rounding == "up":
        # These are edges of the posterior's own bins. In another precision they may lie a bit off; the centres do not.
        scores = scores - (edges[-1] - edges[0]) / (2 * posterior.bins)
    shapes = shapes.at[bin_index(scores, support, bins, "up")].add(counts)
    masses = dirichlet(key, jnp.maximum(shapes, jnp.finfo(dtype).tiny), draws)  # NaN stays
    nothing = jnp.zeros((draws, 0), dtype)
    return Draws(edges[0], edges[-1], edges[1:], jnp.cumsum(masses, axis=-1), nothing, nothing)


_STEPS, _STICKS = 100, 128  # by default; and sticks of the rest at least, and where the concentration is traced


def urn(posterior: Posterior, key: Array, draws: int, steps: int | None = None) -> Draws:
    """
    Draw scores to come by Pólya's urn, and weigh them and those seen uniformly on the simplex.

    The posterior given scores to come, averaged over these, is the posterior: so this is right for any number of steps.
    What is left of the prior, a/(a + n + steps) of the mass on average, is broken into sticks. (Equal weights, the
    empirical distribution of the urn alone, would be right for infinitely many steps only.)
    """
    draws, a = checked_draws(posterior, draws), posterior.concentration
    steps = check_int("steps", _STEPS if steps is None else steps, 1)
    sticks = max(enough_sticks(a, a / (posterior.total + steps)) or 0, _STICKS)
    check_room(draws, steps + sticks, "steps and sticks")
    return _urn(posterior, key, draws, steps, sticks, float_dtype(posterior.scores))


def future_scores(posterior: Posterior, key: Array, draws: int, steps: int) -> Float[Array, "D M"]:
    """
    Draw the scores to come, in order: each from the belief that the ones before it have led to.

    Parameters
    ----------
    posterior : Posterior
        The posterior.
    key : PRNG key
        Of JAX.
    draws : int
        Independent futures.
    steps : int
        Scores of each.

    Returns
    -------
    Array, shape (D, M)
        Scores. A step copies a future score before it, or draws from the belief of now.

    Examples
    --------
    >>> import dpconformal as dpc
    >>> future_scores(Posterior(dpc.priors.Uniform(), 5.0, [0.3]), jax.random.key(0), draws=2, steps=3).shape
    (2, 3)
    """
    draws, steps = checked_draws(posterior, draws), check_int("steps", steps, 1)
    return _future(posterior, key, draws, steps, float_dtype(posterior.scores))


@jax.jit(static_argnames=("draws", "steps", "sticks", "dtype"))
def _urn(posterior: Posterior, key: Array, draws: int, steps: int, sticks: int, dtype: Any) -> Draws:
    keys = jax.random.split(key, 6)
    a = jnp.asarray(posterior.concentration, dtype)
    rest = jax.random.gamma(keys[0], a, (draws, 1), dtype) * broken_sticks(keys[1], a, draws, sticks)
    masses = jax.random.exponential(keys[2], (draws, steps), dtype), rest
    places = _future(posterior, keys[3], draws, steps, dtype), prior_draws(posterior, keys[4], rest.shape, dtype)
    atoms, own = in_order(*(jnp.concatenate(parts, axis=-1) for parts in (places, masses)))
    shared = jnp.cumsum(score_masses(posterior, keys[5], draws, dtype), axis=-1)
    total = own[:, -1:] + (shared[:, -1:] if shared.shape[-1] else 0)
    scores = jnp.asarray(posterior.scores, dtype)
    return Draws(*ends(posterior, dtype), scores, shared / total, atoms, own / total)


@jax.jit(static_argnames=("draws", "steps", "dtype"))
def _future(posterior: Posterior, key: Array, draws: int, steps: int, dtype: Any) -> Array:
    keys = jax.random.split(key)
    fresh = from_mean(posterior, keys[0], (draws, steps), dtype)
    own, total = jnp.arange(steps, dtype=jnp.int32)[None], jnp.asarray(posterior.total, dtype)
    place = jax.random.uniform(keys[1], (draws, steps), dtype) * (total + own.astype(dtype)) - total
    source = jnp.where(place < 0, own, jnp.minimum(jnp.floor(place).astype(jnp.int32), own - 1))

    def follow(_: Any, source: Array) -> Array:  # every copy of a copy, in a logarithm of steps
        return jnp.take_along_axis(source, source, axis=-1)

    source = lax.fori_loop(0, max(steps - 1, 1).bit_length(), follow, source)
    return jnp.take_along_axis(fresh, source, axis=-1)


def bootstrap(posterior: Posterior, key: Array, draws: int, size: int | None = None) -> Draws:
    """Draw Σ w_i δ(score_i), w uniform on the simplex: the Bayesian bootstrap, which has no prior."""
    if size is not None:
        raise ValueError(f"size = {size!r}: the Bayesian bootstrap has none; leave it out")
    draws = checked_draws(posterior, draws)
    counts = posterior.counts
    if posterior.scores.shape[0] == 0 or not (counts is None or is_traced(counts) or np.any(counts)):
        raise ValueError("posterior.scores is empty: the Bayesian bootstrap needs a score, or the prior; use 'split'")
    return _bootstrap(posterior, key, draws, float_dtype(posterior.scores))


@jax.jit(static_argnames=("draws", "dtype"))
def _bootstrap(posterior: Posterior, key: Array, draws: int, dtype: Any) -> Draws:
    shared = jnp.cumsum(score_masses(posterior, key, draws, dtype), axis=-1)
    nothing = jnp.zeros((draws, 0), dtype)
    scores, (low, _) = jnp.asarray(posterior.scores, dtype), ends(posterior, dtype)
    held = scores if posterior.counts is None else jnp.where(jnp.asarray(posterior.counts) > 0, scores, low)
    shared = jnp.where(jnp.isnan(posterior.concentration), jnp.nan, shared / shared[:, -1:])
    return Draws(low, jnp.max(held), scores, shared, nothing, nothing)


SAMPLERS: dict[str, Callable[..., Draws]] = {
    "split": split,
    "grid": grid,
    "sticks": sticks,
    "urn": urn,
    "bootstrap": bootstrap,
}
