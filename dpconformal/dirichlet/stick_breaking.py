"""Gamma and Dirichlet variates, many at a time: JAX draws its own one after the other on a CPU."""

import math
import warnings
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

from dpconformal.dirichlet.posterior import Posterior
from dpconformal.validation import check_int, check_not_batched, is_traced


def log_gamma(key: Array, alpha: Float[Array, "*k"], shape: tuple[int, ...]) -> Float[Array, "..."]:
    """
    Draw logarithms of gamma variates, by the method of Marsaglia and Tsang (2000).

    All are proposed together until each has been accepted, which takes a few rounds. Below 1 the shape is raised by one
    and the variate multiplied by U^(1/alpha); in logarithms, for it may be too small for a float.

    Returns: In the dtype of alpha; NaN where alpha is not positive and finite.
    """
    dtype, fine = alpha.dtype, (alpha > 0) & jnp.isfinite(alpha)
    known = jnp.where(fine, alpha, 1)
    raised = jnp.where(known < 1, known + 1, known) - 1 / 3
    power = jnp.where(known < 1, 1 / known, 0)
    fine, raised, power = (jnp.broadcast_to(part, shape) for part in (fine, raised, power))
    scale = 1 / (3 * jnp.sqrt(raised))

    def propose(carried: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        key, value, done = carried
        key, first, second = jax.random.split(key, 3)
        x, u = jax.random.normal(first, shape, dtype), jax.random.uniform(second, shape, dtype)
        root = 1 + scale * x
        cube = jnp.where(root > 0, root * root * root, 1)
        accepted = (root > 0) & (jnp.log(u) < x * x / 2 + raised * (1 - cube + jnp.log(cube)))
        return key, jnp.where(done | ~accepted, value, cube), done | accepted

    key, last = jax.random.split(key)
    start = key, jnp.ones(shape, dtype), ~fine
    _, cube, _ = lax.while_loop(lambda carried: ~jnp.all(carried[2]), propose, start)
    u = jax.random.uniform(last, shape, dtype, minval=jnp.finfo(dtype).tiny)
    return jnp.where(fine, jnp.log(raised) + jnp.log(cube) + jnp.log(u) * power, jnp.nan)


def dirichlet(key: Array, alpha: Float[Array, " K"], draws: int) -> Float[Array, "..."]:
    """Draw from a Dirichlet distribution."""
    return jax.nn.softmax(log_gamma(key, alpha, (draws, *alpha.shape)), axis=-1)


def ends(posterior: Posterior, dtype: Any) -> tuple[Array, Array]:
    """Return the ends of the support."""
    low, high = posterior.prior.support
    return jnp.asarray(low, dtype), jnp.asarray(high, dtype)


def broken_sticks(key: Array, concentration: Array, draws: int, count: int) -> Float[Array, "D K"]:
    """Break sticks: what is left after k of them is exp of a sum of exponentials; the last takes the rest."""
    pieces = jax.random.exponential(key, (draws, count), concentration.dtype) / concentration
    left = jnp.cumsum(pieces, axis=-1) - pieces
    return jnp.exp(-left) * -jnp.expm1(-pieces.at[:, -1].set(jnp.inf))


def score_masses(posterior: Posterior, key: Array, draws: int, dtype: Any) -> Array:
    """Draw Gamma(count) for each score, to be normalised."""
    shape = (draws, posterior.scores.shape[0])
    if posterior.counts is None:
        return jax.random.exponential(key, shape, dtype)
    counts = jnp.asarray(posterior.counts, dtype)
    drawn = jnp.exp(log_gamma(key, jnp.where(counts > 0, counts, 1), shape))
    return jnp.where((counts > 0)[None], drawn, 0)


def prior_draws(posterior: Posterior, key: Array, shape: tuple[int, ...], dtype: Any) -> Array:
    """Draw from the prior; never its quantile of level 0, which an unbounded support has at infinity."""
    return posterior.prior.quantile(jax.random.uniform(key, shape, dtype, minval=jnp.finfo(dtype).tiny))


def in_order(atoms: Array, masses: Array) -> tuple[Array, Array]:
    """Sort the atoms of each draw, and add up their masses."""
    atoms, masses = lax.sort((atoms, masses), dimension=-1, num_keys=1)
    return atoms, jnp.cumsum(masses, axis=-1)


def from_mean(posterior: Posterior, key: Array, shape: tuple[int, ...], dtype: Any) -> Array:
    """Draw from the posterior mean: from the prior, or one of the scores."""
    a = jnp.asarray(posterior.concentration, dtype)
    keys = jax.random.split(key)
    fresh = prior_draws(posterior, keys[0], shape, dtype)
    if posterior.scores.shape[0] == 0:
        return jnp.where(jnp.isnan(a), jnp.nan, fresh)
    scores = jnp.asarray(posterior.scores, dtype)
    counts = jnp.ones(scores.shape, dtype) if posterior.counts is None else jnp.asarray(posterior.counts, dtype)
    below = jnp.cumsum(counts)
    place = jax.random.uniform(keys[1], shape, dtype) * (a + below[-1]) - a  # negative: from the prior
    chosen = jnp.minimum(jnp.searchsorted(below, place, side="right"), scores.shape[0] - 1)
    drawn = jnp.where(place < 0, fresh, scores[chosen])
    return jnp.where(jnp.isnan(a), jnp.nan, drawn)


_TAIL = 1e-6  # expected mass that default sizes leave over
_ROOM = 2**28  # atoms of all draws together, 2 GB in double precision
_TOLERABLE = 1e-3  # expected mass beyond which a size is warned about


def truncation(posterior: Posterior, method: str, size: int | None) -> Any:
    """
    Return the expected mass that a truncated sampler leaves over.

    Parameters
    ----------
    posterior : Posterior
        The posterior.
    method : {"split", "sticks"}
        With the prior's part by sticks, (a/(a+n))·(a/(a+1))^K; or all of it, ((a+n)/(a+n+1))^K.
    size : int or None
        K.

    Returns
    -------
    float
        The bound in total variation, on average over draws. NaN where it is not known.

    Examples
    --------
    >>> import dpconformal as dpc
    >>> posterior = Posterior(dpc.priors.Uniform(), 5.0, dpc.streams.iid(60))
    >>> [round(float(truncation(posterior, method, 65)), 6) for method in ("split", "sticks")]
    [1e-06, 0.370691]
    """
    if method not in ("split", "sticks"):
        raise ValueError(f"method = {method!r}: only 'split' and 'sticks' leave mass over")
    if size is None or is_traced(posterior):
        return math.nan
    a, total = float(posterior.concentration), float(posterior.total)
    share, weight = (a / total, a) if method == "split" else (1.0, total)
    return share * (weight / (weight + 1)) ** check_int("sticks", size, 1)


def check_room(draws: int, atoms: int, what: str) -> None:
    """Refuse what would not fit into memory."""
    if draws * atoms > _ROOM:
        raise ValueError(
            f"{what} = {atoms:,} for each of draws = {draws:,} do not fit into memory: take fewer, or method='grid', "
            "which does not need more as the concentration grows"
        )


def checked_draws(posterior: Posterior, draws: int) -> int:
    """Check what every sampler is given."""
    check_not_batched(posterior.prior)
    return check_int("draws", draws, 1)


def checked_size(name: str, size: int | None, default: int | None, left_over: float) -> int:
    """Return the size given, with a warning if it leaves much mass over; or the default."""
    if size is None:
        if default is None:
            raise ValueError(f"{name} is not given, and how many are needed depends on traced values; give it")
        return default
    size = check_int(name, size, 1)
    if left_over > _TOLERABLE:
        warnings.warn(
            f"{name} = {size}: a mass of {left_over:.2g} is left over on average, and the spread is too large; "
            "take more, or method='split'",
            stacklevel=4,
        )
    return size


def enough_sticks(concentration: Any, share: Any) -> int | None:
    """Sticks that leave over a mass of 1e-6 where ``share`` of all is broken up."""
    if is_traced(concentration, share):
        return None
    left = math.log(_TAIL / float(share))
    return max(math.ceil(left / -math.log1p(1 / float(concentration))), 1)
