"""
Functions of a prior that the theorems need, in float64: its cdf, integrals of it, its mean, its least density.

The priors of this package have closed forms; those of others are integrated by quadrature.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from scipy import special

from dpconformal.beliefs.belief import check_prior
from dpconformal.priors import (
    Beta,
    Exponential,
    HalfCauchy,
    HalfNormal,
    Histogram,
    LogNormal,
    Mixture,
    Prior,
    TruncatedNormal,
    Uniform,
)
from dpconformal.validation import Numbers


def support(prior: Prior) -> tuple[float, float]:
    """Return the ends of a prior's support."""
    check_prior("theory", prior)
    low, high = prior.support
    return float(low), float(high)


def cdf(prior: Prior, x: Numbers) -> Any:
    """P0(X ≤ x)."""
    return functions_of(prior).cdf(np.asarray(x, float))


def cdf_integral(prior: Prior, x: Numbers) -> Any:
    """∫ P0(X ≤ u) du over u ≤ x, which is E (x - X)⁺."""
    return functions_of(prior).integral(np.asarray(x, float))


def least_density(prior: Prior, a: Numbers, b: Numbers) -> Any:
    """Return the least density on segments [a, b], or for mixtures and unknown priors a lower bound, or nearly so."""
    return functions_of(prior).least_density(np.asarray(a, float), np.asarray(b, float))


def integral_from(prior: Prior, start: Numbers, end: Numbers) -> Any:
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


def mean(prior: Prior) -> float:
    """Compute the mean of a prior, which may be infinite."""
    low, high = support(prior)
    if np.isfinite(high):
        return high - float(cdf_integral(prior, high))
    marks = landmarks(prior)
    start = low if np.isfinite(low) else float(np.median(marks))
    ends = np.concatenate([marks[marks > start], [np.inf]])
    tail = integral(lambda u: 1 - cdf(prior, u), np.concatenate([[start], ends[:-1]]), ends)
    return start + float(tail.sum()) - float(cdf_integral(prior, start))


OfPoints = Callable[[np.ndarray], Any]
OfSegments = Callable[[np.ndarray, np.ndarray], Any]


class Functions(NamedTuple):
    """Functions of a prior, of points in float64."""

    cdf: OfPoints
    integral: OfPoints  # of the cdf, up to a point
    least_density: OfSegments


@functools.singledispatch
def functions_of(prior: Any) -> Functions:
    """Evaluate a user's own prior; integrate its cdf by quadrature, and look for its least density on a grid."""
    low, high = support(prior)

    def cdf_at(x: Any) -> Any:
        return _evaluate(_cdf_of, prior, x)

    def integral_to(x: Any) -> Any:
        points, place = np.unique(np.clip(x, low, high), return_inverse=True)
        marks = landmarks(prior)
        ends = np.union1d(points, marks[(marks > low) & (marks < points[-1:].max(initial=-np.inf))])
        steps = integral(cdf_at, np.concatenate([[low], ends[:-1]]), ends)
        sums = np.cumsum(steps)[np.searchsorted(ends, points)]
        return sums[place].reshape(x.shape) + np.maximum(x - high, 0)

    def least(a: Any, b: Any) -> Any:
        bounded = np.isfinite(a) & np.isfinite(b)
        if not bounded.any():
            return np.zeros(np.broadcast_shapes(a.shape, b.shape))
        first = np.min(a, where=np.isfinite(a), initial=np.inf)
        last = np.max(b, where=np.isfinite(b), initial=-np.inf)
        grid = np.linspace(first, last, 4097)
        density = _evaluate(_density_of, prior, grid)
        found = _least_between(grid, np.minimum(density[1:], density[:-1]), a, b)
        return np.where(bounded & (a >= low) & (b <= high), found, 0.0)  # far out a density vanishes

    return Functions(cdf_at, integral_to, least)


def _on_interval(prior: Prior, cdf: OfPoints, integral: OfPoints, least: OfSegments) -> Functions:
    """Continue functions on a bounded support to the whole line."""
    low, high = support(prior)
    return Functions(
        lambda x: cdf(np.clip(x, low, high)),
        lambda x: integral(np.clip(x, low, high)) + np.maximum(x - high, 0),
        lambda a, b: np.where((a >= low) & (b <= high), least(a, b), 0.0),
    )


@functions_of.register
def _(prior: Uniform) -> Functions:
    low, high = support(prior)
    width = high - low
    return _on_interval(
        prior, lambda x: (x - low) / width, lambda x: (x - low) ** 2 / (2 * width), lambda a, b: 1 / width
    )


@functions_of.register
def _(prior: Beta) -> Functions:
    low, high = support(prior)
    a, b, width = prior.a, prior.b, high - low

    def integral_to(x: Any) -> Any:
        z = (x - low) / width
        return width * (z * special.betainc(a, b, z) - a / (a + b) * special.betainc(a + 1, b, z))

    def density(x: Any) -> Any:
        z = np.clip((x - low) / width, 0, 1)
        return np.exp(special.xlogy(a - 1, z) + special.xlog1py(b - 1, -z) - special.betaln(a, b)) / width

    # The density has one turning point at most: a valley if both shapes are below 1.
    turn = low + width * ((a - 1) / (a + b - 2) if a + b != 2 else 0.5)

    def least(start: Any, end: Any) -> Any:
        with np.errstate(over="ignore"):
            return np.minimum(np.minimum(density(start), density(end)), density(np.clip(turn, start, end)))

    return _on_interval(prior, lambda x: special.betainc(a, b, (x - low) / width), integral_to, least)


@functions_of.register
def _(prior: TruncatedNormal) -> Functions:
    (low, high), loc, scale = support(prior), float(prior.loc), float(prior.scale)

    def mass(start: Any, end: Any) -> Any:
        """Of the distribution before it is cut, without cancellation in either tail."""
        u, v = (start - loc) / scale, (end - loc) / scale
        return np.where(u > 0, special.ndtr(-u) - special.ndtr(-v), special.ndtr(v) - special.ndtr(u))

    whole = mass(low, high)

    def density(x: Any) -> Any:
        return np.exp(-(((x - loc) / scale) ** 2) / 2) / (scale * np.sqrt(2 * np.pi) * whole)

    def cdf_at(x: Any) -> Any:
        return np.clip(mass(low, x) / whole, 0, 1)

    def integral_to(x: Any) -> Any:
        if scale > high - low:  # nearly uniform: the two densities differ by little
            rise = density(low) * np.expm1(-(x - low) * (x + low - 2 * loc) / (2 * scale**2))
        else:
            rise = density(x) - density(low)
        return (x - loc) * cdf_at(x) + scale**2 * rise

    return _on_interval(prior, cdf_at, integral_to, lambda a, b: np.minimum(density(a), density(b)))


@functions_of.register
def _(prior: Histogram) -> Functions:
    edges, masses = np.asarray(prior.edges, float), np.asarray(prior.masses, float)
    widths, below = np.diff(edges), np.concatenate([[0], np.cumsum(masses)])
    at_edges = np.concatenate([[0], np.cumsum(widths * (below[:-1] + masses / 2))])

    def integral_to(x: Any) -> Any:
        k = np.clip(np.searchsorted(edges, x, side="right") - 1, 0, masses.size - 1)
        step = x - edges[k]
        return at_edges[k] + step * (below[k] + step * masses[k] / (2 * widths[k]))

    return _on_interval(
        prior,
        lambda x: np.interp(x, edges, below),
        integral_to,
        lambda a, b: _least_between(edges, masses / widths, a, b),
    )


@functions_of.register
def _(prior: Mixture) -> Functions:
    parts = [functions_of(component) for component in prior.components]

    def mix(name: str) -> Callable[..., Any]:
        return lambda *points: sum(
            w * getattr(part, name)(*points) for w, part in zip(prior.weights, parts, strict=True)
        )

    return Functions(*(mix(name) for name in Functions._fields))


# On [0, ∞) and with a scale of 1: the cdf, its integral, and the density, which falls.
_STANDARD: dict[type, tuple[OfPoints, OfPoints, OfPoints]] = {
    HalfNormal: (
        lambda z: special.erf(z / np.sqrt(2)),
        lambda z: z * special.erf(z / np.sqrt(2)) + np.sqrt(2 / np.pi) * np.expm1(-0.5 * z**2),
        lambda z: np.sqrt(2 / np.pi) * np.exp(-0.5 * z**2),
    ),
    Exponential: (lambda z: -np.expm1(-z), lambda z: z + np.expm1(-z), lambda z: np.exp(-z)),
    HalfCauchy: (
        lambda z: 2 / np.pi * np.arctan(z),
        lambda z: 2 / np.pi * (z * np.arctan(z) - 0.5 * np.log1p(z**2)),
        lambda z: 2 / np.pi / (1 + z**2),
    ),
}


@functions_of.register
def _(prior: HalfNormal | Exponential | HalfCauchy) -> Functions:
    (cdf, integral, density), scale = _STANDARD[type(prior)], float(prior.scale)

    def z(x: np.ndarray) -> Any:
        return np.maximum(x, 0) / scale

    def integral_to(x: np.ndarray) -> Any:
        with np.errstate(invalid="ignore"):
            return np.where(np.isinf(z(x)), np.inf, scale * integral(z(x)))

    return Functions(lambda x: cdf(z(x)), integral_to, lambda a, b: np.where(a >= 0, density(z(b)) / scale, 0.0))


@functions_of.register
def _(prior: LogNormal) -> Functions:
    loc, scale = float(prior.loc), float(prior.scale)

    def z(x: Any) -> Any:
        with np.errstate(divide="ignore"):
            return (np.log(np.maximum(x, 0)) - loc) / scale

    def density(x: Any) -> Any:
        inside = (x > 0) & np.isfinite(x)
        positive = np.where(inside, x, 1.0)
        return np.where(inside, np.exp(-0.5 * z(positive) ** 2) / np.sqrt(2 * np.pi) / (positive * scale), 0.0)

    return Functions(
        lambda x: special.ndtr(z(x)),
        lambda x: np.maximum(x, 0) * special.ndtr(z(x)) - np.exp(loc + 0.5 * scale**2) * special.ndtr(z(x) - scale),
        lambda a, b: np.minimum(density(a), density(b)),  # one hill, so it is least at an end
    )


def integral(function: OfPoints, start: np.ndarray, end: np.ndarray) -> Any:
    """Integrate over segments by the tanh-sinh rule, which bears singular ends and infinite ones."""
    from scipy import integrate  # slow to import, and needed by few

    found = integrate.tanhsinh(function, start, end, atol=1e-13, rtol=1e-12)
    whole = np.where(found.success | (found.error < 1e-8), found.integral, np.inf)
    finite = np.isfinite(start) & np.isfinite(end)
    first, last = np.where(finite, start, 0.0), np.where(finite, end, 0.0)
    short = finite & (last - first <= 1e-12 * (np.abs(first) + np.abs(last)))  # a few floats wide, too few for the rule
    return np.where(short, function(np.where(short, first, 0.5)) * (last - first), whole) if np.any(short) else whole


def landmarks(prior: Prior) -> np.ndarray:
    """Find where the mass of a prior lies, which quadrature from end to end of an unbounded support may miss."""
    shares = np.array([1e-9, 1e-4, 0.01, 0.25, 0.5, 0.75, 0.99, 1 - 1e-4, 1 - 1e-9])
    points = _evaluate(_quantile_of, prior, shares)
    return np.unique(points[np.isfinite(points)])


_quantile_of = jax.jit(lambda prior, p: prior.quantile(p))
_cdf_of = jax.jit(lambda prior, x: prior.cdf(x))
_density_of = jax.jit(lambda prior, x: prior.density(x))
_CHUNK = 512  # points that one compiled program serves, whatever their number


def _evaluate(function: Callable[[Prior, Any], Any], prior: Prior, x: np.ndarray) -> np.ndarray:
    """Evaluate a prior in float64, a chunk of points at a time."""
    chunks = np.pad(np.ravel(x), (0, -np.size(x) % _CHUNK), constant_values=0.5).reshape(-1, _CHUNK)
    with jax.enable_x64(True):
        values = [np.asarray(function(prior, jnp.asarray(chunk)), float) for chunk in chunks]
    return np.concatenate([*values, np.zeros(0)])[: np.size(x)].reshape(np.shape(x))


def _least_between(edges: np.ndarray, values: np.ndarray, a: np.ndarray, b: np.ndarray) -> Any:
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
