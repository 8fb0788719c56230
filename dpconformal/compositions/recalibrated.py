"""A belief through the probability integral transforms (PITs) of another one."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from dpconformal.beliefs import Quantized
from dpconformal.compositions.stacks import takes_context
from dpconformal.engine.states import broadcast_state
from dpconformal.engine.totals import sum_totals, totals_of
from dpconformal.learner import (
    BeliefLearner,
    ContextLearner,
    Learner,
    PlayedLearner,
    SizedLearner,
    State,
    check_levels,
    fresh_state,
    support_of,
)
from dpconformal.pytree import register
from dpconformal.replay import run_pits, run_replay, slices_with_room
from dpconformal.rounds import Rounds
from dpconformal.schedules import Constant
from dpconformal.validation import Numbers, Scalar, as_score, check_not_batched, is_traced


def default_by() -> Quantized:
    """Return the belief about PITs that is the default: it forgets, and its prior weighs as much as one PIT."""
    # Rounded up, a PIT of the last bin would count at 1, and a threshold on the whole line would be infinite.
    return Quantized(256, schedule=Constant(0.01), discount=0.99, rounding="nearest")


class Recalibration(NamedTuple):
    """What a recalibrated belief knows."""

    base: State  # of the forecasts
    by: State  # of their PITs

    @property
    def seen(self) -> Array:
        """How many scores; -1 once a bad one was met inside ``jit``."""
        return self.by.seen

    def check(self, learner: Any) -> None:
        """Refuse what no replay leaves: both have seen the same rounds."""
        self.base.check(learner.base)
        self.by.check(learner.by)
        if not np.array_equal(self.base.seen, self.by.seen):
            raise ValueError("state.by must have seen as many scores as state.base")


class Told(NamedTuple):
    """What a recalibrated belief is told of a round beside its score."""

    base: Any = None  # the context of the base, if it takes one
    by: Any = None  # that of the other learner
    pit: Any = None  # (), of the forecast that was played, where the score comes with a delay


@register()
@dataclass(frozen=True)
class Recalibrated:
    """
    A belief through the PITs of another one: the quantile of level l(α) of ``base``, where ``by`` learns l.

    Let F be what ``base`` believes of the next score, just before it. Its PIT is u = F(s-), the left limit. ``by`` is
    any learner on [0, 1] that sees the PITs, and answers level α with l(α); the threshold is F⁻¹(l(α)). So the cdf is
    C(F(x)), where C is that of ``by``. If the base is right, PITs are uniform, and nothing changes; if it is wrong in
    the same way again and again, that is what ``by`` learns.

    Guarantee, on any sequence of scores, if F increases strictly on the support: s ≤ threshold in exactly the rounds in
    which u ≤ l(α). So what is promised of the coverage of ``by`` on scores in [0, 1] holds here, gaps and delays
    included; and thresholds do not cross if those of ``by`` do not. The regret of ``by`` is one in PITs: no range of
    the scores appears in it. Nothing of this holds where F is flat, as the empirical distribution of :class:`ERM` is.
    For ``Exact`` in the place of ``by`` it is the paper's belief with F for its prior, which moves with the rounds.

    Parameters
    ----------
    base : Learner
        A belief: a learner with a cdf, on any support. One of :mod:`dpconformal.forecasts` needs no range.
    by : Learner, optional
        A learner on [0, 1]. By default a light ``Quantized`` that forgets: 256 bins that round to the nearest, discount
        0.99, and a prior of weight 0.01. No coverage is promised of it; it is what does well.

    Notes
    -----
    ``context`` is that of the part that takes one; if both do, a dictionary with the keys "base" and "by".

    References
    ----------
    Kuleshov, Fenner and Ermon (2018), Accurate uncertainties for deep learning using calibrated regression, and
    Chernozhukov, Wüthrich and Zhu (2021), Distributional conformal prediction, recalibrate by the PITs of a held-out
    set. This is the online form.

    Examples
    --------
    >>> import dpconformal as dpc
    >>> scores = 100 + dpc.streams.drifting(2000)
    >>> learner = Recalibrated(dpc.forecasts.AutoRegression(order=1))
    >>> run = dpc.replay(learner, scores, levels=[0.5, 0.9])
    >>> bool(abs(dpc.metrics.coverage(run) - run.levels).max() < 0.02)
    True
    """

    base: Any
    by: Any = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "by", default_by() if self.by is None else self.by)
        for name, part in (("base", self.base), ("by", self.by)):
            if not isinstance(part, Learner) or isinstance(part, type):
                raise ValueError(f"Recalibrated.{name} = {part!r}: pass a learner, an instance")
        if not isinstance(self.base, BeliefLearner):
            raise ValueError(f"Recalibrated.base is {type(self.base).__name__}: pass a belief, which has a cdf")
        support = support_of(self.by)
        if not is_traced(support) and not np.array_equal(support, (0, 1)):
            raise ValueError(f"Recalibrated.by has support {support}: PITs are in [0, 1]; pass a learner on [0, 1]")

    @property
    def learners(self) -> tuple[Any, Any]:
        """Base, and the learner of its PITs."""
        return self.base, self.by

    @property
    def support(self) -> tuple[Scalar, Scalar]:
        """Ends of the interval that holds every score."""
        return support_of(self.base)

    def init(self, rounds: int | None = None, dtype: Any = None) -> Recalibration:
        """Return the state before any score."""
        if rounds is None:
            return Recalibration(*(part.init() for part in self.learners))
        dtype = dtype or jnp.result_type(float)
        return Recalibration(*(fresh_state(part, rounds, dtype) for part in self.learners))

    def prepare(self, state: Any, rounds: int) -> Recalibration:
        """Make room for more rounds, also in a batch of states."""
        self._check(state)
        parts = zip(self.learners, state, strict=True)
        return Recalibration(
            *(part.prepare(own, rounds) if isinstance(part, SizedLearner) else own for part, own in parts)
        )

    def check_levels(self, levels: Numbers, why: str = "") -> None:
        """Refuse levels that ``by`` cannot answer."""
        check_levels(self.by, levels, why)

    def as_context(self, context: Any, shape: tuple[int, ...]) -> Told:
        """Check what a replay tells the parts."""
        told = self._told(context)
        parts = zip(self.learners, told[:2], strict=True)
        return Told(*(part.as_context(own, shape) if isinstance(part, ContextLearner) else None for part, own in parts))

    def quantile(self, state: Any, levels: Numbers, context: Any = None) -> Float[Array, "..."]:
        """Predict the threshold of each level."""
        self._check(state)
        told = self._told(context)
        asked = jnp.clip(self.by.quantile(state.by, levels, **_given(told.by)), 0, 1)
        return self.base.quantile(state.base, asked, **_given(told.base))

    def cdf(self, state: Any, x: Numbers, side: str = "right", context: Any = None) -> Float[Array, "..."]:
        """Probability that the next score is at most x; with ``side="left"`` below x."""
        self._check(state)
        if not isinstance(self.by, BeliefLearner):
            raise ValueError(f"Recalibrated.by is {type(self.by).__name__}, which has no cdf: pass a belief for by")
        told = self._told(context)
        inner = self.base.cdf(state.base, x, side, **_given(told.base))
        return self.by.cdf(state.by, inner, side, **_given(told.by))

    def observe(self, state: Any, score: Numbers, context: Any = None) -> Recalibration:
        """Return the state after one more score."""
        self._check(state)
        told, score = self._told(context), as_score(score, self.support)
        pit = told.pit
        if pit is None:
            pit = self.base.cdf(state.base, score, "left", **_given(told.base))
        by = self.by.observe(state.by, jnp.clip(pit, 0, 1), **_given(told.by))
        return Recalibration(self.base.observe(state.base, score, **_given(told.base)), by)

    def played(self, begin: Recalibration, fresh: bool, rounds: Rounds, feedback: Callable[[Rounds], Rounds]) -> Told:
        """Add the PITs of the forecasts that are played: under a delay they come with the scores."""
        told = rounds.context._replace(pit=np.zeros(rounds.scores.shape, rounds.scores.dtype))

        def of_base(rounds: Rounds) -> Rounds:
            return rounds._replace(context=rounds.context.base)

        def feedback_of_base(own: Rounds) -> Rounds:
            return of_base(feedback(own._replace(context=told._replace(base=own.context))))

        own = of_base(rounds)
        if isinstance(self.base, PlayedLearner):
            own = own._replace(context=self.base.played(begin.base, fresh, own, feedback_of_base))
        pits, _ = run_pits(self.base, begin.base, fresh, own._replace(feedback=feedback_of_base(own)))
        return told._replace(base=own.context, pit=pits)

    def kernel(self, begin: Recalibration, fresh: bool, rounds: Rounds, keep: str) -> tuple[Any, State] | None:
        """
        Replay part by part: the PITs of the base, what ``by`` makes of them, and the base at these levels.

        None where the rounds are those of a delay, and what is known of a round is not what is known of its score.
        """
        rounds = rounds._replace(context=rounds.context or Told())
        told = rounds.context
        if told.pit is not None and (told.base is not None or told.by is not None):
            return None
        if keep == "all":
            return self._replay(begin, fresh, rounds)
        parts, state = [], broadcast_state(begin, rounds.batch) if fresh else begin
        for own in map(rounds.part, slices_with_room(rounds)):
            thresholds, state = self._replay(state, False, own)
            parts.append(totals_of(thresholds, own.scores, own.levels, own.observed))
        if is_traced(parts):
            return jax.tree.map(lambda *leaves: sum(leaves[1:], leaves[0]), *parts), state
        return sum_totals(parts), state

    def _replay(self, begin: Recalibration, fresh: bool, rounds: Rounds) -> tuple[Any, State]:
        told, of_base = rounds.context, rounds._replace(context=rounds.context.base)
        pits = told.pit if told.pit is not None else run_pits(self.base, begin.base, fresh, of_base)[0]
        of_by = rounds._replace(scores=_as_probabilities(pits), context=told.by)
        levels, by = run_replay(self.by, begin.by, fresh, of_by, "all")
        own = of_base._replace(levels=_as_probabilities(levels))
        thresholds, base = run_replay(self.base, begin.base, fresh, own, "all")
        return thresholds, Recalibration(base, by)

    def _told(self, context: Any) -> Told:
        """Hand a context to the part that takes one."""
        if context is None or isinstance(context, Told):
            return context or Told()
        base, by = map(takes_context, self.learners)
        if base and by:
            if not isinstance(context, dict) or context.keys() != {"base", "by"}:
                raise ValueError("context: base and by both take one; pass a dictionary with the keys 'base' and 'by'")
            return Told(**context)
        if not base and not by:
            raise ValueError("context is given, and neither base nor by of this Recalibrated takes one")
        return Told(base=context) if base else Told(by=context)

    def _check(self, state: Any) -> None:
        check_not_batched(self)
        if not isinstance(state, Recalibration):
            raise ValueError(
                f"state is a {type(state).__name__}: Recalibrated carries on from a Recalibration, such as run.state"
            )


def _given(context: Any) -> dict[str, Any]:
    return {} if context is None else {"context": context}


def _as_probabilities(values: Any) -> Any:
    """Put what rounding or a gradient step carried out of [0, 1] back; on the host where it can be looked at."""
    return jnp.clip(values, 0, 1) if is_traced(values) else np.clip(np.asarray(values), 0, 1)
