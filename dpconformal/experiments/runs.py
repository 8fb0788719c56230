"""What experiments share: steps that are kept, many seeds, tables over these, and certificates."""

import dataclasses
import os
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from dpconformal.checkpoints.container import Journal
from dpconformal.display import track
from dpconformal.learner import Learner
from dpconformal.replay import Replay, replay
from dpconformal.theory import certify

if TYPE_CHECKING:
    import pandas as pd
    import xarray as xr

_Method = TypeVar("_Method")
BATCH = 50  # seeds at a time
Folder = str | os.PathLike[str] | None  # in which finished steps are kept


def run_steps(
    steps: Mapping[str, Callable[[], tuple[Any, ...]]], about: dict[str, Any], progress: bool, checkpoint: Folder
) -> dict[str, tuple[np.ndarray, ...]]:
    """Do steps one after another, keep each in the folder ``checkpoint``, and return what each returned."""
    journal = Journal(checkpoint, about)
    return {name: journal.once(name, steps[name]) for name in track(list(steps), "replaying", progress)}


def as_run(thresholds: Any, scores: Any, levels: Any, learner: Learner | None = None) -> Replay:
    """Return the replay that had these thresholds."""
    return Replay(jnp.asarray(thresholds), None, jnp.asarray(scores), jnp.asarray(levels), learner)


def replay_learners(
    learners: Mapping[str, Learner],
    scores: np.ndarray,
    levels: Any,
    about: dict[str, Any],
    progress: bool,
    checkpoint: Folder,
) -> dict[str, Replay]:
    """Replay the same scores with each learner, in steps, see :func:`run_steps`."""
    # A step keeps thresholds alone, which is all that a figure needs.
    steps = {name: partial(lambda own: replay(own, scores, levels)[:1], learner) for name, learner in learners.items()}
    found = run_steps(steps, about, progress, checkpoint)
    return {name: as_run(found[name][0], scores, levels, learner) for name, learner in learners.items()}


def run_batches(
    step: Callable[[_Method, np.ndarray], tuple[Any, ...]],
    methods: Iterable[_Method],
    seeds: int,
    about: dict[str, Any],
    progress: bool,
    checkpoint: Folder,
) -> dict[_Method, list[tuple[np.ndarray, ...]]]:
    """Do a step for each method and batch of seeds, see :func:`run_steps`; list what each method's steps returned."""
    size = min(BATCH, seeds)
    # The last batch is filled up, so that one program serves all.
    batches = {begin: np.arange(begin, begin + size) % seeds for begin in range(0, seeds, size)}
    steps = {f"{method} {begin}": partial(step, method, here) for method in methods for begin, here in batches.items()}
    found = run_steps(steps, about, progress, checkpoint)
    return {method: [found[f"{method} {begin}"] for begin in batches] for method in methods}


def replay_seeds(learner: Any, scores: Any, levels: Any, seeds: int) -> Any:
    """Replay a learner that tosses coins once for each seed, and return all thresholds."""
    replay_one = jax.vmap(lambda seed: replay(dataclasses.replace(learner, seed=seed), scores, levels)[0])
    return replay_one(jnp.arange(seeds, dtype=jnp.int32))


def mean_and_error(data: "xr.Dataset") -> tuple["xr.Dataset", "xr.Dataset"]:
    """Return means over the seeds and their standard errors; NaN where there is an infinite value."""
    measured = data.where(np.isfinite(data))
    return measured.mean("seed"), measured.std("seed", ddof=1) / np.sqrt(data.sizes["seed"])


def tabulate_seeds(measured: "xr.Dataset", **more: Any) -> "pd.DataFrame":
    """Tabulate means over the seeds, each with its standard error ("se"), and more columns."""
    mean, error = mean_and_error(measured)
    table = mean.merge(error.rename({name: f"{name} se" for name in error.data_vars})).assign(more)
    columns = [column for name in mean.data_vars for column in (name, f"{name} se")]
    dims = [dim for dim in next(iter(measured.values())).dims if dim != "seed"]
    found = table.to_dataframe(dim_order=dims)[[*columns, *more]]
    return found.rename(columns=lambda name: name.replace("_", " "))


def add_certificate(data: "xr.Dataset", runs: Mapping[str, Replay]) -> "xr.Dataset":
    """Certify runs; return data with ``certificate`` (text) and ``certified`` (1 if all pass) in its attributes."""
    certificates = {name: certify(run) for name, run in runs.items()}
    text = "\n\n".join(f"{name}\n{certificate}" for name, certificate in certificates.items())
    passed = int(all(certificate.passed for certificate in certificates.values()))
    return data.assign_attrs(certificate=text, certified=passed)
