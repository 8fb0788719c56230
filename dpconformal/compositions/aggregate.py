"""Mix beliefs: the aggregating algorithm for the CRPS, played for every point of the support by itself."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float, Int

from dpconformal.beliefs import Quantized
from dpconformal.beliefs.belief import check_valid_count
from dpconformal.beliefs.quantized import BinnedScores, bin_edges, part_way
from dpconformal.compositions.stacks import (
    cdf_in_cells,
    quantiles_of,
    stack_learners,
    stack_states,
    takes_context,
    unstack_states,
    vmap_learners,
)
from dpconformal.engine.states import advance
from dpconformal.learner import BeliefLearner, Learner, SizedLearner, State, fresh_state, is_valid_score, support_of
from dpconformal.priors import Prior, Uniform
from dpconformal.pytree import register
from dpconformal.replay import Replay, Summary, replay
from dpconformal.schedules import Constant, Dirichlet
from dpconformal.validation import (
    Numbers,
    Scalar,
    add_trailing_axes,
    as_floats,
    as_levels,
    as_score,
    check_float,
    check_not_batched,
    check_size,
    check_within,
    is_traced,
)

# A forecast F of whether a score is at most u costs (F - outcome)². This game is mixable at a rate of 2.
RATE = 2
SHORTEST = 8  # rounds of the shortest memory
FEWEST_CELLS = 512  # of what a belief does within one the weights know nothing


def mix_cdfs(values: Float[Array, "N P"], log_weights: Float[Array, "N P"]) -> Float[Array, " P"]:
    """
    Mix the cdfs of N beliefs at P points, each point with weights of its own.

    F = ½ - ¼ ln[Σ w e^(-2F²) / Σ w e^(-2(1-F)²)], the substitution of the aggregating algorithm: whatever the score,
    what F costs is at most -½ ln Σ w e^(-2 · what each belief costs). Between the smallest of the values and the
    largest. As functions of the point the results need not ascend; sorted, they cost no more at any score.
    """
    weights = jax.nn.softmax(log_weights, axis=0)
    if_above = jnp.sum(weights * jnp.exp(-RATE * values**2), axis=0)
    if_below = jnp.sum(weights * jnp.exp(-RATE * (1 - values) ** 2), axis=0)
    mixture = 0.5 - 0.25 * jnp.log(if_above / if_below)
    # Most are in order, and to see that takes a tenth of the time of sorting.
    return lax.cond(jnp.any(mixture[1:] < mixture[:-1]), jnp.sort, lambda ascending: ascending, mixture)


def update_weights(
    log_weights: Float[Array, "N P"], values: Float[Array, "N P"], above: Float[Array, " P"], share: Any
) -> Float[Array, "N P"]:
    """
    Charge each belief at each point for what it said there; the largest weight of a point is 1, then some is shared.

    ``above``: What part of a point's cell lies below the score: there the right answer was 0, elsewhere 1.
    """
    cost = above[None] * values**2 + (1 - above)[None] * (1 - values) ** 2
    log_weights = log_weights - RATE * cost
    log_weights = log_weights - jnp.max(log_weights, axis=0, keepdims=True)
    share = jnp.asarray(share, values.dtype)
    log_weights = jnp.where((share >= 0) & (share < 1), log_weights, jnp.nan)  # a bad hyperparameter inside jit
    return lax.cond(share > 0, _share_weights, lambda kept, _: kept, log_weights, share)


def _share_weights(log_weights: Float[Array, "N P"], share: Float[Array, ""]) -> Float[Array, "N P"]:
    some = jnp.where(share > 0, share, 0.5)  # in a batch both ways are gone: a number whose logarithm is finite
    sown = jnp.log(some / log_weights.shape[0])
    return jnp.logaddexp(jax.nn.log_softmax(log_weights, axis=0) + jnp.log1p(-some), sown)


class Mixture(NamedTuple):
    """State of an :class:`Aggregate`: its learners' states, and how well each has done."""

    seen: Int[Array, "*B"]  # scores; -1 once a bad one was met inside jit
    log_weights: Float[Array, "*B N P"]  # of each learner in each cell of the support, in the order of the stacks
    learners: tuple[State, ...]  # one for each stack of learners that differ in numbers alone, with an axis for them

    def check(self, learner: Any) -> None:
        """Refuse what no replay leaves: a round costs a learner 2 at most, as a logarithm of its weight."""
        weights = np.asarray(self.log_weights)
        if not weights.shape[-1]:
            raise ValueError("state.log_weights must have a cell")
        lowest = -4 * add_trailing_axes(self.seen, weights) - math.log(weights.shape[-2]) - 1
        check_within("state.log_weights", weights, lowest, 1e-3)
        states = unstack_states(learner.learners, self.learners, np.ndim(self.seen))
        for inner, own in zip(learner.learners, states, strict=True):
            own.check(inner)
            if not np.array_equal(own.seen, self.seen):
                raise ValueError("state.seen must be that of every learner in the mixture")


@register(static=("cells",))
@dataclass(frozen=True)
class Aggregate:
    """
    Mix beliefs of several discounts, bins or priors, with no need to choose among them.

    At every point u of the support, whether the next score is at most u is a forecasting game of its own, in which
    the aggregating algorithm mixes what the beliefs say, F_i(u), by how they have done at u. So a belief may be
    trusted in the tail and another one in the middle. The mixtures, put in order, are one cdf: thresholds never
    cross.

    Guarantee, with no assumption on the scores, for beliefs that are constant in each cell: after any number of rounds
    the total CRPS exceeds that of the best of the N beliefs by ln N · (high - low)/2 at most, even if a best one is
    chosen for each point of the support. With a ``fixed_share`` s, it exceeds that of the best sequence of beliefs with
    k switches in T rounds by (high - low)/2 · [ln N + k ln(N/s) + (T - 1 - k) ln(1/(1 - s))] at most. What other
    beliefs do within a cell is not seen, and can cost more, of the order of (high - low)/cells a round at worst: where
    a steep prior stays, or all scores of an unbinned belief lie within one cell. The more cells, the less.

    Parameters
    ----------
    learners : sequence of Learner
        Beliefs: learners with a cdf, all on the same bounded support.
    fixed_share : float
        Share of the weights in [0, 1) that is divided equally among the learners in every round, so that one which has
        done badly for long can come back fast. 0: never, the best for all time is what is followed.
    cells : int, optional
        Cells of equal width over the support, in each of which the weights are the same and the mixture is constant. By
        default at least 512, and an even multiple of the bins of the learner that has most, whose atoms then lie on
        edges. A threshold is the edge of a cell, or closer: it never leaves the learners' own.

    References
    ----------
    V'yugin and Trunov (2019), Online learning with continuous ranked probability score; Vovk (1998), A game of
    prediction with expert advice; Herbster and Warmuth (1998), Tracking the best expert.

    Examples
    --------
    >>> import dpconformal as dpc
    >>> mixture = Aggregate([dpc.Quantized(bins=64, discount=discount) for discount in (0.9, 0.99)])
    >>> run = dpc.replay(mixture, dpc.streams.drifting(300), levels=[0.5, 0.9])
    >>> [round(float(weight), 2) for weight in mixture.weights(run.state)]
    [0.9, 0.1]
    """

    learners: Any
    fixed_share: Scalar = 0.0
    cells: int | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "learners", _checked_learners(self.learners))
        share = check_float("Aggregate.fixed_share", self.fixed_share, 0.0, 1.0, open_high=True)
        object.__setattr__(self, "fixed_share", share)
        if self.cells is not None:
            object.__setattr__(self, "cells", check_size("Aggregate.cells", self.cells, 1))

    @property
    def support(self) -> tuple[Scalar, Scalar]:
        """Ends of the interval that holds every score."""
        return support_of(self.learners[0])

    def init(self, rounds: int | None = None, dtype: Any = None) -> Mixture:
        """Return the state before any score."""
        dtype = dtype or jnp.result_type(float)
        states = [
            learner.init() if rounds is None else fresh_state(learner, rounds, dtype) for learner in self.learners
        ]
        bins = [state.weights.shape[-1] for state in states if isinstance(state, BinnedScores)]
        each = 2 * max(bins, default=1)
        cells = self.cells or -(-FEWEST_CELLS // each) * each
        nothing = jnp.zeros((len(self.learners), cells), dtype)
        return Mixture(jnp.zeros((), jnp.int32), nothing, stack_states(self.learners, states))

    def prepare(self, state: Mixture, rounds: int) -> Mixture:
        """Make room for more rounds, also in a batch of states."""
        _check(self, state, batched=True)
        check_valid_count(state.seen)
        axis = np.ndim(state.seen)
        own = unstack_states(self.learners, state.learners, axis)
        ready = [
            learner.prepare(one, rounds) if isinstance(learner, SizedLearner) else one
            for learner, one in zip(self.learners, own, strict=True)
        ]
        return state._replace(learners=stack_states(self.learners, ready, axis))

    def as_context(self, context: Any, shape: tuple[int, ...]) -> Any:
        """Check what a replay tells those learners that take a context."""
        takers = [stack for stack in stack_learners(self.learners) if stack.with_context]
        if not takers:
            if context is not None:
                raise ValueError("context is given, and none of the learners of this Aggregate takes one")
            return None
        contexts = [learner.as_context(context, shape) for learner in self.learners if takes_context(learner)]
        if any(not is_traced(contexts) and not np.array_equal(contexts[0], other) for other in contexts[1:]):
            raise ValueError("context means different things to the learners of this Aggregate: give them one tree")
        return contexts[0]

    def quantile(self, state: Mixture, levels: Numbers, context: Any = None) -> Float[Array, "..."]:
        """Predict the threshold of each level."""
        _check(self, state)
        return _quantile(self, state, as_levels(levels, state.log_weights.dtype), context)

    def cdf(self, state: Mixture, x: Numbers, side: str = "right", context: Any = None) -> Float[Array, "..."]:
        """Probability that the next score is at most x; with ``side="left"`` below x."""
        _check(self, state)
        return _cdf(self, state, as_floats(x).astype(state.log_weights.dtype), side, context)

    def observe(self, state: Mixture, score: Numbers, context: Any = None) -> Mixture:
        """Return the state after one more score."""
        _check(self, state)
        grows = any(not isinstance(own, BinnedScores) for own in state.learners)  # bins need no room
        if grows and not is_traced(state):
            state = self.prepare(state, 1)
        return _observe(self, state, as_score(score, self.support).astype(state.log_weights.dtype), context)

    def weights(self, state: Mixture) -> Float[Array, " N"]:
        """Return the weight of each learner, the mean over the cells of the support."""
        _check(self, state)
        found = jnp.mean(jax.nn.softmax(state.log_weights, axis=0), axis=1)
        order = np.concatenate([stack.places for stack in stack_learners(self.learners)])
        return found[np.argsort(order)]

    def replay(
        self, scores: Numbers, levels: Numbers, state: Mixture | None = None, keep: str = "all"
    ) -> Replay | Summary:
        """Run over recorded scores: :func:`dpconformal.replay`."""
        return replay(self, scores, levels, state, keep)


def _checked_learners(learners: Any) -> tuple[Any, ...]:
    if isinstance(learners, Learner) or not isinstance(learners, Sequence) or not learners:
        raise ValueError(f"Aggregate.learners = {learners!r}: pass a list of beliefs, [Exact(), Exact(discount=0.99)]")
    for i, learner in enumerate(learners):
        if not isinstance(learner, Learner) or isinstance(learner, type) or not isinstance(learner, BeliefLearner):
            name = getattr(learner, "__name__", type(learner).__name__)
            raise ValueError(f"Aggregate.learners[{i}] is {name}: only beliefs, which have a cdf, can be mixed")
        support = support_of(learner)
        if is_traced(support):
            continue
        if not np.isfinite(support).all():
            raise ValueError(f"Aggregate.learners[{i}] has support {support}: a mixture needs a bounded one")
        first = support_of(learners[0])
        if not is_traced(first) and not np.array_equal(support, first):
            raise ValueError(f"Aggregate.learners[{i}] has support {support}, and learners[0] {first}: make them equal")
    return tuple(learners)


def _check(learner: Aggregate, state: Any, batched: bool = False) -> None:
    check_not_batched(learner)
    if not isinstance(state, Mixture):
        raise ValueError(f"state is a {type(state).__name__}: Aggregate carries on from a Mixture, such as run.state")
    if np.ndim(state.seen) and not batched:
        raise ValueError(f"state is a batch of shape {np.shape(state.seen)}: use jax.vmap")
    count = state.log_weights.shape[-2]
    if count != len(learner.learners):
        raise ValueError(f"state is of {count} learners, and this Aggregate has {len(learner.learners)}")
    stacks, axis = stack_learners(learner.learners), np.ndim(state.seen)
    sizes = [{leaf.shape[axis : axis + 1] for leaf in jax.tree.leaves(own)} for own in state.learners]
    if sizes != [{(len(stack.places),)} for stack in stacks]:
        raise ValueError("state.learners are not those of this Aggregate: carry on with the learner that made it")
    if learner.cells is not None and state.log_weights.shape[-1] != learner.cells:
        cells = state.log_weights.shape[-1]
        raise ValueError(f"state has {cells} cells, and this Aggregate has cells = {learner.cells}")


def _edges(learner: Aggregate, state: Mixture) -> Float[Array, " E"]:
    """Return where cells begin, and the last one ends."""
    return bin_edges(learner.support, state.log_weights.shape[-1], state.log_weights.dtype)


def _cdfs(learner: Aggregate, state: Mixture, context: Any) -> Float[Array, "N P"]:
    """Evaluate the learners' cdfs in the middle of each cell."""
    dtype, cells = state.log_weights.dtype, state.log_weights.shape[-1]
    low, high = (jnp.asarray(end, dtype) for end in learner.support)
    middles = part_way(low, high, jnp.arange(cells, dtype=dtype) + 0.5, jnp.asarray(cells, dtype))
    read = partial(cdf_in_cells, middles=middles)
    return jnp.concatenate(vmap_learners(learner.learners, state.learners, read, context))


@jax.jit
def _quantile(learner: Aggregate, state: Mixture, levels: Array, context: Any) -> Array:
    own = quantiles_of(learner.learners, state.learners, levels, context)
    steps, edges = mix_cdfs(_cdfs(learner, state, context), state.log_weights), _edges(learner, state)
    reached = jnp.searchsorted(steps, levels, method="compare_all")
    # The learners' own thresholds enclose the mixture's, to the last bit: a mixture lies between what it is made of.
    found = jnp.clip(edges[reached].astype(own.dtype), jnp.min(own, axis=0), jnp.max(own, axis=0))
    return jnp.where(jnp.isnan(steps).any(), jnp.nan, found)  # of bad weights a threshold knows nothing


@jax.jit(static_argnames="side")
def _cdf(learner: Aggregate, state: Mixture, x: Array, side: str, context: Any) -> Array:
    def read(one: Any, own: State, **given: Any) -> Array:
        return one.cdf(own, x, side=side, **given)

    own = jnp.concatenate(vmap_learners(learner.learners, state.learners, read, context))
    steps, edges = mix_cdfs(_cdfs(learner, state, context), state.log_weights), _edges(learner, state)
    steps = jnp.concatenate([jnp.zeros(1, steps.dtype), steps, jnp.ones(1, steps.dtype)])
    return jnp.clip(steps[jnp.searchsorted(edges, x, side=side)], jnp.min(own, axis=0), jnp.max(own, axis=0))


@jax.jit
def _observe(learner: Aggregate, state: Mixture, score: Array, context: Any) -> Mixture:
    cdfs, edges = _cdfs(learner, state, context), _edges(learner, state)
    above = jnp.clip((score - edges[:-1]) / (edges[1:] - edges[:-1]), 0, 1)
    valid = is_valid_score(score, learner.support)
    log_weights = update_weights(state.log_weights, cdfs, jnp.where(valid, above, 0), learner.fixed_share)

    def observe(one: Any, own: State, **given: Any) -> State:
        return one.observe(own, score, **given)

    after = vmap_learners(learner.learners, state.learners, observe, context)
    return Mixture(advance(state.seen, valid), log_weights, tuple(after))


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
