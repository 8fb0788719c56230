"""NumPyro's distributions by name and parameters."""

import inspect
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

_NOT_PARAMETERS = ("self", "validate_args")


def record_distribution(distribution: Any, record: Callable[[Any], Any]) -> dict[str, Any]:
    """Describe a distribution by its class and the arguments of its constructor."""
    name = type(distribution).__name__
    if _class(name) is not type(distribution):
        raise ValueError(f"the distribution {name} is none of NumPyro's own, and a file holds no code: it has no file")
    given = {key: getattr(distribution, key, None) for key in _parameters(type(distribution))}
    try:
        again = type(distribution)(**given)
        same = jax.tree.structure(again) == jax.tree.structure(distribution) and all(  # type: ignore[operator]
            map(np.array_equal, jax.tree.leaves(again), jax.tree.leaves(distribution))
        )
        described = {key: record(value) for key, value in given.items()}
    except (ValueError, TypeError, AttributeError):
        same = False
    if not same:
        raise ValueError(f"NumPyro's {name} cannot be told by numbers alone: save a Histogram that is close to it")
    return {"distribution": name, "parameters": described}


def make_distribution(name: Any, given: dict[str, Any]) -> Any:
    """Make a distribution."""
    found = _class(name)
    if found is None or set(given) != set(_parameters(found)):
        raise ValueError(f"NumPyro has no distribution {name!r} with the parameters {', '.join(map(str, given))}")
    # Shapes first: of a number that is a size, or of parameters that are broadcast, a distribution can be of any size.
    shapes = jax.eval_shape(lambda parameters: found(**parameters), given)
    if shapes.batch_shape or shapes.event_shape:
        raise ValueError(f"{name} with shape {shapes.shape()} is no distribution of one score")
    return found(**given)


def _parameters(kind: type) -> list[str]:
    return [name for name in inspect.signature(kind.__init__).parameters if name not in _NOT_PARAMETERS]  # type: ignore[misc]


def _class(name: Any) -> Any:
    try:
        import numpyro.distributions as known
    except ImportError as error:
        raise ImportError("this prior needs NumPyro: pip install '.[numpyro]' in a clone of dpconformal") from error
    found = vars(known).get(name) if isinstance(name, str) else None
    return found if isinstance(found, type) and issubclass(found, known.Distribution) else None
