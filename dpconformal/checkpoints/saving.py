"""Save a learner with its state, and load both."""

import os
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from dpconformal.checkpoints.container import pack, unpack, write_whole
from dpconformal.checkpoints.records import FORECASTS, LEARNERS, as_jax, check_extent, describe, make_from, take_array
from dpconformal.compositions import Rearranged
from dpconformal.engine.states import Delayed, split_delayed_state
from dpconformal.learner import ContextLearner, Learner, SizedLearner, State, fresh_state
from dpconformal.rounds import Rounds
from dpconformal.validation import is_traced

KIND = "learner"
_MOST = 2**31  # bytes of an empty state that a learner without one may ask for


class Checkpoint(NamedTuple):
    """A learner with its hyperparameters as they were, and its state or None, as :func:`load` returns them."""

    learner: Learner
    state: State  # to carry on from; None if none was saved


def save(path: str | os.PathLike[str], learner: Learner, state: State = None) -> None:
    """
    Save a learner and its state in one file.

    The file appears whole or not at all, replaces an older one in one step, and is on the disk when this returns.

    Parameters
    ----------
    path : path
        The file, in a folder that exists; ``.dpc`` is usual.
    learner : Learner
        Any of dpconformal's, with any of its priors, schedules and rates, or a prior from NumPyro.
    state : State, optional
        Of this learner: ``run.state``, ``learner.observe(...)``, or a batch of states.

    Raises
    ------
    ValueError
        If the two do not belong together, the state is invalid, or a part is of a class of your own.
    OSError
        If the disk refuses. A file that was there before is untouched then.

    Examples
    --------
    >>> import tempfile, dpconformal as dpc
    >>> learner = dpc.Exact(discount=0.99)
    >>> run = dpc.replay(learner, [0.2, 0.4, 0.6], levels=[0.9])
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     dpc.save(f"{folder}/belief.dpc", learner, run.state)
    ...     learner, state = dpc.load(f"{folder}/belief.dpc")
    >>> learner, int(state.seen)
    (Exact(prior=Uniform(low=0.0, high=1.0), schedule=None, discount=0.99, capacity=None), 3)
    """
    if not isinstance(learner, (*LEARNERS, *FORECASTS)):
        raise ValueError(
            f"learner = {learner!r}: only dpconformal's own learners can be saved, for a file holds no code; keep the "
            "arrays of another one's state by your own means"
        )
    arrays: list[Any] = []
    header: dict[str, Any] = {"kind": KIND, "learner": describe(learner, arrays), "state": None}
    check_extent(header["learner"])
    if state is not None:
        leaves = leaves_of(learner, state)
        header["state"] = {name: len(arrays) + k for k, name in enumerate(leaves)}
        arrays += leaves.values()
    write_whole(path, pack(header, arrays))


def load(path: str | os.PathLike[str], function: Callable[[Any], Any] | None = None) -> Checkpoint:
    """
    Load a learner and its state.

    Parameters
    ----------
    path : path
        A file that :func:`save` wrote, under any name.
    function : callable, optional
        The schedule or rate of your own that the learner was saved with, since a file holds no code. It must give the
        same values.

    Returns
    -------
    Checkpoint
        ``learner, state``: every number as it was saved, to the last bit. The state is None if none was saved.

    Raises
    ------
    ValueError
        Naming the file: if it is cut off, damaged, no checkpoint, of a newer format, or describes what cannot be; and
        if it holds 64-bit numbers that would be rounded because 64-bit JAX is off.

    Notes
    -----
    Nothing in a file can run code or name another file; :mod:`dpconformal.checkpoints.container` has the format.

    Examples
    --------
    >>> import dpconformal as dpc
    >>> dpc.load("nowhere.dpc")
    Traceback (most recent call last):
    ValueError: nowhere.dpc does not exist: check the name
    """
    header, arrays = unpack(path)
    if header.get("kind") != KIND:
        raise ValueError(f"{os.fspath(path)} is a checkpoint of a {header.get('kind')!s:.20}, not of a learner")
    try:
        check_extent(header.get("learner"))
        learner = make_from(header.get("learner"), arrays, function)
        if not isinstance(learner, (*LEARNERS, *FORECASTS)):
            raise ValueError("it describes no learner")
        entry = header.get("state")
        state = None
        if entry is not None:
            if not (isinstance(entry, dict) and all(type(k) is int and 0 <= k < len(arrays) for k in entry.values())):
                raise ValueError("its state is no list of arrays")
            state = state_from(learner, {name: take_array(arrays, k) for name, k in entry.items()})
        if any(array is not None for array in arrays):
            raise ValueError("it holds arrays that belong to nothing")
        return Checkpoint(learner, state)
    except Exception as error:  # whatever constructors make of numbers that no user gave them
        reason = error if isinstance(error, (ValueError, ImportError)) else f"{type(error).__name__}: {error}"
        kind = ImportError if isinstance(error, ImportError) else ValueError
        raise kind(f"{os.fspath(path)} cannot be loaded: {reason!s:.600}") from None


def leaves_of(learner: Learner, state: State) -> dict[str, np.ndarray]:
    """Return the arrays of a state by name, once they are checked."""
    if is_traced(state):
        raise ValueError("state is being traced: save it outside jit, vmap and grad")
    if isinstance(state, Delayed):
        _check_delayed(learner, state)
        own = {f".state{name}": leaf for name, leaf in leaves_of(learner, state.state).items()}
        return own | _named_leaves(state._replace(state=None))
    pattern = _pattern(learner)
    if jax.tree.structure(state) != jax.tree.structure(pattern):  # type: ignore[operator]
        raise ValueError(
            f"state is a {type(state).__name__}: {type(learner).__name__} has a {type(pattern).__name__}, such as "
            "run.state"
        )
    _check_state(learner, state, pattern)
    return _named_leaves(state)


def state_from(learner: Learner, leaves: dict[str, np.ndarray]) -> State:
    """Make a state of its arrays, and check it."""
    if ".delay" in leaves:  # some of its scores are not known yet
        names = (".delay", ".waiting.observed", ".waiting.scores")
        own = {name.removeprefix(".state"): leaf for name, leaf in leaves.items() if name.startswith(".state")}
        rest = {name: as_jax(leaf, f"state{name}") for name, leaf in leaves.items() if not name.startswith(".state")}
        context = rest.pop(".waiting.context", None)
        if sorted(rest) != list(names):
            raise ValueError(f"its state has {', '.join(sorted(rest))}, and one with a delay {', '.join(names)}")
        delay, observed, scores = (rest[name] for name in names)
        delayed = Delayed(state_from(learner, own), delay, Rounds(scores, observed=observed, context=context))
        _check_delayed(learner, delayed)
        return delayed
    pattern = _pattern(learner)
    wanted = _named_leaves(pattern)
    if set(leaves) != set(wanted):
        raise ValueError(f"its state has {', '.join(leaves)}, and that of {type(learner).__name__} {', '.join(wanted)}")
    state = jax.tree.unflatten(jax.tree.structure(pattern), [as_jax(leaves[name], f"state{name}") for name in wanted])
    _check_state(learner, state, pattern)
    return state


def _check_delayed(learner: Learner, state: Delayed) -> None:
    """Refuse scores that are not known yet if no replay could carry on from them."""
    waiting = state.waiting
    delay, scores, observed = (np.asarray(part) for part in (state.delay, waiting.scores, waiting.observed))
    parts = (("delay", delay, "i"), ("waiting.scores", scores, "f"), ("waiting.observed", observed, "b"))
    for name, part, kind in parts:
        if part.dtype.kind != kind:
            raise ValueError(f"state.{name} holds {part.dtype}, which is not what a replay with a delay leaves there")
    width = int(np.max(delay, initial=0))
    if (delay < 0).any() or (delay.size and width == 0) or scores.ndim == 0 or scores.shape[-1] < width:
        raise ValueError(f"state.delay is {delay.tolist()}, and state.waiting.scores has shape {scores.shape}")
    pattern, leaf = jax.tree.leaves(_pattern(learner))[0], jax.tree.leaves(state.state)[0]
    if np.shape(leaf)[: np.ndim(leaf) - pattern.ndim] != delay.shape:
        raise ValueError(f"state.delay has shape {delay.shape}, which does not fit the other parts of the state")
    context = waiting.context
    split_delayed_state(learner, state, delay, delay.shape, context)
    if context is not None:
        if not isinstance(learner, ContextLearner):
            raise ValueError(f"state.waiting.context is there, and {type(learner).__name__} takes none")
        if isinstance(context, tuple):
            raise ValueError(
                f"state.waiting.context: what a {type(learner).__name__} with a delay waits for has no file; save "
                "state.state, which forgets the scores on their way"
            )
        if np.shape(context)[: scores.ndim] != scores.shape:
            raise ValueError(f"state.waiting.context has shape {np.shape(context)}, and the scores {scores.shape}")
        learner.as_context(context, scores.shape)


def _check_state(learner: Learner, state: State, pattern: State) -> None:
    """Refuse a state without the types and axes of the learner's own, or that the learner cannot carry on from."""
    leaves = _named_leaves(state)
    batch = next(iter(leaves.values())).shape
    batch = batch[: len(batch) - jax.tree.leaves(pattern)[0].ndim]
    for (name, leaf), own in zip(leaves.items(), jax.tree.leaves(pattern), strict=True):
        if leaf.dtype.kind != own.dtype.kind:
            raise ValueError(f"state{name} holds {leaf.dtype}, and {type(learner).__name__} keeps {own.dtype} there")
        if leaf.shape[: len(batch)] != batch or leaf.ndim != len(batch) + own.ndim:
            raise ValueError(f"state{name} has shape {leaf.shape}, which does not fit the other parts of the state")
    if 0 in batch:
        return
    if isinstance(learner, SizedLearner):
        learner.prepare(state, 0)
    state.check(learner.learner if isinstance(learner, Rearranged) else learner)  # its state is that of the method


def _pattern(learner: Learner) -> State:
    """Return shapes and types of an empty state, for which no memory is taken."""
    pattern = jax.eval_shape(lambda: fresh_state(learner, 1, jnp.result_type(float)))
    size = sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(pattern))
    if size > _MOST:
        raise ValueError(f"{type(learner).__name__} would keep {size:,} bytes: more than any use of it needs")
    return pattern


def _named_leaves(state: State) -> dict[str, Any]:
    """Return the arrays of a state, or the shapes of a pattern, by their paths in it."""
    leaves = jax.tree_util.tree_leaves_with_path(state)
    return {
        jax.tree_util.keystr(path): leaf if isinstance(leaf, jax.ShapeDtypeStruct) else np.asarray(leaf)
        for path, leaf in leaves
    }
