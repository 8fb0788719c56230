"""
Several devices: the sequences of a batch are independent, so each device scans its own, without a word to the others.

This is about the generic scan of numbers that are there. Traced input is its caller's to place, and the native loops of
:mod:`dpconformal.engine` use the cores of the host.
"""

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec, Sharding

from dpconformal.validation import is_traced


class Layout(NamedTuple):
    """
    How the sequences of a batch are divided among devices.

    Attributes
    ----------
    mesh : Mesh
        The devices, with an axis for each of ``rows``.
    batch : tuple of int
        The leading axes of the scores.
    rows : tuple of int
        The leading axes as they are laid out: those of the batch where the devices divide them evenly; otherwise one
        axis, with the last sequence repeated at its end.
    home : Device or None
        Where to bring what has to be cut; None: wherever JAX puts new arrays.
    """

    mesh: Mesh
    batch: tuple[int, ...]
    rows: tuple[int, ...]
    home: Any


def several_devices() -> bool:
    """
    Tell whether this process has more than one device to work on.

    Returns: Of the default backend, and of this process alone: others of a cluster have runs of their own.
    """
    return len(jax.local_devices()) > 1


def placement(values: Any) -> Sharding | None:
    """
    Tell where the user has put an array.

    Returns: None if the choice was left to JAX (or there is none): for what is not an array of JAX's, for one that is
    not committed to its devices, and where there is one device only.
    """
    if not several_devices() or is_traced(values) or not isinstance(values, jax.Array) or not values.committed:
        return None
    return values.sharding


def layout_of(scores: Any) -> Layout | None:
    """
    Divide a batch among devices: those that its scores are committed to, or all of this process.

    Returns: None where JAX's own choice of a device does: for one sequence, on one device, and inside
    ``jax.default_device`` or ``jax.set_mesh``, by which the user has chosen.
    """
    batch = scores.shape[:-1]
    count = math.prod(batch)
    if not several_devices() or not count:
        return None
    own, default = placement(scores), jax.config.jax_default_device  # type: ignore[attr-defined]
    if own is not None:
        devices = sorted(own.device_set, key=_number)
    elif count > 1 and default is None and jax.sharding.get_abstract_mesh().empty:
        devices = jax.local_devices()
    else:
        return None
    devices = devices[:count]
    rows, shape = batch, divided(batch, len(devices))
    if shape is None:
        rows, shape = (-(-count // len(devices)) * len(devices),), (len(devices),)
    names = tuple(f"sequences_{axis}" if axis else "sequences" for axis in range(len(shape)))
    # Explicit axes would be part of the type of every result, and ask users to place whatever they use it with.
    mesh = Mesh(np.array(devices).reshape(shape), names, axis_types=(AxisType.Auto,) * len(names))
    return Layout(mesh, batch, rows, None if own is None else devices[0])


def divided(batch: tuple[int, ...], count: int) -> tuple[int, ...] | None:
    """
    Divide the axes of a batch among devices, evenly.

    Returns: Into how many parts to divide each axis, ``count`` in all. None if it cannot be done.
    """
    shape = []
    for size in batch:
        shape.append(math.gcd(size, count))
        count //= shape[-1]
    return tuple(shape) if shape and count == 1 else None


def lay_out(layout: Layout, tree: Any) -> Any:
    """
    Bring each device its sequences.

    ``tree``: From anywhere. What is on the host goes straight to each device, and must not change before results are
    there: on a CPU, devices use the host's memory as it is, even if asked not to.
    """
    axes, sharding = len(layout.batch), _by_sequence(layout)

    def put(leaf: Any) -> Any:
        if layout.rows != layout.batch:
            count = math.prod(layout.batch)
            leaf = leaf.reshape((count, *leaf.shape[axes:]))
            if layout.rows[0] > count:
                leaf = leaf[np.minimum(np.arange(layout.rows[0]), count - 1)]
        return jax.device_put(leaf, sharding)

    return jax.tree.map(put, tree)


def spread_out(layout: Layout, tree: Any) -> Any:
    """Give every sequence its own copy, made on the sequence's device."""
    return _copies(layout.rows, _by_sequence(layout), everywhere(layout, tree))


@jax.jit(static_argnames=("rows", "sharding"))
def _copies(rows: tuple[int, ...], sharding: NamedSharding, tree: Any) -> Any:
    def copies(leaf: Any) -> Any:
        return jax.lax.with_sharding_constraint(jnp.broadcast_to(leaf, rows + leaf.shape), sharding)

    return jax.tree.map(copies, tree)


def everywhere(layout: Layout, tree: Any) -> Any:
    """
    Give every device the whole.

    ``tree``: Arrays of JAX's are copied to every device; numbers are left as they are, since their type is a weak one.
    """
    sharding = NamedSharding(layout.mesh, PartitionSpec())
    return jax.tree.map(lambda leaf: jax.device_put(leaf, sharding) if isinstance(leaf, jax.Array) else leaf, tree)


def collected(layout: Layout, tree: Any) -> Any:
    """
    Give results the leading axes of the batch.

    Returns: Where they are, if they are laid out evenly. Otherwise without the sequences that were repeated, on one
    device: an array of JAX's has parts of one size only.
    """
    if layout.rows == layout.batch:
        return tree
    count = math.prod(layout.batch)

    def back(leaf: Any) -> Any:
        return on_one_device(leaf, layout.home, slice(count)).reshape(layout.batch + leaf.shape[1:])

    return jax.tree.map(back, tree)


def on_one_device(leaf: Any, home: Any = None, rows: slice | None = None) -> Any:
    """
    Bring an array that is on several devices to one.

    ``home``: The device; by default JAX's choice, to which the array is not committed: it can be used with any other.
    Returns: What is on one device already, and what is traced, stays there.
    """
    several = isinstance(leaf, jax.Array) and not is_traced(leaf) and len(leaf.sharding.device_set) > 1
    if several and jnp.issubdtype(leaf.dtype, jax.dtypes.extended):  # keys of random numbers are nothing to the host
        leaf = jax.device_put(leaf, home or jax.local_devices()[0])
        several = False
    wanted = np.asarray(leaf) if several else leaf
    wanted = wanted if rows is None else wanted[rows]
    return jax.device_put(wanted, home, may_alias=True) if several else wanted


def apart(program: Any, mesh: Mesh, whole: tuple[Any, ...], own: tuple[Any, ...]) -> Any:
    """Run a program on each device, with no communication among them."""
    # Left to XLA's partitioner, a loop that ends when every sequence is done would ask all devices in every turn.
    parts = PartitionSpec(*mesh.axis_names)
    specs = (PartitionSpec(),) * len(whole) + (parts,) * len(own)
    # A sum that starts from a constant 0 on every device becomes another on each: that is meant, and not to be refused.
    return jax.shard_map(program, mesh=mesh, in_specs=specs, out_specs=parts, check_vma=False)(*whole, *own)


def _number(device: Any) -> int:
    return device.id


def _by_sequence(layout: Layout) -> NamedSharding:
    return NamedSharding(layout.mesh, PartitionSpec(*layout.mesh.axis_names))
