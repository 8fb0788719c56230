"""How many sticks, steps and draws: what is enough, and a warning where it is not."""

import math
import warnings
from typing import Any

from dpconformal.dirichlet.posterior import Posterior
from dpconformal.validation import check_not_batched, is_traced, whole

_TAIL = 1e-6  # expected mass that default sizes leave over
_ROOM = 2**28  # atoms of all draws together, 2 GB in double precision
_TOLERABLE = 1e-3  # expected mass beyond which a size is warned about


def truncation(posterior: Posterior, method: str, size: int | None) -> Any:
    """
    Return the expected mass that a truncated sampler leaves over.

    Parameters
    ----------
    posterior : Posterior
        The posterior.
    method : {"split", "sticks"}
        With the prior's part by sticks, (a/(a+n))·(a/(a+1))^K; or all of it, ((a+n)/(a+n+1))^K.
    size : int or None
        K.

    Returns
    -------
    float
        The bound in total variation, on average over draws. NaN where it is not known.

    Examples
    --------
    >>> import dpconformal as dpc
    >>> posterior = Posterior(dpc.priors.Uniform(), 5.0, dpc.streams.iid(60))
    >>> [round(float(truncation(posterior, method, 65)), 6) for method in ("split", "sticks")]
    [1e-06, 0.370691]
    """
    if method not in ("split", "sticks"):
        raise ValueError(f"method = {method!r}: only 'split' and 'sticks' leave mass over")
    if size is None or is_traced(posterior):
        return math.nan
    a, total = float(posterior.concentration), float(posterior.total)
    share, weight = (a / total, a) if method == "split" else (1.0, total)
    return share * (weight / (weight + 1)) ** whole("sticks", size, 1)


def check_room(draws: int, atoms: int, what: str) -> None:
    """Refuse what would not fit into memory."""
    if draws * atoms > _ROOM:
        raise ValueError(
            f"{what} = {atoms:,} for each of draws = {draws:,} do not fit into memory: take fewer, or method='grid', "
            "which does not need more as the concentration grows"
        )


def checked_draws(posterior: Posterior, draws: int) -> int:
    """Check what every sampler is given."""
    check_not_batched(posterior.prior)
    return whole("draws", draws, 1)


def checked_size(name: str, size: int | None, default: int | None, left_over: float) -> int:
    """Return the size given, with a warning if it leaves much mass over; or the default."""
    if size is None:
        if default is None:
            raise ValueError(f"{name} is not given, and how many are needed depends on traced values; give it")
        return default
    size = whole(name, size, 1)
    if left_over > _TOLERABLE:
        warnings.warn(
            f"{name} = {size}: a mass of {left_over:.2g} is left over on average, and the spread is too large; "
            "take more, or method='split'",
            stacklevel=4,
        )
    return size


def enough_sticks(concentration: Any, share: Any) -> int | None:
    """Sticks that leave over a mass of 1e-6 where ``share`` of all is broken up."""
    if is_traced(concentration, share):
        return None
    left = math.log(_TAIL / float(share))
    return max(math.ceil(left / -math.log1p(1 / float(concentration))), 1)
