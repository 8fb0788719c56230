"""Learners side by side on the same data sets, simulated or recorded: coverage, width and loss, with errors."""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy import special

from dpconformal.engine.totals import totals_of
from dpconformal.learner import BeliefLearner, Learner
from dpconformal.replay import replay
from dpconformal.validation import Numbers, as_levels, as_numbers, check_int

if TYPE_CHECKING:
    import xarray as xr

MEASURES = ("coverage", "width", "loss", "crps")
_GRID = (np.arange(32) + 0.5) / 32  # midpoints, for the integral over all levels that the CRPS is
_BATCH = 50  # data sets at a time
_BLOCKS = 20  # of a record, at least, where it has so many scores
_ORDERS = 30  # of a record without a block, at most: more make errors of gains too small on short records


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
    Run learners over many data sets, simulated or from recorded scores, and compare what they cover and cost.

    All learners see the same data sets, so that differences between them are known much better than each by itself.

    Parameters
    ----------
    learners : dict of str to Learner, or list of Learner
        The first is what the others are compared with. Without names they are called after their class, or by their
        whole ``repr`` where two share a class.
    simulator : callable or array_like, shape (n,)
        A function of a ``numpy.random.Generator`` and the number of rounds that returns scores of shape (rounds,); or
        recorded scores, at least two and as many as rounds. Then a data set is a random order of as many of them as
        there are rounds. In a random order scores are exchangeable, whatever they were.
    datasets, rounds : int
        How many data sets, at least two, and the rounds of each.
    levels : array_like, shape (A,)
        Levels to ask for.
    burn_in, seed : int
        Rounds at the start that are not counted, and the seed of the simulation.

    Returns
    -------
    xarray.Dataset
        Over (learner, level, dataset): ``coverage``; ``width``, the mean threshold; ``loss``, the mean quantile loss.
        Over (learner, dataset): ``crps``, from 32 levels. It is NaN for a learner that is no belief, which knows the
        levels of its own grid only, and for split conformal, whose thresholds of the highest levels are infinite. For
        each there are the mean over data sets and its standard error (``coverage_mean``,
        ``coverage_se``), and the same of the difference to the first learner on the same data (``coverage_gain``,
        ``coverage_gain_se``); NaN where a width or loss is infinite. ``attrs["record"]`` is the number of recorded
        scores, 0 for a simulator.

    Notes
    -----
    With a simulator the data sets are independent, and a standard error falls with ``datasets``.

    Data sets from a record share its scores. There a standard error says how far the mean would move *if another such
    stretch were recorded*, and more data sets do not take it below that: each of 20 to 39 consecutive blocks of the
    record (fewer than 20 scores: each score) is left out in turn, and the learners run over what is left of the first
    30 random orders. This delete-a-group jackknife errs on the large side for what varies with the order more than with
    the record. It holds for iid scores, and counts dependence that is short against a block. It is too small, or zero,
    for what hangs on a few scores: levels above whose thresholds the record has only a handful, such as 0.99 with a
    hundred scores.

    Examples
    --------
    >>> import dpconformal as dpc
    >>> data = np.random.default_rng(0).beta(2, 5, 60)
    >>> found = compare([dpc.Exact(), dpc.ERM()], data, datasets=4, rounds=50, levels=[0.9])
    >>> found.coverage.dims, found.learner.values.tolist()
    (('learner', 'level', 'dataset'), ['Exact', 'ERM'])
    """
    import xarray as xr

    named = _learners_by_name(learners)
    datasets, rounds = check_int("datasets", datasets, 2), check_int("rounds", rounds, 1)
    burn_in, seed = check_int("burn_in", burn_in, 0), check_int("seed", seed, 0)
    if burn_in >= rounds:
        raise ValueError(f"burn_in = {burn_in}: must leave some of the {rounds} rounds to count")
    as_levels(levels)  # checks them; in NumPy they stay as written, also where JAX works in float32
    asked = np.asarray(levels, float)
    if asked.ndim != 1 or not asked.size:
        raise ValueError(f"levels has shape {asked.shape}: pass a list of levels, such as [0.9]")
    rngs = [np.random.default_rng(child) for child in np.random.SeedSequence(seed).spawn(datasets)]
    if callable(simulator):
        record, orders = np.zeros(0), None
        drawn = [np.asarray(as_numbers("simulator's scores", simulator(rng, rounds)), float) for rng in rngs]
        for one in drawn:
            if one.shape != (rounds,):
                raise ValueError(f"simulator returned shape {one.shape}: expected ({rounds},), a score a round")
        scores = np.stack(drawn)
    else:
        record = np.asarray(as_numbers("simulator", simulator), float)
        if record.ndim != 1 or record.size < max(rounds, 2):
            least = f"rounds = {rounds}" if rounds > 1 else "two"
            raise ValueError(f"simulator has shape {record.shape}: pass a function, or at least {least} scores")
        block = record.size - leave_out_blocks(record.size).shape[1]
        orders = np.stack([rng.permutation(record.size)[: rounds + block] for rng in rngs])  # enough without a block
        scores = record[orders[:, :rounds]]
    dims = dict.fromkeys(MEASURES, ("learner", "level", "dataset")) | {"crps": ("learner", "dataset")}
    data = xr.Dataset(
        {name: (dims[name], part) for name, part in _measure(named, scores, asked, burn_in).items()},
        {"learner": list(named), "level": asked, "dataset": np.arange(datasets)},
        {"diagnostics": "compare", "rounds": rounds, "burn_in": burn_in, "seed": seed, "record": record.size},
    )
    left = {} if orders is None else _measure_without_blocks(named, record, orders, rounds, asked, burn_in)
    for name in MEASURES:
        data = data.assign(_means_and_errors(name, data[name], left.get(name), record.size))
    return data


def _measure(
    learners: Mapping[str, Learner], scores: np.ndarray, levels: np.ndarray, burn_in: int, end: int | None = None
) -> dict[str, np.ndarray]:
    """Return each measure over the rounds from ``burn_in`` to ``end``, over (learner, level, data set)."""
    datasets, rounds = scores.shape
    size = min(_BATCH, datasets)
    parts = {name: np.full((len(learners), levels.size, datasets), np.nan) for name in MEASURES[:3]}
    parts["crps"] = np.full((len(learners), datasets), np.nan)
    for i, learner in enumerate(learners.values()):
        # One level more, above all that are finite for split conformal, shows whether the CRPS is.
        grid = np.append(_GRID, 1 - 0.5 / (rounds + 1)) if isinstance(learner, BeliefLearner) else np.zeros(0)
        everything = np.append(levels, grid)
        for begin in range(0, datasets, size):
            here = np.arange(begin, begin + size) % datasets  # the last block is filled up: one program serves all
            run: Any = replay(learner, scores[here], everything)
            thresholds, seen = (np.asarray(part)[:, burn_in:end] for part in (run.thresholds, run.scores))
            totals = totals_of(thresholds, seen, everything)
            sums = totals.covered, totals.threshold.high, totals.loss.high
            for name, total in zip(MEASURES, sums, strict=False):
                parts[name][i][:, here] = total[:, : levels.size].T / seen.shape[1]
            loss = totals.loss.high / seen.shape[1]
            if grid.size:
                crps = 2 * loss[:, levels.size : -1].mean(axis=-1)
                parts["crps"][i, here] = np.where(np.isfinite(loss[:, levels.size :]).all(axis=-1), crps, np.nan)
    return parts


def _measure_without_blocks(
    learners: Mapping[str, Learner],
    record: np.ndarray,
    orders: np.ndarray,
    rounds: int,
    levels: np.ndarray,
    burn_in: int,
) -> dict[str, np.ndarray]:
    """Return each measure over (learner, level, block): its mean over orders of the record without the block."""
    rows, orders = leave_out_blocks(record.size), orders[:_ORDERS]
    fewer = min(rounds, rows.shape[1])
    stays = np.zeros((len(rows), record.size), bool)
    np.put_along_axis(stays, rows, True, axis=1)
    kept = [order[stay[order]][:fewer] for stay in stays for order in orders]
    # Filled up to as many rounds as the data sets have, which changes no threshold before: one program serves both.
    scores = np.pad(record[np.stack(kept)], ((0, 0), (0, rounds - fewer)), mode="edge")
    parts = _measure(learners, scores, levels, min(burn_in, fewer - 1), fewer)
    return {name: part.reshape(*part.shape[:-1], len(rows), -1).mean(axis=-1) for name, part in parts.items()}


def _means_and_errors(
    name: str, values: "xr.DataArray", left: np.ndarray | None, record: int
) -> dict[str, "xr.DataArray"]:
    """Return the mean of a measure over data sets and its gain over the first learner, with standard errors."""
    finite = values.where(np.isfinite(values))
    found: dict[str, "xr.DataArray"] = {}
    for key, part in ((name, finite), (f"{name}_gain", finite - finite.isel(learner=0))):
        mean = part.mean("dataset", skipna=False)
        error = part.std("dataset", ddof=1, skipna=False) / np.sqrt(values.sizes["dataset"])
        if left is not None:
            less = np.where(np.isfinite(left), left, np.nan)
            less = less if key == name else less - less[:1]
            error = mean.copy(data=jackknife_error(less, record, leave_out_blocks(record).shape[1]))
        found |= {key if key != name else f"{name}_mean": mean, f"{key}_se": error}
    return found


def _learners_by_name(learners: Any) -> dict[str, Learner]:
    """Name learners after their class, or by their repr where two share a class, if they have no names."""
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


def leave_out_blocks(count: int) -> np.ndarray:
    """List the positions of a record that stay when each of its consecutive blocks, 20 to 39 of them, is left out."""
    # What remains at the end, shorter than a block, is never left out.
    length = max(1, count // _BLOCKS)
    starts = np.arange(0, count - length + 1, length)
    kept = np.arange(count - length)
    return kept + length * (kept >= starts[:, None])


def jackknife_error(values: np.ndarray, count: int, kept: int) -> Any:
    """Estimate a standard error over records by the delete-a-group jackknife, from one value without each block."""
    # Few blocks tell a standard error roughly: times what Student's distribution asks for, two of these have the
    # probability of two exact ones. With 20 blocks that is 1.07.
    values = np.where(np.isfinite(values), values, np.nan)
    variance = values.var(axis=-1, ddof=1) * kept**2 / ((count - kept) * count)
    return np.sqrt(variance) * special.stdtrit(values.shape[-1] - 1, special.ndtr(2)) / 2
