"""What the theorems need to know of a prior: its cdf, integrals of it, its mean, its least density on a segment."""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from scipy import special

from dpconformal.beliefs.weights import check_prior
from dpconformal.priors import (
    Beta,
    Exponential,
    HalfCauchy,
    HalfNormal,
    Histogram,
    LogNormal,
    Mixture,
    TruncatedNormal,
    Uniform,
)


def integral(function: Any, start: np.ndarray, end: np.ndarray) -> Any:
    """Integrate by the tanh-sinh rule, which bears singular ends and infinite ones."""
    from scipy import integrate  # slow to import, and needed by few

    found = integrate.tanhsinh(function, start, end, atol=1e-13, rtol=1e-12)
    whole = np.where(found.success | (found.error < 1e-8), found.integral, np.inf)
    finite = np.isfinite(start) & np.isfinite(end)
    first, last = np.where(finite, start, 0.0), np.where(finite, end, 0.0)
    short = finite & (last - first <= 1e-12 * (np.abs(first) + np.abs(last)))  # a few floats wide, too few for the rule
    return np.where(short, function(np.where(short, first, 0.5)) * (last - first), whole) if np.any(short) else whole


_LANDMARKS = np.array([1e-9, 1e-4, 0.01, 0.25, 0.5, 0.75, 0.99, 1 - 1e-4, 1 - 1e-9])


def landmarks(prior: Any) -> np.ndarray:
    """Find where the mass of a prior lies, which quadrature from end to end of an unbounded support may miss."""
    with jax.enable_x64(True):
        points = np.asarray(_quantile_of(prior, jnp.asarray(_LANDMARKS)), float)
    return np.unique(points[np.isfinite(points)])


@jax.jit
def _quantile_of(prior: Any, p: Any) -> Any:
    return prior.quantile(p)


_CHUNK = 512  # points that one compiled program serves, whatever their number


def evaluated(function: Any, prior: Any, x: Any) -> Any:
    """Evaluate a prior in float64, a chunk of points at a time."""
    x = np.asarray(x, float)
    chunks = np.pad(x.ravel(), (0, -x.size % _CHUNK), constant_values=0.5).reshape(-1, _CHUNK)
    with jax.enable_x64(True):
        values = [np.asarray(function(prior, jnp.asarray(chunk)), float) for chunk in chunks]
    return np.concatenate([*values, np.zeros(0)])[: x.size].reshape(x.shape)


@jax.jit
def cdf_of(prior: Any, x: Any) -> Any:
    """Evaluate the cdf."""
    return prior.cdf(x)


@jax.jit
def density_of(prior: Any, x: Any) -> Any:
    """Evaluate the density."""
    return prior.density(x)


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


Function = Callable[[Any], Any]


class _Standard(NamedTuple):
    """A distribution on [0, ∞) at scale 1, as functions of z ≥ 0."""

    cdf: Function
    integral: Function  # of the cdf, from 0
    density: Function


_STANDARD = {
    HalfNormal: _Standard(
        lambda z: special.erf(z / np.sqrt(2)),
        lambda z: z * special.erf(z / np.sqrt(2)) + np.sqrt(2 / np.pi) * np.expm1(-0.5 * z**2),
        lambda z: np.sqrt(2 / np.pi) * np.exp(-0.5 * z**2),
    ),
    Exponential: _Standard(lambda z: -np.expm1(-z), lambda z: z + np.expm1(-z), lambda z: np.exp(-z)),
    HalfCauchy: _Standard(
        lambda z: 2 / np.pi * np.arctan(z),
        lambda z: 2 / np.pi * (z * np.arctan(z) - 0.5 * np.log1p(z**2)),
        lambda z: 2 / np.pi / (1 + z**2),
    ),
}


def _scaled(prior: Any, x: Any) -> tuple[_Standard, Any, float]:
    scale = float(prior.scale)
    return _STANDARD[type(prior)], np.maximum(np.asarray(x, float), 0) / scale, scale


@cdf.register(HalfNormal)
@cdf.register(Exponential)
@cdf.register(HalfCauchy)
def _(prior: Any, x: Any) -> Any:
    standard, z, _ = _scaled(prior, x)
    return standard.cdf(z)


@cdf_integral.register(HalfNormal)
@cdf_integral.register(Exponential)
@cdf_integral.register(HalfCauchy)
def _(prior: Any, x: Any) -> Any:
    standard, z, scale = _scaled(prior, x)
    with np.errstate(invalid="ignore"):
        return np.where(np.isinf(z), np.inf, scale * standard.integral(z))


@least_density.register(HalfNormal)
@least_density.register(Exponential)
@least_density.register(HalfCauchy)
def _(prior: Any, a: Any, b: Any) -> Any:
    standard, z, scale = _scaled(prior, b)  # it falls, so it is least at the upper end
    return np.where(np.asarray(a) >= 0, standard.density(z) / scale, 0.0)


def _log_standard(prior: LogNormal, x: Any) -> Any:
    with np.errstate(divide="ignore"):
        return (np.log(np.maximum(np.asarray(x, float), 0)) - float(prior.loc)) / float(prior.scale)


@cdf.register
def _(prior: LogNormal, x: Any) -> Any:
    return special.ndtr(_log_standard(prior, x))


@cdf_integral.register
def _(prior: LogNormal, x: Any) -> Any:
    z, scale = _log_standard(prior, x), float(prior.scale)
    mean = np.exp(float(prior.loc) + 0.5 * scale**2)
    return np.maximum(np.asarray(x, float), 0) * special.ndtr(z) - mean * special.ndtr(z - scale)


@least_density.register
def _(prior: LogNormal, a: Any, b: Any) -> Any:
    def density(x: Any) -> Any:
        x = np.asarray(x, float)
        inside = (x > 0) & np.isfinite(x)
        positive = np.where(inside, x, 1.0)
        bell = np.exp(-0.5 * _log_standard(prior, positive) ** 2) / np.sqrt(2 * np.pi)
        return np.where(inside, bell / (positive * float(prior.scale)), 0.0)

    return np.minimum(density(a), density(b))  # one hill, so it is least at an end
