"""A belief for a stream of which nothing is known: many memories at once, and no choice to make."""

from dpconformal.beliefs import Quantized
from dpconformal.compositions.aggregate import Aggregate
from dpconformal.priors import Prior, Uniform
from dpconformal.schedules import Constant, Dirichlet
from dpconformal.validation import Scalar, check_size

SHORTEST = 8  # rounds of the shortest memory


def auto(
    low: Scalar = 0.0,
    high: Scalar = 1.0,
    *,
    prior: Prior | None = None,
    bins: int = 256,
    longest: int = 4096,
    fixed_share: Scalar = 1e-4,
) -> Aggregate:
    """
    Return a belief that needs no tuning: how much to forget, and how much to trust the prior, is learnt on the way.

    An :class:`Aggregate` of quantized beliefs, with its guarantee: in CRPS it is hardly worse than the best of them, or
    the best sequence of them, on any path. Three remember everything: one with the paper's weight of the prior, 1/√t,
    and two that trust the data sooner. The others have memories of 8, 16, 32, … rounds.

    Parameters
    ----------
    low, high : float
        The support: where scores can be. The closer the better, for bins, prior and guarantee are relative to it.
    prior : Prior, optional
        In the place of ``low`` and ``high``: P0, on a bounded support. Uniform by default.
    bins : int
        Bins of equal width.
    longest : int
        Rounds of the longest memory but the endless one.
    fixed_share : float
        As for :class:`Aggregate`. The default lets a memory that is suddenly right take over within some twenty rounds,
        and costs next to nothing otherwise.

    Returns
    -------
    Aggregate
        A learner like any other: :func:`dpconformal.replay` it, save it, ask it for any level.

    Examples
    --------
    >>> import dpconformal as dpc
    >>> run = dpc.replay(auto(bins=64, longest=64), dpc.streams.drifting(400), levels=[0.5, 0.9])
    >>> fixed = [dpc.replay(dpc.Quantized(64, discount=d), run.scores, [0.5, 0.9]) for d in (0.9, 0.95, 0.98, 0.99)]
    >>> best = min(dpc.metrics.quantile_loss(one).mean() for one in fixed)
    >>> bool(dpc.metrics.quantile_loss(run).mean() < 1.02 * best)
    True
    """
    if prior is None:
        prior = Uniform(low, high)
    elif (low, high) != (0.0, 1.0):
        raise ValueError(f"auto got a prior as well as low, high = {low}, {high}: the prior has a support of its own")
    memories = [SHORTEST]
    while 2 * memories[-1] <= check_size("auto.longest", longest, SHORTEST):
        memories.append(2 * memories[-1])
    learners = [Quantized(bins, prior), *(Quantized(bins, prior, Dirichlet(weight)) for weight in (1.0, 0.1))]
    # With a memory of m rounds the prior weighs as much as one of them.
    learners += [Quantized(bins, prior, Constant(1 / (m + 1)), discount=1 - 1 / m) for m in memories]
    return Aggregate(learners, fixed_share)
