"""An adversary by search: sequences that are as bad for a learner as one can find."""

from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from dpconformal.engine.totals import pinball
from dpconformal.learner import Learner, fresh_state, support_of
from dpconformal.metrics import discounted_regret, regret
from dpconformal.metrics.loss import best_threshold
from dpconformal.replay import replay_batch
from dpconformal.validation import Scalar, check_int, check_scalar


class Hardest(NamedTuple):
    """Result of a search: the sequence, and the regret of the learner on it."""

    scores: np.ndarray  # (T,)
    regret: float  # discounted if a discount was asked for


def hardest_sequence(
    learner: Learner,
    level: Scalar,
    rounds: int = 64,
    discount: Scalar | None = None,
    population: int = 128,
    generations: int = 60,
    seed: int = 0,
) -> Hardest:
    """
    Search for the scores on which a learner regrets most, knowing nothing of it but its thresholds.

    The search starts from random sequences and that of a greedy adversary, who answers each threshold with the end of
    the support, or the point just beyond the threshold, that raises the regret most. Then the best are mutated and
    mixed for some generations.

    Parameters
    ----------
    learner : Learner
        With a bounded support.
    level : float
        Confidence level.
    rounds : int
        T.
    discount : float, optional
        β, for the discounted regret at the end.
    population, generations : int
        Sequences at a time, and how often they are replaced: their product is the number of replays.
    seed : int
        Of the random numbers.

    Returns
    -------
    Hardest
        The sequence and its regret.

    Examples
    --------
    >>> import dpconformal as dpc
    >>> found = hardest_sequence(dpc.ERM(), level=0.5, rounds=16, population=32, generations=5)
    >>> bool(found.regret > dpc.theory.regret_bound(16, 0.5))
    True
    """
    level = float(check_scalar("level", level, 0.0, 1.0))
    rounds, population = check_int("rounds", rounds, 1), check_int("population", population, 8)
    if not isinstance(learner, Learner) or isinstance(learner, type):
        raise ValueError(f"learner = {learner!r}: pass a learner such as dpconformal.Exact()")
    low, high = (float(end) for end in support_of(learner))
    if not np.isfinite(high - low):
        raise ValueError(f"learner has support [{low:g}, {high:g}]: an adversary needs a bounded one")

    # Sequences are in units of the support until they are replayed.
    def on_support(sequences: np.ndarray) -> np.ndarray:
        return np.clip(low + (high - low) * sequences, low, high)  # rounding may put some outside

    def regrets(sequences: np.ndarray) -> np.ndarray:
        run: Any = replay_batch(learner, on_support(sequences), [level])
        return (regret(run) if discount is None else discounted_regret(run, discount))[:, 0]

    # Coins under which every threshold is equally good, coins of all kinds, uniform scores, and the greedy adversary.
    rng = np.random.default_rng(seed)
    chance = np.where(np.arange(population) % 2, 1 - level, rng.random(population))[:, None]
    sequences = (rng.random((population, rounds)) < chance).astype(float)
    sequences[::4] = rng.random((len(sequences[::4]), rounds))
    sequences[0] = _greedy_scores(learner, level, rounds, low, high)
    found = regrets(sequences)
    for _ in range(check_int("generations", generations, 0)):
        parents = sequences[np.argsort(-found)[: population // 4]]
        sequences = np.concatenate([parents, _offspring(rng, parents, population - len(parents))])
        found = regrets(sequences)
    best = int(np.argmax(found))
    return Hardest(on_support(sequences[best]), float(found[best]))


def _offspring(rng: np.random.Generator, parents: np.ndarray, size: int) -> np.ndarray:
    """Splice two parents, redraw a few scores, and shift some sequences by a round or two."""
    rounds = parents.shape[1]
    first, second = (parents[rng.integers(len(parents), size=size)] for _ in range(2))
    children = np.where(np.arange(rounds) < rng.integers(0, rounds + 1, (size, 1)), first, second)
    redrawn = rng.random((size, rounds)) < rng.choice([1.0, 2.0, 5.0], (size, 1)) / rounds
    ends = rng.integers(0, 2, (size, rounds)).astype(float)
    children = np.where(redrawn, np.where(rng.random((size, 1)) < 0.8, ends, rng.random((size, rounds))), children)
    shift = rng.integers(-2, 3, size) * (rng.random(size) < 0.3)
    return np.stack([np.roll(child, by) for child, by in zip(children, shift, strict=True)])


def _greedy_scores(learner: Learner, level: float, rounds: int, low: float, high: float) -> np.ndarray:
    """Answer each threshold with the score that raises the regret most in its round; in units of the support."""
    state = fresh_state(learner, rounds, jnp.result_type(float))
    scores: list[float] = []
    for _ in range(rounds):
        r = float(np.asarray(learner.quantile(state, jnp.asarray([level])))[0])
        inside, nudge = min(max(r, low), high), 1e-3 * (high - low)
        options = np.array([low, high, min(inside + nudge, high), max(inside - nudge, low)])
        paid = pinball(np, r, options, level)
        # The loss of the round, less what it adds to the least loss in hindsight; of equal ones the larger loss.
        after = np.column_stack([np.tile(scores, (4, 1)), options])
        growth = np.round((paid - best_threshold(np, after, np.array([[level]]))[1][:, 0]) / (high - low), 9)
        scores.append(float(options[max(range(4), key=lambda i: (growth[i], paid[i]))]))
        state = learner.observe(state, jnp.asarray(scores[-1]))
    return (np.array(scores) - low) / (high - low)
