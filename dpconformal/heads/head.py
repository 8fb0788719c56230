"""What prediction heads share: a belief that is asked for other levels than the user's."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from dpconformal.beliefs import Exact, Quantized
from dpconformal.beliefs.bins import BinnedScores, bin_atoms, bin_edges, bin_index
from dpconformal.learner import State
from dpconformal.replay import replay_batch, slices_with_room
from dpconformal.rounds import Rounds, first_rounds, lengthened, padded_length
from dpconformal.starting import spread
from dpconformal.totals import joined, totals_of
from dpconformal.validation import Numbers, Scalar, as_levels, check_not_batched, is_traced


class Head:
    """
    A learner that asks a belief for levels of its own, which depend on the number of scores seen alone.

    Since these levels grow with the user's, thresholds never cross.
    """

    learner: Any

    def asked(self, seen: Array, levels: Array) -> Array:
        """Return the levels to ask for, given the number of scores, inside ``jit`` too."""
        raise NotImplementedError

    def asked_by_round(self, seen: Any, levels: Any) -> Any:
        """Return the levels to ask for in many rounds: (T,), then (A,) or (T, A), to (T, A)."""
        rows = jnp.broadcast_to(jnp.asarray(levels), (seen.shape[0], levels.shape[-1]))
        return jax.vmap(self.asked)(jnp.asarray(seen), rows)

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
        asked = self.asked(state.seen, levels)
        asked = jnp.where(state.seen < 0, jnp.nan, asked)
        if not is_traced(asked) and np.isnan(asked).any():  # a spoilt state has no thresholds
            return jnp.full_like(levels, jnp.nan)
        return lifted(self.support, self.learner.quantile(state, asked), centred_bins(self.learner, state))

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
        state = None if fresh and keep == "all" else spread(begin, rounds.batch) if fresh else begin
        told = np.ones(rounds.length, bool) if observed is None else observed.reshape(-1, rounds.length)[0]
        counts = first + (np.cumsum(told) - told).astype(begin.seen.dtype)
        whole = rounds._replace(levels=levels if is_traced(levels) else np.asarray(levels, float))
        parts = []
        for here in [slice(rounds.length)] if keep == "all" else slices_with_room(rounds):
            own = whole.part(here)
            asked = self._asked_in(counts[here], own.levels)
            mask = None if own.observed is None else ~told[here]
            run: Any = replay_batch(self.learner, own.scores, asked, state, mask=mask)
            state, thresholds = run.state, self._lifted(run.thresholds, run.state)
            parts.append(
                thresholds
                if keep == "all"
                else totals_of(thresholds, own.scores, own.levels, None if mask is None else ~mask)
            )
        return parts[0] if keep == "all" else joined(parts), state

    def _asked_in(self, counts: Any, levels: Any) -> Any:
        """Return the levels to ask for, a row a round; computed for one of few numbers of rounds."""
        rounds = counts.shape[0]
        if is_traced(self, counts, levels):
            return self.asked_by_round(counts, levels)
        missing = padded_length(rounds) - rounds
        levels = lengthened(levels, 0, missing) if levels.ndim == 2 else levels
        return first_rounds(self.asked_by_round(lengthened(counts, 0, missing), levels), 0, rounds)

    def _lifted(self, thresholds: Any, state: State) -> Any:
        """Raise the thresholds of a run to the upper edges of bins whose scores count at their centres."""
        bins, axis = centred_bins(self.learner, state), thresholds.ndim - 2
        if bins is None or is_traced(self, thresholds):
            return lifted(self.support, thresholds, bins)
        rounds = thresholds.shape[axis]
        longer = lengthened(thresholds, axis, padded_length(rounds) - rounds)
        return first_rounds(lifted(self.support, jnp.asarray(longer), bins), axis, rounds)


def centred_bins(learner: Any, state: State) -> int | None:
    """Return how many bins a belief keeps whose scores count at their centres; None if there are no such bins."""
    if not isinstance(state, BinnedScores) or learner.rounding == "up":
        return None
    return state.weights.shape[-1]


def lifted(support: tuple[Any, Any], thresholds: Float[Array, "..."], bins: int | None) -> Float[Array, "..."]:
    """Raise thresholds to the upper edge of their bin where its scores count at the centre: some lie above it."""
    return thresholds if bins is None else _lifted(support, thresholds, bins)


@jax.jit(static_argnames="bins")
def _lifted(support: tuple[Any, Any], thresholds: Float[Array, "..."], bins: int) -> Float[Array, "..."]:
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


def check_learner(owner: str, learner: Any) -> None:
    """Check that a head stands on a belief without a discount."""
    if not isinstance(learner, (Exact, Quantized)):
        raise ValueError(f"{owner}.learner = {learner!r}: pass a belief, Exact(...) or Quantized(...)")
    if learner.discount is not None:
        raise ValueError(
            f"{owner}.learner has discount = {learner.discount!r}: the guarantee is for beliefs that weigh all scores "
            "equally; leave the discount out"
        )
