"""Rates: the step η_t that a gradient method takes in round t, counted from 1."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from dpconformal.pytree import register
from dpconformal.schedules import as_function_of_rounds, values_by_round
from dpconformal.validation import Numbers, Scalar, as_floats, check_float, is_traced, raise_at

__all__ = ["Custom", "Power", "Rate", "constant", "decaying", "inverse_sqrt"]


@runtime_checkable
class Rate(Protocol):
    """Anything with ``step(t)``. Numbers and plain functions are accepted too, see :func:`as_rate`."""

    def step(self, t: Numbers) -> Array:
        """Return η_t ≥ 0, as a share of the width of the support."""


@register()
@dataclass(frozen=True)
class Power:
    """
    η_t = scale · t^(-exponent).

    Parameters
    ----------
    scale : float
        The first step, at least 0.
    exponent : float
        How fast steps shrink, at least 0: 0 for a constant step, 1/2 for the classical one.

    Examples
    --------
    >>> Power(1.0, 0.5).step(4)
    Array(0.5, dtype=float...)
    """

    scale: Scalar = 1.0
    exponent: Scalar = 0.5

    def __post_init__(self) -> None:
        for name in ("scale", "exponent"):
            object.__setattr__(self, name, check_float(f"Power.{name}", getattr(self, name), 0.0))

    def step(self, t: Numbers) -> Array:
        """Return η_t."""
        t = as_floats(t, "t")
        scale, exponent = (jnp.asarray(value, t.dtype) for value in (self.scale, self.exponent))
        valid = (scale >= 0) & (exponent >= 0) & (t >= 1)  # only traced values get here unchecked
        return jnp.where(valid, scale * jnp.where(valid, t, 1) ** -exponent, jnp.nan)


@register(static=("function",))
@dataclass(frozen=True)
class Custom:
    """
    Any function t → η_t, written with operations that JAX can trace.

    Parameters
    ----------
    function : callable
        Maps a float array t ≥ 1 to steps of at least 0. Others give NaN thresholds inside ``jit``;
        :func:`dpconformal.replay` checks the rounds it runs before it runs them.

    Examples
    --------
    >>> Custom(lambda t: 1 / (10 + t)).step(10)
    Array(0.05, dtype=float...)
    """

    function: Callable[[Any], Any]

    def __post_init__(self) -> None:
        if not callable(self.function):
            raise ValueError(f"Custom.function = {self.function!r}: pass a function of t")

    def step(self, t: Numbers) -> Array:
        """Return η_t."""
        t = as_floats(t, "t")
        value = jnp.asarray(self.function(t), t.dtype)
        return jnp.where((value >= 0) & (t >= 1), value, jnp.nan)


def inverse_sqrt(scale: Scalar = 1.0) -> Power:
    """
    Return η_t = scale · t^(-1/2): O(√T) regret on any sequence.

    Parameters
    ----------
    scale : float
        The first step.

    Returns
    -------
    Power

    Examples
    --------
    >>> inverse_sqrt().step(100)
    Array(0.1, dtype=float...)
    """
    return Power(scale, 0.5)


def constant(value: Scalar) -> Power:
    """
    Return η_t = value: the coverage frequency is right up to O(1/(value · T)), and thresholds never settle.

    Parameters
    ----------
    value : float
        The step.

    Returns
    -------
    Power

    Examples
    --------
    >>> constant(0.05).step(100)
    Array(0.05, dtype=float...)
    """
    return Power(value, 0.0)


def decaying(epsilon: Scalar = 0.1, scale: Scalar = 1.0) -> Power:
    """
    Return η_t = scale · t^(-1/2-ε), the steps of Angelopoulos, Barber and Bates (2024).

    On any sequence the coverage frequency is right up to O(T^(ε-1/2)); on iid scores the thresholds converge to the
    true quantile.

    Parameters
    ----------
    epsilon : float
        ε in (0, 1/2).
    scale : float
        The first step.

    Returns
    -------
    Power

    Examples
    --------
    >>> decaying(0.1).step(100).round(4)
    Array(0.0631, dtype=float...)
    """
    epsilon = check_float("decaying.epsilon", epsilon, 0.0, 0.5, open_low=True, open_high=True)
    if is_traced(epsilon):
        epsilon = jnp.where((epsilon > 0) & (epsilon < 0.5), epsilon, jnp.nan)
    return Power(scale, 0.5 + epsilon)


def as_rate(rate: Any, owner: str) -> Rate:
    """Accept a rate, a number (a constant step) or a function t → η_t."""
    found = as_function_of_rounds(rate, Rate, Custom, "step")
    if found is not None:
        return found
    if isinstance(rate, (str, bytes, type)) or rate is None:
        raise ValueError(f"{owner}.rate = {rate!r}: pass a rate such as rates.decaying(), a number, or a function of t")
    return constant(check_float(f"{owner}.rate", rate, 0.0))


def check_steps(rate: Rate, first: int, last: int) -> None:
    """Evaluate a user's own rate on the rounds about to be run and refuse steps below 0."""
    if isinstance(rate, Power):
        return
    function = rate.function if isinstance(rate, Custom) else rate.step
    rounds, steps = values_by_round(rate, function, first, last)
    bad = ~((steps >= 0) & np.isfinite(steps))
    if bad.any():
        raise_at(f"rate's step of round t = {rounds[np.argmax(bad)]},", steps[bad][0], True, "must be at least 0")
