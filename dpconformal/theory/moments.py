"""
What the theorems need to know of a prior: its cdf, and the integral of its cdf.

On the host in float64, by SciPy, whatever JAX's precision is. Nothing here is shared with the beliefs, so that what is
computed from it can bear witness to them.
"""

import functools
from typing import Any

import numpy as np
from scipy import special

from dpconformal.beliefs.weights import check_prior
from dpconformal.priors import Beta, Histogram, Mixture, TruncatedNormal, Uniform
from dpconformal.theory.quadrature import cdf_of, evaluated, integral, landmarks


def support(prior: Any) -> tuple[float, float]:
    """Return the ends of a prior's support."""
    check_prior("theory", prior)
    low, high = prior.support
    return float(low), float(high)


@functools.singledispatch
def cdf(prior: Any, x: Any) -> Any:
    """P0(X ≤ x)."""
    return evaluated(cdf_of, prior, x)


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
    return np.clip(bell_mass(prior, low, np.clip(x, low, high)) / bell_mass(prior, low, high), 0, 1)


@cdf.register
def _(prior: Histogram, x: Any) -> Any:
    return np.interp(x, prior.edges, np.concatenate([[0], np.cumsum(prior.masses)]))


@cdf.register
def _(prior: Mixture, x: Any) -> Any:
    return mixed(prior, lambda component: cdf(component, x))


@functools.singledispatch
def cdf_integral(prior: Any, x: Any) -> Any:
    """
    ∫ P0(X ≤ u) du over u ≤ x, which is E (x - X)⁺.

    Returns: Values: in closed form for the priors of this package, by adaptive quadrature for others.
    """
    low, high = support(prior)
    x = np.asarray(x, float)
    points, place = np.unique(np.clip(x, low, high), return_inverse=True)
    marks = landmarks(prior)
    ends = np.union1d(points, marks[(marks > low) & (marks < points[-1:].max(initial=-np.inf))])
    steps = integral(lambda u: cdf(prior, u), np.concatenate([[low], ends[:-1]]), ends)
    sums = np.cumsum(steps)[np.searchsorted(ends, points)]
    return sums[place].reshape(x.shape) + np.maximum(x - high, 0)


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
        rise = bell_density(prior, low) * np.expm1(-(inside - low) * (inside + low - 2 * loc) / (2 * scale**2))
    else:
        rise = bell_density(prior, inside) - bell_density(prior, low)
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
    return mixed(prior, lambda component: cdf_integral(component, x))


def integral_from(prior: Any, start: Any, end: Any) -> Any:
    """∫ P0(X ≤ u) du from one point to another, also where the whole integral up to a point is infinite."""
    if np.isfinite(support(prior)[0]):
        return cdf_integral(prior, end) - cdf_integral(prior, start)
    start, end = np.broadcast_arrays(np.asarray(start, float), np.asarray(end, float))
    finite = np.isfinite(start) & np.isfinite(end)
    points, place = np.unique(np.where(finite, [start, end], 0.0), return_inverse=True)
    steps = np.zeros(points.size)
    steps[1:] = integral(lambda u: cdf(prior, u), points[:-1], points[1:])
    total = np.cumsum(steps)[place].reshape(2, *start.shape)
    return np.where(finite, total[1] - total[0], np.inf)


def mean(prior: Any) -> float:
    """Compute the mean of a prior."""
    low, high = support(prior)
    if np.isfinite(high):
        return high - float(cdf_integral(prior, high))
    marks = landmarks(prior)
    start = low if np.isfinite(low) else float(np.median(marks))
    ends = np.concatenate([marks[marks > start], [np.inf]])
    tail = integral(lambda u: 1 - cdf(prior, u), np.concatenate([[start], ends[:-1]]), ends)
    return start + float(tail.sum()) - float(cdf_integral(prior, start))


def bell_mass(prior: TruncatedNormal, start: Any, end: Any) -> Any:
    """Compute the mass of a normal distribution before it is cut, without cancellation in either tail."""
    u, v = ((np.asarray(x, float) - float(prior.loc)) / float(prior.scale) for x in (start, end))
    return np.where(u > 0, special.ndtr(-u) - special.ndtr(-v), special.ndtr(v) - special.ndtr(u))


def bell_density(prior: TruncatedNormal, x: Any) -> Any:
    """Compute the density of a cut normal distribution, within its support."""
    z = (np.asarray(x, float) - float(prior.loc)) / float(prior.scale)
    height = float(prior.scale) * np.sqrt(2 * np.pi) * bell_mass(prior, *support(prior))
    return np.exp(-(z**2) / 2) / height


def mixed(prior: Mixture, part: Any) -> Any:
    """Mix what is known of each component."""
    parts = (w * part(component) for w, component in zip(prior.weights, prior.components, strict=True))
    return functools.reduce(np.add, parts)
