"""
The level at which a Dirichlet process's mean must be read so that a quantile is not underestimated.

F(x) has the posterior Beta(M·G(x), M·(1 - G(x))), M being concentration plus scores and G the mean. So the posterior of
the quantile q_α is known too: P(q_α ≤ x) = P(F(x) ≥ α), which depends on x only through G(x). To invert it in x is to
solve for a level g once, and to read G at it: all of the posterior of q_α is G's quantiles at other levels.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

_NODES = 24  # of an interpolating polynomial
_FEW = 192  # totals that are solved for one by one
_PRECISION = 1e-13


def exceedance(level: Any, mean: Any, total: Any) -> Any:
    """
    Return the posterior probability that F(x) reaches a level: P(q_level ≤ x).

    Returns: In float64, on the host. Where F(x) is 0 or 1 for certain, so is the answer.
    """
    level, mean, total = (np.asarray(part, np.float64) for part in (level, mean, total))
    from scipy import special  # slow to import, and needed by few

    value = special.betaincc(total * mean, total * (1 - mean), level)
    return np.where(level <= 0, 1.0, np.where(mean >= 1, 1.0, np.where(mean <= 0, 0.0, value)))[()]


def credible_level(level: Any, confidence: Any, total: Any) -> Any:
    """
    Solve for the level g at which P(F ≥ α) is the confidence where the mean of F is g.

    Returns: g in float64, on the host; NaN where an argument is out of range, as it may be inside ``jit``.
    """
    # Not imported with the package: a third of a second.
    from scipy.optimize import elementwise

    parts = np.broadcast_arrays(*(np.asarray(part, np.float64) for part in (level, confidence, total)))
    level, confidence, total = parts
    valid = (level > 0) & (level < 1) & (confidence > 0) & (confidence < 1) & (total > 0) & np.isfinite(total)
    inner = [part[valid] for part in parts]
    answer = np.where((level == 0) | (level == 1), level, np.nan)
    answer = np.where((total > 0) & (confidence > 0) & (confidence < 1), answer, np.nan)
    if inner[0].size:
        ends = np.zeros_like(inner[0]), np.ones_like(inner[0])
        answer[valid] = elementwise.find_root(_shortfall, ends, args=tuple(inner)).x
    return answer[()]


def _shortfall(mean: np.ndarray, level: np.ndarray, confidence: np.ndarray, total: np.ndarray) -> Any:
    return exceedance(level, mean, total) - confidence


def credible_levels(levels: np.ndarray, confidence: float, totals: np.ndarray) -> np.ndarray:
    """
    Solve for the credible levels of many rounds.

    √M·(g - α) is a smooth function of 1/√M, so that polynomials through a few of its points give millions of others.
    """
    if levels.ndim == 2 or totals.size <= _FEW:
        answer = credible_level(levels, confidence, totals[:, None])
    else:
        answer = np.empty((totals.size, levels.size))
        for column, level in zip(answer.T, levels, strict=True):
            _fill(column, level, confidence, totals)
    return _in_order(levels, answer)


def _in_order(levels: np.ndarray, answer: np.ndarray) -> np.ndarray:
    """Keep answers in the order of their levels, which may be closer together than the solution is exact."""
    order = np.broadcast_to(np.argsort(levels, axis=-1), answer.shape)
    risen = np.maximum.accumulate(np.take_along_axis(answer, order, -1), axis=-1)
    np.put_along_axis(answer, order, risen, -1)
    return answer


def _fill(column: np.ndarray, level: float, confidence: float, totals: np.ndarray) -> None:
    """Interpolate, or halve the rounds and try again where a polynomial is not good enough."""
    usable = 0 < level < 1 and 0 < confidence < 1 and totals[0] > 0
    if totals.size <= _FEW or not usable:
        column[:] = credible_level(level, confidence, totals)
        return

    def scaled(root: np.ndarray) -> np.ndarray:
        return (credible_level(level, confidence, root**-2) - level) / root

    ends = totals[[-1, 0]] ** -0.5
    polynomial = np.polynomial.Chebyshev.interpolate(scaled, _NODES - 1, ends)
    between = np.cos(np.arange(1, _NODES) * np.pi / _NODES)  # where such a polynomial is worst
    tried = (ends[1] - ends[0]) * (between + 1) / 2 + ends[0]
    if np.all(np.abs(polynomial(tried) - scaled(tried)) * tried <= _PRECISION):
        roots = totals**-0.5
        column[:] = level + polynomial(roots) * roots
    else:
        half = int(np.searchsorted(totals, np.sqrt(totals[0] * totals[-1])))
        half = min(max(half, 1), totals.size - 1)
        _fill(column[:half], level, confidence, totals[:half])
        _fill(column[half:], level, confidence, totals[half:])


def credible_level_in_jit(levels: Array, confidence: Any, totals: Array) -> Array:
    """
    Solve for credible levels where values are traced: the host is called back, for float32 would not do.

    Returns: In the dtype of the levels; of their shape, or (T, A). No gradients.
    """
    given = jax.lax.stop_gradient((levels, jnp.asarray(confidence), totals))
    if totals.ndim:
        shape = jax.ShapeDtypeStruct((totals.shape[0], levels.shape[-1]), levels.dtype)
        return jax.pure_callback(_rounds_on_host, shape, *given, vmap_method="sequential")
    shape = jax.ShapeDtypeStruct(levels.shape, levels.dtype)
    host = functools.partial(_on_host, levels.ndim)
    return jax.pure_callback(host, shape, *given, vmap_method="broadcast_all")


def _rounds_on_host(levels: Any, confidence: Any, totals: Any) -> np.ndarray:
    answer = credible_levels(np.asarray(levels, float), float(confidence), np.asarray(totals, float))
    return answer.astype(np.asarray(levels).dtype)


def _on_host(axes: int, levels: Any, confidence: Any, totals: Any) -> np.ndarray:
    """Solve for a whole batch at once: leading axes are those of vmap, the last few those of the levels."""
    given = np.asarray(levels)
    batch = given.shape[: given.ndim - axes]
    flat = given.astype(float).reshape((*batch, -1))
    confidence, totals = (np.asarray(part, float).reshape((*batch, 1)) for part in (confidence, totals))
    answer = _in_order(flat, np.array(credible_level(flat, confidence, totals)))
    return answer.reshape(given.shape).astype(given.dtype)
