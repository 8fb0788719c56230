"""Learners, priors, schedules and rates as JSON beside arrays, and back: no code, and every number to the last bit."""

import dataclasses
import inspect
import itertools
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from dpconformal import baselines, beliefs, compositions, forecasts, priors, rates, schedules
from dpconformal.compositions.tree import as_tree, size_of

LEARNERS = (
    *(beliefs.Exact, beliefs.Quantized, beliefs.ERM, beliefs.SplitConformal),
    *(beliefs.SlidingERM, beliefs.DiscountedERM, beliefs.NExCP),
    *(baselines.OGD, baselines.SFOGD, baselines.SAOCP, baselines.ACI, baselines.DtACI, baselines.AgACI),
    *(baselines.PID, baselines.MVP, baselines.MultiOGD, baselines.MultiMVP),
    *(compositions.Credible, compositions.Corrected, compositions.Aggregate, compositions.Hierarchical),
    *(compositions.Recalibrated, compositions.Rearranged),
)
FORECASTS = (forecasts.AutoRegression, forecasts.LocalLevel, forecasts.Seasonal, forecasts.Given)
PRIORS = (
    *(priors.Uniform, priors.Beta, priors.TruncatedNormal, priors.Histogram, priors.Mixture),
    *(priors.HalfNormal, priors.Exponential, priors.LogNormal, priors.HalfCauchy),
)
SCHEDULES = (schedules.InverseSqrt, schedules.Dirichlet, schedules.Constant, schedules.ForDelay)
# The only classes that a file can name. All are frozen dataclasses whose constructors check what they are given.
CLASSES: dict[str, type] = {
    **{kind.__name__: kind for kind in LEARNERS},
    **{f"forecasts.{kind.__name__}": kind for kind in FORECASTS},
    **{f"priors.{kind.__name__}": kind for kind in PRIORS},
    **{f"schedules.{kind.__name__}": kind for kind in SCHEDULES},
    "rates.Power": rates.Power,
}
# Names from before a class changed its meaning: what was saved under them cannot be carried on from.
RETIRED = {
    "PID": "it holds a PID of before its steps and its integrator were those of the authors' code, and what that one "
    "learned means nothing to the present one: make a PID and replay the scores",
}
CLASSES["PID 2"] = CLASSES.pop("PID")
_NAMES = {kind: name for name, kind in CLASSES.items()}
# A user's own function cannot be kept. What it says at some rounds can, to know it again.
_FUNCTIONS: dict[str, tuple[type, str]] = {
    "schedules.Custom": (schedules.Custom, "weight"),
    "rates.Custom": (rates.Custom, "step"),
}
# Bounds of what a short header can ask for.
MOST_PARTS, DEEPEST, MOST_IN_PATHS = 500, 32, 2**22
_PARTS = {"class", "distribution", "function"}
_ROUNDS = (2, 3, 5, 10, 100, 1000, 10_000, 1_000_000)
_NOT_PARAMETERS = ("self", "validate_args")


def describe(value: Any, arrays: list[np.ndarray]) -> Any:
    """Describe a learner, or a part of one, as JSON; append its arrays to the list."""
    if value is None or isinstance(value, (bool, str)):
        return value
    if isinstance(value, (int, float)) and not isinstance(value, np.generic):
        return value if math.isfinite(value) else {"float": str(value)}
    if isinstance(value, jax.core.Tracer):
        raise ValueError("the learner is being traced: save it outside jit, vmap and grad")
    if isinstance(value, compositions.Hierarchical):
        _check_tree(value.tree)
    if isinstance(value, (np.ndarray, np.generic, jax.Array)):
        arrays.append(np.asarray(value))
        return {"jax" if isinstance(value, jax.Array) else "numpy": len(arrays) - 1}
    if isinstance(value, (tuple, list)):
        return {"tuple": [describe(part, arrays) for part in value]}
    if type(value) in _NAMES:
        fields = {field.name: describe(getattr(value, field.name), arrays) for field in dataclasses.fields(value)}
        return {"class": _NAMES[type(value)], "fields": fields}
    if isinstance(value, priors.NumPyroPrior):
        return _describe_distribution(value.distribution, arrays)
    for name, (kind, method) in _FUNCTIONS.items():
        if isinstance(value, kind):
            return {"function": name, "values": [describe(said, arrays) for said in _sample(value, method)]}
    if hasattr(value, "arg_constraints"):  # a distribution within another
        return _describe_distribution(value, arrays)
    raise ValueError(
        f"{type(value).__name__} is no class of dpconformal's, and a file holds no code: keep its state by "
        "your own means"
    )


def check_extent(entry: Any) -> None:
    """Refuse a record of more parts, or nested deeper, than any use needs: each part takes much more than its text."""
    parts, layer = 0, [entry]
    for _ in range(DEEPEST):
        parts += sum(isinstance(one, dict) and not one.keys().isdisjoint(_PARTS) for one in layer)
        if parts > MOST_PARTS:
            raise ValueError(
                f"it has more than {MOST_PARTS:,} learners, priors, schedules and rates: a file holds no more"
            )
        inner = [one.values() if isinstance(one, dict) else one for one in layer if isinstance(one, (dict, list))]
        layer = [part for one in inner for part in one]
        if not layer:
            return
    raise ValueError(f"it is nested deeper than the {DEEPEST} layers that a file may have")


def make_from(entry: Any, arrays: list[Any], function: Callable[[Any], Any] | None = None) -> Any:
    """Make the object that a record describes."""
    if entry is None or isinstance(entry, (bool, str, int, float)):
        return entry
    match entry:
        case {"float": str(text), **rest} if not rest and text in ("inf", "-inf", "nan"):
            return float(text)
        case {"numpy": int(k), **rest} if not rest and 0 <= k < len(arrays):
            return take_array(arrays, k).copy()
        case {"jax": int(k), **rest} if not rest and 0 <= k < len(arrays):
            return as_jax(take_array(arrays, k), "a hyperparameter")
        case {"tuple": list(parts), **rest} if not rest:
            return tuple(make_from(part, arrays, function) for part in parts)
        case {"class": str(name), "fields": dict(fields), **rest} if not rest and name in CLASSES:
            return _make_instance(
                CLASSES[name], {key: make_from(part, arrays, function) for key, part in fields.items()}
            )
        case {"class": str(name), **rest} if name in RETIRED:
            raise ValueError(RETIRED[name])
        case {"distribution": str(name), "parameters": dict(given), **rest} if not rest:
            return _make_distribution(name, {key: make_from(part, arrays) for key, part in given.items()})
        case {"function": str(name), "values": list(values), **rest} if not rest and name in _FUNCTIONS:
            return _restore_function(name, [make_from(value, arrays) for value in values], function)
    raise ValueError(f"{str(entry)[:80]} describes nothing that dpconformal has")


def take_array(arrays: list[Any], k: int) -> np.ndarray:
    """Take an array out of the list; none may be used twice, or a short header could ask for many copies."""
    found, arrays[k] = arrays[k], None
    if found is None:
        raise ValueError(f"array {k} is in two places")
    return found


def _check_tree(tree: Any) -> None:
    """Refuse a tree that is not written out, or whose paths from the root take more than files are for."""
    if not isinstance(tree, tuple):
        raise ValueError(f"Hierarchical.tree = {tree!s:.40}: a file lists the parent of each group")
    nodes, depth = size_of(as_tree(tree))
    if nodes * depth > MOST_IN_PATHS:
        raise ValueError(
            f"Hierarchical.tree has {nodes:,} nodes and a depth of {depth:,}: in a file their product is at most "
            f"{MOST_IN_PATHS:,}"
        )


def _check_broadcast(given: dict[str, Any]) -> None:
    """Refuse arrays of one object that stand for many more numbers together than they have."""
    shapes = {name: value.shape for name, value in given.items() if isinstance(value, (np.ndarray, jax.Array))}
    for (one, first), (other, second) in itertools.combinations(shapes.items(), 2):
        try:
            joint = math.prod(np.broadcast_shapes(first, second))
        except ValueError:  # most are not meant to go together
            continue
        if joint > math.prod(first) + math.prod(second):
            raise ValueError(f"{one} and {other} have shapes {first} and {second}, which make {joint:,} numbers")


def _make_instance(kind: Any, given: dict[str, Any]) -> Any:
    """Construct, which checks, and then put every number in its place as it was: constructors normalise again."""
    defaults = {field.name: field.default for field in dataclasses.fields(kind)}
    unknown = next((name for name in given if name not in defaults), None)
    if unknown is not None:
        raise ValueError(f"{kind.__name__} has no {unknown}")
    _check_broadcast(given)
    if kind is compositions.Hierarchical:
        _check_tree(given.get("tree"))
    # What a later version adds has a default, or what it was before, so that older files go on being read.
    if kind is beliefs.Quantized or (kind is compositions.Hierarchical and given.get("bins") is not None):
        given = {"rounding": "nearest", **given}
    values = defaults | given
    missing = next((name for name, value in values.items() if value is dataclasses.MISSING), None)
    if missing is not None:
        raise ValueError(f"{kind.__name__} has no {missing} in this file")
    made = kind(*values.values())
    for name, value in given.items():
        if isinstance(value, (np.ndarray, jax.Array)):
            normal = np.asarray(getattr(made, name))
            if normal.shape != value.shape or not np.allclose(normal, value, rtol=1e-6, atol=0):
                raise ValueError(f"{kind.__name__}.{name} is not as its constructor leaves it")
            object.__setattr__(made, name, value)
    return made


def _sample(custom: Any, method: str) -> list[float]:
    """Return what a user's function says at some rounds."""
    return [float(getattr(custom, method)(float(t))) for t in _ROUNDS]


def _restore_function(name: str, values: list[Any], function: Callable[[Any], Any] | None) -> Any:
    """Take the user's function again, and hold it to what the first one said."""
    if function is None:
        raise ValueError(
            f"it was saved with a {name.split('.')[0][:-1]} of your own: pass it as load(path, function=...)"
        )
    kind, method = _FUNCTIONS[name]
    custom = kind(function)
    if len(values) != len(_ROUNDS) or not all(isinstance(value, float) for value in values):
        raise ValueError("the function's values are not there")
    for t, said, was in zip(_ROUNDS, _sample(custom, method), values, strict=True):
        if not np.isclose(said, was, rtol=1e-5, atol=0, equal_nan=True):
            raise ValueError(f"function gives {said:g} in round {t}, and the one it was saved with gave {was:g}")
    return custom


def _describe_distribution(distribution: Any, arrays: list[np.ndarray]) -> dict[str, Any]:
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
        described = {key: describe(value, arrays) for key, value in given.items()}
    except (ValueError, TypeError, AttributeError):
        same = False
    if not same:
        raise ValueError(f"NumPyro's {name} cannot be told by numbers alone: save a Histogram that is close to it")
    return {"distribution": name, "parameters": described}


def _make_distribution(name: str, given: dict[str, Any]) -> priors.NumPyroPrior:
    """Make a prior; as an argument of another distribution it stands for its own."""
    given = {key: getattr(value, "distribution", value) for key, value in given.items()}
    found = _class(name)
    if found is None or set(given) != set(_parameters(found)):
        raise ValueError(f"NumPyro has no distribution {name!r} with the parameters {', '.join(map(str, given))}")
    # Shapes first: of a number that is a size, or of parameters that are broadcast, a distribution can be of any size.
    shapes = jax.eval_shape(lambda parameters: found(**parameters), given)
    if shapes.batch_shape or shapes.event_shape:
        raise ValueError(f"{name} with shape {shapes.shape()} is no distribution of one score")
    return priors.from_numpyro(found(**given))


def _parameters(kind: type) -> list[str]:
    return [name for name in inspect.signature(kind.__init__).parameters if name not in _NOT_PARAMETERS]  # type: ignore[misc]


def _class(name: Any) -> Any:
    """Return NumPyro's distribution of a name, or None."""
    import numpyro  # whole: ArviZ 1.x imports it lazily, and its parts alone would be executed twice

    known = numpyro.distributions
    found = vars(known).get(name) if isinstance(name, str) else None
    return found if isinstance(found, type) and issubclass(found, known.Distribution) else None


def as_jax(array: np.ndarray, what: str) -> Array:
    """Copy an array to JAX; without 64-bit JAX, 64-bit numbers must be 32-bit ones that were written longer."""
    dtype = np.dtype(jax.dtypes.canonicalize_dtype(array.dtype))
    if dtype != array.dtype:
        with np.errstate(over="ignore"):
            narrow = array.astype(dtype)
        changed = ~((narrow.astype(array.dtype) == array) | (array != array))
        if changed.any():
            index = np.unravel_index(int(np.argmax(changed)), changed.shape)
            where = f"[{', '.join(map(str, index))}]" if index else ""
            raise ValueError(
                f"{what}{where} = {array[index]!r} does not fit {dtype}: it was saved with 64-bit JAX; enable it "
                "before loading, with jax.config.update('jax_enable_x64', True)"
            )
        array = narrow
    return jnp.array(array)
