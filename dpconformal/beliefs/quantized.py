"""The quantized belief: counts in equal bins, so memory does not grow with time."""

import math
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from dpconformal.beliefs.belief import Belief
from dpconformal.beliefs.bins import BinnedScores, bin_atoms, bin_index, check_rounding
from dpconformal.beliefs.kernels import QUANTIZED
from dpconformal.beliefs.weights import (
    check_belief,
    check_fresh,
    check_rounds,
    check_valid_count,
    closes_over_traced,
    weights_of,
)
from dpconformal.engine.kernel import run_kernel
from dpconformal.engine.states import advance, check_countable, joint_count, ready_to_merge, room_to_count
from dpconformal.learner import is_valid_score
from dpconformal.priors import Prior, Uniform
from dpconformal.pytree import register
from dpconformal.replay import Replay, Summary, replay
from dpconformal.rounds import Rounds
from dpconformal.validation import (
    Numbers,
    Scalar,
    as_floats,
    as_levels,
    as_score,
    check_not_batched,
    check_size,
    is_traced,
)


@register(static=("bins", "rounding"))
@dataclass(frozen=True)
class Quantized:
    """
    The exact belief with each score moved up to the edge of its bin: memory O(bins).

    A threshold is at least that of :class:`Exact`, and at most one bin above it. So if the scores are iid, or
    exchangeable, coverage is at least what Exact guarantees, and a threshold at an edge has been learned from
    exactly the scores up to it. With √T bins the regret is still O(R√T). Thresholds never cross.

    Parameters
    ----------
    bins : int, optional
        Bins of equal width over the prior's support. None: ⌈√T⌉, decided by the first
        :func:`dpconformal.replay` and kept when its state is carried on.
    prior : Prior
        P0, on a bounded support that holds every score. It stays continuous.
    schedule : Schedule or callable, optional
        λ_t. By default 1/√t, or with a discount the matching ``schedules.discounted(discount)``.
    discount : float, optional
        β in (0, 1): a score k rounds old counts β^k.
    rounding : {"up", "nearest"}
        Where a score counts. "up": at the upper edge of its bin; an edge belongs to the bin below it, and the lower end
        of the support to the first bin. Edges are floating-point numbers: on supports whose ends have few digits those
        that are meant, but the 0.2 of [0, 0.3] in three bins is 0.19999999999999998, and a score of 0.2 counts at
        0.3. "nearest", as in the paper: at the centre; an edge belongs to the bin
        above it, and the upper end to the last bin. Then half of a bin's scores lie above the point where
        they count, so that coverage can fall short however long the run is: scores that all lie in the upper half
        of one bin are hardly ever covered.

    Examples
    --------
    >>> belief = Quantized(bins=4)
    >>> state = belief.observe(belief.init(), 0.3)
    >>> state.weights
    Array([0, 1, 0, 0], dtype=int32)
    >>> float(belief.quantile(state, 0.5)), float(Quantized(4, rounding="nearest").quantile(state, 0.5))
    (0.5, 0.375)
    """

    bins: int | None = None
    prior: Prior = Uniform()
    schedule: Any = None
    discount: Scalar | None = None
    rounding: str = "up"

    def __post_init__(self) -> None:
        check_belief("Quantized", self)
        check_rounding("Quantized.rounding", self.rounding)
        if self.bins is not None:
            object.__setattr__(self, "bins", check_size("Quantized.bins", self.bins, 1))
        if not is_traced(self.support) and not np.all(np.isfinite(self.support)):
            raise ValueError(f"Quantized.prior has support {self.support}: equal bins need a bounded one")

    @property
    def support(self) -> tuple[Scalar, Scalar]:
        """Ends of the interval that holds every score."""
        return self.prior.support

    def kernel(self, begin: BinnedScores, fresh: bool, rounds: Rounds, keep: str) -> tuple[Any, BinnedScores] | None:
        """Replay in native loops; None with weights, and for a schedule whose function closes over a traced value."""
        weighted = self.discount is None and not jnp.issubdtype(begin.weights.dtype, jnp.integer)
        if rounds.weights is not None or weighted or closes_over_traced(self.schedule):
            return None
        return run_kernel(QUANTIZED, self, begin, fresh, rounds, keep)

    def init(self, rounds: int | None = None, dtype: Any = None) -> BinnedScores:
        """Return the state before any score."""
        if rounds is None and self.bins is None:
            raise ValueError("Quantized.bins = None: a number of bins is needed outside replay, such as bins=64")
        dtype = dtype or jnp.result_type(float)
        check_fresh(self, rounds, dtype)
        bins = self.bins or max(math.isqrt(max(rounds or 0, 1) - 1) + 1, 1)
        weights = jnp.zeros(bins, jnp.int32 if self.discount is None else dtype)
        return BinnedScores(jnp.zeros((), jnp.int32), weights)

    def prepare(self, state: BinnedScores, rounds: int) -> BinnedScores:
        """Check the schedule on the rounds to come, and that they can be counted."""
        self._check(state, batched=True)
        check_valid_count(state.seen)
        if rounds:  # without any, nothing need be compiled
            check_rounds(self, state.seen, rounds, self._dtype(state))
        return room_to_count(state, rounds)

    def observe(self, state: BinnedScores, score: Numbers) -> BinnedScores:
        """Return the state after one more score."""
        self._check(state)
        return _observe(self, room_to_count(state, 1), as_score(score, self.support))

    def weighted_state(self, state: BinnedScores, dtype: Any) -> BinnedScores:
        """Return a state, or a batch of them, whose counts need not be whole numbers."""
        if self.discount is not None:
            raise ValueError(
                f"weights are given, and this Quantized has discount = {self.discount}: leave the discount out, or let "
                "the weights grow by its inverse from round to round"
            )
        return state._replace(weights=state.weights.astype(dtype))

    def observe_weighted(self, state: BinnedScores, score: Numbers, weight: Array) -> BinnedScores:
        """Return the state after one more score, whose mass is multiplied by its weight."""
        self._check(state)
        return _observe(self, room_to_count(state, 1), as_score(score, self.support), weight)

    def belief(self, state: BinnedScores, dtype: Any = None) -> Belief:
        """Return the distribution of the next score."""
        self._check(state)
        return _belief(self, state, np.dtype(dtype or self._dtype(state)))

    def quantile(self, state: BinnedScores, levels: Numbers) -> Float[Array, "..."]:
        """Predict the threshold of each level."""
        self._check(state)
        return _quantile(self, state, as_levels(levels, None if self.discount is None else state.weights.dtype))

    def cdf(self, state: BinnedScores, x: Numbers, side: str = "right") -> Float[Array, "..."]:
        """Probability that the next score is at most x; with ``side="left"`` below x."""
        x = as_floats(x)
        return self.belief(state, x.dtype if self.discount is None else None).cdf(x, side)

    def replay(
        self, scores: Numbers, levels: Numbers, state: BinnedScores | None = None, keep: str = "all"
    ) -> Replay | Summary:
        """Run over recorded scores: :func:`dpconformal.replay`."""
        return replay(self, scores, levels, state, keep)

    def merge(self, first: BinnedScores, second: BinnedScores) -> BinnedScores:
        """Return the state that saw the scores of ``first``, then those of ``second``."""
        self._check(first, second)
        bins = first.weights.shape[-1], second.weights.shape[-1]
        if bins[0] != bins[1]:
            raise ValueError(f"second has {bins[1]} bins and first {bins[0]}: only equal bins merge")
        return _merge(self, *ready_to_merge(first, second))

    def _check(self, *states: Any, batched: bool = False) -> None:
        """Refuse states of another kind, batches where one state is meant, and bins that do not fit."""
        check_not_batched(self)
        for state in states:
            if not isinstance(state, BinnedScores):
                raise ValueError(
                    f"state is a {type(state).__name__}: Quantized carries on from a BinnedScores, such as run.state"
                )
            check_countable(state)
            if np.ndim(state.seen) and not batched:
                raise ValueError(f"state is a batch of shape {np.shape(state.seen)}: use jax.vmap")
            whole_counts = jnp.issubdtype(state.weights.dtype, jnp.integer)
            if whole_counts and self.discount is not None:
                kind = "without" if whole_counts else "with"
                raise ValueError(f"state was made {kind} a discount, and this Quantized has discount = {self.discount}")
            bins = state.weights.shape[-1]
            if self.bins is not None and bins != self.bins:
                raise ValueError(f"state has {bins} bins, and this Quantized has bins = {self.bins}")

    def _dtype(self, state: BinnedScores) -> Any:
        return jnp.result_type(float) if self.discount is None else state.weights.dtype


@jax.jit
def _observe(learner: Quantized, state: BinnedScores, score: Array, weight: Array | None = None) -> BinnedScores:
    valid = is_valid_score(score, learner.support)
    if weight is not None:
        valid &= jnp.isfinite(weight) & (weight >= 0)
    bins, known = state.weights.shape[-1], jnp.where(valid, score, jnp.asarray(learner.support[0], score.dtype))
    here = jnp.arange(bins, dtype=jnp.int32) == bin_index(known, learner.support, bins, learner.rounding)
    old = state.weights
    if learner.discount is not None:
        old = old * jnp.asarray(learner.discount, old.dtype)
    mass = here.astype(old.dtype) if weight is None else jnp.where(here, weight, 0).astype(old.dtype)
    return BinnedScores(advance(state.seen, valid), old + mass)


@jax.jit
def _merge(learner: Quantized, first: BinnedScores, second: BinnedScores) -> BinnedScores:
    earlier = first.weights
    if learner.discount is not None:
        discount = jnp.asarray(learner.discount, earlier.dtype)
        earlier = earlier * discount ** second.seen.astype(earlier.dtype)
    dtype = np.result_type(earlier.dtype, second.weights.dtype)
    weights = earlier.astype(dtype) + second.weights.astype(dtype)
    return BinnedScores(joint_count(first.seen, second.seen), weights)


@jax.jit(static_argnames="dtype")
def _belief(learner: Quantized, state: BinnedScores, dtype: Any) -> Belief:
    bins = state.weights.shape[-1]
    weights = weights_of(learner, state.seen, dtype)
    atoms = bin_atoms(learner.support, bins, dtype, learner.rounding)
    prior, atom = weights.prior, weights.atom
    if learner.discount is None and not jnp.issubdtype(state.weights.dtype, jnp.integer):  # scores count unequally
        total = jnp.sum(state.weights).astype(dtype)
        prior = jnp.where((total > 0) | jnp.isnan(prior), prior, 1)
        atom = (1 - prior) / jnp.where(total > 0, total, 1)
    mass = atom * jnp.cumsum(state.weights).astype(dtype)
    cumulative = jnp.concatenate([jnp.zeros(1, dtype), mass])
    return Belief(learner.prior, prior, atoms, cumulative, jnp.asarray(bins, jnp.int32))


@jax.jit
def _quantile(learner: Quantized, state: BinnedScores, levels: Array) -> Array:
    return _belief(learner, state, levels.dtype).quantile(levels)
