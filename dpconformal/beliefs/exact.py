"""The paper's Algorithm 1: the exact belief, plain or discounted."""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from dpconformal.beliefs.belief import Belief
from dpconformal.beliefs.kernels import EXACT
from dpconformal.beliefs.sorted_scores import (
    FIRST_CAPACITY,
    SortedScores,
    check_sorted,
    empty,
    grow,
    merge,
    take_in,
)
from dpconformal.beliefs.weights import (
    check_belief,
    check_fresh,
    check_rounds,
    check_valid_count,
    closes_over_traced,
    weights_of,
)
from dpconformal.engine.kernel import run_kernel
from dpconformal.priors import Prior, Uniform
from dpconformal.pytree import register
from dpconformal.replay import Replay, Summary, replay
from dpconformal.rounds import Rounds
from dpconformal.validation import Numbers, Scalar, as_levels, check_int


@register(static=("capacity",))
@dataclass(frozen=True)
class Exact:
    """
    Belief P_t = λ_t P0 + (1 - λ_t) · empirical distribution of the past scores.

    The posterior mean of a Dirichlet process, and a non-linearised Follow-the-Regularised-Leader for
    every level at once. Thresholds never cross.

    With λ_t = 1/√t and a uniform prior on [0, R], regret is O(R√T) for every level on any sequence;
    if the scores are iid, coverage is right up to O(1/√t).

    Parameters
    ----------
    prior : Prior
        P0. Its support must hold every score.
    schedule : Schedule or callable, optional
        λ_t. By default 1/√t, or with a discount the matching ``schedules.discounted(discount)``.
    discount : float, optional
        β in (0, 1): a score k rounds old counts β^k. The memory is about 1/(1 - β) rounds.
    capacity : int, optional
        Scores that a fresh state has room for. It grows by doubling as needed outside ``jit``, and
        :func:`dpconformal.replay` makes room for its rounds. Inside your own ``jit`` or ``vmap`` a full state
        turns to NaN: give a capacity, or make room with ``learner.prepare(state, rounds)``.

    Examples
    --------
    >>> belief = Exact()
    >>> state = belief.observe(belief.init(), 0.3)
    >>> belief.quantile(state, [0.1, 0.5, 0.9]).round(3)
    Array([0.141, 0.3  , 0.859], dtype=float...)
    """

    prior: Prior = Uniform()
    schedule: Any = None
    discount: Scalar | None = None
    capacity: int | None = None

    def __post_init__(self) -> None:
        check_belief("Exact", self)
        if self.capacity is not None:
            object.__setattr__(self, "capacity", check_int("Exact.capacity", self.capacity, 1))

    @property
    def support(self) -> tuple[Scalar, Scalar]:
        """Ends of the interval that holds every score."""
        return self.prior.support

    def kernel(self, begin: SortedScores, fresh: bool, rounds: Rounds, keep: str) -> tuple[Any, SortedScores] | None:
        """Replay in native loops; None for a schedule whose function closes over a traced value."""
        if self.schedule is not None and closes_over_traced(self.schedule):
            return None
        return run_kernel(EXACT, self, begin, fresh, rounds, keep)

    def init(self, rounds: int | None = None, dtype: Any = None) -> SortedScores:
        """Return the state before any score, with room for ``rounds`` of them."""
        dtype = dtype or jnp.result_type(float)
        check_fresh(self, rounds, dtype)
        if rounds is None:
            return empty(0, dtype, self.capacity or FIRST_CAPACITY)
        return empty(rounds, dtype, self.capacity or 1)

    def prepare(self, state: SortedScores, rounds: int) -> SortedScores:
        """Make room for more rounds, also in a batch of states, and check the schedule on them."""
        check_sorted(self, state, batched=True)
        check_valid_count(state.seen)
        if rounds:  # without any, nothing need be compiled
            check_rounds(self, state.seen, rounds, state.values.dtype)
        return grow(state, rounds)

    def observe(self, state: SortedScores, score: Numbers) -> SortedScores:
        """Return the state after one more score."""
        check_sorted(self, state)
        return take_in(state, score, self.support)

    def belief(self, state: SortedScores) -> Belief:
        """Return the distribution of the next score."""
        check_sorted(self, state)
        return _belief(self, state)

    def quantile(self, state: SortedScores, levels: Numbers) -> Float[Array, "..."]:
        """Predict the threshold of each level."""
        check_sorted(self, state)
        return _quantile(self, state, as_levels(levels, state.values.dtype))

    def cdf(self, state: SortedScores, x: Numbers, side: str = "right") -> Float[Array, "..."]:
        """Probability that the next score is at most x; with ``side="left"`` below x."""
        return self.belief(state).cdf(x, side)

    def replay(
        self, scores: Numbers, levels: Numbers, state: SortedScores | None = None, keep: str = "all"
    ) -> Replay | Summary:
        """Run over recorded scores: :func:`dpconformal.replay`."""
        return replay(self, scores, levels, state, keep)

    def merge(self, first: SortedScores, second: SortedScores) -> SortedScores:
        """Return the state that saw the scores of ``first``, then those of ``second``."""
        check_sorted(self, first, second)
        return merge(first, second)


@jax.jit
def _belief(learner: Exact, state: SortedScores) -> Belief:
    dtype, capacity = state.values.dtype, state.values.shape[-1]
    weights = weights_of(learner, state.seen, dtype)
    used = jnp.maximum(state.seen, 0)
    if weights.discount is None:
        cumulative = weights.atom * jnp.arange(capacity + 1, dtype=dtype)
    else:
        age = (used - state.arrivals).astype(dtype)
        mass = jnp.where(jnp.arange(capacity, dtype=used.dtype) < used, weights.atom * weights.discount**age, 0)
        cumulative = jnp.concatenate([jnp.zeros(1, dtype), jnp.cumsum(mass)])
    return Belief(learner.prior, weights.prior, state.values, cumulative, used)


@jax.jit
def _quantile(learner: Exact, state: SortedScores, levels: Array) -> Array:
    return _belief(learner, state).quantile(levels)
