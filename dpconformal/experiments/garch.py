"""Scores of a volatility forecast: how far squared returns are from what a GARCH(1, 1) model expected."""

import hashlib
import io
import os
import warnings
from pathlib import Path
from typing import Any

import numpy as np

from dpconformal.checkpoints.atomic import write_whole
from dpconformal.checkpoints.journal import Journal
from dpconformal.experiments.progress import track
from dpconformal.validation import as_numbers, complain_at, whole

_DAYS = 100  # of a step that is kept


def garch_scores(
    prices: Any,
    lookback: int = 100,
    refit_every: int = 1,
    warmup: int = 10,
    progress: bool = True,
    cache: Any = None,
    checkpoint: Any = None,
) -> np.ndarray:
    """
    Score daily prices by the error of one-day-ahead GARCH(1, 1) forecasts of their volatility.

    The paper's protocol (Section 5): with r_t the return of day t in per cent and v_t its variance as forecast from
    the ``lookback`` returns before, the score is e/(1 + e), e = |r_t² - v_t|. The first day, which has no return, is
    given that of the second.

    ``refit_every``: Days from one estimate of the parameters to the next. On those between, the last estimate is used
    on the returns of the latest ``lookback`` days. ``cache``: Folder in which results are kept and looked up; by
    default ``dpconformal/garch`` in ``$XDG_CACHE_HOME`` or ``~/.cache``. False for none. ``checkpoint``: Folder in
    which the days done so far are kept: called again with it, interrupted work goes on.
    """
    lookback, refit_every = whole("lookback", lookback, 2), whole("refit_every", refit_every, 1)
    warmup = whole("warmup", warmup, 2)
    prices = np.ascontiguousarray(as_numbers("prices", prices), np.float64)
    if prices.ndim != 1 or prices.size < warmup + 2:
        raise ValueError(f"prices has shape {prices.shape}: pass a sequence of at least warmup + 2 = {warmup + 2}")
    complain_at("prices", prices, ~((prices > 0) & np.isfinite(prices)), "must be positive and finite")
    arch = _arch()
    file = None if cache is False else _file(cache, prices, (arch.__version__, lookback, refit_every, warmup))
    if file is not None and (kept := _load(file, prices.size)) is not None:
        return kept
    if file is not None:
        _make_folder(file.parent)
    returns = 100 * np.diff(prices) / prices[:-1]
    returns = np.concatenate([returns[:1], returns])
    scores = np.zeros(returns.size)
    parameters = np.zeros(0)
    digest = hashlib.sha256(prices.tobytes()).hexdigest()
    journal = Journal(checkpoint, {"prices": digest, "options": [arch.__version__, lookback, refit_every, warmup]})

    def some_days(days: range, parameters: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        errors = np.zeros(len(days))
        for k, day in enumerate(days):
            if (day - warmup) % refit_every == 0:
                parameters = np.zeros(0)
            model = arch.arch_model(returns[max(0, day - lookback) : day], vol="GARCH", p=1, q=1, rescale=False)
            variance, parameters = _forecast(model, parameters)
            errors[k] = abs(returns[day] ** 2 - variance)
            if not np.isfinite(errors[k]):
                raise ValueError(
                    f"prices[{day}] = {prices[day]}: the forecast variance of its return is {variance} and the return "
                    f"{returns[day]} per cent; check the prices around it, or leave them out"
                )
        return errors / (1 + errors), parameters

    for first in track(range(warmup, returns.size, _DAYS), "fitting GARCH", progress):
        days = range(first, min(first + _DAYS, returns.size))
        scores[days.start : days.stop], parameters = journal.once(f"days from {first}", some_days, days, parameters)
    if file is not None:
        _store(file, scores)
    return scores


def _arch() -> Any:
    try:
        import arch
    except ImportError as error:
        raise ImportError("GARCH models need arch: pip install '.[experiments]' in a clone of dpconformal") from error
    return arch


def _forecast(model: Any, parameters: np.ndarray) -> tuple[float, np.ndarray]:
    """Forecast the variance one day ahead, with given parameters or, where there are none, with a new estimate."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a fit on a hundred days does not always converge
        result = model.fix(parameters) if parameters.size else model.fit(disp="off", show_warning=False)
        return float(result.forecast(horizon=1).variance.iloc[-1, 0]), np.asarray(result.params, float)


def _file(cache: Any, prices: np.ndarray, options: tuple[Any, ...]) -> Path:
    """Name the file of a result by all that it depends on."""
    if cache is None or cache is True:
        folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "dpconformal" / "garch"
    elif isinstance(cache, (str, os.PathLike)):
        folder = Path(cache).expanduser()
    else:
        raise ValueError(f"cache = {cache!r}: pass a folder, or False for no cache")
    content = repr(options).encode() + prices.astype("<f8").tobytes()
    return folder / f"{hashlib.sha256(content).hexdigest()}.npy"


def _load(file: Path, days: int) -> np.ndarray | None:
    """Read a result, unless it is missing or cannot be one."""
    try:
        with warnings.catch_warnings(action="error"), file.open("rb") as opened:
            scores = np.load(opened, allow_pickle=False)
    except Exception:  # whatever a damaged file leads to, the remedy is to compute anew
        return None
    sound = isinstance(scores, np.ndarray) and scores.dtype == np.float64 and scores.shape == (days,)
    # NaN fails both comparisons.
    return scores if sound and bool(np.all((scores >= 0) & (scores <= 1))) else None


def _make_folder(folder: Path) -> None:
    """Make sure, before the work, that its result can be kept."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if not os.access(folder, os.W_OK):
            raise PermissionError("it cannot be written to")
    except OSError as error:
        raise ValueError(f"cache = {str(folder)!r}: {error}; pass another folder, or False for no cache") from None


def _store(file: Path, scores: np.ndarray) -> None:
    """Write a result, under its name only when it is complete."""
    content = io.BytesIO()
    np.save(content, scores, allow_pickle=False)
    try:
        write_whole(file, [content.getvalue()])
    except OSError as error:  # the disk is full, say: no reason to lose the scores
        warnings.warn(f"the scores are not kept: {error}", stacklevel=3)
