"""Strongly adaptive online conformal prediction: experts that are born every round and live ever longer."""

import math
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float, Int

from dpconformal.baselines.grid import GridLearner, check_in_support, grid_of, initial_of, width_of
from dpconformal.baselines.ogd import scale_free_step, slope
from dpconformal.engine.states import MOST
from dpconformal.engine.totals import pinball
from dpconformal.learner import State, rounding
from dpconformal.pytree import register
from dpconformal.validation import Numbers, Scalar, check_within, is_traced, raise_at

ORDERS = 31  # powers of two in the number of a round


class Experts(NamedTuple):
    """A pool of experts, one in each slot, for each level of the grid; room for one power of two after another."""

    seen: Int[Array, "*B"]  # scores; -1 once a bad one was met inside jit
    answer: Float[Array, "*B G"]  # the threshold of the coming round
    births: Int[Array, "*B E"]  # round in which the expert of a slot was born; 0 for none yet
    iterate: Float[Array, "*B G E"]  # each expert's scale-free gradient descent
    squares: Float[Array, "*B G E"]
    gains: Float[Array, "*B G E"]  # what each expert gained over the mixture in its life,
    bets: Float[Array, "*B G E"]  # and the same weighted with its wealth
    wealth: Float[Array, "*B G E"]  # gains / age · (1 + bets), before the coming round

    def check(self, learner: Any) -> None:
        """Refuse what no replay leaves. Bets of the dead may overflow, and nobody asks for them."""
        now = np.asarray(self.seen, np.int64)[..., None] + 1
        births = np.asarray(self.births)
        raise_at(
            "state.births",
            births,
            births != _births(now, births.shape[-1], learner.generations),
            "born in no such round",
        )
        step = 1 / math.sqrt(3) + 1e-3
        check_in_support(learner, "answer", self.answer, step)
        # A slot without an expert steps on from 0.
        check_in_support(learner, "iterate", self.iterate, step, also_0=births[..., None, :] == 0)
        most = now[..., None] * (1 + 1e-3)
        check_within("state.squares", self.squares, 0, most)
        check_within("state.gains", self.gains, -most, most)
        alive = (births > 0) & (now - births < learner.lifetime * (births & -births).astype(float))
        bets, wealth = (np.where(alive[..., None, :], leaf, 0) for leaf in (self.bets, self.wealth))
        check_within("state.bets", bets, -1 - 1e-3, np.finfo(bets.dtype).max)
        with np.errstate(over="ignore"):
            own = np.where(alive[..., None, :], self.gains, 0) / np.maximum(now - births, 1)[..., None, :] * (1 + bets)
        far = np.abs(wealth - own) > 1e-3 * np.abs(own) + 1e-3
        raise_at("state.wealth", wealth, ~np.isfinite(wealth) | far, "not what gains and bets come to")


@register(static=("lifetime",))
@dataclass(frozen=True, eq=False)
class SAOCP(GridLearner):
    """
    Strongly adaptive online conformal prediction: a mixture of scale-free gradient descents of different age.

    In each round an expert is born, an :class:`SFOGD` that starts at the last threshold; the one of round i lives for
    ``lifetime`` · 2^k rounds, 2^k being the largest power of two that divides i. Coin betting weights the living by
    what they gained over the mixture.

    Guarantees, for scores in [low, high] of width R, with no further assumption: on every stretch of k rounds, regret
    Õ(R√k) at a level of the grid; the coverage frequency is right in the long run under mild conditions on the
    experts' weights. Thresholds of different levels may cross. A round costs O(lifetime · log T).

    Parameters
    ----------
    levels : array_like, shape (G,)
        The grid; other levels are refused.
    lifetime : int
        g, rounds that an expert of an odd round lives.
    initial : array_like, optional
        First threshold, one for all levels or one for each; low + level · (high - low) by default.
    low, high : float
        The support. Scores outside are refused; thresholds may leave it.

    Notes
    -----
    As in the paper, losses are divided by R = high - low; gains are kept within ±1, as the betting requires, should
    an iterate stray further than R from the mixture. Sums of gains within rounding error of 0 are 0.

    A state from :func:`dpconformal.replay` has room for the experts of the rounds it ran. ``observe`` and ``replay``
    make more; inside your own ``jit`` a state without room turns to NaN, so ``learner.prepare(state, rounds)`` first.

    References
    ----------
    Bhatnagar, Wang, Xiong and Bai (2023), Improved online conformal prediction via strongly adaptive online learning.
    Jun, Orabona, Wright and Willett (2017), Improved strongly adaptive online learning using coin betting.

    Examples
    --------
    >>> import dpconformal as dpc
    >>> run = dpc.replay(SAOCP(levels=[0.9]), [0.2, 0.4, 0.6, 0.1], [0.9])
    >>> run.thresholds.ravel().round(3)
    Array([0.9  , 0.387, 0.812, 0.845], dtype=float...)
    """

    levels: Any
    lifetime: int = 8
    initial: Any = None
    low: Scalar = 0.0
    high: Scalar = 1.0
    state_type: ClassVar[type] = Experts
    sizes: ClassVar[tuple[str, ...]] = ("lifetime",)

    @property
    def generations(self) -> int:
        """Experts of one power of two that can be alive at once: those of 2^k are born 2^(k+1) rounds apart."""
        return -(-self.lifetime // 2)

    @property
    def room(self) -> int:  # type: ignore[override]
        """Slots that are enough for any number of rounds."""
        return ORDERS * self.generations

    def _room_after(self, rounds: int) -> int:
        """Count the slots for each power of two up to the number of the round after these."""
        return min((rounds + 1).bit_length(), ORDERS) * self.generations

    def init(self, rounds: int | None = None, dtype: Any = None) -> State:
        """Return the state before any score, with room for the experts of ``rounds`` rounds."""
        state = super().init(rounds, dtype)
        return state if rounds is None else _resize(state, self._room_after(rounds))

    def prepare(self, state: State, rounds: int) -> State:
        """Check that a state, or a batch of them, can be carried on from, and make room for more rounds."""
        if is_traced(state.seen):
            return _resize(super().prepare(state, rounds), self.room)
        latest = int(np.max(np.asarray(state.seen), initial=0)) + rounds
        if latest + 1 > MOST:  # the number of the round after these
            raise ValueError(
                f"state.seen = {latest - rounds}: with {rounds} more there would be no room for the experts that SAOCP "
                f"needs from round {MOST + 1} on; start afresh, or use SFOGD"
            )
        state = super().prepare(state, rounds)
        slots, needed = state.births.shape[-1], self._room_after(latest - rounds)
        if slots < needed or slots % self.generations:
            raise ValueError(
                f"state.births has {slots} slots: after {latest - rounds} scores a SAOCP with lifetime = "
                f"{self.lifetime} has {needed} at least, a multiple of {self.generations}; carry on with the learner"
                " that made it"
            )
        return _resize(state, max(self._room_after(latest), slots))

    def observe(self, state: State, score: Numbers, context: Any = None) -> State:
        """Return the state after one more score."""
        self._check_state(state)
        return super().observe(state if is_traced(state.seen) else self.prepare(state, 1), score, context)

    def start(self, dtype: Any) -> Experts:
        """Return the state before any score: with the expert of round 1, and room for all."""
        initial = initial_of(self, dtype)
        nothing = jnp.zeros((initial.shape[0], self.room), dtype)
        empty = Experts(jnp.zeros((), jnp.int32), initial, jnp.zeros(self.room, jnp.int32), *(nothing,) * 5)
        return self._add_expert(empty, initial)

    def thresholds(self, state: Experts) -> Float[Array, " G"]:
        """Predict the threshold of each level of the grid."""
        return state.answer

    def learn(self, state: Experts, score: Float[Array, ""]) -> Experts:
        """Let the living bet and step, the next one be born, and mix them."""
        dtype = score.dtype
        levels, width = grid_of(self, dtype), width_of(self, dtype)
        saved = pinball(jnp, state.answer, score, levels)[:, None] - pinball(jnp, state.iterate, score, levels[:, None])
        gain = jnp.clip(saved * (1 / width), jnp.where(state.wealth > 0, -1, 0).astype(dtype), 1)
        gradient = slope(state.iterate, score, jnp.broadcast_to(levels[:, None], state.iterate.shape))
        iterate, squares = scale_free_step(state.iterate, state.squares, gradient, width / math.sqrt(3))
        gains, bets = state.gains + gain, state.bets + gain * state.wealth
        # Shares are normalised, so that a wealth of rounding errors would be as good as any.
        gains = jnp.where(jnp.abs(gains) <= 8 * rounding(dtype), 0, gains)
        now = state.seen + 1
        age = jnp.maximum(now + 1 - state.births, 1).astype(dtype)
        wealth = gains * (1 / age)[None] * (1 + bets)
        after = Experts(now, state.answer, state.births, iterate, squares, gains, bets, wealth)
        after = self._add_expert(after, state.answer)
        return after._replace(answer=self._mix(after))

    def _add_expert(self, state: Experts, where: Float[Array, " G"]) -> Experts:
        """Put the expert of the coming round into the slot of one that has died."""
        now, generations, slots = state.seen + 1, self.generations, state.births.shape[-1]
        order = jnp.bitwise_count((now & -now) - 1).astype(jnp.int32)
        turn = jnp.right_shift(jnp.right_shift(now, order), jnp.ones_like(now)) % generations
        slot = order * generations + turn
        here = jnp.arange(slots, dtype=jnp.int32) == slot
        # Without room for it, which only happens inside jit, nothing plausible may come out.
        iterate = jnp.where(here[None], where[:, None], jnp.where(slot < slots, state.iterate, jnp.nan))
        rest = (jnp.where(here[None], 0, leaf) for leaf in state[4:])
        return Experts(state.seen, state.answer, jnp.where(here, now, state.births), iterate, *rest)

    def _mix(self, state: Experts) -> Float[Array, " G"]:
        """Average the living: by wealth, by age alone while nobody has any."""
        dtype, now = state.wealth.dtype, state.seen + 1
        power = (state.births & -state.births).astype(dtype)
        alive = (state.births > 0) & ((now - state.births).astype(dtype) < self.lifetime * power)
        birth = jnp.maximum(state.births, 1)
        doublings = (32 - lax.clz(birth)).astype(dtype)  # 1 + ⌊log2⌋
        prior = jnp.where(alive, 1 / (birth.astype(dtype) ** 2 * doublings), 0)
        prior = (prior / _sum(prior, self.generations))[None]
        # The dead of an odd lifetime bet on until they are replaced, with a wealth that may overflow.
        rich = jnp.where(prior > 0, prior * jnp.maximum(state.wealth, 0), 0)
        total = _sum(rich, self.generations)
        shares = jnp.where(total[:, None] > 0, rich, prior)
        # Relative to the last answer: where nobody has moved, nor does the mixture, not even by a rounding error.
        moves = _sum(shares * (state.iterate - state.answer[:, None]), self.generations)
        return state.answer + moves / jnp.where(total > 0, total, 1)


def _births(now: np.ndarray, slots: int, generations: int) -> np.ndarray:
    """Return the round in which the expert of each slot was born, of those up to now; 0 for none."""
    order, turn = np.divmod(np.arange(slots), generations)
    latest = ((now >> order) - 1) // 2  # 2^order · (2k + 1) is the latest round of this order, for k
    latest = latest - (latest - turn) % generations
    return np.where(((now >> order) > 0) & (latest >= 0), (2 * latest + 1) << order, 0)


@jax.jit(static_argnames="slots")
def _resize(state: Experts, slots: int) -> Experts:
    """Give a state that many slots; those that come or go are without an expert yet."""

    def fit(leaf: Array) -> Array:
        missing = max(slots - leaf.shape[-1], 0)
        return jnp.pad(leaf[..., :slots], [(0, 0)] * (leaf.ndim - 1) + [(0, missing)])

    return Experts(state.seen, state.answer, *(fit(leaf) for leaf in state[2:]))


def _sum(values: Float[Array, "*G E"], generations: int) -> Float[Array, "*G"]:
    """
    Add up slots in one order, however many empty ones follow.

    XLA regroups a sum of more than 32 terms, by their number. The barrier keeps it from joining the two short sums.
    """
    by_order = jnp.sum(values.reshape(*values.shape[:-1], -1, generations), axis=-1)
    return jnp.sum(lax.optimization_barrier(by_order), axis=-1)
