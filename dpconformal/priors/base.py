"""What a prior is; ends of an interval, and quantiles of a distribution whose cdf has no closed-form inverse."""

from collections.abc import Callable
from typing import Any, Protocol, runtime_checkable

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float

from dpconformal.validation import Numbers, Scalar, check_float, check_interval


@runtime_checkable
class Prior(Protocol):
    """
    A distribution P0 on an interval, with a density that is positive inside it.

    ``quantile(cdf(x))`` gives x back as closely as the floating-point value ``cdf(x)`` determines it:
    where the density is p0, half a unit in the last place of the cdf is worth eps/(2 p0) in x.

    A class attribute ``closed_form = True`` says that quantiles are cheap. Without it a replay asks for no more of
    them than it must.
    """

    @property
    def support(self) -> tuple[Scalar, Scalar]:
        """Ends of the interval."""
        ...

    def cdf(self, x: Numbers) -> Array:
        """P0(X ≤ x), for any real x."""
        ...

    def quantile(self, p: Numbers) -> Array:
        """Smallest x of the support with cdf(x) ≥ p, for p in [0, 1]."""
        ...

    def density(self, x: Numbers) -> Array:
        """Density at x; 0 outside the support."""
        ...


Function = Callable[[Array], Array]


class OnInterval:
    """What priors on an interval [low, high] share."""

    low: Scalar
    high: Scalar

    def __post_init__(self) -> None:
        owner = type(self).__name__
        for name in ("low", "high"):
            object.__setattr__(self, name, check_float(f"{owner}.{name}", getattr(self, name)))
        check_interval(owner, self.low, self.high)

    @property
    def support(self) -> tuple[Scalar, Scalar]:
        """Ends of the interval."""
        return self.low, self.high

    def _ends(self, like: Array, valid: Bool[Array, ""] | bool = True) -> tuple[Array, Array]:
        """Return the ends in the dtype to work in; NaN for traced parameters out of range, which nobody could check."""
        low, high = jnp.asarray(self.low, like.dtype), jnp.asarray(self.high, like.dtype)
        valid = valid & (high > low)
        return jnp.where(valid, low, jnp.nan), jnp.where(valid, high, jnp.nan)


def invert_cdf(
    cdf: Function,
    density: Function,
    p: Float[Array, "*n"],
    low: Float[Array, "*#n"],
    high: Float[Array, "*#n"],
) -> Float[Array, "*n"]:
    """
    Solve cdf(x) = p for x in [low, high] by Newton steps inside a shrinking bracket.

    A step that would leave the bracket, or that does not at least halve the step before it, is
    replaced by a bisection, so convergence never depends on the distribution's shape. The answers
    are monotone in p within a call, to the last bit: thresholds must not cross by rounding.

    Returns: The quantiles. Differentiable in p and in whatever ``cdf`` closes over, by the implicit function theorem.
    """
    stop = lax.stop_gradient
    p, low, high = jnp.broadcast_arrays(p, low, high)
    x = _monotone(stop(p), stop(_bracketed_newton(cdf, density, stop(p), stop(low), stop(high))))
    # A step of size zero, whose derivative is that of the implicit function. (lax.custom_root would ask
    # for derivatives by every parameter of the cdf, and betainc has none by its shapes.)
    slope = stop(density(x))
    safe = jnp.where(slope > 0, slope, 1)
    residual = cdf(x) - p
    return x - jnp.where(slope > 0, (residual - stop(residual)) / safe, 0)


def _bracketed_newton(cdf: Function, density: Function, p: Array, low: Array, high: Array) -> Array:
    tiny = jnp.finfo(p.dtype).eps
    # Bisection alone, down to the smallest number: only a density with a pole comes near it.
    limit = jnp.finfo(p.dtype).bits - jnp.finfo(p.dtype).minexp

    def unfinished(carry: Any) -> Array:
        step, x, _, _, rounds = carry
        return (rounds < limit) & jnp.any(jnp.abs(step) > tiny * jnp.abs(x))

    def improve(carry: Any) -> Any:
        step, x, low, high, rounds = carry
        error = cdf(x) - p
        low = jnp.where(error < 0, x, low)
        high = jnp.where(error < 0, high, x)
        newton = error / density(x)
        target = x - newton
        accept = (target > low) & (target < high) & (2 * jnp.abs(newton) <= jnp.abs(step))
        middle = low + (high - low) / 2
        following = jnp.where(error == 0, x, jnp.where(accept, target, middle))
        # Converged elements stay, so that the others' rounds cannot move them.
        following = jnp.where(jnp.abs(step) > tiny * jnp.abs(x), following, x)
        following = jnp.where(jnp.isnan(error), jnp.nan, following)  # parameters that make no sense
        return following - x, following, low, high, rounds + 1

    start = low + (high - low) / 2
    carry = (high - low, start, low, high, jnp.zeros((), jnp.int32))
    return lax.while_loop(unfinished, improve, carry)[1]


def _monotone(p: Array, x: Array) -> Array:
    flat, order = p.ravel(), jnp.argsort(p.ravel())
    rising = lax.cummax(x.ravel()[order])
    return jnp.zeros_like(flat).at[order].set(rising).reshape(x.shape)


def within_support(p: Array, low: Array, high: Array, solve: Function) -> Array:
    """Complete a quantile function: exact ends, rounding undone, NaN for what is no probability."""
    inside = (p > 0) & (p < 1)
    x = solve(jnp.where(inside, p, 0.5))
    x = jnp.minimum(jnp.maximum(x, low), high)
    return jnp.where(inside, x, jnp.where(p == 0, low, jnp.where(p == 1, high, jnp.nan)))


def outside_is_zero(x: Array, low: Array, high: Array, density: Array) -> Array:
    """Complete a density: zero outside the support, NaN at NaN."""
    return jnp.where((x < low) | (x > high), 0, jnp.where(jnp.isnan(x), jnp.nan, density))
