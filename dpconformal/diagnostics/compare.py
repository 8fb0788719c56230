"""Learners side by side on the same simulated data: coverage, width and loss, with Monte-Carlo errors."""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from dpconformal.checks import Numbers, as_numbers, whole
from dpconformal.inputs import as_levels
from dpconformal.pinball import pinball
from dpconformal.replay import replay

if TYPE_CHECKING:
    import xarray as xr

MEASURES = ("coverage", "width", "loss", "crps")
_GRID = (np.arange(32) + 0.5) / 32  # midpoints, for the integral over all levels that the CRPS is
_BLOCK = 50  # data sets at a time


def compare(
    learners: Any,
    simulator: Callable[..., Any] | Numbers,
    datasets: int = 200,
    rounds: int = 500,
    levels: Numbers = (0.5, 0.8, 0.9, 0.95),
    burn_in: int = 0,
    seed: int = 0,
) -> "xr.Dataset":
    """
    Run learners over many simulated data sets, and compare what they cover and cost.

    All learners see the same data sets, so that differences between them are known much better than each by itself.

    Parameters
    ----------
    learners : dict of str to Learner, or list of Learner
        The first is what the others are compared with. Without names they are called after their class, or by their
        whole ``repr`` where two share a class.
    simulator : callable or array_like, shape (n,)
        A function of a ``numpy.random.Generator`` and the number of rounds that returns scores of shape (rounds,); or
        recorded scores, at least as many as rounds: then a data set is a random order of some of them, which makes
        them exchangeable whatever they were.
    datasets : int
        How many, at least two.
    rounds : int
        Rounds of each.
    levels : array_like, shape (A,)
        Levels to ask for.
    burn_in : int
        Rounds at the start that are not counted.
    seed : int
        Of the simulation.

    Returns
    -------
    xarray.Dataset
        Over (learner, level, dataset): ``coverage``; ``width``, the mean threshold; ``loss``, the mean quantile loss.
        Over (learner, dataset): ``crps``, from 32 levels. It is NaN for a learner that is no belief, which knows the
        levels of its own grid only, and for split conformal, whose thresholds of the highest levels are infinite. For
        each there are the mean over data sets and its standard error (``coverage_mean``,
        ``coverage_se``), and the same of the difference to the first learner on the same data (``coverage_gain``,
        ``coverage_gain_se``); NaN where a width or loss is infinite.

    Examples
    --------
    >>> import dpconformal as dpc
    >>> data = np.random.default_rng(0).beta(2, 5, 60)
    >>> found = compare([dpc.Exact(), dpc.ERM()], data, datasets=4, rounds=50, levels=[0.9])
    >>> found.coverage.dims, found.learner.values.tolist()
    (('learner', 'level', 'dataset'), ['Exact', 'ERM'])
    """
    import xarray as xr

    named = _named(learners)
    datasets, rounds, burn_in = whole("datasets", datasets, 2), whole("rounds", rounds, 1), whole("burn_in", burn_in, 0)
    if burn_in >= rounds:
        raise ValueError(f"burn_in = {burn_in}: must leave some of the {rounds} rounds to count")
    as_levels(levels)  # checks them; in NumPy they stay as written, also where JAX works in float32
    asked = np.asarray(levels, float)
    if asked.ndim != 1 or not asked.size:
        raise ValueError(f"levels has shape {asked.shape}: pass a list of levels, such as [0.9]")
    seeds = np.random.SeedSequence(whole("seed", seed, 0)).spawn(datasets)
    scores = np.stack([_drawn(simulator, np.random.default_rng(child), rounds) for child in seeds])
    size = min(_BLOCK, datasets)
    parts = {name: np.full((len(named), asked.size, datasets), np.nan) for name in MEASURES[:3]}
    parts["crps"] = np.full((len(named), datasets), np.nan)
    for i, learner in enumerate(named.values()):
        # One level more, above all that are finite for split conformal, shows whether the CRPS is.
        grid = np.append(_GRID, 1 - 0.5 / (rounds + 1)) if hasattr(learner, "cdf") else np.zeros(0)
        everything = np.append(asked, grid)
        for begin in range(0, datasets, size):
            here = np.arange(begin, begin + size) % datasets  # the last block is filled up: one program serves all
            run: Any = replay(learner, scores[here], everything)
            thresholds, seen = np.asarray(run.thresholds, float), np.asarray(run.scores, float)[..., None]
            thresholds, seen = thresholds[:, burn_in:], seen[:, burn_in:]
            loss = pinball(np, thresholds, seen, everything).mean(axis=1)
            kept = slice(asked.size)
            parts["coverage"][i][:, here] = (seen <= thresholds)[..., kept].mean(axis=1).T
            parts["width"][i][:, here] = thresholds[..., kept].mean(axis=1).T
            parts["loss"][i][:, here] = loss[:, kept].T
            if grid.size:
                crps = 2 * loss[:, asked.size : -1].mean(axis=-1)
                parts["crps"][i, here] = np.where(np.isfinite(loss[:, asked.size :]).all(axis=-1), crps, np.nan)
    every = ("learner", "level", "dataset")
    dims = {name: every if part.ndim == 3 else every[::2] for name, part in parts.items()}
    data = xr.Dataset(
        {name: (dims[name], part) for name, part in parts.items()},
        {"learner": list(named), "level": asked, "dataset": np.arange(datasets)},
        {"diagnostics": "compare", "rounds": rounds, "burn_in": burn_in, "seed": int(seed)},
    )
    return data.assign({key: value for name in MEASURES for key, value in _over_datasets(name, data[name]).items()})


def _over_datasets(name: str, values: "xr.DataArray") -> dict[str, "xr.DataArray"]:
    finite = values.where(np.isfinite(values))
    gain = finite - finite.isel(learner=0)
    share = np.sqrt(values.sizes["dataset"])
    return {
        f"{name}_mean": finite.mean("dataset", skipna=False),
        f"{name}_se": finite.std("dataset", ddof=1, skipna=False) / share,
        f"{name}_gain": gain.mean("dataset", skipna=False),
        f"{name}_gain_se": gain.std("dataset", ddof=1, skipna=False) / share,
    }


def _named(learners: Any) -> dict[str, Any]:
    if isinstance(learners, Mapping):
        named = {str(name): learner for name, learner in learners.items()}
    elif isinstance(learners, (list, tuple)):
        kinds = [type(learner).__name__ for learner in learners]
        names = [kind if kinds.count(kind) == 1 else repr(x) for kind, x in zip(kinds, learners, strict=True)]
        named = dict(zip(names, learners, strict=True))
        if len(named) < len(names):
            raise ValueError(f"learners = {names}: two are the same; pass a dict with a name for each")
    else:
        raise ValueError(f"learners = {learners!r}: pass a dict of learners, or a list of them")
    if not named:
        raise ValueError("learners is empty: pass at least one")
    return named


def _drawn(simulator: Any, rng: np.random.Generator, rounds: int) -> np.ndarray:
    if callable(simulator):
        scores = np.asarray(as_numbers("simulator's scores", simulator(rng, rounds)), float)
        if scores.shape != (rounds,):
            raise ValueError(f"simulator returned shape {scores.shape}: expected ({rounds},), a score a round")
        return scores
    recorded = np.asarray(as_numbers("simulator", simulator), float)
    if recorded.ndim != 1 or recorded.size < rounds:
        raise ValueError(f"simulator has shape {recorded.shape}: pass a function, or at least rounds = {rounds} scores")
    return rng.permutation(recorded)[:rounds]
