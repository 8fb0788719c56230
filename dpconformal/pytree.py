"""Frozen dataclasses as pytrees: hyperparameters are leaves, sizes are static."""

import dataclasses
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import jax

T = TypeVar("T")


def register(*, static: tuple[str, ...] = ()) -> Callable[[type[T]], type[T]]:
    """
    Register a frozen dataclass as a pytree.

    Unflattening bypasses the constructor. JAX rebuilds pytrees with tracers, axis numbers and
    placeholders in the place of numbers; the constructor's checks are for what a user writes.

    ``static``: Fields that are part of the program (sizes, functions) rather than its data: changing one compiles anew,
    changing any other field does not.
    """

    def decorate(cls: type[T]) -> type[T]:
        names = [field.name for field in dataclasses.fields(cls)]  # type: ignore[arg-type]
        data = [name for name in names if name not in static]

        keys = [jax.tree_util.GetAttrKey(n) for n in data]

        def flatten(node: T) -> tuple[list[Any], tuple[Any, ...]]:
            values = vars(node)
            return list(map(values.__getitem__, data)), tuple(map(values.__getitem__, static))

        def flatten_with_keys(node: T) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
            children, auxiliary = flatten(node)
            return tuple(zip(keys, children, strict=True)), auxiliary

        def unflatten(auxiliary: tuple[Any, ...], children: Iterable[Any]) -> T:
            node = object.__new__(cls)
            for name, value in zip((*data, *static), (*children, *auxiliary), strict=True):
                object.__setattr__(node, name, value)
            return node

        jax.tree_util.register_pytree_with_keys(cls, flatten_with_keys, unflatten, flatten)
        return cls

    return decorate
