"""
Heads: beliefs that are asked for other levels than the user's, corrected or credible ones.

A credible level is the one at which a Dirichlet process's mean must be read so that a quantile is not underestimated.
F(x) has the posterior Beta(M·G(x), M·(1 - G(x))), M being concentration plus scores and G the mean. So the posterior of
the quantile q_α is known too: P(q_α ≤ x) = P(F(x) ≥ α), which depends on x only through G(x). To invert it in x is to
solve for a level g once, and to read G at it: all of the posterior of q_α is G's quantiles at other levels.
"""

import functools
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from dpconformal.beliefs import Exact, Quantized
from dpconformal.beliefs.belief import schedule_of
from dpconformal.beliefs.quantized import BinnedScores, bin_atoms, bin_edges, bin_index
from dpconformal.engine.states import broadcast_state
from dpconformal.engine.totals import sum_totals, totals_of
from dpconformal.learner import State
from dpconformal.pytree import register
from dpconformal.replay import replay_batch, slices_with_room
from dpconformal.rounds import Rounds, first_rounds, pad_with_last, padded_length
from dpconformal.schedules import Dirichlet
from dpconformal.validation import Numbers, Scalar, as_levels, check_float, check_not_batched, is_traced


class Head:
    """
    A learner that asks a belief for levels of its own, which depend on the number of scores seen alone.

    Since these levels grow with the user's, thresholds never cross.
    """

    learner: Any

    def levels_to_ask(self, seen: Array, levels: Array) -> Array:
        """Return the levels to ask for, given the number of scores, inside ``jit`` too."""
        raise NotImplementedError

    def levels_by_round(self, seen: Any, levels: Any) -> Any:
        """Return the levels to ask for in many rounds: (T,), then (A,) or (T, A), to (T, A)."""
        rows = jnp.broadcast_to(jnp.asarray(levels), (seen.shape[0], levels.shape[-1]))
        return jax.vmap(self.levels_to_ask)(jnp.asarray(seen), rows)

    @property
    def support(self) -> tuple[Scalar, Scalar]:
        """Ends of the interval that holds every score."""
        return self.learner.support

    def init(self, rounds: int | None = None, dtype: Any = None) -> State:
        """Return the state before any score, that of the belief."""
        return self.learner.init(rounds, dtype)

    def prepare(self, state: State, rounds: int) -> State:
        """Make room for more rounds, also in a batch of states."""
        return self.learner.prepare(state, rounds)

    def observe(self, state: State, score: Numbers) -> State:
        """Return the state after one more score."""
        return self.learner.observe(state, score)

    def merge(self, first: State, second: State) -> State:
        """Return the state that saw the scores of ``first``, then those of ``second``."""
        return self.learner.merge(first, second)

    def quantile(self, state: State, levels: Numbers) -> Float[Array, "..."]:
        """Predict the threshold of each level."""
        check_not_batched(self)
        if np.ndim(state.seen):
            raise ValueError(f"state is a batch of shape {np.shape(state.seen)}: use jax.vmap over quantile")
        levels = as_levels(levels, None if isinstance(state, BinnedScores) else state.values.dtype)
        asked = jnp.where(state.seen < 0, jnp.nan, self.levels_to_ask(state.seen, levels))
        if not is_traced(asked) and np.isnan(asked).any():  # an invalid state has no thresholds
            return jnp.full_like(levels, jnp.nan)
        answer, bins = self.learner.quantile(state, asked), self._centred_bins(state)
        return answer if bins is None else raise_to_edges(self.support, answer, bins)

    def kernel(self, begin: State, fresh: bool, rounds: Rounds, keep: str) -> tuple[Any, State] | None:
        """
        Replay recorded scores: the levels of all rounds are known beforehand, so that the belief's fast ways serve.

        Returns thresholds or totals and the final state, as :func:`dpconformal.replay.run_replay`. None where the
        generic scan must do: for sequences of a batch that have, or may have, seen unequal numbers of scores before
        some round, and for totals inside ``jit``.
        """
        check_not_batched(self)
        scores, levels, observed = rounds.scores, rounds.levels, rounds.observed
        traced = is_traced(self, scores, levels)
        known = None if fresh or is_traced(begin.seen) else np.unique(np.asarray(begin.seen))
        unequal = known is not None and (known.size != 1 or known[0] < 0)
        unknown = (rounds.batch and not fresh and known is None) or is_traced(observed)
        if observed is not None and not unknown:
            unequal |= bool(np.any(observed != observed.reshape(-1, rounds.length)[:1].reshape(rounds.length)))
        if unequal or unknown or (keep == "summary" and (traced or is_traced(begin.seen))):
            return None
        first = np.zeros((), begin.seen.dtype) if fresh else begin.seen if known is None else known[0]
        state = None if fresh and keep == "all" else broadcast_state(begin, rounds.batch) if fresh else begin
        known_rounds = np.ones(rounds.length, bool) if observed is None else observed.reshape(-1, rounds.length)[0]
        counts = first + (np.cumsum(known_rounds) - known_rounds).astype(begin.seen.dtype)
        whole = rounds._replace(levels=levels if is_traced(levels) else np.asarray(levels, float))
        parts: list[Any] = []
        for here in [slice(rounds.length)] if keep == "all" else slices_with_room(rounds):
            own = whole.part(here)
            asked, there = self._padded_levels_by_round(counts[here], own.levels), known_rounds[here]
            run: Any = replay_batch(self.learner, own.scores, asked, state, mask=None if observed is None else ~there)
            state, kept = run.state, self._raise_to_edges(run.thresholds, run.state)
            if keep == "summary":
                kept = totals_of(kept, own.scores, own.levels, None if observed is None else there)
            parts.append(kept)
        return parts[0] if keep == "all" else sum_totals(parts), state

    def _padded_levels_by_round(self, counts: Any, levels: Any) -> Any:
        """Return the levels to ask for, a row a round; computed for one of few numbers of rounds."""
        rounds = counts.shape[0]
        if is_traced(self, counts, levels):
            return self.levels_by_round(counts, levels)
        missing = padded_length(rounds) - rounds
        levels = pad_with_last(levels, 0, missing) if levels.ndim == 2 else levels
        return first_rounds(self.levels_by_round(pad_with_last(counts, 0, missing), levels), 0, rounds)

    def _centred_bins(self, state: State) -> int | None:
        """Count the bins whose scores count at their centres; None if the belief has no such bins."""
        centred = isinstance(state, BinnedScores) and self.learner.rounding == "nearest"
        return state.weights.shape[-1] if centred else None

    def _raise_to_edges(self, thresholds: Any, state: State) -> Any:
        """Raise the thresholds of a run to the upper edges of bins whose scores count at their centres."""
        bins, axis = self._centred_bins(state), thresholds.ndim - 2
        if bins is None:
            return thresholds
        if is_traced(self, thresholds):
            return raise_to_edges(self.support, thresholds, bins)
        # Of one of few numbers of rounds, so that a new length is not a new program.
        rounds = thresholds.shape[axis]
        longer = pad_with_last(thresholds, axis, padded_length(rounds) - rounds)
        return first_rounds(raise_to_edges(self.support, jnp.asarray(longer), bins), axis, rounds)


@jax.jit(static_argnames="bins")
def raise_to_edges(support: tuple[Any, Any], thresholds: Float[Array, "..."], bins: int) -> Float[Array, "..."]:
    """Raise thresholds to the upper edge of their bin where its scores count at the centre: some lie above it."""
    dtype = thresholds.dtype
    low, high = (jnp.asarray(end, dtype) for end in support)
    known = jnp.where(jnp.isnan(thresholds), low, thresholds)
    bin_here = bin_index(known, support, bins, "nearest")
    centre = bin_atoms(support, bins, dtype, "nearest")[bin_here]
    edge = bin_edges(support, bins, dtype)[bin_here + 1]
    # A centre that is computed in two programs may differ in the last bit.
    counted = known >= centre - 4 * jnp.finfo(dtype).eps * jnp.maximum(jnp.abs(low), jnp.abs(high))
    raised = jnp.where(counted, jnp.minimum(jnp.maximum(edge, known), high), known)
    return jnp.where(jnp.isnan(thresholds), thresholds, raised)


def _check_learner(owner: str, learner: Any) -> None:
    if not isinstance(learner, (Exact, Quantized)):
        raise ValueError(f"{owner}.learner = {learner!r}: pass a belief, Exact(...) or Quantized(...)")
    if learner.discount is not None:
        raise ValueError(
            f"{owner}.learner has discount = {learner.discount!r}: the guarantee is for beliefs that weigh all scores "
            "equally; leave the discount out"
        )


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
        _check_learner("Corrected", self.learner)

    def levels_to_ask(self, seen: Array, levels: Array) -> Array:
        """Return the levels to ask for, given the number of scores, inside ``jit`` too."""
        count = jnp.maximum(seen, 1).astype(levels.dtype)
        weight = schedule_of(self.learner).weight(count + 1)
        wanted = levels * ((count + 1) / count)  # of the scores; all of them where rounding alone says less
        asked = jnp.where(wanted >= 1 - 8 * jnp.finfo(levels.dtype).eps, 1, weight + (1 - weight) * wanted)
        asked = jnp.where(jnp.isnan(levels), levels, asked)
        asked = jnp.where(seen == 0, jnp.where(jnp.isnan(levels), levels, 1), asked)
        return jnp.where(levels == 0, 0, asked)  # nothing need be covered


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
    Thresholds in bins are raised as by :class:`Corrected`. Inside your own ``jit``, with a traced state, the level is
    solved for on the host in float64.

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
        _check_learner("Credible", self.learner)
        if not isinstance(self.learner.schedule, Dirichlet):
            raise ValueError(
                f"Credible.learner has schedule = {self.learner.schedule!r}: posterior probabilities belong to a fixed "
                "concentration; pass schedule=schedules.Dirichlet(a), or use Corrected"
            )
        confidence = check_float("Credible.confidence", self.confidence, 0.0, 1.0, open_low=True, open_high=True)
        object.__setattr__(self, "confidence", confidence)

    def levels_to_ask(self, seen: Array, levels: Array) -> Array:
        """Return the levels to ask for, given the number of scores, inside ``jit`` too."""
        total = self._total(seen)
        if is_traced(levels, total, self.confidence):
            return credible_level_in_jit(levels, self.confidence, total)
        flat = np.asarray(levels, float).reshape(-1)
        answer = credible_levels(flat, float(self.confidence), np.array([float(total)]))
        return jnp.asarray(answer.reshape(levels.shape), levels.dtype)

    def levels_by_round(self, seen: Any, levels: Any) -> Any:
        """Return the levels to ask for in many rounds."""
        if is_traced(self, seen, levels):
            return credible_level_in_jit(jnp.asarray(levels), self.confidence, self._total(jnp.asarray(seen)))
        return credible_levels(levels, float(self.confidence), float(self.learner.schedule.concentration) + seen)

    def _total(self, seen: Array) -> Array:
        """Add up concentration and scores; NaN for an invalid state. Beyond 2²⁴ float32 rounds: no level moves."""
        total = jnp.asarray(self.learner.schedule.concentration, jnp.result_type(float)) + seen.astype(float)
        return jnp.where(seen < 0, jnp.nan, total)


NODES = 24  # of an interpolating polynomial
FEW = 192  # totals that are solved for one by one
PRECISION = 1e-13


def exceedance(level: Any, mean: Any, total: Any) -> Any:
    """
    Return the posterior probability that F(x) reaches a level, P(q_level ≤ x), in float64 on the host.

    Where F(x) is 0 or 1 for certain, so is the answer.
    """
    level, mean, total = (np.asarray(part, np.float64) for part in (level, mean, total))
    from scipy import special  # slow to import, and needed by few

    value = special.betaincc(total * mean, total * (1 - mean), level)
    return np.where(level <= 0, 1.0, np.where(mean >= 1, 1.0, np.where(mean <= 0, 0.0, value)))[()]


def credible_level(level: Any, confidence: Any, total: Any) -> Any:
    """
    Solve for the level g such that P(F ≥ α) is the confidence where the mean of F is g, in float64 on the host.

    NaN where an argument is out of range, as it may be inside ``jit``.
    """
    # Not imported with the package: a third of a second.
    from scipy.optimize import elementwise

    parts = np.broadcast_arrays(*(np.asarray(part, np.float64) for part in (level, confidence, total)))
    level, confidence, total = parts
    valid = (level > 0) & (level < 1) & (confidence > 0) & (confidence < 1) & (total > 0) & np.isfinite(total)
    inner = [part[valid] for part in parts]
    answer = np.where((level == 0) | (level == 1), level, np.nan)
    answer = np.where((total > 0) & (confidence > 0) & (confidence < 1), answer, np.nan)
    if inner[0].size:
        ends = np.zeros_like(inner[0]), np.ones_like(inner[0])

        def error(mean: np.ndarray, level: np.ndarray, confidence: np.ndarray, total: np.ndarray) -> Any:
            return exceedance(level, mean, total) - confidence

        answer[valid] = elementwise.find_root(error, ends, args=tuple(inner)).x
    return answer[()]


def credible_levels(levels: np.ndarray, confidence: float, totals: np.ndarray) -> np.ndarray:
    """
    Solve for the credible levels of many rounds.

    √M·(g - α) is a smooth function of 1/√M, so that polynomials through a few of its points give millions of others.
    """
    if levels.ndim == 2 or totals.size <= FEW:
        answer = credible_level(levels, confidence, totals[:, None])
    else:
        answer = np.empty((totals.size, levels.size))
        for column, level in zip(answer.T, levels, strict=True):
            _solve_rounds(column, level, confidence, totals)
    return _in_order(levels, answer)


def _in_order(levels: np.ndarray, answer: np.ndarray) -> np.ndarray:
    """Keep answers in the order of their levels, which may be closer together than the solution is exact."""
    order = np.broadcast_to(np.argsort(levels, axis=-1), answer.shape)
    risen = np.maximum.accumulate(np.take_along_axis(answer, order, -1), axis=-1)
    np.put_along_axis(answer, order, risen, -1)
    return answer


def _solve_rounds(column: np.ndarray, level: float, confidence: float, totals: np.ndarray) -> None:
    """Interpolate, or halve the rounds and try again where a polynomial is not good enough."""
    usable = 0 < level < 1 and 0 < confidence < 1 and totals[0] > 0
    if totals.size <= FEW or not usable:
        column[:] = credible_level(level, confidence, totals)
        return

    def scaled(root: np.ndarray) -> np.ndarray:
        return (credible_level(level, confidence, root**-2) - level) / root

    ends = totals[[-1, 0]] ** -0.5
    polynomial = np.polynomial.Chebyshev.interpolate(scaled, NODES - 1, ends)
    between = np.cos(np.arange(1, NODES) * np.pi / NODES)  # where such a polynomial is worst
    tried = (ends[1] - ends[0]) * (between + 1) / 2 + ends[0]
    if np.all(np.abs(polynomial(tried) - scaled(tried)) * tried <= PRECISION):
        roots = totals**-0.5
        column[:] = level + polynomial(roots) * roots
    else:
        half = int(np.searchsorted(totals, np.sqrt(totals[0] * totals[-1])))
        half = min(max(half, 1), totals.size - 1)
        _solve_rounds(column[:half], level, confidence, totals[:half])
        _solve_rounds(column[half:], level, confidence, totals[half:])


def credible_level_in_jit(levels: Array, confidence: Any, totals: Array) -> Array:
    """
    Solve for credible levels where values are traced: the host is called back, for float32 would not do.

    In the dtype of the levels; of their shape, or (T, A) for T totals. No gradients.
    """
    given = jax.lax.stop_gradient((levels, jnp.asarray(confidence), totals))
    if totals.ndim:
        shape = jax.ShapeDtypeStruct((totals.shape[0], levels.shape[-1]), levels.dtype)
        return jax.pure_callback(_rounds_on_host, shape, *given, vmap_method="sequential")
    shape = jax.ShapeDtypeStruct(levels.shape, levels.dtype)
    host = functools.partial(_on_host, levels.ndim)
    return jax.pure_callback(host, shape, *given, vmap_method="broadcast_all")


def _rounds_on_host(levels: Any, confidence: Any, totals: Any) -> np.ndarray:
    answer = credible_levels(np.asarray(levels, float), float(confidence), np.asarray(totals, float))
    return answer.astype(np.asarray(levels).dtype)


def _on_host(axes: int, levels: Any, confidence: Any, totals: Any) -> np.ndarray:
    """Solve for a whole batch at once: leading axes are those of vmap, the last few those of the levels."""
    given = np.asarray(levels)
    batch = given.shape[: given.ndim - axes]
    flat = given.astype(float).reshape((*batch, -1))
    confidence, totals = (np.asarray(part, float).reshape((*batch, 1)) for part in (confidence, totals))
    answer = _in_order(flat, np.array(credible_level(flat, confidence, totals)))
    return answer.reshape(given.shape).astype(given.dtype)
