"""The least density of a prior on a segment: how strongly convex its regulariser is there."""

import functools
from typing import Any

import numpy as np
from scipy import special

from dpconformal.priors import Beta, Histogram, Mixture, TruncatedNormal, Uniform
from dpconformal.theory.moments import bell_density, mixed, support
from dpconformal.theory.quadrature import density_of, evaluated


@functools.singledispatch
def least_density(prior: Any, a: Any, b: Any) -> Any:
    """
    Least density on segments [a, b].

    Returns: The infimum, exact for the priors of this package but mixtures, for which it is the sum over the
    components, a lower bound. For others it is taken over a fine grid.
    """
    a, b = np.asarray(a, float), np.asarray(b, float)
    bounded = np.isfinite(a) & np.isfinite(b)
    if not bounded.any():
        return np.zeros(np.broadcast_shapes(a.shape, b.shape))
    grid = np.linspace(
        np.min(a, where=np.isfinite(a), initial=np.inf), np.max(b, where=np.isfinite(b), initial=-np.inf), 4097
    )
    density = evaluated(density_of, prior, grid)
    least = _least_between(grid, np.minimum(density[1:], density[:-1]), a, b)
    return np.where(bounded, _inside(prior, a, b, least), 0.0)  # far out a density vanishes


@least_density.register
def _(prior: Uniform, a: Any, b: Any) -> Any:
    low, high = support(prior)
    return _inside(prior, a, b, np.asarray(1 / (high - low)))


@least_density.register
def _(prior: Beta, a: Any, b: Any) -> Any:
    low, high = support(prior)

    def density(x: Any) -> Any:
        z = np.clip((np.asarray(x, float) - low) / (high - low), 0, 1)
        log = special.xlogy(prior.a - 1, z) + special.xlog1py(prior.b - 1, -z) - special.betaln(prior.a, prior.b)
        return np.exp(log) / (high - low)

    # The density has one turning point at most: a valley if both shapes are below 1.
    curved = prior.a + prior.b - 2
    turn = low + (high - low) * ((prior.a - 1) / curved if curved else 0.5)
    with np.errstate(over="ignore"):
        ends = np.minimum(density(a), density(b))
        return _inside(prior, a, b, np.minimum(ends, density(np.clip(turn, a, b))))


@least_density.register
def _(prior: TruncatedNormal, a: Any, b: Any) -> Any:
    return _inside(prior, a, b, np.minimum(bell_density(prior, a), bell_density(prior, b)))


@least_density.register
def _(prior: Histogram, a: Any, b: Any) -> Any:
    edges = np.asarray(prior.edges, float)
    return _inside(prior, a, b, _least_between(edges, np.asarray(prior.masses, float) / np.diff(edges), a, b))


@least_density.register
def _(prior: Mixture, a: Any, b: Any) -> Any:
    return mixed(prior, lambda component: least_density(component, a, b))


def _inside(prior: Any, a: Any, b: Any, density: Any) -> Any:
    low, high = support(prior)
    return np.where((np.asarray(a) >= low) & (np.asarray(b) <= high), density, 0.0)


def _least_between(edges: Any, values: Any, a: Any, b: Any) -> Any:
    """Return the least value of a step function on segments [a, b]; a step that one only touches does not count."""
    last = values.size - 1
    first = np.clip(np.searchsorted(edges, a, side="right") - 1, 0, last)
    end = np.maximum(np.clip(np.searchsorted(edges, b, side="left") - 1, 0, last), first)
    # Row j holds the least of 2^j neighbours; any range is two of them.
    rows = [values]
    while 2 ** len(rows) <= values.size:
        half = 2 ** (len(rows) - 1)
        longer = rows[-1].copy()
        longer[:-half] = np.minimum(rows[-1][:-half], rows[-1][half:])
        rows.append(longer)
    table = np.stack(rows)
    power = np.floor(np.log2(end - first + 1)).astype(int)
    return np.minimum(table[power, first], table[power, end - 2**power + 1])
