"""
Beliefs: a continuous prior mixed with point masses, and the weights that a schedule and a discount give to the two.

:class:`Belief` is the distribution itself, with its cdf and quantiles. :class:`DirichletLearner` is what the learners
that hold such a belief share, and :func:`weights_of` says how much of the belief is the prior's and how much each
score's. The checks at the end are made before a learner's first round, and before a state is carried on from.
"""

from collections.abc import Callable
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float, Int, Num

from dpconformal import schedules
from dpconformal.engine.pointer_loop import Arrivals, Walk, cdf_of_many, quantile_between_atoms
from dpconformal.engine.states import rounds_after
from dpconformal.engine.walks import pit_walk
from dpconformal.learner import Learner
from dpconformal.priors import Prior
from dpconformal.replay import Replay, Summary, replay
from dpconformal.rounds import Rounds
from dpconformal.validation import (
    Numbers,
    Scalar,
    as_floats,
    as_levels,
    check_float,
    check_not_batched,
    is_interval,
    is_traced,
    raise_at,
)


class Belief(NamedTuple):
    """
    The distribution ``prior_weight · P0 + Σ_j mass_j · δ(atom_j)`` of the next score.

    Attributes
    ----------
    prior : Prior
        P0.
    prior_weight : Array, shape ()
        Share of the prior; NaN if the state is invalid inside ``jit``.
    atoms : Array, shape (J,)
        Point masses, ascending; those from ``used`` on are padding.
    cumulative : Array, shape (J + 1,)
        Mass of the first j atoms.
    used : Array, shape ()
        How many atoms there are.
    rest : Array, shape (J + 1,), optional
        What rounding has taken from ``cumulative``. Without it a quantile between two atoms is off, in float32, by up
        to 1e-7 divided by the prior's weight and density.
    """

    prior: Prior
    prior_weight: Float[Array, ""]
    atoms: Float[Array, " J"]
    cumulative: Float[Array, " J+1"]
    used: Int[Array, ""]
    rest: Float[Array, " J+1"] | None = None

    def cdf(self, x: Numbers, side: str = "right") -> Float[Array, "..."]:
        """P(X ≤ x) of each real number x; with ``side="left"`` P(X < x), without an atom at x itself."""
        x = as_floats(x).astype(self.atoms.dtype)
        passed = jnp.searchsorted(self.atoms, x, side=side).astype(self.used.dtype)
        mass = self.cumulative[jnp.minimum(passed, self.used)]
        value = self.prior_weight * self.prior.cdf(x) + mass
        return jnp.minimum(value, 1)  # rounding only

    def quantile(self, levels: Numbers) -> Float[Array, "..."]:
        """Smallest x of the support with P(X ≤ x) ≥ level; for levels a ≤ b they are ordered, to the last bit."""
        # Between two neighbouring atoms only the prior's share grows, so the quantile is closed-form once the right
        # pair of neighbours is found, and that is a binary search.
        levels = as_levels(levels, self.atoms.dtype)
        j = self._first_reaching(lax.stop_gradient(levels))
        low, high = (jnp.asarray(end, levels.dtype) for end in self.prior.support)
        last = self.atoms.shape[-1] - 1
        left = jnp.where(j > 0, self.atoms[jnp.maximum(j - 1, 0)], low)
        right = jnp.where(j < self.used, self.atoms[jnp.minimum(j, last)], high)
        rest = 0 if self.rest is None else self.rest[j]
        return quantile_between_atoms(self.prior, self.prior_weight, self.cumulative[j], left, right, levels, rest)

    def _first_reaching(self, levels: Float[Array, "*n"]) -> Int[Array, "*n"]:
        """Index of the first atom at which the cdf reaches each level; ``used`` if none does."""
        given = self.prior_weight, self.atoms, self.cumulative, self.rest
        weight, atoms, cumulative, rest = lax.stop_gradient(given)

        def halve(_: Any, bracket: tuple[Array, Array]) -> tuple[Array, Array]:
            low, high = bracket
            middle = (low + high) // 2
            share = weight * self.prior.cdf(atoms[middle])
            if rest is None:
                reaches = share + cumulative[middle + 1] >= levels
            else:
                reaches = share >= (levels - cumulative[middle + 1]) - rest[middle + 1]
            searching = low < high
            high = jnp.where(searching & reaches, middle, high)
            low = jnp.where(searching & ~reaches, middle + 1, low)
            return low, high

        start = jnp.zeros(levels.shape, self.used.dtype)
        stop = jnp.broadcast_to(self.used, levels.shape)
        return lax.fori_loop(0, atoms.shape[-1].bit_length(), halve, (start, stop))[1]


class SupportOfPrior:
    """A learner whose prior says in which interval its scores lie."""

    prior: Prior

    @property
    def support(self) -> tuple[Scalar, Scalar]:
        """Ends of the interval that holds every score."""
        return self.prior.support


class DirichletLearner(SupportOfPrior):
    """A learner whose belief mixes a prior with its scores, as a Dirichlet process does."""

    schedule: Any  # a schedule, or None for the one that suits the discount
    discount: Scalar | None
    _check: Callable[..., None]  # (*states, batched=False): refuses what the learner cannot work with
    _dtype: Callable[[Any], Any]  # (state): its precision; None where it holds whole numbers only
    kernel: Callable[..., Any]  # as of :class:`dpconformal.learner.KernelLearner`; also with keep="pits"
    _mix: Callable[[Any, Any], Belief]  # (state, dtype): the distribution of the next score, inside ``jit``

    def __post_init__(self) -> None:
        owner = type(self).__name__
        check_prior(owner, self.prior)
        if self.schedule is not None:
            object.__setattr__(self, "schedule", schedules.as_schedule(self.schedule))
        if self.discount is not None:
            set_discount(self, "leave it out for no discount")

    def belief(self, state: Any, dtype: Any = None) -> Belief:
        """Return the distribution of the next score."""
        self._check(state)
        return _belief(self, state, np.dtype(dtype or self._dtype(state) or jnp.result_type(float)))

    def quantile(self, state: Any, levels: Numbers) -> Float[Array, "..."]:
        """Predict the threshold of each level."""
        self._check(state)
        return _quantile(self, state, as_levels(levels, self._dtype(state)))

    def cdf(self, state: Any, x: Numbers, side: str = "right") -> Float[Array, "..."]:
        """Probability that the next score is at most x; with ``side="left"`` below x."""
        self._check(state)
        x = as_floats(x)
        return _belief(self, state, np.dtype(self._dtype(state) or x.dtype)).cdf(x, side)

    def pits(self, begin: Any, fresh: bool, rounds: Rounds) -> tuple[Any, Any] | None:
        """Return the PIT of each score before it is learned, and the final state; None where the scan must do."""
        level = np.full(1, 0.5, rounds.scores.dtype)  # for form's sake: no threshold is asked for
        found = self.kernel(begin, fresh, rounds._replace(levels=level), "pits")
        return found and (found[0][..., 0], found[1])

    def replay(self, scores: Numbers, levels: Numbers, state: Any = None, keep: str = "all") -> Replay | Summary:
        """Run over recorded scores: :func:`dpconformal.replay`."""
        return replay(cast(Learner, self), scores, levels, state, keep)


@jax.jit(static_argnames="dtype")
def _belief(learner: DirichletLearner, state: Any, dtype: Any) -> Belief:
    return learner._mix(state, dtype)


@jax.jit
def _quantile(learner: DirichletLearner, state: Any, levels: Array) -> Array:
    return learner._mix(state, levels.dtype).quantile(levels)


class Weights(NamedTuple):
    """Shares of the belief of the coming round, or of many."""

    prior: Float[Array, "*T"]  # share of P0; NaN if the state is invalid
    atom: Float[Array, "*T"]  # mass of a score that has just been seen
    discount: Float[Array, ""] | None  # what that mass is multiplied by each round; None for nothing


def weights_of(learner: DirichletLearner, count: Num[Array, ""], dtype: Any) -> Weights:
    """
    Return the share of the prior, and the mass of a score that has just been seen, after ``count`` scores.

    Undiscounted, P = λ P0 + (1-λ)/n Σ δ(score_i). Discounted by β, a score that is k rounds old has
    lost a factor β^k, and what scores have not yet claimed stays with the prior:
    P = λ P0 + (1-λ)[β^n P0 + (1-β) Σ β^(n-i) δ(score_i)]. The coming round is t = n + 1; n is negative if the state
    is invalid.
    """
    weight = schedule_of(learner).weight(count.astype(dtype) + 1)
    seen = jnp.maximum(count, 1).astype(dtype)
    discount = traced_discount(learner.discount, dtype)
    if discount is None:
        prior, atom = weight, (1 - weight) / seen
    else:
        prior, atom = weight + (1 - weight) * discount**seen, (1 - weight) * (1 - discount)
    empty = count == 0
    prior, atom = jnp.where(empty, 1, prior), jnp.where(empty, 0, atom)
    return Weights(jnp.where(count < 0, jnp.nan, prior), atom, discount)


def weights_by_round(learner: DirichletLearner, counts: Num[Array, " T"], dtype: Any) -> Weights:
    """Return the weights of many rounds."""
    # Mapped, not broadcast: a user's own schedule may be written for one number.
    by_round = jax.vmap(lambda count: weights_of(learner, count, dtype)._replace(discount=None))(counts)
    return by_round._replace(discount=traced_discount(learner.discount, dtype))


def traced_discount(discount: Scalar | None, dtype: Any) -> Float[Array, ""] | None:
    """Return a discount in the precision to work in; NaN for a traced one out of range, which nobody could check."""
    if discount is None:
        return None
    discount = jnp.asarray(discount, dtype)
    return jnp.where((discount > 0) & (discount < 1), discount, jnp.nan)


def schedule_of(learner: Any) -> schedules.Schedule:
    """Return the schedule in force: by default 1/√t, or with a discount the theorem's constant."""
    if learner.schedule is not None:
        return learner.schedule
    return schedules.InverseSqrt() if learner.discount is None else schedules.discounted(learner.discount)


def walk_of_pits(
    prior: Prior, masses: Num[Array, " N"], values: Float[Array, " N"], rounds: Rounds, rows: Arrivals
) -> tuple[Walk, Any]:
    """Return the walk that reads PITs, and its rows: values are those at which scores count, in ascending order."""
    places = jnp.searchsorted(values, rounds.scores, side="left").astype(jnp.int32)
    return pit_walk(masses, rounds.levels), (rows, places, cdf_of_many(prior, rounds.scores))


def closes_over_traced(schedule: Any) -> bool:
    """Whether a user's function hides a value that is being traced, which no other thread could evaluate."""
    return isinstance(schedule, schedules.Custom) and is_traced(schedule.function(jnp.ones(())))


def set_discount(learner: Any, hint: str) -> None:
    """Check and normalise the discount of a learner that is being constructed."""
    name = f"{type(learner).__name__}.discount"
    discount = check_float(name, learner.discount, 0.0, 1.0, open_low=True, open_high=True, hint=hint)
    object.__setattr__(learner, "discount", discount)


def check_prior(owner: str, prior: Any) -> None:
    """Check that a learner's prior is one, and that JAX can see into it."""
    if not isinstance(prior, Prior) or isinstance(prior, type):
        raise ValueError(f"{owner}.prior = {prior!r}: pass a prior such as priors.Uniform(0, 1)")
    if any(leaf is prior for leaf in jax.tree.leaves(prior)):
        raise ValueError(
            f"{owner}.prior = {prior!r}: not a pytree; register its class, see dpconformal.pytree.register"
        )


def check_state(learner: Any, state: Any, kind: type[Any], batched: bool, remedy: str = "") -> None:
    """Refuse a state of another kind, and a batch of states unless that is meant."""
    check_not_batched(learner)
    if not isinstance(state, kind):
        raise ValueError(
            f"state is a {type(state).__name__}: {type(learner).__name__} carries on from a {kind.__name__}, such as "
            "run.state"
        )
    if np.ndim(state.seen) and not batched:
        raise ValueError(f"state is a batch of shape {np.shape(state.seen)}: use jax.vmap{remedy}")


def check_valid_count(seen: Any) -> None:
    """Refuse to carry on from a state that met something bad inside ``jit``."""
    if not is_traced(seen):
        why = "a bad score or a full buffer was met inside jit; carry on from an earlier state"
        raise_at("state.seen", seen, np.asarray(seen) < 0, why)


def check_rounds(learner: DirichletLearner, seen: Any, rounds: int, dtype: Any) -> None:
    """
    Check the hyperparameters on the rounds to come, in the precision to come.

    What is in range as written may not be in float32: β = 1 - 1e-9 is 1 there.
    """
    if is_traced(learner):
        return
    counts = np.zeros(1, int) if is_traced(seen) else np.atleast_1d(seen)
    for first, last in rounds_after(counts, rounds):
        schedules.check_weights(schedule_of(learner), first, last)
    check_precision(learner, dtype)
    # Counts as floats: int32 could not hold every one of them.
    probed = np.asarray([1, max(int(counts.max(initial=0)) + rounds - 1, 1)], float)
    weights = _probe(learner, probed, np.dtype(dtype))
    if is_traced(weights):  # the caller is being traced: NaN thresholds will tell
        return
    limits, prior = jnp.finfo(dtype), np.asarray(weights.prior)
    valid = (prior >= limits.tiny) & (prior <= 1) & np.isfinite(weights.atom)
    if not valid.all() or (learner.discount is not None and learner.discount < limits.tiny):
        what = f"schedule = {learner.schedule!r}, discount = {learner.discount!r}"
        raise ValueError(
            f"{type(learner).__name__} with {what}: its weights collapse in {np.dtype(dtype)}; rescale it, or enable "
            "64-bit JAX (jax_enable_x64)"
        )


def check_precision(learner: Any, dtype: Any) -> None:
    """Check that a learner's support, and its prior if it has one, are still such in the precision to come."""
    if is_traced(learner, jnp.zeros((), dtype)):  # the caller is being traced: NaN thresholds will tell
        return
    prior, hint = getattr(learner, "prior", None), f"in {np.dtype(dtype)}; rescale it, or enable 64-bit JAX"
    middle = 0.0
    if prior is not None:
        with np.errstate(over="ignore"):  # an overflow is what is looked for
            middle = _median(prior, np.dtype(dtype))
    if not is_interval(learner.support, dtype) or not np.isfinite(middle):
        own = f"prior = {prior!r}" if prior is not None else f"low, high = {learner.support}"
        raise ValueError(f"{type(learner).__name__}.{own} collapses {hint} (jax_enable_x64)")


@jax.jit(static_argnames="dtype")
def _median(prior: Prior, dtype: Any) -> Array:
    """Return the prior's median: NaN or infinite where something collapses."""
    return prior.quantile(jnp.asarray(0.5, dtype))


_probe = jax.jit(weights_by_round, static_argnames="dtype")
