"""Coverage with its uncertainty, level by level and window by window; and whether misses follow one another."""

import bisect
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy import special

from dpconformal.beliefs import Exact, Quantized
from dpconformal.compositions import Head
from dpconformal.diagnostics.calibration import check_probability
from dpconformal.metrics import covered, rolling_coverage
from dpconformal.metrics.arrays import arrays_of, batch_axes, checked_run, observed_rounds
from dpconformal.metrics.summary import as_written
from dpconformal.replay import Replay
from dpconformal.runs import not_at_once
from dpconformal.theory import coverage_bound
from dpconformal.theory.certificate import Check, coverage_check, no_claim
from dpconformal.theory.path import path_of, sequences
from dpconformal.validation import Scalar, check_float, check_int

if TYPE_CHECKING:
    import xarray as xr


def coverage_curve(run: Replay, prob: Scalar = 0.95, delta: Scalar = 0.05) -> "xr.Dataset":
    """
    Compare coverage with its level, beside three bands that answer three questions.

    The interval of Clopper and Pearson says what the chance to cover may have been, had it been the same in all rounds.
    The band of the theory says what this very learner may cover if the scores are iid, early rounds and the weight of
    the prior included (:func:`dpconformal.theory.certify`). Theorem 3 says how likely the last threshold is to cover,
    given the scores before it (:func:`dpconformal.theory.coverage_bound`).

    Parameters
    ----------
    run : Replay
        One sequence or a batch, with the same levels every round.
    prob : float
        Confidence of the intervals, level by level.
    delta : float
        Probability that iid scores leave the band of a level.

    Returns
    -------
    xarray.Dataset
        Over ``level`` (and ``batch`` axes): ``coverage``; ``low`` and ``high``, the interval; ``band_low`` and
        ``band_high``, NaN where the theory claims nothing: with a discount or a delay, and for learners that are not
        :class:`dpconformal.Exact`, :class:`dpconformal.Quantized` or a head on one; ``claimed``, whether it does;
        ``passed``, whether the coverage is inside the band or nothing is claimed; ``theorem_low`` and
        ``theorem_high``, Theorem 3's bounds for the last round, NaN for all but an undiscounted Exact.

    Examples
    --------
    >>> import dpconformal as dpc
    >>> curve = coverage_curve(dpc.replay(dpc.Exact(), dpc.streams.iid(500), levels=[0.5, 0.9]))
    >>> curve.passed.values
    array([ True,  True])
    """
    import xarray as xr

    prob, delta = check_probability("prob", prob), check_probability("delta", delta)
    checks: list[Check] = []
    for _, sequence in sequences(run, observed=False):
        one = sequence.observed()
        # Where scores became known late, nothing is claimed.
        checks.append(no_claim(one) if not_at_once(sequence) else coverage_check(one, path_of(one), delta))
    run = run.observed()
    hits = covered(run)
    rounds, found = hits.shape[-2], hits.sum(axis=-2)
    seen = found / rounds if rounds else np.full(found.shape, np.nan)
    low, high = clopper_pearson(found, rounds, (1 - prob) / 2)
    band_low, band_high = (
        np.array([getattr(check, end) for check in checks], float).reshape(found.shape) for end in ("low", "high")
    )
    if not isinstance(run.learner, (Exact, Quantized, Head)):  # what others are held to is not their own
        band_low = band_high = np.full(found.shape, np.nan)
    theorem_low, theorem_high = _last_threshold_bounds(run, delta, found.shape)
    claimed = ~np.isnan(band_low)
    variables = {
        "coverage": seen,
        "low": low,
        "high": high,
        "band_low": band_low,
        "band_high": band_high,
        "theorem_low": theorem_low,
        "theorem_high": theorem_high,
        "claimed": claimed,
        "passed": ~claimed | ((seen >= band_low) & (seen <= band_high)),
    }
    dims, levels = [*batch_axes(run), "level"], np.asarray(run.levels)
    coords = {"level": as_written(levels)} if levels.ndim == 1 else {}
    if levels.ndim > 1:
        variables["levels"] = levels.astype(float)
    about = {"diagnostics": "coverage", "learner": repr(run.learner), "rounds": rounds, "prob": prob, "delta": delta}
    return xr.Dataset({name: (dims, value) for name, value in variables.items()}, coords, about)


def clopper_pearson(count: np.ndarray, rounds: int, tail: float) -> tuple[np.ndarray, np.ndarray]:
    """Bound the chance behind a count by the interval of Clopper and Pearson."""
    # The quantiles of Beta(k, n - k + 1) and Beta(k + 1, n - k); shapes of 0 are the ends themselves.
    low = special.betaincinv(np.maximum(count, 1), rounds - count + 1, tail)
    high = special.betaincinv(count + 1, np.maximum(rounds - count, 1), 1 - tail)
    return np.where(count == 0, 0.0, low), np.where(count == rounds, 1.0, high)


def _last_threshold_bounds(run: Replay, delta: float, shape: tuple[int, ...]) -> list[np.ndarray]:
    """Bound the coverage probability of the last threshold, by Theorem 3."""
    learner, rounds = run.learner, np.shape(run.thresholds)[-2]
    if not isinstance(learner, Exact) or learner.discount is not None or not rounds or not_at_once(run):
        return [np.full(shape, np.nan)] * 2
    before = 0 if run.start is None else np.asarray(run.start.seen)
    last = np.broadcast_to(np.asarray(before + rounds)[..., None], shape)
    levels = np.broadcast_to(np.asarray(run.levels, float), shape)
    return [np.asarray(bound) for bound in coverage_bound(last, levels, delta, learner.schedule)]


def rolling_band(run: Replay, window: int, prob: Scalar = 0.95) -> "xr.Dataset":
    """
    Follow the coverage along a run, with a band that it leaves nowhere if misses are pure chance.

    Misses are taken to be iid at the level, which is what a learner that knows the distribution of the scores has.

    Parameters
    ----------
    run : Replay
        One sequence or a batch, with the same levels every round and for every sequence.
    window : int
        Rounds that each point averages over.
    prob : float
        Probability that the coverage of a level stays inside its band over the whole run.

    Returns
    -------
    xarray.Dataset
        ``coverage`` over ``time`` (the last round of the window) and ``level``. Over ``level`` alone: ``low`` and
        ``high``, the band for all windows together; ``pointwise_low`` and ``pointwise_high`` for a single one, which
        some window of a long run is bound to leave; ``passed``, whether a level never leaves the former.

    Examples
    --------
    >>> import dpconformal as dpc
    >>> data = rolling_band(dpc.replay(dpc.Exact(), dpc.streams.iid(500), levels=[0.9]), window=100)
    >>> data.low.values, data.high.values, data.passed.values
    (array([0.8]), array([0.98]), array([ True]))
    """
    import xarray as xr

    prob = check_probability("prob", prob)
    rounds, whole_run = arrays_of(run).thresholds.shape[-2], run
    run = checked_run(run).observed()
    if np.ndim(run.levels) != 1:
        raise ValueError(f"run.levels has shape {np.shape(run.levels)}: a band needs the same levels for all rounds")
    window = check_int("window", window, 1)
    seen = np.asarray(rolling_coverage(run, window))
    levels = as_written(np.asarray(run.levels))
    bands = [[window_band(level, window, length, prob) for level in levels] for length in (rounds, window)]
    ends = np.array(bands).transpose(0, 2, 1) / window
    (low, high), (pointwise_low, pointwise_high) = ends
    dims = [*batch_axes(run), "time", "level"]
    inside = (seen >= low - 1e-9) & (seen <= high + 1e-9)
    return xr.Dataset(
        {
            "coverage": (dims, seen),
            "low": ("level", low),
            "high": ("level", high),
            "pointwise_low": ("level", pointwise_low),
            "pointwise_high": ("level", pointwise_high),
            "passed": ([*batch_axes(run), "level"], inside.all(axis=-2)),
        },
        {"time": observed_rounds(whole_run)[window - 1 :], "level": levels},
        {"diagnostics": "rolling coverage", "learner": repr(run.learner), "window": window, "prob": prob},
    )


def window_band(chance: Scalar, window: int, rounds: int, prob: Scalar = 0.95) -> tuple[int, int]:
    """Bound the number of heads of iid coins in every window, with a given probability for all windows together."""
    chance = float(check_float("chance", chance, 0.0, 1.0))
    window, rounds = check_int("window", window, 1), check_int("rounds", rounds, 1)
    if window > rounds:
        raise ValueError(f"window = {window}: there are only {rounds} rounds")
    # Each side has half of what is left over, so the probability of staying inside is at least ``prob``.
    tail = (1 - check_probability("prob", prob)) / 2

    def most_heads(chance: float) -> int:
        """Return the least number that some window exceeds with at most the tail's probability."""

        def is_enough(heads: int) -> bool:
            return 1 - _all_windows_below(heads + 1, window, rounds, chance) <= tail

        return bisect.bisect_left(range(window), True, key=is_enough)

    return window - most_heads(1 - chance), most_heads(chance)


def _all_windows_below(k: int, window: int, rounds: int, chance: float) -> float:
    """Return the probability that every window has fewer than k heads, 1 ≤ k ≤ window, by Naus (1982)."""
    # From the distribution of the largest window: what happens in two and in three windows' length is known exactly,
    # and what is far apart is as good as independent.
    from scipy.stats import binom  # slow to import

    def exactly(j: np.ndarray | int) -> Any:
        return binom.pmf(j, window, chance)

    def up_to(j: np.ndarray | int, coins: int = window) -> Any:
        return binom.cdf(j, max(coins, 0), chance)

    if rounds == window:
        return float(up_to(k - 1))
    mean = window * chance
    here, below = exactly(k), up_to(k - 1)
    step = (k - 1) * up_to(k - 2) - mean * up_to(k - 3, window - 1)
    two = below**2 - here * step
    r = np.arange(1, k)
    pair = (k - 1) * (k - 2) * up_to(k - 3) - 2 * (k - 2) * mean * up_to(k - 4, window - 1)
    pair = pair + mean * (mean - chance) * up_to(k - 5, window - 2)
    apart = exactly(2 * k - r) * up_to(r - 1) ** 2
    joint = exactly(2 * k - r) * exactly(r) * ((r - 1) * up_to(r - 2) - mean * up_to(r - 3, window - 1))
    three = below**3 - 2 * here * below * step + 0.5 * here**2 * pair + apart.sum() - joint.sum()
    if not (two > 0 and three > 0):
        return 0.0
    return float(min(two * min(three / two, 1.0) ** (rounds / window - 2), 1.0))


def miss_dependence(run: Replay, lags: int = 10) -> "xr.Dataset":
    """
    Test whether misses have the chance that the level says in every round, and whether they are serially independent.

    The likelihood-ratio tests of Christoffersen (1998): of a chance of 1 - level in every round (``unconditional``), of
    a miss making another one more or less likely in the next round (``independence``), and of both at once
    (``conditional``). The statistic of Ljung and Box (1978) looks for dependence over several lags.

    A belief that still learns does not have that chance, also if the scores are iid: its prior makes it cover too much
    or too little. So ``unconditional`` and ``conditional`` reject a right belief far more often than they say: in 69 %
    of the runs over 500 iid scores of Beta(2, 5), at level 0.9 and with a uniform prior and the default schedule.
    Whether *this* belief covers as it may is what :func:`dpconformal.diagnostics.coverage_curve` tells (``passed``).
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
    independence = _independence_ratio(missed)
    tests = {
        "unconditional": (_share_ratio(missed, 1 - levels), 1),
        "independence": (independence, 1),
        # Christoffersen's tests are given the first round.
        "conditional": (_share_ratio(missed[..., 1:, :], 1 - levels) + independence, 2),
        "ljung_box": (ljung_box(missed, lags)[0], lags),
    }
    dims = [*batch_axes(run), "level"]
    variables: dict[str, Any] = {"misses": (dims, missed.sum(axis=-2))}
    for name, (statistic, freedom) in tests.items():
        variables[name] = (dims, statistic)
        variables[f"{name}_p"] = (dims, special.chdtrc(freedom, statistic))
    variables["autocorrelation"] = ([*dims[:-1], "lag", "level"], _autocorrelation(missed, lags))
    coords = {"lag": np.arange(1, lags + 1)} | ({"level": levels} if levels.ndim == 1 else {})
    about = {"diagnostics": "dependence", "learner": repr(run.learner), "rounds": rounds}
    return xr.Dataset(variables, coords, about)


def ljung_box(values: np.ndarray, lags: int) -> tuple[np.ndarray, np.ndarray]:
    """Test numbers for serial correlation over several lags (Ljung & Box 1978)."""
    rounds = values.shape[-2]
    weights = rounds * (rounds + 2) / (rounds - np.arange(1, lags + 1))
    statistic = (_autocorrelation(values, lags) ** 2 * weights[:, None]).sum(axis=-2)
    return statistic, special.chdtrc(lags, statistic)


def _log_likelihood(events: Any, trials: Any, chance: Any) -> Any:
    """Log-likelihood of a chance, of so many events in so many trials."""
    return special.xlogy(events, chance) + special.xlog1py(trials - events, -chance)


def _share_ratio(missed: np.ndarray, chance: Any) -> Any:
    """Return the likelihood ratio of the share of misses against a chance; infinite if it rules them out."""
    count, misses = missed.shape[-2], missed.sum(axis=-2)
    free = _log_likelihood(misses, count, misses / max(count, 1))
    return np.maximum(2 * (free - _log_likelihood(misses, count, chance)), 0)


def _independence_ratio(missed: np.ndarray) -> Any:
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
    """Autocorrelation at lags 1, 2, …; NaN where all values are the same."""
    centred = values - values.mean(axis=-2, keepdims=True)
    rounds, power = values.shape[-2], (centred**2).sum(axis=-2)
    products = [(centred[..., lag:, :] * centred[..., : rounds - lag, :]).sum(axis=-2) for lag in range(1, lags + 1)]
    varied = (values != values[..., :1, :]).any(axis=-2)
    return np.stack([np.where(varied, p / np.where(varied, power, 1.0), np.nan) for p in products], axis=-2)
