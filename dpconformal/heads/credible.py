"""The credible threshold: with high posterior probability it covers at least as often as it should."""

from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from dpconformal.beliefs import Exact
from dpconformal.heads.credible_level import credible_level_in_jit, credible_levels
from dpconformal.heads.head import Head, check_learner
from dpconformal.pytree import register
from dpconformal.schedules import Dirichlet
from dpconformal.validation import Scalar, is_traced, number


@register()
@dataclass(frozen=True)
class Credible(Head):
    """
    The smallest r such that, given the scores, P(F(r) ≥ level) ≥ confidence: a Bayesian tolerance bound.

    The quantile of the posterior mean covers ``level`` on average; this threshold covers at least ``level`` with
    posterior probability ``confidence``. It is that quantile of the posterior of q_level, closed-form by the Beta
    marginals of the Dirichlet process, and approaches the plain one at rate 1/√n. Thresholds never cross.

    Parameters
    ----------
    learner : Exact or Quantized
        A belief with ``schedules.Dirichlet(a)`` and no discount. A schedule such as 1/√t is another prior every round,
        so that there is no posterior to speak of.
    confidence : float
        In (0, 1). At 0.5 the threshold is the posterior median of the quantile.

    Notes
    -----
    With ``Quantized(rounding="nearest")`` thresholds are raised to the upper edge of their bin, so that the statement
    holds for the scores themselves. With ``rounding="up"`` they are there already.

    Inside your own ``jit``, with a traced state, the level is solved for on the host in float64.

    Examples
    --------
    >>> import dpconformal as dpc
    >>> head = Credible(dpc.Exact(schedule=dpc.schedules.Dirichlet(5.0)), confidence=0.95)
    >>> run = dpc.replay(head, dpc.streams.iid(200), levels=[0.5, 0.9])
    >>> bool((run.thresholds >= dpc.replay(head.learner, dpc.streams.iid(200), [0.5, 0.9]).thresholds).all())
    True
    """

    learner: Any = Exact(schedule=Dirichlet(1.0))
    confidence: Scalar = 0.95

    def __post_init__(self) -> None:
        check_learner("Credible", self.learner)
        if not isinstance(self.learner.schedule, Dirichlet):
            raise ValueError(
                f"Credible.learner has schedule = {self.learner.schedule!r}: posterior probabilities belong to a fixed "
                "concentration; pass schedule=schedules.Dirichlet(a), or use Corrected"
            )
        confidence = number("Credible.confidence", self.confidence, 0.0, 1.0, open_low=True, open_high=True)
        object.__setattr__(self, "confidence", confidence)

    def asked(self, seen: Array, levels: Array) -> Array:
        """Return the levels to ask for, given the number of scores, inside ``jit`` too."""
        total = self._total(seen)
        if is_traced(levels, total, self.confidence):
            return credible_level_in_jit(levels, self.confidence, total)
        answer = credible_levels(
            np.asarray(levels, float).reshape(-1), float(self.confidence), np.array([float(total)])
        )
        return jnp.asarray(answer.reshape(levels.shape), levels.dtype)

    def asked_by_round(self, seen: Any, levels: Any) -> Any:
        """Return the levels to ask for in many rounds."""
        if is_traced(self, seen, levels):
            return credible_level_in_jit(jnp.asarray(levels), self.confidence, self._total(jnp.asarray(seen)))
        return credible_levels(levels, float(self.confidence), float(self.learner.schedule.concentration) + seen)

    def _total(self, seen: Array) -> Array:
        """Add up concentration and scores; NaN for a spoilt state. Beyond 2²⁴ float32 rounds, which moves no level."""
        total = jnp.asarray(self.learner.schedule.concentration, jnp.result_type(float)) + seen.astype(float)
        return jnp.where(seen < 0, jnp.nan, total)
