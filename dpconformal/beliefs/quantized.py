"""
The quantized belief: counts in equal bins, so memory does not grow with time.

First the bins: where a score belongs and where it counts, to the bit. Then the learner, and its native kernel, in which
a pointer for each level walks the bins.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Bool, Float, Int, Num

from dpconformal.beliefs.belief import (
    Belief,
    DirichletLearner,
    check_rounds,
    check_state,
    check_valid_count,
    closes_over_traced,
    walk_of_pits,
    weights_by_round,
    weights_of,
)
from dpconformal.engine.kernel import NativeKernel, Segment, padded_segments, run_kernel, take_segment
from dpconformal.engine.pointer_loop import NO_PLACE, arrivals_by_round, block_and_decays, epoch_for, run_blocks
from dpconformal.engine.states import advance, check_countable, joint_count, ready_to_merge, room_to_count
from dpconformal.engine.walks import bin_walk, tree_walk
from dpconformal.learner import is_valid_score
from dpconformal.priors import Prior, Uniform
from dpconformal.pytree import register
from dpconformal.rounds import Rounds
from dpconformal.validation import (
    Numbers,
    Scalar,
    add_trailing_axes,
    as_score,
    check_int,
    check_not_batched,
    check_size,
    check_within,
    is_traced,
    raise_at,
)

# Where a score counts: at the upper edge of its right-closed bin, or at the centre of its left-closed one.
ROUNDINGS = ("up", "nearest")
LONGEST = 2**20  # rounds of a segment: working memory does not grow with their number


def check_rounding(name: str, rounding: Any) -> None:
    """Refuse a rounding that is neither "up" nor "nearest"."""
    if rounding not in ROUNDINGS:
        raise ValueError(f"{name} = {rounding!r}: pass 'up', to the bin's upper edge, or 'nearest', to its centre")


def bin_index(scores: Float[Array, "*n"], support: tuple[Scalar, Scalar], bins: int, rounding: str) -> Int[Array, "*n"]:
    """
    Return the bin of each score, counted from 0; correct to the last bit, also where division rounds.

    With "nearest" an edge belongs to the bin above it, with "up" to the one below it. The ends of the support belong to
    the first and the last bin either way.
    """
    low, high = (jnp.asarray(end, scores.dtype) for end in support)
    scores, low, high = lax.stop_gradient((scores, low, high))
    place = (scores - low) / (high - low) * bins
    if rounding == "nearest":
        k = jnp.floor(place)
        below, beyond = scores < edge_of(low, high, k, bins), scores >= edge_of(low, high, k + 1, bins)
    else:
        k = jnp.ceil(place) - 1
        below, beyond = scores <= edge_of(low, high, k, bins), scores > edge_of(low, high, k + 1, bins)
    k = jnp.where(below, k - 1, jnp.where(beyond, k + 1, k))
    return jnp.clip(k, 0, bins - 1).astype(jnp.int32)


def bin_edges(support: tuple[Scalar, Scalar], bins: int, dtype: Any) -> Float[Array, " E"]:
    """Return the edges of the bins, shape (bins + 1,); the ends are those of the support, to the bit."""
    low, high = (jnp.asarray(end, dtype) for end in support)
    return edge_of(low, high, jnp.arange(bins + 1, dtype=dtype), bins)


def bin_atoms(support: tuple[Scalar, Scalar], bins: int, dtype: Any, rounding: str) -> Float[Array, " K"]:
    """Return where the scores of each bin count, shape (bins,): at its upper edge, or at its centre."""
    if rounding == "up":
        return bin_edges(support, bins, dtype)[1:]
    low, high = (jnp.asarray(end, dtype) for end in support)
    return part_way(low, high, jnp.arange(bins, dtype=dtype) + 0.5, jnp.asarray(bins, dtype))


def edge_of(low: Float[Array, ""], high: Float[Array, ""], k: Float[Array, "*n"], bins: int) -> Float[Array, "*n"]:
    """Compute edges of equal bins: the same bits in every program, and the last one is the end of the support."""
    # XLA turns a division by one number into a product with its rounded inverse. It cannot, behind a barrier, if every
    # axis that `vmap` may add is there.
    size = lax.optimization_barrier(jnp.broadcast_to(low - low + high - high + bins, k.shape).astype(low.dtype))
    # On [-5, 5] the sum low + part rounds twice, and may be the neighbour of the decimal that is meant. Where products
    # are exact there is a better way, and a fused multiplication and addition changes no bit of it.
    over = (low * bins + k * (high - low)) / size
    edges = jnp.where(_has_few_digits(low, high, bins), over, part_way(low, high, k, size))
    return jnp.where(k == bins, high, edges)


def part_way(
    low: Float[Array, ""], high: Float[Array, ""], part: Float[Array, "*n"], whole: Float[Array, "..."]
) -> Float[Array, "*n"]:
    """Return low + part · (high - low)/whole: ``part`` of ``whole`` equal steps from one end to the other."""
    # Multiplied first. On a support so wide that the product would overflow it is scaled down: a power of two changes
    # no digit.
    width, widest = high - low, jnp.finfo(low.dtype).maxexp
    wide = width > 2.0 ** (widest - 40)
    down, up = (jnp.where(wide, factor, 1).astype(low.dtype) for factor in (2.0**-40, 2.0**40))
    # Multiplied back: of two divisions XLA would make one, which rounds otherwise.
    return low + ((part * (width * down)) / whole) * up


def _has_few_digits(low: Float[Array, ""], high: Float[Array, ""], bins: int) -> Bool[Array, ""]:
    """Whether multiples of the ends and of the width, up to ``bins`` times, and their sums need no rounding."""
    most = bins * (jnp.abs(low) + jnp.abs(high))
    digit = most / jnp.frexp(most)[0] * jnp.finfo(low.dtype).eps / 2  # a power of two, so nothing here is rounded
    return (digit > 0) & (jnp.round(low / digit) * digit == low) & (jnp.round(high / digit) * digit == high)


class BinnedScores(NamedTuple):
    """Scores seen so far, in bins of equal width."""

    seen: Int[Array, "*B"]  # (): how many; -1 once a bad score was met inside ``jit``
    weights: Num[Array, "*B K"]  # (bins,): counts; with a discount Σ β^age of a bin's scores, with weights their sum

    def check(self, learner: Any) -> None:
        """Refuse a state that no replay leaves: its counts do not add up to the scores, or to their discounted mass."""
        weights, discount = np.asarray(self.weights), getattr(learner, "discount", None)
        seen = np.asarray(self.seen, float)
        if not weights.shape[-1]:
            raise ValueError("state.weights must have a bin")
        check_within("state.weights", weights, 0, add_trailing_axes(seen, weights) * 2, "so many scores leave no more")
        total = weights.sum(axis=-1)
        if discount is None:
            raise_at("state.seen", self.seen, total != seen, "counts must add up to state.seen")
        else:
            mass = -np.expm1(seen * np.log(discount)) / (1 - discount)
            # Rounding piles up where a discount is next to 1, but never to half of it all.
            why = "state.weights do not add up to the mass of so many scores"
            raise_at("state.seen", self.seen, (total < mass / 2) | (total > 2 * mass), why)


@register(static=("bins", "rounding"))
@dataclass(frozen=True)
class Quantized(DirichletLearner):
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
        of the support to the first bin. Edges are floating-point numbers: where the ends of the support have few digits
        they are those that are meant, but the 0.2 of [0, 0.3] in three bins is 0.19999999999999998, and a score of 0.2
        counts at 0.3. "nearest", as in the paper: at the centre; an edge belongs to the bin above it, and the upper end
        to the last bin. Half of a bin's scores then lie above the point where they count, and coverage can fall short
        however long the run is: scores in the upper half of one bin are hardly ever covered.

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
        super().__post_init__()
        check_rounding("Quantized.rounding", self.rounding)
        if self.bins is not None:
            object.__setattr__(self, "bins", check_size("Quantized.bins", self.bins, 1))
        if not is_traced(self.support) and not np.all(np.isfinite(self.support)):
            raise ValueError(f"Quantized.prior has support {self.support}: equal bins need a bounded one")

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
        check_not_batched(self)
        dtype, wanted = dtype or jnp.result_type(float), 0 if rounds is None else check_int("rounds", rounds, 0)
        check_rounds(self, 0, wanted, dtype)
        bins = self.bins or math.isqrt(max(wanted, 1) - 1) + 1
        weights = jnp.zeros(bins, jnp.int32 if self.discount is None else dtype)
        return BinnedScores(jnp.zeros((), jnp.int32), weights)

    def prepare(self, state: BinnedScores, rounds: int) -> BinnedScores:
        """Check the schedule on the rounds to come, and that they can be counted."""
        self._check(state, batched=True)
        check_valid_count(state.seen)
        if rounds:  # without any, nothing need be compiled
            check_rounds(self, state.seen, rounds, self._dtype(state) or jnp.result_type(float))
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

    def merge(self, first: BinnedScores, second: BinnedScores) -> BinnedScores:
        """Return the state that saw the scores of ``first``, then those of ``second``."""
        self._check(first, second)
        bins = first.weights.shape[-1], second.weights.shape[-1]
        if bins[0] != bins[1]:
            raise ValueError(f"second has {bins[1]} bins and first {bins[0]}: only equal bins merge")
        return _merge(self, *ready_to_merge(first, second))

    def _check(self, *states: Any, batched: bool = False) -> None:
        for state in states:
            check_state(self, state, BinnedScores, batched)
            check_countable(state)
            if self.discount is not None and jnp.issubdtype(state.weights.dtype, jnp.integer):
                raise ValueError(
                    f"state was made without a discount, and this Quantized has discount = {self.discount}"
                )
            bins = state.weights.shape[-1]
            if self.bins is not None and bins != self.bins:
                raise ValueError(f"state has {bins} bins, and this Quantized has bins = {self.bins}")

    def _dtype(self, state: BinnedScores) -> Any:
        return None if self.discount is None else state.weights.dtype

    def _mix(self, state: BinnedScores, dtype: Any) -> Belief:
        bins = state.weights.shape[-1]
        weights = weights_of(self, state.seen, dtype)
        atoms = bin_atoms(self.support, bins, dtype, self.rounding)
        prior, atom = weights.prior, weights.atom
        if self.discount is None and not jnp.issubdtype(state.weights.dtype, jnp.integer):  # scores count unequally
            total = jnp.sum(state.weights).astype(dtype)
            prior = jnp.where((total > 0) | jnp.isnan(prior), prior, 1)
            atom = (1 - prior) / jnp.where(total > 0, total, 1)
        mass = atom * jnp.cumsum(state.weights).astype(dtype)
        cumulative = jnp.concatenate([jnp.zeros(1, dtype), mass])
        return Belief(self.prior, prior, atoms, cumulative, jnp.asarray(bins, jnp.int32))


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


@jax.jit(static_argnames=("keep", "epoch"))
def _run_bins(
    learner: Quantized, state: BinnedScores, counts: Int[Array, " T"], rounds: Rounds, keep: str, epoch: int | None
) -> Any:
    """Replay rounds of the quantized belief."""
    levels, bins = rounds.levels, state.weights.shape[-1]
    weights = weights_by_round(learner, counts, levels.dtype)
    atoms = bin_atoms(learner.support, bins, levels.dtype, learner.rounding)
    # A level of its own each round has far to walk.
    pointers_suffice = levels.ndim == 1 and keep != "pits"
    no_place = bins if pointers_suffice else NO_PLACE
    own = bin_index(rounds.scores, learner.support, bins, learner.rounding)
    own = jnp.where(rounds.observed, own, no_place).astype(own.dtype)
    rows = arrivals_by_round(own, counts, weights, no_place, epoch)
    rows = rows._replace(mass=rows.mass.astype(state.weights.dtype))
    blocks = block_and_decays(counts, epoch, weights.discount)
    if keep == "pits":
        walk, told = walk_of_pits(learner.prior, state.weights, atoms, rounds, rows)
        return run_blocks(walk, told, rounds, "all", *blocks)
    walk = (bin_walk if pointers_suffice else tree_walk)(learner.prior, state.weights, atoms, levels)
    return run_blocks(walk, rows, rounds, keep, *blocks)


@jax.jit
def _state_after(
    learner: Quantized,
    state: BinnedScores,
    scores: Float[Array, " T"],
    observed: Bool[Array, " T"],
    count: Int[Array, ""],
) -> BinnedScores:
    """Take the observed scores into a state at once; ``count`` of them have then been seen in all."""
    old = state.weights
    bins = bin_index(jnp.asarray(scores), learner.support, old.shape[-1], learner.rounding)
    if learner.discount is None:
        return BinnedScores(count, old.at[bins].add(observed.astype(old.dtype)))
    discount = jnp.asarray(learner.discount, old.dtype)
    new = jnp.sum(observed, dtype=jnp.int32)
    age = new - jnp.cumsum(observed, dtype=jnp.int32)
    masses = jnp.where(observed, discount ** age.astype(old.dtype), 0)
    return BinnedScores(count, (old * discount ** new.astype(old.dtype)).at[bins].add(masses))


def _run(
    learner: Quantized,
    begin: BinnedScores,
    placed: tuple[()],
    counts: Array,
    rounds: Rounds,
    keep: str,
    epoch: int | None,
) -> tuple[Any, BinnedScores]:
    end = _state_after(learner, begin, rounds.scores, rounds.observed, counts[-1])
    return _run_bins(learner, begin, counts[:-1], rounds, keep, epoch), end


def _segments(
    learner: Quantized, begin: BinnedScores, placed: tuple[()], rounds: Rounds, keep: str
) -> Iterator[Segment]:
    """Cut the rounds into segments; the state between them needs the bins of the scores only."""
    state, epoch = begin, epoch_for(learner.discount, rounds.scores.dtype)
    for piece in padded_segments(rounds.length, rounds.levels.shape[-1], LONGEST):
        counts, own = take_segment(rounds, piece, begin.seen)
        run = partial(_run_bins, learner, state, counts, own, keep, epoch)
        count = counts[-1] + own.observed[-1].astype(counts.dtype)
        state = _state_after(learner, state, own.scores, own.observed, count)
        yield Segment(piece.rounds, run, state if piece.rounds.stop == rounds.length else None)


# Nothing is placed beforehand: to find a score's bin again is cheaper than to remember it.
QUANTIZED = NativeKernel(lambda begin, fresh, scores, observed: (), _run, _segments)
