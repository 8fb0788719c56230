"""Save a learner with its state, and load both."""

import os
from collections.abc import Callable
from typing import Any, NamedTuple

from dpconformal.checkpoints.container import pack, unpack, write_whole
from dpconformal.checkpoints.records import LEARNERS, check_extent, make, record, take
from dpconformal.checkpoints.states import leaves_of, state_from
from dpconformal.learner import State

KIND = "learner"


class Checkpoint(NamedTuple):
    """
    What was saved.

    Attributes
    ----------
    learner : Learner
        With every hyperparameter as it was.
    state : State or None
        To carry on from.
    """

    learner: Any
    state: State


def save(path: str | os.PathLike[str], learner: Any, state: State = None) -> None:
    """
    Save a learner and its state in one file.

    The file appears whole or not at all, replaces an older one in one step, and is on the disk when this returns:
    neither a killed process nor a full disk costs more than the checkpoint that was being written.

    Parameters
    ----------
    path : path
        The file. Its folder must be there; the name is yours to choose, ``.dpc`` is usual.
    learner : Learner
        Any of dpconformal's, with any of its priors, schedules and rates, or a prior from NumPyro.
    state : State, optional
        Of this learner: ``run.state``, ``learner.observe(...)``, or a batch of states.

    Raises
    ------
    ValueError
        If the two do not belong together, the state is spoilt, or a part is of a class of your own.
    OSError
        If the disk refuses. A file that was there before is untouched then.

    See Also
    --------
    load : The way back.

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
    if not isinstance(learner, LEARNERS):
        raise ValueError(
            f"learner = {learner!r}: only dpconformal's own learners can be saved, for a file holds no code; keep the "
            "arrays of another one's state by your own means"
        )
    arrays: list[Any] = []
    header: dict[str, Any] = {"kind": KIND, "learner": record(learner, arrays), "state": None}
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
        A file that :func:`save` wrote. What it is called does not matter: the content decides.
    function : callable, optional
        For a learner that was saved with a schedule or rate of your own: that function, since a file holds no code.
        It is held to what the first one said.

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
    Nothing in a file can run code or name another file, and no more memory is taken than the size of the file warrants.
    The format is documented in :mod:`dpconformal.checkpoints.container`; later versions go on reading it.

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
        learner = make(header.get("learner"), arrays, function)
        if not isinstance(learner, LEARNERS):
            raise ValueError("it describes no learner")
        state = _state(learner, header.get("state"), arrays)
        if any(array is not None for array in arrays):
            raise ValueError("it holds arrays that belong to nothing")
        return Checkpoint(learner, state)
    except Exception as error:  # whatever constructors make of numbers that no user gave them
        reason = error if isinstance(error, (ValueError, ImportError)) else f"{type(error).__name__}: {error}"
        kind = ImportError if isinstance(error, ImportError) else ValueError
        raise kind(f"{os.fspath(path)} cannot be loaded: {reason!s:.600}") from None


def _state(learner: Any, entry: Any, arrays: list[Any]) -> State:
    if entry is None:
        return None
    places = isinstance(entry, dict) and all(type(k) is int and 0 <= k < len(arrays) for k in entry.values())
    if not places:
        raise ValueError("its state is no list of arrays")
    return state_from(learner, {name: take(arrays, k) for name, k in entry.items()})
