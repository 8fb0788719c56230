"""
What the theorems need to know of a prior: its cdf, the integral of its cdf, and the least density on a segment.

On the host in float64, by SciPy, whatever JAX's precision is. Nothing here is shared with the beliefs, so that what is
computed from it can bear witness to them.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from scipy import special

from dpconformal.priors import Beta, Histogram, Mixture, TruncatedNormal, Uniform
from dpconformal.theory.segments import least_between


def support(prior: Any) -> tuple[float, float]:
    """
    Return the ends of a prior's support.

    Parameters
    ----------
    prior : Prior
        P0.

    Returns
    -------
    tuple of float
        Ends.
    """
    low, high = prior.support
    return float(low), float(high)


@functools.singledispatch
def cdf(prior: Any, x: Any) -> Any:
    """
    P0(X ≤ x).

    Parameters
    ----------
    prior : Prior
        P0.
    x : array_like
        Where.

    Returns
    -------
    ndarray
        Probabilities.
    """
    return _evaluated(_cdf_of, prior, x)


@cdf.register
def _(prior: Uniform, x: Any) -> Any:
    low, high = support(prior)
    return np.clip((np.asarray(x, float) - low) / (high - low), 0, 1)


@cdf.register
def _(prior: Beta, x: Any) -> Any:
    low, high = support(prior)
    return special.betainc(prior.a, prior.b, np.clip((np.asarray(x, float) - low) / (high - low), 0, 1))


@cdf.register
def _(prior: TruncatedNormal, x: Any) -> Any:
    low, high = support(prior)
    return np.clip(_bell_mass(prior, low, np.clip(x, low, high)) / _bell_mass(prior, low, high), 0, 1)


@cdf.register
def _(prior: Histogram, x: Any) -> Any:
    return np.interp(x, prior.edges, np.concatenate([[0], np.cumsum(prior.masses)]))


@cdf.register
def _(prior: Mixture, x: Any) -> Any:
    return _mixed(prior, lambda component: cdf(component, x))


@functools.singledispatch
def cdf_integral(prior: Any, x: Any) -> Any:
    """
    ∫ P0(X ≤ u) du over u ≤ x, which is E (x - X)⁺.

    Parameters
    ----------
    prior : Prior
        P0.
    x : array_like
        Where.

    Returns
    -------
    ndarray
        Values: in closed form for the priors of this package, by adaptive quadrature for others.
    """
    low, high = support(prior)
    x = np.asarray(x, float)
    points, place = np.unique(np.clip(x, low, high), return_inverse=True)
    steps = _integral(lambda u: cdf(prior, u), np.concatenate([[low], points[:-1]]), points)
    return np.cumsum(steps)[place].reshape(x.shape) + np.maximum(x - high, 0)


@cdf_integral.register
def _(prior: Uniform, x: Any) -> Any:
    low, high = support(prior)
    inside = np.clip(x, low, high) - low
    return inside**2 / (2 * (high - low)) + np.maximum(np.asarray(x, float) - high, 0)


@cdf_integral.register
def _(prior: Beta, x: Any) -> Any:
    low, high = support(prior)
    a, b, width = prior.a, prior.b, high - low
    z = np.clip((np.asarray(x, float) - low) / width, 0, 1)
    inside = z * special.betainc(a, b, z) - a / (a + b) * special.betainc(a + 1, b, z)
    return width * inside + np.maximum(np.asarray(x, float) - high, 0)


@cdf_integral.register
def _(prior: TruncatedNormal, x: Any) -> Any:
    low, high = support(prior)
    loc, scale = float(prior.loc), float(prior.scale)
    inside = np.clip(x, low, high)
    if scale > high - low:  # nearly uniform: the two densities differ by little
        rise = _bell_density(prior, low) * np.expm1(-(inside - low) * (inside + low - 2 * loc) / (2 * scale**2))
    else:
        rise = _bell_density(prior, inside) - _bell_density(prior, low)
    return (inside - loc) * cdf(prior, inside) + scale**2 * rise + np.maximum(np.asarray(x, float) - high, 0)


@cdf_integral.register
def _(prior: Histogram, x: Any) -> Any:
    edges, masses = np.asarray(prior.edges, float), np.asarray(prior.masses, float)
    widths, below = np.diff(edges), np.concatenate([[0], np.cumsum(masses)[:-1]])
    at_edges = np.concatenate([[0], np.cumsum(widths * (below + masses / 2))])
    inside = np.clip(x, edges[0], edges[-1])
    k = np.clip(np.searchsorted(edges, inside, side="right") - 1, 0, masses.size - 1)
    step = inside - edges[k]
    in_bin = step * (below[k] + step * masses[k] / (2 * widths[k]))
    return at_edges[k] + in_bin + np.maximum(np.asarray(x, float) - edges[-1], 0)


@cdf_integral.register
def _(prior: Mixture, x: Any) -> Any:
    return _mixed(prior, lambda component: cdf_integral(component, x))


def integral_from(prior: Any, start: Any, end: Any) -> Any:
    """
    ∫ P0(X ≤ u) du from one point to another, also where the whole integral up to a point is infinite.

    Parameters
    ----------
    prior : Prior
        P0.
    start, end : array_like
        Of the same shape, in either order.

    Returns
    -------
    ndarray
        Integrals.
    """
    if np.isfinite(support(prior)[0]):
        return cdf_integral(prior, end) - cdf_integral(prior, start)
    start, end = np.broadcast_arrays(np.asarray(start, float), np.asarray(end, float))
    finite = np.isfinite(start) & np.isfinite(end)
    points, place = np.unique(np.where(finite, [start, end], 0.0), return_inverse=True)
    steps = np.zeros(points.size)
    steps[1:] = _integral(lambda u: cdf(prior, u), points[:-1], points[1:])
    total = np.cumsum(steps)[place].reshape(2, *start.shape)
    return np.where(finite, total[1] - total[0], np.inf)


def mean(prior: Any) -> float:
    """
    Compute the mean of a prior.

    Parameters
    ----------
    prior : Prior
        P0.

    Returns
    -------
    float
        Mean; +inf where the upper tail is too heavy for one.
    """
    low, high = support(prior)
    if np.isfinite(high):
        return high - float(cdf_integral(prior, high))
    start = low if np.isfinite(low) else 0.0
    tail = _integral(lambda u: 1 - cdf(prior, u), np.array(start), np.array(np.inf))
    return start + float(tail) - float(cdf_integral(prior, start))


@functools.singledispatch
def least_density(prior: Any, a: Any, b: Any) -> Any:
    """
    Least density on segments [a, b].

    Parameters
    ----------
    prior : Prior
        P0.
    a, b : array_like
        Ends, a ≤ b; 0 where a segment reaches beyond the support.

    Returns
    -------
    ndarray
        The infimum, exact for the priors of this package but mixtures, for which it is the sum over the components,
        a lower bound. For others it is taken over a fine grid.
    """
    a, b = np.asarray(a, float), np.asarray(b, float)
    bounded = np.isfinite(a) & np.isfinite(b)
    if not bounded.any():
        return np.zeros(np.broadcast_shapes(a.shape, b.shape))
    grid = np.linspace(
        np.min(a, where=np.isfinite(a), initial=np.inf), np.max(b, where=np.isfinite(b), initial=-np.inf), 4097
    )
    density = _evaluated(_density_of, prior, grid)
    least = least_between(grid, np.minimum(density[1:], density[:-1]), a, b)
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
    return _inside(prior, a, b, np.minimum(_bell_density(prior, a), _bell_density(prior, b)))


@least_density.register
def _(prior: Histogram, a: Any, b: Any) -> Any:
    edges = np.asarray(prior.edges, float)
    return _inside(prior, a, b, least_between(edges, np.asarray(prior.masses, float) / np.diff(edges), a, b))


@least_density.register
def _(prior: Mixture, a: Any, b: Any) -> Any:
    return _mixed(prior, lambda component: least_density(component, a, b))


def _bell_mass(prior: TruncatedNormal, start: Any, end: Any) -> Any:
    """Mass of the normal distribution before it is cut, without cancellation in either tail."""
    u, v = ((np.asarray(x, float) - float(prior.loc)) / float(prior.scale) for x in (start, end))
    return np.where(u > 0, special.ndtr(-u) - special.ndtr(-v), special.ndtr(v) - special.ndtr(u))


def _bell_density(prior: TruncatedNormal, x: Any) -> Any:
    z = (np.asarray(x, float) - float(prior.loc)) / float(prior.scale)
    height = float(prior.scale) * np.sqrt(2 * np.pi) * _bell_mass(prior, *support(prior))
    return np.exp(-(z**2) / 2) / height


def _mixed(prior: Mixture, part: Any) -> Any:
    parts = (w * part(component) for w, component in zip(prior.weights, prior.components, strict=True))
    return functools.reduce(np.add, parts)


def _inside(prior: Any, a: Any, b: Any, density: Any) -> Any:
    low, high = support(prior)
    return np.where((np.asarray(a) >= low) & (np.asarray(b) <= high), density, 0.0)


def _integral(function: Any, start: np.ndarray, end: np.ndarray) -> Any:
    """Integrate by the tanh-sinh rule, which bears singular ends and infinite ones; +inf where it does not converge."""
    from scipy import integrate  # slow to import, and needed by few

    found = integrate.tanhsinh(function, start, end, atol=1e-13, rtol=1e-12)
    return np.where(found.success | (found.error < 1e-8), found.integral, np.inf)


_CHUNK = 512  # points that one compiled program serves, whatever their number


def _evaluated(function: Any, prior: Any, x: Any) -> Any:
    """Evaluate a prior of unknown make in float64, a chunk of points at a time."""
    x = np.asarray(x, float)
    chunks = np.pad(x.ravel(), (0, -x.size % _CHUNK), constant_values=0.5).reshape(-1, _CHUNK)
    with jax.enable_x64(True):
        values = [np.asarray(function(prior, jnp.asarray(chunk)), float) for chunk in chunks]
    return np.concatenate([*values, np.zeros(0)])[: x.size].reshape(x.shape)


@jax.jit
def _cdf_of(prior: Any, x: Any) -> Any:
    return prior.cdf(x)


@jax.jit
def _density_of(prior: Any, x: Any) -> Any:
    return prior.density(x)
