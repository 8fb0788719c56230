"""Do misses come in clusters? The right share of misses is not enough if they follow one another."""

from typing import TYPE_CHECKING, Any

import numpy as np
from scipy import special

from dpconformal.metrics import covered
from dpconformal.metrics.arrays import arrays_of, batch_axes
from dpconformal.metrics.summary import as_written
from dpconformal.replay import Replay
from dpconformal.validation import check_int

if TYPE_CHECKING:
    import xarray as xr


def miss_dependence(run: Replay, lags: int = 10) -> "xr.Dataset":
    """
    Test whether misses have the chance that the level says in every round, and whether they are serially independent.

    The likelihood-ratio tests of Christoffersen (1998): of a chance of 1 - level in every round (``unconditional``), of
    a miss making another one more or less likely in the next round (``independence``), and of both at once
    (``conditional``). The statistic of Ljung and Box (1978) looks for dependence over several lags.

    A belief that still learns does not have that chance, also if the scores are iid: its prior makes it cover too much
    or too little. So ``unconditional`` and ``conditional`` reject a right belief far more often than they say. Over 500
    iid scores of Beta(2, 5), at level 0.9 and with a uniform prior, ``unconditional_p`` is below 0.05 in 69 % of the
    runs with the default schedule, 13 % with ``Dirichlet(5)`` and 3 % with ``Dirichlet(1)``. Whether *this* belief
    covers as it may on iid scores is what :func:`dpconformal.diagnostics.coverage.coverage_curve` tells (``passed``).
    ``independence`` and ``ljung_box`` compare misses with their own share, and keep their size.

    Parameters
    ----------
    run : Replay
        One sequence or a batch, with the same levels every round.
    lags : int
        Lags of the autocorrelation, fewer than there are rounds.

    Returns
    -------
    xarray.Dataset
        Over ``level`` (and ``batch`` axes): ``misses``, and for each test its statistic and its p-value
        (``unconditional_p`` and so on), from the chi-squared distribution that holds for many misses.
        ``autocorrelation`` is over ``lag`` too. Where a level was never or always missed nothing can be said about
        dependence: all but the unconditional test are NaN.

    Examples
    --------
    >>> import dpconformal as dpc
    >>> run = dpc.replay(dpc.Exact(), [0.1] * 5 + [0.9] * 5, levels=[0.5])
    >>> found = miss_dependence(run, lags=2)
    >>> found.misses.values, found.independence_p.values.round(3)
    (array([5]), array([0.007]))
    """
    import xarray as xr

    arrays = arrays_of(run)
    if np.ndim(run.levels) == arrays.thresholds.ndim:
        raise ValueError(
            f"run.levels has shape {np.shape(run.levels)}: they change by round, and the tests need a level"
        )
    lags, rounds = check_int("lags", lags, 1), arrays.thresholds.shape[-2]
    if lags >= rounds:
        raise ValueError(f"lags = {lags}: the run has only {rounds} rounds; ask for fewer lags")
    levels = np.asarray(run.levels)
    levels = as_written(levels) if levels.ndim == 1 else levels.astype(float)
    missed = ~covered(run)
    share = _ratio(missed[..., 1:, :], 1 - levels)  # Christoffersen's tests are given the first round
    independence = _independence(missed)
    correlation = _autocorrelation(missed, lags)
    lag = np.arange(1, lags + 1)
    box, _ = ljung_box(missed, lags)
    tests = {
        "unconditional": (_ratio(missed, 1 - levels), 1),
        "independence": (independence, 1),
        "conditional": (share + independence, 2),
        "ljung_box": (box, lags),
    }
    dims = [*batch_axes(run), "level"]
    variables: dict[str, Any] = {"misses": (dims, missed.sum(axis=-2))}
    for name, (statistic, freedom) in tests.items():
        variables[name] = (dims, statistic)
        variables[f"{name}_p"] = (dims, special.chdtrc(freedom, statistic))
    variables["autocorrelation"] = ([*dims[:-1], "lag", "level"], correlation)
    coords = {"lag": lag} | ({"level": levels} if levels.ndim == 1 else {})
    attrs = {"diagnostics": "dependence", "learner": repr(run.learner), "rounds": rounds}
    return xr.Dataset(variables, coords, attrs)


def ljung_box(values: np.ndarray, lags: int) -> tuple[np.ndarray, np.ndarray]:
    """Test numbers for serial correlation over several lags (Ljung & Box 1978)."""
    rounds = values.shape[-2]
    weights = rounds * (rounds + 2) / (rounds - np.arange(1, lags + 1))
    statistic = (_autocorrelation(values, lags) ** 2 * weights[:, None]).sum(axis=-2)
    return statistic, special.chdtrc(lags, statistic)


def _log_likelihood(events: Any, trials: Any, chance: Any) -> Any:
    return special.xlogy(events, chance) + special.xlog1py(trials - events, -chance)


def _ratio(missed: np.ndarray, chance: Any) -> Any:
    """Return the likelihood ratio of the share of misses against a chance; infinite if it rules them out."""
    count, misses = missed.shape[-2], missed.sum(axis=-2)
    free = _log_likelihood(misses, count, misses / max(count, 1))
    return np.maximum(2 * (free - _log_likelihood(misses, count, chance)), 0)


def _independence(missed: np.ndarray) -> Any:
    """Return the likelihood ratio of a chance that depends on the round before, against one that does not."""
    before, after = missed[..., :-1, :], missed[..., 1:, :]
    free: Any = 0.0
    for state in (False, True):
        here = before == state
        trials, events = here.sum(axis=-2), (here & after).sum(axis=-2)
        free = free + _log_likelihood(events, trials, events / np.maximum(trials, 1))
    events, trials = after.sum(axis=-2), after.shape[-2]
    found = np.maximum(2 * (free - _log_likelihood(events, trials, events / max(trials, 1))), 0)
    return np.where(missed.any(axis=-2) & ~missed.all(axis=-2), found, np.nan)


def _autocorrelation(values: np.ndarray, lags: int) -> np.ndarray:
    centred = values - values.mean(axis=-2, keepdims=True)
    rounds, power = values.shape[-2], (centred**2).sum(axis=-2)
    products = [(centred[..., lag:, :] * centred[..., : rounds - lag, :]).sum(axis=-2) for lag in range(1, lags + 1)]
    varied = (values != values[..., :1, :]).any(axis=-2)
    return np.stack([np.where(varied, p / np.where(varied, power, 1.0), np.nan) for p in products], axis=-2)
