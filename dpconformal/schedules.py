"""Schedules: the weight λ_t that the prior keeps in the belief of round t, counted from 1."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from dpconformal.pytree import register
from dpconformal.validation import Numbers, Scalar, as_floats, check_float, is_traced, raise_at

__all__ = ["Constant", "Custom", "Dirichlet", "ForDelay", "InverseSqrt", "Schedule", "discounted"]


@runtime_checkable
class Schedule(Protocol):
    """Anything with ``weight(t)``. Plain functions are accepted too, see :func:`as_schedule`."""

    def weight(self, t: Numbers) -> Array:
        """Return λ_t in (0, 1]; λ_1 = 1, for with no data the belief is the prior."""


def _check_rounds(t: Numbers) -> Float[Array, "..."]:
    """Convert rounds and check that they are counted from 1; traced ones that are not become NaN."""
    rounds = as_floats(t, "t")
    if is_traced(rounds):
        return jnp.where(rounds >= 1, rounds, jnp.nan)
    raise_at("t", rounds, ~(np.asarray(rounds) >= 1), "rounds are counted from 1")
    return rounds


def _one_in_round_1(t: Float[Array, "..."], weight: Array) -> Array:
    """Give the prior everything in round 1; NaN for traced weights out of range, which nobody could check."""
    weight = jnp.where((weight > 0) & (weight <= 1), weight, jnp.nan)
    return jnp.where(t > 1, weight, jnp.where(t == 1, 1, jnp.nan))


@register()
@dataclass(frozen=True)
class InverseSqrt:
    """
    λ_t = 1/√t: the paper's choice, with O(R√T) regret and nothing to tune.

    The weight of a Dirichlet process whose concentration √t + 1 grows with time; its thresholds come with regret and
    coverage bounds, but its credible intervals are not calibrated.

    Examples
    --------
    >>> InverseSqrt().weight(4)
    Array(0.5, dtype=float...)
    """

    def weight(self, t: Numbers) -> Array:
        """Return λ_t."""
        return jax.lax.rsqrt(_check_rounds(t))


@register()
@dataclass(frozen=True)
class Dirichlet:
    """
    λ_t = a/(a + t - 1): the posterior mean of a Dirichlet process with fixed concentration a.

    Parameters
    ----------
    concentration : float
        How many scores the prior is worth, above 0.

    Examples
    --------
    >>> Dirichlet(5.0).weight(6)
    Array(0.5, dtype=float...)
    """

    concentration: Scalar

    def __post_init__(self) -> None:
        a = check_float("Dirichlet.concentration", self.concentration, 0.0, open_low=True)
        object.__setattr__(self, "concentration", a)

    def weight(self, t: Numbers) -> Array:
        """Return λ_t."""
        t = _check_rounds(t)
        a = jnp.asarray(self.concentration, t.dtype)
        a = jnp.where(a > 0, a, jnp.nan)  # only a traced value gets here unchecked
        return a / (a + (t - 1))  # in this order it is 1 in round 1, to the last bit


@register()
@dataclass(frozen=True, init=False)
class Constant:
    """
    λ_t = λ from the second round on, for a belief with a discount.

    Parameters
    ----------
    weight : float
        λ in (0, 1].

    Examples
    --------
    >>> Constant(0.25).weight(100)
    Array(0.25, dtype=float...)
    """

    value: Scalar

    def __repr__(self) -> str:
        return f"Constant(weight={self.value!r})"

    def __init__(self, weight: Scalar) -> None:
        object.__setattr__(self, "value", check_float("Constant.weight", weight, 0.0, 1.0, open_low=True))

    def weight(self, t: Numbers) -> Array:
        """Return λ_t."""
        t = _check_rounds(t)
        return _one_in_round_1(t, jnp.asarray(self.value, t.dtype))


@register()
@dataclass(frozen=True)
class ForDelay:
    """
    λ_t = κ/(κ + √t - 1) with κ = √(1 + 2h): for scores that become known h rounds late.

    The weight of a Dirichlet process whose concentration is κ(√t + 1). With a uniform prior the regret is
    O(R√((1 + h)T)), where that of 1/√t is O(R(1 + h)√T); see :func:`dpconformal.theory.delayed_regret_bound`. Without a
    delay it is 1/√t, up to rounding.

    Parameters
    ----------
    delay : float
        h, from 0.

    Examples
    --------
    >>> ForDelay(4).weight(16)
    Array(0.5, dtype=float...)
    """

    delay: Scalar

    def __post_init__(self) -> None:
        object.__setattr__(self, "delay", check_float("ForDelay.delay", self.delay, 0.0))

    def weight(self, t: Numbers) -> Array:
        """Return λ_t."""
        t = _check_rounds(t)
        late = jnp.asarray(self.delay, t.dtype)
        kappa = jnp.sqrt(1 + 2 * jnp.where(late >= 0, late, jnp.nan))
        return kappa / (kappa + (jnp.sqrt(t) - 1))  # in this order it is 1 in round 1, to the last bit


@register(static=("function",))
@dataclass(frozen=True)
class Custom:
    """
    Any function t → λ_t, written with operations that JAX can trace.

    Parameters
    ----------
    function : callable
        Maps a float array t ≥ 2 to weights in (0, 1]; in round 1 the prior has all the weight. Weights outside
        give NaN thresholds inside ``jit``; :func:`dpconformal.replay` checks the rounds it runs before it runs them.

    Examples
    --------
    >>> Custom(lambda t: t**-0.25).weight(16)
    Array(0.5, dtype=float...)
    """

    function: Callable[[Any], Any]

    def __post_init__(self) -> None:
        if not callable(self.function):
            raise ValueError(f"Custom.function = {self.function!r}: pass a function of t")
        try:
            jax.eval_shape(self.function, jax.ShapeDtypeStruct((), jnp.result_type(float)))
        except TypeError as error:  # what JAX raises where a traced value is asked for its number
            raise ValueError(
                f"schedule = {self.function!r} fails on a traced t ({type(error).__name__}): write it with jax.numpy, "
                "as in lambda t: 1 / jnp.sqrt(t), and jnp.where in the place of if"
            ) from error

    def weight(self, t: Numbers) -> Array:
        """Return λ_t."""
        t = _check_rounds(t)
        return _one_in_round_1(t, jnp.asarray(self.function(t), t.dtype))


def discounted(beta: Scalar) -> Constant:
    """
    Return the constant weight that suits a discount β: λ = √(1-β) / (β + √(1-β)).

    With it and a uniform prior on [0, R] the discounted regret stays below R/√(1-β) + o(R).

    Parameters
    ----------
    beta : float
        The discount, in (0, 1).

    Returns
    -------
    Constant

    Examples
    --------
    >>> round(discounted(0.99).value, 4)
    0.0917
    """
    beta = check_float("discounted.beta", beta, 0.0, 1.0, open_low=True, open_high=True)
    root = (1 - beta) ** 0.5
    return Constant(root / (beta + root))


def as_schedule(schedule: Any) -> Schedule:
    """Accept a schedule or a plain function t → λ_t."""
    found = as_function_of_rounds(schedule, Schedule, Custom, "weight")
    if found is None:
        what = "pass a schedule such as schedules.InverseSqrt(), or a function of t"
        raise ValueError(f"schedule = {schedule!r}: {what}")
    return found


def as_function_of_rounds(given: Any, protocol: type, custom: type, method: str) -> Any:
    """Accept an object of a protocol, or a function of t, which becomes a ``custom``; return None for anything else."""
    if isinstance(given, type) or not (isinstance(given, protocol) or callable(given)):
        return None
    if not isinstance(given, protocol):
        return custom(given)
    # Of an object that JAX cannot look into, its class not being registered, the method alone can be used.
    is_opaque = any(leaf is given for leaf in jax.tree.leaves(given))
    return custom(getattr(given, method)) if is_opaque else given


def check_weights(schedule: Schedule, first: int, last: int) -> None:
    """Evaluate a user's own schedule on the rounds about to be run and refuse weights outside (0, 1]."""
    if isinstance(schedule, (InverseSqrt, Dirichlet, Constant, ForDelay)):
        return
    function = schedule.function if isinstance(schedule, Custom) else schedule.weight
    rounds, weights = values_by_round(schedule, function, max(first, 2), last)
    bad = ~((weights > 0) & (weights <= 1))
    if bad.any():
        t = int(rounds[np.argmax(bad)])
        raise ValueError(f"schedule gives round t = {t} the weight {weights[bad][0]}: it must lie in (0, 1]")


def values_by_round(owner: Any, function: Callable[[Any], Any], first: int, last: int) -> tuple[np.ndarray, np.ndarray]:
    """Evaluate a user's function of t on some rounds; return rounds and values, none where they are being traced."""
    rounds = np.arange(first, 0 if is_traced(owner) else last + 1)
    if not rounds.size:
        return rounds, np.zeros(0)
    with jax.ensure_compile_time_eval():  # concrete also where the caller is being traced
        values = jnp.asarray(function(as_floats(rounds)))
    if is_traced(values):  # the function closes over a traced value
        return rounds[:0], np.zeros(0)
    return rounds, np.broadcast_to(np.asarray(values), rounds.shape)
