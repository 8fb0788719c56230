"""Hyperparameters as dimensions: one learner for each point of a labelled grid."""

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import xarray as xr


def swept(learner: Any, hyperparameters: dict[str, Any], taken: Sequence[Any]) -> tuple["xr.DataArray", list[Any]]:
    """
    Make a learner for every combination of hyperparameters.

    Returns: An array with the dimensions and coordinates of the grid, and the learners in its order; without
    hyperparameters no dimension and one learner.
    """
    import xarray as xr

    fields = [field.name for field in dataclasses.fields(learner) if field.init] if hyperparameters else []
    for name, values in hyperparameters.items():
        if name not in fields:
            raise ValueError(f"{name} = ...: {type(learner).__name__} has fields {', '.join(fields)}")
        if not isinstance(values, xr.DataArray):
            raise ValueError(f"{name} is a {type(values).__name__}: pass xarray.DataArray([...], dims={name!r})")
        for dim in values.dims:
            if dim in taken:
                raise ValueError(f"{name} has a dimension {dim!r}, which is one of the scores' or 'level': rename it")
    named = {
        name: values.assign_coords({name: values.values}) if values.dims == (name,) and not values.coords else values
        for name, values in hyperparameters.items()
    }
    if not named:
        return xr.DataArray(0.0), [learner]
    try:
        parts = xr.broadcast(*xr.align(*named.values(), join="exact"))
    except ValueError as error:
        raise ValueError(f"{', '.join(named)}: arrays along one dimension have different labels: {error}") from None
    if not parts[0].size:
        raise ValueError(f"{', '.join(named)}: no value to try")
    rows = zip(*(np.ravel(part.values).tolist() for part in parts), strict=True)
    learners = [dataclasses.replace(learner, **dict(zip(named, row, strict=True))) for row in rows]
    values = {name: part for name, part in named.items() if name not in part.dims}
    return parts[0].assign_coords({name: part.drop_vars(list(part.coords)) for name, part in values.items()}), learners
