"""Distributions drawn from the posterior: what is drawn, five samplers by name, and the variates they are made of."""

import math
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float

from dpconformal.beliefs.quantized import bin_edges, bin_index
from dpconformal.dirichlet.posterior import Posterior, evidence
from dpconformal.validation import Numbers, as_floats, as_levels, check_int, check_not_batched, float_dtype, is_traced

_TAIL = 1e-6  # expected mass that default sizes leave over
_TOLERABLE = 1e-3  # expected mass beyond which a size is warned about
_ROOM = 2**28  # atoms of all draws together, 2 GB in double precision
_BINS = 256  # of a grid, by default
_STEPS, _STICKS = 100, 128  # of the urn by default; and sticks of its rest at least, and where a is traced


class Draws(NamedTuple):
    """
    Random distributions F_1, …, F_D. Their thresholds never cross, for each is a distribution.

    All draws put mass on the scores seen, so these ``atoms`` are kept once, with the ``cumulative`` mass that each draw
    gives them. Atoms that a draw took from the prior are its own (``own_atoms``, ``own_cumulative``). ``low`` and
    ``high`` are the ends of the support; for the Bayesian bootstrap ``high`` is the largest score.

    Examples
    --------
    >>> import jax, dpconformal as dpc
    >>> draws = dpc.dirichlet.Posterior(dpc.priors.Uniform(), 5.0, [0.2, 0.4, 0.6]).sample(jax.random.key(0), 1000)
    >>> draws.cdf([0.5]).shape, draws.quantile([0.5, 0.9]).shape
    ((1000, 1), (1000, 2))
    """

    low: Float[Array, "*B"]  # ()
    high: Float[Array, "*B"]  # ()
    atoms: Float[Array, "*B J"]  # (J,), ascending
    cumulative: Float[Array, "*B D J"]  # (D, J), mass of the first j + 1 atoms
    own_atoms: Float[Array, "*B D K"]  # (D, K), ascending
    own_cumulative: Float[Array, "*B D K"]  # (D, K), mass of the first k + 1 of them

    def __repr__(self) -> str:
        """Say how many there are, not what."""
        return f"Draws({self.cumulative.shape[-2]:,} distributions)"

    def cdf(self, x: Numbers) -> Float[Array, "D ..."]:
        """F(x) of each draw, shape (D, ...), at any real numbers."""
        return _cdf(self, as_floats(x).astype(self.atoms.dtype))

    def quantile(self, levels: Numbers) -> Float[Array, "D ..."]:
        """Smallest x with F(x) ≥ level, of each draw, shape (D, ...); at levels 0 and 1 the ends of the support."""
        return _quantile(self, as_levels(levels, self.atoms.dtype))

    def mean(self) -> Float[Array, " D"]:
        """Return the expectation of a score under each draw."""
        shared = jnp.diff(self.cumulative, axis=-1, prepend=0) @ self.atoms
        own = jnp.sum(jnp.diff(self.own_cumulative, axis=-1, prepend=0) * self.own_atoms, axis=-1)
        return shared + own


@jax.jit
def _cdf(draws: Draws, x: Array) -> Array:
    shared = jax.vmap(_mass_up_to, in_axes=(None, 0, None))(draws.atoms, draws.cumulative, x)
    own = jax.vmap(_mass_up_to, in_axes=(0, 0, None))(draws.own_atoms, draws.own_cumulative, x)
    value = jnp.minimum(shared + own, 1)  # rounding only
    invalid = jnp.isnan(_total_mass(draws)).reshape(-1, *(1,) * x.ndim)
    return jnp.where(jnp.isnan(x)[None] | invalid, jnp.nan, value)


@jax.jit
def _quantile(draws: Draws, levels: Array) -> Array:
    def one(cumulative: Array, own_atoms: Array, own_cumulative: Array, total: Array) -> Array:
        parts = (draws.atoms, cumulative), (own_atoms, own_cumulative)

        def mass(x: Array) -> Array:
            return _mass_up_to(*parts[0], x) + _mass_up_to(*parts[1], x)

        first = [_first_reaching(atoms, mass, levels * total) for atoms, _ in parts if atoms.shape[0]]
        return jnp.min(jnp.stack(first), axis=0)

    total = _total_mass(draws)
    found = jax.vmap(one)(draws.cumulative, draws.own_atoms, draws.own_cumulative, total)
    found = jnp.where(levels[None] <= 0, draws.low, jnp.where(levels[None] >= 1, draws.high, found))
    invalid = jnp.isnan(total).reshape(-1, *(1,) * levels.ndim)
    return jnp.where(jnp.isnan(levels)[None] | invalid, jnp.nan, found)


def _mass_up_to(atoms: Array, cumulative: Array, x: Array) -> Array:
    """Return the mass up to x on atoms (J,), with cumulative (J,)."""
    if atoms.shape[0] == 0:
        return jnp.zeros(x.shape, cumulative.dtype)
    passed = jnp.searchsorted(atoms, x, side="right")
    return jnp.where(passed > 0, cumulative[jnp.maximum(passed - 1, 0)], 0)


def _total_mass(draws: Draws) -> Array:
    """Return the mass of each draw: 1 but for rounding, NaN if the posterior was invalid inside jit."""
    parts = [part[:, -1] for part in (draws.cumulative, draws.own_cumulative) if part.shape[-1]]
    return sum(parts, jnp.zeros(draws.cumulative.shape[0], draws.atoms.dtype))


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
    index = lax.fori_loop(0, atoms.shape[0].bit_length(), halve, (start, stop))[1]
    return jnp.where(index < atoms.shape[0], atoms[jnp.minimum(index, atoms.shape[0] - 1)], jnp.inf)


@jax.jit(static_argnames=("draws", "size"))
def split(posterior: Posterior, key: Array, draws: int, size: int) -> Draws:
    """
    Draw W·DP(a, P0) + (1-W)·Σ w_i δ(score_i), with W ~ Beta(a, n) and w uniform on the simplex.

    That is the posterior itself, and only its prior part is infinite: the sticks that leave no more than a given mass
    over do not grow with the number of scores.
    """
    keys, (a, scores, _) = jax.random.split(key, 4), evidence(posterior)
    atoms, own = _sort_atoms(_prior_draws(posterior, keys[0], (draws, size)), _break_stick(keys[1], a, draws, size))
    shared = jnp.cumsum(_score_masses(posterior, keys[2], draws), axis=-1)
    if shared.shape[-1]:
        prior_mass, score_mass = jax.random.gamma(keys[3], a, (draws, 1), a.dtype), shared[:, -1:]
        empty = score_mass + prior_mass <= 0  # nothing was counted, and the gamma draw underflowed
        share = jnp.where(empty, 1, prior_mass / jnp.where(empty, 1, score_mass + prior_mass))
        own, shared = own * share, shared * ((1 - share) / jnp.where(score_mass > 0, score_mass, 1))
    return Draws(*_ends(posterior), scores, shared, atoms, own)


@jax.jit(static_argnames=("draws", "size"))
def sticks(posterior: Posterior, key: Array, draws: int, size: int) -> Draws:
    """
    Draw by sticks alone: Σ π_k δ(θ_k), π broken with Beta(1, a + n), θ from the posterior mean.

    The last stick takes what is left. By default there are about 14·(a + n); with too few of them the mean is right and
    the spread too large.
    """
    keys = jax.random.split(key)
    atoms = _mean_draws(posterior, keys[0], (draws, size))
    masses = _break_stick(keys[1], jnp.asarray(posterior.total, atoms.dtype), draws, size)
    nothing = jnp.zeros((draws, 0), atoms.dtype)
    return Draws(*_ends(posterior), nothing[0], nothing, *_sort_atoms(atoms, masses))


@jax.jit(static_argnames=("draws", "size"))
def grid(posterior: Posterior, key: Array, draws: int, size: int) -> Draws:
    """
    Draw masses of equal bins, Dirichlet(a·P0(bin) + scores in it), and put them at the upper edges.

    An edge belongs to the bin below it. So F(x) = P(X ≤ x) is exact at the edges of the bins, for any number of them,
    also where scores lie on edges. Quantiles are those of F, moved up to the next edge; means are up to a bin larger
    than those of F.
    """
    support, (a, scores, counts) = posterior.prior.support, evidence(posterior)
    edges = bin_edges(support, size, scores.dtype)
    if posterior.bins is not None and posterior.rounding == "up":
        # These are edges of the posterior's own bins. In another precision they may lie a bit off; the centres do not.
        scores = scores - (edges[-1] - edges[0]) / (2 * posterior.bins)
    shapes = (a * jnp.diff(posterior.prior.cdf(edges))).at[bin_index(scores, support, size, "up")].add(counts)
    masses = dirichlet(key, jnp.maximum(shapes, jnp.finfo(shapes.dtype).tiny), draws)  # NaN stays
    nothing = jnp.zeros((draws, 0), masses.dtype)
    return Draws(edges[0], edges[-1], edges[1:], jnp.cumsum(masses, axis=-1), nothing, nothing)


@jax.jit(static_argnames=("draws", "size"))
def urn(posterior: Posterior, key: Array, draws: int, size: tuple[int, int]) -> Draws:
    """
    Draw scores to come by Pólya's urn, and weigh them and those seen uniformly on the simplex.

    The posterior given scores to come, averaged over these, is the posterior: so this is right for any number of steps.
    What is left of the prior, a/(a + n + steps) of the mass on average, is broken into sticks. (Equal weights, the
    empirical distribution of the urn alone, would be right for infinitely many steps only.)
    """
    (steps, count), keys, (a, scores, _) = size, jax.random.split(key, 6), evidence(posterior)
    rest = jax.random.gamma(keys[0], a, (draws, 1), a.dtype) * _break_stick(keys[1], a, draws, count)
    masses = jax.random.exponential(keys[2], (draws, steps), a.dtype), rest
    places = _future(posterior, keys[3], draws, steps), _prior_draws(posterior, keys[4], rest.shape)
    atoms, own = _sort_atoms(*(jnp.concatenate(parts, axis=-1) for parts in (places, masses)))
    shared = jnp.cumsum(_score_masses(posterior, keys[5], draws), axis=-1)
    total = own[:, -1:] + (shared[:, -1:] if shared.shape[-1] else 0)
    return Draws(*_ends(posterior), scores, shared / total, atoms, own / total)


@jax.jit(static_argnames=("draws", "size"))
def bootstrap(posterior: Posterior, key: Array, draws: int, size: None = None) -> Draws:
    """Draw Σ w_i δ(score_i), w uniform on the simplex: the Bayesian bootstrap, which has no prior."""
    a, scores, counts = evidence(posterior)
    shared, (low, _) = jnp.cumsum(_score_masses(posterior, key, draws), axis=-1), _ends(posterior)
    shared = jnp.where(jnp.isnan(a), jnp.nan, shared / shared[:, -1:])
    nothing = jnp.zeros((draws, 0), scores.dtype)
    return Draws(low, jnp.max(jnp.where(counts > 0, scores, low)), scores, shared, nothing, nothing)


SAMPLERS: dict[str, Callable[..., Draws]] = {
    "split": split,
    "grid": grid,
    "sticks": sticks,
    "urn": urn,
    "bootstrap": bootstrap,
}


def check_sampler_size(posterior: Posterior, method: str, draws: int, size: int | None) -> int | tuple[int, int] | None:
    """Return the size of a sampler: the one asked for if it will do, with a warning if it is small, or the default."""
    if method == "bootstrap":
        counts = posterior.counts
        if size is not None:
            raise ValueError(f"size = {size!r}: the Bayesian bootstrap has none; leave it out")
        if posterior.scores.shape[0] == 0 or not (counts is None or is_traced(counts) or np.any(counts)):
            raise ValueError(
                "posterior.scores is empty: the Bayesian bootstrap needs a score, or the prior; use 'split'"
            )
        return None
    if method == "grid":
        size = check_int("bins", size if size is not None else posterior.bins or _BINS, 1)
        if posterior.bins is not None and posterior.bins % size:
            raise ValueError(f"bins = {size}: the posterior's {posterior.bins} bins must be a multiple of it")
        low, high = posterior.prior.support
        if not is_traced(low, high) and not math.isfinite(float(high) - float(low)):
            raise ValueError(f"posterior.prior has support {posterior.prior.support}: a grid needs a bounded one")
        return size
    if method == "urn":
        steps, a = check_int("steps", _STEPS if size is None else size, 1), posterior.concentration
        count = max(_enough_sticks(a, a / (posterior.total + steps)) or 0, _STICKS)
        _check_room(draws, steps + count, "steps and sticks")
        return steps, count
    if size is None:
        size = _enough_sticks(*_weight_and_share(posterior, method))
        if size is None:
            raise ValueError("sticks is not given, and how many are needed depends on traced values; give it")
    elif (left_over := truncation(posterior, method, size)) > _TOLERABLE:
        warnings.warn(
            f"sticks = {size}: a mass of {left_over:.2g} is left over on average, and the spread is too large; "
            "take more, or method='split'",
            stacklevel=3,
        )
    size = check_int("sticks", size, 1)
    _check_room(draws, size, "sticks")
    return size


def truncation(posterior: Posterior, method: str, size: int | None) -> float:
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
    weight, share = _weight_and_share(posterior, method)
    return float(share) * (float(weight) / (float(weight) + 1)) ** check_int("sticks", size, 1)


def _weight_and_share(posterior: Posterior, method: str) -> tuple[Any, Any]:
    """Return the concentration by which a method breaks its stick, and the share of all mass that the stick has."""
    a, total = posterior.concentration, posterior.total
    return (a, a / total) if method == "split" else (total, 1.0)


def _enough_sticks(weight: Any, share: Any) -> int | None:
    """Return how many sticks leave over a mass of 1e-6, where ``share`` of all is broken up; None if that is traced."""
    if is_traced(weight, share):
        return None
    return max(math.ceil(math.log(_TAIL / float(share)) / -math.log1p(1 / float(weight))), 1)


def _check_room(draws: int, atoms: int, what: str) -> None:
    """Refuse what would not fit into memory."""
    if draws * atoms > _ROOM:
        raise ValueError(
            f"{what} = {atoms:,} for each of draws = {draws:,} do not fit into memory: take fewer, or method='grid', "
            "which does not need more as the concentration grows"
        )


def future_scores(posterior: Posterior, key: Array, draws: int, steps: int) -> Float[Array, "D M"]:
    """
    Draw the scores to come, in order: each from the belief that the ones before it have led to.

    Parameters
    ----------
    posterior : Posterior
        The posterior.
    key : PRNG key
        Of JAX.
    draws, steps : int
        Independent futures, and scores of each.

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
    check_not_batched(posterior.prior)
    return _future(posterior, key, check_int("draws", draws, 1), check_int("steps", steps, 1))


@jax.jit(static_argnames=("draws", "steps"))
def _future(posterior: Posterior, key: Array, draws: int, steps: int) -> Array:
    keys = jax.random.split(key)
    fresh = _mean_draws(posterior, keys[0], (draws, steps))
    own, total = jnp.arange(steps, dtype=jnp.int32)[None], jnp.asarray(posterior.total, fresh.dtype)
    place = jax.random.uniform(keys[1], (draws, steps), fresh.dtype) * (total + own.astype(fresh.dtype)) - total
    source = jnp.where(place < 0, own, jnp.minimum(jnp.floor(place).astype(jnp.int32), own - 1))
    for _ in range(max(steps - 1, 1).bit_length()):  # every copy of a copy, in a logarithm of steps
        source = jnp.take_along_axis(source, source, axis=-1)
    return jnp.take_along_axis(fresh, source, axis=-1)


def _ends(posterior: Posterior) -> tuple[Array, Array]:
    low, high = (jnp.asarray(end, float_dtype(posterior.scores)) for end in posterior.prior.support)
    return low, high


def _sort_atoms(atoms: Array, masses: Array) -> tuple[Array, Array]:
    """Sort the atoms of each draw, and add up their masses."""
    atoms, masses = lax.sort((atoms, masses), dimension=-1, num_keys=1)
    return atoms, jnp.cumsum(masses, axis=-1)


def _break_stick(key: Array, concentration: Array, draws: int, count: int) -> Float[Array, "D K"]:
    """Break sticks: what is left after k of them is exp of a sum of exponentials; the last takes the rest."""
    pieces = jax.random.exponential(key, (draws, count), concentration.dtype) / concentration
    left = jnp.cumsum(pieces, axis=-1) - pieces
    return jnp.exp(-left) * -jnp.expm1(-pieces.at[:, -1].set(jnp.inf))


def _score_masses(posterior: Posterior, key: Array, draws: int) -> Float[Array, "D n"]:
    """Draw Gamma(count) for each score, to be normalised."""
    _, scores, counts = evidence(posterior)
    shape = (draws, scores.shape[0])
    if posterior.counts is None:
        return jax.random.exponential(key, shape, scores.dtype)
    drawn = jnp.exp(log_gamma(key, jnp.where(counts > 0, counts, 1), shape))
    return jnp.where((counts > 0)[None], drawn, 0)


def _prior_draws(posterior: Posterior, key: Array, shape: tuple[int, ...]) -> Array:
    """Draw from the prior; never its quantile of level 0, which an unbounded support has at infinity."""
    dtype = float_dtype(posterior.scores)
    return posterior.prior.quantile(jax.random.uniform(key, shape, dtype, minval=jnp.finfo(dtype).tiny))


def _mean_draws(posterior: Posterior, key: Array, shape: tuple[int, ...]) -> Array:
    """Draw from the posterior mean: from the prior, or one of the scores."""
    keys, (a, scores, counts) = jax.random.split(key), evidence(posterior)
    drawn = _prior_draws(posterior, keys[0], shape)
    if scores.shape[0]:
        below = jnp.cumsum(counts)
        place = jax.random.uniform(keys[1], shape, scores.dtype) * (a + below[-1]) - a  # negative: from the prior
        chosen = jnp.minimum(jnp.searchsorted(below, place, side="right"), scores.shape[0] - 1)
        drawn = jnp.where(place < 0, drawn, scores[chosen])
    return jnp.where(jnp.isnan(a), jnp.nan, drawn)


def log_gamma(key: Array, alpha: Float[Array, "*k"], shape: tuple[int, ...]) -> Float[Array, "..."]:
    """Draw logarithms of gamma variates by the method of Marsaglia and Tsang (2000); NaN for shapes that are none."""
    # jax.random.loggamma draws one after the other on a CPU and takes ten times as long. Here all are proposed together
    # until each has been accepted, which takes a few rounds. Below 1 the shape is raised by one and the variate
    # multiplied by U^(1/alpha); in logarithms, for it may be too small for a float.
    dtype, valid = alpha.dtype, (alpha > 0) & jnp.isfinite(alpha)
    known = jnp.where(valid, alpha, 1)
    raised = jnp.where(known < 1, known + 1, known) - 1 / 3
    power = jnp.where(known < 1, 1 / known, 0)
    valid, raised, power = (jnp.broadcast_to(part, shape) for part in (valid, raised, power))
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
    start = key, jnp.ones(shape, dtype), ~valid
    _, cube, _ = lax.while_loop(lambda carried: ~jnp.all(carried[2]), propose, start)
    u = jax.random.uniform(last, shape, dtype, minval=jnp.finfo(dtype).tiny)
    return jnp.where(valid, jnp.log(raised) + jnp.log(cube) + jnp.log(u) * power, jnp.nan)


def dirichlet(key: Array, alpha: Float[Array, " K"], draws: int) -> Float[Array, "..."]:
    """Draw from a Dirichlet distribution."""
    return jax.nn.softmax(log_gamma(key, alpha, (draws, *alpha.shape)), axis=-1)
