"""What the theorems need to know of the priors on [0, ∞), in closed form."""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from scipy import special

from dpconformal.priors import Exponential, HalfCauchy, HalfNormal, LogNormal
from dpconformal.theory.densities import least_density
from dpconformal.theory.moments import cdf, cdf_integral

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
