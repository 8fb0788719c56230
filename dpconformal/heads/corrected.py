"""The corrected threshold: a Bayesian threshold with finite-sample validity, whatever the prior."""

from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
from jaxtyping import Array

from dpconformal.beliefs import Exact
from dpconformal.beliefs.weights import schedule_of
from dpconformal.heads.head import Head, check_learner
from dpconformal.pytree import register


@register()
@dataclass(frozen=True)
class Corrected(Head):
    """
    Ask the belief for a slightly higher level, such that coverage is at least ``level`` in finite samples.

    If the scores are exchangeable, with ties or without, the next one is covered with probability at least ``level``,
    averaged over past and future, as by split conformal; with any prior, even one chosen from anything but the coming
    score. Where that asks for more than the scores can give, the threshold is the upper end of the support. Thresholds
    never cross. On a bounded support the regret is bounded on any sequence, by O(R√T) with a uniform prior and λ_t =
    1/√t: :func:`dpconformal.theory.corrected_regret_bound`.

    Parameters
    ----------
    learner : Exact or Quantized
        A belief without a discount. With prior weight λ after n scores, level ℓ becomes λ + (1-λ)ℓ(n+1)/n: with
        ``schedules.Dirichlet(a)`` that is (ℓ(n+1) + a)/(n + a), see :func:`dpconformal.theory.corrected_level`.

    Notes
    -----
    With ``Quantized(rounding="nearest")`` thresholds are raised to the upper edge of their bin, so that the statement
    holds for the scores themselves. With ``rounding="up"`` they are there already.

    Examples
    --------
    >>> import dpconformal as dpc
    >>> head = Corrected(dpc.Exact(schedule=dpc.schedules.Dirichlet(5.0)))
    >>> state = dpc.replay(head, dpc.streams.iid(100), levels=[0.9]).state
    >>> asked = dpc.theory.corrected_level(0.9, count=100, concentration=5.0)
    >>> bool(abs(head.quantile(state, 0.9) - head.learner.quantile(state, asked)) < 1e-6)
    True
    """

    learner: Any = Exact()

    def __post_init__(self) -> None:
        check_learner("Corrected", self.learner)

    def asked(self, seen: Array, levels: Array) -> Array:
        """Return the levels to ask for, given the number of scores, inside ``jit`` too."""
        count = jnp.maximum(seen, 1).astype(levels.dtype)
        weight = schedule_of(self.learner).weight(count + 1)
        wanted = levels * ((count + 1) / count)  # of the scores; all of them where rounding alone says less
        asked = jnp.where(wanted >= 1 - 8 * jnp.finfo(levels.dtype).eps, 1, weight + (1 - weight) * wanted)
        asked = jnp.where(jnp.isnan(levels), levels, asked)
        asked = jnp.where(seen == 0, jnp.where(jnp.isnan(levels), levels, 1), asked)
        return jnp.where(levels == 0, 0, asked)  # nothing need be covered
