"""Simulation-based calibration: draw a distribution from the prior, then scores, then ask the posterior about it."""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array
from scipy import special

from dpconformal.diagnostics.uniformity import Uniformity, uniformity
from dpconformal.dirichlet.gamma import dirichlet
from dpconformal.theory import moments
from dpconformal.theory.concentration import concentration as concentration_of
from dpconformal.validation import Scalar, complain_at, number, whole

_LEAST = 0.03  # of the parameters of F at a point; less makes masses below 1e-308 too often


class Sbc(NamedTuple):
    """
    What :func:`sbc` found.

    Attributes
    ----------
    pits : dict of ndarray, shape (simulations,)
        Where in its posterior each truth fell, uniform if the model is right: ``cdf``, the distribution function at a
        point; ``quantile``, the threshold of a level; ``mean``; ``next``, the next score.
    concentration, fitted : float
        That of the simulation, and that of the posterior.
    scores : int
        How many the posterior has seen.
    """

    pits: dict[str, np.ndarray]  # (simulations,) each
    concentration: float
    fitted: float
    scores: int

    def uniformity(self, prob: Scalar = 0.95) -> dict[str, Uniformity]:
        """Compare each quantity with uniform numbers, all of them inside with probability ``prob`` at least."""
        each = 1 - (1 - float(number("prob", prob, 0.0, 1.0, open_low=True, open_high=True))) / len(self.pits)
        return {name: uniformity(pits, each) for name, pits in self.pits.items()}

    @property
    def passed(self) -> bool:
        """Whether all quantities look uniform; a right model has a chance of 1 in 100 at most to fail."""
        return all(found.inside for found in self.uniformity(0.99).values())


def sbc(
    prior: Any,
    concentration: Scalar,
    count: int,
    simulations: int = 2000,
    bins: int = 64,
    level: Scalar = 0.9,
    point: Scalar | None = None,
    fit_concentration: Scalar | None = None,
    schedule: Any = None,
    draws: int = 19,
    seed: int = 0,
) -> Sbc:
    """
    Check that a Dirichlet-process posterior is calibrated, by simulation from its own prior.

    Each simulation draws probabilities of the bins from Dirichlet(a P0) and n + 1 scores from these; the posterior sees
    the first n of them. Quantities that take steps are smoothed at random within the step; otherwise they would not be
    uniform.

    Parameters
    ----------
    prior : Prior
        P0, on a bounded support that it fills.
    concentration : float
        a, of the simulation.
    count : int
        n, scores that the posterior sees.
    simulations : int
        How many.
    bins : int
        Bins of equal width over the support, at least two.
    level : float
        Level of the threshold, in (0, 1).
    point : float, optional
        Where to look at the distribution function: the nearest edge between two bins, by default nearest to P0's mean.
    fit_concentration : float, optional
        The concentration of the posterior; the right one by default.
    schedule : Schedule or callable, optional
        Instead: the concentration that a schedule has in round n + 1.
    draws : int
        Posterior draws among which the true mean is ranked.
    seed : int
        Of the simulation.

    Returns
    -------
    Sbc
        PITs of four quantities; ``passed`` and ``uniformity(prob)``.

    Examples
    --------
    >>> import dpconformal as dpc
    >>> right = sbc(dpc.priors.Uniform(), 5.0, count=50, simulations=200, bins=16, draws=9)
    >>> wrong = sbc(dpc.priors.Uniform(), 5.0, count=50, simulations=200, bins=16, draws=9, fit_concentration=40.0)
    >>> right.passed  # doctest: +SKIP
    True
    >>> wrong.passed
    False
    """
    count, bins, draws = whole("count", count, 0), whole("bins", bins, 2), whole("draws", draws, 1)
    true = number("concentration", concentration, 0.0, open_low=True)
    fitted = _fitted(true, count, fit_concentration, schedule)
    level = float(number("level", level, 0.0, 1.0, open_low=True, open_high=True))
    edges, masses = _grid(prior, bins)
    inner = edges[1:-1]
    centres = (edges[:-1] + edges[1:]) / 2
    where = masses @ centres if point is None else number("point", point, edges[0], edges[-1])
    at = int(np.argmin(np.abs(inner - where)))

    ends = masses[: at + 1].sum(), masses[at + 1 :].sum()
    if true * min(ends) < _LEAST:
        raise ValueError(
            f"concentration = {float(true):g}: F at the point would be 0 or 1 to the last bit in some simulations, for "
            f"P0 has a mass of {min(ends):.2g} on one side of it; take a larger one, or another point"
        )
    with jax.enable_x64(True):  # a small concentration makes masses that single precision does not know
        keys = jax.random.split(jax.random.key(whole("seed", seed, 0)), whole("simulations", simulations, 1))
        shapes = (jnp.asarray(a * masses, float) for a in (true, fitted))
        found = _simulate(count, draws)(keys, *shapes, jnp.asarray(centres, float))
    p, seen, following, smaller, equal = (np.asarray(part) for part in found)

    u, v, w = np.random.default_rng(whole("seed", seed, 0)).random((3, len(p)))
    posterior = np.cumsum(fitted * masses + seen, axis=1)
    total, rows = fitted + count, np.arange(len(p))
    truth, above = np.cumsum(p, axis=1), p[:, at + 1 :].sum(axis=1)
    reached = np.minimum((truth < level).sum(axis=1), bins - 1)  # the bin of the true threshold
    chance = np.ones((len(p), bins + 1))  # that the threshold's bin is before the k-th
    chance[:, 0] = 0
    chance[:, 1:-1] = 1 - special.betainc(posterior[:, :-1], total - posterior[:, :-1], level)
    belief = np.concatenate([np.zeros((len(p), 1)), posterior / total], axis=1)
    pits = {
        "cdf": _beta_cdf(posterior[:, at], total - posterior[:, at], truth[:, at], above),
        "quantile": _between(chance[rows, reached], chance[rows, reached + 1], u),
        "mean": (smaller + v * (equal + 1)) / (draws + 1),
        "next": _between(belief[rows, following], belief[rows, following + 1], w),
    }
    return Sbc(pits, float(true), float(fitted), count)


def _beta_cdf(below: np.ndarray, above: np.ndarray, x: np.ndarray, rest: np.ndarray) -> np.ndarray:
    """Evaluate the cdf of a Beta distribution at x = 1 - rest, from the smaller of the two."""
    low = special.betainc(below, above, np.minimum(x, 0.5))
    return np.where(x <= 0.5, low, special.betaincc(above, below, np.minimum(rest, 0.5)))


def _between(low: np.ndarray, high: np.ndarray, share: np.ndarray) -> np.ndarray:
    return np.clip(low + share * (high - low), 0, 1)


def _fitted(true: Any, count: int, fit_concentration: Any, schedule: Any) -> Any:
    """Return the concentration to fit with: the one given, a schedule's, or the true one."""
    if fit_concentration is not None and schedule is not None:
        raise ValueError("fit_concentration and schedule both say how to fit: pass one of them")
    if schedule is not None:
        why = "it must leave the scores some weight"
        return number("schedule's concentration", concentration_of(count + 1, schedule), 0.0, open_low=True, hint=why)
    return true if fit_concentration is None else number("fit_concentration", fit_concentration, 0.0, open_low=True)


def _grid(prior: Any, bins: int) -> tuple[np.ndarray, np.ndarray]:
    low, high = moments.support(prior)
    if not np.isfinite(high - low):
        raise ValueError(f"prior has support [{low:g}, {high:g}]: bins need a bounded one, such as a truncated prior's")
    edges = np.linspace(low, high, bins + 1)
    masses = np.diff(moments.cdf(prior, edges))
    complain_at("prior's mass of bin", masses, ~(masses > 0), "a Dirichlet needs some in each bin; use fewer bins")
    return edges, masses / masses.sum()


@functools.cache
def _simulate(count: int, draws: int) -> Any:
    """Compile all simulations as one program."""

    def one(key: Array, shape: Array, fit: Array, centres: Array) -> tuple[Array, ...]:
        first, second, third = jax.random.split(key, 3)
        p = dirichlet(first, shape, 1)[0]
        places = jax.random.uniform(second, (count + 1,), p.dtype)
        steps = jnp.cumsum(p)
        bins = jnp.clip(jnp.searchsorted(steps, places * steps[-1], side="right"), 0, p.size - 1)
        seen = jnp.zeros(p.shape, p.dtype).at[bins[:-1]].add(jnp.ones((), p.dtype))
        means = jnp.matmul(dirichlet(third, fit + seen, draws), centres)
        mean = jnp.dot(p, centres)
        return p, seen, bins[-1], jnp.sum(means < mean), jnp.sum(means == mean)

    return jax.jit(jax.vmap(one, in_axes=(0, None, None, None)))
