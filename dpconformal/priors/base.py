"""What a prior is, what the priors of this package share, and the inversion of a cdf by root finding."""

from collections.abc import Callable
from typing import ClassVar, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float

from dpconformal.validation import (
    NARROWEST,
    WIDEST,
    Numbers,
    Scalar,
    as_floats,
    as_levels,
    check_float,
    check_interval,
)

Function = Callable[[Array], Array]


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

    def cdf(self, x: Numbers) -> Array:
        """P0(X ≤ x), for any real x."""

    def quantile(self, p: Numbers) -> Array:
        """Smallest x of the support with cdf(x) ≥ p, for p in [0, 1]."""

    def density(self, x: Numbers) -> Array:
        """Density at x; 0 outside the support."""


class PriorBase:
    """
    Checks arguments, converts them, and answers at the ends of the support and outside of it.

    A subclass says what holds inside. Its ``_parameters`` are in the dtype to work in: first the ends of the support,
    then whatever else its ``_cdf``, ``_quantile`` and ``_density`` take.
    """

    closed_form: ClassVar[bool] = False
    _parameters: ClassVar[Callable[..., tuple[Array, ...]]]  # of an array of that dtype
    _cdf: ClassVar[Callable[..., Array]]  # at any x, with the parameters
    _quantile: ClassVar[Callable[..., Array]]  # for 0 < p < 1
    _density: ClassVar[Callable[..., Array]]  # inside the support

    def cdf(self, x: Numbers) -> Array:
        """P0(X ≤ x)."""
        x = as_floats(x)
        return self._cdf(x, *self._parameters(x))

    def quantile(self, p: Numbers) -> Array:
        """Smallest x with cdf(x) ≥ p."""
        p = as_levels(p, name="p")
        # Root finding is a loop, which is worth a program of its own. A closed form is a few operations.
        return complete_quantile(self, p) if self.closed_form else _compiled_quantile(self, p)

    def density(self, x: Numbers) -> Array:
        """Density at x."""
        x = as_floats(x)
        low, high, *others = self._parameters(x)
        inside = jnp.where(jnp.isnan(x), jnp.nan, self._density(x, low, high, *others))
        return jnp.where((x < low) | (x > high), 0, inside)


def complete_quantile(prior: PriorBase, p: Array) -> Array:
    """Complete a quantile function: exact ends, rounding undone, NaN for what is no probability."""
    low, high, *others = prior._parameters(p)
    inside = (p > 0) & (p < 1)
    x = prior._quantile(jnp.where(inside, p, 0.5), low, high, *others)
    x = jnp.minimum(jnp.maximum(x, low), high)
    return jnp.where(inside, x, jnp.where(p == 0, low, jnp.where(p == 1, high, jnp.nan)))


_compiled_quantile = jax.jit(complete_quantile)


class OnInterval(PriorBase):
    """A prior on an interval [low, high], without further parameters."""

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

    def _parameters(self, like: Array) -> tuple[Array, ...]:
        return self._ends(like)

    def _ends(self, like: Array, valid: Bool[Array, ""] | bool = True) -> tuple[Array, Array]:
        """Return the ends in the dtype to work in; NaN for traced parameters out of range, which nobody could check."""
        low, high = jnp.asarray(self.low, like.dtype), jnp.asarray(self.high, like.dtype)
        valid = valid & (high > low)
        return jnp.where(valid, low, jnp.nan), jnp.where(valid, high, jnp.nan)


def check_scale(name: str, value: Scalar) -> Scalar:
    """Check a scale: above 0, and its square and its reciprocal far from where numbers end."""
    value = check_float(name, value, 0.0, open_low=True)
    return check_float(name, value, NARROWEST, WIDEST, hint="rescale the scores")


def invert_cdf(
    cdf: Function, density: Function, p: Float[Array, "*n"], low: Float[Array, "*#n"], high: Float[Array, "*#n"]
) -> Float[Array, "*n"]:
    """
    Solve cdf(x) = p for x in [low, high] by Newton steps inside a shrinking bracket.

    The answers are monotone in p within a call, to the last bit: thresholds must not cross by rounding. They have
    derivatives by p and by whatever ``cdf`` closes over.
    """
    stop = lax.stop_gradient
    p, low, high = jnp.broadcast_arrays(p, low, high)
    x = stop(_bracketed_newton(cdf, density, stop(p), stop(low), stop(high)))
    order = jnp.argsort(stop(p).ravel())
    x = jnp.zeros_like(x.ravel()).at[order].set(lax.cummax(x.ravel()[order])).reshape(x.shape)
    # A step of size zero, whose derivative is that of the implicit function. (lax.custom_root would ask
    # for derivatives by every parameter of the cdf, and betainc has none by its shapes.)
    slope = stop(density(x))
    safe = jnp.where(slope > 0, slope, 1)
    residual = cdf(x) - p
    return x - jnp.where(slope > 0, (residual - stop(residual)) / safe, 0)


def _bracketed_newton(cdf: Function, density: Function, p: Array, low: Array, high: Array) -> Array:
    """
    Find the root without derivatives.

    A step that would leave the bracket, or that does not at least halve the step before it, is replaced by a bisection.
    So convergence never depends on the distribution's shape.
    """
    tiny = jnp.finfo(p.dtype).eps
    # Bisection alone, down to the smallest number: only a density with a pole comes near it.
    limit = jnp.finfo(p.dtype).bits - jnp.finfo(p.dtype).minexp

    def unfinished(carry: tuple[Array, ...]) -> Array:
        step, x, _, _, rounds = carry
        return (rounds < limit) & jnp.any(jnp.abs(step) > tiny * jnp.abs(x))

    def improve(carry: tuple[Array, ...]) -> tuple[Array, ...]:
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
    carry: tuple[Array, ...] = (high - low, start, low, high, jnp.zeros((), jnp.int32))
    return lax.while_loop(unfinished, improve, carry)[1]
